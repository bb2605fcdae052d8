//! What Qualcomm's own library computes, on the emulation of its x86-64 build. Times mean nothing here.

use llada_npu_ffi::qnn::{
    Backend, Context, ContextOptions, Data, DataMut, DataType, Device, DeviceOptions, GraphOptions,
    GraphSpec, Library, Provider, Quantization, TensorType,
};
use llada_npu_qnn_tests::case::{case, directory};
use llada_npu_qnn_tests::htp::{at_most, context, half, single};
use llada_npu_qnn_tests::linear::{self, Weights, dim};

#[test]
fn blocks_of_every_width() {
    case("blocks_of_every_width", || {
        let context = context();
        for (bits, size, offsets) in [
            (4, 32, false), // Q4_0
            (4, 32, true),  // Q4_1, Q4_K
            (8, 32, false), // Q8_0
            (8, 16, false), // Q6_K
            (2, 32, true),
            (4, 8, true),
            (4, 256, false),
        ] {
            let name = format!("b{bits}x{size}{offsets}");
            let w = Weights::blocks(64, 512, bits, size, offsets, 11);
            at_most(
                &name,
                linear::error_of(&context, &name, 16, &w).unwrap(),
                1e-6,
            );
        }
    });
}

#[test]
fn rows_from_one_to_many() {
    case("rows_from_one_to_many", || {
        let context = context();
        let w = Weights::blocks(96, 256, 4, 32, false, 12);
        for m in [1, 3, 32, 100] {
            let name = format!("m{m}");
            at_most(
                &name,
                linear::error_of(&context, &name, m, &w).unwrap(),
                1e-6,
            );
        }
    });
}

#[test]
fn halves_and_singles() {
    case("halves_and_singles", || {
        let context = context();
        let w = Weights::halves(64, 512, 13);
        at_most(
            "f16",
            linear::error_of(&context, "f16", 16, &w).unwrap(),
            1e-6,
        );
        let bytes: Vec<u8> = w
            .values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let mut spec = GraphSpec::new("f32", GraphOptions::default());
        let x = spec.input("f32.x", single(&[16, 512])).unwrap();
        let weight = spec.constant("f32.w", single(&[64, 512]), &bytes).unwrap();
        let y = spec.output("f32.y", single(&[16, 64])).unwrap();
        spec.fully_connected("f32.fc", x, weight, y).unwrap();
        let mut graph = context.build(&spec).unwrap();
        let x = linear::inputs(16, 512, 13);
        let stored: Vec<u8> = x.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut result = vec![0; 4 * 16 * 64];
        graph
            .execute(&[Data::Bytes(&stored)], &mut [DataMut::Bytes(&mut result)])
            .unwrap();
        let result: Vec<f32> = result
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        at_most(
            "f32",
            linear::nmse(&result, &linear::reference(&x, &w.values, 512)),
            1e-6,
        );
    });
}

#[test]
fn products_and_convolutions_with_blocks() {
    case("products_and_convolutions_with_blocks", || {
        let context = context();
        let w = Weights::blocks(64, 256, 4, 32, true, 14);
        let (ty, bytes) = w.transposed();
        for op in ["MatMul", "Conv2d"] {
            let mut spec = GraphSpec::new(op, GraphOptions::default());
            let x = spec
                .input(&format!("{op}.x"), half(&[1, 1, 16, 256]))
                .unwrap();
            let weight = spec
                .constant(&format!("{op}.w"), ty.clone(), &bytes)
                .unwrap();
            let y = spec
                .output(&format!("{op}.y"), half(&[1, 1, 16, dim(w.n)]))
                .unwrap();
            match op {
                "MatMul" => spec.mat_mul("mm", x, weight, false, y).unwrap(),
                _ => spec.conv2d_1x1("conv", x, weight, y).unwrap(),
            }
            let mut graph = context.build(&spec).unwrap();
            let x = linear::inputs(16, 256, 14);
            let result = linear::run(&mut graph, &x).unwrap();
            at_most(
                op,
                linear::nmse(&result, &linear::reference(&x, &w.values, 256)),
                1e-6,
            );
        }
    });
}

