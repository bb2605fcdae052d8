//! The table of ggml functions, looked up once in the process that loaded us.
//!
//! The plug-in links libc alone: a second copy of ggml in the process would split registries and logs in two. Symbols
//! are taken from the global scope, else from the loaded object named `libggml-base*` or `libggml*` (hosts such as
//! Java or Python load it locally).

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use super::sys::*;

/// Why ggml cannot be used in this process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// A function that the plug-in needs is not exported by the host.
    #[error("ggml function `{name}` not found in this process (host ggml {version})")]
    MissingSymbol {
        /// Name of the function.
        name: &'static str,
        /// ggml's version, or `none` where no ggml tells one.
        version: String,
    },
}

/// Declares the table: one line per function, in the spelling of ggml's headers. The constant below each field makes
/// the compiler compare the signature with the pinned headers.
macro_rules! api_table {
    (required { $(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?;)* }) => {
        /// ggml's functions; a value of this type proves that all of them were found.
        #[allow(missing_docs, reason = "each field is the ggml function of that name")]
        #[derive(Clone, Copy)]
        pub struct Api {
            $(pub(crate) $name: unsafe extern "C" fn($($ty),*) $(-> $ret)?,)*
        }

        $(const _: unsafe extern "C" fn($($ty),*) $(-> $ret)? = super::sys::$name;)*

        impl Api {
            fn load() -> Result<Self, ApiError> {
                let scope = Scope::find();
                Ok(Self {
                    $($name: {
                        let symbol = scope.symbol(stringify!($name)).ok_or_else(|| ApiError::MissingSymbol {
                            name: stringify!($name),
                            version: scope.version(),
                        })?;
                        // SAFETY: the symbol has ggml's documented name; its signature is the one of the pinned
                        // headers, checked at compile time above, and ggml keeps released signatures.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) $(-> $ret)?>(symbol) }
                    },)*
                })
            }
        }
    };
}

