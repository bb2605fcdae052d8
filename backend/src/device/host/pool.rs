//! Threads that share the items of one loop at a time.
//!
//! The caller takes part. Items are claimed one by one from a counter, so that a thread the system has put aside delays
//! at most the item it holds. A loop is *open* while threads may still join it; the caller closes it when the items have
//! run out and waits for those that joined, never for those that did not wake in time.
//!
//! ```text
//! state: epoch (32 bits) | open (1 bit) | threads inside besides the caller (31 bits)
//!
//! caller   write job, counter = 0      → state = epoch + 1, open, 0 inside     → wake parked threads
//!          claim and run items         → clear open                            → wait until 0 are inside
//! worker   see open with a new epoch   → add 1 inside (compare and exchange: only while open)
//!          read job, claim, run items  → subtract 1
//! ```
//!
//! A worker reads the job only between its adding and subtracting, and the caller writes it only when the loop is closed
//! with nobody inside. Idle workers spin for a moment, then park.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use llada_npu_ffi::affinity::{CpuSet, ThreadId};

use crate::device::DeviceError;
pub use crate::memory::parallel::Panicked;
use crate::memory::parallel::Parallel;
use crate::sync::lock;

/// How often an idle worker looks for work before it parks: some hundred microseconds, more than a host takes from one
/// graph of a text to the next.
const SPINS: u32 = 10_000;

/// How often the caller looks whether the others are done before it lets other threads run: longer than they are at work
/// where each has a processor.
const SPINS_AT_END: u32 = 2000;

/// How the threads are named, before their numbers.
const THREAD_NAME: &str = "llada-npu-";

/// How long the places of the host's threads are taken for what they were: looking takes some files of `/proc` for each.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

const INSIDE_ONE: u64 = 1;
const OPEN: u64 = 1 << 31;
const INSIDE_MASK: u64 = OPEN - 1;
const EPOCH_ONE: u64 = 1 << 32;

/// The body of the current loop, its type erased.
#[derive(Clone, Copy)]
struct Job {
    body: *const (),
    /// Runs item `i` of the body.
    run: unsafe fn(*const (), usize),
    n_items: usize,
}

unsafe fn run_nothing(_body: *const (), _i: usize) {}

/// # Safety
///
/// `body` points to a live `F`.
unsafe fn run_item<F: Fn(usize)>(body: *const (), i: usize) {
    // SAFETY: the caller of this function promises a live `F`.
    let body = unsafe { &*body.cast::<F>() };
    body(i);
}

struct Shared {
    state: AtomicU64,
    /// Next item to claim.
    next: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    n_parked: AtomicUsize,
    /// Threads that have started, besides the caller.
    threads: Mutex<Vec<ThreadId>>,
    parking: Mutex<()>,
    wake: Condvar,
    job: UnsafeCell<Job>,
}

// SAFETY: `job` is the only part that is not `Sync`; the protocol of this module lets threads read it only while the
// owner does not write, and `Pool::for_each` puts only bodies into it that are `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: the pointers in `job` are followed only inside `Pool::for_each`, which outlives what they point to.
unsafe impl Send for Shared {}

/// Where the caller might run when the workers were told where to, and how many they were.
#[derive(Clone, Copy)]
struct Told {
    caller: CpuSet,
    n_workers: usize,
    /// When to look again: threads of the host may yet be bound to processors of their own.
    again: Option<Instant>,
}

impl Told {
    fn holds(&self, caller: CpuSet, n_workers: usize) -> bool {
        self.caller == caller
            && self.n_workers == n_workers
            && self.again.is_none_or(|again| Instant::now() < again)
    }
}

