//! `llada-npu eval`: what is counted, compared, swept and written.

use std::path::Path;

use llada_npu_tests::files::{repository, trained};
use llada_npu_tests::program::{Finished, run};
use serde_json::Value;
use tempfile::TempDir;

fn eval(args: &[&str]) -> Finished {
    let (model, tasks) = (
        trained("f16"),
        repository().join("tests/tasks/validation.jsonl"),
    );
    let [model, tasks] = [&model, &tasks].map(|path| path_text(path));
    run(
        ["eval", "-m", model, "--tasks", tasks, "-n", "96", "-t", "1"]
            .iter()
            .chain(args),
    )
}

fn json(args: &[&str]) -> Value {
    let text = eval(&[args, &["--json"]].concat()).success();
    serde_json::from_str(&text).expect("one JSON object")
}

fn path_text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

fn variant<'a>(results: &'a Value, name: &str) -> &'a Value {
    let variants = results["variants"].as_array().expect("a list of variants");
    let found = variants.iter().find(|variant| variant["name"] == name);
    found.unwrap_or_else(|| panic!("no variant {name} in {results}"))
}

/// At least `overall` of all tasks and `each` of every kind are right.
fn assert_accurate(score: &Value, overall: f64, each: f64) {
    assert!(number(&score["overall"]["accuracy"]) >= overall, "{score}");
    for (name, task) in score["tasks"].as_object().expect("tasks by name") {
        assert!(number(&task["accuracy"]) >= each, "{name} in {score}");
    }
}

#[test]
fn the_trained_model_is_right_on_nine_of_ten_prompts_and_four_of_five_of_each_kind() {
    let results = json(&[
        "--modes",
        "reference,cached",
        "--jobs",
        "2",
        "--limit",
        "120",
    ]);
    for mode in ["reference", "cached"] {
        let score = variant(&results, mode);
        assert_eq!(score["overall"]["n"], 120);
        assert_accurate(score, 0.9, 0.8);
    }
    let whole = json(&["--diffusion-mode", "cached", "--jobs", "2"]);
    assert_eq!(whole["overall"]["n"], 600);
    assert_accurate(&whole, 0.9, 0.8);
}

#[test]
fn answers_are_counted_by_task_and_written_in_order() {
    let directory = TempDir::new().expect("a scratch directory");
    let file = directory.path().join("predictions.jsonl");
    let args = [
        "--limit",
        "24",
        "--diffusion-mode",
        "cached",
        "--predictions",
        path_text(&file),
    ];
    let results = json(&args);
    assert_eq!(results["overall"]["n"], 24);
    assert_eq!(results["mode"], "cached");
    assert_eq!(results["forwards"]["prefill"], 24);
    assert_eq!(results["interrupted"], false);
    assert!(
        number(&results["seconds_npu"]) >= 24.0 * 0.0773,
        "{results}"
    );
    let by_task = results["tasks"].as_object().expect("tasks by name");
    let n_right: f64 = by_task.values().map(|task| number(&task["n_right"])).sum();
    let lines = std::fs::read_to_string(&file).expect("predictions are there");
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object a line"))
        .collect();
    for line in &lines {
        let [output, answer] = ["output", "answer"].map(|key| line[key].as_str().map(str::trim));
        assert_eq!(line["right"], output == answer, "{line}");
    }
    let right = lines.iter().filter(|line| line["right"] == true).count();
    assert!((n_right - f64::from(u32::try_from(right).expect("few"))).abs() < 0.5);
    // Sessions side by side give the same, in the same order.
    let _two_jobs = json(&[&args[..], &["--jobs", "3"]].concat());
    let again = std::fs::read_to_string(&file).expect("predictions are there");
    let without_time = |line: &Value| {
        let mut line = line.clone();
        line["seconds"] = Value::Null;
        line
    };
    let again: Vec<Value> = again
        .lines()
        .map(|line| without_time(&serde_json::from_str(line).expect("an object a line")))
        .collect();
    assert_eq!(again, lines.iter().map(without_time).collect::<Vec<_>>());
}

