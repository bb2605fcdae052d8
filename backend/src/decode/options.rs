//! The options of the decoding mode: their table and their types.

/// One option, `--diffusion-<key> VALUE` on a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionInfo {
    /// Key, for example `threshold`.
    pub key: &'static str,
    /// How usage texts name the value, for example `F`.
    pub value_name: &'static str,
    /// Default as text; empty when it depends on the model or the mode.
    pub default: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// Modes in which it means something; in the others it is refused.
    pub modes: &'static [Mode],
}

const fn option(
    key: &'static str,
    value_name: &'static str,
    default: &'static str,
    modes: &'static [Mode],
    help: &'static str,
) -> OptionInfo {
    OptionInfo {
        key,
        value_name,
        default,
        help,
        modes,
    }
}

const EVERY: &[Mode] = &Mode::ALL;
const REFERENCE: &[Mode] = &[Mode::Reference];
const CACHED: &[Mode] = &[Mode::Cached, Mode::Mbsd, Mode::Full];
const THRESHOLD: &[Mode] = &[Mode::Cached, Mode::Mbsd];
const SPECULATIVE: &[Mode] = &[Mode::Mbsd, Mode::Full];
const FULL: &[Mode] = &[Mode::Full];

/// Every option, in the order of usage texts.
pub static OPTIONS: &[OptionInfo] = &[
    option(
        "mode",
        "NAME",
        "full",
        EVERY,
        "reference: the model's official schedule, whole sequence every step; cached: prefix K/V and commits by \
         threshold; mbsd: cached with drafts right of the block; full: mbsd with revision of tokens that may still \
         change",
    ),
    option(
        "steps",
        "N",
        "",
        REFERENCE,
        "reference: forwards in all; one per generated token when not given",
    ),
    option(
        "eps",
        "F",
        "",
        REFERENCE,
        "reference: end of the timestep schedule, 0 < F < 1, and its choice (Dream's default schedule, with 0.001)",
    ),
    option(
        "block-length",
        "N",
        "",
        EVERY,
        "tokens per block, and in reference the choice of the block schedule (LLaDA's default schedule)",
    ),
    option(
        "algorithm",
        "NAME",
        "",
        REFERENCE,
        "reference: which positions commit first: origin (0), entropy (1), margin (2), random (3), confidence (4); \
         also maskgit_plus, topk_margin, low_confidence; origin for the timestep schedule, else confidence",
    ),
    option(
        "alg-temp",
        "F",
        "0",
        REFERENCE,
        "reference: draws the positions from softmax(score / F) instead of taking the best; 0 = off",
    ),
    option(
        "cfg-scale",
        "F",
        "0",
        REFERENCE,
        "reference: classifier-free guidance, un + (F + 1) (cond - un); 0 = off",
    ),
    option(
        "add-gumbel-noise",
        "BOOL",
        "",
        EVERY,
        "draw tokens by Gumbel noise in f64 (LLaDA's way, its default) or by one categorical draw (Dream's)",
    ),
    option(
        "threshold",
        "F",
        "0.9",
        THRESHOLD,
        "cached, mbsd: positions of the block at least this confident commit; inf = one per step",
    ),
    option(
        "tau-visible",
        "F",
        "0.6",
        FULL,
        "full: positions of the block at least this confident get a token that may still change; inf = one per step",
    ),
    option(
        "tau-stable",
        "F",
        "0.9",
        FULL,
        "full: at this confidence a token is final at once",
    ),
    option(
        "factor",
        "F",
        "0",
        CACHED,
        "cached, mbsd, full: commit the n most confident with (n + 1) (1 - confidence of the last) < F, instead of a \
         threshold; 0 = off",
    ),
    option(
        "entropy-bound",
        "F",
        "0",
        CACHED,
        "cached, mbsd, full: commit the least uncertain while the entropies of all but the last sum up to at most F, \
         instead of a threshold; 0 = off",
    ),
    option(
        "local-radius",
        "N",
        "0",
        CACHED,
        "cached, mbsd, full: within N positions of one that commits the threshold is local-threshold; 0 = off",
    ),
    option(
        "local-threshold",
        "F",
        "0.75",
        CACHED,
        "cached, mbsd, full: the threshold near positions that commit",
    ),
    option(
        "stability",
        "F",
        "0",
        CACHED,
        "cached, mbsd, full: how much a token that was predicted in earlier steps gains in confidence; 0 = off",
    ),
    option(
        "suffix",
        "WHAT",
        "",
        CACHED,
        "cached, mbsd, full: masks right of the block that a step sees: none, the next N, all, or cached (K/V of the \
         block's first step)",
    ),
    option(
        "refresh-blocks",
        "N",
        "1",
        CACHED,
        "cached, mbsd, full: recompute the K/V of everything committed every N blocks; 0 = never",
    ),
    option(
        "refresh-steps",
        "N",
        "0",
        CACHED,
        "cached, mbsd, full: recompute the K/V of everything committed every N forwards; 0 = by blocks alone",
    ),
    option(
        "lookahead-trigger",
        "N",
        "8",
        SPECULATIVE,
        "mbsd, full: with fewer masks than N left in the block, positions right of it are predicted too",
    ),
    option(
        "lookahead-max",
        "N",
        "32",
        SPECULATIVE,
        "mbsd, full: most positions right of the block that are predicted; 0 = off",
    ),
    option(
        "draft-threshold",
        "F",
        "",
        SPECULATIVE,
        "mbsd, full: a predicted position right of the block that is this confident is fed its token as a draft; \
         tau-stable, in mbsd the threshold, when not given",
    ),
    option(
        "fill",
        "WHAT",
        "none",
        SPECULATIVE,
        "mbsd, full: what rows left over in a bucket of the cost table are used for: none, lookahead, or visible \
         (tokens with the oldest K/V)",
    ),
    option(
        "cost",
        "TABLE",
        "host",
        SPECULATIVE,
        "mbsd, full: what rows cost, for the choice of how far to predict: host (linear), npu (buckets of 32), \
         measured, or a file of points ROWS:MS",
    ),
    option(
        "revision-budget",
        "N",
        "1",
        FULL,
        "full: tokens that may still change and are predicted anew beside each step; 0 = off",
    ),
    option(
        "revision-order",
        "NAME",
        "oldest",
        FULL,
        "full: which of them first: oldest or confidence (the least confident)",
    ),
    option(
        "revision-radius",
        "N",
        "4",
        FULL,
        "full: tokens so near are computed anew without the one in question, for which their K/V would vouch",
    ),
    option(
        "revision-context",
        "WHAT",
        "committed",
        FULL,
        "full: what a revision sees besides the prompt and the tokens: committed (nothing), or window (masks as they \
         were in the last forward)",
    ),
    option(
        "revision-path",
        "NAME",
        "auto",
        FULL,
        "full: revision on threads of its own (own) or in the forward of the step (dense); auto = dense on a CPU; \
         same text either way",
    ),
    option(
        "revision-threads",
        "N",
        "1",
        FULL,
        "full: threads of the revision path, where it has its own",
    ),
    option(
        "tau-replace",
        "F",
        "0.9",
        FULL,
        "full: a revision that predicts another token this confidently replaces it",
    ),
    option(
        "tau-remask",
        "F",
        "0.3",
        FULL,
        "full: a revision that gives the token less than this probability masks it again",
    ),
    option(
        "max-revisions",
        "N",
        "3",
        FULL,
        "full: revisions of a position after which its token is final; 0 = no revision",
    ),
    option(
        "final-sweep",
        "N",
        "8",
        FULL,
        "full: most forwards at the end that only revise",
    ),
    option(
        "confidence",
        "NAME",
        "with-mask",
        EVERY,
        "softmax of the confidence: with-mask (over the whole vocabulary) or without-mask",
    ),
    option(
        "shift-logits",
        "BOOL|auto",
        "auto",
        EVERY,
        "row i-1 predicts position i (Dream); auto = as the model says",
    ),
    option(
        "mask-id",
        "N|auto",
        "auto",
        EVERY,
        "id of the mask token; auto = as the model says",
    ),
    option(
        "logits-eos-inf",
        "BOOL",
        "false",
        EVERY,
        "never choose EOS (its logit is -inf before sampling)",
    ),
    option(
        "confidence-eos-eot-inf",
        "BOOL",
        "false",
        EVERY,
        "commit EOS and EoT last (their logits are -inf in the confidence; at a temperature above 0 EoT's alone)",
    ),
];

