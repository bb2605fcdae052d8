//! What the machine can do at best, by measurement.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use llada_npu_kernels::registry;
use serde::Serialize;

/// Bytes that each thread reads: more than caches hold.
const READ_BYTES: usize = 256 << 20;

/// Repetitions; the best counts.
const REPEATS: usize = 10;

/// Rounds of the integer probe in one repetition.
const ROUNDS: usize = 1 << 17;

/// Measured peaks of all threads together.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) threads: usize,
    /// Multiplications and additions of 8-bit integers, in 1e9 per second; none where there is no probe for this CPU.
    pub(crate) int8_peak_gops: Option<f64>,
    /// Bytes read from memory, in 1e9 per second.
    pub(crate) memory_gbps: f64,
}

impl Machine {
    /// Measures this machine with a number of threads.
    pub(crate) fn measure(threads: usize) -> Self {
        let peak = registry::int8_probe().map(|probe| {
            #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
            let once = || rate(threads, |_| probe.run(ROUNDS) as f64);
            (0..REPEATS).map(|_| once()).fold(0.0, f64::max)
        });
        let memory = Memory::new(threads);
        let read = (0..REPEATS).map(|_| memory.read()).fold(0.0, f64::max);
        Self {
            threads,
            int8_peak_gops: peak.map(|peak| peak / 1e9),
            memory_gbps: read,
        }
    }
}

/// Owning: memory to read, at least 512 MiB with two threads.
#[derive(Debug)]
pub(crate) struct Memory {
    threads: usize,
    bytes: Vec<u8>,
}

impl Memory {
    pub(crate) fn new(threads: usize) -> Self {
        let line: Vec<u8> = (0..=255).collect();
        let bytes = line.repeat(threads * READ_BYTES / line.len());
        Self { threads, bytes }
    }

    /// Reads everything once, from front to back, a part on each thread; returns 1e9 bytes per second.
    pub(crate) fn read(&self) -> f64 {
        let read = rate(self.threads, |thread| {
            let part = &self.bytes[thread * READ_BYTES..][..READ_BYTES];
            // Several sums, so that a compiler keeps them in vectors.
            let mut sums = [0u64; 16];
            for words in part.as_chunks::<8>().0.as_chunks::<16>().0 {
                for (sum, word) in sums.iter_mut().zip(words) {
                    *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
                }
            }
            black_box(sums);
            #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
            let n = READ_BYTES as f64;
            n
        });
        read / 1e9
    }
}

/// Runs the body on all threads at once and returns the sum, per second, of what they return. Threads take the time
/// themselves, from the first one's start to the last one's end.
fn rate(threads: usize, body: impl Fn(usize) -> f64 + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    let done: Vec<(f64, Instant, Instant)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (barrier, body) = (&barrier, &body);
                scope.spawn(move || {
                    barrier.wait();
                    let start = Instant::now();
                    (body(thread), start, Instant::now())
                })
            })
            .collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, _>| {
            worker.join().expect("the body does not panic")
        };
        workers.into_iter().map(join).collect()
    });
    let work: f64 = done.iter().map(|(work, ..)| work).sum();
    let start = done.iter().map(|(_, start, _)| *start).min();
    let end = done.iter().map(|(.., end)| *end).max();
    match (start, end) {
        (Some(start), Some(end)) => work / (end - start).as_secs_f64(),
        _ => 0.0,
    }
}
