//! Whole files of tiny models, each made wrong in one way.

use std::path::PathBuf;

use super::gguf::GgmlType;
use super::gguf::builder::Builder;
use super::gguf::fuzz::fuzz;
use super::mapped_file::MappedFile;
use super::*;

const N_EMBD: u64 = 8;
const N_FF: u64 = 12;
const N_VOCAB: u64 = 6;
const TOKENS: [&str; 6] = ["a", "b", "<|mdm_mask|>", "<|endoftext|>", "<|eot_id|>", "c"];

/// Two layers, two heads of four, one K/V head.
fn metadata(arch: &str) -> Builder {
    Builder::new()
        .str("general.architecture", arch)
        .u32(&format!("{arch}.block_count"), 2)
        .u32(&format!("{arch}.context_length"), 64)
        .u32(&format!("{arch}.embedding_length"), 8)
        .u32(&format!("{arch}.feed_forward_length"), 12)
        .u32(&format!("{arch}.attention.head_count"), 2)
        .u32(&format!("{arch}.attention.head_count_kv"), 1)
        .f32(&format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-5)
        .f32(&format!("{arch}.rope.freq_base"), 5e5)
        .strings("tokenizer.ggml.tokens", &TOKENS)
}

fn layer(builder: Builder, il: u32) -> Builder {
    let name = |part: &str| format!("blk.{il}.{part}.weight");
    builder
        .f32_tensor(&name("attn_norm"), &[N_EMBD])
        .f32_tensor(&name("attn_q"), &[N_EMBD, 8])
        .f32_tensor(&name("attn_k"), &[N_EMBD, 4])
        .f32_tensor(&name("attn_v"), &[N_EMBD, 4])
        .f32_tensor(&name("attn_output"), &[8, N_EMBD])
        .f32_tensor(&name("ffn_norm"), &[N_EMBD])
        .f32_tensor(&name("ffn_gate"), &[N_EMBD, N_FF])
        .f32_tensor(&name("ffn_up"), &[N_EMBD, N_FF])
        .f32_tensor(&name("ffn_down"), &[N_FF, N_EMBD])
}

fn model(arch: &str) -> Builder {
    let builder = metadata(arch)
        .f32_tensor("token_embd.weight", &[N_EMBD, N_VOCAB])
        .f32_tensor("output_norm.weight", &[N_EMBD])
        .f32_tensor("output.weight", &[N_EMBD, N_VOCAB]);
    layer(layer(builder, 0), 1)
}

fn without_tensor(mut builder: Builder, name: &str) -> Builder {
    let n = builder.tensors.len();
    builder
        .tensors
        .retain(|tensor| tensor.name != name.as_bytes());
    assert_eq!(builder.tensors.len(), n - 1);
    builder
}

fn open(builder: &Builder) -> Result<ModelFile, LoadError> {
    let dir = tempfile::tempdir().unwrap();
    let path: PathBuf = dir.path().join("m.gguf");
    builder.write(&path);
    ModelFile::open(&path)
}

fn message(builder: &Builder) -> (LoadErrorKind, String) {
    let error = open(builder).expect_err("the model is wrong");
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    let text = text
        .split_once("m.gguf: ")
        .expect("the path comes first")
        .1
        .to_owned();
    (error.kind(), text)
}

#[track_caller]
fn refused(builder: &Builder, kind: LoadErrorKind, text: &str) {
    assert_eq!(message(builder), (kind, text.to_owned()));
}

