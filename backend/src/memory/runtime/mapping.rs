//! Who makes bytes visible to a device.
//!
//! A [`Mapping`] carries out what a planner decides, one transfer after the other, on one thread: the caller's, or that of the
//! pipeline. It never decides anything. What stands behind a [`Place`](super::Place) differs:
//!
//! | device | long-lived objects that are read | those that are written, and short-lived ones | staging |
//! |---|---|---|---|
//! | host | tiles of a weight: their pages become readable ([`HostMapping`](super::HostMapping)) | always there | – |
//! | simulated | time that passes on a virtual clock ([`Observer`](super::Observer)) | the same | the same |
//! | QNN | a context with the weights of a group of layers ([`ContextMapping`](crate::device::ContextMapping)): `map` makes it from its binary, `unmap` frees it | inputs and outputs of graphs are in memory that is registered with each context while it is there, or, where registration is not supported, in client buffers that are copied at every execution: nothing to do. K and V are the host's, with whose kernels attention is computed | none: an object is a context |
//! | direct HMX | a buffer shared with the NPU | the same | one buffer, filled by copies |
//!
//! A context cannot be mapped in part: it is there from the map of its first piece to the unmap of its last. Costs of a session over contexts
//! do not prefer copies. A context that cannot be made is no error of `map`: its segments are left to the host, which plans anew.

use std::ops::Range;

use super::turn::{Piece, Turn};
use super::workload::{ObjectId, Workload};

/// Why bytes could not be made visible.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The device has no addresses or no memory left, whatever the plan says.
    #[error("no address space for `{tensor}`: {size_bytes} bytes")]
    NoRoom {
        /// The object.
        tensor: String,
        /// The length of the map.
        size_bytes: u64,
    },
    /// The device reads objects where they are mapped, and nowhere else.
    #[error("`{tensor}` cannot be copied: the device has no staging memory")]
    NoStaging {
        /// The object.
        tensor: String,
    },
    /// The mapping panicked.
    #[error("a mapping panicked")]
    Panicked,
    /// The device failed.
    #[error("`{tensor}`, {size_bytes} bytes: {source}")]
    Device {
        /// The object.
        tensor: String,
        /// The length of the map.
        size_bytes: u64,
        /// What it said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Makes bytes visible to a device, and invisible.
pub trait Mapping: std::fmt::Debug + Send {
    /// Makes a piece visible. Pieces that are visible at the same time do not overlap, in objects or in addresses.
    ///
    /// # Errors
    /// When the device refuses; nothing has become visible then.
    fn map(&mut self, piece: &Piece, workload: &Workload) -> Result<(), MapError>;

    /// Makes a piece invisible that was made visible. The piece is gone, whatever is returned.
    ///
    /// # Errors
    /// When the device complains.
    fn unmap(&mut self, piece: &Piece, workload: &Workload) -> Result<(), MapError>;

    /// Copies an object to addresses of the staging memory, which is visible. Devices without one need not say so.
    ///
    /// # Errors
    /// When the device refuses.
    fn copy(
        &mut self,
        object: ObjectId,
        range: Range<u64>,
        workload: &Workload,
    ) -> Result<(), MapError> {
        let _nowhere = range;
        let tensor = workload.object(object).name.clone();
        Err(MapError::NoStaging { tensor })
    }

    /// Prepares what the device has to be told to run a segment: called once for every turn, when all its transfers are done.
    ///
    /// # Errors
    /// When the device refuses.
    fn describe(&mut self, turn: &Turn, workload: &Workload) -> Result<(), MapError> {
        let _nothing_to_say = (turn, workload);
        Ok(())
    }
}
