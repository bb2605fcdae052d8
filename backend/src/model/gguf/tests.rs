//! One case per rejection, truncation at every byte, and bytes changed at random.

use super::builder::{Builder, RawTensor, string};
use super::fuzz::fuzz;
use super::*;

fn small() -> Builder {
    Builder::new()
        .str("general.architecture", "llada")
        .u32("general.alignment", 32)
        .bool("flag", true)
        .strings("list", &["a", "", "bcd"])
        .raw("i8", 1, &[0xfe])
        .raw("f64", 12, &0.5_f64.to_le_bytes())
        .u32s("counts", &[7, 8])
        .f32_tensor("a", &[3, 2])
        .tensor("b", GgmlType::Q4_0.id(), &[32, 2], vec![1; 36])
}

fn error(builder: &Builder) -> GgufError {
    Header::parse(&builder.build()).expect_err("the file is wrong")
}

#[test]
fn a_sound_file_is_read() {
    for version in [2, 3] {
        let bytes = Builder { version, ..small() }.build();
        let header = Header::parse(&bytes).unwrap();
        assert_eq!(header.version(), version);
        assert_eq!(
            header.value("general.architecture").unwrap().as_str(),
            Some("llada")
        );
        assert_eq!(header.value("flag").unwrap().as_bool(), Some(true));
        assert_eq!(header.value("i8"), Some(Value::Int(-2, ValueType::I8)));
        assert_eq!(header.value("i8").unwrap().as_u64(), None);
        assert_eq!(header.value("f64").unwrap().as_f64(), Some(0.5));
        assert_eq!(header.value("none"), None);
        let list = header.value("list").unwrap().as_array().unwrap();
        let list: Vec<_> = list.iter().map(|value| value.as_str().unwrap()).collect();
        assert_eq!(list, ["a", "", "bcd"]);
        let counts = header.value("counts").unwrap().as_array().unwrap();
        assert_eq!(
            counts
                .iter()
                .filter_map(|value| value.as_u64())
                .collect::<Vec<_>>(),
            [7, 8]
        );
        let [a, b] = header.tensors() else {
            panic!("two tensors")
        };
        assert_eq!(
            (a.name(), a.ty(), a.shape().ne()),
            ("a", GgmlType::F32, [3, 2, 1, 1])
        );
        assert_eq!(a.range().len(), 24);
        assert_eq!(&bytes[b.range()], &[1; 36]);
        assert!(b.shape().is(&[32, 2]) && !b.shape().is(&[32]));
        assert_eq!(b.shape().to_string(), "[32, 2]");
    }
}

#[test]
fn magic_and_version_are_refused() {
    assert_eq!(Header::parse(b"").unwrap_err(), GgufError::Empty);
    assert_eq!(
        error(&Builder {
            magic: *b"GGML",
            ..small()
        }),
        GgufError::Magic { actual: *b"GGML" }
    );
    for version in [0, 1, 4] {
        assert_eq!(
            error(&Builder { version, ..small() }),
            GgufError::Version { version }
        );
    }
    let version = 3_u32.swap_bytes();
    assert_eq!(
        error(&Builder { version, ..small() }),
        GgufError::BigEndian { version }
    );
}

#[test]
fn counts_are_compared_with_the_file() {
    for n in [1 << 40, u64::MAX, MAX_N_KV, 100] {
        assert!(
            matches!(
                error(&Builder {
                    n_kv: Some(n),
                    ..small()
                }),
                GgufError::KvCount { .. }
            ),
            "{n}"
        );
        assert!(
            matches!(
                error(&Builder {
                    n_tensors: Some(n),
                    ..small()
                }),
                GgufError::TensorCount { .. }
            ),
            "{n}"
        );
    }
}

#[test]
fn keys_and_values_are_refused() {
    let mut empty_key = small();
    empty_key.kv[0].0.clear();
    assert_eq!(error(&empty_key), GgufError::KeyLen { index: 0, len: 0 });

    let mut long_key = small();
    long_key.kv[1].0 = vec![b'k'; 1 << 16];
    assert_eq!(
        error(&long_key),
        GgufError::KeyLen {
            index: 1,
            len: 1 << 16
        }
    );

    let mut bad_utf8 = small();
    bad_utf8.kv[0].0 = vec![0xff];
    assert_eq!(error(&bad_utf8), GgufError::KeyText { index: 0 });

    bad_utf8.kv[0].0 = b"a\nb".to_vec();
    assert_eq!(error(&bad_utf8), GgufError::KeyText { index: 0 });

    let mut twice = small();
    twice.kv.push(twice.kv[0].clone());
    assert_eq!(
        error(&twice),
        GgufError::KeyDuplicate {
            key: "general.architecture".into()
        }
    );

    assert_eq!(
        error(&small().raw("x", 13, &[0; 8])),
        GgufError::ValueType {
            key: "x".into(),
            id: 13
        }
    );
    let nested = [9_u32.to_le_bytes().as_slice(), &[0; 12]].concat();
    assert_eq!(
        error(&small().raw("x", 9, &nested)),
        GgufError::NestedArray { key: "x".into() }
    );

    let long = (MAX_STRING_LEN + 1).to_le_bytes();
    assert!(matches!(
        error(&small().raw("x", 8, &long)),
        GgufError::StringLen { .. }
    ));
    let long = [8_u32.to_le_bytes().as_slice(), &1_u64.to_le_bytes(), &long].concat();
    assert!(matches!(
        error(&small().raw("x", 9, &long)),
        GgufError::StringLen { .. }
    ));
    let long = [
        0_u32.to_le_bytes().as_slice(),
        &(MAX_ARRAY_LEN + 1).to_le_bytes(),
    ]
    .concat();
    assert!(matches!(
        error(&small().raw("x", 9, &long)),
        GgufError::ArrayLen { .. }
    ));
    let past_end = [
        10_u32.to_le_bytes().as_slice(),
        &MAX_ARRAY_LEN.to_le_bytes(),
    ]
    .concat();
    assert!(matches!(
        error(&small().raw("x", 9, &past_end)),
        GgufError::Truncated { .. }
    ));
    let past_end = MAX_STRING_LEN.to_le_bytes();
    assert!(matches!(
        error(&small().raw("x", 8, &past_end)),
        GgufError::Truncated { .. }
    ));
}

