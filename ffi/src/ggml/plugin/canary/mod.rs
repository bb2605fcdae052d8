//! Proof that the host's tables and structs are laid out as ours.
//!
//! A canary is a C object whose every slot holds a probe: a function that writes down which slot it stands in and
//! ignores its arguments. The host's public functions are called on canaries; each must reach the slot that the pinned
//! headers name. Nothing is dereferenced on the way, so that a host with other layouts survives the question.

mod objects;

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use super::buffer::PinnedBufferInit;
use crate::ggml::api::Api;
use crate::ggml::context::Context;
use crate::ggml::sys;
use crate::ggml::types::Type;
use objects::{
    BACKEND, BUFFER, BUFT, Canaries, DEVICE, Padded, REG, buffer_i, canary_tensor, record,
};

/// What is not where we look for it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Mismatch {
    /// A public function called other slots of a table than the pinned headers say.
    #[error("{function} does not call `{slot}` where the tables of our version have it")]
    Slot {
        function: &'static str,
        slot: &'static str,
    },
    /// A struct has other fields.
    #[error("{0} differs")]
    Field(&'static str),
}

/// Asks one public function of the host and checks which slots it called first (debug builds log more names).
fn expect(
    function: &'static str,
    slot: &'static str,
    expected: &[usize],
    answer: usize,
    call: impl FnOnce(),
) -> Result<(), Mismatch> {
    {
        let mut record = record();
        record.called.clear();
        record.answer = answer;
    }
    call();
    if record().called.starts_with(expected) {
        Ok(())
    } else {
        Err(Mismatch::Slot { function, slot })
    }
}

/// Proves the layouts, or says what differs.
pub(super) fn check(api: &'static Api, api_version: i32) -> Result<(), Mismatch> {
    // The probes of all canaries write into one record.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut canaries = Canaries::new();
    canaries.connect();
    check_registry(api, &mut canaries)?;
    let buft = canaries.buft(api_version);
    check_buffer_type(api, &mut canaries, buft)?;
    check_buffer(api, buft)?;
    check_backend(api, &mut canaries)?;
    check_tensor(api)
}
/// Asks about one slot: the public function's name, the slot's name, its number, the answer, the arguments.
macro_rules! ask {
    ($api:expr, $function:ident, $slot:literal, $number:expr, $answer:expr, ($($arg:expr),*)) => {
        expect(stringify!($function), $slot, &[$number], $answer, || {
            // SAFETY: every slot of the canaries is a probe; pointers are alive or not dereferenced by the host.
            unsafe { ($api.$function)($($arg),*) };
        })
    };
}

/// Something to point at.
const NAME: &CStr = c"canary";

fn name() -> usize {
    NAME.as_ptr() as usize
}

fn check_registry(api: &Api, canaries: &mut Canaries) -> Result<(), Mismatch> {
    let reg = &raw mut canaries.reg.value;
    ask!(api, ggml_backend_reg_name, "get_name", REG, name(), (reg))?;
    ask!(
        api,
        ggml_backend_reg_dev_count,
        "get_device_count",
        REG + 1,
        3,
        (reg)
    )?;
    ask!(
        api,
        ggml_backend_reg_dev_get,
        "get_device",
        REG + 2,
        0,
        (reg, 0)
    )?;
    ask!(
        api,
        ggml_backend_reg_get_proc_address,
        "get_proc_address",
        REG + 3,
        0,
        (reg, NAME.as_ptr())
    )?;

    let dev = &raw mut canaries.device.value;
    let mut sizes = [0_usize; 2];
    let [free, total] = &mut sizes;
    // Room for a longer struct: the host zeroes it.
    let mut props = [0_usize; 64];
    let props = (&raw mut props).cast::<sys::ggml_backend_dev_props>();
    let tensor = canary_tensor(ptr::null_mut(), ptr::null_mut());
    ask!(
        api,
        ggml_backend_dev_name,
        "get_name",
        DEVICE,
        name(),
        (dev)
    )?;
    ask!(
        api,
        ggml_backend_dev_description,
        "get_description",
        DEVICE + 1,
        name(),
        (dev)
    )?;
    ask!(
        api,
        ggml_backend_dev_memory,
        "get_memory",
        DEVICE + 2,
        0,
        (dev, free, total)
    )?;
    ask!(api, ggml_backend_dev_type, "get_type", DEVICE + 3, 2, (dev))?;
    ask!(
        api,
        ggml_backend_dev_get_props,
        "get_props",
        DEVICE + 4,
        0,
        (dev, props)
    )?;
    ask!(
        api,
        ggml_backend_dev_init,
        "init_backend",
        DEVICE + 5,
        0,
        (dev, NAME.as_ptr())
    )?;
    ask!(
        api,
        ggml_backend_dev_buffer_type,
        "get_buffer_type",
        DEVICE + 6,
        0,
        (dev)
    )?;
    ask!(
        api,
        ggml_backend_dev_supports_op,
        "supports_op",
        DEVICE + 9,
        1,
        (dev, &raw const tensor)
    )?;
    ask!(
        api,
        ggml_backend_dev_supports_buft,
        "supports_buft",
        DEVICE + 10,
        1,
        (dev, ptr::null_mut())
    )?;
    // SAFETY: reads one pointer of a live object.
    let found = unsafe { (api.ggml_backend_dev_backend_reg)(dev) };
    if found == reg {
        Ok(())
    } else {
        Err(Mismatch::Field("struct ggml_backend_device"))
    }
}

