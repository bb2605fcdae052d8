//! `run`: prompts, and their answers on stdout.

use ggml_llada_npu::engine::RunReport;
use serde::Serialize;

use crate::answer::Answer;
use crate::args::{FileFormat, RunArgs};
use crate::display::{Display, Frame};
use crate::error::Error;
use crate::files;
use crate::generation::{Engine, Generator, Observer, Outcome, Setup};
use crate::input;
use crate::interrupt;
use crate::output;
use crate::prompt::{self, PromptFormat, Request};
use crate::report::Totals;
use crate::trace_file;
use crate::vocab::{Token, Vocab};

/// Answers the prompts.
///
/// # Errors
/// [`Error`]; [`Error::Interrupted`] after the text that was stable.
pub(crate) fn run(args: &RunArgs) -> Result<(), Error> {
    let setup = Setup::new(&args.generation)?;
    if args.batch > 1 && args.diffusion_visual {
        return Err(Error::Flags(
            "--diffusion-visual shows one prompt at a time: not with --batch",
        ));
    }
    check_files(args)?;
    let requests = prompt::requests(args)?;
    let report = files::new_file(args.diffusion_json.as_deref())?;
    let trace = files::new_file(args.trace.as_deref())?;
    interrupt::install().map_err(|source| Error::Interrupt { source })?;
    let engine = Engine::load(&setup)?;
    let format = PromptFormat::new(engine.vocab(), &args.generation)?;
    let mut session = engine.session()?;
    let prompts = requests
        .iter()
        .enumerate()
        .map(|(index, request)| {
            tokens(&format, &session, &setup, request)
                .map_err(|error| numbered(error, index, requests.len()))
        })
        .collect::<Result<Vec<_>, Error>>()?;
    let as_json = args
        .file
        .as_deref()
        .is_some_and(|path| args.file_format(path) == FileFormat::Jsonl);
    let mut answers = Answers {
        vocab: engine.vocab(),
        requests: &requests,
        as_json,
        visual: args.diffusion_visual,
        reports: Vec::new(),
        trace: String::new(),
        interrupted: false,
    };
    let result = if args.batch > 1 && prompts.len() > 1 {
        answers.together(&engine, &mut session, &setup, &prompts, args.batch)
    } else {
        answers.one_by_one(&engine, &mut session, &setup, &prompts)
    };
    result?;
    if let Some(file) = report {
        let lines = answers.reports.iter().map(|report| report.to_json() + "\n");
        file.write(&lines.collect::<String>())?;
    }
    if let Some(file) = trace {
        file.write(&answers.trace)?;
    }
    output::note(Totals::of(&answers.reports).line());
    if answers.interrupted {
        return Err(Error::Interrupted);
    }
    Ok(())
}

/// Makes sure that results are written over nothing else.
fn check_files(args: &RunArgs) -> Result<(), Error> {
    let outputs = [
        ("--diffusion-json", args.diffusion_json.as_deref()),
        ("--trace", args.trace.as_deref()),
    ];
    let [model, cost] = args.generation.inputs();
    let inputs = [
        model,
        cost,
        ("--file", input::file(args.file.as_deref())),
        (
            "--system-prompt-file",
            input::file(args.system_prompt_file.as_deref()),
        ),
    ];
    files::check_distinct(&outputs, &inputs)
}

/// Returns the tokens of a prompt, which fit into the context together with the answer.
fn tokens(
    format: &PromptFormat<'_>,
    session: &Generator<'_>,
    setup: &Setup,
    request: &Request,
) -> Result<Vec<Token>, Error> {
    let tokens = format.tokens(request.system.as_deref(), &request.prompt)?;
    session.check(tokens.len(), setup.params())?;
    Ok(tokens)
}

/// Says which of several prompts is at fault.
fn numbered(error: Error, index: usize, n_prompts: usize) -> Error {
    if n_prompts == 1 {
        return error;
    }
    Error::Prompt {
        number: index + 1,
        source: Box::new(error),
    }
}

