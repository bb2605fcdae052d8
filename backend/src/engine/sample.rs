//! The sampler: one row of logits in, the prediction of one position out.
//!
//! Order of events, `un` and `cond` being the rows without and with the prompt:
//!
//! 1. guidance: `un + (cfg_scale + 1) (cond - un)`;
//! 2. EOS leaves where `logits_eos_inf` says so; MASK leaves the choice, always;
//! 3. the token: at temperature 0 the largest logit, the lower id on ties. Above 0, temperature, then top-p, then top-k
//!    make the sampled distribution. It is drawn from by one categorical draw, or by Gumbel noise in f64: the largest
//!    `exp(logit) / (-ln u)^T`, computed as `logit - T ln(-ln u)`, which has the same distribution;
//! 4. the confidence: softmax probability of the token over the whole vocabulary, without noise, temperature and filters.
//!    MASK counts in the denominator or not, as `confidence_with_mask` says. Where `confidence_eos_eot_inf` is on, EOS and
//!    EoT leave here, after the choice: a position that chose one has confidence 0 and the others share what is left. At a
//!    temperature above 0 only EoT leaves, as in LLaDA's code, where the EOS part lands on the noisy copy of the logits;
//! 5. the score, as [`Measure`] says.
//!
//! top-p keeps the most probable tokens up to and including the one with which their probability exceeds `top_p`; top-k the
//! `top_k` most probable, the lower id on ties. A row costs two passes at temperature 0 and never a sort of the vocabulary.

mod softmax;
#[cfg(test)]
mod tests;

use crate::decode::params::Resolved;
use crate::decode::plan::{Measure, Predict, Prediction, Token};
use crate::decode::random::{self, Key, Purpose};

/// What the caller says about sampling; the rest comes with [`Resolved`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Temperature; 0 = argmax.
    pub temperature: f32,
    /// Candidates kept; 0 = all.
    pub top_k: u32,
    /// Probability kept; 1 = all.
    pub top_p: f32,
    /// Seed of all draws.
    pub seed: u64,
}

impl Default for Sampling {
    /// Argmax.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            seed: 0,
        }
    }
}

/// Everything a [`Sampler`] goes by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleParams {
    /// Temperature, top-k, top-p, seed.
    pub sampling: Sampling,
    /// Length of a row of logits.
    pub n_vocab: u32,
    /// Mask token: never chosen.
    pub mask: Token,
    /// End of text.
    pub eos: Option<Token>,
    /// End of turn.
    pub eot: Option<Token>,
    /// MASK counts in the denominator of the confidence.
    pub confidence_with_mask: bool,
    /// EOS is never chosen.
    pub logits_eos_inf: bool,
    /// EOS and EoT are demoted in the confidence.
    pub confidence_eos_eot_inf: bool,
    /// Draw by Gumbel noise.
    pub gumbel_noise: bool,
    /// What the score holds.
    pub measure: Measure,
    /// Scale of guidance, used where a row without the prompt is given.
    pub cfg_scale: f32,
}

impl SampleParams {
    /// Returns the parameters of a generation.
    ///
    /// # Errors
    /// [`SampleError::Temperature`] or [`SampleError::TopP`] when a value is outside its range.
    pub fn new(resolved: &Resolved, sampling: Sampling) -> Result<Self, SampleError> {
        let Sampling {
            temperature, top_p, ..
        } = sampling;
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(SampleError::Temperature { temperature });
        }
        if !(0.0..=1.0).contains(&top_p) {
            return Err(SampleError::TopP { top_p });
        }
        Ok(Self {
            sampling,
            n_vocab: resolved.n_vocab,
            mask: resolved.mask,
            eos: resolved.eos,
            eot: resolved.eot,
            confidence_with_mask: resolved.confidence_with_mask,
            logits_eos_inf: resolved.logits_eos_inf,
            confidence_eos_eot_inf: resolved.confidence_eos_eot_inf,
            gumbel_noise: resolved.gumbel_noise,
            measure: resolved.measure,
            cfg_scale: resolved.cfg_scale(),
        })
    }
}

