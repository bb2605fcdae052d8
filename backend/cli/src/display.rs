//! What stderr shows while a canvas is decoded.

use ggml_llada_npu::decode::Stage;

use crate::interrupt;
use crate::output;
use crate::utf8::Utf8Stream;
use crate::vocab::{Token, Vocab};

const BAR_WIDTH: usize = 40;
const CLEAR_LINE: &str = "\r\x1b[K";
const ENTER_ALTERNATE_SCREEN: &str = "\x1b[?1049h";
const HOME_AND_CLEAR: &str = "\x1b[H\x1b[J";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";
const MASKED: char = '·';

/// The generated part of the canvas after a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    /// Token of every generated position.
    pub(crate) tokens: &'a [Token],
    /// Stage of every generated position.
    pub(crate) stages: &'a [Stage],
    /// Masked positions left to decode.
    pub(crate) n_masked: usize,
    /// Forwards made so far.
    pub(crate) n_forwards: u32,
}

/// What is shown, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Nothing.
    Quiet,
    /// One line a step: `--diffusion-visual` without a terminal.
    Lines,
    /// A bar that redraws itself.
    Bar,
    /// The canvas on the terminal's alternate screen: `--diffusion-visual`.
    Screen,
}

/// The display of one generation; it goes when it is dropped.
#[derive(Debug)]
pub(crate) struct Display {
    kind: Kind,
}

impl Display {
    /// Chooses and begins a display.
    pub(crate) fn start(visual: bool) -> Self {
        let kind = match (visual, output::stderr_is_terminal()) {
            (false, false) => Kind::Quiet,
            (true, false) => Kind::Lines,
            (false, true) => Kind::Bar,
            (true, true) => Kind::Screen,
        };
        if kind == Kind::Screen {
            interrupt::set_alternate_screen(true);
            output::raw(ENTER_ALTERNATE_SCREEN);
        }
        Self { kind }
    }

    /// Returns whether the answer has to wait until the display ends.
    pub(crate) fn owns_terminal(&self) -> bool {
        self.kind == Kind::Screen && output::stdout_is_terminal()
    }

    /// Shows the canvas after a step.
    pub(crate) fn step(&self, vocab: &Vocab, frame: Frame<'_>) {
        match self.kind {
            Kind::Quiet => {}
            Kind::Lines => output::note(format_args!(
                "step {}: {} of {} tokens masked",
                frame.n_forwards,
                frame.n_masked,
                frame.tokens.len()
            )),
            Kind::Bar => output::raw(&format!("{CLEAR_LINE}{}", bar(frame))),
            Kind::Screen => output::raw(&format!(
                "{HOME_AND_CLEAR}{}\n\n{}\n",
                bar(frame),
                canvas_text(|token| vocab.piece(token), frame)
            )),
        }
    }

    /// Makes way for text on the same terminal; a bar does not come back.
    pub(crate) fn give_way(&mut self) {
        if self.kind == Kind::Bar && output::stdout_is_terminal() {
            self.finish();
        }
    }

    /// Removes the display.
    pub(crate) fn finish(&mut self) {
        match std::mem::replace(&mut self.kind, Kind::Quiet) {
            Kind::Quiet | Kind::Lines => {}
            Kind::Bar => output::raw(CLEAR_LINE),
            Kind::Screen => {
                output::raw(interrupt::LEAVE_ALTERNATE_SCREEN);
                interrupt::set_alternate_screen(false);
            }
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Returns `decoding [====    ] 50 % · 12 forwards`.
fn bar(frame: Frame<'_>) -> String {
    let n_tokens = frame.tokens.len().max(1);
    let n_done = n_tokens.saturating_sub(frame.n_masked);
    let filled = n_done * BAR_WIDTH / n_tokens;
    format!(
        "decoding [{}{}] {} % · {} forwards",
        "=".repeat(filled),
        " ".repeat(BAR_WIDTH - filled),
        n_done * 100 / n_tokens,
        frame.n_forwards
    )
}

/// Returns the canvas as text: masked positions as dots, what may still change dimmed. Control characters other than line
/// breaks and tabs are left out, since a model must not steer the terminal.
fn canvas_text(piece: impl Fn(Token) -> Vec<u8>, frame: Frame<'_>) -> String {
    let mut text = String::new();
    let mut stream = Utf8Stream::default();
    let mut stage_before = Stage::Stable;
    for (&token, &stage) in frame.tokens.iter().zip(frame.stages) {
        if stage != stage_before {
            text += &stream.finish();
            text += if stage == Stage::Stable { PLAIN } else { DIM };
            stage_before = stage;
        }
        if stage == Stage::Invisible {
            text.push(MASKED);
        } else {
            let visible = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
            text.extend(stream.push(&piece(token)).chars().filter(visible));
        }
    }
    text + &stream.finish() + PLAIN
}

#[cfg(test)]
mod tests {
    use ggml_llada_npu::decode::Stage::{Invisible, Stable, Visible};

    use super::{DIM, Frame, PLAIN, bar, canvas_text};

    #[test]
    fn the_bar_fills_as_masks_vanish() {
        let frame = |n_masked| Frame {
            tokens: &[0; 8],
            stages: &[Invisible; 8],
            n_masked,
            n_forwards: 3,
        };
        let widths: Vec<_> = [8, 4, 0, 9]
            .map(|n| bar(frame(n)).matches('=').count())
            .to_vec();
        assert_eq!(widths, [0, 20, 40, 0]);
        assert!(bar(frame(4)).ends_with("50 % · 3 forwards"));
    }

    #[test]
    fn characters_are_whole_and_masks_are_dots() {
        let pieces: [&[u8]; 4] = [b"a\x1b[31m\n", b"\xc3", b"\xa9", b"?"];
        let frame = Frame {
            tokens: &[0, 1, 2, 3, 1],
            stages: &[Stable, Stable, Stable, Invisible, Visible],
            n_masked: 1,
            n_forwards: 1,
        };
        let text = canvas_text(
            |token| pieces[usize::try_from(token).expect("an index")].to_vec(),
            frame,
        );
        assert_eq!(text, format!("a[31m\né{DIM}·{DIM}\u{fffd}{PLAIN}"));
    }
}
