//! The text under construction: tokens, stages, and where it ends.

use std::ops::Range;

use super::event::{Event, Stage};
use super::params::Resolved;
use super::plan::Token;

/// Prompt and generated positions.
///
/// # Invariants
/// * A position is [`Stage::Invisible`] iff its token stands for "masked"; prompt positions are [`Stage::Stable`].
/// * After [`Canvas::settle`], `limit` is one past the leftmost committed EOS or EoT, else the length, and `n_masked`
///   counts the masked positions below `limit`.
#[derive(Debug)]
pub(super) struct Canvas {
    tokens: Vec<Token>,
    stages: Vec<Stage>,
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

    /// Returns the number of commits so far, those right of an EOS included.
    pub(super) const fn n_committed(&self) -> u32 {
        self.n_committed
    }

    pub(super) fn token(&self, pos: u32) -> Token {
        self.tokens[pos as usize]
    }

    pub(super) fn is_masked(&self, pos: u32) -> bool {
        self.stages[pos as usize] == Stage::Invisible
    }

    /// Returns the masked positions of a range, ascending.
    pub(super) fn masked(&self, range: Range<u32>) -> impl Iterator<Item = u32> {
        range.filter(|&pos| self.is_masked(pos))
    }

    /// Returns the first masked position below the limit.
    pub(super) fn frontier(&self) -> Option<u32> {
        self.masked(self.n_prompt..self.limit).next()
    }

    /// Returns the generated tokens that are final: up to the first mask, EOS or EoT, excluding it.
    pub(super) fn output(&self) -> &[Token] {
        let start = self.n_prompt as usize;
        &self.tokens[start..start + self.n_prefix as usize]
    }

    /// Puts a token at a masked position, for good.
    pub(super) fn commit(&mut self, pos: u32, token: Token, events: &mut Vec<Event>) {
        debug_assert!(self.is_masked(pos), "position {pos} is committed twice");
        let stage = Stage::Stable;
        self.tokens[pos as usize] = token;
        self.stages[pos as usize] = stage;
        self.n_committed += 1;
        events.push(Event::Committed { pos, token, stage });
    }

    /// Brings limit, mask count and final prefix up to date after the commits of a step.
    pub(super) fn settle(&mut self, events: &mut Vec<Event>) {
        let ended = (self.n_prompt..self.limit)
            .find(|&pos| !self.is_masked(pos) && self.is_end(self.token(pos)));
        if let Some(pos) = ended {
            self.limit = pos + 1;
        }
        self.n_masked = (self.n_prompt..self.limit)
            .map(|pos| u32::from(self.is_masked(pos)))
            .sum();
        let stop = |&pos: &u32| self.is_masked(pos) || self.is_end(self.token(pos));
        let end = (self.n_prompt..self.limit).find(stop).unwrap_or(self.limit);
        let len = end - self.n_prompt;
        if len > self.n_prefix {
            self.n_prefix = len;
            events.push(Event::StablePrefix { len });
        }
    }

    fn is_end(&self, token: Token) -> bool {
        self.ends.contains(&Some(token))
    }
}
