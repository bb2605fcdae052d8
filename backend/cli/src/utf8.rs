//! Text from bytes that arrive in pieces.

use std::str;

/// Turns pieces of bytes into text, holding back a UTF-8 sequence until it is whole.
///
/// Bytes that cannot become UTF-8 turn into U+FFFD, one for each maximal invalid run as `String::from_utf8_lossy` does.
#[derive(Debug, Default)]
pub(crate) struct Utf8Stream {
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Takes more bytes and returns the text that is complete with them.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = after;
                    let Some(n_invalid) = error.error_len() else {
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[n_invalid..];
                }
            }
        }
        self.pending = rest.to_vec();
        text
    }

    /// Ends the stream; an incomplete sequence becomes U+FFFD.
    pub(crate) fn finish(&mut self) -> String {
        let pending = std::mem::take(&mut self.pending);
        String::from_utf8_lossy(&pending).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::Utf8Stream;

    const TEXTS: &[&[u8]] = &[
        b"plain",
        "naïve 🦀 日本".as_bytes(),
        b"\xff\xfe",
        b"a\xc3",
        b"\xf0\x9f\xa6 b",
        b"\xe2\x28\xa1",
        b"\xed\xa0\x80",
        b"",
    ];

    #[test]
    fn any_split_gives_the_text_of_the_whole() {
        for &bytes in TEXTS {
            for piece in 1..=bytes.len().max(1) {
                let mut stream = Utf8Stream::default();
                let mut text: String = bytes
                    .chunks(piece)
                    .map(|chunk| stream.push(chunk))
                    .collect();
                text += &stream.finish();
                assert_eq!(
                    text,
                    String::from_utf8_lossy(bytes),
                    "{bytes:x?} in pieces of {piece}"
                );
            }
        }
    }

    #[test]
    fn an_incomplete_sequence_is_held_back() {
        let mut stream = Utf8Stream::default();
        assert_eq!(stream.push(b"a\xf0\x9f\xa6"), "a");
        assert_eq!(stream.push(b""), "");
        assert_eq!(stream.push(b"\x80b"), "🦀b");
        assert_eq!(stream.finish(), "");
    }
}
