//! Products of the host device against sums computed here element by element, in f64.

use llada_npu_ffi::ggml::Type;
use llada_npu_kernels::op::convert::{dequantize_row, f32_to_f16_row, quantize_row_q8_0};
use llada_npu_kernels::tile::TileType;
use llada_npu_kernels::{WeightType, registry};

use super::*;
use crate::device::{Layout, Operand, OperandError, Source};

/// Operands with strides of their own.
struct Case {
    ty: WeightType,
    ne0: [usize; 4],
    nb0: [usize; 4],
    src0: Vec<u8>,
    ne1: [usize; 4],
    nb1: [usize; 4],
    src1: Vec<u8>,
}

/// Returns strides of rows of `row_size` bytes with dimensions in memory in the order `order`, each with some padding.
fn strides(
    block: usize,
    row_size: usize,
    ne: [usize; 4],
    order: [usize; 3],
    pad: usize,
) -> ([usize; 4], usize) {
    let mut nb = [block, 0, 0, 0];
    let mut size = row_size + pad;
    for dim in order {
        nb[dim] = size;
        size = size * ne[dim] + pad;
    }
    (nb, size)
}

impl Case {
    fn new(
        ty: WeightType,
        ne0: [usize; 4],
        m: usize,
        repeat: [usize; 2],
        order: [usize; 3],
        pad: usize,
    ) -> Self {
        let ne1 = [ne0[0], m, ne0[2] * repeat[0], ne0[3] * repeat[1]];
        let (nb0, size0) = strides(
            ty.type_size(),
            ty.row_size(ne0[0]).unwrap(),
            ne0,
            order,
            pad,
        );
        let (nb1, size1) = strides(4, 4 * ne1[0], ne1, order, pad);
        let mut seed = 7u32;
        let mut next = || {
            seed = seed.wrapping_mul(1664525).wrapping_add(1013904223);
            (seed >> 16) as f32 / 32768.0 - 1.0
        };
        let mut src0 = vec![0xff; size0];
        for offset in
            planes(ne0, nb0).flat_map(|start| (0..ne0[1]).map(move |i| start + i * nb0[1]))
        {
            let floats: Vec<f32> = (0..ne0[0]).map(|_| next()).collect();
            let row = &mut src0[offset..][..ty.row_size(ne0[0]).unwrap()];
            match ty {
                WeightType::F32 => row.copy_from_slice(&bytes(&floats)),
                WeightType::F16 => f32_to_f16_row(&floats, row),
                WeightType::Q8_0 => quantize_row_q8_0(&floats, row),
                WeightType::Q4_0 => {
                    for (block, x) in row.chunks_mut(18).zip(floats.chunks(32)) {
                        f32_to_f16_row(&[x[0]], &mut block[..2]);
                        block[2..]
                            .iter_mut()
                            .zip(x)
                            .for_each(|(q, x)| *q = x.to_bits().to_le_bytes()[0]);
                    }
                }
            }
        }
        let mut src1 = vec![0xff; size1];
        for offset in
            planes(ne1, nb1).flat_map(|start| (0..ne1[1]).map(move |i| start + i * nb1[1]))
        {
            let floats: Vec<f32> = (0..ne1[0]).map(|_| next()).collect();
            src1[offset..][..4 * ne1[0]].copy_from_slice(&bytes(&floats));
        }
        Self {
            ty,
            ne0,
            nb0,
            src0,
            ne1,
            nb1,
            src1,
        }
    }

    fn dst_len(&self) -> usize {
        self.ne0[1] * self.ne1[1] * self.ne1[2] * self.ne1[3]
    }

    fn run(&self, host: &mut Host, dst: &mut [f32]) -> Result<(), DeviceError> {
        host.mul_mat(MulMat {
            ty: self.ty,
            src0: Operand {
                data: &self.src0,
                ne: self.ne0,
                nb: self.nb0,
            },
            src1: Operand {
                data: &self.src1,
                ne: self.ne1,
                nb: self.nb1,
            },
            dst,
        })
    }

