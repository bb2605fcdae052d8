//! What the user said, and how it becomes the parameters of a generation.
//!
//! [`Params`] collects options as text; an option that was not given is `None`, never a number. [`Params::resolve`] checks
//! them against each other, the mode and the model, and fills in the defaults.

use super::cost::{CostSource, CostTable};
use super::error::ParamError;
use super::options::{
    Algorithm, Fill, Mode, OPTIONS, RevisionContext, RevisionOrder, RevisionPath, Suffix,
};
use super::params::{
    CacheParams, CommitParams, CommitRule, Family, FullParams, ModeParams, ModelTraits, Resolved,
    RevisionParams, Schedule,
};
use super::plan::{Measure, Token};
use super::values as value_of;

/// Options as the user gave them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Params {
    /// One bit per entry of [`OPTIONS`]: whether it was given.
    given: u64,
    mode: Option<Mode>,
    steps: Option<u32>,
    eps: Option<f32>,
    block_length: Option<u32>,
    algorithm: Option<Algorithm>,
    alg_temp: Option<f32>,
    cfg_scale: Option<f32>,
    add_gumbel_noise: Option<bool>,
    threshold: Option<f32>,
    tau_visible: Option<f32>,
    tau_stable: Option<f32>,
    factor: Option<f32>,
    entropy_bound: Option<f32>,
    local_radius: Option<u32>,
    local_threshold: Option<f32>,
    stability: Option<f32>,
    suffix: Option<Suffix>,
    refresh_blocks: Option<u32>,
    refresh_steps: Option<u32>,
    lookahead_trigger: Option<u32>,
    lookahead_max: Option<u32>,
    draft_threshold: Option<f32>,
    fill: Option<Fill>,
    cost: Option<CostSource>,
    revision_budget: Option<u32>,
    revision_order: Option<RevisionOrder>,
    revision_radius: Option<u32>,
    revision_context: Option<RevisionContext>,
    revision_path: Option<RevisionPath>,
    revision_threads: Option<u32>,
    tau_replace: Option<f32>,
    tau_remask: Option<f32>,
    max_revisions: Option<u32>,
    final_sweep: Option<u32>,
    confidence_with_mask: Option<bool>,
    shift_logits: Option<Option<bool>>,
    mask: Option<Option<Token>>,
    logits_eos_inf: Option<bool>,
    confidence_eos_eot_inf: Option<bool>,
}

/// Mode where none is given.
const DEFAULT_MODE: Mode = Mode::Full;

