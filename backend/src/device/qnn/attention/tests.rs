use half::f16;
use llada_npu_ffi::ggml::Type;
use llada_npu_ffi::ggml::plugin::Arrangement;

use super::*;
use crate::device::qnn::rows::Piece;
use crate::device::{FlashAttn, FlashAttnParams, Layout};
use crate::memory::KvTiles;

const D: usize = 32;
const N_HEAD: usize = 4;
const N_HEAD_KV: usize = 2;

fn shape(n_tokens: usize, n_kv: usize) -> FlashAttnShape {
    let by_head = |type_, size: usize, n: usize, n_head: usize| Layout {
        type_,
        ne: [D, n, n_head, 1],
        nb: [size, size * D * n_head, size * D, size * D * n_head * n],
    };
    FlashAttnShape {
        params: FlashAttnParams {
            scale: 0.5,
            max_bias: 0.0,
            softcap: 0.0,
        },
        tiles: false,
        q: by_head(Type::F32, 4, n_tokens, N_HEAD),
        k: by_head(Type::F16, 2, n_kv, N_HEAD_KV),
        v: by_head(Type::F16, 2, n_kv, N_HEAD_KV),
        mask: Some(Layout::contiguous(Type::F16, 2, [n_kv, n_tokens, 1, 1])),
    }
}

fn halves(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    let halves = values.into_iter().map(|x| f16::from_f32(x).to_le_bytes());
    halves.flatten().collect()
}

fn values(bytes: &[u8]) -> Vec<f32> {
    let halves = bytes.as_chunks().0.iter();
    halves
        .map(|&half| f16::from_le_bytes(half).to_f32())
        .collect()
}

#[test]
fn positions_are_rounded_up_to_powers_of_two() {
    let room = |n_kv| AttentionForm::of(&shape(3, n_kv), 32, None).map(|form| form.n_kv);
    for (n_kv, expected) in [(1, 32), (32, 32), (33, 64), (300, 512), (4096, 4096)] {
        assert_eq!(room(n_kv), Ok(expected));
    }
    assert_eq!(room(4097), Err(Unfit::Large { n_kv: 4097 }));
    let many_rows = AttentionForm::of(&shape(3, 4096), 4097, None);
    assert_eq!(many_rows, Err(Unfit::Large { n_kv: 4096 }));
}

#[test]
fn what_has_no_graph_is_refused() {
    let refused = |change: &dyn Fn(&mut FlashAttnShape)| {
        let mut shape = shape(3, 40);
        change(&mut shape);
        AttentionForm::of(&shape, 32, None).unwrap_err()
    };
    assert_eq!(refused(&|it| it.params.max_bias = 8.0), Unfit::Scores);
    assert_eq!(refused(&|it| it.params.softcap = 30.0), Unfit::Scores);
    assert_eq!(refused(&|it| it.v.type_ = Type::F32), Unfit::Type);
    let mask_per_head = Layout::contiguous(Type::F16, 2, [40, 3, N_HEAD, 1]);
    assert_eq!(refused(&|it| it.mask = Some(mask_per_head)), Unfit::Masks);
}

/// Operands with small numbers: the value at an index of V is its index modulo 64, divided by 64; K has a quarter of its position modulo 4
/// besides.
#[derive(Clone)]
struct Data {
    q: Vec<u8>,
    k: Vec<u8>,
    v: Vec<u8>,
    mask: Vec<u8>,
}

impl Data {
    fn new(n_tokens: usize, n_kv: usize, mask: impl Fn(usize, usize) -> f32) -> Self {
        let q = (0..n_tokens * N_HEAD * D).map(|i| (i % 8) as f32 / 16.0);
        let rows = (0..n_tokens).flat_map(|row| (0..n_kv).map(move |position| (row, position)));
        let v = |i: usize| (i % 64) as f32 / 64.0;
        let k = |i: usize| v(i) + (i / 64 % 4) as f32 / 4.0;
        let kv = 0..n_kv * N_HEAD_KV * D;
        Self {
            q: q.flat_map(f32::to_le_bytes).collect(),
            k: halves(kv.clone().map(k)),
            v: halves(kv.map(v)),
            mask: halves(rows.map(|(row, position)| mask(row, position))),
        }
    }

    fn op<'a>(&'a self, shape: FlashAttnShape, dst: &'a mut [f32]) -> FlashAttn<'a> {
        FlashAttn {
            shape,
            q: &self.q,
            k: &self.k,
            v: &self.v,
            mask: Some(&self.mask),
            dst,
        }
    }
}

const PIECE_ROWS: usize = 2;

const PIECE: Piece = Piece {
    start: 1,
    n_rows: PIECE_ROWS,
    room: 32,
};

