//! Which predictions of the current block commit.
//!
//! A rule says which qualify; near those that do, a lower bar may hold; where none does, the most confident commits, so that
//! every step makes progress. Ties go to the lower position.
//!
//! *Stability*: a token that earlier steps predicted for the same position gains. With `credit` the decayed sum of
//! `confidence^0.2` over the steps before, its logit counts as if raised by `w ln(credit + 1)`, which multiplies its odds by
//! `(credit + 1)^w`; another token starts at 0.

use super::params::{CommitParams, CommitRule};
use super::plan::{Prediction, Token};

/// Share of the credit that is left after a step.
const CREDIT_DECAY: f32 = 0.8;
/// Exponent of a confidence that becomes credit.
const CREDIT_POWER: f32 = 0.2;

/// A prediction that commits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    /// Index into the predictions.
    pub(super) index: usize,
    /// Its confidence, with what stability adds.
    pub(super) confidence: f32,
}

/// Chooses; remembers what stability needs.
#[derive(Debug)]
pub(super) struct Committer {
    params: CommitParams,
    /// By position: the token of the last prediction and its credit.
    credits: Vec<(Token, f32)>,
    confidences: Vec<f32>,
    order: Vec<usize>,
    qualified: Vec<bool>,
    chosen: Vec<Choice>,
}

impl Committer {
    pub(super) fn new(params: CommitParams, n_canvas: u32) -> Self {
        let n_credits = if params.stability > 0.0 { n_canvas } else { 0 };
        let (confidences, order, qualified, chosen) = Default::default();
        Self {
            params,
            credits: vec![(-1, 0.0); n_credits as usize],
            confidences,
            order,
            qualified,
            chosen,
        }
    }

    /// Returns those of `predictions`, ascending by position, that commit. Where `may` says no, a prediction commits only when
    /// nothing else does.
    pub(super) fn choose(
        &mut self,
        predictions: &[Prediction],
        may: impl Fn(&Prediction) -> bool,
    ) -> &[Choice] {
        self.confidences.clear();
        for prediction in predictions {
            let confidence = self.stabilised(prediction);
            self.confidences.push(confidence);
        }
        self.qualified.clear();
        self.qualified.extend(predictions.iter().map(&may));
        self.apply_rule(predictions);
        self.lower_the_bar(predictions, may);
        self.chosen.clear();
        for (index, &confidence) in self.confidences.iter().enumerate() {
            if self.qualified[index] {
                self.chosen.push(Choice { index, confidence });
            }
        }
        if self.chosen.is_empty() {
            let choices = (0..).zip(&self.confidences);
            let best = choices
                .map(|(index, &confidence)| Choice { index, confidence })
                .reduce(|best, other| {
                    if other.confidence > best.confidence {
                        other
                    } else {
                        best
                    }
                });
            self.chosen.extend(best);
        }
        &self.chosen
    }

    /// Returns the confidence with what earlier predictions add, and remembers this one.
    fn stabilised(&mut self, prediction: &Prediction) -> f32 {
        let Some(credit) = self.credits.get_mut(prediction.pos as usize) else {
            return prediction.confidence;
        };
        if credit.0 != prediction.token {
            *credit = (prediction.token, 0.0);
        }
        let p = prediction.confidence;
        let odds = (credit.1 + 1.0).powf(self.params.stability);
        credit.1 = CREDIT_DECAY * credit.1 + p.max(0.0).powf(CREDIT_POWER);
        if p > 0.0 && p < 1.0 {
            p * odds / (1.0 - p + p * odds)
        } else {
            p
        }
    }

    /// Leaves in `qualified` what the rule accepts.
    fn apply_rule(&mut self, predictions: &[Prediction]) {
        match self.params.rule {
            CommitRule::Threshold(threshold) => {
                for (qualified, &confidence) in self.qualified.iter_mut().zip(&self.confidences) {
                    *qualified &= confidence >= threshold;
                }
            }
            CommitRule::Factor(factor) => {
                self.sort_by(|this, index| this.confidences[index]);
                let passes = |&(n, &index): &(f32, &usize)| {
                    (n + 1.0) * (1.0 - self.confidences[index]) < factor
                };
                let ranks = std::iter::successors(Some(1.0f32), |n| Some(n + 1.0));
                let n = ranks.zip(&self.order).filter(passes).count();
                self.keep_first(n);
            }
            CommitRule::EntropyBound(bound) => {
                // The score of these runs is the negative entropy.
                self.sort_by(|_, index| predictions[index].score);
                let mut before = 0.0;
                let within = |index: &&usize| {
                    let fits = before <= bound;
                    before -= predictions[**index].score;
                    fits
                };
                let n = self.order.iter().take_while(within).count();
                self.keep_first(n);
            }
        }
    }

    /// Orders what still qualifies, the largest key first; the sort is stable.
    fn sort_by(&mut self, key: impl Fn(&Self, usize) -> f32) {
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend((0..self.qualified.len()).filter(|&index| self.qualified[index]));
        // The addition makes -0 a 0, which `total_cmp` would put below it.
        order.sort_by(|&a, &b| (key(self, b) + 0.0).total_cmp(&(key(self, a) + 0.0)));
        self.order = order;
    }

    fn keep_first(&mut self, n: usize) {
        for &index in self.order.iter().skip(n) {
            self.qualified[index] = false;
        }
    }

