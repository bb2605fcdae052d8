//! How fast an NPU is asked to be.

use std::ptr;

use super::device::Device;
use super::{Error, sys};

/// How fast, against how much power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PerformanceMode {
    /// The highest clocks, and the host polls for results.
    Burst,
    /// High clocks.
    High,
    /// Nominal clocks that follow the load.
    Balanced,
    /// Low clocks that follow the load.
    PowerSaver,
}

/// Corners of the voltage scale.
const SVS: u32 = 0x40;
const NOMINAL: u32 = 0x60;
const TURBO: u32 = 0x80;
const MAX: u32 = 0xa0;

/// Time in microseconds in which the NPU may take to wake, and for which the host polls at most.
const SLEEP_LATENCY_US: u32 = 40;
const RPC_LATENCY_US: u32 = 100;
const RPC_POLLING_US: u32 = 9999;

/// Owning handle of a vote for performance on the first core of a device; the vote ends when it is dropped. On the x86-64 emulation
/// the calls succeed and do nothing.
#[derive(Debug)]
pub struct PowerConfig {
    device: Device,
    id: u32,
    infrastructure: sys::Infrastructure,
}

// SAFETY: the vote is a number, and functions are plain code; every change takes `&mut self` or the set-up lock.
unsafe impl Send for PowerConfig {}
// SAFETY: nothing happens through a shared reference.
unsafe impl Sync for PowerConfig {}

impl PowerConfig {
    /// Prepares a vote.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Call`].
    pub fn new(device: &Device) -> Result<Self, Error> {
        let library = device.library();
        let call = "deviceGetInfrastructure";
        let get = library.table().device_get_infrastructure;
        let get = get.ok_or(Error::Missing { call })?;
        let mut infrastructure: *const sys::Infrastructure = ptr::null();
        let _setup = library.setup();
        library.call(call, || {
            // SAFETY: the signature is QNN's; the pointer is written.
            unsafe { get(&raw mut infrastructure) }
        })?;
        // SAFETY: NULL or a table of the library's, which is never unloaded.
        let infrastructure = unsafe { infrastructure.as_ref() };
        let infrastructure = *infrastructure.ok_or(Error::Answer {
            call,
            what: "no table",
        })?;
        let call = "createPowerConfigId";
        let create = infrastructure.create_power_config_id;
        let create = create.ok_or(Error::Missing { call })?;
        let mut id = 0;
        library.call(call, || {
            // SAFETY: the first core of the first device; the number is written.
            unsafe { create(0, 0, &raw mut id) }
        })?;
        Ok(Self {
            device: device.clone(),
            id,
            infrastructure,
        })
    }

    /// Votes.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Call`].
    pub fn set(&mut self, mode: PerformanceMode) -> Result<(), Error> {
        let call = "setPowerConfig";
        let set = self.infrastructure.set_power_config;
        let set = set.ok_or(Error::Missing { call })?;
        let configs = configs(self.id, mode);
        let list: Vec<*const sys::PowerConfig> = configs
            .iter()
            .map(ptr::from_ref)
            .chain([ptr::null()])
            .collect();
        self.device.library().call(call, || {
            // SAFETY: the vote's number, and a NULL-terminated list that lives through the call.
            unsafe { set(self.id, list.as_ptr()) }
        })?;
        Ok(())
    }
}

impl Drop for PowerConfig {
    fn drop(&mut self) {
        let library = self.device.library();
        let Some(destroy) = self.infrastructure.destroy_power_config_id else {
            return;
        };
        let Some(_setup) = library.setup_on_drop("destroyPowerConfigId") else {
            return;
        };
        library.call_on_drop("destroyPowerConfigId", || {
            // SAFETY: the number is createPowerConfigId's, destroyed once.
            unsafe { destroy(self.id) }
        });
    }
}

fn configs(id: u32, mode: PerformanceMode) -> Vec<sys::PowerConfig> {
    let (corner, follows_load) = match mode {
        PerformanceMode::Burst => (MAX, false),
        PerformanceMode::High => (TURBO, false),
        PerformanceMode::Balanced => (NOMINAL, true),
        PerformanceMode::PowerSaver => (SVS, true),
    };
    let one = |option, first: u32| sys::PowerConfig {
        option,
        words: [first, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    };
    let clocks = sys::PowerConfig {
        option: sys::POWER_DCVS_V3,
        words: [
            id,
            1,
            u32::from(follows_load),
            sys::POWER_MODE_PERFORMANCE,
            1,
            SLEEP_LATENCY_US,
            0,
            0,
            1,
            corner,
            corner,
            corner,
            1,
            corner,
            corner,
            corner,
        ],
    };
    let mut configs = vec![clocks, one(sys::POWER_RPC_CONTROL_LATENCY, RPC_LATENCY_US)];
    if mode == PerformanceMode::Burst {
        configs.push(one(sys::POWER_RPC_POLLING_TIME, RPC_POLLING_US));
    }
    configs
}
