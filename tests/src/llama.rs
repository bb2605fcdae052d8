//! Stock libllama on the CPU, as an oracle: full-sequence logits, and logits over a reused prefix.
//!
//! Independent of the engine, and of our device unless a test loads it ([`load_plugin`]) and names it ([`Llama::load_on`]).

use std::ffi::{CStr, CString};
use std::io::Write as _;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::OnceLock;

use llama_cpp_sys_2 as llama;

use crate::host::plugin;

/// A model and one context of stock libllama, f32 K/V, flash attention off, bidirectional attention.
#[derive(Debug)]
pub struct Llama {
    model: NonNull<llama::llama_model>,
    ctx: NonNull<llama::llama_context>,
    n_vocab: usize,
}

/// Non-owning: a `LoRA` adapter of the [`Llama`] that loaded it.
#[derive(Clone, Copy, Debug)]
pub struct Adapter(NonNull<llama::llama_adapter_lora>);

impl Drop for Llama {
    fn drop(&mut self) {
        // SAFETY: the context came from llama_init_from_model and is freed once, before its model.
        unsafe { llama::llama_free(self.ctx.as_ptr()) };
        // SAFETY: the model came from llama_model_load_from_file and is freed once.
        unsafe { llama::llama_model_free(self.model.as_ptr()) };
    }
}

/// Drops libllama's chatter; errors show as the failing result of a call.
unsafe extern "C" fn silent(
    _level: llama::ggml_log_level,
    _text: *const std::ffi::c_char,
    _user_data: *mut std::ffi::c_void,
) {
}

/// Writes a line to stderr if it starts with the text that `user_data` points to.
unsafe extern "C" fn filtered(
    _level: llama::ggml_log_level,
    text: *const std::ffi::c_char,
    user_data: *mut std::ffi::c_void,
) {
    // SAFETY: libllama passes NUL-terminated texts.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    // SAFETY: `log_to_stderr` made it from such a text, which lives for ever.
    let start = unsafe { CStr::from_ptr(user_data.cast()) };
    if text.starts_with(&*start.to_string_lossy()) {
        // There is nobody to tell of a failure.
        let _written = std::io::stderr().write_all(text.as_bytes());
    }
}

/// Writes lines of the log that start so to stderr, from now on.
///
/// # Panics
/// For a text with NUL.
pub fn log_to_stderr(start: &str) {
    init();
    let start = CString::new(start).expect("a text without NUL").into_raw();
    // SAFETY: the callback is a static function; its data are never freed.
    unsafe { llama::llama_log_set(Some(filtered), start.cast()) };
}

/// Starts libllama, and with it the ggml of this process; later calls do nothing.
pub fn init() {
    static INIT: OnceLock<()> = OnceLock::new();
    INIT.get_or_init(|| {
        // SAFETY: the callback is a static function that ignores its arguments.
        unsafe { llama::llama_log_set(Some(silent), std::ptr::null_mut()) };
        // SAFETY: no arguments, called once.
        unsafe { llama::llama_backend_init() };
    });
}

/// Loads the plug-in into libllama's ggml; its device is then found by name.
///
/// # Panics
/// When the host refuses it.
pub fn load_plugin() {
    load_plugin_at(&plugin());
}

/// Loads the plug-in of another place, as programs have to that do not lie beside it.
///
/// # Panics
/// When the host refuses it.
pub fn load_plugin_at(path: &Path) {
    init();
    let path = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path without NUL");
    // SAFETY: the path is NUL-terminated; the plug-in is ours.
    let reg = unsafe { llama::ggml_backend_load(path.as_ptr()) };
    assert!(!reg.is_null(), "the host refused the plug-in");
}

impl Llama {
    /// Loads a GGUF with room for `n_ctx` tokens, on the CPU.
    ///
    /// # Panics
    /// When libllama refuses the file.
    #[must_use]
    pub fn load(path: &Path, n_ctx: u32) -> Self {
        Self::load_with(path, n_ctx, None)
    }

    /// Loads a GGUF with room for `n_ctx` tokens, all layers on a registered device.
    ///
    /// # Panics
    /// When libllama refuses the file, or there is no such device.
    #[must_use]
    pub fn load_on(device: &str, path: &Path, n_ctx: u32) -> Self {
        let name = CString::new(device).expect("a name without NUL");
        // SAFETY: reads the registry; the name is NUL-terminated.
        let raw = unsafe { llama::ggml_backend_dev_by_name(name.as_ptr()) };
        assert!(!raw.is_null(), "no device {device}");
        Self::load_with(path, n_ctx, Some(raw))
    }

