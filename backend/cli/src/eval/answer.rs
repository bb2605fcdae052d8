//! Answering the tasks, several at a time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;

use ggml_llada_npu::engine::RunReport;
use ggml_llada_npu::simulate::Recording;

use super::variant::Variant;
use crate::error::Error;
use crate::generation::{Engine, Generator, Silent};
use crate::vocab::Token;

/// A task answered by a variant.
#[derive(Debug)]
pub(crate) struct Answered {
    /// Index of the task.
    pub(crate) task: usize,
    /// Index of the variant.
    pub(crate) variant: usize,
    /// Tokens kept.
    pub(crate) tokens: Vec<Token>,
    /// What it cost.
    pub(crate) report: RunReport,
    /// What each forward committed.
    pub(crate) recording: Recording,
}

/// Answers every prompt with every variant by `n_jobs` sessions. The variants take turns prompt by prompt, another one first
/// each time, so that whatever changes about the machine meanwhile changes it for all. `on_answer` gets the answers as
/// they come. Returns whether Ctrl-C ended it.
///
/// # Errors
/// [`Error::Param`], [`Error::Engine`], and what `on_answer` returns; the first of them.
pub(crate) fn answer_all(
    engine: &Engine<'_>,
    n_jobs: usize,
    prompts: &[Vec<Token>],
    variants: &[Variant],
    on_answer: &mut dyn FnMut(Answered) -> Result<(), Error>,
) -> Result<bool, Error> {
    let sessions = (0..n_jobs.clamp(1, prompts.len().max(1)))
        .map(|_| engine.session())
        .collect::<Result<Vec<_>, Error>>()?;
    let work = Work {
        prompts,
        variants,
        next: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
    };
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for session in sessions {
            let (sender, work) = (sender.clone(), &work);
            scope.spawn(move || work.serve(session, &sender));
        }
        drop(sender);
        let mut interrupted = false;
        let mut result = Ok(());
        for message in receiver {
            let told = match message {
                Message::Answered(answered) if result.is_ok() => on_answer(answered),
                Message::Answered(_) => Ok(()),
                Message::Interrupted => {
                    interrupted = true;
                    Ok(())
                }
                Message::Failed(error) => Err(error),
            };
            if told.is_err() && result.is_ok() {
                result = told;
                work.stop.store(true, Ordering::Relaxed);
            }
        }
        result.map(|()| interrupted)
    })
}

/// What a session has to tell.
enum Message {
    Answered(Answered),
    Interrupted,
    Failed(Error),
}

/// What the sessions share.
struct Work<'a> {
    prompts: &'a [Vec<Token>],
    variants: &'a [Variant],
    next: AtomicUsize,
    stop: AtomicBool,
}

impl Work<'_> {
    /// Answers prompts until none is left, one fails, or Ctrl-C comes.
    fn serve(&self, mut session: Generator<'_>, sender: &Sender<Message>) {
        loop {
            let task = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(prompt) = self.prompts.get(task) else {
                return;
            };
            for turn in 0..self.variants.len() {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                let variant = (task + turn) % self.variants.len();
                let message =
                    match session.generate(prompt, &self.variants[variant].params, &mut Silent) {
                        Ok(outcome) if outcome.cancelled => Message::Interrupted,
                        Ok(outcome) => Message::Answered(Answered {
                            task,
                            variant,
                            tokens: outcome.tokens,
                            report: outcome.report,
                            recording: outcome.recording,
                        }),
                        Err(error) => Message::Failed(error),
                    };
                let goes_on = matches!(message, Message::Answered(_));
                if sender.send(message).is_err() || !goes_on {
                    return;
                }
            }
        }
    }
}
