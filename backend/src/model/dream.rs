//! Dream: a Qwen2 block without causal mask. Q, K and V have biases, heads share K/V in groups, and the logits of a row
//! predict the *next* position, as in the autoregressive model it was trained from.

use super::arch::{ArchSpec, RopeKind, Schedule};

/// Dream-7B, Dream-Coder, `DiffuCoder` and models of their shape.
pub(super) static DREAM: ArchSpec = ArchSpec {
    name: "dream",
    rope: RopeKind::NeoX,
    schedule: Schedule::Timesteps,
    shift_logits: true,
    mask_token: 151_666,
};
