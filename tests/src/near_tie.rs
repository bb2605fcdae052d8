//! Comparing two generations of one model that round differently, and telling near ties from errors.
//!
//! Both sides record every forward ([`Trace`]): the plan, the logits of what it predicts, and the canvas afterwards. Up to the
//! first forward after which the canvases differ both had the same plans, so that their logits are of the same input.
//!
//! *Measured error*: the root mean square of the differences of these logits, over all predictions of all forwards up to
//! and with that one. One wrong row among many hardly raises it, unlike the largest difference, which would excuse itself.
//!
//! *Near tie*: in the host's logits, the two sides of the decision are closer than three times that error. Logits are
//! compared with logits, whatever the decision is:
//!
//! * which token: the logits of the two tokens that were chosen (the top two, as a rule);
//! * whether a confidence reaches a threshold: the token's lead over all others, `l_t - ln sum_{k != t} e^{l_k}`, which is
//!   `ln(p / (1 - p))` of its probability, and the same of the threshold, which lies between the leads of both sides;
//! * which position is the most confident: the leads of the two positions.
//!
//! A decoding that decides nothing but tokens is held to the first of these alone ([`Ties::Tokens`]).
//!
//! Every position whose token or stage differs after that forward must be a near tie, or lie right of an end token that is
//! one: what lies there leaves the text. Everything else is an error: other plans before, a position that differs without
//! having been predicted, canvases that never differ. So is a measured error beyond [`MAX_NMSE`].

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// How far the sides of a decision may be apart, in measured errors.
const MAX_ERRORS: f64 = 3.0;

/// Largest share of the error in the power of the logits, between the two sides: that of the host's kernels, which round
/// activations to bytes, as the tests of exactness have it.
pub const MAX_NMSE: f64 = 1e-4;

/// Which decisions may be near ties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ties {
    /// All of them.
    All,
    /// Which token. Every forward decides about one position; at temperature 0 the host's token is its best, so that its
    /// top two logits are no further apart than those of both sides' tokens.
    Tokens,
}

/// One generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// Thresholds that confidences were compared with.
    pub thresholds: Vec<f64>,
    /// Tokens that end a text.
    pub ends: Vec<i32>,
    /// Forwards, in their order.
    pub forwards: Vec<Forward>,
    /// Text before the first end token.
    pub output: Vec<i32>,
}

/// One forward and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forward {
    /// Names the plan: rows, what they see, what is predicted.
    pub plan: u64,
    /// What was predicted.
    pub predictions: Vec<Predicted>,
    /// Token and stage of every position afterwards.
    pub canvas: Vec<(i32, u8)>,
}

/// One prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// The position.
    pub pos: usize,
    /// The chosen token.
    pub token: i32,
    /// A token whose probability was wanted besides.
    pub probe: Option<i32>,
    /// Logits of the whole vocabulary; in a file of their own.
    #[serde(skip)]
    pub logits: Vec<f32>,
}

/// Why two texts differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// Whether the first decision that differs was a near tie.
    pub is_near_tie: bool,
    /// Measured error of the logits.
    pub error: f64,
    /// The decisions that differ first, for people.
    pub what: String,
}

impl Trace {
    /// Writes `NAME.json`, and `NAME.logits`, all logits, little-endian.
    ///
    /// # Panics
    /// When the files cannot be written.
    pub fn write(&self, name: &Path) {
        let json = serde_json::to_vec(self).expect("plain values");
        fs::write(name.with_extension("json"), json).expect("a trace can be written");
        let logits = self.predictions().flat_map(|prediction| &prediction.logits);
        let bytes: Vec<u8> = logits.flat_map(|x| x.to_le_bytes()).collect();
        fs::write(name.with_extension("logits"), bytes).expect("a trace can be written");
    }

    /// Reads what [`write`](Self::write) wrote.
    ///
    /// # Panics
    /// When the files cannot be read, or are of something else.
    #[must_use]
    pub fn read(name: &Path) -> Self {
        let json = fs::read(name.with_extension("json")).expect("a trace can be read");
        let bytes = fs::read(name.with_extension("logits")).expect("a trace can be read");
        let mut trace: Self = serde_json::from_slice(&json).expect("a trace");
        let n = trace.predictions().count();
        if let Some(size) = bytes.len().checked_div(n) {
            let forwards = trace.forwards.iter_mut();
            let predictions = forwards.flat_map(|forward| &mut forward.predictions);
            for (prediction, row) in predictions.zip(bytes.chunks_exact(size)) {
                let (numbers, _) = row.as_chunks();
                prediction.logits = numbers.iter().map(|&x| f32::from_le_bytes(x)).collect();
            }
        }
        trace
    }

    fn predictions(&self) -> impl Iterator<Item = &Predicted> {
        self.forwards
            .iter()
            .flat_map(|forward| &forward.predictions)
    }
}

/// Compares a generation with the host's; `None` where the texts are equal.
#[must_use]
pub fn compare(host: &Trace, other: &Trace, ties: Ties) -> Option<Difference> {
    if host.output == other.output {
        return None;
    }
    let mut sums = Sums::default();
    for (n, (ours, theirs)) in host.forwards.iter().zip(&other.forwards).enumerate() {
        if ours.plan != theirs.plan {
            let what = format!("forward {n} has another plan after the same canvas");
            return Some(sums.difference(false, what));
        }
        if ties == Ties::Tokens && ours.predictions.len() != 1 {
            let what = format!("forward {n} decides more than a token");
            return Some(sums.difference(false, what));
        }
        for (a, b) in ours.predictions.iter().zip(&theirs.predictions) {
            sums.add(&a.logits, &b.logits);
        }
        if ours.canvas != theirs.canvas {
            let decisions = Decisions {
                host: ours,
                other: theirs,
                thresholds: &host.thresholds,
                ends: &host.ends,
                limit: MAX_ERRORS * sums.rms(),
                ties,
            };
            let (is_near_tie, what) = decisions.judge();
            let nmse = sums.nmse();
            return Some(if nmse > MAX_NMSE || nmse.is_nan() {
                sums.difference(false, format!("logits differ by NMSE {nmse:.1e}"))
            } else {
                sums.difference(is_near_tie, format!("forward {n}: {what}"))
            });
        }
    }
    Some(sums.difference(false, "no forward decided otherwise".to_owned()))
}

