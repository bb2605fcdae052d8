//! Hosts that are not the pinned ggml: each gets one clear line and lives on without us.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use std::path::{Path, PathBuf};
use std::process::Command;

use llada_npu_tests::host::{Stock, Written, compile, plugin, stock, succeed};
use tempfile::TempDir;

/// Owning: a compiled host of stock's ggml, changed by one definition in `fixtures/host.c`.
struct Host {
    dir: TempDir,
    bin: PathBuf,
}

impl Host {
    fn new(stock: &Stock, change: Option<&str>) -> Self {
        Self::with_libraries(change, stock, stock.bin())
    }

    fn with_libraries(change: Option<&str>, stock: &Stock, bin: PathBuf) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/host.c");
        let path = bin.to_str().unwrap();
        let change = change.map(|name| format!("-D{name}"));
        let (search, run) = (format!("-L{path}"), format!("-Wl,-rpath,{path}"));
        let mut flags = vec!["-rdynamic"];
        flags.extend(change.as_deref());
        flags.extend([&*search, &*run, "-lggml", "-lggml-base"]);
        compile(&source, &stock.ggml(), &flags, &dir.path().join("host"));
        Self { dir, bin }
    }

    fn command(&self, cpu: &str) -> Command {
        let mut command = Command::new(self.dir.path().join("host"));
        let cpu = match cpu {
            "none" => PathBuf::from(cpu),
            name => self.bin.join(name),
        };
        command
            .arg(cpu)
            .arg(plugin())
            .env_remove("LD_LIBRARY_PATH")
            .env_remove("LLADA_NPU_STRICT");
        command
    }

    /// Runs the host, which must live; returns what it wrote.
    fn run(&self) -> Written {
        let written = succeed(&mut self.command("libggml-cpu.so"));
        assert!(written.stdout.contains("2 + 3 = 5\n"), "{written:?}");
        written
    }
}

/// The lines of ours.
fn our_lines(written: &Written) -> Vec<&str> {
    written
        .stderr
        .lines()
        .filter(|line| line.starts_with("llada-npu: "))
        .collect()
}

fn assert_refused(written: &Written, parts: &[&str]) {
    assert!(written.stdout.contains("plugin: none\n"), "{written:?}");
    let lines = our_lines(written);
    assert_eq!(lines.len(), 1, "{written:?}");
    for part in parts {
        assert!(lines[0].contains(part), "no {part:?} in {:?}", lines[0]);
    }
}

fn assert_loaded(written: &Written) {
    assert!(
        written.stdout.contains("plugin: llada-npu\n"),
        "{written:?}"
    );
}

#[test]
fn the_pinned_host_is_served_without_a_word() {
    let Some(stock) = stock("the_pinned_host_is_served_without_a_word") else {
        return;
    };
    let written = Host::new(&stock, None).run();
    assert_loaded(&written);
    assert!(our_lines(&written).is_empty(), "{written:?}");
}

#[test]
fn tables_with_moved_slots_are_refused() {
    let Some(stock) = stock("tables_with_moved_slots_are_refused") else {
        return;
    };
    for (change, function) in [
        ("CLEAR_ELSEWHERE", "ggml_backend_buffer_clear"),
        ("GRAPH_COMPUTE_ELSEWHERE", "ggml_backend_graph_compute"),
        ("SUPPORTS_OP_ELSEWHERE", "ggml_backend_dev_supports_op"),
        ("LONGER_TABLE", "struct ggml_backend_buffer"),
    ] {
        let written = Host::new(&stock, Some(change)).run();
        assert_refused(&written, &["0.25.3", function]);
    }
}

#[test]
fn an_untested_version_is_warned_about_and_refused_when_strict() {
    let Some(stock) = stock("an_untested_version_is_warned_about_and_refused_when_strict") else {
        return;
    };
    let host = Host::new(&stock, Some("UNTESTED_VERSION"));
    let written = host.run();
    assert_loaded(&written);
    let lines = our_lines(&written);
    assert_eq!(lines.len(), 1, "{written:?}");
    assert!(lines[0].contains("0.99.1") && lines[0].contains("untested"));

    let mut strict = host.command("libggml-cpu.so");
    let written = succeed(strict.env("LLADA_NPU_STRICT", "1"));
    assert_refused(&written, &["0.99.1", "untested"]);

    let mut unclear = host.command("libggml-cpu.so");
    let written = succeed(unclear.env("LLADA_NPU_STRICT", "maybe"));
    assert_refused(&written, &["LLADA_NPU_STRICT=maybe"]);
}

#[test]
fn a_host_without_cpu_backend_is_refused() {
    let Some(stock) = stock("a_host_without_cpu_backend_is_refused") else {
        return;
    };
    let written = succeed(&mut Host::new(&stock, None).command("none"));
    assert_refused(&written, &["no CPU backend"]);
}

/// Renames an exported symbol of a library: to a lookup by name it is gone.
fn rename_symbol(library: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let mut bytes = std::fs::read(library).unwrap();
    let name = format!("\0{from}\0");
    let positions: Vec<usize> = bytes
        .windows(name.len())
        .enumerate()
        .filter(|(_, window)| *window == name.as_bytes())
        .map(|(position, _)| position + 1)
        .collect();
    assert!(!positions.is_empty());
    for position in positions {
        bytes[position..position + to.len()].copy_from_slice(to.as_bytes());
    }
    std::fs::write(library, bytes).unwrap();
}

#[test]
fn an_old_host_is_refused_with_the_name_of_what_it_lacks() {
    let Some(stock) = stock("an_old_host_is_refused_with_the_name_of_what_it_lacks") else {
        return;
    };
    let libraries = tempfile::tempdir().unwrap();
    for name in ["libggml.so", "libggml-base.so", "libggml-cpu.so"] {
        let target = libraries.path().join(name);
        std::fs::copy(stock.bin().join(name), &target).unwrap();
        // Their names inside end in `.0`.
        std::os::unix::fs::symlink(name, libraries.path().join(format!("{name}.0"))).unwrap();
    }
    rename_symbol(
        &libraries.path().join("libggml-base.so"),
        "ggml_validate_row_data",
        "ggml_validate_row_dat_",
    );
    let host = Host::with_libraries(None, &stock, libraries.path().to_owned());
    let mut command = host.command("libggml-cpu.so");
    // The copied libraries would find the originals by their own search paths.
    command.env("LD_LIBRARY_PATH", libraries.path());
    let written = succeed(&mut command);
    assert!(written.stdout.contains("2 + 3 = 5\n"), "{written:?}");
    assert_refused(&written, &["ggml_validate_row_data", "0.25.3"]);
}
