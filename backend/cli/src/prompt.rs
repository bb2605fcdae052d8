//! From what the user asks to the tokens that the model sees.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use crate::args::GenerationArgs;
use crate::argv;
use crate::error::Error;
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

/// Returns the prompt of `-p` or `-f`, or a system prompt likewise; `None` when neither is given.
///
/// # Errors
/// [`Error::File`] or [`Error::NotUtf8`] naming the file.
pub(crate) fn text_or_file(
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
    let mut bytes = Vec::new();
    let result = if path.as_os_str() == "-" {
        io::stdin()
            .lock()
            .read_to_end(&mut bytes)
            .map(|_n_bytes| ())
    } else {
        fs::read(path).map(|content| bytes = content)
    };
    result.map_err(|source| Error::File {
        path: path.to_owned(),
        what: "cannot be read",
        source,
    })?;
    let mut text = String::from_utf8(bytes).map_err(|error| Error::NotUtf8 {
        path: path.to_owned(),
        offset: error.utf8_error().valid_up_to(),
    })?;
    if text.ends_with('\n') {
        text.truncate(text.len() - 1);
    }
    Ok(text)
}