#[test]
fn alignments_are_refused() {
    for alignment in [0, 3, 48, MAX_ALIGNMENT * 2] {
        assert_eq!(
            error(&small().u32("general.alignment", alignment)),
            GgufError::Alignment { alignment }
        );
    }
    assert_eq!(
        error(&small().i32("general.alignment", 32)),
        GgufError::AlignmentType { actual: "i32" }
    );
}

fn with_tensor(change: impl FnOnce(&mut RawTensor)) -> GgufError {
    let mut builder = small();
    change(&mut builder.tensors[1]);
    error(&builder)
}

#[test]
fn tensors_are_refused() {
    let name = || "b".to_owned();
    assert_eq!(
        with_tensor(|t| t.name.clear()),
        GgufError::NameLen { index: 1, len: 0 }
    );
    assert_eq!(
        with_tensor(|t| t.name = vec![b'n'; 64]),
        GgufError::NameLen { index: 1, len: 64 }
    );
    assert_eq!(
        with_tensor(|t| t.name = vec![0x80]),
        GgufError::NameText { index: 1 }
    );
    assert_eq!(
        with_tensor(|t| t.name = b"a\0b".to_vec()),
        GgufError::NameText { index: 1 }
    );
    assert_eq!(
        with_tensor(|t| t.name = b"a".to_vec()),
        GgufError::NameDuplicate { name: "a".into() }
    );
    assert_eq!(
        with_tensor(|t| t.ne.clear()),
        GgufError::DimCount {
            name: name(),
            n_dims: 0
        }
    );
    assert_eq!(
        with_tensor(|t| t.ne = vec![32; 5]),
        GgufError::DimCount {
            name: name(),
            n_dims: 5
        }
    );
    assert_eq!(
        with_tensor(|t| t.ne[1] = 0),
        GgufError::Dim {
            name: name(),
            dim: 1,
            ne: 0
        }
    );
    assert_eq!(
        with_tensor(|t| t.ne[0] = (-32_i64).cast_unsigned()),
        GgufError::Dim {
            name: name(),
            dim: 0,
            ne: -32
        }
    );
    let ne = vec![1 << 40, 1 << 40];
    assert_eq!(
        with_tensor(|t| t.ne.clone_from(&ne)),
        GgufError::ShapeOverflow { name: name(), ne }
    );
    let ne = vec![1 << 61];
    let ty = GgmlType::F64.id();
    assert_eq!(
        with_tensor(|t| (t.ne, t.type_id) = (ne.clone(), ty)),
        GgufError::ShapeOverflow { name: name(), ne }
    );
    for id in [4, 36, 43, u32::MAX] {
        assert_eq!(
            with_tensor(|t| t.type_id = id),
            GgufError::TensorType { name: name(), id }
        );
    }
    assert_eq!(
        with_tensor(|t| t.ne[0] = 33),
        GgufError::RowBlock {
            name: name(),
            ne0: 33,
            blck_size: 32,
            type_name: "q4_0"
        }
    );
    assert_eq!(
        with_tensor(|t| t.offset = Some(33)),
        GgufError::OffsetAlignment {
            name: name(),
            offset: 33,
            alignment: 32
        }
    );
    for offset in [1 << 20, u64::MAX - 31] {
        assert!(
            matches!(
                with_tensor(|t| t.offset = Some(offset)),
                GgufError::Range { .. }
            ),
            "{offset}"
        );
    }
    assert!(matches!(
        with_tensor(|t| t.ne[1] = 3),
        GgufError::Range { .. }
    ));
    assert_eq!(
        with_tensor(|t| t.offset = Some(0)),
        GgufError::Overlap {
            name: name(),
            other: "a".into()
        }
    );
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = small().build();
    assert!(Header::parse(&bytes).is_ok());
    for len in 0..bytes.len() {
        let error = Header::parse(&bytes[..len]).expect_err("cut");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

#[test]
fn messages_name_the_thing_on_one_line() {
    let message = with_tensor(|t| t.ne[1] = 3).to_string();
    assert!(
        message.starts_with("tensor `b`: 54 bytes at offset "),
        "{message}"
    );
    assert!(message.contains("exceed file of"), "{message}");
    assert_eq!(
        small_message(&string(b"x")[..7]),
        "file of 7 bytes ends inside the version: 4 bytes needed at offset 4"
    );
}

fn small_message(tail: &[u8]) -> String {
    let bytes = [b"GGUF".as_slice(), &tail[..3]].concat();
    Header::parse(&bytes).expect_err("cut").to_string()
}

#[test]
fn changed_bytes_never_panic_and_never_prove_a_range_outside() {
    fuzz(&small().build(), 20_000, |bytes| {
        let Ok(header) = Header::parse(bytes) else {
            return false;
        };
        for tensor in header.tensors() {
            assert!(tensor.range().end <= bytes.len());
        }
        true
    });
}
