//! Attention of the host device against mixtures computed here element by element, in f64.

use llada_npu_ffi::ggml::Type;
use llada_npu_kernels::op::convert::{dequantize_row, f32_to_f16_row};

use super::*;
use crate::device::host::Host;
use crate::device::{Accelerator, FlashAttnParams, Op, OperandError, Source, Spec, Task};
use crate::memory::KvTiles;

/// Operands with strides of their own.
#[derive(Clone)]
struct Tensor {
    layout: Layout,
    bytes: Vec<u8>,
}

impl Tensor {
    /// Rows apart, dimensions 1 and 2 exchanged in memory: as K/V of a model lie.
    fn new(type_: Type, ne: [usize; 4], value: impl FnMut() -> f32) -> Self {
        let size = if type_ == Type::F32 { 4 } else { 2 };
        let nb2 = size * ne[0] + 8;
        let nb1 = nb2 * ne[2] + 16;
        let nb = [size, nb1, nb2, nb1 * ne[1] + 4];
        let layout = Layout { type_, ne, nb };
        let mut tensor = Self {
            layout,
            bytes: vec![0xff; nb[3] * ne[3]],
        };
        tensor.fill(value);
        tensor
    }

    fn fill(&mut self, mut value: impl FnMut() -> f32) {
        let [n0, n1, n2, n3] = self.layout.ne;
        for i in 0..n1 * n2 * n3 {
            let at = self.offset([i % n1, i / n1 % n2, i / n1 / n2]);
            let row: Vec<f32> = (0..n0).map(|_| value()).collect();
            let bytes: Vec<u8> = row.iter().flat_map(|v| v.to_ne_bytes()).collect();
            if self.layout.type_ == Type::F32 {
                self.bytes[at..at + 4 * n0].copy_from_slice(&bytes);
            } else {
                f32_to_f16_row(&row, &mut self.bytes[at..at + 2 * n0]);
            }
        }
    }

    fn offset(&self, index: [usize; 3]) -> usize {
        (0..3).map(|dim| index[dim] * self.layout.nb[dim + 1]).sum()
    }

    fn row(&self, index: [usize; 3]) -> Vec<f32> {
        let mut row = vec![0.0; self.layout.ne[0]];
        let ty = WeightType::from_ggml_type(self.layout.type_.0).unwrap();
        let size = ty.row_size(row.len()).unwrap();
        dequantize_row(ty, &self.bytes[self.offset(index)..][..size], &mut row);
        row
    }
}

struct Case {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Option<Tensor>,
    params: FlashAttnParams,
    tiles: bool,
}

/// What differs from case to case.
#[derive(Clone, Copy)]
struct Shape {
    d: [usize; 2],
    n_tokens: usize,
    n_kv: usize,
    n_head_kv: usize,
    group: usize,
    n3: usize,
    /// Shape of the mask in dimensions 2 and 3.
    mask: Option<[usize; 2]>,
    type_: Type,
    max_bias: f32,
}

const SHAPE: Shape = Shape {
    d: [64, 64],
    n_tokens: 5,
    n_kv: 100,
    n_head_kv: 2,
    group: 3,
    n3: 1,
    mask: Some([1, 1]),
    type_: Type::F16,
    max_bias: 0.0,
};