/// A set of threads, the caller's among them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// What the workers were told last.
    told: Option<Told>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("n_threads", &self.n_threads())
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Makes a pool of `n_threads`, the caller's among them; 0 is taken as 1.
    ///
    /// # Errors
    ///
    /// When a thread cannot be started.
    pub fn new(n_threads: usize) -> Result<Self, DeviceError> {
        let shared = Shared {
            state: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            n_parked: AtomicUsize::new(0),
            threads: Mutex::default(),
            parking: Mutex::new(()),
            wake: Condvar::new(),
            job: UnsafeCell::new(Job {
                body: std::ptr::null(),
                run: run_nothing,
                n_items: 0,
            }),
        };
        let mut pool = Self {
            shared: Arc::new(shared),
            workers: Vec::new(),
            told: None,
        };
        pool.start(n_threads)?;
        Ok(pool)
    }

    /// Returns the number of threads, the caller's among them.
    #[must_use]
    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Changes the number of threads; 0 is taken as 1.
    ///
    /// # Errors
    ///
    /// When a thread cannot be started; the pool then has those that could.
    pub fn set_n_threads(&mut self, n_threads: usize) -> Result<(), DeviceError> {
        if n_threads.max(1) < self.n_threads() {
            self.stop();
        }
        self.start(n_threads)
    }

    /// Lets the workers run where the calling thread may: a host tells its wish (`--cpu-mask`) to its own threads alone,
    /// the one that calls us among them. A caller that is bound to a single processor may be the first of several that are
    /// placed strictly: then the processors of all threads that are bound so. As long as those are
    /// fewer than our threads, others may be about to be bound, and calls look again from time to time.
    pub fn follow_caller(&mut self) {
        let Some(caller) = CpuSet::of_caller() else {
            return;
        };
        let threads = lock(&self.shared.threads);
        let n_workers = threads.len();
        let is_told = |told: Told| told.holds(caller, n_workers);
        if threads.is_empty() || self.told.is_some_and(is_told) {
            return;
        }
        let bound = || CpuSet::of_bound_threads(THREAD_NAME);
        let cpus = (caller.len() == 1).then(bound).flatten();
        let cpus = cpus.unwrap_or(caller);
        for thread in threads.iter() {
            if !cpus.apply_to(*thread) {
                log::debug!("a thread cannot be bound to the caller's processors");
            }
        }
        let may_grow = caller.len() == 1 && cpus.len() <= n_workers;
        self.told = Some(Told {
            caller,
            n_workers,
            again: may_grow.then(|| Instant::now() + LOOK_AGAIN),
        });
    }

    fn start(&mut self, n_threads: usize) -> Result<(), DeviceError> {
        for index in self.n_threads()..n_threads {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name(format!("{THREAD_NAME}{index}"));
            let started = thread.spawn(move || work(&shared));
            self.workers
                .push(started.map_err(|source| DeviceError::Thread {
                    index,
                    n_threads,
                    source,
                })?);
        }
        Ok(())
    }

    fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake_parked();
        for worker in self.workers.drain(..) {
            if worker.join().is_err() {
                log::error!("a thread of the pool ended by a panic");
            }
        }
        lock(&self.shared.threads).clear();
        self.shared.stop.store(false, Ordering::SeqCst);
    }

    /// Runs `body(i)` for every `i` below `n_items`, on any thread and in any order, and returns when all are done.
    ///
    /// # Errors
    ///
    /// When an item panics: no more items are started, and those running have ended.
    pub fn for_each<F: Fn(usize) + Sync>(
        &mut self,
        n_items: usize,
        body: F,
    ) -> Result<(), Panicked> {
        let shared = &*self.shared;
        let job = Job {
            body: (&raw const body).cast(),
            run: run_item::<F>,
            n_items,
        };
        shared.next.store(0, Ordering::Relaxed);
        shared.panicked.store(false, Ordering::Relaxed);
        if n_items > 1 && !self.workers.is_empty() {
            let open = shared.open(job);
            shared.run(job);
            drop(open);
        } else {
            shared.run(job);
        }
        if shared.panicked.load(Ordering::Relaxed) {
            Err(Panicked)
        } else {
            Ok(())
        }
    }
}

impl Parallel for Pool {
    fn for_each_item(
        &mut self,
        n_items: usize,
        body: &(dyn Fn(usize) + Sync),
    ) -> Result<(), Panicked> {
        self.for_each(n_items, body)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A loop that is open; dropping it closes it and waits for the threads inside.
struct Open<'a>(&'a Shared);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let state = &self.0.state;
        state.fetch_and(!OPEN, Ordering::SeqCst);
        let mut spins = 0;
        while state.load(Ordering::SeqCst) & INSIDE_MASK != 0 {
            spins += 1;
            if spins < SPINS_AT_END {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

/// A worker inside a loop; dropping it leaves.
struct Inside<'a>(&'a Shared);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_sub(INSIDE_ONE, Ordering::SeqCst);
    }
}