impl Params {
    /// Sets an option from text; the last value given counts. Keys are those of [`OPTIONS`].
    ///
    /// # Errors
    /// [`ParamError::UnknownKey`], or [`ParamError::Value`] with the domain of the option. The option keeps its value then.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ParamError> {
        let index = OPTIONS
            .iter()
            .position(|info| info.key == key)
            .ok_or_else(|| ParamError::UnknownKey {
                key: key.to_owned(),
            })?;
        let key = OPTIONS[index].key;
        if !self.set_schedule(key, value)? && !self.set_speculation(key, value)? {
            self.set_model(key, value)?;
        }
        self.given |= 1 << index;
        Ok(())
    }

    /// Sets an option of the schedule and of the commits; returns false when the key is none of them.
    fn set_schedule(&mut self, key: &'static str, value: &str) -> Result<bool, ParamError> {
        let not_negative = |value| value_of::number(key, value, |_| true, "a number of 0 or more");
        match key {
            "mode" => self.mode = Some(value_of::mode(key, value)?),
            "steps" => self.steps = Some(value_of::steps(key, value)?),
            "eps" => {
                let open = |n| n > 0.0 && n < 1.0;
                let expected = "a number above 0 and below 1";
                self.eps = Some(value_of::number(key, value, open, expected)?);
            }
            "block-length" => self.block_length = Some(value_of::count(key, value, 1)?),
            "algorithm" => self.algorithm = Some(value_of::algorithm(key, value)?),
            "alg-temp" => self.alg_temp = Some(not_negative(value)?),
            "cfg-scale" => self.cfg_scale = Some(not_negative(value)?),
            "threshold" => self.threshold = Some(value_of::threshold(key, value)?),
            "tau-visible" => self.tau_visible = Some(value_of::threshold(key, value)?),
            "tau-stable" => self.tau_stable = Some(value_of::threshold(key, value)?),
            "factor" => self.factor = Some(not_negative(value)?),
            "entropy-bound" => self.entropy_bound = Some(not_negative(value)?),
            "local-radius" => self.local_radius = Some(value_of::count(key, value, 0)?),
            "local-threshold" => self.local_threshold = Some(value_of::threshold(key, value)?),
            "stability" => self.stability = Some(not_negative(value)?),
            "suffix" => self.suffix = Some(value_of::suffix(key, value)?),
            "refresh-blocks" => self.refresh_blocks = Some(value_of::count(key, value, 0)?),
            "refresh-steps" => self.refresh_steps = Some(value_of::count(key, value, 0)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets an option of lookahead and revision; returns false when the key is none of them.
    fn set_speculation(&mut self, key: &'static str, value: &str) -> Result<bool, ParamError> {
        match key {
            "lookahead-trigger" => self.lookahead_trigger = Some(value_of::count(key, value, 0)?),
            "lookahead-max" => self.lookahead_max = Some(value_of::count(key, value, 0)?),
            "draft-threshold" => self.draft_threshold = Some(value_of::threshold(key, value)?),
            "fill" => self.fill = Some(value_of::fill(key, value)?),
            "cost" => self.cost = Some(value_of::cost(key, value)?),
            "revision-budget" => {
                let expected = "a whole number, 0 to 256";
                self.revision_budget = Some(value_of::at_most(key, value, 0..=256, expected)?);
            }
            "revision-order" => self.revision_order = Some(value_of::order(key, value)?),
            "revision-radius" => {
                let expected = "a whole number, 0 to 64";
                self.revision_radius = Some(value_of::at_most(key, value, 0..=64, expected)?);
            }
            "revision-context" => self.revision_context = Some(value_of::context(key, value)?),
            "revision-path" => self.revision_path = Some(value_of::path(key, value)?),
            "revision-threads" => {
                let expected = "a whole number, 1 to 512";
                self.revision_threads = Some(value_of::at_most(key, value, 1..=512, expected)?);
            }
            "tau-replace" => self.tau_replace = Some(value_of::threshold(key, value)?),
            "tau-remask" => self.tau_remask = Some(value_of::share(key, value)?),
            "max-revisions" => {
                let expected = "a whole number, 0 to 1000";
                self.max_revisions = Some(value_of::at_most(key, value, 0..=1000, expected)?);
            }
            "final-sweep" => self.final_sweep = Some(value_of::count(key, value, 0)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets an option of the sampler or the model.
    fn set_model(&mut self, key: &'static str, value: &str) -> Result<(), ParamError> {
        match key {
            "add-gumbel-noise" => self.add_gumbel_noise = Some(value_of::boolean(key, value)?),
            "confidence" => self.confidence_with_mask = Some(value_of::confidence(key, value)?),
            "shift-logits" => self.shift_logits = Some(value_of::auto_boolean(key, value)?),
            "mask-id" => self.mask = Some(value_of::auto_token(key, value)?),
            "logits-eos-inf" => self.logits_eos_inf = Some(value_of::boolean(key, value)?),
            "confidence-eos-eot-inf" => {
                self.confidence_eos_eot_inf = Some(value_of::boolean(key, value)?);
            }
            _ => unreachable!("every key of OPTIONS has an arm"),
        }
        Ok(())
    }

    /// Mode asked for, or the default.
    pub fn mode(&self) -> Mode {
        self.mode.unwrap_or(DEFAULT_MODE)
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
        let mode = self.mode();
        let foreign = |&(index, info): &(usize, &super::OptionInfo)| {
            self.given & (1 << index) != 0 && !info.modes.contains(&mode)
        };
        if let Some((_, info)) = OPTIONS.iter().enumerate().find(foreign) {
            return Err(ParamError::NoMeaningInMode {
                key: info.key,
                mode: mode.name(),
            });
        }
        if mode == Mode::Reference {
            return self.resolve_reference(model, n_gen);
        }
        let cache = self.resolve_cache(model, mode)?;
        let measure = match cache.commit.rule {
            CommitRule::EntropyBound(_) => Measure::NegEntropy,
            _ => Measure::Confidence,
        };
        let params = match mode {
            Mode::Reference | Mode::Cached => ModeParams::Cached(cache),
            Mode::Mbsd | Mode::Full => ModeParams::Full(self.resolve_full(cache, mode)?),
        };
        Ok((params, measure))
    }

    fn resolve_cache(&self, model: &ModelTraits, mode: Mode) -> Result<CacheParams, ParamError> {
        let factor = self.factor.filter(|&factor| factor > 0.0);
        let bound = self.entropy_bound.filter(|&bound| bound > 0.0);
        let threshold = match mode {
            Mode::Full => self.tau_visible.unwrap_or(0.6),
            _ => self.threshold.unwrap_or(0.9),
        };
        let rule = match (factor, bound) {
            (Some(_), Some(_)) => {
                return Err(ParamError::Conflict {
                    first: "factor",
                    second: "entropy-bound",
                });
            }
            (Some(factor), None) => CommitRule::Factor(factor),
            (None, Some(bound)) => CommitRule::EntropyBound(bound),
            (None, None) => CommitRule::Threshold(threshold),
        };
        Ok(CacheParams {
            block_length: self
                .block_length
                .unwrap_or(model.default_block_length.max(1)),
            commit: CommitParams {
                rule,
                local_radius: self.local_radius.unwrap_or(0),
                local_threshold: self.local_threshold.unwrap_or(0.75),
                stability: self.stability.unwrap_or(0.0),
            },
            suffix: self.suffix.unwrap_or(match mode {
                Mode::Full => Suffix::None,
                _ => Suffix::All,
            }),
            refresh_blocks: self.refresh_blocks.unwrap_or(1),
            refresh_steps: self.refresh_steps.unwrap_or(0),
        })
    }

    fn resolve_full(&self, cache: CacheParams, mode: Mode) -> Result<FullParams, ParamError> {
        let fill = self.fill.unwrap_or(Fill::None);
        if mode == Mode::Mbsd && fill == Fill::Visible {
            return Err(ParamError::NoMeaningInMode {
                key: "fill=visible",
                mode: mode.name(),
            });
        }
        let tau_stable = match mode {
            Mode::Full => self.tau_stable.unwrap_or(0.9),
            _ => self.threshold.unwrap_or(0.9),
        };
        let revision = RevisionParams {
            budget: self.revision_budget.unwrap_or(1),
            order: self.revision_order.unwrap_or(RevisionOrder::Oldest),
            radius: self.revision_radius.unwrap_or(4),
            context: self.revision_context.unwrap_or(RevisionContext::Committed),
            path: self.revision_path.unwrap_or(RevisionPath::Auto),
            n_threads: self.revision_threads.unwrap_or(1),
            tau_replace: self.tau_replace.unwrap_or(0.9),
            tau_remask: self.tau_remask.unwrap_or(0.3),
            max_revisions: self.max_revisions.unwrap_or(3),
            final_sweep: self.final_sweep.unwrap_or(8),
        };
        let revises =
            revision.max_revisions > 0 && (revision.budget > 0 || revision.final_sweep > 0);
        Ok(FullParams {
            cache,
            tau_stable,
            draft_threshold: self.draft_threshold.unwrap_or(tau_stable),
            lookahead_trigger: self.lookahead_trigger.unwrap_or(8),
            lookahead_max: self.lookahead_max.unwrap_or(32),
            fill,
            cost: self.cost.unwrap_or(CostSource::Table(CostTable::HOST)),
            revision: (mode == Mode::Full && revises).then_some(revision),
        })
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