    /// Positions near one that qualifies need less.
    fn lower_the_bar(&mut self, predictions: &[Prediction], may: impl Fn(&Prediction) -> bool) {
        let CommitParams {
            local_radius,
            local_threshold,
            ..
        } = self.params;
        if local_radius == 0 {
            return;
        }
        let anchors: Vec<u32> = predictions
            .iter()
            .zip(&self.qualified)
            .filter(|(_, qualified)| **qualified)
            .map(|(prediction, _)| prediction.pos)
            .collect();
        for (index, prediction) in predictions.iter().enumerate() {
            let near = |&anchor: &u32| anchor.abs_diff(prediction.pos) <= local_radius;
            self.qualified[index] |= self.confidences[index] >= local_threshold
                && may(prediction)
                && anchors.iter().any(near);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(params: CommitParams, confidences: &[f32]) -> Vec<usize> {
        let predictions = predictions(confidences);
        let mut committer = Committer::new(params, 64);
        let choices = committer.choose(&predictions, |_| true);
        choices.iter().map(|choice| choice.index).collect()
    }

    fn predictions(confidences: &[f32]) -> Vec<Prediction> {
        let prediction = |(pos, &confidence)| Prediction {
            pos,
            token: 7,
            confidence,
            score: confidence - 1.0,
            probe: 0.0,
        };
        (0..).zip(confidences).map(prediction).collect()
    }

    fn rule(rule: CommitRule) -> CommitParams {
        CommitParams {
            rule,
            local_radius: 0,
            local_threshold: 0.75,
            stability: 0.0,
        }
    }

    #[test]
    fn a_threshold_takes_what_reaches_it_and_else_the_best() {
        let threshold = |t| rule(CommitRule::Threshold(t));
        assert_eq!(choose(threshold(0.5), &[0.5, 0.9, 0.4, 0.6]), [0, 1, 3]);
        assert_eq!(choose(threshold(0.95), &[0.5, 0.9, 0.9, 0.6]), [1]);
        assert_eq!(choose(threshold(f32::INFINITY), &[1.0, 1.0]), [0]);
        assert_eq!(choose(threshold(0.5), &[]), [0usize; 0]);
    }

    #[test]
    fn the_factor_grows_with_the_number_that_commits() {
        // (n + 1) (1 - c_n) < 1: 0.6 passes alone only (0.8), 0.7 as the second does (0.9), 0.75 as the third does not (1.0).
        let factor = |f| rule(CommitRule::Factor(f));
        assert_eq!(choose(factor(1.0), &[0.6]), [0]);
        assert_eq!(choose(factor(1.0), &[0.7, 0.9]), [0, 1]);
        assert_eq!(choose(factor(1.0), &[0.75, 0.8, 0.9]), [1, 2]);
        assert_eq!(choose(factor(1.0), &[0.2, 0.3]), [1]);
    }

    #[test]
    fn the_entropy_bound_leaves_out_the_last_of_the_sum() {
        // Entropies 0.5, 0.1, 0.2: in order 0.1, 0.2, 0.5 the sums before each are 0, 0.1, 0.3.
        let bound = |b| rule(CommitRule::EntropyBound(b));
        assert_eq!(choose(bound(0.05), &[0.5, 0.9, 0.8]), [1]);
        assert_eq!(choose(bound(0.2), &[0.5, 0.9, 0.8]), [1, 2]);
        assert_eq!(choose(bound(0.35), &[0.5, 0.9, 0.8]), [0, 1, 2]);
    }

    #[test]
    fn near_a_commit_less_is_enough() {
        let local = CommitParams {
            local_radius: 2,
            ..rule(CommitRule::Threshold(0.9))
        };
        assert_eq!(
            choose(local, &[0.8, 0.8, 0.7, 0.9, 0.7, 0.8, 0.8]),
            [1, 3, 5]
        );
        assert_eq!(choose(local, &[0.8, 0.85]), [1], "no anchor");
    }

    #[test]
    fn a_token_gains_by_being_predicted_again() {
        let stable = CommitParams {
            stability: 0.7,
            ..rule(CommitRule::Threshold(0.7))
        };
        let mut committer = Committer::new(stable, 8);
        let mut second = |confidences: &[f32]| {
            let predictions = predictions(confidences);
            committer.choose(&predictions, |_| true)[0]
        };
        assert_eq!(second(&[0.6]).confidence, 0.6);
        let again = second(&[0.6]).confidence;
        let credit = 0.6f32.powf(0.2);
        let odds = 1.5 * (1.0 + credit).powf(0.7);
        assert!((again - odds / (1.0 + odds)).abs() < 1e-6, "{again}");
        assert_eq!(second(&[1.0]).confidence, 1.0);
    }

    #[test]
    fn what_may_not_commit_does_so_only_alone() {
        let mut committer = Committer::new(rule(CommitRule::Threshold(0.5)), 8);
        let predictions = predictions(&[0.9, 0.6]);
        let chosen = |choices: &[Choice]| choices.iter().map(|c| c.index).collect::<Vec<_>>();
        let not_first = |prediction: &Prediction| prediction.pos != 0;
        assert_eq!(chosen(committer.choose(&predictions, not_first)), [1]);
        assert_eq!(chosen(committer.choose(&predictions, |_| false)), [0]);
    }
}
