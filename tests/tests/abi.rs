//! The binary interface: layouts against a C compiler, and what the plug-in exports and needs.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use llada_npu_ffi::ggml::layouts;
use llada_npu_tests::host::{api3_ggml, compile, plugin, stock, succeed};

/// Lets a C compiler evaluate every expression.
fn evaluate(ggml: &Path, entries: &[layouts::Entry]) -> Vec<i64> {
    let mut source = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"ggml-backend-impl.h\"\n#include \"ggml-impl.h\"\n",
    );
    source.push_str("int main(void) {\n");
    for (expression, _) in entries {
        writeln!(
            source,
            "    printf(\"%lld\\n\", (long long) ({expression}));"
        )
        .unwrap();
    }
    source.push_str("    return 0;\n}\n");
    let dir = tempfile::tempdir().unwrap();
    let (file, program) = (dir.path().join("layouts.c"), dir.path().join("layouts"));
    std::fs::write(&file, source).unwrap();
    compile(&file, ggml, &["-Wno-unused-function"], &program);
    let written = succeed(&mut Command::new(&program));
    written
        .stdout
        .lines()
        .map(|line| line.parse().unwrap())
        .collect()
}

fn compare(ggml: &Path, api_version: i32) {
    let entries = layouts::entries(api_version);
    assert!(entries.len() > 100);
    let values = evaluate(ggml, &entries);
    assert_eq!(values.len(), entries.len());
    for ((expression, ours), theirs) in entries.iter().zip(values) {
        assert_eq!(*ours, theirs, "API {api_version}: {expression}");
    }
}

#[test]
fn structs_of_api_2_are_laid_out_as_the_headers_say() {
    if let Some(stock) = stock("structs_of_api_2_are_laid_out_as_the_headers_say") {
        compare(&stock.ggml(), 2);
    }
}

#[test]
fn structs_of_api_3_are_laid_out_as_the_headers_say() {
    compare(&api3_ggml(), 3);
}

#[test]
fn the_plugin_exports_two_symbols() {
    let written = succeed(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(plugin()),
    );
    let mut symbols: Vec<&str> = written
        .stdout
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    symbols.sort_unstable();
    assert_eq!(symbols, ["ggml_backend_init", "ggml_backend_score"]);
}

#[test]
fn the_plugin_needs_the_c_library_alone_and_stays_loaded() {
    let written = succeed(Command::new("readelf").arg("-dW").arg(plugin()));
    let needed: Vec<&str> = written
        .stdout
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    // The C library comes in several files, and with it the unwinder of the compiler.
    let allowed = [
        "libc.so",
        "libm.so",
        "libpthread.so",
        "libdl.so",
        "libgcc_s.so",
        "ld-linux",
    ];
    assert!(!needed.is_empty(), "{}", written.stdout);
    for library in needed {
        assert!(
            allowed.iter().any(|name| library.starts_with(name)),
            "the plug-in needs {library}"
        );
    }
    assert!(written.stdout.contains("NODELETE"), "{}", written.stdout);
}
