//! The canaries: C objects full of probes.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ggml::plugin::layout::{BufferTypeIV2, BufferTypeV2};
use crate::ggml::sys;

/// Which slots were called since the last question, and what they answer.
pub(super) struct Record {
    pub(super) called: Vec<usize>,
    pub(super) answer: usize,
}

static RECORD: Mutex<Record> = Mutex::new(Record {
    called: Vec::new(),
    answer: 0,
});

pub(super) fn record() -> MutexGuard<'static, Record> {
    RECORD.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn probe<const SLOT: usize>() -> usize {
    let mut record = record();
    record.called.push(SLOT);
    record.answer
}

/// A probe in the place of a function of any signature.
macro_rules! slot {
    ($number:expr) => {{
        let probe: extern "C" fn() -> usize = probe::<{ $number }>;
        #[expect(
            clippy::missing_transmute_annotations,
            reason = "the target is the type of the slot"
        )]
        // SAFETY: the probe reads no arguments and returns in the register of integers, so that a call with other
        // arguments is harmless in the C calling conventions that we build for, where the caller cleans up.
        let slot = Some(unsafe { std::mem::transmute::<extern "C" fn() -> usize, _>(probe) });
        slot
    }};
}

// One number per slot: table × 32 + position.
pub(super) const BUFT: usize = 0;
pub(super) const BUFFER: usize = 32;
pub(super) const BACKEND: usize = 64;
pub(super) const DEVICE: usize = 96;
pub(super) const REG: usize = 128;
/// Behind a table: what a longer table of the host would call.
const BEYOND: usize = 160;

/// Probes behind a struct, for a host whose table is longer than ours.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Padded<T> {
    pub(super) value: T,
    beyond: [Option<extern "C" fn() -> usize>; 8],
}

impl<T> Padded<T> {
    pub(super) fn new(value: T) -> Self {
        Self {
            value,
            beyond: [Some(probe::<BEYOND>); 8],
        }
    }
}

/// The objects; boxed so that they stay where they are.
pub(super) struct Canaries {
    pub(super) reg: Box<Padded<sys::ggml_backend_reg>>,
    pub(super) device: Box<Padded<sys::ggml_backend_device>>,
    buft2: Box<Padded<BufferTypeV2>>,
    buft3: Box<Padded<sys::ggml_backend_buffer_type>>,
    pub(super) backend: Box<Padded<sys::ggml_backend>>,
}

impl Canaries {
    pub(super) fn new() -> Self {
        Self {
            reg: Box::new(Padded::new(sys::ggml_backend_reg {
                api_version: 0,
                iface: sys::ggml_backend_reg_i {
                    get_name: slot!(REG),
                    get_device_count: slot!(REG + 1),
                    get_device: slot!(REG + 2),
                    get_proc_address: slot!(REG + 3),
                },
                context: ptr::null_mut(),
            })),
            device: Box::new(Padded::new(sys::ggml_backend_device {
                iface: device_i(),
                reg: ptr::null_mut(),
                context: ptr::null_mut(),
            })),
            buft2: Box::new(Padded::new(BufferTypeV2 {
                iface: BufferTypeIV2 {
                    get_name: slot!(BUFT),
                    alloc_buffer: slot!(BUFT + 1),
                    get_alignment: slot!(BUFT + 2),
                    get_max_size: slot!(BUFT + 3),
                    get_alloc_size: slot!(BUFT + 4),
                    is_host: slot!(BUFT + 5),
                },
                device: ptr::null_mut(),
                context: ptr::null_mut(),
            })),
            buft3: Box::new(Padded::new(sys::ggml_backend_buffer_type {
                iface: sys::ggml_backend_buffer_type_i {
                    get_name: slot!(BUFT),
                    alloc_buffer: slot!(BUFT + 1),
                    alloc_buffer_n: slot!(BUFT + 6),
                    get_alignment: slot!(BUFT + 2),
                    get_max_size: slot!(BUFT + 3),
                    get_alloc_size: slot!(BUFT + 4),
                    get_alloc_size_n: slot!(BUFT + 7),
                    is_host: slot!(BUFT + 5),
                },
                device: ptr::null_mut(),
                context: ptr::null_mut(),
            })),
            backend: Box::new(Padded::new(sys::ggml_backend {
                guid: ptr::null_mut(),
                iface: backend_i(),
                device: ptr::null_mut(),
                context: ptr::null_mut(),
            })),
        }
    }

