#![expect(
    unsafe_code,
    reason = "tests write to buffers as hosts do, and read what they must not"
)]

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use llada_npu_ffi::Region;

use super::*;
use crate::memory::Keep;
use crate::memory::cache::RepackCache;
use crate::memory::parallel::Caller;
use crate::memory::runtime::{
    Class, Costs, Limits, Object, Observer, Planner, Policy, SegmentId, Session,
};
use crate::memory::shape::{TileShape, byte};
use crate::memory::store::Source;
use crate::memory::tiles::Tiles;

const N_WEIGHTS: usize = 12;

/// A store with weights that have tiles, one after the other.
struct Weights {
    store: Arc<WeightStore>,
    region: Arc<Region>,
    shape: TileShape,
    #[expect(dead_code, reason = "deleted when it is dropped")]
    dir: tempfile::TempDir,
}

impl Weights {
    fn new(is_cached: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let keep = if is_cached {
            Keep::Cache(RepackCache::new(dir.path().to_owned(), 1 << 30))
        } else {
            Keep::Memory
        };
        let store = Arc::new(WeightStore::new(keep));
        let shape = TileShape::for_tests(1024, 64, 1);
        let region = Arc::new(Region::anonymous(N_WEIGHTS * shape.plain_size_bytes()).unwrap());
        store.add_buffer(Arc::clone(&region), Source::Written);
        let weights = Self {
            store,
            region,
            shape,
            dir,
        };
        for i in 0..N_WEIGHTS {
            let size = shape.plain_size_bytes();
            weights.store.writing(weights.address(i), size, || {
                // SAFETY: nobody else knows the region.
                let bytes = unsafe { weights.region.bytes_mut(weights.address(i), size) };
                bytes.unwrap().copy_from_slice(&weights.plain(i));
            });
            weights.tiles(i);
        }
        weights
    }

    fn address(&self, i: usize) -> usize {
        self.region.address() + i * self.shape.plain_size_bytes()
    }

    fn plain(&self, i: usize) -> Vec<u8> {
        (0..self.shape.plain_size_bytes())
            .map(|at| byte(at * 31 + at / 977 + i))
            .collect()
    }

    fn tiles(&self, i: usize) -> Arc<Tiles> {
        let plain = self.plain(i);
        self.store
            .plain()
            .tiles(self.address(i), &self.shape, &plain, &mut Caller)
            .unwrap()
    }

    fn are_right(&self, i: usize) -> bool {
        let (plain, mut tiles) = (self.plain(i), vec![0; self.shape.size_bytes()]);
        for chunk in 0..self.shape.n_chunks() {
            self.shape
                .pack_chunk(chunk, &plain, &mut tiles[self.shape.chunk_bytes(chunk)]);
        }
        self.tiles(i).bytes() == tiles
    }

    fn workload(&self) -> Workload {
        let mut workload = Workload::new();
        for i in 0..N_WEIGHTS {
            let size_bytes = self.shape.size_bytes() as u64;
            let weight = Object::new(format!("w{i}"), size_bytes, Class::LongLived);
            let weight = workload.add_object(weight);
            workload.add_segment(format!("s{i}"), [weight]);
        }
        workload
    }

    fn mapping(&self) -> HostMapping {
        let addresses = (0..N_WEIGHTS).map(|i| Some(self.address(i))).collect();
        HostMapping::new(Arc::clone(&self.store), addresses)
    }
}

#[test]
fn tiles_can_be_read_while_they_are_mapped_and_only_then() {
    for is_cached in [false, true] {
        let weights = Weights::new(is_cached);
        let size = weights.shape.size_bytes() as u64;
        let n_fit = 5;
        for policy in Policy::ALL {
            let budget_bytes = size.next_multiple_of(4096) * n_fit;
            let limits = Limits {
                budget_bytes,
                max_map_bytes: 16384,
                ..Limits::default()
            };
            let costs = Costs {
                map_seconds_per_gb: 0.01,
                ..Costs::default()
            };
            let planner = Planner::new(weights.workload(), limits, policy, costs).unwrap();
            let observer =
                Observer::around(Box::new(weights.mapping()), costs, Box::new(|_| 0.001));
            let observed = observer.observed();
            let mut session = Session::new(planner, Box::new(observer)).unwrap();
            let all: Vec<_> = (0..N_WEIGHTS).map(SegmentId).collect();
            for step in 0..3 {
                session.begin(&all).unwrap();
                for i in 0..N_WEIGHTS {
                    session.enter().unwrap();
                    assert!(
                        weights.tiles(i).is_open() && weights.are_right(i),
                        "{policy} {i}"
                    );
                    let n_open = (0..N_WEIGHTS)
                        .filter(|&i| weights.tiles(i).is_open())
                        .count();
                    // In the first round those are open that nobody has mapped yet; beside a pipeline, which maps and unmaps
                    // meanwhile, this is no count of one moment, and the observer's peak below has to do.
                    let is_count = step > 0 && policy != Policy::PlannedPipeline;
                    assert!(!is_count || n_open as u64 <= n_fit, "{policy}: {n_open}");
                    session.leave().unwrap();
                }
                session.end();
            }
            session.finish();
            assert!(
                (0..N_WEIGHTS).all(|i| !weights.tiles(i).is_open()),
                "{policy}"
            );
            let observed = observed.lock().unwrap();
            assert_eq!(observed.counters.mapped_bytes, 0);
            assert!(observed.counters.peak_bytes <= budget_bytes);
            let totals = observed.totals();
            let expected = 3.0 * 0.001 * N_WEIGHTS as f64;
            assert!((totals.run - expected).abs() < 1e-9, "{totals:?}");
            assert!(observed.timeline.now() >= totals.run && totals.transfer > 0.0);
        }
    }
}