    fn load_with(path: &Path, n_ctx: u32, device: Option<llama::ggml_backend_dev_t>) -> Self {
        init();
        let mut devices = [device.unwrap_or(std::ptr::null_mut()), std::ptr::null_mut()];
        let c_path = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path without NUL");
        // SAFETY: a pure function.
        let mut model_params = unsafe { llama::llama_model_default_params() };
        if device.is_some() {
            model_params.devices = devices.as_mut_ptr();
            model_params.n_gpu_layers = i32::MAX;
        } else {
            model_params.n_gpu_layers = 0;
        }
        // SAFETY: path and parameters are valid during the call.
        let model = unsafe { llama::llama_model_load_from_file(c_path.as_ptr(), model_params) };
        let model =
            NonNull::new(model).unwrap_or_else(|| panic!("libllama refuses {}", path.display()));

        // SAFETY: a pure function.
        let mut params = unsafe { llama::llama_context_default_params() };
        params.n_ctx = n_ctx;
        params.n_batch = n_ctx;
        params.n_ubatch = n_ctx;
        // Models are tiny, and tests run beside each other.
        params.n_threads = 1;
        params.n_threads_batch = 1;
        params.flash_attn_type = llama::LLAMA_FLASH_ATTN_TYPE_DISABLED;
        params.type_k = llama::GGML_TYPE_F32;
        params.type_v = llama::GGML_TYPE_F32;
        // SAFETY: the model is alive, the parameters valid.
        let ctx = unsafe { llama::llama_init_from_model(model.as_ptr(), params) };
        let ctx = NonNull::new(ctx).expect("libllama makes a context");
        // SAFETY: the context is alive.
        unsafe { llama::llama_set_causal_attn(ctx.as_ptr(), false) };
        // SAFETY: the model is alive.
        let vocab = unsafe { llama::llama_model_get_vocab(model.as_ptr()) };
        // SAFETY: the vocabulary lives as long as the model.
        let n_vocab = unsafe { llama::llama_vocab_n_tokens(vocab) };
        Self {
            model,
            ctx,
            n_vocab: usize::try_from(n_vocab).expect("a size"),
        }
    }

    /// Loads a `LoRA` adapter, which is freed with the model.
    ///
    /// # Panics
    /// When libllama refuses the file.
    pub fn load_adapter(&mut self, path: &Path) -> Adapter {
        let c_path = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path without NUL");
        // SAFETY: the model is alive, the path NUL-terminated.
        let raw = unsafe { llama::llama_adapter_lora_init(self.model.as_ptr(), c_path.as_ptr()) };
        Adapter(NonNull::new(raw).unwrap_or_else(|| panic!("libllama refuses {}", path.display())))
    }

    /// Uses these adapters of the model at these scales, and no others, from now on.
    ///
    /// # Panics
    /// When libllama refuses.
    pub fn set_adapters(&mut self, adapters: &[(Adapter, f32)]) {
        let (mut raw, mut scales): (Vec<_>, Vec<f32>) = adapters
            .iter()
            .map(|(adapter, scale)| (adapter.0.as_ptr(), *scale))
            .unzip();
        // SAFETY: context and adapters are alive; both arrays are as long as said, and copied.
        let status = unsafe {
            llama::llama_set_adapters_lora(
                self.ctx.as_ptr(),
                raw.as_mut_ptr(),
                raw.len(),
                scales.as_mut_ptr(),
            )
        };
        assert_eq!(status, 0, "llama_set_adapters_lora failed");
    }

    /// Returns the vocabulary size.
    #[must_use]
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// Forgets the K/V of all positions from `first_pos` on, in architectures that have a K/V cache.
    ///
    /// # Panics
    /// When libllama refuses.
    pub fn forget_from(&mut self, first_pos: usize) {
        let first_pos = i32::try_from(first_pos).expect("a small position");
        // SAFETY: the context is alive.
        let memory = unsafe { llama::llama_get_memory(self.ctx.as_ptr()) };
        assert!(!memory.is_null(), "the architecture has no K/V cache");
        // SAFETY: the memory belongs to the context; -1 means the end (llama.h).
        let removed = unsafe { llama::llama_memory_seq_rm(memory, 0, first_pos, -1) };
        assert!(removed, "positions from {first_pos} on cannot be removed");
    }

