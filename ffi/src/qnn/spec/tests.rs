use std::borrow::Cow;

use super::*;

fn half(dims: &[u32]) -> TensorType<'static> {
    TensorType::new(DataType::Float16, dims)
}

#[test]
fn a_linear_layer_is_a_graph() {
    let weights = [0_u8; 2 * 4 * 8];
    let mut spec = GraphSpec::new("g", GraphOptions::default());
    let x = spec.input("x", half(&[2, 8])).unwrap();
    let w = spec.constant("w", half(&[4, 8]), &weights).unwrap();
    let y = spec.output("y", half(&[2, 4])).unwrap();
    assert_eq!(
        spec.check(),
        Err(SpecError::Empty {
            graph: "g".into(),
            what: "node"
        })
    );
    spec.fully_connected("fc", x, w, y).unwrap();
    spec.check().unwrap();
    let again = spec.output("y2", half(&[2, 4])).unwrap();
    assert!(matches!(spec.check(), Err(SpecError::Loose { .. })));
    assert!(matches!(
        spec.fully_connected("fc", x, w, again),
        Err(SpecError::Duplicate(_))
    ));
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let weights = [0_u8; 2 * 4 * 8];
    let mut spec = GraphSpec::new("g", GraphOptions::default());
    let x = spec.input("x", half(&[2, 8])).unwrap();
    let w = spec.constant("w", half(&[4, 8]), &weights).unwrap();
    let wide = spec.output("wide", half(&[2, 8])).unwrap();
    let y = spec.output("y", half(&[2, 4])).unwrap();
    assert!(spec.fully_connected("a", x, w, wide).is_err());
    assert!(
        spec.fully_connected("b", x, wide, y).is_err(),
        "an output that nothing writes is no weight"
    );
    assert!(spec.mat_mul("c", x, w, false, y).is_err());
    assert!(spec.conv2d_1x1("d", x, w, y).is_err());
    assert!(
        spec.node("e", "Sigmoid", &[], &[x], &[x]).is_err(),
        "an input cannot be written"
    );
    assert!(
        spec.node("f", "Sigmoid", &[], &[TensorId(99)], &[y])
            .is_err()
    );
    spec.mat_mul("h", x, w, true, y).unwrap();
    assert!(spec.mat_mul("i", x, w, true, y).is_err(), "written twice");
    assert!(
        spec.constant("short", half(&[4, 8]), &weights[1..])
            .is_err()
    );
    assert!(spec.input("", half(&[1])).is_err());
    assert!(spec.input("x", half(&[1])).is_err());
    let scales = Cow::Owned(vec![1.0; 8]);
    let quantization = Quantization::PerChannel { axis: 1, scales };
    let by_channel = TensorType::quantized(DataType::Sfixed8, &[2, 8], quantization);
    assert!(spec.input("q", by_channel).is_err());
}

#[test]
fn a_product_never_lacks_its_parameters() {
    let weights = [0_u8; 2 * 4 * 8];
    let mut spec = GraphSpec::new("g", GraphOptions::default());
    let x = spec.input("x", half(&[2, 8])).unwrap();
    let w = spec.constant("w", half(&[8, 4]), &weights).unwrap();
    let y = spec.output("y", half(&[2, 4])).unwrap();
    spec.node("m", "MatMul", &[], &[x, w], &[y]).unwrap();
    assert_eq!(spec.nodes[0].params.len(), 2);
}