#[test]
fn hosts_read_weights_that_are_not_mapped() {
    for is_cached in [false, true] {
        let weights = Weights::new(is_cached);
        // Plain bytes of weights with tiles are given back here.
        drop(weights.store.plain());
        for i in 0..N_WEIGHTS {
            weights.store.show(weights.address(i));
            weights.store.hide(weights.address(i));
            assert!(!weights.tiles(i).is_open());
            let size = weights.shape.plain_size_bytes();
            let plain = weights.store.reading(weights.address(i), size, || {
                // SAFETY: nobody else knows the region.
                unsafe { weights.region.bytes_mut(weights.address(i), size) }
                    .unwrap()
                    .to_vec()
            });
            assert!(plain == weights.plain(i));
            assert!(!weights.tiles(i).is_open());
        }
    }
}

#[test]
fn tiles_stay_open_as_long_as_one_of_two_sessions_maps_them() {
    let weights = Weights::new(true);
    let address = weights.address(3);
    weights.store.show(address);
    weights.store.show(address);
    weights.store.hide(address);
    assert!(weights.tiles(3).is_open() && weights.are_right(3));
    weights.store.hide(address);
    assert!(!weights.tiles(3).is_open());
    weights.store.show(address);
    assert!(weights.are_right(3));
    // Where nothing is, nothing happens.
    weights.store.show(1);
    weights.store.hide(1);
    weights.store.hide(1);
}

#[test]
fn tiles_that_are_being_read_are_closed_afterwards() {
    for is_cached in [false, true] {
        let weights = Weights::new(is_cached);
        let (tiles, address) = (weights.tiles(3), weights.address(3));
        // Nobody has shown them: as for an instance without a budget, beside one that has one.
        let reading = tiles.reading().unwrap();
        std::thread::scope(|scope| {
            let hidden = scope.spawn(|| {
                weights.store.show(address);
                weights.store.hide(address);
            });
            std::thread::sleep(std::time::Duration::from_millis(30));
            assert!(!hidden.is_finished());
            // It would be killed here.
            assert!(tiles.bytes().iter().any(|&byte| byte != 0));
            drop(reading);
        });
        assert!(!tiles.is_open() && tiles.reading().is_none());
        let reading = tiles.reading_opened().unwrap();
        assert!(tiles.bytes().iter().any(|&byte| byte != 0));
        drop(reading);
        weights.store.show(address);
        weights.store.hide(address);
        assert!(!tiles.is_open());
    }
}

/// Set in a child process that is to be killed.
const CHILD: &str = "TEST_READS_WHAT_IS_NOT_MAPPED";

/// The signal's number on every Linux that we build for.
const SIGSEGV: i32 = 11;

#[test]
fn a_process_that_reads_tiles_that_are_not_mapped_is_killed() {
    let name =
        "memory::runtime::host::tests::a_process_that_reads_tiles_that_are_not_mapped_is_killed";
    if let Some(is_cached) = std::env::var_os(CHILD) {
        let weights = Weights::new(is_cached == "cached");
        let tiles = weights.tiles(0);
        let first = tiles.bytes().as_ptr();
        weights.store.show(weights.address(0));
        // SAFETY: open tiles.
        let _byte = unsafe { first.read_volatile() };
        weights.store.hide(weights.address(0));
        // SAFETY: not mapped: it is what is tested that this is the end.
        let byte = unsafe { first.read_volatile() };
        panic!("read {byte}");
    }
    for kind in ["cached", "memory"] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child
            .args(["--exact", name])
            .env(CHILD, kind)
            .output()
            .unwrap();
        assert_eq!(output.status.signal(), Some(SIGSEGV), "{output:?}");
    }
}