    /// Returns the tokens of one user message in the model's chat template, up to where the answer starts.
    ///
    /// # Panics
    /// When the model has no template that libllama knows.
    #[must_use]
    pub fn chat_prompt(&self, message: &str) -> Vec<i32> {
        // SAFETY: the model is alive; NULL asks for the default template.
        let template =
            unsafe { llama::llama_model_chat_template(self.model.as_ptr(), std::ptr::null()) };
        assert!(!template.is_null(), "the model has no chat template");
        let content = CString::new(message).expect("a message without NUL");
        let chat = llama::llama_chat_message {
            role: c"user".as_ptr(),
            content: content.as_ptr(),
        };
        let mut text = vec![0_u8; 2 * message.len() + 256];
        let room = i32::try_from(text.len()).expect("a short message");
        // SAFETY: template and message are NUL-terminated, the buffer has `room` bytes.
        let n = unsafe {
            llama::llama_chat_apply_template(
                template,
                &raw const chat,
                1,
                true,
                text.as_mut_ptr().cast(),
                room,
            )
        };
        let n = usize::try_from(n).expect("libllama knows the template");
        text.truncate(n);
        self.tokenize(&text)
    }

    /// Returns the tokens of a text; control tokens written in it count as such.
    fn tokenize(&self, text: &[u8]) -> Vec<i32> {
        // SAFETY: the model is alive.
        let vocab = unsafe { llama::llama_model_get_vocab(self.model.as_ptr()) };
        let n_bytes = i32::try_from(text.len()).expect("a short text");
        let mut tokens = vec![0; text.len() + 8];
        let room = i32::try_from(tokens.len()).expect("a short text");
        // SAFETY: text and tokens are as long as said, the vocabulary lives as long as the model.
        let n = unsafe {
            llama::llama_tokenize(
                vocab,
                text.as_ptr().cast(),
                n_bytes,
                tokens.as_mut_ptr(),
                room,
                true,
                true,
            )
        };
        tokens.truncate(usize::try_from(n).expect("a token has at least a byte"));
        tokens
    }

    /// Returns the logits of every row of one bidirectional forward over `tokens` at positions `first_pos…`, as
    /// `[n_tokens][n_vocab]`. Rows see each other and, where the architecture has a K/V cache, everything decoded
    /// before.
    ///
    /// # Panics
    /// When libllama fails.
    pub fn decode(&mut self, tokens: &[i32], first_pos: usize) -> Vec<Vec<f32>> {
        let n = i32::try_from(tokens.len()).expect("a small batch");
        // SAFETY: asks for room for `n` token entries with one sequence each.
        let mut batch = unsafe { llama::llama_batch_init(n, 0, 1) };
        // SAFETY: llama_batch_init made `n` entries of each array (here and below).
        unsafe { std::slice::from_raw_parts_mut(batch.token, tokens.len()) }
            .copy_from_slice(tokens);
        // SAFETY: see above.
        let positions = unsafe { std::slice::from_raw_parts_mut(batch.pos, tokens.len()) };
        for (i, pos) in positions.iter_mut().enumerate() {
            *pos = i32::try_from(first_pos + i).expect("a small position");
        }
        // SAFETY: see above.
        unsafe { std::slice::from_raw_parts_mut(batch.n_seq_id, tokens.len()) }.fill(1);
        // SAFETY: see above.
        for &seq_ids in unsafe { std::slice::from_raw_parts(batch.seq_id, tokens.len()) } {
            // SAFETY: each entry points to room for one sequence id, as asked of llama_batch_init.
            unsafe { *seq_ids = 0 };
        }
        // SAFETY: see above.
        unsafe { std::slice::from_raw_parts_mut(batch.logits, tokens.len()) }.fill(1);
        batch.n_tokens = n;
        // SAFETY: context and batch are alive and the batch is filled.
        let status = unsafe { llama::llama_decode(self.ctx.as_ptr(), batch) };
        assert_eq!(status, 0, "llama_decode failed");
        let rows = (0..n)
            .map(|i| {
                // SAFETY: logits of row `i` were asked for.
                let row = unsafe { llama::llama_get_logits_ith(self.ctx.as_ptr(), i) };
                assert!(!row.is_null(), "no logits for row {i}");
                // SAFETY: a row has `n_vocab` floats, valid until the next call on the context.
                unsafe { std::slice::from_raw_parts(row, self.n_vocab) }.to_vec()
            })
            .collect();
        // SAFETY: the batch came from llama_batch_init.
        unsafe { llama::llama_batch_free(batch) };
        rows
    }
}

/// Normalised mean squared error: `sum (a - b)^2 / sum b^2`, `b` the reference.
///
/// # Panics
/// When the slices differ in length, or the result is not finite: a NaN would be lost in a maximum.
#[must_use]
pub fn nmse(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "same length");
    let (mut error, mut power) = (0.0_f64, 0.0_f64);
    for (&x, &y) in a.iter().zip(b) {
        error += (f64::from(x) - f64::from(y)).powi(2);
        power += f64::from(y).powi(2);
    }
    let nmse = error / power;
    assert!(nmse.is_finite(), "error {error} of power {power}");
    nmse
}