impl Case {
    fn new(shape: Shape) -> Self {
        let mut seed = 7u32;
        let mut next = || {
            seed = seed.wrapping_mul(1664525).wrapping_add(1013904223);
            (seed >> 16) as f32 / 32768.0 - 1.0
        };
        let Shape {
            d: [d_k, d_v],
            n_tokens,
            n_kv,
            n_head_kv,
            group,
            n3,
            ..
        } = shape;
        let q = Tensor::new(Type::F32, [d_k, n_tokens, n_head_kv * group, n3], &mut next);
        let k = Tensor::new(shape.type_, [d_k, n_kv, n_head_kv, n3], &mut next);
        let v = Tensor::new(shape.type_, [d_v, n_kv, n_head_kv, n3], &mut next);
        let hidden = |x: f32| if x < -0.5 { f32::NEG_INFINITY } else { x };
        let mask = shape.mask.map(|[n2, n3]| {
            Tensor::new(Type::F16, [n_kv, n_tokens + 2, n2, n3], || hidden(next()))
        });
        let params = FlashAttnParams {
            scale: 0.2,
            max_bias: shape.max_bias,
            softcap: 0.0,
        };
        Self {
            q,
            k,
            v,
            mask,
            params,
            tiles: false,
        }
    }

    fn dst(&self) -> Layout {
        let [_, n_tokens, n_heads, n3] = self.q.layout.ne;
        Layout::contiguous(Type::F32, 4, [self.v.layout.ne[0], n_heads, n_tokens, n3])
    }

    fn tensors(&self) -> [Option<&Tensor>; 5] {
        [
            Some(&self.q),
            Some(&self.k),
            Some(&self.v),
            self.mask.as_ref(),
            None,
        ]
    }

    fn spec(&self) -> Spec {
        let op = if self.tiles {
            Op::FlashAttnTiles
        } else {
            Op::FlashAttnExt
        };
        Spec {
            op: op(self.params),
            dst: self.dst(),
            srcs: self.tensors().map(|tensor| tensor.map(|t| t.layout)),
        }
    }

    fn run(&self, n_threads: usize) -> Vec<f32> {
        let (spec, dst) = (self.spec(), self.dst());
        let srcs = self
            .tensors()
            .map(|t| t.map_or(Source::Missing, |t| Source::Data(&t.bytes)));
        let mut out = vec![f32::NAN; dst.n_elements().unwrap()];
        let task = Task {
            spec,
            dst: bytemuck::cast_slice_mut(&mut out),
            srcs,
            weights: None,
        };
        let mut host = Host::with_kernels(n_threads, &[]).unwrap();
        assert!(host.supports(&spec));
        host.run(task).unwrap();
        out
    }

    fn expected(&self, i3: usize, token: usize, head: usize) -> Vec<f64> {
        let n_heads = self.q.layout.ne[2];
        let head_kv = head / (n_heads / self.k.layout.ne[2]);
        let q = self.q.row([token, head, i3]);
        let mask = self.mask.as_ref().map(|mask| {
            let [_, _, n2, n3] = mask.layout.ne;
            mask.row([token, head % n2, i3 % n3])
        });
        let slope = match self.params.max_bias {
            0.0 => 1.0,
            max_bias => f64::from(alibi_slope(max_bias, n_heads, head)),
        };
        let (mut out, mut sum) = (vec![0.0; self.v.layout.ne[0]], 0.0);
        for j in 0..self.k.layout.ne[1] {
            let k = self.k.row([j, head_kv, i3]);
            let dot: f64 = q
                .iter()
                .zip(&k)
                .map(|(q, k)| f64::from(*q) * f64::from(*k))
                .sum();
            let mask = mask.as_ref().map_or(0.0, |mask| slope * f64::from(mask[j]));
            let p = (dot * f64::from(self.params.scale) + mask).exp();
            sum += p;
            for (out, v) in out.iter_mut().zip(self.v.row([j, head_kv, i3])) {
                *out += p * f64::from(v);
            }
        }
        out.iter().map(|out| out / sum).collect()
    }

    fn check(&self, what: &str) {
        let out = self.run(1);
        let [_, n_tokens, n_heads, n3] = self.q.layout.ne;
        let rows = out.chunks_exact(self.v.layout.ne[0]);
        // Of many rows some.
        let step = rows.len().div_ceil(300);
        for (i, row) in rows.enumerate().step_by(step) {
            let (head, token, i3) = (i % n_heads, i / n_heads % n_tokens, i / n_heads / n_tokens);
            assert!(i3 < n3);
            for (d, (out, expected)) in row.iter().zip(self.expected(i3, token, head)).enumerate() {
                let error = (f64::from(*out) - expected).abs();
                assert!(
                    error < 2e-6,
                    "{what}: [{i3}][{token}][{head}][{d}] {out} for {expected}"
                );
            }
        }
        assert!(
            out == self.run(3),
            "{what}: results depend on the number of threads"
        );
    }
}

