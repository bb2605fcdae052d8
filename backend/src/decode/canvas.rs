//! The text under construction: tokens, stages, and where it ends.
//!
//! ```text
//!                 draft                     commit visible              stabilise
//!      Invisible ───────► Draft     ┌──────────────────────► Visible ──────────────► Stable
//!        │  ▲ ▲  ◄─────── │         │                        │  ▲  │                   ▲
//!        │  │ │    drop   └─────────┤                replace └──┘  │                   │
//!        │  │ └─────────────────────┼──────────────────────────────┘ remask            │
//!        └──┼───────────────────────┤                                                  │
//!           prompt is Stable        └──────────────────────────────────────────────────┘ commit stable
//!
//!                    draft   drop       commit visible   commit stable   replace   remask      stabilise
//!      Invisible     Draft   –          Visible          Stable          –         –           –
//!      Draft         –       Invisible  Visible          Stable          –         –           –
//!      Visible       –       –          –                –               Visible   Invisible   Stable
//!      Stable        –       –          –                –               –         –           –
//! ```
//!
//! Everything else is an error and changes nothing.

use std::ops::Range;

use super::error::DecodeError;
use super::event::{Event, Stage};
use super::params::Resolved;
use super::plan::Token;

/// What happens to a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A lookahead position stands unmasked for the time being.
    Draft(Token),
    /// A draft is masked again.
    Drop,
    /// A token is committed that may still change.
    CommitVisible(Token),
    /// A token is committed for good.
    CommitStable(Token),
    /// Revision found another token.
    Replace(Token),
    /// Revision found the token improbable.
    Remask,
    /// The token is final.
    Stabilise,
}

impl Change {
    /// Returns the stage after the change, `None` when it is illegal in `stage`.
    const fn after(self, stage: Stage) -> Option<Stage> {
        match (stage, self) {
            (Stage::Invisible, Self::Draft(_)) => Some(Stage::Draft),
            (Stage::Draft, Self::Drop) | (Stage::Visible, Self::Remask) => Some(Stage::Invisible),
            (Stage::Invisible | Stage::Draft, Self::CommitVisible(_))
            | (Stage::Visible, Self::Replace(_)) => Some(Stage::Visible),
            (Stage::Invisible | Stage::Draft, Self::CommitStable(_))
            | (Stage::Visible, Self::Stabilise) => Some(Stage::Stable),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Draft(_) => "draft",
            Self::Drop => "drop",
            Self::CommitVisible(_) => "commit visible",
            Self::CommitStable(_) => "commit stable",
            Self::Replace(_) => "replace",
            Self::Remask => "remask",
            Self::Stabilise => "stabilise",
        }
    }
}

/// Prompt and generated positions.
///
/// # Invariants
/// * A position is [`Stage::Invisible`] iff its token stands for "masked"; prompt positions are [`Stage::Stable`].
/// * After [`Canvas::settle`], `limit` is one past the leftmost committed EOS or EoT, else the length, and `n_masked`
///   counts the masked positions below `limit`. No draft stands right of it.
#[derive(Debug)]
pub(super) struct Canvas {
    tokens: Vec<Token>,
    stages: Vec<Stage>,
    /// Counts what happened to each position, drafts apart.
    versions: Vec<u32>,
    n_prompt: u32,
    mask: Token,
    ends: [Option<Token>; 2],
    limit: u32,
    n_masked: u32,
    n_committed: u32,
    n_prefix: u32,
}

impl Canvas {
    pub(super) fn new(resolved: &Resolved, prompt: &[Token]) -> Self {
        let n_canvas = resolved.n_canvas() as usize;
        let mut tokens = Vec::with_capacity(n_canvas);
        tokens.extend_from_slice(prompt);
        tokens.resize(n_canvas, resolved.mask);
        let mut stages = vec![Stage::Stable; prompt.len()];
        stages.resize(n_canvas, Stage::Invisible);
        // INVARIANT: nothing is committed, so the canvas ends at its length.
        Self {
            tokens,
            stages,
            versions: vec![0; n_canvas],
            n_prompt: resolved.n_prompt,
            mask: resolved.mask,
            ends: [resolved.eos, resolved.eot],
            limit: resolved.n_canvas(),
            n_masked: resolved.n_gen,
            n_committed: 0,
            n_prefix: 0,
        }
    }

    pub(super) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    pub(super) fn stages(&self) -> &[Stage] {
        &self.stages
    }

    pub(super) const fn mask(&self) -> Token {
        self.mask
    }

    /// Returns one past the last position that still belongs to the text.
    pub(super) const fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the number of masked positions below the limit.
    pub(super) const fn n_masked(&self) -> u32 {
        self.n_masked
    }