#[test]
fn a_llada_model_is_read() {
    let file = open(&model("llada")).unwrap();
    let expected = Hparams {
        architecture: "llada",
        n_layer: 2,
        n_embd: 8,
        n_ff: 12,
        n_head: 2,
        n_head_kv: 1,
        n_embd_head: 4,
        n_ctx_train: 64,
        rms_eps: 1e-5,
        rope_freq_base: 5e5,
        rope: RopeKind::Norm,
        schedule: Schedule::Blocks,
    };
    assert_eq!(file.hparams(), &expected);
    let tokens = TokenInfo {
        n_vocab: 6,
        mask: Some(2),
        eos: Some(3),
        eot: Some(4),
        shift_logits: false,
    };
    assert_eq!(file.tokens(), &tokens);
    let weights = file.weights();
    assert_eq!(weights.all().len(), 21);
    assert_eq!(weights.get(weights.output.weight).name(), "output.weight");
    assert_eq!(
        weights.get(weights.layers[1].ffn_down.weight).name(),
        "blk.1.ffn_down.weight"
    );
    assert_eq!(weights.size_bytes(), 4 * weights.n_params());
    assert!(file.check_data(&mut |_| true).is_ok());
}

#[test]
fn a_dream_model_with_biases_is_read() {
    let mut builder = model("dream");
    for il in 0..2 {
        for (part, n) in [("attn_q", 8), ("attn_k", 4), ("attn_v", 4)] {
            builder = builder.f32_tensor(&format!("blk.{il}.{part}.bias"), &[n]);
        }
    }
    let file = open(&builder).unwrap();
    assert_eq!(file.hparams().rope, RopeKind::NeoX);
    assert_eq!(file.hparams().schedule, Schedule::Timesteps);
    assert!(file.tokens().shift_logits);
    let Qkv::Split { q, k, v } = file.weights().layers[0].qkv else {
        panic!("split")
    };
    assert!(q.bias.is_some() && k.bias.is_some() && v.bias.is_some());
    assert_eq!(
        file.weights().get(v.bias.unwrap()).name(),
        "blk.0.attn_v.bias"
    );
}

#[test]
fn tied_output_and_fused_qkv_are_read() {
    let mut builder = without_tensor(model("llada"), "output.weight");
    for il in 0..2 {
        for part in ["attn_q", "attn_k", "attn_v"] {
            builder = without_tensor(builder, &format!("blk.{il}.{part}.weight"));
        }
        builder = builder.f32_tensor(&format!("blk.{il}.attn_qkv.weight"), &[N_EMBD, 16]);
    }
    let file = open(&builder.clone().f32_tensor("blk.0.attn_k.bias", &[4])).unwrap();
    let weights = file.weights();
    assert_eq!(weights.output.weight, weights.token_embd);
    let Qkv::Fused { qkv, biases } = weights.layers[0].qkv else {
        panic!("fused")
    };
    assert_eq!(qkv.bias, None);
    assert!(matches!(biases, [None, Some(_), None]));
    let file = open(&builder.f32_tensor("blk.1.attn_qkv.bias", &[16])).unwrap();
    assert!(matches!(
        file.weights().layers[1].qkv,
        Qkv::Fused {
            qkv: Linear { bias: Some(_), .. },
            ..
        }
    ));
}

#[test]
fn keys_decide_before_the_architecture() {
    let builder = model("dream")
        .bool("diffusion.shift_logits", false)
        .u32("tokenizer.ggml.mask_token_id", 5)
        .u32("tokenizer.ggml.eos_token_id", 4)
        .i32("tokenizer.ggml.eot_token_id", -1);
    let expected = TokenInfo {
        n_vocab: 6,
        mask: Some(5),
        eos: Some(4),
        eot: None,
        shift_logits: false,
    };
    assert_eq!(open(&builder).unwrap().tokens(), &expected);
}

#[test]
fn without_a_key_the_mask_comes_from_the_architecture_or_the_text() {
    let no_tokens = model("llada").without("tokenizer.ggml.tokens");
    assert_eq!(open(&no_tokens).unwrap().tokens().mask, None);
    let n_vocab = 126_400;
    let mut wide = without_tensor(
        without_tensor(no_tokens, "token_embd.weight"),
        "output.weight",
    );
    wide = wide.f32_tensor("token_embd.weight", &[N_EMBD, n_vocab]);
    assert_eq!(open(&wide).unwrap().tokens().mask, Some(126_336));
    let no_mask = model("llada").strings("tokenizer.ggml.tokens", &["a", "b", "c", "d", "e", "f"]);
    assert_eq!(open(&no_mask).unwrap().tokens().mask, None);
}

