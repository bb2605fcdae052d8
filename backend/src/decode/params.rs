//! Parameters of a generation: what the user said, and what it comes to for a model and a length.
//!
//! [`Params`] collects options as text; an option that was not given is `None`, never a number. [`Params::resolve`] checks
//! them against each other, the mode and the model, and fills in the defaults.

use super::error::ParamError;
use super::options::{self, Algorithm, Mode, Suffix};
use super::plan::{Measure, Token};

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

/// How [`Mode::Reference`] spreads commits over steps.
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
pub enum ModeParams {
    /// [`Mode::Reference`].
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
    /// [`Mode::Cached`].
    Cached {
        /// Tokens per block, at least 1.
        block_length: u32,
        /// Confidence from which a position commits.
        threshold: f32,
        /// What is seen of the masked tail.
        suffix: Suffix,
        /// Blocks from one refresh to the next; 0 = never.
        refresh_blocks: u32,
        /// Forwards from one refresh to the next; 0 = by blocks alone.
        refresh_steps: u32,
    },
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
            ModeParams::Cached { .. } => 0.0,
        }
    }

    /// Returns an upper bound of the store slots that plans use.
    pub const fn n_store_slots(&self) -> u32 {
        match self.mode {
            ModeParams::Reference { .. } => 0,
            ModeParams::Cached { .. } => self.n_canvas(),
        }
    }

    /// Returns an upper bound of the scratch slots that plans use.
    pub const fn n_scratch_slots(&self) -> u32 {
        match self.mode {
            ModeParams::Reference { cfg_scale, .. } if cfg_scale > 0.0 => 2 * self.n_canvas(),
            ModeParams::Reference { .. } => self.n_canvas(),
            ModeParams::Cached { .. } => self.n_gen,
        }
    }

    /// Returns an upper bound of the rows of one forward.
    pub const fn n_rows_max(&self) -> u32 {
        match self.mode {
            ModeParams::Reference { .. } => self.n_scratch_slots(),
            ModeParams::Cached { .. } => self.n_canvas(),
        }
    }
}

/// Options as the user gave them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Params {
    mode: Option<Mode>,
    steps: Option<u32>,
    eps: Option<f32>,
    block_length: Option<u32>,
    algorithm: Option<Algorithm>,
    alg_temp: Option<f32>,
    cfg_scale: Option<f32>,
    add_gumbel_noise: Option<bool>,
    threshold: Option<f32>,
    suffix: Option<Suffix>,
    refresh_blocks: Option<u32>,
    refresh_steps: Option<u32>,
    confidence_with_mask: Option<bool>,
    shift_logits: Option<Option<bool>>,
    mask: Option<Option<Token>>,
    logits_eos_inf: Option<bool>,
    confidence_eos_eot_inf: Option<bool>,
}