    /// Returns the number of commits so far, those right of an EOS and those of positions masked again included.
    pub(super) const fn n_committed(&self) -> u32 {
        self.n_committed
    }

    pub(super) fn token(&self, pos: u32) -> Token {
        self.tokens[pos as usize]
    }

    pub(super) fn stage(&self, pos: u32) -> Stage {
        self.stages[pos as usize]
    }

    /// Returns a number that changes whenever a position is committed, changed, or leaves the text.
    pub(super) fn version(&self, pos: u32) -> u32 {
        self.versions[pos as usize]
    }

    /// Returns whether a position is not committed.
    pub(super) fn is_masked(&self, pos: u32) -> bool {
        matches!(self.stage(pos), Stage::Invisible | Stage::Draft)
    }

    /// Returns the masked positions of a range, ascending; drafts are masked.
    pub(super) fn masked(&self, range: Range<u32>) -> impl Iterator<Item = u32> {
        range.filter(|&pos| self.is_masked(pos))
    }

    /// Returns the first masked position below the limit.
    pub(super) fn frontier(&self) -> Option<u32> {
        self.masked(self.n_prompt..self.limit).next()
    }

    /// Returns the generated tokens that are final: up to the first one that is not stable, EOS or EoT, excluding it.
    pub(super) fn output(&self) -> &[Token] {
        let start = self.n_prompt as usize;
        &self.tokens[start..start + self.n_prefix as usize]
    }

    /// Returns whether a token ends the text.
    pub(super) fn is_end(&self, token: Token) -> bool {
        self.ends.contains(&Some(token))
    }

    /// Changes a position and says so.
    ///
    /// # Errors
    /// [`DecodeError::Transition`] when the change is illegal in the position's stage; nothing changes then.
    pub(super) fn change(
        &mut self,
        pos: u32,
        change: Change,
        events: &mut Vec<Event>,
    ) -> Result<(), DecodeError> {
        let before = self.stage(pos);
        let stage = change.after(before).ok_or(DecodeError::Transition {
            pos,
            stage: before,
            change: change.name(),
        })?;
        self.stages[pos as usize] = stage;
        if !matches!(change, Change::Draft(_) | Change::Drop) {
            self.versions[pos as usize] += 1;
        }
        match change {
            Change::Draft(token) => self.tokens[pos as usize] = token,
            Change::Drop => self.tokens[pos as usize] = self.mask,
            Change::CommitVisible(token) | Change::CommitStable(token) => {
                self.tokens[pos as usize] = token;
                self.n_committed += 1;
                events.push(Event::Committed { pos, token, stage });
            }
            Change::Replace(token) => {
                self.tokens[pos as usize] = token;
                events.push(Event::Replaced { pos, token });
            }
            Change::Remask => {
                self.tokens[pos as usize] = self.mask;
                events.push(Event::Remasked { pos });
            }
            Change::Stabilise => {}
        }
        Ok(())
    }

    /// Brings limit, mask count and final prefix up to date after the changes of a step.
    pub(super) fn settle(&mut self, events: &mut Vec<Event>) {
        let n_canvas = self.n_canvas();
        let ended = (self.n_prompt..n_canvas)
            .find(|&pos| !self.is_masked(pos) && self.is_end(self.token(pos)));
        let limit = ended.map_or(n_canvas, |pos| pos + 1);
        for pos in limit..self.limit {
            self.versions[pos as usize] += 1;
        }
        self.limit = limit;
        for pos in limit as usize..n_canvas as usize {
            if self.stages[pos] == Stage::Draft {
                self.stages[pos] = Stage::Invisible;
                self.tokens[pos] = self.mask;
            }
        }
        self.n_masked = (self.n_prompt..self.limit)
            .map(|pos| u32::from(self.is_masked(pos)))
            .sum();
        let stop = |&pos: &u32| self.stage(pos) != Stage::Stable || self.is_end(self.token(pos));
        let start = self.n_prompt + self.n_prefix;
        let end = (start..self.limit)
            .find(stop)
            .unwrap_or(self.limit.max(start));
        let len = end - self.n_prompt;
        if len > self.n_prefix {
            self.n_prefix = len;
            events.push(Event::StablePrefix { len });
        }
    }

    fn n_canvas(&self) -> u32 {
        u32::try_from(self.tokens.len()).expect("made from a u32")
    }
}

#[cfg(test)]
mod tests {
    use super::super::Params;
    use super::super::tests::machine::{EOS, traits};
    use super::*;