#[test]
fn other_architectures_are_refused_by_name() {
    for name in ["llama", "qwen2", "made-up"] {
        let expected = format!(
            "architecture `{name}` is not a diffusion architecture; supported: llada, dream"
        );
        refused(&model(name), LoadErrorKind::NotDiffusion, &expected);
    }
    let text = |name| {
        format!(
            "diffusion architecture `{name}` is not supported by the decoding mode; supported: llada, dream"
        )
    };
    for name in ["llada-moe", "rnd1", "llada2", "diffusion-gemma", "sdar"] {
        refused(&model(name), LoadErrorKind::Unsupported, &text(name));
    }
    let twin = model("llama").bool("diffusion.shift_logits", false);
    assert_eq!(message(&twin).0, LoadErrorKind::NotDiffusion);
    let new = model("made-up").bool("diffusion.shift_logits", true);
    refused(&new, LoadErrorKind::Unsupported, &text("made-up"));
    let none = model("llada").without("general.architecture");
    refused(
        &none,
        LoadErrorKind::Invalid,
        "key `general.architecture` is missing",
    );
}

#[test]
fn wrong_keys_are_refused_by_name() {
    use LoadErrorKind::{Invalid, Unsupported};
    let key = |suffix: &str| format!("llada.{suffix}");
    for suffix in [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ] {
        let expected = format!("key `llada.{suffix}` is missing");
        refused(&model("llada").without(&key(suffix)), Invalid, &expected);
    }
    let cases: [(Builder, LoadErrorKind, &str); 15] = [
        (
            model("llada").u32(&key("block_count"), 0),
            Invalid,
            "key `llada.block_count` is 0, expected 1 to 4096",
        ),
        (
            model("llada").u32(&key("embedding_length"), u32::MAX),
            Invalid,
            "key `llada.embedding_length` is 4294967295, expected 1 to 1048576",
        ),
        (
            model("llada").str(&key("block_count"), "2"),
            Invalid,
            "key `llada.block_count`: value of type string, expected integer",
        ),
        (
            model("llada").f32(&key("attention.layer_norm_rms_epsilon"), f32::NAN),
            Invalid,
            "key `llada.attention.layer_norm_rms_epsilon` is NaN, expected a positive finite number",
        ),
        (
            model("llada").f32(&key("rope.freq_base"), -1.0),
            Invalid,
            "key `llada.rope.freq_base` is -1, expected a positive finite number",
        ),
        (
            model("llada").u32(&key("attention.head_count"), 3),
            Invalid,
            "embedding_length 8 is not a multiple of attention.head_count 3",
        ),
        (
            model("llada").u32(&key("attention.head_count"), 8),
            Invalid,
            "heads of 1 elements, expected an even number",
        ),
        (
            model("llada").u32(&key("attention.head_count_kv"), 4),
            Invalid,
            "attention.head_count 2 is not a multiple of attention.head_count_kv 4",
        ),
        (
            model("llada").u32(&key("attention.value_length"), 2),
            Unsupported,
            "key `llada.attention.value_length` is 2, only the key length 4 is supported",
        ),
        (
            model("llada").u32(&key("rope.dimension_count"), 2),
            Unsupported,
            "key `llada.rope.dimension_count` is 2, only the key length 4 is supported",
        ),
        (
            model("llada").u32s(&key("attention.head_count_kv"), &[1, 2]),
            Unsupported,
            "key `llada.attention.head_count_kv`: different values per layer are not supported",
        ),
        (
            model("llada").str(&key("rope.scaling.type"), "yarn"),
            Unsupported,
            "key `llada.rope.scaling.type` is `yarn`: scaling of rotary embedding is not supported",
        ),
        (
            model("llada").f32(&key("rope.scaling.factor"), 4.0),
            Unsupported,
            "key `llada.rope.scaling.factor` is `4`: scaling of rotary embedding is not supported",
        ),
        (
            model("llada").u32("tokenizer.ggml.mask_token_id", 6),
            Invalid,
            "key `tokenizer.ggml.mask_token_id` is 6, expected less than the 6 tokens of the vocabulary",
        ),
        (
            model("llada").u32("diffusion.shift_logits", 1),
            Invalid,
            "key `diffusion.shift_logits`: value of type u32, expected bool",
        ),
    ];
    for (builder, kind, text) in cases {
        refused(&builder, kind, text);
    }
    let harmless = model("llada").str(&key("rope.scaling.type"), "linear");
    assert!(open(&harmless).is_ok());
    let harmless = model("llada")
        .str(&key("rope.scaling.type"), "none")
        .f32(&key("rope.scaling.factor"), 1.0);
    assert!(open(&harmless.u32s(&key("attention.head_count_kv"), &[1, 1])).is_ok());
}

