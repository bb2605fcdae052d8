//! The library that fails on demand, as an instance of its own.

use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};

use libloading::Library;
use llada_npu_ffi::qnn;
use tempfile::TempDir;

/// A copy of the QNN library of `tests/qnn-fault`, with a state of its own: tests side by side do not see each other.
#[derive(Debug)]
pub struct Fault {
    library: Library,
    path: PathBuf,
    _dir: Option<TempDir>,
}

/// Where cargo builds the library: beside the test program.
///
/// # Panics
/// Where it is not there.
pub fn built() -> PathBuf {
    let exe = std::env::current_exe().expect("the test program has a path");
    let name = "libllada_npu_qnn_fault.so";
    let dirs = exe.ancestors().skip(1).take(2);
    let found = dirs
        .flat_map(|dir| [dir.join(name), dir.join("deps").join(name)])
        .find(|path| path.exists());
    found.expect("cargo builds the library for tests with the tests")
}

impl Fault {
    /// Loads a copy in which goes wrong what `faults` says (`llada_npu_qnn_fault::Faults`).
    ///
    /// # Panics
    /// Where the library cannot be loaded, or does not know such faults.
    pub fn new(faults: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("libQnnHtp.so");
        std::fs::copy(built(), &path).expect("the library can be copied");
        let fault = Self {
            _dir: Some(dir),
            ..Self::at(path)
        };
        fault.set(faults);
        fault
    }

    /// Loads the copy at `path`, as others in this process do.
    ///
    /// # Panics
    /// Where the library cannot be loaded.
    pub fn at(path: PathBuf) -> Self {
        // SAFETY: a library of ours, whose initialisers do nothing.
        let library = unsafe { Library::new(&path) }.expect("the library loads");
        Self {
            library,
            path,
            _dir: None,
        }
    }

    /// Where it is, under the name of Qualcomm's library.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A device of it.
    ///
    /// # Errors
    /// Those that are asked for.
    pub fn device(&self) -> Result<qnn::Device, qnn::Error> {
        let library = qnn::Library::open(&self.path, qnn::Provider::Htp)?;
        let backend = qnn::Backend::new(&library)?;
        let soc = Some(qnn::Soc::SM8650);
        qnn::Device::new(&backend, qnn::DeviceOptions { soc })
    }

    /// A context of it.
    ///
    /// # Panics
    /// Where something goes wrong before there is one.
    pub fn context(&self) -> qnn::Context {
        let device = self.device();
        let context =
            device.and_then(|device| qnn::Context::new(&device, qnn::ContextOptions::default()));
        context.expect("nothing is to go wrong before there is a context")
    }

    /// Changes what goes wrong from now on; numbers of calls go on.
    ///
    /// # Panics
    /// For faults that the library does not know.
    pub fn set(&self, faults: &str) {
        let text = CString::new(faults).expect("a text without NUL");
        // SAFETY: the export has this signature.
        let set = unsafe {
            self.library
                .get::<unsafe extern "C" fn(*const c_char) -> u32>(b"qnn_fault_set")
        };
        let set = set.expect("an export of the library");
        // SAFETY: a NUL-terminated string.
        let status = unsafe { set(text.as_ptr()) };
        assert_eq!(status, 0, "`{faults}` is no fault");
    }

    /// Calls of a function so far.
    ///
    /// # Panics
    /// Never with the library of this project.
    pub fn calls(&self, name: &str) -> u64 {
        let name = CString::new(name).expect("a name without NUL");
        // SAFETY: the export has this signature.
        let calls = unsafe {
            self.library
                .get::<unsafe extern "C" fn(*const c_char) -> u64>(b"qnn_fault_calls")
        };
        let calls = calls.expect("an export of the library");
        // SAFETY: a NUL-terminated string.
        unsafe { calls(name.as_ptr()) }
    }

    /// Misuses so far.
    pub fn violations(&self) -> u64 {
        self.number(b"qnn_fault_violations")
    }

    /// Handles that are not freed.
    pub fn alive(&self) -> u64 {
        self.number(b"qnn_fault_alive")
    }

    /// The most bytes of contexts at a time since this was asked last.
    pub fn peak_bytes(&self) -> u64 {
        self.number(b"qnn_fault_peak_bytes")
    }

    /// Inputs and outputs of executions that were in registered memory.
    pub fn shared(&self) -> u64 {
        self.number(b"qnn_fault_shared")
    }

    fn number(&self, name: &[u8]) -> u64 {
        // SAFETY: the exports have this signature.
        let function = unsafe { self.library.get::<extern "C" fn() -> u64>(name) };
        function.expect("an export of the library")()
    }
}
