//! Parameters of one generation, complete and consistent: what [`Params`] come to for a model and a length.

use super::cost::{BUCKET, CostSource};
use super::options::{Algorithm, Fill, RevisionContext, RevisionOrder, RevisionPath, Suffix};
use super::plan::{Measure, Token};

pub use super::resolve::Params;

/// Which official code a model comes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Block schedule, Gumbel noise, confidence without noise.
    Llada,
    /// Timestep schedule, categorical draws, logits shifted by one row.
    Dream,
}

/// What the decoder needs to know of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelTraits {
    /// Mask token, where the model names one.
    pub mask: Option<Token>,
    /// End of text.
    pub eos: Option<Token>,
    /// End of turn.
    pub eot: Option<Token>,
    /// Number of rows of the output projection.
    pub n_vocab: u32,
    /// Largest canvas (prompt and generated tokens).
    pub n_ctx: u32,
    /// Row `i - 1` predicts position `i`.
    pub shift_logits: bool,
    /// Block length where none is given; 32 unless the model's file says otherwise.
    pub default_block_length: u32,
    /// Which official code applies.
    pub family: Family,
}

/// How mode `reference` spreads commits over steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// LLaDA: left to right in blocks; a block of length `b` gets `max(1, round(steps b / n_gen))` steps, which share its
    /// masks evenly, the first ones taking the remainder.
    Blocks {
        /// Steps in all, at least 1.
        steps: u32,
        /// Tokens per block, at least 1.
        block_length: u32,
    },
    /// Dream: step `i` goes from `t = 1 - (1 - eps) i / steps` to the next and commits `floor(n_masked (1 - s / t))`, the
    /// last one everything.
    Timesteps {
        /// Steps in all, at least 1.
        steps: u32,
        /// End of the schedule, between 0 and 1.
        eps: f32,
    },
}

/// The part of the parameters that belongs to a mode.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "few of them are made, and they are plain values"
)]
pub enum ModeParams {
    /// Mode `reference`.
    Reference {
        /// How commits are spread over steps.
        schedule: Schedule,
        /// Which positions commit first.
        algorithm: Algorithm,
        /// Temperature of the choice of positions; 0 = the best ones.
        alg_temp: f32,
        /// Scale of classifier-free guidance; 0 = off.
        cfg_scale: f32,
    },
    /// Mode `cached`.
    Cached(CacheParams),
    /// Modes `mbsd` and `full`.
    Full(FullParams),
}

/// What all modes with a K/V store go by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheParams {
    /// Tokens per block, at least 1.
    pub block_length: u32,
    /// Which predictions of the block commit.
    pub commit: CommitParams,
    /// What is seen of the masked tail.
    pub suffix: Suffix,
    /// Blocks from one refresh to the next; 0 = never.
    pub refresh_blocks: u32,
    /// Forwards from one refresh to the next; 0 = by blocks alone.
    pub refresh_steps: u32,
}

/// Which predictions of the block commit; the best one always does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CommitParams {
    /// What is asked of a prediction.
    pub rule: CommitRule,
    /// Positions so near to one that commits need `local_threshold` only; 0 = off.
    pub local_radius: u32,
    /// See `local_radius`.
    pub local_threshold: f32,
    /// Weight of earlier predictions of the same token; 0 = off.
    pub stability: f32,
}

/// What is asked of a prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CommitRule {
    /// A confidence of at least so much.
    Threshold(f32),
    /// To be among the `n` most confident, for the largest `n` with `(n + 1) (1 - c_n) <` the factor.
    Factor(f32),
    /// To be among the least uncertain, for as long as the entropies of all but the last sum up to at most the bound.
    EntropyBound(f32),
}

/// What modes `mbsd` and `full` go by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FullParams {
    /// Blocks, commits (the threshold is that of visible tokens), suffix, refreshes.
    pub cache: CacheParams,
    /// Confidence at which a token is final at once.
    pub tau_stable: f32,
    /// Confidence from which a lookahead position becomes a draft.
    pub draft_threshold: f32,
    /// With fewer masks left in the block, lookahead is extended.
    pub lookahead_trigger: u32,
    /// Most lookahead positions.
    pub lookahead_max: u32,
    /// What rows left over in a bucket are used for.
    pub fill: Fill,
    /// What rows cost.
    pub cost: CostSource,
    /// Revision; absent in `mbsd`, and where its options say that no token is ever revised.
    pub revision: Option<RevisionParams>,
}