#[test]
fn missing_and_wrong_tensors_are_refused_by_name() {
    use LoadErrorKind::{Invalid, Unsupported};
    let sound = model("llada");
    for tensor in &sound.tensors {
        let name = std::str::from_utf8(&tensor.name).unwrap();
        if name == "output.weight" {
            continue;
        }
        refused(
            &without_tensor(sound.clone(), name),
            Invalid,
            &format!("tensor `{name}` is missing"),
        );
        let mut wrong = sound.clone();
        let changed = wrong
            .tensors
            .iter_mut()
            .find(|t| t.name == tensor.name)
            .unwrap();
        let mut expected = changed.ne.clone();
        changed.ne[0] -= 1;
        if expected.len() == 1 {
            expected.truncate(1);
        }
        let text = format!(
            "tensor `{name}`: shape {:?}, expected {expected:?}",
            changed.ne
        );
        refused(&wrong, Invalid, &text);
    }
    let mut integer = sound.clone();
    integer.tensors[3].type_id = GgmlType::I8.id();
    assert!(message(&integer).1.ends_with("type i8, expected f32"));
    integer = sound.clone();
    integer.tensors[4].type_id = GgmlType::I8.id();
    let text = "tensor `blk.0.attn_q.weight`: type i8, expected a float or quantised type";
    refused(&integer, Unsupported, text);
    let more = sound.f32_tensor("rope_freqs.weight", &[2]);
    refused(
        &more,
        Unsupported,
        "tensor `rope_freqs.weight` is not part of architecture `llada`",
    );
}

#[test]
fn the_vocabulary_must_fit_the_embeddings() {
    let builder = model("llada").strings("tokenizer.ggml.tokens", &TOKENS[..5]);
    let text = "tensor `token_embd.weight`: shape [8, 6], expected [8, 5]";
    refused(&builder, LoadErrorKind::Invalid, text);
}

#[test]
fn invalid_numbers_are_found_on_demand() {
    let mut builder = model("llada");
    let tensor = builder
        .tensors
        .iter_mut()
        .find(|t| t.name == b"blk.1.ffn_up.weight")
        .unwrap();
    tensor.data[4 * 5..4 * 6].copy_from_slice(&f32::NAN.to_le_bytes());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    builder.write(&path);
    let file = ModelFile::open(&path).unwrap();
    let error = file.check_data(&mut |_| true).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("tensor `blk.1.ffn_up.weight`: invalid number in block 5 of type f32")
    );
    assert!(file.check_data(&mut |_| false).is_ok());
}

#[test]
fn changed_bytes_of_a_model_never_panic() {
    let sound = model("llada").build();
    fuzz(&sound, 5_000, |bytes| {
        let file = MappedFile::of_bytes(bytes);
        let path = file.path().to_owned();
        match ModelFile::of_shards(&path, &Shards::of_file(file)) {
            Err(error) => {
                assert!(!error.to_string().contains('\n'), "{error}");
                false
            }
            Ok(model) => {
                let _checked = model.check_data(&mut |_| true);
                let n_bytes: usize = model.weights().all().iter().map(|w| w.data().len()).sum();
                n_bytes <= bytes.len()
            }
        }
    });
}