    /// Returns each result's exact value and the sum of the magnitudes of its terms.
    fn exact(&self) -> Vec<(f64, f64)> {
        let [k, n, ne02, ne03] = self.ne0;
        let [_, m, ne12, ne13] = self.ne1;
        let mut results = Vec::new();
        for (i3, i2, i1, i0) in (0..ne13).flat_map(|i3| {
            (0..ne12).flat_map(move |i2| {
                (0..m).flat_map(move |i1| (0..n).map(move |i0| (i3, i2, i1, i0)))
            })
        }) {
            let (j2, j3) = (i2 * ne02 / ne12, i3 * ne03 / ne13);
            let at0 = i0 * self.nb0[1] + j2 * self.nb0[2] + j3 * self.nb0[3];
            let at1 = i1 * self.nb1[1] + i2 * self.nb1[2] + i3 * self.nb1[3];
            let mut w = vec![0.0; k];
            dequantize_row(
                self.ty,
                &self.src0[at0..][..self.ty.row_size(k).unwrap()],
                &mut w,
            );
            let mut x = vec![0.0; k];
            dequantize_row(WeightType::F32, &self.src1[at1..][..4 * k], &mut x);
            let x = converted(self.ty, x);
            let terms = || w.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            results.push((terms().sum(), terms().map(f64::abs).sum()));
        }
        results
    }

    fn check(&self, host: &mut Host) {
        let mut dst = vec![f32::NAN; self.dst_len()];
        self.run(host, &mut dst).unwrap();
        for (i, (got, (want, magnitude))) in dst.iter().zip(self.exact()).enumerate() {
            let error = (f64::from(*got) - want).abs();
            let tolerance = self.ne0[0] as f64 * 2f64.powi(-23) * magnitude;
            assert!(
                error <= tolerance,
                "{:?} {:?} x {:?} [{i}]: {got}, exact {want}",
                self.ty,
                self.ne0,
                self.ne1
            );
        }
    }
}

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn planes(ne: [usize; 4], nb: [usize; 4]) -> impl Iterator<Item = usize> {
    (0..ne[3]).flat_map(move |i3| (0..ne[2]).map(move |i2| i2 * nb[2] + i3 * nb[3]))
}

/// Returns x as the kernels for a weight type see it.
fn converted(ty: WeightType, x: Vec<f32>) -> Vec<f32> {
    let (ty, size) = match ty {
        WeightType::F32 => return x,
        WeightType::F16 => (WeightType::F16, 2 * x.len()),
        WeightType::Q8_0 | WeightType::Q4_0 => (WeightType::Q8_0, x.len() / 32 * 34),
    };
    let mut row = vec![0; size];
    if ty == WeightType::F16 {
        f32_to_f16_row(&x, &mut row)
    } else {
        quantize_row_q8_0(&x, &mut row)
    }
    let mut x = x;
    dequantize_row(ty, &row, &mut x);
    x
}

const PLAIN: [usize; 3] = [1, 2, 3];

#[test]
fn planes_repeat_as_ggml_broadcasts() {
    let mut host = Host::with_kernels(2, &[]).unwrap();
    for ty in WeightType::ALL {
        for (n2, n3, repeat) in [
            (1, 1, [1, 1]),
            (3, 1, [1, 1]),
            (2, 1, [4, 1]),
            (1, 2, [3, 2]),
            (2, 3, [2, 2]),
        ] {
            for m in [1, 5, 20] {
                Case::new(ty, [64, 11, n2, n3], m, repeat, PLAIN, 0).check(&mut host);
            }
        }
    }
}

#[test]
fn strides_are_free() {
    let mut host = Host::with_kernels(3, &[]).unwrap();
    for ty in WeightType::ALL {
        for order in [[1, 2, 3], [2, 1, 3], [3, 2, 1], [2, 3, 1]] {
            for pad in [0, 4, 7] {
                Case::new(ty, [32, 9, 4, 2], 19, [2, 1], order, pad).check(&mut host);
            }
        }
    }
}

#[test]
fn chunks_cover_any_shape_with_any_number_of_threads() {
    let mut host = Host::with_kernels(1, &[]).unwrap();
    for ty in WeightType::ALL {
        for (k, n, m) in [
            (256, 1, 1),
            (256, 33, 1),
            (128, 70, 3),
            (96, 100, 65),
            (512, 130, 64),
            (1024, 40, 129),
        ] {
            let case = Case::new(ty, [k, n, 1, 1], m, [1, 1], PLAIN, 0);
            host.set_n_threads(1).unwrap();
            case.check(&mut host);
            let (mut one, mut more) = (vec![0.0; case.dst_len()], vec![1.0; case.dst_len()]);
            case.run(&mut host, &mut one).unwrap();
            for n_threads in 2..=4 {
                host.set_n_threads(n_threads).unwrap();
                case.run(&mut host, &mut more).unwrap();
                assert_eq!(one, more, "{ty:?} {k} {n} {m} with {n_threads} threads");
            }
        }
    }
}