    pub(super) fn connect(&mut self) {
        let device = &raw mut self.device.value;
        self.device.value.reg = &raw mut self.reg.value;
        self.buft2.value.device = device;
        self.buft3.value.device = device;
        self.backend.value.device = device;
    }

    pub(super) fn buft(&mut self, api_version: i32) -> sys::ggml_backend_buffer_type_t {
        if api_version >= 3 {
            &raw mut self.buft3.value
        } else {
            (&raw mut self.buft2.value).cast()
        }
    }
}

fn device_i() -> sys::ggml_backend_device_i {
    sys::ggml_backend_device_i {
        get_name: slot!(DEVICE),
        get_description: slot!(DEVICE + 1),
        get_memory: slot!(DEVICE + 2),
        get_type: slot!(DEVICE + 3),
        get_props: slot!(DEVICE + 4),
        init_backend: slot!(DEVICE + 5),
        get_buffer_type: slot!(DEVICE + 6),
        get_host_buffer_type: slot!(DEVICE + 7),
        buffer_from_host_ptr: slot!(DEVICE + 8),
        supports_op: slot!(DEVICE + 9),
        supports_buft: slot!(DEVICE + 10),
        offload_op: slot!(DEVICE + 11),
        event_new: slot!(DEVICE + 12),
        event_free: slot!(DEVICE + 13),
        event_synchronize: slot!(DEVICE + 14),
    }
}

pub(super) fn buffer_i() -> sys::ggml_backend_buffer_i {
    sys::ggml_backend_buffer_i {
        free_buffer: slot!(BUFFER),
        get_base: slot!(BUFFER + 1),
        init_tensor: slot!(BUFFER + 2),
        memset_tensor: slot!(BUFFER + 3),
        set_tensor: slot!(BUFFER + 4),
        get_tensor: slot!(BUFFER + 5),
        set_tensor_2d: slot!(BUFFER + 6),
        get_tensor_2d: slot!(BUFFER + 7),
        cpy_tensor: slot!(BUFFER + 8),
        clear: slot!(BUFFER + 9),
        reset: slot!(BUFFER + 10),
    }
}

fn backend_i() -> sys::ggml_backend_i {
    sys::ggml_backend_i {
        get_name: slot!(BACKEND),
        free: slot!(BACKEND + 1),
        set_tensor_async: slot!(BACKEND + 2),
        get_tensor_async: slot!(BACKEND + 3),
        set_tensor_2d_async: slot!(BACKEND + 4),
        get_tensor_2d_async: slot!(BACKEND + 5),
        cpy_tensor_async: slot!(BACKEND + 6),
        synchronize: slot!(BACKEND + 7),
        graph_plan_create: slot!(BACKEND + 8),
        graph_plan_free: slot!(BACKEND + 9),
        graph_plan_update: slot!(BACKEND + 10),
        graph_plan_compute: slot!(BACKEND + 11),
        graph_compute: slot!(BACKEND + 12),
        event_record: slot!(BACKEND + 13),
        event_wait: slot!(BACKEND + 14),
        graph_optimize: slot!(BACKEND + 15),
    }
}

/// A row of eight f32.
pub(super) fn canary_tensor(
    buffer: sys::ggml_backend_buffer_t,
    data: *mut c_void,
) -> sys::ggml_tensor {
    sys::ggml_tensor {
        type_: sys::GGML_TYPE_F32,
        buffer,
        ne: [8, 1, 1, 1],
        nb: [4, 32, 32, 32],
        op: 0,
        op_params: [0; 16],
        flags: 0,
        src: [ptr::null_mut(); 10],
        view_src: ptr::null_mut(),
        view_offs: 0,
        data,
        name: [0; 64],
        extra: ptr::null_mut(),
        padding: [0; 8],
    }
}
