//! The library's model and sessions, set up from flags.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;

use ggml_llada_npu::abi;
use ggml_llada_npu::decode::{Event, Family, ModelTraits, OPTIONS, ParamError, Params, Resolved};
use ggml_llada_npu::engine::sample::Sampling;
use ggml_llada_npu::engine::{
    BatchPrompt, CanvasView, Control, EngineError, KvType, LoadOptions, Model, RunReport, Session,
    SessionParams,
};
use ggml_llada_npu::simulate::{Recorder, Recording};
use serde::Serialize;

use crate::args::{BACKEND, GenerationArgs};
use crate::display::Frame;
use crate::error::Error;
use crate::host;
use crate::interrupt;
use crate::utf8::Utf8Stream;
use crate::vocab::{Token, Vocab};

/// Tokens to generate where nothing is said.
const N_PREDICT: u32 = 128;

/// Everything that flags say about model and generation, each checked for itself.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Setup {
    model: PathBuf,
    n_predict: Option<u32>,
    ctx_size: u32,
    threads: u32,
    temp: f32,
    top_k: u32,
    top_p: f32,
    seed: u32,
    cache_type_k: &'static str,
    cache_type_v: &'static str,
    chat_template: bool,
    /// By key; `None` depends on model and mode.
    diffusion: BTreeMap<&'static str, Option<String>>,
    #[serde(skip)]
    params: Params,
}

impl Setup {
    /// Checks the flags, as far as that is possible without the model.
    ///
    /// # Errors
    /// [`Error::Backend`], [`Error::Param`].
    pub(crate) fn new(args: &GenerationArgs) -> Result<Self, Error> {
        let setup = Self::for_any_mode(args)?;
        setup.check(&setup.params)?;
        Ok(setup)
    }

    /// Does the same for a run that chooses modes itself; [`Setup::check`] then checks each.
    ///
    /// # Errors
    /// As [`Setup::new`].
    pub(crate) fn for_any_mode(args: &GenerationArgs) -> Result<Self, Error> {
        crate::output::install_log(args.verbose);
        if args.backend != BACKEND {
            return Err(Error::Backend {
                name: args.backend.clone(),
            });
        }
        let params = args.diffusion.params()?;
        Ok(Self {
            model: args.model.clone(),
            n_predict: args.n_predict,
            ctx_size: args.ctx_size,
            threads: u32::try_from(args.threads).unwrap_or(0),
            temp: args.temp,
            top_k: args.top_k,
            top_p: args.top_p,
            seed: seed(args.seed),
            cache_type_k: args.cache_type_k.name(),
            cache_type_v: args.cache_type_v.name(),
            chat_template: !args.no_chat_template,
            diffusion: given_or_default(&args.diffusion.0),
            params,
        })
    }

    /// Returns the options of the decoding mode that flags gave.
    pub(crate) const fn params(&self) -> &Params {
        &self.params
    }

    /// Returns the decoding mode, as given or by default.
    pub(crate) fn mode(&self) -> &str {
        let mode = self.diffusion.get("mode").and_then(Option::as_deref);
        mode.expect("there is a default mode")
    }

    /// Checks options of the decoding mode against each other, as far as that is possible without the model, and returns
    /// what they come to with a model that takes any.
    ///
    /// # Errors
    /// [`ParamError`].
    pub(crate) fn check(&self, params: &Params) -> Result<Resolved, ParamError> {
        params.resolve(&ANY_MODEL, 0, self.n_predict.unwrap_or(N_PREDICT))
    }
}

/// A model with which every flag has a meaning: flags alone are at fault when it refuses them.
const ANY_MODEL: ModelTraits = ModelTraits {
    mask: Some(0),
    eos: None,
    eot: None,
    n_vocab: 1 << 31,
    n_ctx: u32::MAX,
    shift_logits: false,
    default_block_length: 32,
    family: Family::Llada,
};

/// Returns the seed that a flag means; -1 (and its unsigned form, llama.cpp's default) draws one.
fn seed(flag: i64) -> u32 {
    match u32::try_from(flag) {
        Ok(seed) if seed != u32::MAX => seed,
        _ => u32::try_from(RandomState::new().build_hasher().finish() >> 33).unwrap_or_default(),
    }
}