#[test]
fn nothing_is_a_product_too() {
    let mut host = Host::with_kernels(2, &[]).unwrap();
    for ty in WeightType::ALL {
        // No weights, no activations, no planes.
        for (ne0, m, repeat) in [
            ([64, 0, 1, 1], 3, [1, 1]),
            ([64, 3, 1, 1], 0, [1, 1]),
            ([64, 3, 2, 1], 3, [0, 1]),
        ] {
            Case::new(ty, ne0, m, repeat, PLAIN, 0).check(&mut host);
        }
        // Rows without elements: sums of nothing.
        let case = Case::new(ty, [0, 3, 1, 1], 20, [1, 1], PLAIN, 0);
        let mut dst = vec![1.0; 60];
        case.run(&mut host, &mut dst).unwrap();
        assert_eq!(dst, [0.0; 60]);
    }
}

#[test]
fn the_same_scratch_serves_small_and_large_products() {
    let mut host = Host::with_kernels(2, &[]).unwrap();
    for m in [1, 200, 2, 64, 300, 1] {
        Case::new(WeightType::Q8_0, [128, 20, 1, 1], m, [1, 1], PLAIN, 0).check(&mut host);
    }
}

#[test]
fn operands_that_do_not_fit_are_refused_before_anything_is_written() {
    let mut host = Host::with_kernels(2, &[]).unwrap();
    let mut case = Case::new(WeightType::F16, [64, 4, 1, 1], 3, [1, 1], PLAIN, 0);
    case.src0.pop();
    let mut dst = vec![5.0; 12];
    let result = case.run(&mut host, &mut dst);
    assert!(matches!(
        result,
        Err(DeviceError::Operands(OperandError::TooShort {
            src: 0,
            available: 511
        }))
    ));
    assert_eq!(dst, [5.0; 12]);
}

#[test]
fn every_kernel_can_be_named_and_others_are_refused() {
    for ty in WeightType::ALL {
        for kernel in registry::mul_mat(ty) {
            let host = Host::with_kernels(1, &[kernel.name.to_owned()]);
            if kernel.select().is_some() {
                let mut host = host.unwrap();
                assert_eq!(used(&host, ty), kernel.name);
                Case::new(ty, [96, 30, 1, 1], 21, [1, 1], PLAIN, 0).check(&mut host);
            } else {
                assert!(
                    matches!(host, Err(DeviceError::KernelUnavailable { .. })),
                    "{}",
                    kernel.name
                );
            }
        }
    }
    let error = Host::with_kernels(1, &["referense-q4_0q8_0".to_owned()]).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("`referense-q4_0q8_0`") && error.contains(" reference-q4_0q8_0,"),
        "{error}"
    );
}

#[test]
fn several_kernels_can_be_named_at_once() {
    let names = ["generic-f32".to_owned(), "reference-q8_0q8_0".to_owned()];
    let host = Host::with_kernels(1, &names).unwrap();
    assert_eq!(used(&host, WeightType::F32), "generic-f32");
    assert_eq!(used(&host, WeightType::Q8_0), "reference-q8_0q8_0");
}

/// Returns the name of the kernel for products with weights in rows.
fn used(host: &Host, ty: WeightType) -> &'static str {
    let families = host.families();
    let is = |family: &&Family| family.op == "mul_mat" && family.weights == Some(ty.name());
    families.iter().find(is).unwrap().used
}

#[test]
fn every_kernel_belongs_to_a_family() {
    let families = Host::with_kernels(1, &[]).unwrap().families();
    let weights = families.iter().filter(|family| family.weights.is_some());
    assert_eq!(weights.count(), WeightType::ALL.len() + TileType::ALL.len());
    // A family is one list of the registry: each of them ends with a kernel of the reference.
    let references = registry::names().filter(|name| name.starts_with("reference-"));
    assert_eq!(families.len(), references.count());
    let of =
        |family: &Family| [&[family.used][..], &family.others[..], &family.unavailable].concat();
    let mut listed: Vec<_> = families.iter().flat_map(of).collect();
    let mut all: Vec<_> = registry::names().collect();
    listed.sort_unstable();
    all.sort_unstable();
    assert_eq!(listed, all);
}

