//! The canvas on a terminal: which character stands where, and in which colour.
//!
//! A frame is written over the one before it, line by line, in one write and inside a synchronised update, so that nothing
//! flickers; lines are cut here, since a terminal that wraps or scrolls by itself would shift what follows.

use ggml_llada_npu::decode::Stage;
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use super::Frame;
use crate::vocab::Token;

const MASK: &str = "·";
const TAB_WIDTH: usize = 8;
/// Lines above the canvas: bar, legend, and an empty one.
const N_HEADER_LINES: usize = 3;

const BEGIN_UPDATE: &str = "\x1b[?2026h\x1b[H";
const END_UPDATE: &str = "\x1b[J\x1b[?2026l";
const END_LINE: &str = "\x1b[K\r\n";
const PLAIN: &str = "\x1b[0m";

/// Size and abilities of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terminal {
    /// Columns.
    pub(super) width: usize,
    /// Lines.
    pub(super) height: usize,
    /// Colours are wanted.
    pub(super) colour: bool,
}

/// How a character looks; the least settled first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Look {
    Masked,
    Draft,
    Visible,
    Revised,
    Stable,
}

impl Look {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Masked, "masked"),
        (Self::Draft, "draft"),
        (Self::Visible, "visible"),
        (Self::Revised, "revised"),
        (Self::Stable, "stable"),
    ];

    const fn of(stage: Stage, revised: bool) -> Self {
        match (stage, revised) {
            (Stage::Invisible, _) => Self::Masked,
            (Stage::Draft, _) => Self::Draft,
            (Stage::Visible, false) => Self::Visible,
            (Stage::Visible, true) => Self::Revised,
            (Stage::Stable, _) => Self::Stable,
        }
    }

    const fn escape(self) -> &'static str {
        match self {
            Self::Masked => "\x1b[0;2m",
            Self::Draft => "\x1b[0;35m",
            Self::Visible => "\x1b[0;33m",
            Self::Revised => "\x1b[0;1;36m",
            Self::Stable => PLAIN,
        }
    }
}

/// What the eye takes for one character.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cell {
    text: String,
    look: Look,
}

/// Returns everything that shows a frame under the line `bar`.
pub(super) fn picture(
    bar: &str,
    piece: impl Fn(Token) -> Vec<u8>,
    frame: Frame<'_>,
    terminal: Terminal,
) -> String {
    // In the last column a terminal may already have wrapped when the rest of the line is erased.
    let width = terminal.width.saturating_sub(1).max(1);
    let lines = lines(cells(piece, frame), width);
    let height = terminal.height.saturating_sub(N_HEADER_LINES).max(1);
    let shown = window(&lines, height);
    let mut pen = Pen::new(terminal.colour);
    pen.raw(BEGIN_UPDATE);
    pen.raw(&bar.chars().take(width).collect::<String>());
    pen.raw(END_LINE);
    pen.legend(width);
    pen.raw(END_LINE);
    for line in shown {
        pen.raw(END_LINE);
        for cell in line {
            pen.cell(cell);
        }
    }
    pen.rest();
    pen.raw("\x1b[K");
    pen.raw(END_UPDATE);
    pen.text
}

/// Writes text, changing colours where needed.
struct Pen {
    text: String,
    colour: bool,
    look: Look,
}

impl Pen {
    const fn new(colour: bool) -> Self {
        Self {
            text: String::new(),
            colour,
            look: Look::Stable,
        }
    }

    fn raw(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn cell(&mut self, cell: &Cell) {
        self.change(cell.look);
        self.raw(&cell.text);
    }

    fn change(&mut self, look: Look) {
        if self.colour && look != self.look {
            self.raw(look.escape());
        }
        self.look = look;
    }

    fn rest(&mut self) {
        self.change(Look::Stable);
    }

    /// The names of the looks, each looking like that; nothing without colours, which they would explain.
    fn legend(&mut self, width: usize) {
        let needed: usize = Look::ALL.iter().map(|(_, name)| name.len() + 2).sum();
        if !self.colour || needed > width {
            return;
        }
        for (look, name) in Look::ALL {
            self.change(look);
            self.raw(name);
            self.rest();
            self.raw("  ");
        }
    }
}

/// Returns the characters of the canvas. A character of several tokens is one when all of them are there, and looks like the
/// least settled one; while some are masked, those that are there show as a mask. Control characters other than line
/// breaks and tabs are left out, since a model must not steer the terminal.
fn cells(piece: impl Fn(Token) -> Vec<u8>, frame: Frame<'_>) -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut run = Run::default();
    for (index, (&token, &stage)) in frame.tokens.iter().zip(frame.stages).enumerate() {
        let look = Look::of(
            stage,
            frame.revised.get(index).is_some_and(|&revised| revised),
        );
        if look == Look::Masked {
            run.end(MASK, &mut cells);
            cells.push(Cell {
                text: MASK.to_owned(),
                look,
            });
        } else {
            run.push(&piece(token), look);
        }
    }
    run.end("\u{fffd}", &mut cells);
    cells
}

/// Bytes of neighbouring tokens.
#[derive(Default)]
struct Run {
    bytes: Vec<u8>,
    looks: Vec<Look>,
}

impl Run {
    fn push(&mut self, bytes: &[u8], look: Look) {
        self.bytes.extend_from_slice(bytes);
        self.looks.resize(self.bytes.len(), look);
    }

