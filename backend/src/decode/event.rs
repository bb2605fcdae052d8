//! What a decoder tells its caller between two forwards.

use super::plan::{ForwardKind, Token};

/// How far a generated position is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Masked.
    Invisible,
    /// Masked, and a token stands there for the time being: it is neither committed nor part of the text.
    Draft,
    /// A token stands there and may still change.
    Visible,
    /// Frozen.
    Stable,
}

/// A change of the canvas, or the end of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A masked position got a token.
    Committed {
        /// Position in the canvas (prompt included).
        pos: u32,
        /// The token.
        token: Token,
        /// [`Stage::Visible`] or [`Stage::Stable`].
        stage: Stage,
    },
    /// A visible position got another token.
    Replaced {
        /// Position in the canvas.
        pos: u32,
        /// The new token.
        token: Token,
    },
    /// A visible position was masked again.
    Remasked {
        /// Position in the canvas.
        pos: u32,
    },
    /// The first `len` generated positions are final text. They end before an EOS or EoT.
    StablePrefix {
        /// Length in tokens, prompt not included.
        len: u32,
    },
    /// A forward was absorbed.
    Step {
        /// Step number of the plan.
        step: u32,
        /// Kind of the forward.
        kind: ForwardKind,
        /// Masked positions left to decode: those left of the leftmost committed EOS or EoT.
        n_masked: u32,
    },
}
