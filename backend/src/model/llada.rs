//! LLaDA: a Llama block without causal mask. Converters permute the rows of Q and K, so that rotary embedding runs on
//! interleaved pairs.

use super::arch::{ArchSpec, RopeKind, Schedule};

/// LLaDA-8B and models of its shape.
pub(super) static LLADA: ArchSpec = ArchSpec {
    name: "llada",
    rope: RopeKind::Norm,
    schedule: Schedule::Blocks,
    shift_logits: false,
    mask_token: 126_336,
};
