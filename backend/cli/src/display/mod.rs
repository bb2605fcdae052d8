//! What stderr shows while a canvas is decoded.

mod screen;

use ggml_llada_npu::decode::Stage;

use crate::interrupt;
use crate::output;
use crate::vocab::{Token, Vocab};
use screen::Terminal;

const BAR_WIDTH: usize = 40;
const CLEAR_LINE: &str = "\r\x1b[K";
/// Enters the alternate screen, empties it and hides the cursor.
const ENTER_SCREEN: &str = "\x1b[?1049h\x1b[2J\x1b[?25l";
/// Columns and lines of a terminal that does not tell.
const USUAL_SIZE: (usize, usize) = (80, 24);

/// The generated part of the canvas after a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    /// Token of every generated position.
    pub(crate) tokens: &'a [Token],
    /// Stage of every generated position.
    pub(crate) stages: &'a [Stage],
    /// Whether a revision changed the position.
    pub(crate) revised: &'a [bool],
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
    /// What the screen shows.
    picture: String,
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
            output::raw(ENTER_SCREEN);
        }
        Self {
            kind,
            picture: String::new(),
        }
    }

    /// Returns whether the answer has to wait until the display ends.
    pub(crate) fn owns_terminal(&self) -> bool {
        self.kind == Kind::Screen && output::stdout_is_terminal()
    }

    /// Shows the canvas after a step.
    pub(crate) fn step(&mut self, vocab: &Vocab, frame: Frame<'_>) {
        match self.kind {
            Kind::Quiet => {}
            Kind::Lines => output::note(format_args!(
                "step {}: {} of {} tokens masked",
                frame.n_forwards,
                frame.n_masked,
                frame.tokens.len()
            )),
            Kind::Bar => output::raw(&format!("{CLEAR_LINE}{}", bar(frame))),
            Kind::Screen => {
                let piece = |token| vocab.piece(token);
                let picture = screen::picture(&bar(frame), piece, frame, terminal());
                if picture != self.picture {
                    output::raw(&picture);
                    self.picture = picture;
                }
            }
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

/// Returns size and abilities of the terminal of stderr, which may change at any time.
fn terminal() -> Terminal {
    let size = terminal_size::terminal_size_of(std::io::stderr());
    let (width, height) = size.map_or(USUAL_SIZE, |(width, height)| {
        (width.0.into(), height.0.into())
    });
    let or_usual = |n: usize, usual| if n == 0 { usual } else { n };
    Terminal {
        width: or_usual(width, USUAL_SIZE.0),
        height: or_usual(height, USUAL_SIZE.1),
        colour: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use ggml_llada_npu::decode::Stage::Invisible;

    use super::{Frame, bar};

    #[test]
    fn the_bar_fills_as_masks_vanish() {
        let frame = |n_masked| Frame {
            tokens: &[0; 8],
            stages: &[Invisible; 8],
            revised: &[],
            n_masked,
            n_forwards: 3,
        };
        let widths: Vec<_> = [8, 4, 0, 9]
            .map(|n| bar(frame(n)).matches('=').count())
            .to_vec();
        assert_eq!(widths, [0, 20, 40, 0]);
        assert!(bar(frame(4)).ends_with("50 % · 3 forwards"));
    }
}
