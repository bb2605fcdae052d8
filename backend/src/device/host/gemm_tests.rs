//! Products on tiles against the same products on plain weights, which `tests.rs` checks.

#![expect(unsafe_code, reason = "tests write to buffers as hosts do")]

use std::sync::Arc;

use llada_npu_ffi::Region;
use llada_npu_kernels::op::convert::f32_to_f16_row;

use super::*;
use crate::device::host::Host;
use crate::device::{Accelerator, Op};
use crate::memory::store::Source as From;
use crate::memory::{Keep, WeightStore};

struct Random(u32);

impl Random {
    fn float(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from(i16::from_ne_bytes([
            self.0.to_le_bytes()[2],
            self.0.to_le_bytes()[3],
        ])) / 32768.0
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }

    /// Blocks of a type: any bytes, with small scales where scales are.
    fn weight(&mut self, type_: Type, shape: [usize; 4]) -> Vec<u8> {
        let n: usize = shape.iter().product();
        let (blck, size, scale) = match type_ {
            Type::F16 => (1, 2, 0),
            Type::Q8_0 => (32, 34, 0),
            Type::Q4_0 => (32, 18, 0),
            other => panic!("{other:?}"),
        };
        let mut bytes = vec![0; n / blck * size];
        for block in bytes.chunks_exact_mut(size) {
            for byte in &mut *block {
                *byte = self.float().to_le_bytes()[1];
            }
            let d = [self.float()];
            f32_to_f16_row(&d, &mut block[scale..scale + 2]);
        }
        bytes
    }
}

/// A product, its weights in a buffer.
struct Case {
    spec: Spec,
    store: WeightStore,
    region: Arc<Region>,
    size: usize,
    x: Vec<u8>,
    ids: Vec<u8>,
    n_out: usize,
}

