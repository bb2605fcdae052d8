//! Comparing generated texts with those of the reference.
//!
//! Two implementations that round differently may decide differently where two numbers are nearly equal. The reference says
//! how close its closest decision was. A text that differs counts as a near-tie where that is below a stated bound, and as
//! an error elsewhere; near-ties must stay rare.

use crate::engine::Generated;
use crate::numpy::Decoded;

/// Largest share of near-ties.
const MAX_NEAR_TIES: f64 = 0.02;

/// How strictly texts are compared.
#[derive(Clone, Copy, Debug)]
pub struct Rule<'a> {
    /// Tokens that end a text.
    pub ends: &'a [i32],
    /// Decisions closer than this may fall the other way.
    pub near_tie: f64,
    /// What besides the text has to be equal.
    pub same: Same,
}

/// What besides the text has to be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Same {
    /// Nothing.
    Text,
    /// The positions that each forward commits; the reference may go on where the engine has found the end.
    Commits,
    /// Those, the number of forwards, and the number of rows.
    Everything,
}

/// Count of comparisons.
#[derive(Debug, Default)]
pub struct Tally {
    n: usize,
    n_tokens: usize,
    near_ties: Vec<String>,
}

impl Tally {
    /// Compares a generation with the reference's.
    ///
    /// # Panics
    /// When they differ and no decision of the reference was close.
    pub fn compare(&mut self, what: &str, expected: &Decoded, got: &Generated, rule: Rule<'_>) {
        self.n += 1;
        self.n_tokens += got.output.len();
        let Some(difference) = difference(expected, got, rule) else {
            return;
        };
        let gap = |gap: Option<f64>| gap.unwrap_or(f64::INFINITY);
        let closest = gap(expected.token_gap).min(gap(expected.order_gap));
        let message = format!("{what}: {difference} (closest decision {closest:e})");
        assert!(closest < rule.near_tie, "{message}");
        self.near_ties.push(message);
    }

    /// Prints the counts.
    ///
    /// # Panics
    /// When near-ties are not rare, or nothing was compared.
    #[expect(clippy::print_stdout, reason = "what a test found")]
    pub fn finish(&self, title: &str) {
        let n_near = self.near_ties.len();
        println!(
            "{title}: {} texts, {} tokens, {n_near} near-ties",
            self.n, self.n_tokens
        );
        for message in &self.near_ties {
            println!("  near-tie: {message}");
        }
        assert!(self.n_tokens > 0, "{title}: nothing was compared");
        let limit = MAX_NEAR_TIES * self.n as f64;
        assert!(
            n_near as f64 <= limit,
            "{title}: {n_near} near-ties in {}",
            self.n
        );
    }
}

/// Returns the text before its first end token.
#[must_use]
pub fn before_end<'a>(tokens: &'a [i32], ends: &[i32]) -> &'a [i32] {
    let end = tokens.iter().position(|token| ends.contains(token));
    &tokens[..end.unwrap_or(tokens.len())]
}

fn difference(expected: &Decoded, got: &Generated, rule: Rule<'_>) -> Option<String> {
    let text = before_end(&expected.tokens, rule.ends);
    if text != got.output {
        return Some(format!("expected {text:?}, got {:?}", got.output));
    }
    let n_forwards = got.commits.len();
    if rule.same != Same::Text {
        let commits = &expected.commits;
        if commits.get(..n_forwards) != Some(&got.commits[..]) {
            return Some(format!("commits {:?} instead of {commits:?}", got.commits));
        }
    }
    if rule.same == Same::Everything {
        let counts = &got.report.counts;
        let rows = counts.rows_dense + counts.rows_revision;
        if (n_forwards, rows) != (expected.forwards as usize, expected.rows) {
            return Some(format!(
                "{n_forwards} forwards of {rows} rows instead of {} of {}",
                expected.forwards, expected.rows
            ));
        }
    }
    None
}