api_table! {
    required {
        fn ggml_version() -> *const c_char;
        fn ggml_commit() -> *const c_char;
        fn ggml_op_name(op: ggml_op) -> *const c_char;
        fn ggml_type_name(type_: ggml_type) -> *const c_char;
        fn ggml_type_size(type_: ggml_type) -> usize;
        fn ggml_blck_size(type_: ggml_type) -> i64;
        fn ggml_row_size(type_: ggml_type, ne: i64) -> usize;
        fn ggml_nbytes(tensor: *const ggml_tensor) -> usize;
        fn ggml_validate_row_data(type_: ggml_type, data: *const c_void, nbytes: usize) -> bool;
        fn ggml_log_get(log_callback: *mut ggml_log_callback, user_data: *mut *mut c_void);
        fn ggml_init(params: ggml_init_params) -> *mut ggml_context;
        fn ggml_free(ctx: *mut ggml_context);
        fn ggml_tensor_overhead() -> usize;
        fn ggml_graph_overhead_custom(size: usize, grads: bool) -> usize;
        fn ggml_new_tensor(ctx: *mut ggml_context, type_: ggml_type, n_dims: c_int, ne: *const i64) -> *mut ggml_tensor;
        fn ggml_set_name(tensor: *mut ggml_tensor, name: *const c_char) -> *mut ggml_tensor;
        fn ggml_set_input(tensor: *mut ggml_tensor);
        fn ggml_set_output(tensor: *mut ggml_tensor);
        fn ggml_add(ctx: *mut ggml_context, a: *mut ggml_tensor, b: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_sub(ctx: *mut ggml_context, a: *mut ggml_tensor, b: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_mul(ctx: *mut ggml_context, a: *mut ggml_tensor, b: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_div(ctx: *mut ggml_context, a: *mut ggml_tensor, b: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_mul_mat(ctx: *mut ggml_context, a: *mut ggml_tensor, b: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_mul_mat_id(ctx: *mut ggml_context, as_: *mut ggml_tensor, b: *mut ggml_tensor, ids: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_norm(ctx: *mut ggml_context, a: *mut ggml_tensor, eps: f32) -> *mut ggml_tensor;
        fn ggml_rms_norm(ctx: *mut ggml_context, a: *mut ggml_tensor, eps: f32) -> *mut ggml_tensor;
        fn ggml_scale_bias(ctx: *mut ggml_context, a: *mut ggml_tensor, s: f32, b: f32) -> *mut ggml_tensor;
        fn ggml_abs(ctx: *mut ggml_context, a: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_sgn(ctx: *mut ggml_context, a: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_neg(ctx: *mut ggml_context, a: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_step(ctx: *mut ggml_context, a: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_tanh(ctx: *mut ggml_context, a: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_elu(ctx: *mut ggml_context, a: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_relu(ctx: *mut ggml_context, a: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_sigmoid(ctx: *mut ggml_context, a: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_gelu(ctx: *mut ggml_context, a: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_gelu_erf(ctx: *mut ggml_context, a: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_gelu_quick(ctx: *mut ggml_context, a: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_silu(ctx: *mut ggml_context, a: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_hardswish(ctx: *mut ggml_context, a: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_hardsigmoid(ctx: *mut ggml_context, a: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_exp(ctx: *mut ggml_context, a: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_swiglu_split(ctx: *mut ggml_context, a: *mut ggml_tensor, b: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_reglu_split(ctx: *mut ggml_context, a: *mut ggml_tensor, b: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_geglu_split(ctx: *mut ggml_context, a: *mut ggml_tensor, b: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_geglu_erf_split(ctx: *mut ggml_context, a: *mut ggml_tensor, b: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_geglu_quick_split(ctx: *mut ggml_context, a: *mut ggml_tensor, b: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_swiglu_oai(ctx: *mut ggml_context, a: *mut ggml_tensor, b: *mut ggml_tensor, alpha: f32, limit: f32) -> *mut ggml_tensor;
        fn ggml_get_rows(ctx: *mut ggml_context, a: *mut ggml_tensor, b: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_set_rows(ctx: *mut ggml_context, a: *mut ggml_tensor, b: *mut ggml_tensor, c: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_cont(ctx: *mut ggml_context, a: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_dup(ctx: *mut ggml_context, a: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_cpy(ctx: *mut ggml_context, a: *mut ggml_tensor, b: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_reshape_2d(ctx: *mut ggml_context, a: *mut ggml_tensor, ne0: i64, ne1: i64) -> *mut ggml_tensor;
        fn ggml_reshape_3d(ctx: *mut ggml_context, a: *mut ggml_tensor, ne0: i64, ne1: i64, ne2: i64) -> *mut ggml_tensor;
        fn ggml_view_2d(ctx: *mut ggml_context, a: *mut ggml_tensor, ne0: i64, ne1: i64, nb1: usize, offset: usize) -> *mut ggml_tensor;
        fn ggml_view_3d(ctx: *mut ggml_context, a: *mut ggml_tensor, ne0: i64, ne1: i64, ne2: i64, nb1: usize, nb2: usize, offset: usize) -> *mut ggml_tensor;
        fn ggml_permute(ctx: *mut ggml_context, a: *mut ggml_tensor, axis0: c_int, axis1: c_int, axis2: c_int, axis3: c_int) -> *mut ggml_tensor;
        fn ggml_transpose(ctx: *mut ggml_context, a: *mut ggml_tensor) -> *mut ggml_tensor;
        fn ggml_soft_max_ext(ctx: *mut ggml_context, a: *mut ggml_tensor, mask: *mut ggml_tensor, scale: f32, max_bias: f32) -> *mut ggml_tensor;
        fn ggml_rope_ext(
            ctx: *mut ggml_context, a: *mut ggml_tensor, b: *mut ggml_tensor, c: *mut ggml_tensor, n_dims: c_int, mode: c_int,
            n_ctx_orig: c_int, freq_base: f32, freq_scale: f32, ext_factor: f32, attn_factor: f32, beta_fast: f32, beta_slow: f32,
        ) -> *mut ggml_tensor;
        fn ggml_flash_attn_ext(
            ctx: *mut ggml_context, q: *mut ggml_tensor, k: *mut ggml_tensor, v: *mut ggml_tensor, mask: *mut ggml_tensor,
            scale: f32, max_bias: f32, logit_softcap: f32,
        ) -> *mut ggml_tensor;
        fn ggml_new_graph_custom(ctx: *mut ggml_context, size: usize, grads: bool) -> *mut ggml_cgraph;
        fn ggml_build_forward_expand(cgraph: *mut ggml_cgraph, tensor: *mut ggml_tensor);
        fn ggml_graph_add_node(cgraph: *mut ggml_cgraph, tensor: *mut ggml_tensor);
        fn ggml_graph_clear(cgraph: *mut ggml_cgraph);
        fn ggml_graph_node(cgraph: *mut ggml_cgraph, i: c_int) -> *mut ggml_tensor;
        fn ggml_graph_n_nodes(cgraph: *mut ggml_cgraph) -> c_int;
        fn ggml_gallocr_new(buft: ggml_backend_buffer_type_t) -> ggml_gallocr_t;
        fn ggml_gallocr_free(galloc: ggml_gallocr_t);
        fn ggml_gallocr_alloc_graph(galloc: ggml_gallocr_t, graph: *mut ggml_cgraph) -> bool;
        fn ggml_gallocr_get_buffer_size(galloc: ggml_gallocr_t, buffer_id: c_int) -> usize;
        fn ggml_backend_alloc_ctx_tensors_from_buft(ctx: *mut ggml_context, buft: ggml_backend_buffer_type_t) -> *mut ggml_backend_buffer;
        fn ggml_backend_buft_name(buft: ggml_backend_buffer_type_t) -> *const c_char;
        fn ggml_backend_buft_alloc_buffer(buft: ggml_backend_buffer_type_t, size: usize) -> ggml_backend_buffer_t;
        fn ggml_backend_buft_get_alignment(buft: ggml_backend_buffer_type_t) -> usize;
        fn ggml_backend_buft_get_max_size(buft: ggml_backend_buffer_type_t) -> usize;
        fn ggml_backend_buft_get_alloc_size(buft: ggml_backend_buffer_type_t, tensor: *const ggml_tensor) -> usize;
        fn ggml_backend_buft_get_device(buft: ggml_backend_buffer_type_t) -> ggml_backend_dev_t;
        fn ggml_backend_buft_is_host(buft: ggml_backend_buffer_type_t) -> bool;
        fn ggml_backend_buffer_init(buft: ggml_backend_buffer_type_t, iface: ggml_backend_buffer_i, context: *mut c_void, size: usize) -> ggml_backend_buffer_t;
        fn ggml_backend_buffer_free(buffer: ggml_backend_buffer_t);
        fn ggml_backend_buffer_get_base(buffer: ggml_backend_buffer_t) -> *mut c_void;
        fn ggml_backend_buffer_get_size(buffer: ggml_backend_buffer_t) -> usize;
        fn ggml_backend_buffer_clear(buffer: ggml_backend_buffer_t, value: u8);
        fn ggml_backend_buffer_reset(buffer: ggml_backend_buffer_t);
        fn ggml_backend_buffer_init_tensor(buffer: ggml_backend_buffer_t, tensor: *mut ggml_tensor) -> ggml_status;
        fn ggml_backend_buffer_get_usage(buffer: ggml_backend_buffer_t) -> ggml_backend_buffer_usage;
        fn ggml_backend_buffer_get_type(buffer: ggml_backend_buffer_t) -> ggml_backend_buffer_type_t;
        fn ggml_backend_tensor_alloc(buffer: ggml_backend_buffer_t, tensor: *mut ggml_tensor, addr: *mut c_void) -> ggml_status;
        fn ggml_backend_tensor_set(tensor: *mut ggml_tensor, data: *const c_void, offset: usize, size: usize);
        fn ggml_backend_tensor_get(tensor: *const ggml_tensor, data: *mut c_void, offset: usize, size: usize);
        fn ggml_backend_tensor_set_2d(
            tensor: *mut ggml_tensor, data: *const c_void, offset: usize, size: usize, n_copies: usize, stride_tensor: usize,
            stride_data: usize,
        );
        fn ggml_backend_tensor_get_2d(
            tensor: *const ggml_tensor, data: *mut c_void, offset: usize, size: usize, n_copies: usize, stride_tensor: usize,
            stride_data: usize,
        );
        fn ggml_backend_tensor_copy(src: *const ggml_tensor, dst: *mut ggml_tensor);
        fn ggml_backend_tensor_memset(tensor: *mut ggml_tensor, value: u8, offset: usize, size: usize);
        fn ggml_backend_name(backend: ggml_backend_t) -> *const c_char;
        fn ggml_backend_free(backend: ggml_backend_t);
        fn ggml_backend_graph_compute(backend: ggml_backend_t, cgraph: *mut ggml_cgraph) -> ggml_status;
        fn ggml_backend_synchronize(backend: ggml_backend_t);
        fn ggml_backend_get_device(backend: ggml_backend_t) -> ggml_backend_dev_t;
        fn ggml_backend_dev_name(device: ggml_backend_dev_t) -> *const c_char;
        fn ggml_backend_dev_description(device: ggml_backend_dev_t) -> *const c_char;
        fn ggml_backend_dev_memory(device: ggml_backend_dev_t, free: *mut usize, total: *mut usize);
        fn ggml_backend_dev_type(device: ggml_backend_dev_t) -> ggml_backend_dev_type;
        fn ggml_backend_dev_get_props(device: ggml_backend_dev_t, props: *mut ggml_backend_dev_props);
        fn ggml_backend_dev_backend_reg(device: ggml_backend_dev_t) -> ggml_backend_reg_t;
        fn ggml_backend_dev_init(device: ggml_backend_dev_t, params: *const c_char) -> ggml_backend_t;
        fn ggml_backend_dev_buffer_type(device: ggml_backend_dev_t) -> ggml_backend_buffer_type_t;
        fn ggml_backend_dev_supports_op(device: ggml_backend_dev_t, op: *const ggml_tensor) -> bool;
        fn ggml_backend_dev_supports_buft(device: ggml_backend_dev_t, buft: ggml_backend_buffer_type_t) -> bool;
        fn ggml_backend_dev_by_type(type_: ggml_backend_dev_type) -> ggml_backend_dev_t;
        fn ggml_backend_reg_name(reg: ggml_backend_reg_t) -> *const c_char;
        fn ggml_backend_reg_dev_count(reg: ggml_backend_reg_t) -> usize;
        fn ggml_backend_reg_dev_get(reg: ggml_backend_reg_t, index: usize) -> ggml_backend_dev_t;
        fn ggml_backend_reg_get_proc_address(reg: ggml_backend_reg_t, name: *const c_char) -> *mut c_void;
        fn ggml_backend_reg_count() -> usize;
        fn ggml_backend_reg_get(index: usize) -> ggml_backend_reg_t;
        fn ggml_backend_register(reg: ggml_backend_reg_t);
    }
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api")
            .field("version", &self.version())
            .finish_non_exhaustive()
    }
}

impl Api {
    /// Returns the process-wide table, looking the functions up at the first call.
    ///
    /// # Errors
    /// [`ApiError::MissingSymbol`] when the process has no ggml, or one without a function we need. The answer of the
    /// first call is kept: a host loads ggml before it loads a backend.
    pub fn get() -> Result<&'static Self, ApiError> {
        static TABLE: OnceLock<Result<Api, ApiError>> = OnceLock::new();
        TABLE.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    /// Returns ggml's version, such as `0.25.3`.
    #[must_use]
    pub fn version(&self) -> &'static CStr {
        // SAFETY: ggml_version takes nothing and returns a static string.
        let text = unsafe { (self.ggml_version)() };
        // SAFETY: the string is static and NUL-terminated (ggml.h).
        unsafe { CStr::from_ptr(text) }
    }

    /// Returns the commit that the host's ggml was built from, or what its build wrote there.
    #[must_use]
    pub fn commit(&self) -> &'static CStr {
        // SAFETY: ggml_commit takes nothing and returns a static string.
        let text = unsafe { (self.ggml_commit)() };
        // SAFETY: the string is static and NUL-terminated (ggml.h).
        unsafe { CStr::from_ptr(text) }
    }

    /// Returns the host's name of an operation code.
    #[must_use]
    pub fn op_name(&self, code: u32) -> String {
        // SAFETY: a pure function; the code came from one of the host's tensors.
        let name = unsafe { (self.ggml_op_name)(code) };
        // SAFETY: the name is static and NUL-terminated (ggml.h).
        unsafe { super::backend::to_string(name) }
    }

    /// Returns the `GGML_BACKEND_API_VERSION` that the host was built with: 3 where `alloc_buffer_n` exists, else 2.
    ///
    /// ggml does not export the number itself; the two versions differ by that function.
    #[must_use]
    pub fn host_api_version(&self) -> i32 {
        if Scope::find()
            .symbol("ggml_backend_buft_alloc_buffer_n")
            .is_some()
        {
            3
        } else {
            2
        }
    }
}

/// Tells whether the process has a ggml of any version.
#[must_use]
pub fn is_loaded() -> bool {
    Scope::find().symbol("ggml_init").is_some()
}

type LogGet = unsafe extern "C" fn(*mut ggml_log_callback, *mut *mut c_void);

/// Finds `ggml_log_get` without the table: even a host that is refused is told so through its own logger.
pub(crate) fn log_get() -> Option<LogGet> {
    if let Ok(api) = Api::get() {
        return Some(api.ggml_log_get);
    }
    let symbol = Scope::find().symbol("ggml_log_get")?;
    // SAFETY: the symbol has ggml's documented name and signature (ggml.h).
    Some(unsafe { std::mem::transmute::<*mut c_void, LogGet>(symbol) })
}

/// Where symbols are looked up: the global scope, or one loaded object.
struct Scope(*mut c_void);

impl Scope {
    /// Finds the scope that has ggml: the global one, else the loaded object of that name.
    fn find() -> Self {
        let global = Self(libc::RTLD_DEFAULT);
        if global.symbol("ggml_init").is_some() {
            return global;
        }
        for path in loaded_ggml_objects() {
            // SAFETY: RTLD_NOLOAD only returns a handle of an object that is loaded already; nothing is run.
            let handle =
                unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
            if !handle.is_null() {
                let scope = Self(handle);
                if scope.symbol("ggml_init").is_some() {
                    return scope;
                }
            }
        }
        global
    }

    /// Returns ggml's version as text, for messages.
    fn version(&self) -> String {
        type Version = unsafe extern "C" fn() -> *const c_char;
        let Some(symbol) = self.symbol("ggml_version") else {
            return "none".to_owned();
        };
        // SAFETY: the symbol has ggml's documented name and signature (ggml.h).
        let version = unsafe { std::mem::transmute::<*mut c_void, Version>(symbol) };
        // SAFETY: takes nothing and returns a static string.
        let text = unsafe { version() };
        if text.is_null() {
            return "none".to_owned();
        }
        // SAFETY: the string is static and NUL-terminated (ggml.h).
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }

    fn symbol(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle is RTLD_DEFAULT or came from dlopen and is never closed; the name is NUL-terminated.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!symbol.is_null()).then_some(symbol)
    }
}

/// Lists the paths of loaded objects whose file name starts with `libggml-base` or `libggml.`, that order first.
fn loaded_ggml_objects() -> Vec<CString> {
    unsafe extern "C" fn collect(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: `data` is the vector that the only caller below passes, alive during the iteration.
        let paths = unsafe { &mut *data.cast::<Vec<CString>>() };
        // SAFETY: the loader passes a valid description for the time of the call (dl_iterate_phdr(3)).
        let name = unsafe { (*info).dlpi_name };
        if !name.is_null() {
            // SAFETY: dlpi_name is NUL-terminated (dl_iterate_phdr(3)).
            paths.push(unsafe { CStr::from_ptr(name) }.to_owned());
        }
        0
    }

    let mut paths: Vec<CString> = Vec::new();
    // SAFETY: the callback matches the documented signature and `data` points to a vector that outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut paths).cast()) };
    let file_name = |path: &CString| {
        path.to_string_lossy()
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let mut found: Vec<CString> = paths
        .iter()
        .filter(|p| file_name(p).starts_with("libggml-base"))
        .cloned()
        .collect();
    found.extend(
        paths
            .iter()
            .filter(|p| file_name(p).starts_with("libggml."))
            .cloned(),
    );
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_ggml_is_refused_by_name() {
        assert_eq!(
            Api::get().err(),
            Some(ApiError::MissingSymbol {
                name: "ggml_version",
                version: "none".to_owned(),
            })
        );
    }
}
