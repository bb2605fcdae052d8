//! From what the user asks to the tokens that the model sees.

use std::path::Path;

use serde::Deserialize;

use crate::args::{FileFormat, GenerationArgs, RunArgs};
use crate::argv;
use crate::error::Error;
use crate::input;
use crate::jsonl::{self, LineError};
use crate::output;
use crate::vocab::{Message, Token, Vocab, apply_chat_template};

/// How prompts of one model are put into tokens.
#[derive(Debug)]
pub(crate) struct PromptFormat<'a> {
    vocab: &'a Vocab,
    use_template: bool,
}

impl<'a> PromptFormat<'a> {
    /// Returns the format of a model: its chat template, or the raw prompt, with a note, when it has none.
    ///
    /// # Errors
    /// [`Error::Vocab`] when the template is not known.
    pub(crate) fn new(vocab: &'a Vocab, args: &GenerationArgs) -> Result<Self, Error> {
        let template = vocab.chat_template();
        if template.is_none() && !args.no_chat_template {
            output::note("note: the model has no chat template; the prompt is used as it is");
        }
        let use_template = template.is_some() && !args.no_chat_template;
        let format = Self {
            vocab,
            use_template,
        };
        // An unknown template is refused before anything else is done with the model.
        format.text(None, "")?;
        Ok(format)
    }

    /// Returns the tokens of a prompt, control tokens of the template included.
    ///
    /// # Errors
    /// [`Error::Vocab`]; [`Error::Flags`] for a system prompt without a template.
    pub(crate) fn tokens(&self, system: Option<&str>, prompt: &str) -> Result<Vec<Token>, Error> {
        Ok(self.vocab.tokenize(&self.text(system, prompt)?, true)?)
    }

    fn text(&self, system: Option<&str>, prompt: &str) -> Result<String, Error> {
        let system = system.filter(|text| !text.is_empty());
        let template = self
            .vocab
            .chat_template()
            .filter(|_template| self.use_template);
        let Some(template) = template else {
            return match system {
                Some(_) => Err(Error::Flags("--system-prompt needs a chat template")),
                None => Ok(prompt.to_owned()),
            };
        };
        let system = system.map(|content| Message {
            role: c"system",
            content,
        });
        let user = Message {
            role: c"user",
            content: prompt,
        };
        let messages: Vec<_> = system.into_iter().chain([user]).collect();
        Ok(apply_chat_template(template, &messages)?)
    }
}

/// A prompt of the user's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The system prompt, where there is one.
    pub(crate) system: Option<String>,
    /// The prompt.
    pub(crate) prompt: String,
}

/// A line of a file of JSON lines; other fields are ignored, so that task files can be used.
#[derive(Debug, Deserialize)]
struct RequestLine {
    prompt: String,
    system: Option<String>,
}

/// Returns the prompts that flags name: that of `-p`, or those of the file of `-f`.
///
/// # Errors
/// [`Error::Flags`] when there is none; [`Error::File`], [`Error::TooLong`], [`Error::Nothing`], [`Error::NotUtf8`] or
/// [`Error::Line`] naming the file.
pub(crate) fn requests(args: &RunArgs) -> Result<Vec<Request>, Error> {
    let escape = !args.no_escape;
    let system = text_or_file(
        args.system_prompt.as_deref(),
        args.system_prompt_file.as_deref(),
        escape,
    )?;
    let request = |prompt| Request {
        system: system.clone(),
        prompt,
    };
    let unescaped = |text: &str| {
        if escape {
            argv::unescape(text)
        } else {
            text.to_owned()
        }
    };
    let requests = match (args.prompt.as_deref(), args.file.as_deref()) {
        (Some(prompt), _) => vec![request(unescaped(prompt))],
        (None, None) => {
            return Err(Error::Flags("a prompt is needed: -p TEXT or -f FILE"));
        }
        (None, Some(path)) => match args.file_format(path) {
            FileFormat::Text => Some(read(path)?)
                .filter(|text| !text.is_empty())
                .map(|text| request(unescaped(&text)))
                .into_iter()
                .collect(),
            FileFormat::Lines => read(path)?
                .lines()
                .filter(|line| !line.trim().is_empty())
                .map(|line| request(unescaped(line)))
                .collect(),
            FileFormat::Jsonl => jsonl::parse(read(path)?.as_bytes())
                .map_err(|problem| LineError::new(path, problem))?
                .into_iter()
                .map(|(_, line): (usize, RequestLine)| Request {
                    system: line.system.or_else(|| system.clone()),
                    prompt: line.prompt,
                })
                .collect(),
        },
    };
    match (requests.is_empty(), args.file.as_deref()) {
        (true, Some(path)) => Err(Error::Nothing {
            path: path.to_owned(),
            what: "no prompt in the file",
        }),
        _ => Ok(requests),
    }
}

/// Returns a text or that of a file; `None` when neither is given.
///
/// # Errors
/// [`Error::File`] or [`Error::NotUtf8`] naming the file.
fn text_or_file(
    text: Option<&str>,
    file: Option<&Path>,
    escape: bool,
) -> Result<Option<String>, Error> {
    let text = match (text, file) {
        (Some(text), _) => text.to_owned(),
        (None, Some(path)) => read(path)?,
        (None, None) => return Ok(None),
    };
    Ok(Some(if escape { argv::unescape(&text) } else { text }))
}

/// Reads a text file without the line break at its end; "-" is standard input.
fn read(path: &Path) -> Result<String, Error> {
    let mut text = String::from_utf8(input::read(path, true)?).map_err(|error| Error::NotUtf8 {
        path: path.to_owned(),
        offset: error.utf8_error().valid_up_to(),
    })?;
    if text.ends_with('\n') {
        text.truncate(text.len() - 1);
    }
    Ok(text)
}
