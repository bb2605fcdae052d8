//! Opening a QNN library: entry symbol, provider, versions, the table of functions.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::fmt;
use std::mem::transmute;
use std::os::raw::c_char;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use libloading::os::unix;

use super::sys::{self, index};
use super::{Error, ErrorCode, Failure, log};

/// A version of QNN's interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Raised by incompatible changes.
    pub major: u32,
    /// Raised by additions.
    pub minor: u32,
    /// Raised by corrections.
    pub patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl From<sys::Version> for Version {
    fn from(version: sys::Version) -> Self {
        Self {
            major: version.major,
            minor: version.minor,
            patch: version.patch,
        }
    }
}

/// Which of QNN's backends a library has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Provider {
    /// The tensor processor (`libQnnHtp.so`), or its emulation on x86-64.
    Htp,
    /// Reference implementation of few operations (`libQnnCpu.so`).
    Cpu,
    /// Records what it is called with (`libQnnSaver.so`), for tests.
    Saver,
}

impl Provider {
    /// Its name in the library.
    pub fn name(self) -> &'static str {
        match self {
            Self::Htp => "HTP_QTI_AISW",
            Self::Cpu => "CPU_QTI_AISW",
            Self::Saver => "SAVER_QTI_AISW",
        }
    }

    /// The major version of the backend's own interface whose options are used here; `None`: no options are used.
    fn major(self) -> Option<u32> {
        (self == Self::Htp).then_some(5)
    }
}

/// Declares the table of functions and how it is read.
macro_rules! table {
    (required { $($name:ident: $type:ident = $index:ident, $call:literal;)* }
     optional { $($optional:ident: $optional_type:ident = $optional_index:ident;)* }) => {
        /// The functions of a library, as many as are used here.
        #[derive(Debug)]
        pub(super) struct Table {
            $(pub(super) $name: sys::$type,)*
            $(pub(super) $optional: Option<sys::$optional_type>,)*
        }

        impl Table {
            /// Reads the table.
            ///
            /// # Safety
            /// `interface` is an interface of a loaded library whose core version has the entries of [`index`].
            unsafe fn read(interface: *const sys::Interface) -> Result<Self, Error> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the caller's promise.
                        let entry = unsafe { entry(interface, index::$index) };
                        if entry.is_null() {
                            return Err(Error::Missing { call: $call });
                        }
                        // SAFETY: not null, and the entry at this index has this signature in every core version that
                        // was let in: the table is append-only.
                        unsafe { transmute::<*const c_void, sys::$type>(entry) }
                    },)*
                    $($optional: {
                        // SAFETY: the caller's promise.
                        let entry = unsafe { entry(interface, index::$optional_index) };
                        // SAFETY: NULL is `None`; else the entry at this index has this signature, as above.
                        unsafe { transmute::<*const c_void, Option<sys::$optional_type>>(entry) }
                    },)*
                })
            }
        }
    };
}