#[test]
fn attention_of_every_shape() {
    Case::new(SHAPE).check("as it is");
    Case::new(Shape {
        n_tokens: 1,
        n_kv: 1500,
        ..SHAPE
    })
    .check("runs of positions");
    Case::new(Shape {
        n_tokens: 33,
        n_kv: 1030,
        group: 1,
        ..SHAPE
    })
    .check("rows and runs");
    Case::new(Shape {
        n_tokens: 150,
        n_kv: 40,
        ..SHAPE
    })
    .check("many rows");
    Case::new(Shape {
        n_tokens: 700,
        n_kv: 1100,
        group: 8,
        n_head_kv: 1,
        ..SHAPE
    })
    .check("many rows, runs one after another");
    Case::new(Shape {
        group: 70,
        n_head_kv: 1,
        ..SHAPE
    })
    .check("many heads");
    Case::new(Shape {
        n3: 2,
        mask: Some([1, 2]),
        ..SHAPE
    })
    .check("planes");
    Case::new(Shape {
        n3: 2,
        mask: Some([6, 1]),
        ..SHAPE
    })
    .check("a mask per head");
    Case::new(Shape {
        mask: None,
        type_: Type::F32,
        ..SHAPE
    })
    .check("f32, no mask");
    Case::new(Shape {
        d: [40, 72],
        max_bias: 8.0,
        ..SHAPE
    })
    .check("slopes, odd sizes");
}

#[test]
fn what_is_not_attention_is_refused() {
    let case = Case::new(SHAPE);
    let spec = |change: fn(&mut Spec)| {
        let mut spec = Spec {
            op: Op::FlashAttnExt(case.params),
            dst: case.dst(),
            srcs: [
                Some(case.q.layout),
                Some(case.k.layout),
                Some(case.v.layout),
                None,
                None,
            ],
        };
        change(&mut spec);
        FlashAttnShape::of(&spec).err()
    };
    assert_eq!(spec(|_| ()), None);
    let type_ = Type::Q8_0;
    let wrong = OperandError::Type { src: 1, type_ };
    assert_eq!(
        spec(|s| s.srcs[1].as_mut().unwrap().type_ = Type::Q8_0),
        Some(wrong)
    );
    let sinks = OperandError::Type {
        src: 4,
        type_: Type::F32,
    };
    assert_eq!(spec(|s| s.srcs[4] = s.srcs[0]), Some(sinks));
    let shape = |src| Some(OperandError::Shape { src });
    assert_eq!(spec(|s| s.srcs[2].as_mut().unwrap().ne[1] = 99), shape(2));
    assert_eq!(spec(|s| s.srcs[3] = s.srcs[1]), shape(3));
    assert_eq!(spec(|s| s.dst.ne[0] = 32), Some(OperandError::Dst));
    let broadcast = OperandError::Broadcast {
        dim: 2,
        ne0: 4,
        ne1: 6,
    };
    let heads = |s: &mut Spec| {
        s.srcs[1].as_mut().unwrap().ne[2] = 4;
        s.srcs[2].as_mut().unwrap().ne[2] = 4;
    };
    assert_eq!(spec(heads), Some(broadcast));
}