fn check_buffer_type(
    api: &Api,
    canaries: &mut Canaries,
    buft: sys::ggml_backend_buffer_type_t,
) -> Result<(), Mismatch> {
    // As many bytes as the tensor has: the host checks the answer of get_alloc_size.
    let tensor = canary_tensor(ptr::null_mut(), ptr::null_mut());
    let size = tensor.nb[3];
    ask!(
        api,
        ggml_backend_buft_name,
        "get_name",
        BUFT,
        name(),
        (buft)
    )?;
    ask!(
        api,
        ggml_backend_buft_alloc_buffer,
        "alloc_buffer",
        BUFT + 1,
        0,
        (buft, 64)
    )?;
    ask!(
        api,
        ggml_backend_buft_get_alignment,
        "get_alignment",
        BUFT + 2,
        64,
        (buft)
    )?;
    ask!(
        api,
        ggml_backend_buft_get_max_size,
        "get_max_size",
        BUFT + 3,
        64,
        (buft)
    )?;
    ask!(
        api,
        ggml_backend_buft_get_alloc_size,
        "get_alloc_size",
        BUFT + 4,
        size,
        (buft, &raw const tensor)
    )?;
    ask!(
        api,
        ggml_backend_buft_is_host,
        "is_host",
        BUFT + 5,
        0,
        (buft)
    )?;
    // SAFETY: reads one pointer of a live object.
    let found = unsafe { (api.ggml_backend_buft_get_device)(buft) };
    if found == &raw mut canaries.device.value {
        Ok(())
    } else {
        Err(Mismatch::Field("struct ggml_backend_buffer_type"))
    }
}

fn check_buffer(api: &Api, buft: sys::ggml_backend_buffer_type_t) -> Result<(), Mismatch> {
    type BufferInit = unsafe extern "C" fn(
        sys::ggml_backend_buffer_type_t,
        Padded<sys::ggml_backend_buffer_i>,
        *mut c_void,
        usize,
    ) -> sys::ggml_backend_buffer_t;

    const SIZE: usize = 4096;
    // SAFETY: a longer struct in memory is read front first; see plugin::buffer::new_buffer.
    let init = unsafe {
        std::mem::transmute::<PinnedBufferInit, BufferInit>(api.ggml_backend_buffer_init)
    };
    // SAFETY: the host copies the table.
    let buffer = unsafe { init(buft, Padded::new(buffer_i()), ptr::null_mut(), SIZE) };
    // SAFETY: reads a number of a live object.
    if unsafe { (api.ggml_backend_buffer_get_size)(buffer) } != SIZE {
        return Err(Mismatch::Field("struct ggml_backend_buffer"));
    }
    let base = 0x10000;
    let mut data = [0_u8; 64];
    let data = (&raw mut data).cast::<c_void>();
    let mut a = canary_tensor(buffer, data);
    let mut b = canary_tensor(buffer, data);
    let (a, b) = (&raw mut a, &raw mut b);
    ask!(
        api,
        ggml_backend_buffer_get_base,
        "get_base",
        BUFFER + 1,
        base,
        (buffer)
    )?;
    ask!(
        api,
        ggml_backend_buffer_init_tensor,
        "init_tensor",
        BUFFER + 2,
        0,
        (buffer, a)
    )?;
    ask!(
        api,
        ggml_backend_tensor_memset,
        "memset_tensor",
        BUFFER + 3,
        0,
        (a, 0, 0, 8)
    )?;
    ask!(
        api,
        ggml_backend_tensor_set,
        "set_tensor",
        BUFFER + 4,
        0,
        (a, data, 0, 8)
    )?;
    ask!(
        api,
        ggml_backend_tensor_get,
        "get_tensor",
        BUFFER + 5,
        0,
        (a, data, 0, 8)
    )?;
    ask!(
        api,
        ggml_backend_tensor_set_2d,
        "set_tensor_2d",
        BUFFER + 6,
        0,
        (a, data, 0, 4, 2, 4, 4)
    )?;
    ask!(
        api,
        ggml_backend_tensor_get_2d,
        "get_tensor_2d",
        BUFFER + 7,
        0,
        (a, data, 0, 4, 2, 4, 4)
    )?;
    check_copy(api, a, b)?;
    ask!(
        api,
        ggml_backend_buffer_clear,
        "clear",
        BUFFER + 9,
        0,
        (buffer, 0)
    )?;
    ask!(
        api,
        ggml_backend_buffer_reset,
        "reset",
        BUFFER + 10,
        0,
        (buffer)
    )?;
    ask!(
        api,
        ggml_backend_buffer_free,
        "free_buffer",
        BUFFER,
        0,
        (buffer)
    )?;
    Ok(())
}