/// How positions are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The model's official schedule, full-sequence forward every step, no cache.
    Reference,
    /// Prefix K/V; every position of the block above the threshold commits.
    Cached,
    /// [`Mode::Cached`] with a sliding window, and drafts right of the block.
    Mbsd,
    /// [`Mode::Mbsd`] with tokens that become final in stages, and their revision.
    Full,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 4] = [Self::Reference, Self::Cached, Self::Mbsd, Self::Full];

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Cached => "cached",
            Self::Mbsd => "mbsd",
            Self::Full => "full",
        }
    }
}

/// Which masked positions commit first in [`Mode::Reference`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Each position by itself, with the schedule's probability.
    Origin,
    /// Least entropy of the sampled distribution first.
    Entropy,
    /// Largest difference of the two best probabilities first.
    Margin,
    /// Uniformly random order.
    Random,
    /// Largest probability of the chosen token first.
    Confidence,
}

impl Algorithm {
    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Origin => "origin",
            Self::Entropy => "entropy",
            Self::Margin => "margin",
            Self::Random => "random",
            Self::Confidence => "confidence",
        }
    }
}

/// What a step sees of the masked tail, right of the current block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suffix {
    /// Nothing.
    None,
    /// The next masks, computed as rows of every step.
    Next(u32),
    /// All masks to the end, computed as rows of every step.
    All,
    /// All masks to the end, computed as rows of the block's first step and kept in scratch.
    Cached,
}

/// What rows left over in a bucket are used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fill {
    /// Nothing.
    None,
    /// Further lookahead.
    Lookahead,
    /// Visible positions, those with the oldest K/V first.
    Visible,
}

/// Which visible positions are revised first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RevisionOrder {
    /// Those that got their token or were revised the longest time ago.
    Oldest,
    /// The least confident.
    Confidence,
}

/// What a revision sees besides the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RevisionContext {
    /// Nothing.
    Committed,
    /// The K/V that masked rows had in the last forward.
    Window,
}

/// Where revision rows are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RevisionPath {
    /// On an instance of the device of their own, beside the dense forward.
    Own,
    /// In the dense forward.
    Dense,
    /// Own beside an accelerator, dense on a CPU.
    Auto,
}

macro_rules! names {
    ($($ty:ident { $($variant:ident = $name:literal),* $(,)? })*) => { $(
        impl $ty {
            /// Every variant.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// Returns the name on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    )* };
}

names! {
    Fill { None = "none", Lookahead = "lookahead", Visible = "visible" }
    RevisionOrder { Oldest = "oldest", Confidence = "confidence" }
    RevisionContext { Committed = "committed", Window = "window" }
    RevisionPath { Own = "own", Dense = "dense", Auto = "auto" }
}