fn bytes<const N: usize, T>(values: &[T], to_bytes: impl Fn(&T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(to_bytes).collect()
}

impl Case {
    fn new(type_: Type, ne0: [usize; 4], ne1: [usize; 4], ids: Option<(Vec<i32>, usize)>) -> Self {
        let mut random = Random(5);
        let weight = random.weight(type_, ne0);
        let row_size = weight.len() / (ne0[1] * ne0[2] * ne0[3]);
        let block = match type_ {
            Type::F16 => 2,
            Type::Q8_0 => 34,
            _ => 18,
        };
        let src0 = Layout {
            type_,
            ne: ne0,
            nb: [
                block,
                row_size,
                row_size * ne0[1],
                row_size * ne0[1] * ne0[2],
            ],
        };
        let x = random.floats(ne1.iter().product());
        let (dst_ne, ids_layout, ids) = match ids {
            None => ([ne0[1], ne1[1], ne1[2], ne1[3]], None, Vec::new()),
            Some((ids, n_used)) => {
                let n_tokens = ids.len() / n_used;
                let layout = Layout::contiguous(Type::I32, 4, [n_used, n_tokens, 1, 1]);
                ([ne0[1], n_used, n_tokens, 1], Some(layout), ids)
            }
        };
        let (store, region) = (
            WeightStore::new(Keep::Memory),
            Arc::new(Region::anonymous(weight.len()).unwrap()),
        );
        // SAFETY: nobody else knows the region.
        unsafe { region.bytes_mut(region.address(), weight.len()) }
            .unwrap()
            .copy_from_slice(&weight);
        store.add_buffer(Arc::clone(&region), From::Written);
        let mut srcs = [None; 5];
        srcs[0] = Some(src0);
        srcs[1] = Some(Layout::contiguous(Type::F32, 4, ne1));
        srcs[2] = ids_layout;
        Self {
            spec: Spec {
                op: if ids_layout.is_some() {
                    Op::MulMatId
                } else {
                    Op::MulMat
                },
                dst: Layout::contiguous(Type::F32, 4, dst_ne),
                srcs: srcs.first_chunk().copied().unwrap(),
            },
            store,
            region,
            size: weight.len(),
            x: bytes(&x, |x| x.to_ne_bytes()),
            ids: bytes(&ids, |id| id.to_ne_bytes()),
            n_out: dst_ne.iter().product(),
        }
    }

    fn run(&self, host: &mut Host, on_tiles: bool) -> Result<Vec<f32>, DeviceError> {
        let mut dst = vec![f32::NAN; self.n_out];
        let guard = self.store.plain();
        // SAFETY: one borrow at a time.
        let weight = unsafe { self.region.bytes_mut(self.region.address(), self.size) }.unwrap();
        if !on_tiles {
            guard.use_plain(self.region.address(), self.size, true);
        }
        let mut srcs = [Source::Missing; _];
        srcs[0] = Source::Data(weight);
        srcs[1] = Source::Data(&self.x);
        if self.spec.op == Op::MulMatId {
            srcs[2] = Source::Data(&self.ids);
        }
        host.run(Task {
            spec: self.spec,
            dst: bytemuck::cast_slice_mut(&mut dst),
            srcs,
            weights: on_tiles.then_some(&guard),
        })?;
        Ok(dst)
    }

    fn check(&self, n_threads: usize) {
        let mut host = Host::with_kernels(n_threads, &[]).unwrap();
        let plain = self.run(&mut host, false).unwrap();
        let norm = plain.iter().map(|y| y.abs()).fold(0.0, f32::max);
        // Twice: the second time memory is there already, and plain bytes may be gone.
        for _ in 0..2 {
            let tiled = self.run(&mut host, true).unwrap();
            for (i, (a, b)) in tiled.iter().zip(&plain).enumerate() {
                assert!((a - b).abs() <= 1e-4 * norm, "{i}: {a} {b} of {norm}");
            }
        }
    }
}

#[test]
fn planes_repeat_and_rows_and_strips_may_be_cut_anywhere() {
    for type_ in [Type::F16, Type::Q8_0, Type::Q4_0] {
        for (ne0, ne1) in [
            ([32, 1, 1, 1], [32, 1, 1, 1]),
            ([64, 33, 1, 1], [64, 1, 1, 1]),
            ([256, 70, 2, 1], [256, 5, 4, 3]),
            ([64, 500, 1, 2], [64, 200, 1, 4]),
            ([96, 31, 3, 1], [96, 131, 3, 1]),
        ] {
            for n_threads in [1, 3] {
                Case::new(type_, ne0, ne1, None).check(n_threads);
            }
        }
    }
}

#[test]
fn every_row_meets_the_plane_it_chose() {
    for type_ in [Type::F16, Type::Q8_0, Type::Q4_0] {
        let choices = [
            (vec![3], 1),
            (vec![0, 4, 1, 1, 4, 0], 2),
            ((0..200).map(|i| i * i % 5).collect(), 4),
        ];
        for (ids, n_used) in choices {
            let n_tokens = ids.len() / n_used;
            // Rows of their own, and one row for all choices of a token.
            for n_rows in [n_used, 1] {
                let ids = Some((ids.clone(), n_used));
                let case = Case::new(type_, [64, 45, 5, 1], [64, n_rows, n_tokens, 1], ids);
                case.check(1);
                case.check(3);
            }
        }
    }
}

#[test]
fn every_choice_is_the_product_with_that_plane() {
    let (k, n, n_used) = (64, 45, 2);
    let ids = vec![0, 4, 1, 1, 4, 0];
    let chosen = Case::new(
        Type::Q8_0,
        [k, n, 5, 1],
        [k, n_used, 3, 1],
        Some((ids.clone(), n_used)),
    );
    let mut host = Host::with_kernels(2, &[]).unwrap();
    let results = chosen.run(&mut host, true).unwrap();
    // All rows with all planes.
    let mut all = Case::new(Type::Q8_0, [k, n, 5, 1], [k, 6, 5, 1], None);
    all.x = chosen.x.repeat(5);
    let all = all.run(&mut host, false).unwrap();
    for (slot, id) in ids.iter().enumerate() {
        let plane = usize::try_from(*id).unwrap();
        let expected = &all[(plane * 6 + slot) * n..][..n];
        for (a, b) in results[slot * n..][..n].iter().zip(expected) {
            assert!((a - b).abs() < 1e-3, "slot {slot}: {a} {b}");
        }
    }
}

#[test]
fn a_plane_that_is_not_there_is_an_error() {
    for id in [-1, 5, i32::MAX] {
        let ids = Some((vec![0, id], 2));
        let case = Case::new(Type::Q8_0, [32, 8, 5, 1], [32, 2, 1, 1], ids);
        let mut host = Host::with_kernels(2, &[]).unwrap();
        for on_tiles in [false, true] {
            let result = case.run(&mut host, on_tiles);
            assert!(matches!(result, Err(DeviceError::Index { .. })), "{id}");
        }
    }
}

#[test]
fn what_is_no_product_is_refused() {
    let good = Case::new(Type::Q8_0, [64, 8, 2, 1], [64, 3, 4, 1], None).spec;
    assert!(Shape::of(&good).is_ok());
    let with = |change: fn(&mut Spec)| {
        let mut spec = good;
        change(&mut spec);
        Shape::of(&spec)
    };
    let src = |spec: &mut Spec, i: usize| spec.srcs[i].unwrap();
    assert!(with(|s| s.srcs[1] = None).is_err());
    assert!(with(|s| s.srcs[0].as_mut().unwrap().type_ = Type::F32).is_err());
    assert!(with(|s| s.srcs[0].as_mut().unwrap().nb[1] += 34).is_err());
    assert!(with(|s| s.srcs[1].as_mut().unwrap().ne[0] = 32).is_err());
    assert!(with(|s| s.srcs[1].as_mut().unwrap().ne[2] = 3).is_err());
    assert!(with(|s| s.dst.ne[1] = 4).is_err());
    assert!(with(|s| s.dst.nb[1] += 4).is_err());
    let mut chosen = Case::new(
        Type::Q8_0,
        [64, 8, 2, 1],
        [64, 2, 3, 1],
        Some((vec![0; 6], 2)),
    )
    .spec;
    assert!(Shape::of(&chosen).is_ok());
    let mut ids = src(&mut chosen, 2);
    ids.type_ = Type::I64;
    chosen.srcs[2] = Some(ids);
    assert!(Shape::of(&chosen).is_err());
}

#[test]
fn runs_are_all_strips_in_order_and_end_with_single_ones() {
    for (n, n_threads, most) in [
        (0, 2, 9),
        (1, 2, 9),
        (64, 2, usize::MAX),
        (64, 2, 8),
        (1000, 7, 8),
    ] {
        let runs = Runs { n, n_threads, most };
        let all: Vec<Range<usize>> = (0..runs.count()).map(|i| runs.nth(i)).collect();
        let strips: Vec<usize> = all.iter().cloned().flatten().collect();
        assert_eq!(strips, (0..n).collect::<Vec<_>>(), "{runs:?}");
        assert!(
            all.iter().all(|run| (1..=most).contains(&run.len())),
            "{runs:?}"
        );
        assert!(all.is_sorted_by(|a, b| a.len() >= b.len()), "{runs:?}");
        let singles = all.iter().filter(|run| run.len() == 1).count();
        assert!(singles >= n.min(n_threads), "{runs:?}");
    }
}

#[test]
fn a_weight_that_is_not_mapped_is_refused() {
    let case = Case::new(Type::Q8_0, [256, 70, 1, 1], [256, 5, 1, 1], None);
    let mut host = Host::with_kernels(2, &[]).unwrap();
    let expected = case.run(&mut host, true).unwrap();
    let address = case.region.address();
    for _ in 0..2 {
        case.store.show(address);
        assert_eq!(case.run(&mut host, true).unwrap(), expected);
        case.store.hide(address);
        let refused = case.run(&mut host, true);
        assert!(
            matches!(refused, Err(DeviceError::NotMapped { size_bytes }) if size_bytes > 256 * 70),
            "{refused:?}"
        );
    }
    // Instances without a budget open what they need.
    let mut free = Host::with_kernels(2, &[]).unwrap().opening_tiles(true);
    assert_eq!(case.run(&mut free, true).unwrap(), expected);
}

#[test]
fn an_instance_without_a_budget_computes_beside_one_that_maps_and_unmaps() {
    let case = Case::new(Type::Q8_0, [256, 70, 1, 1], [256, 5, 1, 1], None);
    let mut host = Host::with_kernels(2, &[]).unwrap().opening_tiles(true);
    let expected = case.run(&mut host, true).unwrap();
    let (address, store) = (case.region.address(), &case.store);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                store.show(address);
                store.hide(address);
                std::thread::yield_now();
            }
        });
        let mut run = || case.run(&mut host, true).unwrap();
        let are_right = (0..200).all(|_| run() == expected);
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(are_right);
    });
}