/// Returns the value of every option: what was given, else its default, `None` where that depends on model and mode.
fn given_or_default(given: &[(&'static str, String)]) -> BTreeMap<&'static str, Option<String>> {
    let value = |key: &str, default: &str| {
        let value = given
            .iter()
            .find(|(name, _)| *name == key)
            .map(|(_, value)| value.clone());
        value.or_else(|| (!default.is_empty()).then(|| default.to_owned()))
    };
    OPTIONS
        .iter()
        .map(|option| (option.key, value(option.key, option.default)))
        .collect()
}

/// A loaded model with its vocabulary.
#[derive(Debug)]
pub(crate) struct Engine<'a> {
    setup: &'a Setup,
    model: Arc<Model>,
    vocab: Vocab,
}

impl<'a> Engine<'a> {
    /// Loads the model on the backend's device, then its vocabulary by libllama.
    ///
    /// The library goes first: it checks the file against its length and its own words before libllama reads it.
    ///
    /// # Errors
    /// [`Error::Model`], [`Error::Engine`], [`Error::Backend`], [`Error::Vocab`].
    pub(crate) fn load(setup: &'a Setup) -> Result<Self, Error> {
        host::init();
        let mut options = LoadOptions {
            check_tensors: false,
            progress: &mut |_share| !interrupt::asked(),
        };
        let model = Model::load(&setup.model, abi::target()?, &mut options)?;
        let vocab = Vocab::load(&setup.model)?;
        Ok(Self {
            setup,
            model,
            vocab,
        })
    }

    /// Returns the vocabulary.
    pub(crate) const fn vocab(&self) -> &Vocab {
        &self.vocab
    }

    /// Returns the text of tokens.
    pub(crate) fn text(&self, tokens: &[Token]) -> String {
        let mut stream = Utf8Stream::default();
        let mut text: String = tokens
            .iter()
            .map(|&token| stream.push(&self.vocab.piece(token)))
            .collect();
        text += &stream.finish();
        text
    }

    /// Makes the session. Ctrl-C ends its generations from now on.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub(crate) fn session(&self) -> Result<Generator<'a>, Error> {
        let kv_type = |name| {
            if name == "f32" {
                KvType::F32
            } else {
                KvType::F16
            }
        };
        let params = SessionParams {
            n_ctx: self.setup.ctx_size,
            n_threads: self.setup.threads,
            type_k: kv_type(self.setup.cache_type_k),
            type_v: kv_type(self.setup.cache_type_v),
            sampling: Sampling {
                temperature: self.setup.temp,
                top_k: self.setup.top_k,
                top_p: self.setup.top_p,
                seed: u64::from(self.setup.seed),
            },
        };
        let session = Session::new(Arc::clone(&self.model), params)?;
        interrupt::also_set(session.cancel_flag());
        Ok(Generator {
            setup: self.setup,
            session,
        })
    }
}

/// Who watches a generation.
pub(crate) trait Observer {
    /// The tokens that are final so far, all of them.
    ///
    /// # Errors
    /// Ends the generation.
    fn stable(&mut self, tokens: &[Token]) -> Result<(), Error>;

    /// The canvas after a step.
    ///
    /// # Errors
    /// Ends the generation.
    fn step(&mut self, frame: Frame<'_>) -> Result<(), Error>;
}

/// Nobody watches.
#[derive(Debug)]
pub(crate) struct Silent;

impl Observer for Silent {
    fn stable(&mut self, _tokens: &[Token]) -> Result<(), Error> {
        Ok(())
    }

    fn step(&mut self, _frame: Frame<'_>) -> Result<(), Error> {
        Ok(())
    }
}

/// What came of a generation.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Tokens kept: up to EOS, or what was final when Ctrl-C came.
    pub(crate) tokens: Vec<Token>,
    /// What it cost.
    pub(crate) report: RunReport,
    /// What each forward committed.
    pub(crate) recording: Recording,
    /// Ctrl-C ended it.
    pub(crate) cancelled: bool,
}

/// A session, and how much it generates.
#[derive(Debug)]
pub(crate) struct Generator<'a> {
    setup: &'a Setup,
    session: Session,
}