/// Why a row cannot be sampled.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// The temperature is not a finite number of 0 or more.
    #[error("temperature {temperature} is not a finite number of 0 or more")]
    Temperature {
        /// The value.
        temperature: f32,
    },
    /// top-p is not a probability.
    #[error("top-p {top_p} is not between 0 and 1")]
    TopP {
        /// The value.
        top_p: f32,
    },
    /// A row is not as long as the vocabulary.
    #[error("position {pos}: {found} logits for a vocabulary of {expected} tokens")]
    Length {
        /// Position that is predicted.
        pos: u32,
        /// Size of the vocabulary.
        expected: u32,
        /// Length of the row.
        found: usize,
    },
    /// A logit is NaN or infinite.
    #[error("position {pos}: a logit is NaN or +infinity")]
    NotANumber {
        /// Position that is predicted.
        pos: u32,
    },
    /// All logits are `-inf`, those of tokens that are not chosen apart.
    #[error("position {pos}: no token can be chosen, all logits are -infinity")]
    NothingToChoose {
        /// Position that is predicted.
        pos: u32,
    },
}

/// A token of the sampled distribution.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    logit: f32,
    weight: f32,
}

/// Turns rows of logits into predictions. Keeps its buffers; a prediction depends on its arguments alone.
#[derive(Debug)]
pub struct Sampler {
    params: SampleParams,
    /// The row, after guidance and exclusions.
    logits: Vec<f32>,
    /// Weights `exp((logit - max) / T)` of the unfiltered distribution.
    weights: Vec<f32>,
    /// The filtered distribution, most probable first.
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// Returns a sampler.
    pub fn new(params: SampleParams) -> Self {
        Self {
            params,
            logits: Vec::with_capacity(params.n_vocab as usize),
            weights: Vec::new(),
            candidates: Vec::new(),
        }
    }

    /// Returns the prediction of `wanted` in step `step` from its row of logits `[n_vocab]` and, with guidance, the row without
    /// the prompt.
    ///
    /// # Errors
    /// [`SampleError::Length`], [`SampleError::NotANumber`] or [`SampleError::NothingToChoose`].
    #[expect(clippy::missing_panics_doc, reason = "a vocabulary's ids fit a token")]
    pub fn predict(
        &mut self,
        logits: &[f32],
        uncond: Option<&[f32]>,
        wanted: Predict,
        step: u32,
    ) -> Result<Prediction, SampleError> {
        let Predict { pos, probe, .. } = wanted;
        let params = self.params;
        self.load(logits, uncond, pos)?;
        if params.logits_eos_inf {
            self.exclude(params.eos);
        }
        let mask_logit = self.logits.get(index(params.mask)).copied();
        self.exclude(Some(params.mask));

        let best = softmax::max(&self.logits).ok_or(SampleError::NotANumber { pos })?;
        if best == f32::NEG_INFINITY {
            return Err(SampleError::NothingToChoose { pos });
        }
        let drawn = params.sampling.temperature > 0.0;
        let (chosen, drawn_score) = if drawn {
            self.draw(best, pos, step)
        } else {
            (self.first(best), None)
        };

        // From here on the buffer holds what the confidence counts.
        if params.confidence_eos_eot_inf {
            self.exclude(params.eot);
            if !drawn {
                self.exclude(params.eos);
            }
        }
        let token_logit = self.logits[chosen];
        let choice = self.score_margin(drawn);
        if let (true, Some(logit)) = (params.confidence_with_mask, mask_logit) {
            self.logits[index(params.mask)] = logit;
        }
        let max = softmax::max(&self.logits).ok_or(SampleError::NotANumber { pos })?;
        let total = softmax::sum(&self.logits, |logit| softmax::exp(logit - max));
        let probability = |logit: f32| narrow(f64::from(softmax::exp(logit - max)) / total);
        let probe = probe.and_then(|token| self.logits.get(index(token)).copied());
        let demoted = token_logit == f32::NEG_INFINITY;
        let confidence = if demoted {
            0.0
        } else {
            probability(token_logit)
        };
        let score = match (params.measure, drawn_score) {
            (Measure::Confidence, _) | (Measure::Probability, None) => confidence,
            _ if demoted => f32::NEG_INFINITY,
            (_, Some(score)) => score,
            (Measure::Margin, None) => probability(choice.0) - probability(choice.1),
            (Measure::NegEntropy, None) => {
                neg_entropy(&self.logits, total, |logit| softmax::exp(logit - max))
            }
        };
        Ok(Prediction {
            pos,
            token: Token::try_from(chosen).expect("ids of a vocabulary fit a token"),
            confidence,
            score,
            probe: probe.map_or(0.0, probability),
        })
    }

