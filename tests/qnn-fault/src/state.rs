//! What is alive in the library, what it was called with, and how often it was misused.

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::abi::{Node, STATIC, Tensor};
use crate::compute::Values;
use crate::fault::{Action, Faults};
use crate::memory::Memory;
use crate::number;

pub(crate) type LogCallback = unsafe extern "C" fn(*const c_char, u32, u64, *mut c_void);

/// A graph.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Graph {
    pub(crate) name: String,
    pub(crate) tensors: Vec<Tensor>,
    /// Their tensors carry no data: that is found by id.
    pub(crate) nodes: Vec<Node>,
    pub(crate) finalized: bool,
    #[serde(skip)]
    pub(crate) constants: Values,
}

impl Graph {
    /// Decodes constants.
    pub(crate) fn finalize(&mut self, formula: bool) {
        let constants = self.tensors.iter().filter(|tensor| tensor.kind == STATIC);
        self.constants = constants
            .map(|tensor| (tensor.id, number::decode(tensor, &tensor.data, formula)))
            .collect();
        self.finalized = true;
    }

    pub(crate) fn of_kind(&self, kind: u32) -> impl Iterator<Item = &Tensor> {
        self.tensors
            .iter()
            .filter(move |tensor| tensor.kind == kind)
    }
}

/// A context: the next tensor's id, and the bytes of the binary that it was read from, or of the constants that it was given.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Context {
    pub(crate) next_id: u32,
    pub(crate) size_bytes: u64,
}

#[derive(Debug, Clone)]
pub(crate) enum Object {
    Logger,
    Backend,
    Device,
    Context(Context),
    Graph(Arc<Graph>),
    Memory(Memory),
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) object: Object,
    /// Handles that have to outlive it.
    pub(crate) parents: Vec<usize>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) faults: Faults,
    pub(crate) calls: HashMap<String, u64>,
    pub(crate) violations: u64,
    pub(crate) objects: HashMap<usize, Entry>,
    pub(crate) executions: u64,
    /// Inputs and outputs that were in registered memory.
    pub(crate) n_shared: u64,
    /// The most bytes of contexts that were there at once.
    peak_context_bytes: u64,
    n_handles: usize,
    log: Option<LogCallback>,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    let text = std::env::var("QNN_FAULT").unwrap_or_default();
    let mut state = State::default();
    match text.parse() {
        Ok(faults) => state.faults = faults,
        // A test that asks for what does not exist must not pass.
        Err(_error) => state.faults.no_providers = true,
    }
    Mutex::new(state)
});

pub(crate) fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    pub(crate) fn alive(&self) -> u64 {
        let graphs = |entry: &&Entry| !matches!(entry.object, Object::Graph(_));
        self.objects.values().filter(graphs).count() as u64
    }

    /// Bytes of all contexts.
    pub(crate) fn context_bytes(&self) -> u64 {
        let contexts = self.objects.values().map(|entry| match entry.object {
            Object::Context(context) => context.size_bytes,
            _ => 0,
        });
        contexts.sum()
    }

    /// The most bytes of contexts since it was asked last.
    pub(crate) fn take_peak(&mut self) -> u64 {
        let now = self.context_bytes();
        std::mem::replace(&mut self.peak_context_bytes, now).max(now)
    }

    /// Takes notice of a context that has become larger, or is new.
    pub(crate) fn notice_peak(&mut self) {
        self.peak_context_bytes = self.peak_context_bytes.max(self.context_bytes());
    }

    pub(crate) fn set_log(&mut self, callback: Option<LogCallback>) {
        self.log = callback;
    }

    pub(crate) fn insert(&mut self, object: Object, parents: &[usize]) -> usize {
        self.n_handles += 1;
        let handle = self.n_handles << 8;
        let is_context = matches!(object, Object::Context(_));
        self.objects.insert(
            handle,
            Entry {
                object,
                parents: parents.to_vec(),
            },
        );
        if is_context {
            self.notice_peak();
        }
        handle
    }

    /// Frees a handle; `None` for one that is not there. Graphs go with their context; anything else that still needs it is a
    /// misuse.
    pub(crate) fn free(&mut self, handle: usize) -> Option<()> {
        self.objects.remove(&handle)?;
        self.objects.retain(|_, entry| {
            !(matches!(entry.object, Object::Graph(_)) && entry.parents.contains(&handle))
        });
        if self
            .objects
            .values()
            .any(|entry| entry.parents.contains(&handle))
        {
            self.violations += 1;
        }
        Some(())
    }
}

/// What a call should do.
pub(crate) struct Enter {
    /// Answer with success, but no handle.
    pub(crate) null: bool,
}

/// Counts a call and lets happen what is to go wrong at it.
///
/// # Errors
/// The code that the function has to answer.
pub(crate) fn enter(call: &str) -> Result<Enter, u64> {
    let (actions, log) = {
        let mut state = lock();
        let calls = state.calls.entry(call.to_owned()).or_default();
        *calls += 1;
        let n = *calls;
        let due = state
            .faults
            .at
            .iter()
            .filter(|at| at.call == call && n > at.after);
        (due.map(|at| at.action).collect::<Vec<_>>(), state.log)
    };
    let mut null = false;
    for action in actions {
        match action {
            Action::Fail(code) => {
                if let Some(log) = log {
                    say(log, call, code);
                }
                return Err(code);
            }
            Action::Null => null = true,
            Action::SlowMs(ms) => thread::sleep(Duration::from_millis(ms)),
            Action::Hang => loop {
                thread::sleep(Duration::from_secs(3600));
            },
            Action::Abort => std::process::abort(),
        }
    }
    Ok(Enter { null })
}

/// Calls the caller's logger as C would, with a `va_list` as the ABI lays it out.
fn say(log: LogCallback, call: &str, code: u64) {
    let name = std::ffi::CString::new(call).unwrap_or_default();
    let arguments: [u64; 2] = [name.as_ptr().expose_provenance() as u64, code];
    let stack = arguments.as_ptr();
    #[cfg(target_arch = "x86_64")]
    let mut list = {
        #[repr(C)]
        struct List {
            gp_offset: u32,
            fp_offset: u32,
            overflow: *const u64,
            registers: *const u64,
        }
        // No register is left: all arguments are on the "stack".
        List {
            gp_offset: 48,
            fp_offset: 176,
            overflow: stack,
            registers: std::ptr::null(),
        }
    };
    #[cfg(target_arch = "aarch64")]
    let mut list = {
        #[repr(C)]
        struct List {
            stack: *const u64,
            general: *const u64,
            vector: *const u64,
            general_offset: i32,
            vector_offset: i32,
        }
        List {
            stack,
            general: std::ptr::null(),
            vector: std::ptr::null(),
            general_offset: 0,
            vector_offset: 0,
        }
    };
    let format = c"fault: %s answers %llu";
    // SAFETY: the callback is the caller's; format and arguments belong together and live through the call.
    unsafe { log(format.as_ptr(), 1, 0, (&raw mut list).cast()) };
}
