//! `run`: one prompt, its answer on stdout.

use crate::answer::Answer;
use crate::args::RunArgs;
use crate::display::{Display, Frame};
use crate::error::Error;
use crate::generation::{Engine, Observer, Setup};
use crate::interrupt;
use crate::output;
use crate::prompt::{self, PromptFormat};
use crate::report::Totals;
use crate::vocab::{Token, Vocab};

/// Answers the prompt.
///
/// # Errors
/// [`Error`]; [`Error::Interrupted`] after the text that was stable.
pub(crate) fn run(args: &RunArgs) -> Result<(), Error> {
    let setup = Setup::new(&args.generation)?;
    let escape = !args.no_escape;
    let text = prompt::text_or_file(args.prompt.as_deref(), args.file.as_deref(), escape)?
        .ok_or(Error::Flags("a prompt is needed: -p TEXT or -f FILE"))?;
    let system = prompt::text_or_file(
        args.system_prompt.as_deref(),
        args.system_prompt_file.as_deref(),
        escape,
    )?;
    let report = args
        .diffusion_json
        .as_deref()
        .map(output::NewFile::create)
        .transpose()?;
    interrupt::install().map_err(|source| Error::Interrupt { source })?;
    let engine = Engine::load(&setup)?;
    let prompt =
        PromptFormat::new(engine.vocab(), &args.generation)?.tokens(system.as_deref(), &text)?;
    let mut session = engine.session()?;
    let mut view = View::new(engine.vocab(), args.diffusion_visual);
    let result = session.generate(&prompt, setup.params(), &mut view);
    view.finish(result.as_ref().is_ok_and(|outcome| !outcome.cancelled))?;
    let outcome = result?;
    if let Some(report) = report {
        report.write(&(session.report_json() + "\n"))?;
    }
    output::note(Totals::of(&outcome.report).line());
    if outcome.cancelled {
        return Err(Error::Interrupted);
    }
    Ok(())
}

/// The answer on stdout and the display on stderr.
#[derive(Debug)]
struct View<'a> {
    vocab: &'a Vocab,
    answer: Answer<'a>,
    display: Display,
}

impl<'a> View<'a> {
    fn new(vocab: &'a Vocab, visual: bool) -> Self {
        let display = Display::start(visual);
        Self {
            vocab,
            answer: Answer::new(vocab, display.owns_terminal()),
            display,
        }
    }

    fn finish(mut self, complete: bool) -> Result<(), Error> {
        self.display.finish();
        self.answer.finish(complete)
    }
}

impl Observer for View<'_> {
    fn stable(&mut self, tokens: &[Token]) -> Result<(), Error> {
        if self.answer.grows(tokens) {
            self.display.give_way();
        }
        self.answer.stable(tokens)
    }

    fn step(&mut self, frame: Frame<'_>) -> Result<(), Error> {
        self.display.step(self.vocab, frame);
        Ok(())
    }
}
