//! The C interface of the decoding mode: layouts against a C compiler, and a C program that calls all of it.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::PathBuf;
use std::process::Command;

use ggml_llada_npu::abi::proc;
use llada_npu_tests::files::{repository, trained};
use llada_npu_tests::gguf_edit::Gguf;
use llada_npu_tests::host::{compile, plugin, stock, succeed};

fn include_flag() -> String {
    format!("-I{}", repository().join("backend/include").display())
}

macro_rules! layout {
    ($out:ident, $($c:literal = $ty:ident { $($field:ident $(= $name:literal)?),* $(,)? })*) => { $(
        $out.push((format!("sizeof(struct {})", $c), size_of::<proc::$ty>()));
        $(
            let name: &[&str] = &[stringify!($field), $($name)?];
            let expression = format!("offsetof(struct {}, {})", $c, name.last().unwrap());
            $out.push((expression, offset_of!(proc::$ty, $field)));
        )*
    )* };
}

fn layouts() -> Vec<(String, usize)> {
    let mut out = Vec::new();
    layout! { out,
        "ggml_diffusion_option_info" = OptionInfo { size, key, value_name, default_value, help }
        "ggml_diffusion_model_params" = ModelParams { size, check_tensors, progress, progress_user_data }
        "ggml_diffusion_model_info" = ModelInfo {
            size, architecture, n_vocab, n_ctx_train, mask_token, eos_token, eot_token, shift_logits, n_params, size_bytes,
        }
        "ggml_diffusion_session_params" = SessionParams {
            size, n_ctx, n_threads, type_k, type_v, seed, temperature, top_k, top_p,
        }
        "ggml_diffusion_event" = Event {
            size, type_ = "type", pos, token, stage, step, n, canvas, stages, n_canvas, n_prompt,
        }
        "ggml_diffusion_report" = Report {
            size, n_prompt, n_generated, forwards_prefill, forwards_refresh, forwards_step, forwards_promotion,
            forwards_sweep, rows_dense, rows_padded, rows_revision, rows_logits, drafts_made, drafts_kept, revisions_made,
            revisions_replaced, revisions_remasked, n_committed, seconds_total, seconds_dense, seconds_revision,
            seconds_sampling, seconds_waiting, buckets, npu_ms,
        }
        "ggml_diffusion_api" = Api {
            size, version, last_error, n_options, option_info, model_load, model_free, model_get_info, session_new,
            session_free, session_set, session_check, generate, output, get_report, get_report_json, last_status,
        }
    }
    out
}

#[test]
fn structs_are_laid_out_as_the_header_says() {
    let layouts = layouts();
    let mut source =
        String::from("#include <stdio.h>\n#include \"ggml-diffusion.h\"\nint main(void) {\n");
    for (expression, _) in &layouts {
        writeln!(source, "    printf(\"%zu\\n\", {expression});").unwrap();
    }
    source.push_str("    return 0;\n}\n");
    let dir = tempfile::tempdir().unwrap();
    let (file, program) = (dir.path().join("layouts.c"), dir.path().join("layouts"));
    std::fs::write(&file, source).unwrap();
    compile(&file, repository(), &[&include_flag()], &program);
    let written = succeed(&mut Command::new(&program));
    let values: Vec<usize> = written
        .stdout
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    assert_eq!(values.len(), layouts.len());
    for ((expression, ours), theirs) in layouts.iter().zip(values) {
        assert_eq!(*ours, theirs, "{expression}");
    }
}

