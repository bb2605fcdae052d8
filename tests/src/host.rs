//! The plug-in, and hosts to load it into: the stock tools of the pinned llama.cpp, and small C programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// Returns the plug-in that cargo built beside this test.
///
/// # Panics
/// When it is missing: it is a dependency of this crate.
#[must_use]
pub fn plugin() -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a path");
    let path = test.with_file_name("libggml_llada_npu.so");
    assert!(path.is_file(), "{} is missing", path.display());
    path
}

/// Says that a test did not run for want of something; in CI that is a failure.
///
/// # Panics
/// In CI (`CI` is set).
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
pub fn skip(test: &str, missing: &str) {
    assert!(
        std::env::var_os("CI").is_none(),
        "{test}: {missing} is missing"
    );
    println!("SKIPPED: {test}: {missing} is missing");
}

fn cache() -> PathBuf {
    std::env::var_os("LLADA_NPU_CACHE").map_or_else(
        || {
            let home = std::env::var_os("HOME").expect("HOME is set");
            PathBuf::from(home).join(".cache/llada-npu")
        },
        PathBuf::from,
    )
}

/// Returns the stock llama.cpp (backend API 2) that `scripts/setup.sh` built; `None`, said so, where it did not.
///
/// # Panics
/// In CI, when it is missing.
#[must_use]
pub fn stock(test: &str) -> Option<Stock> {
    let root = cache().join("llama.cpp/stock");
    if root.join("build/bin/llama-bench").is_file() {
        return Some(Stock { root });
    }
    skip(test, "stock llama.cpp (scripts/setup.sh stock)");
    None
}

/// Returns the patched `llama-diffusion-cli` that `scripts/setup.sh` built; `None`, said so, where it did not.
///
/// # Panics
/// In CI, when it is missing.
#[must_use]
pub fn patched_tool(test: &str) -> Option<PathBuf> {
    let tool = cache().join("llama.cpp/patched/build/bin/llama-diffusion-cli");
    if tool.is_file() {
        return Some(tool);
    }
    skip(
        test,
        "patched llama-diffusion-cli (scripts/setup.sh patched)",
    );
    None
}

/// A built llama.cpp tree.
#[derive(Clone, Debug)]
pub struct Stock {
    root: PathBuf,
}

impl Stock {
    /// Returns the ggml source directory.
    #[must_use]
    pub fn ggml(&self) -> PathBuf {
        self.root.join("ggml")
    }

    /// Returns the directory of programs and libraries.
    #[must_use]
    pub fn bin(&self) -> PathBuf {
        self.root.join("build/bin")
    }

    /// Returns a command that runs a tool under valgrind, with the report in `log`; the tool's ggml has no AVX-512, which
    /// valgrind does not know. `None`, said so, where it was not built.
    ///
    /// # Panics
    /// In CI, when it is missing.
    #[must_use]
    pub fn under_valgrind(&self, test: &str, name: &str, log: &Path) -> Option<Command> {
        let tool = self.root.join("build-noavx512/bin").join(name);
        if !tool.is_file() || Command::new("valgrind").arg("--version").output().is_err() {
            skip(test, "valgrind and its ggml (scripts/setup.sh valgrind)");
            return None;
        }
        let mut command = Command::new("valgrind");
        command
            .args(["--leak-check=full", "--num-callers=40"])
            .arg(format!("--log-file={}", log.display()))
            .arg(tool)
            .env_remove("LD_LIBRARY_PATH")
            .env("GGML_BACKEND_PATH", plugin())
            .stdin(Stdio::null());
        Some(command)
    }

    /// Returns a command for one of the tools with the plug-in in `GGML_BACKEND_PATH`, none of cargo's library paths, and
    /// nothing lost of what it writes.
    #[must_use]
    pub fn tool(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin().join(name));
        command
            .env_remove("LD_LIBRARY_PATH")
            .env("GGML_BACKEND_PATH", plugin())
            .env("LD_PRELOAD", flush_log())
            .stdin(Stdio::null());
        command
    }
}

/// Returns the library that keeps tools from losing the end of what they write (`fixtures/flush_log.c`).
fn flush_log() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/flush_log.c");
        let library = plugin().with_file_name("libflush_log.so");
        let own = library.with_extension(std::process::id().to_string());
        compile(&source, Path::new("."), &["-shared", "-fPIC"], &own);
        // Other tests may be using it.
        std::fs::rename(&own, &library).expect("a file beside the test");
        library
    })
}

/// Returns the ggml source directory of the API-3 host, from the sources of the crate `llama-cpp-sys-2`.
///
/// # Panics
/// When cargo cannot tell, which it could when it built this test.
#[must_use]
pub fn api3_ggml() -> PathBuf {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let manifest = packages
        .iter()
        .find(|package| package["name"] == "llama-cpp-sys-2")
        .and_then(|package| package["manifest_path"].as_str())
        .expect("llama-cpp-sys-2 is a dependency");
    Path::new(manifest).with_file_name("llama.cpp/ggml")
}

/// Compiles a C program against the headers of a ggml source directory.
///
/// # Panics
/// When the compiler fails.
pub fn compile(source: &Path, ggml: &Path, flags: &[&str], out: &Path) {
    let output = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Werror"])
        .arg("-I")
        .arg(ggml.join("include"))
        .arg("-I")
        .arg(ggml.join("src"))
        .arg(source)
        .args(flags)
        .arg("-o")
        .arg(out)
        .output()
        .expect("a C compiler named cc");
    assert!(
        output.status.success(),
        "{}: {}",
        source.display(),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// What a program wrote, as text.
#[derive(Clone, Debug)]
pub struct Written {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl From<Output> for Written {
    fn from(output: Output) -> Self {
        Self {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs a program to its end.
///
/// # Panics
/// When it cannot be started, or does not exit with 0.
pub fn succeed(command: &mut Command) -> Written {
    let output = command.output().expect("the program starts");
    let status = output.status;
    let written = Written::from(output);
    assert!(
        status.success(),
        "{command:?}: {status}\n{}\n{}",
        written.stdout,
        written.stderr
    );
    written
}