/// Rows of all heads, as floats, written to tiles at shuffled positions.
fn in_tiles(host: &mut Host, tiles: KvTiles, tensor: &Tensor) -> Tensor {
    let [d, n_kv, n_heads, _] = tensor.layout.ne;
    let n_embd = d * n_heads;
    let ids: Vec<i64> = (0..n_kv as i64).map(|i| i ^ 5).collect();
    let rows = ids.iter().flat_map(|id| {
        let row = usize::try_from(*id).unwrap();
        (0..n_heads).flat_map(move |head| tensor.row([row, head, 0]))
    });
    let x: Vec<u8> = rows.flat_map(f32::to_ne_bytes).collect();
    let mut bytes = vec![0; 2 * n_embd * n_kv];
    let dst = Layout::contiguous(Type::F16, 2, [n_embd, n_kv, 1, 1]);
    let src0 = Layout::contiguous(Type::F32, 4, [n_embd, n_kv, 1, 1]);
    let src1 = Layout::contiguous(Type::I64, 8, [n_kv, 1, 1, 1]);
    let spec = Spec {
        op: Op::SetKvRows(tiles),
        dst,
        srcs: [Some(src0), Some(src1), Some(dst), None, None],
    };
    let mut srcs = [Source::Missing; 5];
    srcs[0] = Source::Data(&x);
    srcs[1] = Source::Data(bytemuck::cast_slice(&ids));
    srcs[2] = Source::InPlace;
    let dst = &mut bytes;
    let weights = None;
    let task = Task {
        spec,
        dst,
        srcs,
        weights,
    };
    host.run(task).unwrap();
    let layout = Layout {
        nb: [2, 2 * n_embd, 2 * d, 2 * n_embd * n_kv],
        ..tensor.layout
    };
    Tensor { layout, bytes }
}

#[test]
fn tiles_give_the_bits_of_plain_rows() {
    let mut host = Host::with_kernels(2, &[]).unwrap();
    for (n_tokens, n_kv) in [(5, 96), (33, 1056)] {
        let mut case = Case::new(Shape {
            d: [64, 96],
            n_tokens,
            n_kv,
            ..SHAPE
        });
        let plain = case.run(2);
        case.k = in_tiles(&mut host, KvTiles::K, &case.k);
        case.v = in_tiles(&mut host, KvTiles::V, &case.v);
        case.tiles = true;
        assert!(case.run(2) == plain, "{n_tokens} {n_kv}");
        // What is not whole blocks of all heads.
        let refused = |change: fn(&mut Layout)| {
            let mut spec = case.spec();
            change(spec.srcs[1].as_mut().unwrap());
            change(spec.srcs[2].as_mut().unwrap());
            !host.supports(&spec)
        };
        assert!(!refused(|_| ()));
        assert!(refused(|k| k.ne[1] -= 1));
        assert!(refused(|k| k.nb[1] += 64));
        assert!(refused(|k| k.type_ = Type::F32));
    }
}

#[test]
fn an_index_that_is_no_row_writes_nothing() {
    let mut host = Host::with_kernels(1, &[]).unwrap();
    for ids in [[0i32, 32], [0, -1]] {
        let mut bytes = vec![7; 2 * 64 * 32];
        let dst = Layout::contiguous(Type::F16, 2, [64, 32, 1, 1]);
        let src0 = Layout::contiguous(Type::F32, 4, [64, 2, 1, 1]);
        let src1 = Layout::contiguous(Type::I32, 4, [2, 1, 1, 1]);
        let spec = Spec {
            op: Op::SetKvRows(KvTiles::V),
            dst,
            srcs: [Some(src0), Some(src1), Some(dst), None, None],
        };
        let mut srcs = [Source::Missing; 5];
        srcs[0] = Source::Data(&[0; 4 * 64 * 2]);
        srcs[1] = Source::Data(bytemuck::cast_slice(&ids));
        srcs[2] = Source::InPlace;
        let task = Task {
            spec,
            dst: &mut bytes,
            srcs,
            weights: None,
        };
        assert!(host.run(task).is_err());
        assert!(bytes.iter().all(|byte| *byte == 7));
    }
}