/// What is printed of the answers, and what is left to say at the end.
#[derive(Debug)]
struct Answers<'a> {
    vocab: &'a Vocab,
    requests: &'a [Request],
    as_json: bool,
    visual: bool,
    reports: Vec<RunReport>,
    /// Lines of complete answers.
    trace: String,
    interrupted: bool,
}

/// An answer to a prompt of a file of JSON lines.
#[derive(Debug, Serialize)]
struct AnswerLine<'a> {
    prompt: &'a str,
    answer: &'a str,
}

impl<'a> Answers<'a> {
    /// Answers one prompt after the other, each answer printed as it becomes final.
    fn one_by_one(
        &mut self,
        engine: &Engine<'_>,
        session: &mut Generator<'_>,
        setup: &Setup,
        prompts: &[Vec<Token>],
    ) -> Result<(), Error> {
        for (index, prompt) in prompts.iter().enumerate() {
            let mut view = View::new(self.vocab, self.visual, self.as_json);
            let result = session.generate(prompt, setup.params(), &mut view);
            view.finish(result.as_ref().is_ok_and(|outcome| !outcome.cancelled))?;
            let outcome = result.map_err(|error| numbered(error, index, prompts.len()))?;
            if self.as_json {
                self.print(engine, index, &outcome)?;
            }
            self.count(&outcome);
            if outcome.cancelled {
                break;
            }
        }
        Ok(())
    }

    /// Answers up to `n_seats` prompts at a time; an answer is printed when it and all before it are complete.
    fn together(
        &mut self,
        engine: &Engine<'_>,
        session: &mut Generator<'_>,
        setup: &Setup,
        prompts: &[Vec<Token>],
        n_seats: usize,
    ) -> Result<(), Error> {
        let outcomes = session.generate_batch(prompts, n_seats, setup.params())?;
        for (index, outcome) in outcomes.iter().enumerate() {
            self.print(engine, index, outcome)?;
            if outcome.cancelled {
                // What it has cost is not known.
                self.interrupted = true;
            } else {
                self.count(outcome);
            }
        }
        Ok(())
    }

    fn count(&mut self, outcome: &Outcome) {
        self.reports.push(outcome.report);
        self.interrupted |= outcome.cancelled;
        if !outcome.cancelled {
            self.trace += &trace_file::line(&outcome.recording);
        }
    }

    /// Prints a complete answer.
    fn print(&self, engine: &Engine<'_>, index: usize, outcome: &Outcome) -> Result<(), Error> {
        if !self.as_json {
            let mut answer = Answer::new(self.vocab, false);
            answer.stable(&outcome.tokens)?;
            return answer.finish(!outcome.cancelled);
        }
        let line = AnswerLine {
            prompt: &self.requests[index].prompt,
            answer: &engine.text(&outcome.tokens),
        };
        output::text(&(serde_json::to_string(&line).expect("texts always serialise") + "\n"))
    }
}

/// The answer on stdout and the display on stderr.
#[derive(Debug)]
struct View<'a> {
    vocab: &'a Vocab,
    /// Absent when the answer is printed by others.
    answer: Option<Answer<'a>>,
    display: Display,
}

impl<'a> View<'a> {
    fn new(vocab: &'a Vocab, visual: bool, silent: bool) -> Self {
        let display = Display::start(visual);
        let answer = (!silent).then(|| Answer::new(vocab, display.owns_terminal()));
        Self {
            vocab,
            answer,
            display,
        }
    }

    fn finish(mut self, complete: bool) -> Result<(), Error> {
        self.display.finish();
        self.answer.map_or(Ok(()), |answer| answer.finish(complete))
    }
}

impl Observer for View<'_> {
    fn stable(&mut self, tokens: &[Token]) -> Result<(), Error> {
        let Some(answer) = &mut self.answer else {
            return Ok(());
        };
        if answer.grows(tokens) {
            self.display.give_way();
        }
        answer.stable(tokens)
    }

    fn step(&mut self, frame: Frame<'_>) -> Result<(), Error> {
        self.display.step(self.vocab, frame);
        Ok(())
    }
}