    /// Fills the buffer with the row, guided where there are two.
    fn load(
        &mut self,
        logits: &[f32],
        uncond: Option<&[f32]>,
        pos: u32,
    ) -> Result<(), SampleError> {
        let expected = self.params.n_vocab;
        for row in std::iter::once(logits).chain(uncond) {
            if row.len() != expected as usize {
                let found = row.len();
                return Err(SampleError::Length {
                    pos,
                    expected,
                    found,
                });
            }
        }
        self.logits.clear();
        match uncond {
            None => self.logits.extend_from_slice(logits),
            Some(uncond) => {
                let scale = self.params.cfg_scale + 1.0;
                let guided = logits
                    .iter()
                    .zip(uncond)
                    .map(|(&cond, &un)| un + scale * (cond - un));
                self.logits.extend(guided);
            }
        }
        Ok(())
    }

    fn exclude(&mut self, token: Option<Token>) {
        if let Some(logit) = token.and_then(|token| self.logits.get_mut(index(token))) {
            *logit = f32::NEG_INFINITY;
        }
    }

    /// Returns the lowest id with this logit, which is that of some id.
    fn first(&self, logit: f32) -> usize {
        softmax::position(&self.logits, logit).unwrap_or(0)
    }

    /// Returns the two largest logits that may be chosen, where the score needs them.
    fn score_margin(&self, drawn: bool) -> (f32, f32) {
        if self.params.measure == Measure::Margin && !drawn {
            softmax::two_largest(&self.logits)
        } else {
            (f32::NEG_INFINITY, f32::NEG_INFINITY)
        }
    }

    /// Draws a token above temperature 0; returns it and its score in the sampled distribution, where that is the measure.
    fn draw(&mut self, best: f32, pos: u32, step: u32) -> (usize, Option<f32>) {
        let Sampling {
            temperature,
            top_k,
            top_p,
            seed,
        } = self.params.sampling;
        let noise = Key::new(seed, pos, step, Purpose::Noise);
        let unit = Key::new(seed, pos, step, Purpose::Token).unit(0);
        let scored = self.params.measure != Measure::Confidence;
        let filtered = top_p < 1.0 || (top_k > 0 && top_k < self.params.n_vocab);
        if self.params.gumbel_noise && !filtered && !scored {
            return (
                gumbel_max(
                    self.logits.iter().copied().enumerate(),
                    best,
                    temperature,
                    noise,
                ),
                None,
            );
        }
        self.weights.clear();
        let weight = |&logit: &f32| softmax::exp((logit - best) / temperature);
        self.weights.extend(self.logits.iter().map(weight));
        let total = softmax::sum(&self.weights, |weight| weight);
        if !filtered {
            let chosen = if self.params.gumbel_noise {
                gumbel_max(
                    self.logits.iter().copied().enumerate(),
                    best,
                    temperature,
                    noise,
                )
            } else {
                categorical(self.weights.iter().copied(), unit * total)
            };
            let score = scored.then(|| self.score(self.weights[chosen], &self.weights, total));
            return (chosen, score);
        }
        self.filter(total);
        self.weights.clear();
        self.weights
            .extend(self.candidates.iter().map(|candidate| candidate.weight));
        let total = self.weights.iter().map(|&weight| f64::from(weight)).sum();
        let place = if self.params.gumbel_noise {
            let logits = self.candidates.iter().map(|c| (c.id as usize, c.logit));
            let chosen = gumbel_max(logits, best, temperature, noise);
            self.candidates
                .iter()
                .position(|c| c.id as usize == chosen)
                .unwrap_or(0)
        } else {
            categorical(self.weights.iter().copied(), unit * total)
        };
        let score = scored.then(|| self.score(self.weights[place], &self.weights, total));
        (self.candidates[place].id as usize, score)
    }