#[test]
fn inputs_are_filled_up_and_finite() {
    // The second row sees the even positions, at -1000 and below; the third sees nothing.
    let mask = |row: usize, position: usize| match row {
        1 if position.is_multiple_of(2) => -1000.0 - position as f32,
        0 => 0.0,
        _ => f32::NEG_INFINITY,
    };
    let (shape, mut data) = (shape(3, 40), Data::new(3, 40, mask));
    // Where nobody of the piece looks, anything may lie.
    for rows in [&mut data.k, &mut data.v] {
        rows[2 * 64..4 * 64].fill(0xff);
    }
    let form = AttentionForm::of(&shape, PIECE.room, None).unwrap();
    let mut dst = vec![0.0; 3 * N_HEAD * D];
    let mut op = data.op(shape, &mut dst);
    let operands = gather(&op, &form, PIECE, 0).unwrap();
    let [q, k, v, mask] = operands.inputs.as_slice() else {
        panic!("four inputs");
    };
    let sizes = [q, k, v, mask].map(Vec::len);
    assert_eq!(sizes, form.input_lens().map(|len| 2 * len));
    let row = N_HEAD * D;
    let expected = (0..2 * row).map(|i| ((row + i) % 8) as f32 / 32.0);
    assert_eq!(values(&q[..4 * row]), expected.collect::<Vec<_>>());
    assert!(q[4 * row..].iter().all(|&byte| byte == 0));
    let rows = k.chunks_exact(2 * 64).zip(v.chunks_exact(2 * 64));
    for (position, (k, v)) in rows.enumerate() {
        let is_there = position < 40 && position.is_multiple_of(2);
        // About the mean of the positions that somebody sees.
        let expected = match position % 4 {
            _ if !is_there => 0.0,
            0 => -0.25,
            _ => 0.25,
        };
        assert_eq!(values(k), [expected; 64], "{position}");
        let expected = (0..64).map(|i| if is_there { i as f32 / 64.0 } else { 0.0 });
        assert_eq!(values(v), expected.collect::<Vec<_>>(), "{position}");
    }
    for (i, row) in mask.chunks_exact(2 * form.n_kv).enumerate() {
        for (position, x) in values(row).into_iter().enumerate() {
            let expected = match (i, position) {
                // Nobody reads what rows beyond the piece come to.
                (PIECE_ROWS.., _) => 0.0,
                (_, 40..) => HIDDEN,
                (0, p) if p.is_multiple_of(2) => -(p as f32),
                (0, _) => HIDDEN,
                _ => 0.0,
            };
            let half = f16::from_f32(expected).to_f32();
            assert!((x - half).abs() <= 0.5, "{i} {position}: {x}");
        }
    }
    // The first row of the piece is the graph's, the one that sees nothing is zero whatever it computes.
    let mut output = halves(std::iter::repeat_n(0.25, PIECE.room * row));
    output[2 * row..4 * row].fill(0xff);
    assert!(write(&mut op, &operands, PIECE, 0, &output));
    assert!(dst[..row].iter().all(|&x| x == 0.0));
    assert!(dst[row..2 * row].iter().all(|&x| x == 0.25));
    assert!(dst[2 * row..].iter().all(|&x| x == 0.0));
    output[..2].fill(0xff);
    let mut op = data.op(shape, &mut dst);
    assert!(!write(&mut op, &operands, PIECE, 0, &output));
}

#[test]
fn tiles_are_read_as_rows() {
    let n_kv = 64;
    let (plain, data) = (shape(3, n_kv), Data::new(3, n_kv, |_, _| 0.0));
    let form = AttentionForm::of(&plain, PIECE.room, None).unwrap();
    let mut tiles = [vec![0; data.k.len()], vec![0; data.v.len()]];
    let plain_rows = [(KvTiles::K, &data.k), (KvTiles::V, &data.v)];
    for (to, (layout, rows)) in tiles.iter_mut().zip(plain_rows) {
        assert!(layout.write(to, 2 * N_HEAD_KV * D, 0, rows));
    }
    let mut dst = vec![0.0; 3 * N_HEAD * D];
    let expected = gather(&data.op(plain, &mut dst), &form, PIECE, 0).unwrap();
    let mut op = data.op(
        FlashAttnShape {
            tiles: true,
            ..plain
        },
        &mut dst,
    );
    (op.k, op.v) = (&tiles[0], &tiles[1]);
    let found = gather(&op, &form, PIECE, 0).unwrap();
    assert_eq!(found.inputs, expected.inputs);
}

#[test]
fn what_all_keys_have_in_common_changes_nothing() {
    let (shape, mut data) = (shape(3, 40), Data::new(3, 40, |_, _| 0.0));
    let form = AttentionForm::of(&shape, PIECE.room, None).unwrap();
    let inputs = |data: &Data| {
        let mut dst = vec![0.0; 3 * N_HEAD * D];
        let operands = gather(&data.op(shape, &mut dst), &form, PIECE, 0);
        operands.unwrap().inputs
    };
    let expected = inputs(&data);
    data.k = halves(values(&data.k).into_iter().map(|x| x + 2.0));
    assert_eq!(inputs(&data), expected);
}

#[test]
fn numbers_beyond_half_floats_are_refused() {
    let (shape, data) = (shape(3, 40), Data::new(3, 40, |_, _| 0.0));
    let form = AttentionForm::of(&shape, PIECE.room, None).unwrap();
    let takes = |change: &dyn Fn(&mut Data, &mut FlashAttnShape)| {
        let (mut shape, mut data) = (shape, data.clone());
        change(&mut data, &mut shape);
        let mut dst = vec![0.0; 3 * N_HEAD * D];
        gather(&data.op(shape, &mut dst), &form, PIECE, 0).is_some()
    };
    assert!(takes(&|_, _| {}));
    let last = |bytes: &mut Vec<u8>, end: &[u8]| {
        let start = bytes.len() - end.len();
        bytes[start..].copy_from_slice(end);
    };
    assert!(!takes(&|data, _| last(&mut data.q, &1e6_f32.to_le_bytes())));
    assert!(!takes(&|data, _| last(
        &mut data.q,
        &f32::NAN.to_le_bytes()
    )));
    assert!(!takes(&|data, _| last(
        &mut data.k,
        &f16::INFINITY.to_le_bytes()
    )));
    assert!(!takes(&|data, _| last(
        &mut data.v,
        &f16::INFINITY.to_le_bytes()
    )));
    assert!(!takes(&|data, _| last(
        &mut data.mask,
        &f16::NAN.to_le_bytes()
    )));
    assert!(!takes(&|data, _| last(
        &mut data.mask,
        &f16::INFINITY.to_le_bytes()
    )));
    assert!(!takes(&|_, shape| shape.params.scale = 1000.0));
}