/// What revision goes by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RevisionParams {
    /// Positions beside each step.
    pub budget: u32,
    /// Which first.
    pub order: RevisionOrder,
    /// Distance of neighbours that are computed anew.
    pub radius: u32,
    /// What revision rows see besides the store.
    pub context: RevisionContext,
    /// Where the rows are computed.
    pub path: RevisionPath,
    /// Threads of a path of its own, at least 1.
    pub n_threads: u32,
    /// Confidence from which another token replaces the one that stands.
    pub tau_replace: f32,
    /// Probability below which the token is masked again.
    pub tau_remask: f32,
    /// Revisions of a position after which it is final, at least 1.
    pub max_revisions: u32,
    /// Most revision-only forwards at the end.
    pub final_sweep: u32,
}

impl RevisionParams {
    /// Returns the most rows that the revision of one position takes: itself, its shadow (with shift a pair), its neighbours.
    pub const fn n_rows_each(&self) -> u32 {
        3 + 2 * self.radius
    }
}

/// Parameters of one generation, complete and consistent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resolved {
    /// Prompt length in tokens; may be 0.
    pub n_prompt: u32,
    /// Tokens to generate, at least 1.
    pub n_gen: u32,
    /// Size of the vocabulary.
    pub n_vocab: u32,
    /// Mask token, inside the vocabulary.
    pub mask: Token,
    /// End of text.
    pub eos: Option<Token>,
    /// End of turn.
    pub eot: Option<Token>,
    /// Row `i - 1` predicts position `i`; position 0 is predicted by row 0.
    pub shift_logits: bool,
    /// The mask token counts in the denominator of the confidence.
    pub confidence_with_mask: bool,
    /// EOS is never chosen.
    pub logits_eos_inf: bool,
    /// EOS and EoT are demoted in the confidence.
    pub confidence_eos_eot_inf: bool,
    /// Tokens are drawn by Gumbel noise.
    pub gumbel_noise: bool,
    /// What predictions are scored by.
    pub measure: Measure,
    /// The mode and what belongs to it.
    pub mode: ModeParams,
}

impl Resolved {
    /// Returns the canvas length, prompt and generated positions.
    pub const fn n_canvas(&self) -> u32 {
        self.n_prompt + self.n_gen
    }

    /// Returns the scale of classifier-free guidance; 0 = off.
    pub const fn cfg_scale(&self) -> f32 {
        match self.mode {
            ModeParams::Reference { cfg_scale, .. } => cfg_scale,
            ModeParams::Cached(_) | ModeParams::Full(_) => 0.0,
        }
    }

    /// Returns an upper bound of the store slots that plans use.
    pub const fn n_store_slots(&self) -> u32 {
        match self.mode {
            ModeParams::Reference { .. } => 0,
            ModeParams::Cached(_) | ModeParams::Full(_) => self.n_canvas(),
        }
    }

    /// Returns an upper bound of the scratch slots that plans use.
    pub const fn n_scratch_slots(&self) -> u32 {
        match self.mode {
            ModeParams::Reference { cfg_scale, .. } if cfg_scale > 0.0 => 2 * self.n_canvas(),
            ModeParams::Reference { .. } => self.n_canvas(),
            ModeParams::Cached(_) => self.n_gen,
            ModeParams::Full(full) => {
                // Masks of the step and of a tail that is kept.
                let masks = 2 * self.n_gen;
                match full.revision {
                    None => masks,
                    Some(revision) => {
                        // Fresh rows and those of the revision; with context `window` all that until a step later.
                        let step = masks + self.n_gen + self.n_revision_rows();
                        let n_steps = match revision.context {
                            RevisionContext::Committed => 1,
                            RevisionContext::Window => 2,
                        };
                        n_steps * step + self.n_canvas()
                    }
                }
            }
        }
    }

    /// Returns an upper bound of the rows of one forward.
    pub const fn n_rows_max(&self) -> u32 {
        match self.mode {
            ModeParams::Reference { .. } => self.n_scratch_slots(),
            ModeParams::Cached(_) => self.n_canvas(),
            ModeParams::Full(_) => self.n_canvas() + self.n_gen + self.n_revision_rows(),
        }
    }

    /// Most revision rows of one forward, fresh ones apart.
    const fn n_revision_rows(&self) -> u32 {
        let ModeParams::Full(FullParams {
            revision: Some(revision),
            ..
        }) = self.mode
        else {
            return 0;
        };
        let n_each = revision.n_rows_each();
        let n = if revision.budget < self.n_gen {
            revision.budget
        } else {
            self.n_gen
        };
        let sweep = BUCKET + n_each;
        if n * n_each > sweep {
            n * n_each
        } else {
            sweep
        }
    }
}