#[test]
fn eight_bits_per_channel_as_convolution() {
    case("eight_bits_per_channel_as_convolution", || {
        let context = context();
        let w = Weights::channels(64, 256, 15);
        let (ty, bytes) = w.transposed();
        let fixed = |dims: &[u32], scale: f32| {
            let offset = -32768;
            TensorType::quantized(
                DataType::Ufixed16,
                dims,
                Quantization::PerTensor { scale, offset },
            )
        };
        let x = linear::inputs(16, 256, 15);
        let wanted = linear::reference(&x, &w.values, 256);
        let largest = wanted
            .iter()
            .fold(0_f64, |largest, value| largest.max(value.abs()));
        #[expect(clippy::cast_possible_truncation, reason = "a scale")]
        let (scale_x, scale_y) = (1.0 / 32000.0, (largest / 32000.0) as f32);
        let mut spec = GraphSpec::new("conv", GraphOptions::default());
        let input = spec.input("x", fixed(&[1, 1, 16, 256], scale_x)).unwrap();
        let weight = spec.constant("w", ty, &bytes).unwrap();
        let y = spec.output("y", fixed(&[1, 1, 16, 64], scale_y)).unwrap();
        spec.conv2d_1x1("conv2d", input, weight, y).unwrap();
        let mut graph = context.build(&spec).unwrap();
        let (stored, _) = linear::to_u16(&x, scale_x, -32768);
        let mut result = vec![0; 2 * 16 * 64];
        graph
            .execute(&[Data::Bytes(&stored)], &mut [DataMut::Bytes(&mut result)])
            .unwrap();
        let result: Vec<f32> = result
            .chunks_exact(2)
            .map(|b| (f32::from(u16::from_le_bytes([b[0], b[1]])) - 32768.0) * scale_y)
            .collect();
        at_most(
            "u16 x int8 per channel",
            linear::nmse(&result, &wanted),
            1e-7,
        );
    });
}

/// A weight in a block is `(q + offset) * scale`; the other reading, `q * scale + offset`, is far off.
#[test]
fn what_an_offset_means() {
    case("what_an_offset_means", || {
        let context = context();
        let w = Weights::blocks(64, 256, 4, 32, true, 16);
        let mut graph = context
            .build(&linear::fully_connected("g", 16, &w, GraphOptions::default()).unwrap())
            .unwrap();
        let x = linear::inputs(16, 256, 16);
        let result = linear::run(&mut graph, &x).unwrap();
        at_most(
            "(q + offset) * scale",
            linear::nmse(&result, &linear::reference(&x, &w.values, 256)),
            1e-6,
        );
        let Quantization::FloatBlocks { scales, .. } = &w.quantization else {
            unreachable!("weights in blocks");
        };
        let other: Vec<f32> = w
            .bytes
            .iter()
            .enumerate()
            .map(|(i, q)| f32::from(q.cast_signed()) * scales[i / 32].scale + scales[i / 32].offset)
            .collect();
        let error = linear::nmse(&result, &linear::reference(&x, &other, 256));
        println!("q * scale + offset: NMSE {error:.2e}");
        assert!(error > 1e-2);
    });
}

