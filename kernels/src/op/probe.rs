//! The most that this CPU's integer multipliers can do: what throughput of products is measured against.
//!
//! A probe runs byte dot instructions on registers alone, with enough independent sums to hide their latency. It computes
//! nothing of use.

use std::fmt::Debug;

/// What a kernel family implements.
pub(crate) trait Implementation: Debug + Send + Sync {
    /// See [`Int8Probe::run`].
    fn run(&self, n: usize) -> u64;
}

/// Owning: the probe of one instruction set. Holding it proves that this CPU can run it.
#[derive(Debug)]
pub struct Int8Probe(pub(crate) Box<dyn Implementation>);

impl Int8Probe {
    /// Runs `n` rounds (below a microsecond each) on this thread and returns the multiplications and additions made, one
    /// each per product of two bytes.
    pub fn run(&self, n: usize) -> u64 {
        self.0.run(n)
    }
}