#[test]
fn modes_are_compared_on_the_same_prompts() {
    let results = json(&[
        "--modes",
        "reference,cached",
        "--limit",
        "6",
        "-n",
        "32",
        "--diffusion-block-length",
        "16",
    ]);
    let differences = results["differences"].as_array().expect("a list");
    assert_eq!(differences.len(), 1);
    let difference = &differences[0];
    assert_eq!(
        (&difference["first"], &difference["second"]),
        (&"reference".into(), &"cached".into())
    );
    let [low, middle, high] = ["low", "difference", "high"].map(|key| number(&difference[key]));
    assert!(
        low < middle && middle < high && difference["n"] == 6,
        "{difference}"
    );
    let accuracy = |mode| number(&variant(&results, mode)["overall"]["accuracy"]);
    assert!((accuracy("cached") - accuracy("reference") - middle).abs() < 1e-9);
    for key in ["rows_ratio", "seconds_ratio", "seconds_npu_ratio"] {
        assert!(
            (1e-3..1.0).contains(&number(&difference[key])),
            "{key} in {difference}"
        );
    }
    let table = eval(&["--modes", "reference,cached", "--limit", "2", "-n", "32"]).success();
    for part in [
        "variant",
        "reference",
        "cached - reference: ",
        "drafts: 0 made",
    ] {
        assert!(table.contains(part), "no {part:?} in {table}");
    }
}

#[test]
fn a_sweep_is_a_table_and_a_picture() {
    let directory = TempDir::new().expect("a scratch directory");
    let [csv, svg] = ["sweep.csv", "sweep.svg"].map(|name| directory.path().join(name));
    let finished = eval(&[
        "--modes",
        "reference,cached",
        "--limit",
        "3",
        "-n",
        "32",
        "--sweep",
        "threshold=0.5,0.9 suffix=none,all",
        "--sweep",
        "block-length=16",
        "--csv",
        path_text(&csv),
        "--plot",
        path_text(&svg),
    ]);
    assert!(
        finished
            .stderr
            .contains("left out: --diffusion-threshold has no meaning in mode `reference`"),
        "{finished:?}"
    );
    let _table = finished.success();
    let csv = std::fs::read_to_string(&csv).expect("the table is there");
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().expect("a header");
    let column = |name: &str| {
        let found = header.iter().position(|column| *column == name);
        found.unwrap_or_else(|| panic!("no column {name} in {header:?}"))
    };
    let rows: Vec<_> = lines.collect();
    let names: Vec<&str> = rows.iter().map(|row| row[column("variant")]).collect();
    // threshold=0.9 suffix=all is what `cached` is without it.
    let expected = [
        "reference",
        "reference block-length=16",
        "cached",
        "cached threshold=0.5 suffix=none",
        "cached threshold=0.5 suffix=all",
        "cached threshold=0.9 suffix=none",
        "cached block-length=16",
    ];
    assert_eq!(names, expected);
    for row in &rows {
        assert_eq!(row.len(), header.len(), "{row:?}");
        for name in ["accuracy", "rows_dense", "seconds_total", "seconds_npu"] {
            let value: f64 = row[column(name)].parse().expect("a number");
            assert!(value >= 0.0, "{name} of {row:?}");
        }
    }
    let svg = std::fs::read_to_string(&svg).expect("the picture is there");
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for part in ["accuracy", "rows per token kept", "reference", "cached"] {
        assert!(svg.contains(part), "no {part:?}");
    }
    // A point in each of three panels, and one in each legend.
    assert_eq!(svg.matches("<circle").count(), 3 * (expected.len() + 2));
}

#[test]
fn what_cannot_be_compared_is_refused_by_name() {
    let cases: &[(&[&str], &[&str])] = &[
        (
            &["--modes", "cached", "--diffusion-mode", "cached"],
            &["--modes", "--diffusion-mode"],
        ),
        (&["--modes", "cached,fast"], &["--modes", "`fast`"]),
        (
            &[
                "--modes",
                "reference,cached",
                "--diffusion-threshold",
                "0.5",
            ],
            &["threshold", "`reference`"],
        ),
        (&["--sweep", "nonsense=1"], &["--sweep", "`nonsense`"]),
        (
            &["--sweep", "threshold=x"],
            &["--diffusion-threshold", "`x`"],
        ),
        (&["--jobs", "0"], &["--jobs", "`0`"]),
    ];
    for (args, parts) in cases {
        eval(args).failure(2, parts);
    }
    eval(&["--csv", "/no/such/t.csv"]).failure(1, &["/no/such/t.csv"]);
    eval(&["--plot", "/no/such/t.svg"]).failure(1, &["/no/such/t.svg"]);
}