/// `y = fc(x) + (x · A) · B`, with A and B as inputs that change between executions.
#[test]
fn low_rank_additions_change_without_building() {
    case("low_rank_additions_change_without_building", || {
        let context = context();
        let (m, k, n, rank) = (8, 256, 64, 16);
        let w = Weights::blocks(n, k, 4, 32, true, 24);
        let mut spec = GraphSpec::new("lora", GraphOptions::default());
        let x = spec.input("x", half(&[dim(m), dim(k)])).unwrap();
        let a = spec.input("a", half(&[dim(k), dim(rank)])).unwrap();
        let b = spec.input("b", half(&[dim(rank), dim(n)])).unwrap();
        let weight = spec.constant("w", w.ty(), &w.bytes).unwrap();
        let y = spec.output("y", half(&[dim(m), dim(n)])).unwrap();
        let base = spec.native("base", half(&[dim(m), dim(n)])).unwrap();
        let low = spec.native("low", half(&[dim(m), dim(rank)])).unwrap();
        let added = spec.native("added", half(&[dim(m), dim(n)])).unwrap();
        spec.fully_connected("fc", x, weight, base).unwrap();
        spec.mat_mul("mm.a", x, a, false, low).unwrap();
        spec.mat_mul("mm.b", low, b, false, added).unwrap();
        spec.node("add", "ElementWiseAdd", &[], &[base, added], &[y])
            .unwrap();
        let mut graph = context.build(&spec).unwrap();
        let x = linear::inputs(m, k, 24);
        for seed in [25, 26] {
            let (a, b) = (
                linear::inputs(k, rank, seed),
                linear::inputs(rank, n, seed + 10),
            );
            let mut result = vec![0; 2 * m * n];
            let bytes = [&x, &a, &b].map(|values| linear::halves(values));
            let data = [
                Data::Bytes(&bytes[0]),
                Data::Bytes(&bytes[1]),
                Data::Bytes(&bytes[2]),
            ];
            graph
                .execute(&data, &mut [DataMut::Bytes(&mut result)])
                .unwrap();
            let wanted = with_low_rank(&x, &w, &a, &b, rank);
            at_most(
                "with A and B",
                linear::nmse(&linear::from_halves(&result), &wanted),
                1e-6,
            );
        }
    });
}

fn with_low_rank(x: &[f32], w: &Weights, a: &[f32], b: &[f32], rank: usize) -> Vec<f64> {
    let mut wanted = linear::reference(x, &w.values, w.k);
    for (x, y) in x.chunks_exact(w.k).zip(wanted.chunks_exact_mut(w.n)) {
        let column =
            |values: &[f32], i: usize, r: usize, columns: usize| f64::from(values[i * columns + r]);
        let low: Vec<f64> = (0..rank)
            .map(|r| {
                x.iter()
                    .enumerate()
                    .map(|(i, x)| f64::from(*x) * column(a, i, r, rank))
                    .sum()
            })
            .collect();
        for (j, y) in y.iter_mut().enumerate() {
            *y += low
                .iter()
                .enumerate()
                .map(|(r, low)| low * column(b, r, j, w.n))
                .sum::<f64>();
        }
    }
    wanted
}

#[test]
fn a_gated_unit_in_one_graph() {
    case("a_gated_unit_in_one_graph", || {
        let context = context();
        let (m, k, n) = (8, 256, 64);
        let [gate_w, up_w] = [27, 28].map(|seed| Weights::blocks(n, k, 4, 32, false, seed));
        let down_w = Weights::blocks(k, n, 4, 32, false, 29);
        let mut spec = GraphSpec::new("ffn", GraphOptions::default());
        let x = spec.input("x", half(&[dim(m), dim(k)])).unwrap();
        let y = spec.output("y", half(&[dim(m), dim(k)])).unwrap();
        let [gate_c, up_c, down_c] = [("gate.w", &gate_w), ("up.w", &up_w), ("down.w", &down_w)]
            .map(|(name, w)| spec.constant(name, w.ty(), &w.bytes).unwrap());
        let [gate, up, silu, inner] = ["gate", "up", "silu", "inner"]
            .map(|name| spec.native(name, half(&[dim(m), dim(n)])).unwrap());
        spec.fully_connected("fc.gate", x, gate_c, gate).unwrap();
        spec.fully_connected("fc.up", x, up_c, up).unwrap();
        spec.silu("op.silu", gate, silu).unwrap();
        spec.node(
            "op.inner",
            "ElementWiseMultiply",
            &[],
            &[silu, up],
            &[inner],
        )
        .unwrap();
        spec.fully_connected("fc.down", inner, down_c, y).unwrap();
        let mut graph = context.build(&spec).unwrap();
        let x = linear::inputs(m, k, 30);
        let (gate, up) = (
            linear::reference(&x, &gate_w.values, k),
            linear::reference(&x, &up_w.values, k),
        );
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a reference in singles is near enough for halves"
        )]
        let inner: Vec<f32> = gate
            .iter()
            .zip(&up)
            .map(|(g, u)| (g / (1.0 + (-g).exp()) * u) as f32)
            .collect();
        let wanted = linear::reference(&inner, &down_w.values, n);
        at_most(
            "SwiGLU",
            linear::nmse(&linear::run(&mut graph, &x).unwrap(), &wanted),
            1e-6,
        );
    });
}