table! {
    required {
        log_create: LogCreate = LOG_CREATE, "logCreate";
        log_free: Free = LOG_FREE, "logFree";
        backend_create: BackendCreate = BACKEND_CREATE, "backendCreate";
        backend_free: Free = BACKEND_FREE, "backendFree";
        backend_validate_op_config: BackendValidateOpConfig = BACKEND_VALIDATE_OP_CONFIG, "backendValidateOpConfig";
        context_create: ContextCreate = CONTEXT_CREATE, "contextCreate";
        context_get_binary_size: ContextGetBinarySize = CONTEXT_GET_BINARY_SIZE, "contextGetBinarySize";
        context_get_binary: ContextGetBinary = CONTEXT_GET_BINARY, "contextGetBinary";
        context_create_from_binary: ContextCreateFromBinary = CONTEXT_CREATE_FROM_BINARY, "contextCreateFromBinary";
        context_free: ContextFree = CONTEXT_FREE, "contextFree";
        graph_create: GraphCreate = GRAPH_CREATE, "graphCreate";
        graph_add_node: GraphAddNode = GRAPH_ADD_NODE, "graphAddNode";
        graph_finalize: GraphFinalize = GRAPH_FINALIZE, "graphFinalize";
        graph_retrieve: GraphRetrieve = GRAPH_RETRIEVE, "graphRetrieve";
        graph_execute: GraphExecute = GRAPH_EXECUTE, "graphExecute";
        tensor_create_graph_tensor: TensorCreateGraphTensor = TENSOR_CREATE_GRAPH_TENSOR, "tensorCreateGraphTensor";
    }
    optional {
        backend_get_build_id: BackendGetBuildId = BACKEND_GET_BUILD_ID;
        device_create: DeviceCreate = DEVICE_CREATE;
        device_free: Free = DEVICE_FREE;
        device_get_platform_info: DeviceGetPlatformInfo = DEVICE_GET_PLATFORM_INFO;
        device_free_platform_info: DeviceFreePlatformInfo = DEVICE_FREE_PLATFORM_INFO;
        device_get_infrastructure: DeviceGetInfrastructure = DEVICE_GET_INFRASTRUCTURE;
        error_get_message: ErrorGetMessage = ERROR_GET_MESSAGE;
        mem_register: MemRegister = MEM_REGISTER;
        mem_de_register: MemDeRegister = MEM_DE_REGISTER;
    }
}

/// Reads an entry of the table.
///
/// # Safety
/// `interface` is an interface of a loaded library whose table has more than `index` entries.
unsafe fn entry(interface: *const sys::Interface, index: usize) -> *const c_void {
    let offset = sys::TABLE_OFFSET + size_of::<*const c_void>() * index;
    // SAFETY: the table is part of the interface's allocation, and reaches this far by the caller's promise.
    let at = unsafe { interface.byte_add(offset) };
    // SAFETY: aligned, as the offset is a multiple of 8, and initialised by the library.
    unsafe { ptr::read(at.cast::<*const c_void>()) }
}

/// Owning handle of an opened library, with its table of functions. It is never unloaded: its threads outlive what they
/// were started for.
#[derive(Debug, Clone)]
pub struct Library(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    provider: Provider,
    core_version: Version,
    backend_version: Version,
    build_id: String,
    table: Table,
    /// Shared by all handles of one loaded library.
    locks: Arc<Locks>,
    /// What keeps the functions of the table in memory; the last field, dropped last.
    _guard: unix::Library,
}

/// What runs one at a time in a library.
#[derive(Debug, Default)]
struct Locks {
    /// Making and freeing owners: no release promises that these may run side by side.
    setup: Mutex<()>,
    /// Building and executing graphs: with two at once, the emulation of release 2.47 computes wrong results and hangs.
    work: Mutex<()>,
}

/// Returns what the loader of the system says, which often begins with the path.
fn without_path(reason: &str, path: &Path) -> String {
    let prefix = format!("{}: ", path.display());
    reason.strip_prefix(&prefix).unwrap_or(reason).to_owned()
}