impl Generator<'_> {
    /// Answers a prompt. Ctrl-C is an outcome, not an error.
    ///
    /// # Errors
    /// [`Error::Param`] for lengths that do not fit, [`Error::Engine`], and what the observer returns.
    pub(crate) fn generate(
        &mut self,
        prompt: &[Token],
        params: &Params,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, Error> {
        let n_gen = self.n_predict(prompt.len());
        let mut history = History::new(n_gen);
        let mut recorder = Recorder::default();
        let mut failure = None;
        let mut on_event = |event: &Event, canvas: &CanvasView<'_>| {
            recorder.event(event);
            let told = history.tell(observer, event, canvas);
            match told {
                Ok(()) if !interrupt::asked() => Control::Continue,
                Ok(()) => Control::Cancel,
                Err(error) => {
                    failure = Some(error);
                    Control::Cancel
                }
            }
        };
        let result = self.session.generate(prompt, n_gen, params, &mut on_event);
        if let Some(error) = failure {
            return Err(error);
        }
        let cancelled = matches!(result, Err(EngineError::Cancelled));
        if !cancelled {
            result?;
        }
        observer.stable(self.session.output())?;
        let report = *self.session.report();
        Ok(Outcome {
            tokens: self.session.output().to_vec(),
            recording: recorder.finish(&report.counts),
            report,
            cancelled,
        })
    }

    /// Answers prompts, up to `n_seats` of them together. Ctrl-C is an outcome of those that were not complete then, not an
    /// error; prompts that had not begun have none.
    ///
    /// # Errors
    /// As [`Generator::generate`].
    pub(crate) fn generate_batch(
        &mut self,
        prompts: &[Vec<Token>],
        n_seats: usize,
        params: &Params,
    ) -> Result<Vec<Outcome>, Error> {
        let batch: Vec<_> = prompts
            .iter()
            .map(|tokens| BatchPrompt {
                tokens,
                n_gen: self.n_predict(tokens.len()),
            })
            .collect();
        // What is final so far, for the case of an interruption.
        let mut stable: Vec<Option<Vec<Token>>> = vec![None; prompts.len()];
        let mut recorders: Vec<_> = prompts.iter().map(|_| Recorder::default()).collect();
        let mut on_event = |index: usize, event: &Event, canvas: &CanvasView<'_>| {
            recorders[index].event(event);
            let tokens = stable[index].get_or_insert_default();
            if let Event::StablePrefix { len } = *event {
                *tokens = canvas.tokens[canvas.n_prompt as usize..][..len as usize].to_vec();
            }
            if interrupt::asked() {
                Control::Cancel
            } else {
                Control::Continue
            }
        };
        match self
            .session
            .generate_batch(&batch, n_seats, params, &mut on_event)
        {
            Ok(outcomes) => Ok(outcomes
                .into_iter()
                .zip(recorders)
                .map(|(outcome, recorder)| Outcome {
                    recording: recorder.finish(&outcome.report.counts),
                    tokens: outcome.output,
                    report: outcome.report,
                    cancelled: false,
                })
                .collect()),
            Err(EngineError::Cancelled) => Ok(stable
                .into_iter()
                .map_while(|tokens| {
                    Some(Outcome {
                        tokens: tokens?,
                        report: RunReport::default(),
                        recording: Recording::default(),
                        cancelled: true,
                    })
                })
                .collect()),
            Err(error) => Err(error.into()),
        }
    }

    /// Checks that a prompt and its answer fit.
    ///
    /// # Errors
    /// [`Error::Param`].
    pub(crate) fn check(&self, n_prompt: usize, params: &Params) -> Result<(), Error> {
        let n_gen = self.n_predict(n_prompt);
        let n_prompt = u32::try_from(n_prompt).unwrap_or(u32::MAX);
        self.session.check(n_prompt, n_gen, params)?;
        Ok(())
    }

    /// Returns the number of tokens to generate: as given, else 128 or what the context leaves, 1 at least.
    fn n_predict(&self, n_prompt: usize) -> u32 {
        let n_ctx = self.session.traits().n_ctx;
        let n_prompt = u32::try_from(n_prompt).unwrap_or(u32::MAX);
        let room = n_ctx.saturating_sub(n_prompt).max(1);
        self.setup.n_predict.unwrap_or(N_PREDICT.min(room))
    }
}

/// What a frame shows beside the canvas itself.
#[derive(Debug)]
struct History {
    n_forwards: u32,
    /// By generated position: whether a revision changed it.
    revised: Vec<bool>,
}

impl History {
    fn new(n_gen: u32) -> Self {
        Self {
            n_forwards: 0,
            revised: vec![false; n_gen as usize],
        }
    }

    /// Hands an event to the observer.
    fn tell(
        &mut self,
        observer: &mut dyn Observer,
        event: &Event,
        canvas: &CanvasView<'_>,
    ) -> Result<(), Error> {
        let n_prompt = canvas.n_prompt as usize;
        match *event {
            Event::StablePrefix { len } => {
                observer.stable(&canvas.tokens[n_prompt..][..len as usize])
            }
            Event::Step { n_masked, .. } => {
                self.n_forwards += 1;
                observer.step(Frame {
                    tokens: &canvas.tokens[n_prompt..],
                    stages: &canvas.stages[n_prompt..],
                    revised: &self.revised,
                    n_masked: n_masked as usize,
                    n_forwards: self.n_forwards,
                })
            }
            Event::Replaced { pos, .. } | Event::Remasked { pos } => {
                if let Some(revised) = self.revised.get_mut(pos as usize - n_prompt) {
                    *revised = true;
                }
                Ok(())
            }
            Event::Committed { .. } => Ok(()),
        }
    }
}