impl Params {
    /// Sets an option from text; the last value given counts. Keys are those of [`OPTIONS`](options::OPTIONS).
    ///
    /// # Errors
    /// [`ParamError::UnknownKey`], or [`ParamError::Value`] with the domain of the option. The option keeps its value then.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ParamError> {
        let info = options::OPTIONS
            .iter()
            .find(|info| info.key == key)
            .ok_or_else(|| ParamError::UnknownKey {
                key: key.to_owned(),
            })?;
        let key = info.key;
        match key {
            "mode" => self.mode = Some(options::mode(key, value)?),
            "steps" => self.steps = Some(options::steps(key, value)?),
            "eps" => {
                let open = |n| n > 0.0 && n < 1.0;
                self.eps = Some(options::number(
                    key,
                    value,
                    open,
                    "a number above 0 and below 1",
                )?);
            }
            "block-length" => self.block_length = Some(options::count(key, value, 1)?),
            "algorithm" => self.algorithm = Some(options::algorithm(key, value)?),
            "alg-temp" => {
                self.alg_temp = Some(options::number(
                    key,
                    value,
                    |n| n >= 0.0,
                    "a number of 0 or more",
                )?)
            }
            "cfg-scale" => {
                self.cfg_scale = Some(options::number(
                    key,
                    value,
                    |n| n >= 0.0,
                    "a number of 0 or more",
                )?)
            }
            "add-gumbel-noise" => self.add_gumbel_noise = Some(options::boolean(key, value)?),
            "threshold" => self.threshold = Some(options::threshold(key, value)?),
            "suffix" => self.suffix = Some(options::suffix(key, value)?),
            "refresh-blocks" => self.refresh_blocks = Some(options::count(key, value, 0)?),
            "refresh-steps" => self.refresh_steps = Some(options::count(key, value, 0)?),
            "confidence" => self.confidence_with_mask = Some(options::confidence(key, value)?),
            "shift-logits" => self.shift_logits = Some(options::auto_boolean(key, value)?),
            "mask-id" => self.mask = Some(options::auto_token(key, value)?),
            "logits-eos-inf" => self.logits_eos_inf = Some(options::boolean(key, value)?),
            "confidence-eos-eot-inf" => {
                self.confidence_eos_eot_inf = Some(options::boolean(key, value)?)
            }
            _ => unreachable!("every key of OPTIONS has an arm"),
        }
        Ok(())
    }

    /// Returns the complete parameters for a model and a canvas.
    ///
    /// # Errors
    /// [`ParamError`] naming the option, length or token at fault.
    pub fn resolve(
        &self,
        model: &ModelTraits,
        n_prompt: u32,
        n_gen: u32,
    ) -> Result<Resolved, ParamError> {
        if n_gen == 0 {
            return Err(ParamError::NothingToGenerate);
        }
        if n_prompt
            .checked_add(n_gen)
            .is_none_or(|n_canvas| n_canvas > model.n_ctx)
        {
            return Err(ParamError::Context {
                n_prompt,
                n_gen,
                n_ctx: model.n_ctx,
            });
        }
        let mask = self
            .mask
            .flatten()
            .or(model.mask)
            .ok_or(ParamError::NoMask)?;
        if u32::try_from(mask).is_ok_and(|id| id < model.n_vocab) {
            let (mode, measure) = self.resolve_mode(model, n_gen)?;
            Ok(Resolved {
                n_prompt,
                n_gen,
                n_vocab: model.n_vocab,
                mask,
                eos: model.eos,
                eot: model.eot,
                shift_logits: self.shift_logits.flatten().unwrap_or(model.shift_logits),
                confidence_with_mask: self.confidence_with_mask.unwrap_or(true),
                logits_eos_inf: self.logits_eos_inf.unwrap_or(false),
                confidence_eos_eot_inf: self.confidence_eos_eot_inf.unwrap_or(false),
                gumbel_noise: self.add_gumbel_noise.unwrap_or(match mode {
                    ModeParams::Reference {
                        schedule: Schedule::Timesteps { .. },
                        ..
                    } => false,
                    _ => model.family == Family::Llada,
                }),
                measure,
                mode,
            })
        } else {
            Err(ParamError::MaskRange {
                mask,
                n_vocab: model.n_vocab,
            })
        }
    }

    fn resolve_mode(
        &self,
        model: &ModelTraits,
        n_gen: u32,
    ) -> Result<(ModeParams, Measure), ParamError> {
        let mode = self.mode.unwrap_or(Mode::Cached);
        let foreign: &[(&'static str, bool)] = match mode {
            Mode::Reference => &[
                ("threshold", self.threshold.is_some()),
                ("suffix", self.suffix.is_some()),
                ("refresh-blocks", self.refresh_blocks.is_some()),
                ("refresh-steps", self.refresh_steps.is_some()),
            ],
            Mode::Cached => &[
                ("steps", self.steps.is_some()),
                ("eps", self.eps.is_some()),
                ("algorithm", self.algorithm.is_some()),
                ("alg-temp", self.alg_temp.is_some()),
                ("cfg-scale", self.cfg_scale.is_some()),
            ],
        };
        if let Some(&(key, _)) = foreign.iter().find(|(_, given)| *given) {
            return Err(ParamError::NoMeaningInMode {
                key,
                mode: mode.name(),
            });
        }
        match mode {
            Mode::Reference => self.resolve_reference(model, n_gen),
            Mode::Cached => {
                let params = ModeParams::Cached {
                    block_length: self
                        .block_length
                        .unwrap_or(model.default_block_length.max(1)),
                    threshold: self.threshold.unwrap_or(0.9),
                    suffix: self.suffix.unwrap_or(Suffix::All),
                    refresh_blocks: self.refresh_blocks.unwrap_or(1),
                    refresh_steps: self.refresh_steps.unwrap_or(0),
                };
                Ok((params, Measure::Confidence))
            }
        }
    }

    fn resolve_reference(
        &self,
        model: &ModelTraits,
        n_gen: u32,
    ) -> Result<(ModeParams, Measure), ParamError> {
        let steps = self.steps.unwrap_or(n_gen);
        let blocks = |block_length| Schedule::Blocks {
            steps,
            block_length,
        };
        let timesteps = |eps| Schedule::Timesteps { steps, eps };
        let schedule = match (self.eps, self.block_length, model.family) {
            (Some(_), Some(_), _) => {
                return Err(ParamError::Conflict {
                    first: "eps",
                    second: "block-length",
                });
            }
            (Some(eps), None, _) => timesteps(eps),
            (None, Some(block_length), _) => blocks(block_length),
            (None, None, Family::Llada) => blocks(model.default_block_length.max(1)),
            (None, None, Family::Dream) => timesteps(1e-3),
        };
        let by_time = matches!(schedule, Schedule::Timesteps { .. });
        let algorithm = self.algorithm.unwrap_or(if by_time {
            Algorithm::Origin
        } else {
            Algorithm::Confidence
        });
        let alg_temp = self.alg_temp.unwrap_or(0.0);
        if alg_temp > 0.0 && matches!(algorithm, Algorithm::Origin | Algorithm::Random) {
            return Err(ParamError::NoMeaningWithAlgorithm {
                key: "alg-temp",
                algorithm: algorithm.name(),
            });
        }
        let measure = match algorithm {
            Algorithm::Entropy => Measure::NegEntropy,
            Algorithm::Margin => Measure::Margin,
            Algorithm::Confidence if by_time => Measure::Probability,
            Algorithm::Confidence | Algorithm::Origin | Algorithm::Random => Measure::Confidence,
        };
        let params = ModeParams::Reference {
            schedule,
            algorithm,
            alg_temp,
            cfg_scale: self.cfg_scale.unwrap_or(0.0),
        };
        Ok((params, measure))
    }
}