impl Library {
    /// Opens a library, chooses the provider and reads its table. Code of the library runs: its initialisers and
    /// `QnnInterface_getProviders`.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::Symbol`], [`Error::Provider`], [`Error::Version`] (core 2.32 or a later 2.x and, for HTP,
    /// backend 5.x are needed), [`Error::Missing`], [`Error::Call`].
    pub fn open(path: &Path, provider: Provider) -> Result<Self, Error> {
        const SYMBOL: &str = "QnnInterface_getProviders";
        let flags = unix::RTLD_NOW | unix::RTLD_LOCAL | libc::RTLD_NODELETE;
        // SAFETY: the library's initialisers run; that the path is a QNN library is the caller's choice.
        let guard =
            unsafe { unix::Library::open(Some(path), flags) }.map_err(|error| Error::Open {
                path: path.to_owned(),
                reason: without_path(&error.to_string(), path),
            })?;
        // SAFETY: the symbol has this signature in every release (facts of the ABI).
        let symbol = unsafe { guard.get::<sys::GetProviders>(SYMBOL.as_bytes()) };
        let symbol = symbol.map_err(|_missing| Error::Symbol {
            path: path.to_owned(),
            symbol: SYMBOL,
        })?;
        let (get_providers, entry) = (*symbol, symbol.as_raw_ptr());
        let interface = find(path, provider, get_providers)?;
        // SAFETY: a provider's interface, alive as long as the library, which is never unloaded.
        let interface_ref = unsafe { &*interface };
        let core_version = Version::from(interface_ref.core_version);
        let backend_version = Version::from(interface_ref.backend_version);
        check_versions(path, provider, core_version, backend_version)?;
        // SAFETY: the interface is the library's, and its core version was just checked.
        let table = unsafe { Table::read(interface) }?;
        let build_id = table.backend_get_build_id.map(build_id).unwrap_or_default();
        Ok(Self(Arc::new(Inner {
            path: path.to_owned(),
            provider,
            core_version,
            backend_version,
            build_id,
            table,
            locks: locks_of(entry),
            _guard: guard,
        })))
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Which backend it is.
    pub fn provider(&self) -> Provider {
        self.0.provider
    }

    /// Version of QNN's common interface.
    pub fn core_version(&self) -> Version {
        self.0.core_version
    }

    /// Version of the backend's own interface.
    pub fn backend_version(&self) -> Version {
        self.0.backend_version
    }

    /// What the library calls its build, such as `v2.51.0.260929181845`; empty where it does not say. A context binary
    /// is good for this build alone.
    pub fn build_id(&self) -> &str {
        &self.0.build_id
    }

    pub(super) fn table(&self) -> &Table {
        &self.0.table
    }

    /// Held while owners are made.
    pub(super) fn setup(&self) -> MutexGuard<'_, ()> {
        self.0
            .locks
            .setup
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while a graph is built or runs.
    pub(super) fn work(&self) -> MutexGuard<'_, ()> {
        self.0
            .locks
            .work
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// [`Self::setup`] for destructors, which give up where another thread has been inside the library for long: a call that never
    /// returns must not keep others from ending. What is then not freed, is lost.
    pub(super) fn setup_on_drop(&self, call: &'static str) -> Option<MutexGuard<'_, ()>> {
        lock_on_drop(&self.0.locks.setup, call)
    }

    /// Runs a call of the library and types its error.
    pub(super) fn call(
        &self,
        call: &'static str,
        body: impl FnOnce() -> sys::Status,
    ) -> Result<(), Failure> {
        log::clear_last_error();
        let raw = body();
        if raw == 0 {
            return Ok(());
        }
        Err(Failure {
            call,
            code: ErrorCode(code(raw)),
            raw,
            message: self.message(raw),
            logged: log::take_last_error(),
        })
    }

    /// Runs a call in a destructor, where a failure can only be logged; tells whether it went well.
    pub(super) fn call_on_drop(
        &self,
        call: &'static str,
        body: impl FnOnce() -> sys::Status,
    ) -> bool {
        let result = self.call(call, body);
        if let Err(failure) = &result {
            ::log::warn!("{failure}");
        }
        result.is_ok()
    }

    /// The library's text for an error.
    fn message(&self, raw: sys::Status) -> String {
        let Some(error_get_message) = self.table().error_get_message else {
            return String::new();
        };
        let mut text = ptr::null();
        // SAFETY: the signature is QNN's; the pointer is written.
        let status = unsafe { error_get_message(raw, &raw mut text) };
        if status == 0 {
            to_string(text)
        } else {
            String::new()
        }
    }
}

/// How long a destructor waits for a call of another thread.
const DROP_LIMIT: Duration = Duration::from_secs(2);

/// Takes a lock, or gives up after a while.
fn lock_on_drop<'a>(lock: &'a Mutex<()>, call: &'static str) -> Option<MutexGuard<'a, ()>> {
    let start = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if start.elapsed() > DROP_LIMIT => {
                ::log::warn!(
                    "{call}: left out, the library has not answered another call for {DROP_LIMIT:?}"
                );
                return None;
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// The locks of a loaded library, found by the address of its entry symbol: a library may be opened more than once.
fn locks_of(entry: *mut c_void) -> Arc<Locks> {
    static LOCKS: Mutex<BTreeMap<usize, Arc<Locks>>> = Mutex::new(BTreeMap::new());
    let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(locks.entry(entry.addr()).or_default())
}

/// The code of an error: its low 16 bits, or 65535 for a value that has none but is an error all the same.
fn code(raw: sys::Status) -> u16 {
    match u16::try_from(raw & 0xffff) {
        Ok(code) if code != 0 => code,
        _ => u16::MAX,
    }
}

/// A handle that a function wrote when it answered with success.
pub(super) fn not_null(call: &'static str, handle: sys::Handle) -> Result<sys::Handle, Error> {
    if handle.is_null() {
        return Err(Error::Answer {
            call,
            what: "no handle",
        });
    }
    Ok(handle)
}

/// Finds the interface of a provider.
fn find(
    path: &Path,
    provider: Provider,
    get_providers: sys::GetProviders,
) -> Result<*const sys::Interface, Error> {
    let mut list: *const *const sys::Interface = ptr::null();
    let mut count = 0;
    // SAFETY: the signature is QNN's; both results are written.
    let status = unsafe { get_providers(&raw mut list, &raw mut count) };
    if status != 0 {
        return Err(Error::Call(Failure {
            call: "getProviders",
            code: ErrorCode(code(status)),
            raw: status,
            message: String::new(),
            logged: String::new(),
        }));
    }
    let mut found = Vec::new();
    for i in 0..if list.is_null() { 0 } else { count as usize } {
        // SAFETY: the library says that the list has more than `i` entries.
        let at = unsafe { list.add(i) };
        // SAFETY: an entry of the list, aligned and initialised.
        let interface = unsafe { *at };
        if interface.is_null() {
            continue;
        }
        // SAFETY: entries of the list are interfaces of the loaded library.
        let name = to_string(unsafe { (*interface).provider_name });
        if name == provider.name() {
            return Ok(interface);
        }
        found.push(name);
    }
    Err(Error::Provider {
        path: path.to_owned(),
        wanted: provider.name(),
        found: found.join(" "),
    })
}

fn check_versions(
    path: &Path,
    provider: Provider,
    core: Version,
    backend: Version,
) -> Result<(), Error> {
    if core.major != sys::CORE_MAJOR || core.minor < sys::CORE_MINOR {
        return Err(Error::Version {
            path: path.to_owned(),
            part: "core",
            found: core,
            needed: "2.32 or a later 2.x",
        });
    }
    if provider.major().is_some_and(|major| major != backend.major) {
        return Err(Error::Version {
            path: path.to_owned(),
            part: "backend",
            found: backend,
            needed: "5.x",
        });
    }
    Ok(())
}

fn build_id(get: sys::BackendGetBuildId) -> String {
    let mut text = ptr::null();
    // SAFETY: the signature is QNN's; the pointer is written.
    let status = unsafe { get(&raw mut text) };
    if status == 0 {
        to_string(text)
    } else {
        String::new()
    }
}

/// Copies a string of the library's; NULL is empty.
fn to_string(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: strings of the library are NUL-terminated and static.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_loader_says_is_told_without_the_path() {
        let path = Path::new("/a/lib.so");
        assert_eq!(
            without_path("/a/lib.so: invalid ELF header", path),
            "invalid ELF header"
        );
        assert_eq!(
            without_path("libdep.so: no such file", path),
            "libdep.so: no such file"
        );
    }

    #[test]
    fn codes_are_the_low_bits_and_never_zero() {
        assert_eq!(code(4000), 4000);
        assert_eq!(code(0x7_0000_0000 + 14001), 14001);
        assert_eq!(code(0x1_0000), u16::MAX);
    }

    #[test]
    fn owners_cross_threads() {
        fn check<T: Send + Sync>() {}
        check::<Library>();
        check::<super::super::Logger>();
        check::<super::super::Backend>();
        check::<super::super::Device>();
        check::<super::super::Context>();
        check::<super::super::Graph>();
        check::<super::super::PowerConfig>();
    }
}
