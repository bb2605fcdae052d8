//! The part of QNN's C ABI that is used here, declared by hand; sizes and offsets are asserted below.
//!
//! LP64, little-endian; x86-64 and aarch64 agree. Enumerations are 4 bytes wide, handles are pointers, an error is a
//! `u64` whose low 16 bits are the code. Unions of which one member is used are that member and padding.

use std::ffi::{c_char, c_void};
use std::mem::{align_of, offset_of, size_of};

pub(super) type Handle = *mut c_void;
pub(super) type Status = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Version {
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) patch: u32,
}

/// What a provider hands out; the table of functions follows at [`TABLE_OFFSET`].
#[repr(C)]
pub(super) struct Interface {
    pub(super) backend_id: u32,
    pub(super) provider_name: *const c_char,
    pub(super) core_version: Version,
    pub(super) backend_version: Version,
}

/// Offset of the table of functions in the interface, in bytes.
pub(super) const TABLE_OFFSET: usize = 40;
/// Core version whose table is the one of [`index`]; later ones only append.
pub(super) const CORE_MAJOR: u32 = 2;
pub(super) const CORE_MINOR: u32 = 32;

/// Places of functions in the table.
pub(super) mod index {
    pub(in super::super) const BACKEND_CREATE: usize = 1;
    pub(in super::super) const BACKEND_GET_BUILD_ID: usize = 4;
    pub(in super::super) const BACKEND_VALIDATE_OP_CONFIG: usize = 7;
    pub(in super::super) const BACKEND_FREE: usize = 8;
    pub(in super::super) const CONTEXT_CREATE: usize = 9;
    pub(in super::super) const CONTEXT_GET_BINARY_SIZE: usize = 11;
    pub(in super::super) const CONTEXT_GET_BINARY: usize = 12;
    pub(in super::super) const CONTEXT_CREATE_FROM_BINARY: usize = 13;
    pub(in super::super) const CONTEXT_FREE: usize = 14;
    pub(in super::super) const GRAPH_CREATE: usize = 15;
    pub(in super::super) const GRAPH_ADD_NODE: usize = 18;
    pub(in super::super) const GRAPH_FINALIZE: usize = 19;
    pub(in super::super) const GRAPH_RETRIEVE: usize = 20;
    pub(in super::super) const GRAPH_EXECUTE: usize = 21;
    pub(in super::super) const TENSOR_CREATE_GRAPH_TENSOR: usize = 24;
    pub(in super::super) const LOG_CREATE: usize = 25;
    pub(in super::super) const LOG_FREE: usize = 27;
    pub(in super::super) const MEM_REGISTER: usize = 35;
    pub(in super::super) const MEM_DE_REGISTER: usize = 36;
    pub(in super::super) const DEVICE_GET_PLATFORM_INFO: usize = 37;
    pub(in super::super) const DEVICE_FREE_PLATFORM_INFO: usize = 38;
    pub(in super::super) const DEVICE_GET_INFRASTRUCTURE: usize = 39;
    pub(in super::super) const DEVICE_CREATE: usize = 40;
    pub(in super::super) const DEVICE_FREE: usize = 43;
    pub(in super::super) const ERROR_GET_MESSAGE: usize = 48;
}

pub(super) type GetProviders =
    unsafe extern "C" fn(*mut *const *const Interface, *mut u32) -> Status;
/// The last parameter is a `va_list`, which both ABIs pass as a pointer.
pub(super) type LogCallback = unsafe extern "C" fn(*const c_char, u32, u64, *mut c_void);
pub(super) type LogCreate = unsafe extern "C" fn(LogCallback, u32, *mut Handle) -> Status;
pub(super) type Free = unsafe extern "C" fn(Handle) -> Status;
pub(super) type BackendCreate =
    unsafe extern "C" fn(Handle, *const *const Config, *mut Handle) -> Status;
pub(super) type BackendGetBuildId = unsafe extern "C" fn(*mut *const c_char) -> Status;
pub(super) type BackendValidateOpConfig = unsafe extern "C" fn(Handle, OpConfig) -> Status;
pub(super) type DeviceCreate =
    unsafe extern "C" fn(Handle, *const *const Config, *mut Handle) -> Status;
pub(super) type DeviceGetPlatformInfo =
    unsafe extern "C" fn(Handle, *mut *const PlatformInfo) -> Status;
pub(super) type DeviceFreePlatformInfo =
    unsafe extern "C" fn(Handle, *const PlatformInfo) -> Status;
pub(super) type DeviceGetInfrastructure =
    unsafe extern "C" fn(*mut *const Infrastructure) -> Status;
pub(super) type ContextCreate =
    unsafe extern "C" fn(Handle, Handle, *const *const Config, *mut Handle) -> Status;