impl Shared {
    /// Opens a loop. Called by the pool's owner alone, while no loop is open.
    fn open(&self, job: Job) -> Open<'_> {
        // SAFETY: the loop before is closed with nobody inside (`Open::drop`), and `for_each` has the pool exclusively,
        // so that no other thread reads or writes `job` now.
        unsafe { *self.job.get() = job };
        let epoch = self.state.load(Ordering::SeqCst) & !(EPOCH_ONE - 1);
        self.state
            .store(epoch.wrapping_add(EPOCH_ONE) | OPEN, Ordering::SeqCst);
        if self.n_parked.load(Ordering::SeqCst) > 0 {
            self.wake_parked();
        }
        Open(self)
    }

    fn wake_parked(&self) {
        // A worker that is about to park holds the lock from before its last look at the state until it waits.
        drop(lock(&self.parking));
        self.wake.notify_all();
    }

    /// Claims and runs items until none is left.
    fn run(&self, job: Job) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let i = self.next.fetch_add(1, Ordering::Relaxed);
                if i >= job.n_items {
                    break;
                }
                // SAFETY: `for_each` keeps the body alive until the caller and all threads inside have ended this loop.
                unsafe { (job.run)(job.body, i) };
            }
        }));
        if let Err(payload) = result {
            self.panicked.store(true, Ordering::Relaxed);
            self.next.store(job.n_items, Ordering::Relaxed);
            drop(payload);
        }
    }

    /// Joins the loop that is open, if it is not the one of `seen`.
    fn join(&self, seen: &mut u64) -> Option<Inside<'_>> {
        let mut state = self.state.load(Ordering::SeqCst);
        while state & OPEN != 0 && state & !(EPOCH_ONE - 1) != *seen {
            let joined = state + INSIDE_ONE;
            match self.state.compare_exchange_weak(
                state,
                joined,
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                Ok(_) => {
                    *seen = state & !(EPOCH_ONE - 1);
                    return Some(Inside(self));
                }
                Err(now) => state = now,
            }
        }
        None
    }

    /// Waits for a loop to join; `None` when the pool stops.
    fn wait(&self, seen: &mut u64) -> Option<Inside<'_>> {
        for _ in 0..SPINS {
            if let Some(inside) = self.join(seen) {
                return Some(inside);
            }
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
            std::hint::spin_loop();
        }
        let mut parking = lock(&self.parking);
        self.n_parked.fetch_add(1, Ordering::SeqCst);
        let inside = loop {
            if let Some(inside) = self.join(seen) {
                break Some(inside);
            }
            if self.stop.load(Ordering::SeqCst) {
                break None;
            }
            parking = self
                .wake
                .wait(parking)
                .unwrap_or_else(PoisonError::into_inner);
        };
        self.n_parked.fetch_sub(1, Ordering::SeqCst);
        inside
    }
}

