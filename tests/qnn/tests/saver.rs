//! What arrives in the library is what was sent: `libQnnSaver.so`, which computes nothing, writes down every field of every
//! structure it was called with. Weights in blocks it refuses; what these mean is checked by results (`htp_numbers.rs`).

use llada_npu_ffi::qnn::{
    Backend, Context, ContextOptions, Data, DataMut, DataType, Device, DeviceOptions, Error,
    GraphOptions, GraphSpec, Library, Param, Provider, Quantization, TensorType,
};
use llada_npu_qnn_tests::case::{case, directory};
use llada_npu_qnn_tests::htp::half;

const X: [u8; 24] = [7; 24];
const W8: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 0xf8];
const W4: [u8; 10] = [1, 2, 3, 4, 5, 6, 7, 0xf8, 0xff, 0];
const W4C: [u8; 15] = [9; 15];

fn fixed(data_type: DataType, dims: &[u32], scale: f32, offset: i32) -> TensorType<'static> {
    TensorType::quantized(data_type, dims, Quantization::PerTensor { scale, offset })
}

fn weights(dims: &[u32], quantization: Quantization<'static>) -> TensorType<'static> {
    TensorType::quantized(DataType::Sfixed8, dims, quantization)
}

/// A graph that makes no sense, with every kind of tensor, quantisation and parameter.
fn graph() -> Result<GraphSpec<'static>, Error> {
    let by_channel = Quantization::PerChannel {
        axis: 3,
        scales: vec![0.25, 0.5].into(),
    };
    let in_bits = Quantization::PerTensorBits {
        bits: 4,
        scale: 0.75,
        offset: 3,
    };
    let in_bits_by_channel = Quantization::PerChannelBits {
        bits: 4,
        axis: 0,
        scales: vec![0.375, 1.5, 2.5].into(),
    };
    let mut spec = GraphSpec::new("the graph", GraphOptions::default());
    let x = spec.input("x", fixed(DataType::Ufixed16, &[1, 1, 3, 4], 0.5, -7))?;
    let w8 = spec.constant("w8", weights(&[1, 1, 4, 2], by_channel), &W8)?;
    let inner = spec.native("inner", fixed(DataType::Ufixed8, &[1, 1, 3, 2], 0.125, -9))?;
    spec.conv2d_1x1("conv", x, w8, inner)?;
    let w4 = spec.constant("w4", weights(&[1, 1, 2, 5], in_bits), &W4)?;
    let next = spec.native("next", fixed(DataType::Sfixed16, &[1, 1, 3, 5], 0.0625, 11))?;
    spec.mat_mul("product", inner, w4, false, next)?;
    let w4c = spec.constant("w4c", weights(&[3, 5], in_bits_by_channel), &W4C)?;
    let last = spec.native("last", TensorType::new(DataType::Float32, &[3, 3]))?;
    spec.fully_connected("fc", next, w4c, last)?;
    let y = spec.output("y", half(&[3, 3]))?;
    let params = [
        ("float", Param::F32(1.25)),
        ("list", Param::U32s(vec![2, 2], vec![17, 18, 19, 20])),
        ("number", Param::U32(21)),
        ("flag", Param::Bool(true)),
    ];
    spec.node("other", "RmsNorm", &params, &[last], &[y])?;
    Ok(spec)
}

#[test]
fn what_arrives_is_what_was_sent() {
    case("what_arrives_is_what_was_sent", || {
        let path = directory()
            .expect("a case has libraries")
            .join("libQnnSaver.so");
        let library = Library::open(&path, Provider::Saver).unwrap();
        let backend = Backend::new(&library).unwrap();
        let device = Device::new(&backend, DeviceOptions::default()).unwrap();
        let context = Context::new(&device, ContextOptions::default()).unwrap();
        let spec = graph().unwrap();
        let mut graph = context.build(&spec).unwrap();
        let mut result = [0; 18];
        graph
            .execute(&[Data::Bytes(&X)], &mut [DataMut::Bytes(&mut result)])
            .unwrap();
        drop((library, backend, device, context, graph));
        check_text(&std::fs::read_to_string("saver_output/saver_output.c").unwrap());
        check_data(&std::fs::read("saver_output/params.bin").unwrap());
    });
}