    fn canvas() -> Canvas {
        let resolved = Params::default()
            .resolve(&traits(false, true), 1, 6)
            .unwrap();
        Canvas::new(&resolved, &[5])
    }

    const CHANGES: [Change; 7] = [
        Change::Draft(8),
        Change::Drop,
        Change::CommitVisible(8),
        Change::CommitStable(8),
        Change::Replace(9),
        Change::Remask,
        Change::Stabilise,
    ];

    /// Brings position 2 to a stage.
    fn at(stage: Stage) -> Canvas {
        let mut canvas = canvas();
        let change = match stage {
            Stage::Invisible => return canvas,
            Stage::Draft => Change::Draft(7),
            Stage::Visible => Change::CommitVisible(7),
            Stage::Stable => Change::CommitStable(7),
        };
        canvas.change(2, change, &mut Vec::new()).unwrap();
        canvas
    }

    #[test]
    fn every_stage_takes_its_changes_and_refuses_all_others() {
        use Stage::{Draft, Invisible, Stable, Visible};
        let table: [(Stage, [Option<Stage>; 7]); 4] = [
            (
                Invisible,
                [
                    Some(Draft),
                    None,
                    Some(Visible),
                    Some(Stable),
                    None,
                    None,
                    None,
                ],
            ),
            (
                Draft,
                [
                    None,
                    Some(Invisible),
                    Some(Visible),
                    Some(Stable),
                    None,
                    None,
                    None,
                ],
            ),
            (
                Visible,
                [
                    None,
                    None,
                    None,
                    None,
                    Some(Visible),
                    Some(Invisible),
                    Some(Stable),
                ],
            ),
            (Stable, [None; 7]),
        ];
        for (stage, row) in table {
            for (change, expected) in CHANGES.into_iter().zip(row) {
                let mut canvas = at(stage);
                let before = (canvas.tokens.clone(), canvas.versions.clone());
                let mut events = Vec::new();
                let result = canvas.change(2, change, &mut events);
                match expected {
                    Some(after) => {
                        assert_eq!(
                            (result, canvas.stage(2)),
                            (Ok(()), after),
                            "{stage:?} {change:?}"
                        );
                        assert_eq!(canvas.token(2) == canvas.mask(), after == Invisible);
                        let counts = !matches!(change, Change::Draft(_) | Change::Drop);
                        assert_eq!(
                            canvas.version(2) != before.1[2],
                            counts,
                            "{stage:?} {change:?}"
                        );
                    }
                    None => {
                        let change = change.name();
                        let error = DecodeError::Transition {
                            pos: 2,
                            stage,
                            change,
                        };
                        assert_eq!(result, Err(error));
                        assert_eq!((&canvas.tokens, canvas.stage(2)), (&before.0, stage));
                        assert!(events.is_empty());
                    }
                }
            }
        }
        let mut canvas = canvas();
        for change in CHANGES {
            canvas.change(0, change, &mut Vec::new()).unwrap_err();
        }
    }

    #[test]
    fn the_text_ends_at_the_leftmost_end_and_returns_when_it_goes() {
        let mut canvas = canvas();
        let mut events = Vec::new();
        for (pos, change) in [
            (1, Change::CommitStable(7)),
            (3, Change::CommitVisible(EOS)),
            (4, Change::CommitVisible(8)),
            (5, Change::Draft(9)),
        ] {
            canvas.change(pos, change, &mut events).unwrap();
        }
        let version = canvas.version(4);
        canvas.settle(&mut events);
        assert_eq!(
            (canvas.limit(), canvas.n_masked(), canvas.frontier()),
            (4, 1, Some(2))
        );
        assert_eq!(
            canvas.stage(5),
            Stage::Invisible,
            "drafts right of the end are dropped"
        );
        assert_ne!(canvas.version(4), version, "it left the text");
        assert_eq!(canvas.output(), [7]);
        canvas.change(3, Change::Replace(6), &mut events).unwrap();
        canvas.settle(&mut events);
        assert_eq!((canvas.limit(), canvas.n_masked()), (7, 3));
    }

    #[test]
    fn visible_tokens_are_not_final_text() {
        let mut canvas = canvas();
        let mut events = Vec::new();
        canvas
            .change(1, Change::CommitVisible(7), &mut events)
            .unwrap();
        canvas
            .change(2, Change::CommitStable(8), &mut events)
            .unwrap();
        canvas.settle(&mut events);
        assert!(canvas.output().is_empty());
        canvas.change(1, Change::Stabilise, &mut events).unwrap();
        canvas.settle(&mut events);
        assert_eq!(canvas.output(), [7, 8]);
    }
}
