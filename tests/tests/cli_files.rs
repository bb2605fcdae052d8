//! Files that `llada-npu` reads and writes: reads end, results are written over nothing else, and whole.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use llada_npu_tests::files::{repository, trained};
use llada_npu_tests::program::{Finished, command, run, set_sigint};

/// Exit code of a failure.
const FAILED: i32 = 1;
/// Exit code of a wrong command line.
const USAGE: i32 = 2;

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn files_without_an_end_are_refused() {
    let model = trained("q8_0");
    let run_model = ["run", "-m", text(&model)];
    let endless = "/dev/zero";
    let cases: &[&[&str]] = &[
        &[&run_model[..], &["-f", endless]].concat(),
        &[&run_model[..], &["-f", endless, "--file-format", "jsonl"]].concat(),
        &[&run_model[..], &["-p", "x", "-sysf", endless]].concat(),
        &["eval", "-m", text(&model), "--tasks", endless],
        &["simulate", "--trace", endless],
    ];
    for args in cases {
        run(*args).failure(FAILED, &["/dev/zero: longer than 256 MiB"]);
    }
    let mut from_stdin = command(run_model);
    from_stdin.args(["-f", "-"]);
    from_stdin.stdin(File::open(endless).expect("there is a /dev/zero"));
    let finished = Finished::from(from_stdin.output().expect("the program starts"));
    finished.failure(FAILED, &["-: longer than 256 MiB"]);
    for args in [["-f", "/"], ["-sysf", "/"]] {
        let words = run_model.iter().chain(&["-p", "x"]).chain(&args);
        // A prompt and a file exclude each other: the directory is that of the system prompt there.
        let finished = run(words);
        assert!(
            matches!(finished.code, Some(FAILED | USAGE)),
            "{finished:?}"
        );
    }
    run(run_model.iter().chain(&["-f", "/"])).failure(FAILED, &["/: cannot be read"]);
}

#[test]
fn a_prompt_may_be_empty_and_a_file_without_one_is_refused() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let model = trained("q8_0");
    let with = |args: &[&str]| run(["run", "-m", text(&model), "-n", "8"].iter().chain(args));
    assert_eq!(with(&["-p", ""]).code, Some(0));
    for (name, content) in [
        ("empty.txt", ""),
        ("line.txt", "\n"),
        ("empty.jsonl", "\n\n"),
    ] {
        let path = scratch.path().join(name);
        fs::write(&path, content).expect("a writable directory");
        with(&["-f", text(&path)]).failure(FAILED, &[name, "no prompt in the file"]);
    }
    let path = scratch.path().join("prompts.jsonl");
    // Of an editor that puts a byte order mark in front.
    fs::write(&path, "\u{feff}{\"prompt\": \"Sort: 41 17\"}\r\n").expect("a writable directory");
    let answer = with(&["-f", text(&path)]).success();
    assert!(
        answer.starts_with("{\"prompt\":\"Sort: 41 17\""),
        "{answer}"
    );
    for line in ["[]", r#"["Sort: 1 2", null]"#, "5", "\"text\""] {
        fs::write(&path, format!("{{\"prompt\": \"\"}}\n{line}\n")).expect("a writable directory");
        with(&["-f", text(&path)]).failure(FAILED, &["line 2: not a JSON object"]);
    }
}