/// A copy asks whether source, then target, are host memory, and then the buffer.
fn check_copy(
    api: &Api,
    a: *mut sys::ggml_tensor,
    b: *mut sys::ggml_tensor,
) -> Result<(), Mismatch> {
    // Numbers whose lowest byte is 0 read as false; cpy_tensor then declines, and the host goes on by get and set.
    let called = [BUFT + 5, BUFT + 5, BUFFER + 8, BUFFER + 5, BUFFER + 4];
    expect("ggml_backend_tensor_copy", "cpy_tensor", &called, 0, || {
        // SAFETY: live tensors of one layout; every slot is a probe.
        unsafe { (api.ggml_backend_tensor_copy)(a, b) };
    })
}

fn check_backend(api: &Api, canaries: &mut Canaries) -> Result<(), Mismatch> {
    let backend = &raw mut canaries.backend.value;
    ask!(
        api,
        ggml_backend_name,
        "get_name",
        BACKEND,
        name(),
        (backend)
    )?;
    ask!(
        api,
        ggml_backend_synchronize,
        "synchronize",
        BACKEND + 7,
        0,
        (backend)
    )?;
    let called = [BACKEND + 12, BACKEND + 7];
    expect(
        "ggml_backend_graph_compute",
        "graph_compute",
        &called,
        0,
        || {
            // SAFETY: every slot is a probe; the host passes the graph on.
            unsafe { (api.ggml_backend_graph_compute)(backend, ptr::null_mut()) };
        },
    )?;
    ask!(api, ggml_backend_free, "free", BACKEND + 1, 0, (backend))?;
    // SAFETY: reads one pointer of a live object.
    let found = unsafe { (api.ggml_backend_get_device)(backend) };
    if found == &raw mut canaries.device.value {
        Ok(())
    } else {
        Err(Mismatch::Field("struct ggml_backend"))
    }
}

/// Reads what the host's builders wrote into tensors.
fn check_tensor(api: &'static Api) -> Result<(), Mismatch> {
    let ctx = Context::new(api, 8, 0);
    let a = ctx.new_tensor(Type::F16, &[5, 7, 3, 2]);
    let b = ctx.new_tensor(Type::F32, &[5, 4, 3, 2]);
    ctx.set_name(&a, "canary");
    let product = ctx.mul_mat(&a, &b);
    let view = ctx.view_2d(&a, 5, 2, 10, 30);
    // SAFETY: the tensor lives as long as `ctx`.
    let read = |tensor: &crate::ggml::context::Tensor| unsafe { *tensor.raw.as_ptr() };
    let (a_fields, product_fields, view_fields) = (read(&a), read(&product), read(&view));
    let name_bytes = NAME.to_bytes_with_nul();
    let same = a_fields.type_ == sys::GGML_TYPE_F16
        && a_fields.ne == [5, 7, 3, 2]
        && a_fields.nb == [2, 10, 70, 210]
        && a_fields.buffer.is_null()
        && a_fields.data.is_null()
        && a_fields.extra.is_null()
        && a_fields
            .name
            .iter()
            .zip(name_bytes)
            .all(|(&c, &n)| c.to_ne_bytes() == [n])
        && product_fields.ne == [7, 4, 3, 2]
        && product_fields.op != a_fields.op
        && product_fields.src[0] == a.raw.as_ptr()
        && product_fields.src[1] == b.raw.as_ptr()
        && product_fields.src[2..].iter().all(|src| src.is_null())
        && view_fields.view_src == a.raw.as_ptr()
        && view_fields.view_offs == 30;
    if same {
        Ok(())
    } else {
        Err(Mismatch::Field("struct ggml_tensor"))
    }
}