/// Structures as they were written down. Nodes come twice, to be validated and to be added; inputs and outputs once more, to be
/// executed.
fn check_text(text: &str) {
    let tensor = |name: &str, kind: u32, data_type: u32| {
        format!("\"{name}\", (Qnn_TensorType_t){kind}, 0, (Qnn_DataType_t){data_type}, ")
    };
    let scalar = |data_type: u32, value: &str| format!("{{(Qnn_DataType_t){data_type}, {value}}};");
    let node =
        |node: &str, op: &str, n: usize| format!("= {{\"{node}\", \"qti.aisw\", \"{op}\", {n}, ");
    let encoding = |number: u32, value: &str| {
        format!("{{(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t){number}, {value}")
    };
    let none = "{(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, ";
    for (times, part) in [
        (1, "graphCreate(context_0, \"the graph\", ".to_owned()),
        (4, tensor("x", 0, 0x416)),
        (3, tensor("w8", 4, 0x308)),
        (5, tensor("inner", 3, 0x408)),
        (3, tensor("w4", 4, 0x308)),
        (5, tensor("next", 3, 0x316)),
        (3, tensor("w4c", 4, 0x308)),
        (5, tensor("last", 3, 0x232)),
        (4, tensor("y", 1, 0x216)),
        (3, tensor("conv:stride", 4, 0x132)),
        (3, tensor("other:list", 4, 0x132)),
        (4, encoding(0, ".scaleOffsetEncoding = {0.5, -7}};")),
        (5, encoding(0, ".scaleOffsetEncoding = {0.125, -9}};")),
        (5, encoding(0, ".scaleOffsetEncoding = {0.0625, 11}};")),
        (3, encoding(1, ".axisScaleOffsetEncoding = ")),
        (3, "_axisScaleOffset = {3, 2, ".to_owned()),
        (3, "_scaleOffsets[] = {{0.25, 0}, {0.5, 0}};".to_owned()),
        (3, encoding(2, ".bwScaleOffsetEncoding = {4, 0.75, 3}};")),
        (3, encoding(3, ".bwAxisScaleOffsetEncoding = ")),
        (3, "_bwAxisScaleOffset = {4, 0, 3, ".to_owned()),
        (
            3,
            "_bwAxisScaleOffset_scales[] = {0.375, 1.5, 2.5};".to_owned(),
        ),
        (3, "_bwAxisScaleOffset_offsets[] = {0, 0, 0};".to_owned()),
        // `last` and `y`, and four parameters that are tensors.
        (5 + 4 + 4 * 3, none.to_owned()),
        (4, "_dims[] = {1, 1, 3, 4};".to_owned()),
        (3, "_dims[] = {1, 1, 4, 2};".to_owned()),
        (5 + 4, "_dims[] = {3, 3};".to_owned()),
        (2, scalar(0x132, ".uint32Value = 1")),
        (2, scalar(0x132, ".uint32Value = 21")),
        (2, scalar(0x232, ".floatValue = 1.25")),
        (4, scalar(0x508, ".bool8Value = 0")),
        (2, scalar(0x508, ".bool8Value = 1")),
        (
            2,
            "{(Qnn_ParamType_t)0, \"transpose_in1\", .scalarParam = ".to_owned(),
        ),
        (
            2,
            "{(Qnn_ParamType_t)1, \"pad_amount\", .tensorParam = ".to_owned(),
        ),
        (2, node("conv", "Conv2d", 4)),
        (2, node("product", "MatMul", 2)),
        (2, node("fc", "FullyConnected", 0)),
        (2, node("other", "RmsNorm", 4)),
        (4, "backendValidateOpConfig(".to_owned()),
        (4, "graphAddNode(".to_owned()),
        (12, "tensorCreateGraphTensor(".to_owned()),
        (1, "graphFinalize(".to_owned()),
        (1, "graphExecute(".to_owned()),
    ] {
        assert_eq!(
            text.matches(&part).count(),
            times,
            "`{part}` in what was recorded:\n{text}"
        );
    }
    let order = ["contextFree(", "deviceFree(", "backendFree("].map(|call| text.find(call));
    assert!(order.is_sorted() && order[0].is_some(), "{order:?}");
}

/// Data of constants and inputs, in the order of the calls.
fn check_data(data: &[u8]) {
    let words = |words: &[u32]| {
        words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let (stride, pad, dilation) = (words(&[1, 1]), words(&[0; 4]), words(&[1, 1]));
    let list = words(&[17, 18, 19, 20]);
    let params = [&*stride, &pad, &dilation].concat();
    let nodes = [&*params, &W8, &W4, &W4C, &list].concat();
    let tensors = [&W8[..], &W4, &W4C, &params, &list].concat();
    let wanted = [&*nodes, &tensors, &nodes, &X].concat();
    assert_eq!(data[..wanted.len()], wanted);
}