    /// Leaves in `candidates` what top-p and top-k keep of `weights`, most probable first, the lower id on ties.
    fn filter(&mut self, total: f64) {
        let Sampling { top_k, top_p, .. } = self.params.sampling;
        // Tokens below this weight have less than 1 - top_p together, so the kept ones are all above it. The factor covers
        // rounding.
        let floor = if top_p < 1.0 {
            narrow((1.0 - f64::from(top_p)) / f64::from(self.params.n_vocab) * total * 0.999)
        } else {
            0.0
        };
        let order =
            |a: &Candidate, b: &Candidate| b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id));
        let n_keep = if top_k == 0 {
            usize::MAX
        } else {
            top_k as usize
        };
        // Candidates collect up to a few times top_k before the worst are dropped, so the row is read once.
        let n_full = n_keep.saturating_mul(4).max(1024);
        // Ids ascend: a later token of the same logit as the last one kept is not better.
        let mut above = f32::NEG_INFINITY;
        self.candidates.clear();
        for (id, (&logit, &weight)) in (0u32..).zip(self.logits.iter().zip(&self.weights)) {
            if weight >= floor && logit > above {
                self.candidates.push(Candidate { id, logit, weight });
                if self.candidates.len() == n_full {
                    let (_, last, _) = self.candidates.select_nth_unstable_by(n_keep - 1, order);
                    above = last.logit;
                    self.candidates.truncate(n_keep);
                }
            }
        }
        self.candidates.sort_unstable_by(order);
        self.candidates.truncate(n_keep);
        if top_p < 1.0 {
            let bound = f64::from(top_p) * total;
            let mut before = 0.0;
            let n_kept = self
                .candidates
                .iter()
                .take_while(|candidate| {
                    let kept = before <= bound;
                    before += f64::from(candidate.weight);
                    kept
                })
                .count();
            self.candidates.truncate(n_kept.max(1));
        }
    }

    /// Returns the score of a token of weight `weight` in the distribution `weights / total`.
    fn score(&self, weight: f32, weights: &[f32], total: f64) -> f32 {
        match self.params.measure {
            Measure::Confidence | Measure::Probability => narrow(f64::from(weight) / total),
            Measure::Margin => {
                let (first, second) = softmax::two_largest(weights);
                narrow(f64::from(first - second.max(0.0)) / total)
            }
            Measure::NegEntropy => neg_entropy(weights, total, |weight| weight),
        }
    }
}

/// Returns `sum p ln(p + 1e-10)` with `p = weight(x) / total`.
fn neg_entropy(row: &[f32], total: f64, weight: impl Fn(f32) -> f32) -> f32 {
    let scale = narrow(1.0 / total);
    let term = |x: f32| {
        let p = weight(x) * scale;
        p * softmax::ln(p + 1e-10)
    };
    narrow(softmax::sum(row, term))
}

/// Returns the id with the largest `logit + T g`, `g` being its Gumbel noise. `best` is the largest logit.
fn gumbel_max(
    logits: impl Iterator<Item = (usize, f32)>,
    best: f32,
    temperature: f32,
    noise: Key,
) -> usize {
    let temperature = f64::from(temperature);
    let mut winner = (f64::NEG_INFINITY, 0);
    for (id, logit) in logits {
        if logit == f32::NEG_INFINITY {
            continue;
        }
        // Relative to the best logit, so that large logits do not swallow the noise.
        let gap = f64::from(logit) - f64::from(best);
        let bits = noise.bits(u32::try_from(id).unwrap_or(u32::MAX));
        // Two logarithms for the few that can win.
        if gap + temperature * random::gumbel_bound(bits) > winner.0 {
            let key = gap + temperature * random::gumbel(bits);
            if key > winner.0 {
                winner = (key, id);
            }
        }
    }
    winner.1
}

/// Returns the first index at which the running sum exceeds `target`, the last one of weight above 0 at the latest.
fn categorical(weights: impl Iterator<Item = f32>, target: f64) -> usize {
    let mut sum = 0.0;
    let mut last = 0;
    for (place, weight) in weights.enumerate().filter(|&(_, weight)| weight > 0.0) {
        sum += f64::from(weight);
        last = place;
        if sum > target {
            break;
        }
    }
    last
}

/// Returns the index of a token of the vocabulary.
fn index(token: Token) -> usize {
    usize::try_from(token).unwrap_or(usize::MAX)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "rounding to f32 is the operation"
)]
fn narrow(x: f64) -> f32 {
    x as f32
}
