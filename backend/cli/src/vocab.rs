//! Tokeniser and chat templates of a GGUF file, by libllama.
//!
//! The model is loaded with `vocab_only`: libllama reads the header and the vocabulary, never the weights.

use std::ffi::{CStr, CString, NulError, c_char};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use llama_cpp_sys_2 as sys;

use crate::host;

/// A token id of the vocabulary.
pub(crate) type Token = sys::llama_token;

/// Why a vocabulary, a text or a template cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VocabError {
    /// libllama refuses the file.
    #[error("{}: vocabulary cannot be loaded: {reason}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// What libllama said last.
        reason: String,
    },
    /// The path cannot be handed to C.
    #[error("{}: path holds a NUL byte", path.display())]
    Path {
        /// The path.
        path: PathBuf,
    },
    /// The text cannot be handed to C.
    #[error("{what} holds a NUL byte at offset {offset}")]
    Nul {
        /// Which text.
        what: &'static str,
        /// Byte offset.
        offset: usize,
    },
    /// A text longer than libllama can count.
    #[error("text of {size_bytes} bytes is too long to tokenise")]
    TooLong {
        /// Length of the text.
        size_bytes: usize,
    },
    /// The template is not one of those that libllama knows.
    #[error(
        "the model's chat template is not one that is known here; --no-chat-template uses the prompt as it is"
    )]
    UnknownTemplate,
}

/// One message of a chat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    /// `system` or `user`.
    pub(crate) role: &'static CStr,
    /// The text.
    pub(crate) content: &'a str,
}

/// Owning: vocabulary and chat template of a model file.
#[derive(Debug)]
pub(crate) struct Vocab {
    model: NonNull<sys::llama_model>,
    vocab: NonNull<sys::llama_vocab>,
    n_tokens: Token,
}

impl Vocab {
    /// Loads the vocabulary of a GGUF file.
    ///
    /// # Errors
    /// [`VocabError::Load`] with libllama's reason, [`VocabError::Path`].
    pub(crate) fn load(path: &Path) -> Result<Self, VocabError> {
        host::init();
        let c_path =
            CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_nul| VocabError::Path {
                path: path.to_owned(),
            })?;
        let refused = |reason: Option<String>| VocabError::Load {
            path: path.to_owned(),
            reason: reason.unwrap_or_else(|| "no reason given".to_owned()),
        };
        // SAFETY: llama.h: returns a struct by value and has no preconditions.
        let mut params = unsafe { sys::llama_model_default_params() };
        params.vocab_only = true;
        host::take_last_error();
        // SAFETY: `c_path` is a NUL-terminated string that outlives the call; `params` comes from libllama.
        let model = unsafe { sys::llama_model_load_from_file(c_path.as_ptr(), params) };
        let model = NonNull::new(model).ok_or_else(|| refused(host::take_last_error()))?;
        // SAFETY: `model` was just loaded.
        let vocab = unsafe { sys::llama_model_get_vocab(model.as_ptr()) };
        let vocab = NonNull::new(vocab.cast_mut()).expect("a loaded model has a vocabulary");
        // SAFETY: `vocab` belongs to `model`, which is alive.
        let n_tokens = unsafe { sys::llama_vocab_n_tokens(vocab.as_ptr()) };
        Ok(Self {
            model,
            vocab,
            n_tokens,
        })
    }

    /// Returns the tokens of a text, with the BOS and EOS that the vocabulary asks for when `add_special`; control tokens
    /// written in the text count as such.
    ///
    /// # Errors
    /// [`VocabError::TooLong`].
    pub(crate) fn tokenize(&self, text: &str, add_special: bool) -> Result<Vec<Token>, VocabError> {
        let too_long = || VocabError::TooLong {
            size_bytes: text.len(),
        };
        let text_len = i32::try_from(text.len()).map_err(|_overflow| too_long())?;
        // A token stands for at least one byte, special tokens apart.
        let mut tokens = vec![0; text.len() + 8];
        loop {
            let n_max = i32::try_from(tokens.len()).map_err(|_overflow| too_long())?;
            let n = {
                let (text, tokens) = (text.as_ptr().cast(), tokens.as_mut_ptr());
                // SAFETY: `text` has `text_len` bytes and `tokens` room for `n_max` ids; the vocabulary is alive.
                unsafe {
                    sys::llama_tokenize(
                        self.vocab.as_ptr(),
                        text,
                        text_len,
                        tokens,
                        n_max,
                        add_special,
                        true,
                    )
                }
            };
            match usize::try_from(n) {
                Ok(n) => {
                    tokens.truncate(n);
                    return Ok(tokens);
                }
                Err(_negative) if n == i32::MIN => return Err(too_long()),
                // The room was too small: the negated count is what it takes.
                Err(_negative) => tokens.resize(n.unsigned_abs() as usize, 0),
            }
        }
    }

    /// Returns the bytes that a token stands for in a text; none for control tokens and ids outside the vocabulary.
    pub(crate) fn piece(&self, token: Token) -> Vec<u8> {
        if !(0..self.n_tokens).contains(&token) {
            return Vec::new();
        }
        let mut piece = vec![0_u8; 32];
        loop {
            let length = i32::try_from(piece.len()).unwrap_or(i32::MAX);
            let buf = piece.as_mut_ptr().cast::<c_char>();
            // SAFETY: `buf` has `length` bytes, `token` is in the vocabulary, which is alive.
            let n = unsafe {
                sys::llama_token_to_piece(self.vocab.as_ptr(), token, buf, length, 0, false)
            };
            if let Ok(n) = usize::try_from(n) {
                piece.truncate(n);
                return piece;
            }
            // The room was too small: the negated length is what it takes.
            piece.resize(n.unsigned_abs() as usize, 0);
        }
    }

    /// Returns the chat template of the file.
    pub(crate) fn chat_template(&self) -> Option<&CStr> {
        // SAFETY: the model is alive; a null name asks for the default template.
        let template = unsafe { sys::llama_model_chat_template(self.model.as_ptr(), ptr::null()) };
        // SAFETY: libllama returns null or a string that lives as long as the model.
        (!template.is_null()).then(|| unsafe { CStr::from_ptr(template) })
    }
}

