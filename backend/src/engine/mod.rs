//! Executes row plans: builds the graph of a forward, runs it, samples its logits.

pub mod sample;
