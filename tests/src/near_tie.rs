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
pub fn compare(host: &Trace, other: &Trace) -> Option<Difference> {
    if host.output == other.output {
        return None;
    }
    let mut sums = Sums::default();
    for (n, (ours, theirs)) in host.forwards.iter().zip(&other.forwards).enumerate() {
        if ours.plan != theirs.plan {
            let what = format!("forward {n} has another plan after the same canvas");
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
mod tests {
    use super::*;

    /// Error of every logit of the other side.
    const ERROR: f32 = 0.01;

    /// A generation of one forward over `rows`, that commits what `commits` says; errors alternate in sign.
    fn trace(rows: &[[f32; 4]], error: f32, commits: &[(usize, i32)]) -> Trace {
        let predict = |(pos, row): (usize, &[f32; 4])| {
            let best = (0..4).max_by(|&a: &usize, &b| row[a].total_cmp(&row[b]));
            let signs = [1.0, -1.0, 1.0, -1.0];
            let logits = row.iter().zip(signs).map(|(x, sign)| x + sign * error);
            Predicted {
                pos,
                token: i32::try_from(best.expect("four")).expect("small"),
                probe: None,
                logits: logits.collect(),
            }
        };
        let mut canvas = vec![(-1, 0); rows.len()];
        for &(pos, token) in commits {
            canvas[pos] = (token, 2);
        }
        Trace {
            thresholds: vec![0.6, 0.9],
            ends: vec![3],
            output: canvas.iter().map(|&(token, _)| token).collect(),
            forwards: vec![Forward {
                plan: 1,
                predictions: rows.iter().enumerate().map(predict).collect(),
                canvas,
            }],
        }
    }

    fn is_near(host: &Trace, other: &Trace) -> bool {
        let difference = compare(host, other).expect("the texts differ");
        println!("{}", difference.what);
        difference.is_near_tie
    }

    /// A row that nothing is decided about.
    const FAR: [f32; 4] = [9.0, 0.0, 0.0, 0.0];

    #[test]
    fn equal_texts_are_not_looked_at() {
        let host = trace(&[FAR], 0.0, &[(0, 0)]);
        let mut other = trace(&[FAR], 5.0, &[(0, 0)]);
        other.forwards[0].plan = 2;
        assert_eq!(compare(&host, &other), None);
    }

    #[test]
    fn tokens_that_are_close_are_a_near_tie_and_others_are_not() {
        // Sides are a little more and a little less than three errors apart.
        for (gap, near) in [(0.029, true), (0.031, false)] {
            let mut host = trace(&[FAR, [4.0, 4.0 - gap, 0.0, 0.0]], 0.0, &[(1, 0)]);
            let mut other = trace(&[FAR, [4.0, 4.0 - gap, 0.0, 0.0]], ERROR, &[(1, 1)]);
            other.forwards[0].predictions[1].token = 1;
            assert_eq!(is_near(&host, &other), near, "{gap}");
            // The same in a later forward, after one that decided nothing otherwise.
            for trace in [&mut host, &mut other] {
                let mut first = trace.forwards[0].clone();
                first.canvas.fill((-1, 0));
                trace.forwards.insert(0, first);
            }
            assert_eq!(is_near(&host, &other), near, "{gap}");
        }
    }

    #[test]
    fn a_token_that_was_drawn_against_the_logits_is_no_near_tie_by_that() {
        for (gap, near) in [(0.02, true), (3.0, false)] {
            let row = [4.0 - gap, 4.0, 0.0, 0.0];
            let host = trace(&[FAR, row], 0.0, &[(1, 0)]);
            let mut host_drew = host.clone();
            host_drew.forwards[0].predictions[1].token = 0;
            let other = trace(&[FAR, row], ERROR, &[(1, 1)]);
            assert_eq!(is_near(&host_drew, &other), near, "{gap}");
        }
    }

    #[test]
    fn one_wrong_row_does_not_excuse_itself() {
        // Its own error is as large as the gap, and by far the largest of all.
        let rows: Vec<_> = std::iter::repeat_n([20.0, 0.0, 0.0, 0.0], 40).collect();
        let host = trace(&rows, 0.0, &[(0, 0)]);
        let mut other = trace(&rows, ERROR, &[(0, 1)]);
        let wrong = &mut other.forwards[0].predictions[0];
        wrong.token = 1;
        wrong.logits = vec![19.9, 20.0, 0.0, 0.0];
        assert!(!is_near(&host, &other));
        // Nor do logits that are wrong everywhere.
        let close = [[20.0, 19.9, 0.0, 0.0]; 4];
        let host = trace(&close, 0.0, &[(0, 0)]);
        let mut other = trace(&close, 0.5, &[(0, 1)]);
        other.forwards[0].predictions[0].token = 1;
        assert!(!is_near(&host, &other));
    }

    #[test]
    fn thresholds_are_compared_as_leads() {
        // A lead of `l` over one other token at -l/2; the other two do not count.
        let row = |lead: f32| {
            let half = lead / 2.0;
            [half, -half, -60.0, -60.0]
        };
        let at = 9.0_f32.ln();
        for (above, near) in [(0.01, true), (0.04, false)] {
            let mut rows = vec![FAR; 60];
            rows[1] = row(at + above);
            let host = trace(&rows, 0.0, &[(1, 0)]);
            // It falls below the threshold, whatever its error.
            let mut other = trace(&rows, ERROR, &[]);
            other.forwards[0].predictions[1].logits = row(at - 0.02).to_vec();
            assert_eq!(is_near(&host, &other), near, "{above}");
        }
        // Both sides reach every threshold, or none: the difference has no reason.
        let host = trace(&[FAR, row(at + 0.01)], 0.0, &[(1, 0)]);
        let other = trace(&[FAR, row(at + 0.01)], ERROR / 4.0, &[]);
        assert!(!is_near(&host, &other));
    }

    #[test]
    fn the_most_confident_of_two_positions_is_a_decision() {
        for (gap, near) in [(0.02, true), (0.1, false)] {
            // The error of one row does not count for much among many.
            let mut rows = vec![FAR; 60];
            rows[1] = [0.3, 0.0, 0.0, 0.0];
            rows[2] = [0.3 - gap, 0.0, 0.0, 0.0];
            let host = trace(&rows, 0.0, &[(1, 0)]);
            let mut other = trace(&rows, ERROR, &[(2, 0)]);
            other.forwards[0].predictions[2].logits[0] += 2.0 * gap;
            assert_eq!(is_near(&host, &other), near, "{gap}");
        }
    }

    #[test]
    fn what_is_right_of_an_end_that_is_a_near_tie_is_explained() {
        let rows = [[4.0, 0.0, 0.0, 3.99], FAR];
        let host = trace(&rows, 0.0, &[(0, 0), (1, 0)]);
        let mut other = trace(&rows, ERROR, &[(0, 3)]);
        other.forwards[0].predictions[0].token = 3;
        assert!(is_near(&host, &other));
        // Without the end token it is not.
        let mut other = trace(&rows, ERROR, &[(0, 2)]);
        other.forwards[0].predictions[0].token = 2;
        assert!(!is_near(&host, &other));
    }

    #[test]
    fn other_plans_and_other_texts_without_a_decision_are_errors() {
        let host = trace(&[FAR], 0.0, &[(0, 0)]);
        let mut other = trace(&[FAR], ERROR, &[(0, 0)]);
        other.output = vec![7];
        assert!(!is_near(&host, &other));
        other.forwards[0].plan = 2;
        assert!(!is_near(&host, &other));
        // A position that nothing predicted.
        let mut other = trace(&[FAR], ERROR, &[]);
        other.forwards[0].predictions.clear();
        assert!(!is_near(&host, &other));
    }

    #[test]
    fn a_trace_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let written = trace(&[FAR, FAR], 0.5, &[(0, 0)]);
        written.write(&dir.path().join("0"));
        assert_eq!(Trace::read(&dir.path().join("0")), written);
    }
}