    /// Turns the bytes into characters; `unfinished` stands for one of which bytes are missing at the end.
    fn end(&mut self, unfinished: &str, cells: &mut Vec<Cell>) {
        let Self { bytes, looks } = std::mem::take(self);
        // The text, and the look of each of its bytes.
        let (mut text, mut text_looks) = (String::new(), Vec::new());
        let mut at = 0;
        for chunk in bytes.utf8_chunks() {
            for (offset, char) in chunk.valid().char_indices() {
                if !char.is_control() || matches!(char, '\n' | '\t') {
                    text.push(char);
                    let range = at + offset..at + offset + char.len_utf8();
                    text_looks.extend_from_slice(&looks[range]);
                }
            }
            at += chunk.valid().len();
            let invalid = chunk.invalid();
            if let Some(&look) = looks[at..at + invalid.len()].iter().min() {
                at += invalid.len();
                let is_unfinished = at == bytes.len()
                    && std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
                text.push_str(if is_unfinished {
                    unfinished
                } else {
                    "\u{fffd}"
                });
                text_looks.resize(text.len(), look);
            }
        }
        for (at, grapheme) in text.grapheme_indices(true) {
            let look = text_looks[at..at + grapheme.len()].iter().min();
            cells.push(Cell {
                text: grapheme.to_owned(),
                look: look.copied().unwrap_or(Look::Stable),
            });
        }
    }
}

/// Breaks characters into lines of at most `width` columns; tabs become spaces.
fn lines(cells: Vec<Cell>, width: usize) -> Vec<Vec<Cell>> {
    let mut lines = vec![Vec::new()];
    let mut column = 0;
    for mut cell in cells {
        if cell.text == "\n" {
            lines.push(Vec::new());
            column = 0;
            continue;
        }
        let mut n_columns = cell.text.width();
        if cell.text == "\t" {
            n_columns = (TAB_WIDTH - column % TAB_WIDTH).min(width - column.min(width));
            cell.text = " ".repeat(n_columns);
        }
        if column + n_columns > width {
            lines.push(Vec::new());
            column = 0;
        }
        column += n_columns;
        if let Some(line) = lines.last_mut() {
            line.push(cell);
        }
    }
    lines
}

/// Returns the lines that fit, with the first unsettled one among them.
fn window(lines: &[Vec<Cell>], height: usize) -> &[Vec<Cell>] {
    if lines.len() <= height {
        return lines;
    }
    let unsettled = |line: &Vec<Cell>| line.iter().any(|cell| cell.look != Look::Stable);
    let first = lines.iter().position(unsettled).unwrap_or(lines.len());
    let start = first.saturating_sub(height / 2).min(lines.len() - height);
    &lines[start..start + height]
}

#[cfg(test)]
mod tests {
    use ggml_llada_npu::decode::Stage::{Invisible, Stable, Visible};

    use super::{Frame, Look, Terminal, cells, lines, picture, window};
    use crate::vocab::Token;

    const WIDE: Terminal = Terminal {
        width: 80,
        height: 24,
        colour: true,
    };

    /// Pieces by token id.
    fn shown(pieces: &[&[u8]], frame: Frame<'_>) -> Vec<(String, Look)> {
        let piece = |token: Token| pieces[usize::try_from(token).expect("an index")].to_vec();
        let cells = cells(piece, frame);
        cells
            .into_iter()
            .map(|cell| (cell.text, cell.look))
            .collect()
    }