#[test]
fn results_are_written_over_nothing_else() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let path = |name: &str| {
        scratch
            .path()
            .join(name)
            .to_str()
            .expect("UTF-8")
            .to_owned()
    };
    let (old, link, new, json) = (path("old"), path("link"), path("new"), path("new.json"));
    fs::write(&old, "kept").expect("a writable directory");
    std::os::unix::fs::symlink(&old, &link).expect("a link");
    // There is no such model: what is refused is refused before anything is loaded.
    let run_model = ["run", "-m", "/no/such.gguf"];
    let eval_model = ["eval", "-m", "/no/such.gguf"];
    let cases: &[(&[&str], &[&str], [&str; 2])] = &[
        (
            &run_model,
            &["-p", "x", "--trace", &new, "--diffusion-json", &new],
            ["--trace", "--diffusion-json"],
        ),
        (
            &run_model,
            &["-f", &old, "--diffusion-json", &link],
            ["--file", "--diffusion-json"],
        ),
        (
            &["run", "-m", &old, "-p", "x"],
            &["--trace", &old],
            ["--trace", "--model"],
        ),
        (
            &eval_model,
            &["--tasks", &old, "--csv", &new, "--plot", &new],
            ["--csv", "--plot"],
        ),
        (
            &eval_model,
            &["--tasks", &old, "--predictions", &link],
            ["--predictions", "--tasks"],
        ),
        (
            &["simulate", "--sweep", "sensitivity"],
            &["--csv", &new, "--plot", &new],
            ["--csv", "--plot"],
        ),
        (
            &["simulate", "--trace", &json],
            &["--timeline", &json],
            ["--timeline", "--trace"],
        ),
    ];
    for (first, second, flags) in cases {
        run(first.iter().chain(*second)).failure(USAGE, &[&flags[..], &["same file"]].concat());
    }
    let mut onto_stdout = command(["simulate", "--sweep", "policy", "--csv", &old]);
    let stdout = File::options().append(true).open(&old);
    onto_stdout.stdout(stdout.expect("the file is there"));
    let finished = Finished::from(onto_stdout.output().expect("the program starts"));
    finished.failure(USAGE, &["--csv and standard output name the same file"]);
    assert_eq!(fs::read_to_string(&old).expect("still there"), "kept");
    assert!(!Path::new(&new).exists());
    // Names of what is built in are no files, whatever files are called so.
    let built_in: &[(&[&str], i32)] = &[
        (
            &[
                "simulate", "--model", "LLaDA-8B", "--sweep", "policy", "--csv", "LLaDA-8B",
            ],
            0,
        ),
        (
            &[
                "simulate",
                "--trace",
                "published",
                "--sweep",
                "policy",
                "--csv",
                "published",
            ],
            0,
        ),
        (
            &[
                "run",
                "-m",
                "/no/such.gguf",
                "-p",
                "x",
                "--diffusion-cost",
                "host",
                "--diffusion-json",
                "host",
            ],
            FAILED,
        ),
        (
            &["run", "-m", "/no/such.gguf", "-f", "-", "--trace", "-"],
            FAILED,
        ),
    ];
    for (args, code) in built_in {
        let mut program = command(*args);
        program.current_dir(scratch.path());
        let finished = Finished::from(program.output().expect("the program starts"));
        assert_eq!(finished.code, Some(*code), "{finished:?}");
    }
    assert!(scratch.path().join("LLaDA-8B").is_file());
    // Devices are no files.
    let nowhere = ["--csv", "/dev/null", "--plot", "/dev/null"];
    let _text = run(["simulate", "--sweep", "sensitivity"]
        .iter()
        .chain(&nowhere))
    .success();
}

#[test]
fn what_cannot_be_written_is_told_before_the_work() {
    let tasks = repository().join("tests/tasks/validation.jsonl");
    let cases: &[(&[&str], &[&str])] = &[
        (&["run", "-p", "x"], &["--diffusion-json", "--trace"]),
        (
            &["eval", "--tasks", text(&tasks)],
            &["--csv", "--plot", "--predictions", "--trace"],
        ),
    ];
    for (words, flags) in cases {
        for flag in *flags {
            for target in ["/", "/no/such/directory/file"] {
                let rest = ["-m", "/no/such.gguf", flag, target];
                run(words.iter().chain(&rest)).failure(FAILED, &[target, "cannot be written"]);
            }
        }
    }
}

#[test]
fn a_reader_that_went_away_ends_every_command_quietly() {
    let (model, tasks) = (
        trained("q8_0"),
        repository().join("tests/tasks/validation.jsonl"),
    );
    let cases: &[&[&str]] = &[
        &["--help"],
        &["doctor"],
        &["simulate"],
        &[
            "eval",
            "-m",
            text(&model),
            "--tasks",
            text(&tasks),
            "--limit",
            "1",
            "-n",
            "8",
        ],
    ];
    for args in cases {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut program = command(*args);
        program.stdout(writer).stderr(Stdio::piped());
        let child = program.spawn().expect("the program starts");
        let finished = Finished::from(child.wait_with_output().expect("the program ends"));
        assert_eq!(finished.code, Some(141), "{args:?}: {finished:?}");
        assert_eq!(finished.stderr, "", "{args:?}");
    }
}

/// Half a minute of work.
fn long_sweep(csv: &Path) -> Command {
    let mut command = command(["simulate", "--sweep", "sensitivity", "--gen", "3000"]);
    command.arg("--csv").arg(csv).stdout(Stdio::null());
    command
}

fn press_ctrl_c(child: &Child) {
    let pid = libc::pid_t::try_from(child.id()).expect("a process id");
    // SAFETY: a signal to our own child, which is not reaped yet.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
}

#[test]
fn ctrl_c_that_was_ignored_before_stays_ignored() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let mut program = long_sweep(&scratch.path().join("sweep.csv"));
    set_sigint(&mut program, libc::SIG_IGN);
    let mut child = program.spawn().expect("the program starts");
    sleep(Duration::from_millis(500));
    press_ctrl_c(&child);
    sleep(Duration::from_millis(500));
    let ended = child.try_wait().expect("a child of ours");
    child.kill().expect("a child of ours");
    child.wait().expect("the program ends");
    assert_eq!(ended, None);
}

#[test]
fn ctrl_c_leaves_files_as_they_were() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let csv = scratch.path().join("sweep.csv");
    fs::write(&csv, "kept").expect("a writable directory");
    let mut child = long_sweep(&csv).spawn().expect("the program starts");
    sleep(Duration::from_millis(500));
    let start = Instant::now();
    press_ctrl_c(&child);
    let status = child.wait().expect("the program ends");
    assert_eq!(status.code(), Some(130), "{status}");
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(fs::read_to_string(&csv).expect("still there"), "kept");
    assert_eq!(
        fs::read_dir(scratch.path()).expect("a directory").count(),
        1
    );
}