pub(super) type ContextGetBinarySize = unsafe extern "C" fn(Handle, *mut u64) -> Status;
pub(super) type ContextGetBinary =
    unsafe extern "C" fn(Handle, *mut c_void, u64, *mut u64) -> Status;
pub(super) type ContextCreateFromBinary = unsafe extern "C" fn(
    Handle,
    Handle,
    *const *const Config,
    *const c_void,
    u64,
    *mut Handle,
    Handle,
) -> Status;
pub(super) type ContextFree = unsafe extern "C" fn(Handle, Handle) -> Status;
pub(super) type GraphCreate =
    unsafe extern "C" fn(Handle, *const c_char, *const *const Config, *mut Handle) -> Status;
pub(super) type TensorCreateGraphTensor = unsafe extern "C" fn(Handle, *mut Tensor) -> Status;
pub(super) type GraphAddNode = unsafe extern "C" fn(Handle, OpConfig) -> Status;
pub(super) type GraphFinalize = unsafe extern "C" fn(Handle, Handle, Handle) -> Status;
pub(super) type GraphRetrieve = unsafe extern "C" fn(Handle, *const c_char, *mut Handle) -> Status;
pub(super) type GraphExecute =
    unsafe extern "C" fn(Handle, *const Tensor, u32, *mut Tensor, u32, Handle, Handle) -> Status;
pub(super) type ErrorGetMessage = unsafe extern "C" fn(Status, *mut *const c_char) -> Status;
pub(super) type MemRegister =
    unsafe extern "C" fn(Handle, *const MemDescriptor, u32, *mut Handle) -> Status;
pub(super) type MemDeRegister = unsafe extern "C" fn(*const Handle, u32) -> Status;

/// An option of a backend, device, context or graph: 0 is "custom", with a pointer to the backend's own struct.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Config {
    pub(super) option: u32,
    pub(super) custom: *const c_void,
}

/// "Custom", in [`Config`].
pub(super) const CONFIG_CUSTOM: u32 = 0;

/// Custom option of a graph or context on HTP, whatever its type: options of contexts are 24 bytes, those of graphs 56,
/// of devices at most 32; what is not used is zero.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct HtpConfig {
    pub(super) option: u32,
    /// Padding; here lies the chip of a device in some releases, and in `words[0]` in the others.
    pub(super) word_at_4: u32,
    pub(super) words: [u32; 12],
}