    fn frame<'a>(
        tokens: &'a [Token],
        stages: &'a [super::Stage],
        revised: &'a [bool],
    ) -> Frame<'a> {
        Frame {
            tokens,
            stages,
            revised,
            n_masked: 0,
            n_forwards: 1,
        }
    }

    fn text(cells: &[(String, Look)]) -> String {
        cells.iter().map(|(text, _)| text.as_str()).collect()
    }

    #[test]
    fn a_character_of_several_tokens_is_one_and_looks_like_the_least_settled() {
        let pieces: [&[u8]; 4] = [b"a", b"\xc3", b"\xa9", b"?"];
        let found = shown(
            &pieces,
            frame(&[0, 1, 2, 3], &[Stable, Stable, Visible, Stable], &[]),
        );
        let expected = [
            ("a", Look::Stable),
            ("é", Look::Visible),
            ("?", Look::Stable),
        ];
        assert_eq!(found, expected.map(|(text, look)| (text.to_owned(), look)));
    }

    #[test]
    fn half_a_character_beside_a_mask_is_a_mask_and_at_the_end_a_replacement() {
        let pieces: [&[u8]; 2] = [b"\xf0\x9f", b"\xa6\x80"];
        let found = shown(
            &pieces,
            frame(
                &[0, 1, 0, 1, 0],
                &[Stable, Stable, Stable, Invisible, Stable],
                &[],
            ),
        );
        assert_eq!(text(&found), "🦀··\u{fffd}");
    }

    #[test]
    fn an_emoji_of_several_characters_is_not_torn() {
        let family = "👩‍👧";
        let bytes = family.as_bytes();
        let pieces: Vec<&[u8]> = bytes.chunks(1).collect();
        let tokens: Vec<Token> = (0..).take(bytes.len()).collect();
        let stages = vec![Visible; bytes.len()];
        let found = shown(&pieces, frame(&tokens, &stages, &[]));
        assert_eq!(found, [(family.to_owned(), Look::Visible)]);
        let wide = shown(&["日".as_bytes()], frame(&[0, 0, 0], &[Stable; 3], &[]));
        let cells: Vec<super::Cell> = wide
            .into_iter()
            .map(|(text, look)| super::Cell { text, look })
            .collect();
        let lengths: Vec<_> = lines(cells, 5).iter().map(Vec::len).collect();
        assert_eq!(lengths, [2, 1], "two of them fill four of five columns");
    }

    #[test]
    fn line_breaks_and_tabs_keep_their_place_and_other_controls_go() {
        let pieces: [&[u8]; 2] = [b"a\tb\r\nc", b"\x1b[31m\x07"];
        let frame = frame(&[0, 1], &[Stable; 2], &[]);
        let piece = |token: Token| pieces[usize::try_from(token).expect("an index")].to_vec();
        let lines = lines(cells(piece, frame), 80);
        let texts: Vec<String> = lines
            .iter()
            .map(|line| line.iter().map(|cell| cell.text.as_str()).collect())
            .collect();
        assert_eq!(texts, ["a       b", "c[31m"]);
    }

    #[test]
    fn every_stage_has_its_colour_and_no_colours_none() {
        let frame = frame(
            &[0; 4],
            &[Invisible, Visible, Visible, Stable],
            &[false, false, true, true],
        );
        let piece = |_token: Token| b"x".to_vec();
        let coloured = picture("bar", piece, frame, WIDE);
        let canvas = "\x1b[0;2m·\x1b[0;33mx\x1b[0;1;36mx\x1b[0mx";
        assert!(coloured.contains(canvas), "{coloured:?}");
        let plain = picture(
            "bar",
            piece,
            frame,
            Terminal {
                colour: false,
                ..WIDE
            },
        );
        assert!(plain.contains("·xxx"), "{plain:?}");
        assert!(!plain.contains('m'), "{plain:?}");
    }

    #[test]
    fn what_does_not_fit_is_cut_around_the_first_unsettled_line() {
        let small = Terminal {
            width: 6,
            height: 7,
            colour: false,
        };
        let mut stages = [Stable; 100];
        stages[50] = Visible;
        let piece = |_token: Token| b"x".to_vec();
        let shown = picture("a long bar", piece, frame(&[0; 100], &stages, &[]), small);
        assert_eq!(shown.matches("\r\n").count(), 6, "{shown:?}");
        let long = shown
            .split("\r\n")
            .map(|line| line.matches('x').count())
            .max();
        assert_eq!(long, Some(5), "{shown:?}");
        let cells = cells(piece, frame(&[0; 100], &stages, &[]));
        let lines = lines(cells, 5);
        let shown = window(&lines, 4);
        let unsettled = shown
            .iter()
            .flatten()
            .filter(|cell| cell.look != Look::Stable);
        assert_eq!((shown.len(), unsettled.count()), (4, 1));
    }
}
