//! Command line of llada-npu.

fn main() {}