#[test]
fn what_is_supported_is_what_is_computed() {
    let host = Host::with_kernels(1, &[]).unwrap();
    let case = Case::new(WeightType::Q4_0, [64, 4, 2, 1], 3, [2, 1], PLAIN, 0);
    let layout = |id, ne, nb| Layout {
        type_: Type(id),
        ne,
        nb,
    };
    let mut spec = Spec {
        op: Op::MulMat,
        dst: Layout::contiguous(Type::F32, 4, [4, 3, 4, 1]),
        srcs: [None; _],
    };
    assert!(!host.supports(&spec));
    spec.srcs[0] = Some(layout(Type::Q4_0.0, case.ne0, case.nb0));
    spec.srcs[1] = Some(layout(Type::F32.0, case.ne1, case.nb1));
    assert!(host.supports(&spec));
    let with = |change: fn(&mut Spec)| {
        let mut spec = spec;
        change(&mut spec);
        host.supports(&spec)
    };
    assert!(!with(|s| s.dst.ne[1] = 4));
    assert!(!with(|s| s.dst.nb[1] = 64));
    assert!(!with(|s| s.dst.type_ = Type::F16));
    assert!(!with(|s| s.srcs[0].as_mut().unwrap().type_ = Type::BF16));
    assert!(!with(|s| s.srcs[1].as_mut().unwrap().type_ = Type::F16));
    assert!(!with(|s| s.srcs[1].as_mut().unwrap().nb[0] = 8));
}

#[test]
fn half_floats_times_half_floats_are_what_they_are_as_floats() {
    for (ne0, m, repeat, order, pad) in [
        ([65, 5, 1, 1], 7, [1, 1], PLAIN, 0),
        ([4, 16, 2, 3], 3, [2, 1], [3, 1, 2], 2),
        ([96, 33, 1, 1], 40, [1, 1], PLAIN, 6),
        ([8, 3, 1, 1], 0, [1, 1], PLAIN, 0),
    ] {
        let mut host = Host::with_kernels(2, &[]).unwrap();
        let mut case = Case::new(WeightType::F16, ne0, m, repeat, order, pad);
        // What x is as f16, in both types.
        let (nb, size) = strides(2, 2 * case.ne1[0], case.ne1, order, pad);
        let mut half = vec![0xff; size];
        let rows = |nb: [usize; 4]| {
            let starts = planes(case.ne1, nb);
            starts.flat_map(move |start| (0..m).map(move |i| start + i * nb[1]))
        };
        for (at, half_at) in rows(case.nb1).zip(rows(nb)) {
            let row = &mut case.src1[at..][..4 * ne0[0]];
            let floats: Vec<f32> = row
                .as_chunks()
                .0
                .iter()
                .map(|&b| f32::from_le_bytes(b))
                .collect();
            let out = &mut half[half_at..][..2 * ne0[0]];
            f32_to_f16_row(&floats, out);
            let mut exact = vec![0.0; ne0[0]];
            dequantize_row(WeightType::F16, out, &mut exact);
            row.copy_from_slice(&bytes(&exact));
        }
        let mut expected = vec![0.0; case.dst_len()];
        case.run(&mut host, &mut expected).unwrap();
        let layout = |ne, nb| {
            let type_ = Type::F16;
            Some(Layout { type_, ne, nb })
        };
        let ne = [ne0[1], m, case.ne1[2], case.ne1[3]];
        let mut spec = Spec {
            op: Op::MulMat,
            dst: Layout::contiguous(Type::F32, 4, ne),
            srcs: [None; _],
        };
        (spec.srcs[0], spec.srcs[1]) = (layout(ne0, case.nb0), layout(case.ne1, nb));
        let mut srcs = [Source::Missing; _];
        (srcs[0], srcs[1]) = (Source::Data(&case.src0), Source::Data(&half));
        let mut dst = vec![f32::NAN; case.dst_len()];
        let task = Task {
            spec,
            dst: bytemuck::cast_slice_mut(&mut dst),
            srcs,
            weights: None,
        };
        assert!(host.supports(&spec));
        host.run(task).unwrap();
        assert_eq!(dst, expected);
        let span = spec.srcs[1].unwrap().span_bytes(2 * ne0[0]).unwrap();
        let short = &half[..span.saturating_sub(1)];
        srcs[1] = Source::Data(short);
        let task = Task {
            spec,
            dst: bytemuck::cast_slice_mut(&mut dst),
            srcs,
            weights: None,
        };
        assert_eq!(host.run(task).is_err(), m > 0);
    }
}
