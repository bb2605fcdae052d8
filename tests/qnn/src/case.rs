//! Tests with Qualcomm's libraries: each in a process of its own, so that a crash of the library fails one test and not all.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time of a test: the emulation is slow, more so beside other work, and may hang.
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// Names the test that a process is to run. An emulated process cannot start another: who runs one sets this.
const CASE: &str = "QNN_CASE";

/// Where the libraries of the version under test are.
pub fn directory() -> Option<PathBuf> {
    std::env::var_os("LLADA_NPU_QNN_DIR").map(PathBuf::from)
}

/// Runs a test in a process of its own: the same program again, with this test alone. Without the user's word on the licence it is
/// skipped by name.
///
/// # Panics
/// Where the test fails, crashes or takes too long; where the licence was accepted but the libraries are not there.
#[expect(
    clippy::print_stdout,
    reason = "what a test says, and that it was skipped"
)]
pub fn case(name: &str, body: impl FnOnce()) {
    if is_case(name) {
        return body();
    }
    if std::env::var("LLADA_NPU_ACCEPT_QNN_LICENSE").as_deref() != Ok("1") {
        println!(
            "SKIPPED: {name}: needs Qualcomm's libraries; LLADA_NPU_ACCEPT_QNN_LICENSE=1 accepts their licence"
        );
        return;
    }
    assert!(
        directory().is_some_and(|dir| dir.join("libQnnHtp.so").exists()),
        "LLADA_NPU_QNN_DIR names no directory with libQnnHtp.so; scripts/test.sh qnn sets it"
    );
    alone(name, &[], body);
}

fn is_case(name: &str) -> bool {
    std::env::var_os(CASE).is_some_and(|case| case == name)
}

/// Runs a test in a process of its own, with further variables of the environment.
///
/// # Panics
/// Where the test fails, crashes or takes too long.
#[expect(clippy::print_stdout, reason = "what a test says")]
pub fn alone(name: &str, variables: &[(&str, &OsStr)], body: impl FnOnce()) {
    if is_case(name) {
        return body();
    }
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let arguments = [name, "--exact", "--nocapture"].map(OsString::from);
    let output = std::fs::File::create(scratch.path().join("output")).expect("a file in it");
    let errors = output.try_clone().expect("a second handle of it");
    let mut child = Command::new(std::env::current_exe().expect("the test program has a path"))
        .args(arguments)
        .env(CASE, name)
        .envs(variables.iter().copied())
        .current_dir(scratch.path())
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .expect("the test program starts");
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            break status;
        }
        if start.elapsed() > TIME_LIMIT {
            let _killed = child.kill();
            break child.wait().expect("a killed child can be waited for");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let bytes = std::fs::read(scratch.path().join("output")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    // Indented, so that nobody takes its closing line for one of this process.
    for line in text.lines() {
        println!("    {line}");
    }
    assert!(
        status.success(),
        "{name}: {status} (signal {:?}) after {:?}",
        status.signal(),
        start.elapsed()
    );
    assert!(text.contains("1 passed"), "{name}: the process ran no test");
}