/// The life of a worker.
fn work(shared: &Shared) {
    lock(&shared.threads).push(ThreadId::of_caller());
    // No loop has the epoch a new worker starts with twice: it may join the one that is open.
    let mut seen = 0;
    while let Some(inside) = shared.wait(&mut seen) {
        // SAFETY: this thread is inside the loop, so that the owner does not write `job`.
        let job = unsafe { *shared.job.get() };
        shared.run(job);
        drop(inside);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn every_item_runs_once_with_any_number_of_threads() {
        for n_threads in 0..=4 {
            let mut pool = Pool::new(n_threads).unwrap();
            assert_eq!(pool.n_threads(), n_threads.max(1));
            for n_items in [0, 1, 2, 3, 64, 1000] {
                let counts: Vec<AtomicU32> = (0..n_items).map(|_| AtomicU32::new(0)).collect();
                pool.for_each(n_items, |i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                })
                .unwrap();
                assert!(
                    counts.iter().all(|n| n.load(Ordering::Relaxed) == 1),
                    "{n_threads} {n_items}"
                );
            }
        }
    }

    #[test]
    fn several_threads_take_part() {
        let mut pool = Pool::new(3).unwrap();
        let ids = Mutex::new(std::collections::HashSet::new());
        // Each item waits for the others: it takes three threads to pass.
        let barrier = std::sync::Barrier::new(3);
        pool.for_each(3, |_| {
            barrier.wait();
            ids.lock().unwrap().insert(std::thread::current().id());
        })
        .unwrap();
        assert_eq!(ids.into_inner().unwrap().len(), 3);
    }

    #[test]
    fn many_short_loops_after_each_other_are_complete() {
        let mut pool = Pool::new(4).unwrap();
        let sum = AtomicUsize::new(0);
        for round in 0..20_000 {
            pool.for_each(round % 7, |i| {
                sum.fetch_add(i + 1, Ordering::Relaxed);
            })
            .unwrap();
        }
        let expected: usize = (0..20_000)
            .map(|round| {
                let n = round % 7;
                n * (n + 1) / 2
            })
            .sum();
        assert_eq!(sum.into_inner(), expected);
    }

    #[test]
    fn parked_threads_wake() {
        let mut pool = Pool::new(2).unwrap();
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(30));
            let barrier = std::sync::Barrier::new(2);
            pool.for_each(2, |_| {
                barrier.wait();
            })
            .unwrap();
        }
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_lives_on() {
        for n_threads in 1..=4 {
            let mut pool = Pool::new(n_threads).unwrap();
            for bad in [0, 5, 99] {
                let result = pool.for_each(100, |i| assert!(i != bad, "item {i}"));
                assert_eq!(result, Err(Panicked), "{n_threads} {bad}");
                let n = AtomicUsize::new(0);
                pool.for_each(10, |_| {
                    n.fetch_add(1, Ordering::Relaxed);
                })
                .unwrap();
                assert_eq!(n.into_inner(), 10);
            }
            assert_eq!(pool.n_threads(), n_threads);
        }
    }

    #[test]
    fn all_threads_may_panic_at_once() {
        let mut pool = Pool::new(4).unwrap();
        let result = pool.for_each(100, |i| panic!("item {i}"));
        assert_eq!(result, Err(Panicked));
        pool.for_each(4, |_| ()).unwrap();
    }

    #[test]
    fn the_number_of_threads_can_change() {
        let mut pool = Pool::new(1).unwrap();
        for n_threads in [3, 1, 0, 4, 2, 2] {
            pool.set_n_threads(n_threads).unwrap();
            assert_eq!(pool.n_threads(), n_threads.max(1));
            let barrier = std::sync::Barrier::new(n_threads.max(1));
            pool.for_each(n_threads.max(1), |_| {
                barrier.wait();
            })
            .unwrap();
        }
    }

    #[test]
    fn workers_follow_the_caller() {
        let Some(all) = CpuSet::of_caller().filter(|cpus| cpus.len() > 1) else {
            return;
        };
        let mut pool = Pool::new(2).unwrap();
        let seen = |pool: &mut Pool| {
            let seen = Mutex::new(Vec::new());
            let barrier = std::sync::Barrier::new(2);
            pool.for_each(2, |_| {
                seen.lock().unwrap().push(CpuSet::of_caller());
                barrier.wait();
            })
            .unwrap();
            seen.into_inner().unwrap()
        };
        // Bound elsewhere by whoever made the pool, as a host's loader may be.
        let [one, other] = [0, 1].map(|n| all.nth(n).unwrap());
        while lock(&pool.shared.threads).is_empty() {
            std::thread::yield_now();
        }
        assert!(one.apply_to(lock(&pool.shared.threads)[0]));
        assert!(seen(&mut pool).contains(&Some(one)));
        pool.follow_caller();
        assert_eq!(seen(&mut pool), [Some(all), Some(all)]);
        // A caller with one processor, alone among the threads of the process.
        assert!(one.apply_to(ThreadId::of_caller()));
        pool.follow_caller();
        assert_eq!(seen(&mut pool), [Some(one), Some(one)]);
        // The host's next thread is bound after its first has begun.
        let (bound, ended) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(other.apply_to(ThreadId::of_caller()));
                bound.wait();
                ended.wait();
            });
            bound.wait();
            std::thread::sleep(LOOK_AGAIN);
            pool.follow_caller();
            let seen = seen(&mut pool);
            ended.wait();
            let both = seen.iter().flatten().any(|cpus| cpus.len() == 2);
            assert!(both && seen.contains(&Some(one)), "{seen:?}");
        });
        assert!(all.apply_to(ThreadId::of_caller()));
    }

    #[test]
    fn a_pool_that_never_worked_can_be_dropped() {
        drop(Pool::new(4).unwrap());
    }
}
