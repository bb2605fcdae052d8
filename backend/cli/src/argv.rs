//! llama.cpp's spelling of flags, brought into the form that clap reads.
//!
//! llama.cpp knows multi-letter flags with one dash (`-ctk`), takes the word after a flag as its value whatever it looks
//! like, and reads `_` in a long flag as `-`. clap would read `-ctk` as three flags.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::{Arg, Command};

/// Multi-letter flags with one dash, and their long forms.
const SINGLE_DASH: &[(&str, &str)] = &[
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-sys", "--system-prompt"),
    ("-sysf", "--system-prompt-file"),
];

/// A word in a flag's place that is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown flag `{flag}` for `{command}`")]
pub(crate) struct UnknownFlag {
    flag: String,
    command: String,
}

/// Returns the argument list with every flag in the form that `root` reads. Values stay as they are.
///
/// # Errors
/// [`UnknownFlag`] for a word with one dash that is not a flag of the subcommand.
pub(crate) fn normalise(
    root: &Command,
    argv: impl IntoIterator<Item = OsString>,
) -> Result<Vec<OsString>, UnknownFlag> {
    let mut words = argv.into_iter();
    let mut result: Vec<_> = words.by_ref().take(2).collect();
    let subcommand = result.get(1).and_then(|name| root.find_subcommand(name));
    let Some(command) = subcommand else {
        result.extend(words);
        return Ok(result);
    };
    let with_value = flags_with_value(command);
    while let Some(word) = words.next() {
        let flag = canonical(command, word)?;
        let takes_value = flag.to_str().is_some_and(|flag| with_value.contains(flag));
        result.push(flag);
        if takes_value {
            result.extend(words.next());
        }
    }
    Ok(result)
}

/// Returns one word in a flag's place in clap's form.
fn canonical(command: &Command, word: OsString) -> Result<OsString, UnknownFlag> {
    let Some(text) = word.to_str() else {
        return Ok(word);
    };
    if let Some(&(_, long)) = SINGLE_DASH.iter().find(|&&(short, _)| short == text) {
        return Ok(long.into());
    }
    if let Some(rest) = text.strip_prefix("--") {
        let (name, value) = rest.split_at(rest.find('=').unwrap_or(rest.len()));
        return Ok(format!("--{}{value}", name.replace('_', "-")).into());
    }
    if text.starts_with('-') && text.chars().count() > 2 {
        return Err(UnknownFlag {
            flag: text.to_owned(),
            command: command.get_name().to_owned(),
        });
    }
    Ok(word)
}

/// Returns every spelling of the flags that need a value.
fn flags_with_value(command: &Command) -> BTreeSet<String> {
    let needs_value = |arg: &&Arg| {
        arg.get_action().takes_values()
            && arg
                .get_num_args()
                .is_none_or(|count| count.min_values() > 0)
    };
    let mut flags = BTreeSet::new();
    for arg in command.get_arguments().filter(needs_value) {
        let longs = arg.get_long_and_visible_aliases().unwrap_or_default();
        flags.extend(longs.into_iter().map(|long| format!("--{long}")));
        let shorts = arg.get_short_and_visible_aliases().unwrap_or_default();
        flags.extend(shorts.into_iter().map(|short| format!("-{short}")));
    }
    flags
}

/// Returns the text with llama.cpp's escapes (`\n \r \t \' \" \\ \xHH`) replaced; other backslashes stay.
pub(crate) fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let (byte, n_used) = match (first, after) {
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [b'r', ..]) => (b'\r', 2),
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [quoted @ (b'\'' | b'"' | b'\\'), ..]) => (*quoted, 2),
            (b'\\', [b'x', high, low, ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high * 16 + low, 4),
                _ => (first, 1),
            },
            _ => (first, 1),
        };
        bytes.push(byte);
        rest = &rest[n_used..];
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory;

    use super::{normalise, unescape};
    use crate::args::Cli;

    fn run(words: &[&str]) -> Result<Vec<String>, String> {
        let argv = ["llada-npu"].iter().chain(words).map(OsString::from);
        match normalise(&Cli::command(), argv) {
            Ok(words) => Ok(words
                .iter()
                .skip(1)
                .filter_map(|word| word.to_str())
                .map(str::to_owned)
                .collect()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn flags_get_their_long_form() {
        let cases: &[(&[&str], &[&str])] = &[
            (&["run", "-ctk", "f32"], &["run", "--cache-type-k", "f32"]),
            (
                &["run", "-sys", "be brief"],
                &["run", "--system-prompt", "be brief"],
            ),
            (
                &["run", "--top_k", "4", "-n", "3"],
                &["run", "--top-k", "4", "-n", "3"],
            ),
            (&["run", "--top_k=a_b"], &["run", "--top-k=a_b"]),
            (&["doctor", "--json"], &["doctor", "--json"]),
        ];
        for (words, expected) in cases {
            assert_eq!(run(words).expect("known flags"), *expected);
        }
    }

    #[test]
    fn the_word_after_a_flag_is_its_value_whatever_it_looks_like() {
        let cases: &[&[&str]] = &[
            &["run", "-p", "-ctk"],
            &["run", "-p", "-ub", "--temp", "-1_0"],
            &["run", "--prompt", "--top_k"],
            &["run", "--diffusion-threshold", "-inf"],
        ];
        for words in cases {
            assert_eq!(run(words).expect("values"), *words);
        }
    }

    #[test]
    fn an_unknown_flag_is_named_whole() {
        assert_eq!(
            run(&["run", "-m", "x", "-ub", "512"]).expect_err("stock's flag"),
            "unknown flag `-ub` for `run`"
        );
        assert!(run(&["run", "-n128"]).is_err());
    }

    #[test]
    fn without_a_subcommand_nothing_changes() {
        let words = ["-ctk", "f32"];
        assert_eq!(run(&words).expect("left to clap"), words);
    }

    #[test]
    fn escapes_are_llama_cpp_s() {
        let cases = [
            (r"a\nb\tc", "a\nb\tc"),
            (r"\\n", r"\n"),
            (r#"\"\'"#, "\"'"),
            (r"\x41\x4a", "AJ"),
            (r"\x4", r"\x4"),
            (r"\q\", r"\q\"),
            ("naïve", "naïve"),
            (r"\xc3\xa9", "é"),
        ];
        for (text, expected) in cases {
            assert_eq!(unescape(text), expected, "{text}");
        }
    }
}
