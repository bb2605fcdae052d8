//! Model files: what is missing has the right default or a name.

use llada_npu_tests::gguf_edit::Gguf;
use tempfile::TempDir;

use crate::models::{MODELS, header_of};
use crate::programs::{answer_of, path_text, programs, refused, write};

const SHIFT_KEY: &str = "diffusion.shift_logits";

fn scratch() -> TempDir {
    TempDir::new().expect("a scratch directory")
}

/// D15; R29: stock takes `true` for all architectures, and gives rubbish.
#[test]
fn a_missing_shift_key_defaults_by_architecture() {
    let directory = scratch();
    let llada_without = Gguf::read(&MODELS.llada)
        .replace(SHIFT_KEY, "diffusion.shift_lagits")
        .write(directory.path(), "llada-without-key.gguf");
    let cases = [
        (&MODELS.llada, &llada_without, "false"),
        (&MODELS.dream_with_key, &MODELS.dream, "true"),
    ];
    let length = ["-n", "24", "--diffusion-logits-eos-inf", "true"];
    for program in programs("a_missing_shift_key_defaults_by_architecture") {
        for (with, without, default) in cases {
            let text =
                |model, args: &[&str]| answer_of(&program.answer(model, &[&length, args].concat()));
            let expected = text(with, &[]);
            assert!(!expected.is_empty());
            assert_eq!(text(without, &[]), expected, "{program:?} {default}");
            // A file may say the wrong thing: the flag overrides it.
            assert_eq!(
                text(without, &["--diffusion-shift-logits", default]),
                expected
            );
            let other = if default == "true" { "false" } else { "true" };
            assert_ne!(
                text(with, &["--diffusion-shift-logits", other]),
                expected,
                "{program:?}"
            );
        }
    }
}

/// R1, R2, R9, R10, R18, R19: what is not supported is told at load, by its name, with what is.
#[test]
fn architectures_that_are_not_supported_are_named() {
    const NOT_SUPPORTED: [&str; 8] = [
        "llada-moe",
        "rnd1",
        "llada2",
        "llada2-moe",
        "diffusion-gemma",
        "diffuse",
        "sdar",
        "no-such-arch",
    ];
    let directory = scratch();
    for program in programs("architectures_that_are_not_supported_are_named") {
        for architecture in NOT_SUPPORTED {
            let path = write(&directory, "header.gguf", &header_of(architecture));
            let finished = program.run(&["-m", path_text(&path), "-p", "x"]);
            refused(architecture, &finished, &[architecture, "llada, dream"]);
        }
    }
}

/// R1: an autoregressive model is refused too, and not run as something it is not.
#[test]
fn autoregressive_models_are_refused_by_name() {
    let directory = scratch();
    let twins = [
        (&MODELS.llada, "llada", "llama"),
        (&MODELS.dream, "dream", "qwen2"),
    ];
    for program in programs("autoregressive_models_are_refused_by_name") {
        for (model, ours, twin) in twins {
            let path = Gguf::read(model)
                .replace(ours, twin)
                .write(directory.path(), "twin.gguf");
            let finished = program.answer(&path, &["-n", "4"]);
            refused(twin, &finished, &[twin, "llada, dream"]);
        }
    }
}

/// R8: a tensor that is missing has a name; Q, K and V may be one matrix or three.
#[test]
fn missing_tensors_are_named_and_fused_ones_are_taken() {
    let directory = scratch();
    for program in programs("missing_tensors_are_named_and_fused_ones_are_taken") {
        for (tensor, broken) in [
            ("blk.1.attn_k.weight", "blk.1.attn_z.weight"),
            ("blk.0.ffn_up.weight", "blk.0.ffn_uq.weight"),
            ("output_norm.weight", "output_nurm.weight"),
            ("token_embd.weight", "token_embt.weight"),
        ] {
            let path = Gguf::read(&MODELS.llada)
                .replace(tensor, broken)
                .write(directory.path(), "missing.gguf");
            let finished = program.answer(&path, &["-n", "4"]);
            refused(tensor, &finished, &[tensor]);
        }
        let fused = program.report(&MODELS.fused, &["-n", "16"]);
        assert!(fused.count("n_committed") > 0, "{program:?}");
    }
}
