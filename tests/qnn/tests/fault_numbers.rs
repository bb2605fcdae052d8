//! What graphs mean, over the library that fails on demand: it computes by itself what it was told, in plain loops.

use llada_npu_ffi::qnn::{
    Data, DataMut, DataType, Error, GraphOptions, GraphSpec, Param, Quantization, SpecError,
    TensorType,
};
use llada_npu_qnn_tests::Fault;
use llada_npu_qnn_tests::htp::half;
use llada_npu_qnn_tests::linear::{self, Weights, dim};

#[test]
fn blocks_mean_the_same_in_every_operation() {
    let fault = Fault::new("");
    let context = fault.context();
    let w = Weights::blocks(24, 64, 4, 16, true, 3);
    assert!(linear::error_of(&context, "fc", 5, &w).unwrap() < 1e-6);
    let (ty, bytes) = w.transposed();
    for op in ["MatMul", "Conv2d"] {
        let mut spec = GraphSpec::new(op, GraphOptions::default());
        let x = spec
            .input(&format!("{op}.x"), half(&[1, 1, 5, 64]))
            .unwrap();
        let weight = spec
            .constant(&format!("{op}.w"), ty.clone(), &bytes)
            .unwrap();
        let y = spec
            .output(&format!("{op}.y"), half(&[1, 1, 5, dim(w.n)]))
            .unwrap();
        match op {
            "MatMul" => spec.mat_mul("mm", x, weight, false, y).unwrap(),
            _ => spec.conv2d_1x1("conv", x, weight, y).unwrap(),
        }
        let mut graph = context.build(&spec).unwrap();
        let x = linear::inputs(5, 64, 9);
        let error = linear::nmse(
            &linear::run(&mut graph, &x).unwrap(),
            &linear::reference(&x, &w.values, 64),
        );
        assert!(error < 1e-6, "{op}: NMSE {error:e}");
    }
    assert_eq!(fault.violations(), 0);
}

#[test]
fn the_other_formula_is_noticed() {
    let fault = Fault::new("formula");
    let context = fault.context();
    let plain = Weights::blocks(24, 64, 4, 32, false, 3);
    assert!(linear::error_of(&context, "plain", 5, &plain).unwrap() < 1e-6);
    let offsets = Weights::blocks(24, 64, 4, 32, true, 3);
    assert!(linear::error_of(&context, "offsets", 5, &offsets).unwrap() > 1e-2);
}

#[test]
fn wrong_results_come_with_success() {
    for (faults, finite) in [
        ("wrong scale", true),
        ("wrong row", true),
        ("wrong nan", false),
    ] {
        let fault = Fault::new(faults);
        let error = linear::error_of(&fault.context(), "g", 5, &Weights::halves(8, 32, 1)).unwrap();
        assert_eq!(error.is_finite(), finite, "{faults}");
        assert!(!finite || error > 1e-2, "{faults}: {error:e}");
    }
}

#[test]
fn fixed_point_and_scales_per_output() {
    let fault = Fault::new("");
    let context = fault.context();
    let w = Weights::channels(24, 64, 5);
    let (ty, bytes) = w.transposed();
    let fixed = |dims: &[u32], scale: f32| {
        let offset = -32768;
        TensorType::quantized(
            DataType::Ufixed16,
            dims,
            Quantization::PerTensor { scale, offset },
        )
    };
    let (scale_x, scale_y) = (1.0 / 32000.0, 1.0 / 3000.0);
    let mut spec = GraphSpec::new("conv", GraphOptions::default());
    let x = spec.input("x", fixed(&[1, 1, 5, 64], scale_x)).unwrap();
    let weight = spec.constant("w", ty, &bytes).unwrap();
    let y = spec.output("y", fixed(&[1, 1, 5, 24], scale_y)).unwrap();
    spec.conv2d_1x1("conv2d", x, weight, y).unwrap();
    let mut graph = context.build(&spec).unwrap();
    let (stored, values) = linear::to_u16(&linear::inputs(5, 64, 9), scale_x, -32768);
    let mut result = vec![0; 2 * 5 * 24];
    graph
        .execute(&[Data::Bytes(&stored)], &mut [DataMut::Bytes(&mut result)])
        .unwrap();
    let result: Vec<f32> = result
        .chunks_exact(2)
        .map(|b| (f32::from(u16::from_le_bytes([b[0], b[1]])) - 32768.0) * scale_y)
        .collect();
    let error = linear::nmse(&result, &linear::reference(&values, &w.values, 64));
    assert!(error < 1e-6, "NMSE {error:e}");
}

#[test]
fn a_gated_unit_in_one_graph() {
    let fault = Fault::new("");
    let context = fault.context();
    let (gate_w, up_w) = (Weights::halves(16, 32, 1), Weights::halves(16, 32, 2));
    let mut spec = GraphSpec::new("ffn", GraphOptions::default());
    let x = spec.input("x", half(&[4, 32])).unwrap();
    let y = spec.output("y", half(&[4, 16])).unwrap();
    let gate_weight = spec.constant("gate.w", gate_w.ty(), &gate_w.bytes).unwrap();
    let up_weight = spec.constant("up.w", up_w.ty(), &up_w.bytes).unwrap();
    let [gate, up, silu] =
        ["gate", "up", "silu"].map(|name| spec.native(name, half(&[4, 16])).unwrap());
    spec.fully_connected("fc.gate", x, gate_weight, gate)
        .unwrap();
    spec.fully_connected("fc.up", x, up_weight, up).unwrap();
    spec.silu("op.silu", gate, silu).unwrap();
    spec.node("op.y", "ElementWiseMultiply", &[], &[silu, up], &[y])
        .unwrap();
    let mut graph = context.build(&spec).unwrap();
    let x = linear::inputs(4, 32, 3);
    let (gate, up) = (
        linear::reference(&x, &gate_w.values, 32),
        linear::reference(&x, &up_w.values, 32),
    );
    let wanted: Vec<f64> = gate
        .iter()
        .zip(&up)
        .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
        .collect();
    assert!(linear::nmse(&linear::run(&mut graph, &x).unwrap(), &wanted) < 1e-6);
}

#[test]
fn operations_that_the_library_does_not_know_are_refused() {
    let fault = Fault::new("");
    let context = fault.context();
    let mut spec = GraphSpec::new("g", GraphOptions::default());
    let x = spec.input("x", half(&[4, 4])).unwrap();
    let y = spec.output("y", half(&[4, 4])).unwrap();
    let params = [
        ("axes", Param::U32s(vec![1], vec![1])),
        ("epsilon", Param::F32(1e-6)),
    ];
    spec.node("n", "Frobnicate", &params, &[x], &[y]).unwrap();
    let refused = context.device().backend().validate(&spec);
    assert!(matches!(refused, Err(Error::Node { .. })));
    let empty = GraphSpec::new("", GraphOptions::default());
    assert!(matches!(
        context.build(&empty),
        Err(Error::Spec(SpecError::Name(_)))
    ));
}
