//! The answer on stdout, as it becomes final.

use crate::error::Error;
use crate::output;
use crate::utf8::Utf8Stream;
use crate::vocab::{Token, Vocab};

/// Prints stable text, whole characters only.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    vocab: &'a Vocab,
    stream: Utf8Stream,
    n_tokens: usize,
    held: Option<String>,
    last: Option<char>,
}

impl<'a> Answer<'a> {
    /// Returns an answer of which nothing is printed yet. With `hold` the text is kept until [`Answer::finish`], because
    /// the terminal shows something else meanwhile.
    pub(crate) fn new(vocab: &'a Vocab, hold: bool) -> Self {
        Self {
            vocab,
            stream: Utf8Stream::default(),
            n_tokens: 0,
            held: hold.then(String::new),
            last: None,
        }
    }

    /// Returns whether a call with these tokens would print something new.
    pub(crate) fn grows(&self, stable: &[Token]) -> bool {
        stable.len() > self.n_tokens
    }

    /// Prints what is new in the stable prefix, which only grows.
    ///
    /// # Errors
    /// [`Error::StdoutClosed`], [`Error::Stdout`].
    pub(crate) fn stable(&mut self, stable: &[Token]) -> Result<(), Error> {
        let mut text = String::new();
        for &token in stable.iter().skip(self.n_tokens) {
            text += &self.stream.push(&self.vocab.piece(token));
        }
        self.n_tokens = self.n_tokens.max(stable.len());
        self.print(&text)
    }

    /// Ends the answer with a line break; without `complete`, only when there is text.
    ///
    /// # Errors
    /// As [`Answer::stable`].
    pub(crate) fn finish(mut self, complete: bool) -> Result<(), Error> {
        let mut rest = self.stream.finish();
        let last = rest.chars().last().or(self.last);
        if last != Some('\n') && (complete || last.is_some()) {
            rest.push('\n');
        }
        output::text(&(self.held.take().unwrap_or_default() + &rest))
    }

    fn print(&mut self, text: &str) -> Result<(), Error> {
        let Some(last) = text.chars().last() else {
            return Ok(());
        };
        self.last = Some(last);
        match &mut self.held {
            Some(held) => {
                held.push_str(text);
                Ok(())
            }
            None => output::text(text),
        }
    }
}