pub(super) const HTP_GRAPH_OPTIMIZATION: u32 = 1;
pub(super) const HTP_GRAPH_PRECISION: u32 = 2;
pub(super) const HTP_GRAPH_VTCM_MB: u32 = 3;
pub(super) const HTP_GRAPH_HVX_THREADS: u32 = 6;
pub(super) const HTP_OPTIMIZATION_FINALIZE: u32 = 3;
pub(super) const HTP_CONTEXT_WEIGHT_SHARING: u32 = 1;
pub(super) const HTP_DEVICE_SOC: u32 = 0;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct ScaleOffset {
    pub(super) scale: f32,
    pub(super) offset: i32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct AxisScaleOffset {
    pub(super) axis: i32,
    pub(super) n: u32,
    pub(super) values: *const ScaleOffset,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct BwScaleOffset {
    pub(super) bits: u32,
    pub(super) scale: f32,
    pub(super) offset: i32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct BwAxisScaleOffset {
    pub(super) bits: u32,
    pub(super) axis: i32,
    pub(super) n: u32,
    pub(super) scales: *const f32,
    pub(super) offsets: *const i32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct BwFloatBlock {
    pub(super) bits: u32,
    /// As many as the tensor has dimensions.
    pub(super) block_size: *const u32,
    pub(super) values: *const super::tensor::BlockScale,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union QuantizeValue {
    pub(super) scale_offset: ScaleOffset,
    pub(super) axis: AxisScaleOffset,
    pub(super) bw: BwScaleOffset,
    pub(super) bw_axis: BwAxisScaleOffset,
    pub(super) bw_float_block: BwFloatBlock,
    pub(super) room: [u64; 4],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct QuantizeParams {
    pub(super) definition: u32,
    pub(super) encoding: u32,
    pub(super) value: QuantizeValue,
}

pub(super) const UNDEFINED: u32 = 0x7fff_ffff;
pub(super) const DEFINITION_DEFINED: u32 = 1;
pub(super) const ENCODING_SCALE_OFFSET: u32 = 0;
pub(super) const ENCODING_AXIS_SCALE_OFFSET: u32 = 1;
pub(super) const ENCODING_BW_SCALE_OFFSET: u32 = 2;
pub(super) const ENCODING_BW_AXIS_SCALE_OFFSET: u32 = 3;
pub(super) const ENCODING_BW_FLOAT_BLOCK: u32 = 11;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct ClientBuffer {
    pub(super) data: *mut c_void,
    pub(super) size: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union TensorMemory {
    pub(super) client: ClientBuffer,
    pub(super) handle: Handle,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct TensorV1 {
    pub(super) id: u32,
    pub(super) name: *const c_char,
    pub(super) kind: u32,
    pub(super) data_format: u32,
    pub(super) data_type: u32,
    pub(super) quantize_params: QuantizeParams,
    pub(super) rank: u32,
    pub(super) dims: *const u32,
    pub(super) memory_type: u32,
    pub(super) memory: TensorMemory,
}

/// A tensor, always of version 1; the rest is room for version 2.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Tensor {
    pub(super) version: u32,
    pub(super) v1: TensorV1,
    pub(super) room: [u64; 3],
}

pub(super) const TENSOR_APP_WRITE: u32 = 0;
pub(super) const TENSOR_APP_READ: u32 = 1;
pub(super) const TENSOR_NATIVE: u32 = 3;
pub(super) const TENSOR_STATIC: u32 = 4;
pub(super) const MEMORY_RAW: u32 = 0;
pub(super) const MEMORY_HANDLE: u32 = 1;
pub(super) const DATA_FORMAT_DENSE: u32 = 0;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Scalar {
    pub(super) data_type: u32,
    /// A union; little-endian, so that narrower members are its first bytes.
    pub(super) value: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union ParamValue {
    pub(super) scalar: Scalar,
    pub(super) tensor: Tensor,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Param {
    pub(super) kind: u32,
    pub(super) name: *const c_char,
    pub(super) value: ParamValue,
}

pub(super) const PARAM_SCALAR: u32 = 0;
pub(super) const PARAM_TENSOR: u32 = 1;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct OpConfigV1 {
    pub(super) name: *const c_char,
    pub(super) package: *const c_char,
    pub(super) op: *const c_char,
    pub(super) n_params: u32,
    pub(super) params: *const Param,
    pub(super) n_inputs: u32,
    pub(super) inputs: *const Tensor,
    pub(super) n_outputs: u32,
    pub(super) outputs: *const Tensor,
}

/// An operation; functions take it by value.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct OpConfig {
    pub(super) version: u32,
    pub(super) v1: OpConfigV1,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct PlatformInfo {
    pub(super) version: u32,
    pub(super) unused: u32,
    pub(super) n_devices: u32,
    pub(super) devices: *const HardwareDevice,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct HardwareDevice {
    pub(super) version: u32,
    pub(super) unused: u32,
    pub(super) device_id: u32,
    pub(super) kind: u32,
    pub(super) n_cores: u32,
    pub(super) cores: *const c_void,
    pub(super) extension: *const HtpDeviceExtension,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct HtpDeviceExtension {
    pub(super) kind: u32,
    pub(super) vtcm_mb: usize,
    pub(super) soc_model: u32,
    pub(super) signed_pd: u8,
    pub(super) dlbc: u8,
    pub(super) arch: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Infrastructure {
    pub(super) kind: u32,
    pub(super) create_power_config_id: Option<unsafe extern "C" fn(u32, u32, *mut u32) -> Status>,
    pub(super) destroy_power_config_id: Option<unsafe extern "C" fn(u32) -> Status>,
    pub(super) set_power_config:
        Option<unsafe extern "C" fn(u32, *const *const PowerConfig) -> Status>,
    pub(super) set_memory_config: Option<unsafe extern "C" fn() -> Status>,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct PowerConfig {
    pub(super) option: u32,
    /// Of [`POWER_DCVS_V3`]: context, set enable, enable, mode, set sleep latency, it, set sleep disable, it, set bus, its
    /// least, target and most, set core, its least, target and most. Of the others the first word alone.
    pub(super) words: [u32; 16],
}

pub(super) const POWER_DCVS_V3: u32 = 1;
pub(super) const POWER_RPC_CONTROL_LATENCY: u32 = 2;
pub(super) const POWER_RPC_POLLING_TIME: u32 = 3;
pub(super) const POWER_MODE_PERFORMANCE: u32 = 0x10;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct MemShape {
    pub(super) n: u32,
    pub(super) dims: *const u32,
    pub(super) config: *const c_char,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct MemDescriptor {
    pub(super) shape: MemShape,
    pub(super) data_type: u32,
    pub(super) kind: u32,
    pub(super) fd: i32,
    pub(super) unused: [u32; 3],
}

pub(super) const MEM_ION: u32 = 1;

const _: () = {
    assert!(size_of::<usize>() == 8 && cfg!(target_endian = "little"));
    assert!(size_of::<Version>() == 12);
    assert!(offset_of!(Interface, provider_name) == 8);
    assert!(offset_of!(Interface, core_version) == 16);
    assert!(offset_of!(Interface, backend_version) == 28);
    assert!(size_of::<Interface>() == TABLE_OFFSET);
    assert!(size_of::<Config>() == 16 && offset_of!(Config, custom) == 8);
    assert!(size_of::<HtpConfig>() == 56 && offset_of!(HtpConfig, words) == 8);
    assert!(offset_of!(HtpConfig, word_at_4) == 4);
    assert!(size_of::<ScaleOffset>() == 8 && offset_of!(ScaleOffset, offset) == 4);
    assert!(size_of::<AxisScaleOffset>() == 16 && offset_of!(AxisScaleOffset, values) == 8);
    assert!(size_of::<BwScaleOffset>() == 12);
    assert!(size_of::<BwAxisScaleOffset>() == 32);
    assert!(offset_of!(BwAxisScaleOffset, axis) == 4 && offset_of!(BwAxisScaleOffset, n) == 8);
    assert!(
        offset_of!(BwAxisScaleOffset, scales) == 16 && offset_of!(BwAxisScaleOffset, offsets) == 24
    );
    assert!(size_of::<BwFloatBlock>() == 24 && offset_of!(BwFloatBlock, block_size) == 8);
    assert!(offset_of!(BwFloatBlock, values) == 16);
    assert!(
        size_of::<super::tensor::BlockScale>() == 8
            && offset_of!(super::tensor::BlockScale, offset) == 4
    );
    assert!(size_of::<QuantizeParams>() == 40);
    assert!(offset_of!(QuantizeParams, encoding) == 4 && offset_of!(QuantizeParams, value) == 8);
    assert!(size_of::<ClientBuffer>() == 16 && offset_of!(ClientBuffer, size) == 8);
    assert!(size_of::<TensorV1>() == 112);
    assert!(offset_of!(TensorV1, name) == 8 && offset_of!(TensorV1, kind) == 16);
    assert!(offset_of!(TensorV1, data_format) == 20 && offset_of!(TensorV1, data_type) == 24);
    assert!(offset_of!(TensorV1, quantize_params) == 32 && offset_of!(TensorV1, rank) == 72);
    assert!(offset_of!(TensorV1, dims) == 80 && offset_of!(TensorV1, memory_type) == 88);
    assert!(offset_of!(TensorV1, memory) == 96);
    assert!(size_of::<Tensor>() == 144 && offset_of!(Tensor, v1) == 8 && align_of::<Tensor>() == 8);
    assert!(size_of::<Scalar>() == 16 && offset_of!(Scalar, value) == 8);
    assert!(
        size_of::<Param>() == 160 && offset_of!(Param, name) == 8 && offset_of!(Param, value) == 16
    );
    assert!(size_of::<OpConfigV1>() == 72);
    assert!(offset_of!(OpConfigV1, package) == 8 && offset_of!(OpConfigV1, op) == 16);
    assert!(offset_of!(OpConfigV1, n_params) == 24 && offset_of!(OpConfigV1, params) == 32);
    assert!(offset_of!(OpConfigV1, n_inputs) == 40 && offset_of!(OpConfigV1, inputs) == 48);
    assert!(offset_of!(OpConfigV1, n_outputs) == 56 && offset_of!(OpConfigV1, outputs) == 64);
    assert!(size_of::<OpConfig>() == 80 && offset_of!(OpConfig, v1) == 8);
    assert!(size_of::<PlatformInfo>() == 24 && offset_of!(PlatformInfo, n_devices) == 8);
    assert!(offset_of!(PlatformInfo, devices) == 16);
    assert!(size_of::<HardwareDevice>() == 40 && offset_of!(HardwareDevice, device_id) == 8);
    assert!(
        offset_of!(HardwareDevice, n_cores) == 16 && offset_of!(HardwareDevice, extension) == 32
    );
    assert!(size_of::<HtpDeviceExtension>() == 32 && offset_of!(HtpDeviceExtension, vtcm_mb) == 8);
    assert!(
        offset_of!(HtpDeviceExtension, soc_model) == 16
            && offset_of!(HtpDeviceExtension, signed_pd) == 20
    );
    assert!(
        offset_of!(HtpDeviceExtension, dlbc) == 21 && offset_of!(HtpDeviceExtension, arch) == 24
    );
    assert!(
        size_of::<Infrastructure>() == 40
            && offset_of!(Infrastructure, create_power_config_id) == 8
    );
    assert!(size_of::<PowerConfig>() == 68 && offset_of!(PowerConfig, words) == 4);
    assert!(
        size_of::<MemShape>() == 24
            && offset_of!(MemShape, dims) == 8
            && offset_of!(MemShape, config) == 16
    );
    assert!(size_of::<MemDescriptor>() == 48 && offset_of!(MemDescriptor, data_type) == 24);
    assert!(offset_of!(MemDescriptor, kind) == 28 && offset_of!(MemDescriptor, fd) == 32);
};
