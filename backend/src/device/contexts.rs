//! QNN contexts as objects of the memory runtime: a group of layers is mapped by making a context from its binary, and unmapped
//! by freeing it.
//!
//! A context is one piece: the limits of such a session let a map be as long as the budget. Objects without a binary
//! (activations, K and V) need no map: executions copy them from and to plain memory, or whoever executes registers their
//! memory with the contexts that are mapped.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llada_npu_ffi::qnn::{Context, ContextBinary, Device, Error, ErrorCode};

use crate::memory::runtime::{MapError, Mapping, ObjectId, Piece, Place, Workload};

/// Where the binary of a context lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinaryFile {
    /// The file, as [`ContextBinary::to_bytes`] gave it.
    pub path: PathBuf,
    /// What it was written with.
    pub key: Vec<u8>,
}

/// The contexts that are mapped now.
#[derive(Clone, Debug, Default)]
pub struct Contexts(Arc<Mutex<BTreeMap<ObjectId, Context>>>);

impl Contexts {
    /// Returns the context of an object, if it is mapped. Its memory is given back when it is unmapped and the last clone and
    /// graph are gone: whoever runs a segment drops both at its end.
    #[must_use]
    pub fn get(&self, object: ObjectId) -> Option<Context> {
        self.lock().get(&object).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectId, Context>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes contexts of a device from files, and frees them.
#[derive(Debug)]
pub struct ContextMapping {
    device: Device,
    /// By number of the object; `None` for those without a context.
    binaries: Vec<Option<BinaryFile>>,
    contexts: Contexts,
}

/// Why a context could not be made.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Qnn { path: PathBuf, source: Error },
    #[error("a context is mapped as a whole: bytes from {offset_bytes} on are asked for")]
    Part { offset_bytes: u64 },
}

impl ContextMapping {
    /// Makes a mapping, with the file of each object by number.
    #[must_use]
    pub fn new(device: Device, binaries: Vec<Option<BinaryFile>>) -> Self {
        Self {
            device,
            binaries,
            contexts: Contexts::default(),
        }
    }

    /// Returns what is mapped, now and later.
    #[must_use]
    pub fn contexts(&self) -> Contexts {
        self.contexts.clone()
    }

    fn load(&self, file: &BinaryFile) -> Result<Context, LoadError> {
        let path = || file.path.clone();
        let read = |source| LoadError::Read {
            path: path(),
            source,
        };
        let qnn = |source| LoadError::Qnn {
            path: path(),
            source,
        };
        let bytes = std::fs::read(&file.path).map_err(read)?;
        let binary = ContextBinary::from_bytes(&bytes, &file.key).map_err(qnn)?;
        Context::from_binary(&self.device, &binary).map_err(qnn)
    }
}

impl Mapping for ContextMapping {
    fn map(&mut self, piece: &Piece, workload: &Workload) -> Result<(), MapError> {
        let Place::Object(object) = piece.place else {
            return Ok(());
        };
        let Some(Some(file)) = self.binaries.get(object.0) else {
            return Ok(());
        };
        let whole = match piece.offset_bytes {
            0 => Ok(()),
            offset_bytes => Err(LoadError::Part { offset_bytes }),
        };
        let tensor = || workload.object(object).name.clone();
        let context = whole.and_then(|()| self.load(file));
        let context = context.map_err(|error| match error {
            LoadError::Qnn { source, .. } if source.code() == Some(ErrorCode::MEM_ALLOC) => {
                MapError::NoRoom {
                    tensor: tensor(),
                    size_bytes: piece.size_bytes(),
                }
            }
            error => MapError::Device {
                tensor: tensor(),
                size_bytes: piece.size_bytes(),
                source: Box::new(error),
            },
        })?;
        self.contexts.lock().insert(object, context);
        Ok(())
    }

    fn unmap(&mut self, piece: &Piece, _workload: &Workload) -> Result<(), MapError> {
        if let Place::Object(object) = piece.place {
            let context = self.contexts.lock().remove(&object);
            // Freed outside of the lock, which runs take.
            drop(context);
        }
        Ok(())
    }
}