#[test]
fn numbers_are_those_of_the_header() {
    use proc::{EventType, StageCode, Status};
    let numbers = [
        ("GGML_DIFFUSION_OK", Status::Ok as i32),
        ("GGML_DIFFUSION_INVALID", Status::Invalid as i32),
        ("GGML_DIFFUSION_UNSUPPORTED", Status::Unsupported as i32),
        ("GGML_DIFFUSION_FAILED", Status::Failed as i32),
        ("GGML_DIFFUSION_CANCELLED", Status::Cancelled as i32),
        ("GGML_DIFFUSION_MASKED", StageCode::Masked as i32),
        ("GGML_DIFFUSION_VISIBLE", StageCode::Visible as i32),
        ("GGML_DIFFUSION_STABLE", StageCode::Stable as i32),
        ("GGML_DIFFUSION_DRAFT", StageCode::Draft as i32),
        (
            "GGML_DIFFUSION_EVENT_COMMITTED",
            EventType::Committed as i32,
        ),
        ("GGML_DIFFUSION_EVENT_REPLACED", EventType::Replaced as i32),
        ("GGML_DIFFUSION_EVENT_REMASKED", EventType::Remasked as i32),
        (
            "GGML_DIFFUSION_EVENT_STABLE_PREFIX",
            EventType::StablePrefix as i32,
        ),
        ("GGML_DIFFUSION_EVENT_STEP", EventType::Step as i32),
        (
            "GGML_DIFFUSION_API_VERSION",
            i32::try_from(proc::API_VERSION).unwrap(),
        ),
    ];
    let mut source = String::from("#include \"ggml-diffusion.h\"\n");
    for (name, ours) in numbers {
        writeln!(source, "_Static_assert({name} == {ours}, \"{name}\");").unwrap();
    }
    // As many as the header has.
    let header = std::fs::read_to_string(repository().join("backend/include/ggml-diffusion.h"));
    let is_number = |line: &&str| line.starts_with("    GGML_DIFFUSION_") && line.contains('=');
    let n_enumerators = header.unwrap().lines().filter(is_number).count();
    assert_eq!(n_enumerators + 1, numbers.len());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("numbers.c");
    std::fs::write(&file, source).unwrap();
    let flags = ["-c", &include_flag()];
    compile(&file, repository(), &flags, &dir.path().join("numbers.o"));
}

#[test]
fn the_header_is_cxx_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("include.cpp");
    std::fs::write(
        &file,
        "#include \"ggml-diffusion.h\"\nggml_diffusion_api api;\n",
    )
    .unwrap();
    let mut compiler = Command::new("c++");
    compiler.args([
        "-std=c++11",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-fsyntax-only",
    ]);
    succeed(compiler.arg(include_flag()).arg(&file));
}

#[test]
fn a_c_program_generates() {
    let Some(stock) = stock("a_c_program_generates") else {
        return;
    };
    let model = trained("f16");
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { dir.path().join(name) };
    std::fs::write(path("text.gguf"), "no model\n").unwrap();
    for (architecture, name) in [("rnd-1", "other.gguf"), ("llama", "twin.gguf")] {
        let _path = Gguf::read(&model)
            .replace("llada", architecture)
            .write(dir.path(), name);
    }
    let bin = stock.bin();
    let (libraries, rpath) = (
        format!("-L{}", bin.display()),
        format!("-Wl,-rpath,{}", bin.display()),
    );
    let flags = [&include_flag(), &libraries, "-lggml", "-lggml-base", &rpath];
    compile(
        &repository().join("tests/fixtures/diffusion.c"),
        &stock.ggml(),
        &flags,
        &path("diffusion"),
    );
    let mut program = Command::new(path("diffusion"));
    program
        .env_remove("LD_LIBRARY_PATH")
        .arg(bin)
        .arg(plugin())
        .arg(&model);
    program.args(["text.gguf", "other.gguf", "twin.gguf"].map(path));
    let written = succeed(&mut program);
    let lines: Vec<&str> = written.stdout.lines().collect();
    assert!(
        lines[1].starts_with("-1 ") && lines[1].contains("magic"),
        "{}",
        lines[1]
    );
    assert!(
        lines[2].contains("diffusion architecture `rnd-1` is not supported"),
        "{}",
        lines[2]
    );
    assert!(
        lines[3].contains("architecture `llama` is not a diffusion architecture"),
        "{}",
        lines[3]
    );
    let report: serde_json::Value = serde_json::from_str(lines[4]).unwrap();
    assert_eq!(report["n_prompt"], 4);
    assert!(
        report["forwards"].as_u64().unwrap() > 0 && report["seconds_total"].as_f64().unwrap() > 0.0
    );
    assert_eq!(lines.last(), Some(&"done"));
}