/// Sums of squares of logits and their differences.
#[derive(Debug, Default)]
struct Sums {
    n: usize,
    error: f64,
    power: f64,
}

impl Sums {
    fn add(&mut self, host: &[f32], other: &[f32]) {
        self.n += host.len();
        for (&a, &b) in host.iter().zip(other) {
            self.error += f64::from(a - b).powi(2);
            self.power += f64::from(a).powi(2);
        }
    }

    fn rms(&self) -> f64 {
        (self.error / self.n.max(1) as f64).sqrt()
    }

    fn nmse(&self) -> f64 {
        self.error / self.power
    }

    fn difference(&self, is_near_tie: bool, what: String) -> Difference {
        Difference {
            is_near_tie,
            error: self.rms(),
            what,
        }
    }
}

/// The first forward that decided otherwise.
struct Decisions<'a> {
    host: &'a Forward,
    other: &'a Forward,
    thresholds: &'a [f64],
    ends: &'a [i32],
    /// Decisions are near ties below it.
    limit: f64,
    ties: Ties,
}

impl Decisions<'_> {
    /// Tells whether all positions that differ are explained, and by what.
    fn judge(&self) -> (bool, String) {
        let canvases = self.host.canvas.iter().zip(&self.other.canvas);
        let differ: Vec<usize> = canvases
            .enumerate()
            .filter(|(_, (ours, theirs))| ours != theirs)
            .map(|(pos, _)| pos)
            .collect();
        let mut words = Vec::new();
        let mut all = self.host.canvas.len() == self.other.canvas.len();
        let mut end_of_text = None;
        for &pos in &differ {
            if end_of_text.is_some_and(|end| pos > end) {
                continue;
            }
            let (is_near, word) = match self.distance(pos, &differ) {
                Some((what, distance)) => (
                    distance < self.limit,
                    format!("{what} {distance:.4} (near below {:.4})", self.limit),
                ),
                None => (false, "nothing that was compared explains it".to_owned()),
            };
            all &= is_near;
            words.push(format!("position {pos}: {word}"));
            let is_end = |forward: &Forward| self.ends.contains(&forward.canvas[pos].0);
            if is_near && (is_end(self.host) || is_end(self.other)) {
                end_of_text = Some(pos);
            }
        }
        (all, words.join(", "))
    }

    /// Returns how far apart the two sides of the decision about a position were in the host's logits.
    fn distance(&self, pos: usize, differ: &[usize]) -> Option<(&'static str, f64)> {
        let (ours, theirs) = (of(self.host, pos)?, of(self.other, pos)?);
        if ours.token != theirs.token {
            // What was drawn need not be the best.
            let gap = logit(ours, ours.token)? - logit(ours, theirs.token)?;
            return Some(("tokens are apart by", gap.abs()));
        }
        if self.ties == Ties::Tokens {
            return None;
        }
        let tokens = [Some(ours.token), ours.probe];
        let leads = tokens.into_iter().flatten().filter_map(|token| {
            let (a, b) = (lead(ours, token)?, lead(theirs, token)?);
            let between = self.thresholds.iter().map(|p| (p / (1.0 - p)).ln());
            let crossed = between.filter(|&x| x >= a.min(b) && x <= a.max(b));
            crossed.map(|x| (x - a).abs()).reduce(f64::min)
        });
        if let Some(distance) = leads.reduce(f64::min) {
            return Some(("the threshold is apart by", distance));
        }
        // Another position was the most confident.
        let mine = lead(ours, ours.token)?;
        let others = differ.iter().filter(|&&other| other != pos);
        let swapped = others.filter_map(|&other| {
            let (a, b) = (of(self.host, other)?, of(self.other, other)?);
            let on_host = mine - lead(a, a.token)?;
            let on_other = lead(theirs, theirs.token)? - lead(b, b.token)?;
            (on_host * on_other <= 0.0).then_some(on_host.abs())
        });
        let distance = swapped.reduce(f64::min)?;
        Some(("the other position is apart by", distance))
    }
}

fn of(forward: &Forward, pos: usize) -> Option<&Predicted> {
    forward.predictions.iter().find(|p| p.pos == pos)
}

fn logit(prediction: &Predicted, token: i32) -> Option<f64> {
    let token = usize::try_from(token).ok()?;
    prediction.logits.get(token).map(|&x| f64::from(x))
}

/// Returns how far ahead of all others a token is: `ln(p / (1 - p))`.
fn lead(prediction: &Predicted, token: i32) -> Option<f64> {
    let own = logit(prediction, token)?;
    let max = prediction.logits.iter().copied().fold(f32::MIN, f32::max);
    let max = f64::from(max);
    let logits = (0..).zip(&prediction.logits);
    let others: f64 = logits
        .filter(|&(k, _)| k != token)
        .map(|(_, &x)| (f64::from(x) - max).exp())
        .sum();
    Some(own - max - others.ln())
}

#[cfg(test)]
mod tests;