#[test]
fn singles_outside_and_casts_inside() {
    case("singles_outside_and_casts_inside", || {
        let context = context();
        let w = Weights::blocks(64, 256, 4, 32, false, 31);
        let mut spec = GraphSpec::new("cast", GraphOptions::default());
        let x = spec.input("x", single(&[8, 256])).unwrap();
        let y = spec.output("y", single(&[8, 64])).unwrap();
        let [x16, y16] =
            [("x16", 256), ("y16", 64)].map(|(name, n)| spec.native(name, half(&[8, n])).unwrap());
        let weight = spec.constant("w", w.ty(), &w.bytes).unwrap();
        spec.node("in", "Cast", &[], &[x], &[x16]).unwrap();
        spec.fully_connected("fc", x16, weight, y16).unwrap();
        spec.node("out", "Cast", &[], &[y16], &[y]).unwrap();
        let mut graph = context.build(&spec).unwrap();
        let x = linear::inputs(8, 256, 31);
        let stored: Vec<u8> = x.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut result = vec![0; 4 * 8 * 64];
        graph
            .execute(&[Data::Bytes(&stored)], &mut [DataMut::Bytes(&mut result)])
            .unwrap();
        let result: Vec<f32> = result
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        at_most(
            "casts",
            linear::nmse(&result, &linear::reference(&x, &w.values, 256)),
            1e-6,
        );
    });
}

/// Only release 2.47 has this library.
#[test]
fn the_reference_backend() {
    case("the_reference_backend", || {
        let path = directory()
            .expect("a case has libraries")
            .join("libQnnCpu.so");
        if !path.exists() {
            println!("this release has no {}", path.display());
            return;
        }
        let library = Library::open(&path, Provider::Cpu).unwrap();
        let backend = Backend::new(&library).unwrap();
        let device = Device::new(&backend, DeviceOptions::default()).unwrap();
        let context = Context::new(&device, ContextOptions::default()).unwrap();
        let w = Weights::halves(16, 64, 33);
        let bytes: Vec<u8> = w
            .values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let mut spec = GraphSpec::new("f32", GraphOptions::default());
        let x = spec.input("x", single(&[4, 64])).unwrap();
        let weight = spec.constant("w", single(&[16, 64]), &bytes).unwrap();
        let y = spec.output("y", single(&[4, 16])).unwrap();
        spec.fully_connected("fc", x, weight, y).unwrap();
        let mut graph = context.build(&spec).unwrap();
        let x = linear::inputs(4, 64, 33);
        let stored: Vec<u8> = x.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut result = vec![0; 4 * 4 * 16];
        graph
            .execute(&[Data::Bytes(&stored)], &mut [DataMut::Bytes(&mut result)])
            .unwrap();
        let result: Vec<f32> = result
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        at_most(
            "CPU, f32",
            linear::nmse(&result, &linear::reference(&x, &w.values, 64)),
            1e-10,
        );
    });
}
