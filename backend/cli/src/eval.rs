//! `eval`: the prompts of a task file, one model load, and what came of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use serde::Serialize;

use crate::args::EvalArgs;
use crate::error::Error;
use crate::generation::{Engine, Outcome, Setup, Silent};
use crate::interrupt;
use crate::output;
use crate::prompt::PromptFormat;
use crate::report::Totals;
use crate::statistics::{Estimate, Share};
use crate::tasks::{self, Task};

/// What the run comes to; the JSON object of `--json`.
#[derive(Debug, Serialize)]
struct Results<'a> {
    parameters: &'a Setup,
    tasks_file: &'a Path,
    /// Tasks answered, all kinds together.
    overall: Estimate,
    /// By kind of task.
    tasks: BTreeMap<String, Estimate>,
    #[serde(flatten)]
    totals: Totals,
    /// Ctrl-C ended the run before its last task.
    interrupted: bool,
}

/// One line of `--predictions`.
#[derive(Debug, Serialize)]
struct Prediction<'a> {
    task: &'a str,
    prompt: &'a str,
    answer: &'a str,
    output: &'a str,
    right: bool,
    n_tokens: u32,
    n_forwards: u32,
    seconds: f64,
}

/// Answers the tasks and prints the results.
///
/// # Errors
/// [`Error`]; [`Error::Interrupted`] after the results so far.
pub(crate) fn run(args: &EvalArgs) -> Result<(), Error> {
    let setup = Setup::new(&args.generation)?;
    let tasks = tasks::read(&args.tasks, args.limit)?;
    let predictions = args
        .predictions
        .as_deref()
        .map(Predictions::create)
        .transpose()?;
    interrupt::install().map_err(|source| Error::Interrupt { source })?;
    let engine = Engine::load(&setup)?;
    let results = answer_all(&engine, &setup, args, &tasks, predictions)?;
    output::text(&if args.json {
        serde_json::to_string_pretty(&results).expect("names and numbers always serialise") + "\n"
    } else {
        table(&results)
    })?;
    if results.interrupted {
        return Err(Error::Interrupted);
    }
    Ok(())
}

fn answer_all<'a>(
    engine: &Engine<'_>,
    setup: &'a Setup,
    args: &'a EvalArgs,
    tasks: &[Task],
    mut predictions: Option<Predictions<'_>>,
) -> Result<Results<'a>, Error> {
    let format = PromptFormat::new(engine.vocab(), &args.generation)?;
    let mut session = engine.session()?;
    let mut shares: BTreeMap<String, Share> = BTreeMap::new();
    let mut overall = Share::default();
    let mut totals = Totals::default();
    let mut interrupted = false;
    for (index, task) in tasks.iter().enumerate() {
        let prompt = format.tokens(None, &task.prompt)?;
        let outcome = session.generate(&prompt, &mut Silent)?;
        if outcome.cancelled {
            interrupted = true;
            break;
        }
        let text = engine.text(&outcome.tokens);
        let right = text.trim() == task.answer.trim();
        overall.count(right);
        shares.entry(task.task.clone()).or_default().count(right);
        totals.add(&outcome.report);
        if let Some(file) = &mut predictions {
            file.write(&prediction(task, &text, right, &outcome))?;
        }
        progress(index + 1, tasks.len(), overall);
    }
    if output::stderr_is_terminal() {
        output::raw("\r\x1b[K");
    }
    Ok(Results {
        parameters: setup,
        tasks_file: &args.tasks,
        overall: overall.estimate(),
        tasks: shares
            .into_iter()
            .map(|(name, share)| (name, share.estimate()))
            .collect(),
        totals,
        interrupted,
    })
}

fn prediction<'a>(
    task: &'a Task,
    output: &'a str,
    right: bool,
    outcome: &Outcome,
) -> Prediction<'a> {
    Prediction {
        task: &task.task,
        prompt: &task.prompt,
        answer: &task.answer,
        output,
        right,
        n_tokens: outcome.report.counts.n_generated,
        n_forwards: outcome.report.counts.n_forwards(),
        seconds: outcome.report.total.as_secs_f64(),
    }
}

fn progress(n_done: usize, n_tasks: usize, overall: Share) {
    if output::stderr_is_terminal() {
        output::raw(&format!(
            "\r\x1b[K{n_done} of {n_tasks} tasks, {} right",
            overall.n_right
        ));
    }
}

/// The file of `--predictions`.
#[derive(Debug)]
struct Predictions<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> Predictions<'a> {
    fn create(path: &'a Path) -> Result<Self, Error> {
        let file = File::create(path).map_err(|source| Error::unwritable(path, source))?;
        Ok(Self { path, file })
    }

    fn write(&mut self, prediction: &Prediction<'_>) -> Result<(), Error> {
        let line = serde_json::to_string(prediction).expect("texts and numbers always serialise");
        writeln!(self.file, "{line}").map_err(|source| Error::unwritable(self.path, source))
    }
}

fn table(results: &Results<'_>) -> String {
    let mut text = format!(
        "{:<12} {:>6} {:>6} {:>9}   95 % interval\n",
        "task", "right", "of", "accuracy"
    );
    let rows = results
        .tasks
        .iter()
        .map(|(name, estimate)| (name.as_str(), estimate));
    for (name, estimate) in rows.chain([("overall", &results.overall)]) {
        let Estimate {
            n,
            n_right,
            accuracy,
            low,
            high,
        } = estimate;
        writeln!(
            text,
            "{name:<12} {n_right:>6} {n:>6} {accuracy:>9.4}   {low:.4} to {high:.4}"
        )
        .expect("writing to a string cannot fail");
    }
    text + &results.totals.lines()
}
