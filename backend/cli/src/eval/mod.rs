//! `eval`: the prompts of a task file, one model load, one or more ways of decoding, and what came of each.
//!
//! | module | what |
//! |---|---|
//! | [`variant`] | which modes and options are compared |
//! | [`mod@answer`] | the sessions that answer |
//! | [`score`] | what is right, what it cost, how the variants differ |
//! | [`table`], [`csv`], [`plot`] | how that is shown |

mod answer;
mod csv;
mod plot;
mod predictions;
mod score;
mod table;
mod variant;

use std::collections::BTreeMap;
use std::path::Path;

use ggml_llada_npu::simulate::Recording;
use serde::Serialize;

use crate::args::EvalArgs;
use crate::error::Error;
use crate::files;
use crate::generation::{Engine, Setup};
use crate::interrupt;
use crate::output;
use crate::prompt::PromptFormat;
use crate::tasks::{self, Task};
use crate::trace_file;
use predictions::Predictions;
use score::{Comparison, Score, Scores};
use variant::Variant;

/// What the run comes to; the JSON object of `--json`.
#[derive(Debug, Serialize)]
struct Results<'a> {
    parameters: &'a Setup,
    tasks_file: &'a Path,
    /// Sessions that answered at a time.
    jobs: usize,
    #[serde(flatten)]
    body: Body,
    /// Ctrl-C ended the run before its last task.
    interrupted: bool,
}

/// One variant, or several and how they differ.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Body {
    One(Box<Score>),
    Several {
        variants: Vec<Score>,
        differences: Vec<Comparison>,
    },
}

/// Answers the tasks and prints the results.
///
/// # Errors
/// [`Error`]; [`Error::Interrupted`] after the results so far.
pub(crate) fn run(args: &EvalArgs) -> Result<(), Error> {
    let setup = Setup::for_any_mode(&args.generation)?;
    let variants = variant::variants(args, &setup)?;
    check_files(args)?;
    let tasks = tasks::read(&args.tasks, args.limit)?;
    let predictions = args
        .predictions
        .as_deref()
        .map(Predictions::create)
        .transpose()?;
    let csv = files::new_file(args.csv.as_deref())?;
    let plot = files::new_file(args.plot.as_deref())?;
    let trace = trace_of(args, &variants)?;
    interrupt::install().map_err(|source| Error::Interrupt { source })?;
    let engine = Engine::load(&setup)?;
    let mut recordings = BTreeMap::new();
    let files = Files {
        predictions,
        recordings: &mut recordings,
    };
    let (scores, interrupted) = answer(&engine, args, &tasks, &variants, files)?;
    if let Some(file) = trace {
        file.write(
            &recordings
                .values()
                .map(trace_file::line)
                .collect::<String>(),
        )?;
    }
    let scored = scores.finish(&variants);
    if let Some(file) = csv {
        file.write(&csv::text(&scored, &scores.against_first()))?;
    }
    if let Some(file) = plot {
        file.write(&plot::svg(&scored))?;
    }
    let several = scored.len() > 1 || !args.modes.is_empty();
    let results = Results {
        parameters: &setup,
        tasks_file: &args.tasks,
        jobs: args.jobs,
        body: body(&scores, scored, several, args.sweep.is_empty()),
        interrupted,
    };
    output::text(&if args.json {
        serde_json::to_string_pretty(&results).expect("names and numbers always serialise") + "\n"
    } else {
        table::text(&results.body)
    })?;
    if interrupted {
        return Err(Error::Interrupted);
    }
    Ok(())
}

/// Makes sure that results are written over nothing else.
fn check_files(args: &EvalArgs) -> Result<(), Error> {
    let outputs = [
        ("--csv", args.csv.as_deref()),
        ("--plot", args.plot.as_deref()),
        ("--predictions", args.predictions.as_deref()),
        ("--trace", args.trace.as_deref()),
    ];
    let [model, cost] = args.generation.inputs();
    files::check_distinct(&outputs, &[model, cost, ("--tasks", Some(&args.tasks))])
}

/// Opens the file of `--trace`.
fn trace_of<'a>(
    args: &'a EvalArgs,
    variants: &[Variant],
) -> Result<Option<files::NewFile<'a>>, Error> {
    if args.trace.is_some() && variants.len() > 1 {
        return Err(Error::Flags(
            "--trace records one mode with one set of options: not with several --modes or --sweep",
        ));
    }
    files::new_file(args.trace.as_deref())
}

/// What is written of each answer.
struct Files<'a> {
    predictions: Option<Predictions<'a>>,
    /// By task.
    recordings: &'a mut BTreeMap<usize, Recording>,
}

fn answer(
    engine: &Engine<'_>,
    args: &EvalArgs,
    tasks: &[Task],
    variants: &[Variant],
    mut files: Files<'_>,
) -> Result<(Scores, bool), Error> {
    let format = PromptFormat::new(engine.vocab(), &args.generation)?;
    let prompts = tasks
        .iter()
        .map(|task| format.tokens(None, &task.prompt))
        .collect::<Result<Vec<_>, Error>>()?;
    let mut scores = Scores::new(variants.len(), tasks);
    let n_answers = tasks.len() * variants.len();
    let result = answer::answer_all(engine, args.jobs, &prompts, variants, &mut |answered| {
        let text = engine.text(&answered.tokens);
        let task = &tasks[answered.task];
        let right = text.trim() == task.answer.trim();
        scores.count(answered.variant, answered.task, right, &answered.report);
        if let Some(file) = &mut files.predictions {
            let order = answered.task * variants.len() + answered.variant;
            let name = &variants[answered.variant].name;
            file.add(order, name, task, &text, right, &answered.report)?;
        }
        files.recordings.insert(answered.task, answered.recording);
        progress(&scores, n_answers);
        Ok(())
    });
    if output::stderr_is_terminal() {
        output::raw("\r\x1b[K");
    }
    if let Some(file) = files.predictions {
        file.finish()?;
    }
    Ok((scores, result?))
}

/// With several variants, each is compared with each before it; in a sweep with the first alone.
fn body(scores: &Scores, mut scored: Vec<Score>, several: bool, each: bool) -> Body {
    if !several {
        return Body::One(Box::new(scored.swap_remove(0)));
    }
    let mut differences = Vec::new();
    for second in 1..scored.len() {
        for first in 0..if each { second } else { 1 } {
            differences.push(scores.compare(&scored, first, second));
        }
    }
    Body::Several {
        variants: scored,
        differences,
    }
}

fn progress(scores: &Scores, n_answers: usize) {
    if output::stderr_is_terminal() {
        output::raw(&format!(
            "\r\x1b[K{} of {n_answers} answers, {} right",
            scores.n_answers(),
            scores.n_right()
        ));
    }
}