impl Drop for Vocab {
    fn drop(&mut self) {
        // SAFETY: `model` came from `llama_model_load_from_file` and is freed once, here.
        unsafe { sys::llama_model_free(self.model.as_ptr()) };
    }
}

/// Renders a chat, ending where the assistant's answer begins.
///
/// # Errors
/// [`VocabError::UnknownTemplate`] when libllama does not recognise the template, [`VocabError::Nul`].
pub(crate) fn apply_chat_template(
    template: &CStr,
    messages: &[Message<'_>],
) -> Result<String, VocabError> {
    let contents = messages
        .iter()
        .map(|message| CString::new(message.content))
        .collect::<Result<Vec<_>, NulError>>()
        .map_err(|nul| VocabError::Nul {
            what: "prompt",
            offset: nul.nul_position(),
        })?;
    let chat: Vec<_> = messages
        .iter()
        .zip(&contents)
        .map(|(message, content)| sys::llama_chat_message {
            role: message.role.as_ptr(),
            content: content.as_ptr(),
        })
        .collect();
    let mut text = vec![
        0_u8;
        256 + messages
            .iter()
            .map(|message| message.content.len())
            .sum::<usize>()
    ];
    loop {
        let length = i32::try_from(text.len()).map_err(|_overflow| VocabError::TooLong {
            size_bytes: text.len(),
        })?;
        let buf = text.as_mut_ptr().cast::<c_char>();
        // SAFETY: strings of `template` and `chat` are NUL-terminated and outlive the call; `buf` has `length` bytes.
        let n = unsafe {
            sys::llama_chat_apply_template(
                template.as_ptr(),
                chat.as_ptr(),
                chat.len(),
                true,
                buf,
                length,
            )
        };
        let n = usize::try_from(n).map_err(|_negative| VocabError::UnknownTemplate)?;
        if n <= text.len() {
            text.truncate(n);
            return Ok(String::from_utf8_lossy(&text).into_owned());
        }
        text.resize(n, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::{Message, VocabError, apply_chat_template};

    fn chat<'a>(system: Option<&'a str>, user: &'a str) -> Vec<Message<'a>> {
        let message = |role, content| Message { role, content };
        let system = system.map(|content| message(c"system", content));
        system.into_iter().chain([message(c"user", user)]).collect()
    }

    #[test]
    fn a_known_template_ends_where_the_answer_begins() {
        let long = "x".repeat(1000);
        let template = c"{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}";
        for (system, user) in [(None, "naïve"), (Some("Be brief."), "Hi"), (None, &*long)] {
            let text = apply_chat_template(template, &chat(system, user)).expect("ChatML");
            let system = system.map_or(String::new(), |text| {
                format!("<|im_start|>system\n{text}<|im_end|>\n")
            });
            assert_eq!(
                text,
                format!("{system}<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n")
            );
        }
    }

    #[test]
    fn an_unknown_template_is_refused_with_the_flag_that_skips_it() {
        let error = apply_chat_template(c"{{ nonsense }}", &chat(None, "x")).expect_err("unknown");
        assert!(matches!(error, VocabError::UnknownTemplate));
        assert!(error.to_string().contains("--no-chat-template"));
    }

    #[test]
    fn a_nul_byte_is_refused() {
        let error = apply_chat_template(c"chatml", &chat(None, "a\0b")).expect_err("NUL");
        assert_eq!(error.to_string(), "prompt holds a NUL byte at offset 1");
    }
}
