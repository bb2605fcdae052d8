//! What the shims call: the safe part of the C interface.

#![deny(unsafe_code)]

use std::ffi::{CStr, CString, OsStr};
use std::hash::{BuildHasher, RandomState};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use super::failure::Failure;
use super::handle::{ModelState, SessionCell, SessionState};
use super::types::{
    Event, EventType, ModelInfo, ModelParams, OptionInfo, Report, SessionParams, StageCode,
};
use crate::decode::{self, OPTIONS, Params, Stage};
use crate::engine::sample::Sampling;
use crate::engine::{
    self, CanvasView, Control, EngineError, KvType, LoadOptions, Model, RunReport, Session,
};
use crate::model::gguf::GgmlType;

/// `seed` that asks for a random one.
const RANDOM_SEED: u32 = u32::MAX;
/// `type_k` and `type_v` that leave the choice to us.
const DEFAULT_TYPE: i32 = -1;
/// What a field of an event holds that the event does not have, and the id of a token that a model does not have.
const NONE: i32 = -1;

/// What fields mean that a caller does not have.
pub(super) const DEFAULT_MODEL_PARAMS: ModelParams = ModelParams {
    size: size_of::<ModelParams>(),
    check_tensors: 0,
    progress: None,
    progress_user_data: ptr::null_mut(),
};

/// What fields mean that a caller does not have.
pub(super) const DEFAULT_SESSION_PARAMS: SessionParams = SessionParams {
    size: size_of::<SessionParams>(),
    n_ctx: 0,
    n_threads: 0,
    type_k: DEFAULT_TYPE,
    type_v: DEFAULT_TYPE,
    seed: RANDOM_SEED,
    temperature: 0.0,
    top_k: 0,
    top_p: 1.0,
};

/// A count of the caller: 0 or more.
pub(super) fn count(name: &'static str, value: i32) -> Result<u32, Failure> {
    u32::try_from(value).map_err(|_| Failure::Number {
        name,
        value: value.into(),
        expected: "0 or more",
    })
}

/// A length for C; those that we make fit.
pub(super) fn signed(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// Number of options.
pub(super) fn n_options() -> usize {
    OPTIONS.len()
}

/// Static description of an option.
pub(super) fn option_info(index: usize) -> Result<OptionInfo, Failure> {
    static TEXTS: OnceLock<Vec<[CString; 4]>> = OnceLock::new();
    let texts = TEXTS.get_or_init(|| {
        let owned = |text: &str| CString::new(text).unwrap_or_default();
        OPTIONS
            .iter()
            .map(|o| [o.key, o.value_name, o.default, o.help].map(owned))
            .collect()
    });
    let value = i64::try_from(index).unwrap_or(i64::MAX);
    let out_of_range = Failure::Number {
        name: "index",
        value,
        expected: "less than n_options()",
    };
    let [key, value_name, default, help] = texts.get(index).ok_or(out_of_range)?;
    Ok(OptionInfo {
        size: size_of::<OptionInfo>(),
        key: key.as_ptr(),
        value_name: value_name.as_ptr(),
        default_value: default.as_ptr(),
        help: help.as_ptr(),
    })
}

/// Loads a model onto our device.
pub(super) fn model_load(
    path: &CStr,
    check_tensors: bool,
    progress: &mut dyn FnMut(f32) -> bool,
) -> Result<ModelState, Failure> {
    let target = crate::abi::target()?;
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    let model = Model::load(
        path,
        target,
        &mut LoadOptions {
            check_tensors,
            progress,
        },
    )?;
    let architecture = CString::new(model.file().hparams().architecture).unwrap_or_default();
    Ok(ModelState {
        model,
        architecture,
    })
}

/// Describes a model.
pub(super) fn model_info(state: &ModelState) -> ModelInfo {
    let file = state.model.file();
    let (hparams, tokens, weights) = (file.hparams(), file.tokens(), file.weights());
    let id = |token: Option<u32>| token.and_then(|id| i32::try_from(id).ok()).unwrap_or(NONE);
    ModelInfo {
        size: size_of::<ModelInfo>(),
        architecture: state.architecture.as_ptr(),
        n_vocab: id(Some(tokens.n_vocab)),
        n_ctx_train: id(Some(hparams.n_ctx_train)),
        mask_token: id(tokens.mask),
        eos_token: id(tokens.eos),
        eot_token: id(tokens.eot),
        shift_logits: tokens.shift_logits.into(),
        n_params: weights.n_params(),
        size_bytes: weights.size_bytes(),
    }
}

/// Makes a session.
pub(super) fn session_new(
    state: &ModelState,
    params: &SessionParams,
) -> Result<SessionCell, Failure> {
    let seed = match params.seed {
        RANDOM_SEED => RandomState::new().hash_one(0),
        seed => seed.into(),
    };
    let params = engine::SessionParams {
        n_ctx: count("n_ctx", params.n_ctx)?,
        n_threads: count("n_threads", params.n_threads)?,
        type_k: kv_type("type_k", params.type_k)?,
        type_v: kv_type("type_v", params.type_v)?,
        sampling: Sampling {
            temperature: params.temperature,
            top_k: count("top_k", params.top_k)?,
            top_p: params.top_p,
            seed,
        },
    };
    let session = Session::new(state.model.clone(), params)?;
    Ok(SessionCell::new(SessionState {
        session,
        params: Params::default(),
    }))
}

fn kv_type(name: &'static str, id: i32) -> Result<KvType, Failure> {
    if id == DEFAULT_TYPE {
        return Ok(KvType::F16);
    }
    match u32::try_from(id).ok().and_then(GgmlType::from_id) {
        Some(GgmlType::F16) => Ok(KvType::F16),
        Some(GgmlType::F32) => Ok(KvType::F32),
        ty => {
            let ty = ty.map_or_else(|| id.to_string(), |ty| ty.name().to_owned());
            Err(Failure::KvType { name, ty })
        }
    }
}

/// Sets an option.
pub(super) fn session_set(
    state: &mut SessionState,
    key: &CStr,
    value: &CStr,
) -> Result<(), Failure> {
    let text = |name, text: &'_ CStr| match text.to_str() {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(Failure::Utf8 { name }),
    };
    let (key, value) = (text("key", key)?, text("value", value)?);
    state
        .params
        .set(&key, &engine::option_value(&key, &value)?)?;
    Ok(())
}

/// Checks options and lengths.
pub(super) fn session_check(
    state: &SessionState,
    n_prompt: i32,
    n_generate: i32,
) -> Result<(), Failure> {
    let (n_prompt, n_generate) = (
        count("n_prompt", n_prompt)?,
        count("n_generate", n_generate)?,
    );
    state.session.check(n_prompt, n_generate, &state.params)?;
    Ok(())
}

/// Generates; `callback` gets each event and stops the generation with anything but 0.
pub(super) fn generate(
    state: &mut SessionState,
    prompt: &[i32],
    n_generate: i32,
    callback: &mut dyn FnMut(&Event) -> i32,
) -> Result<(), Failure> {
    let n_generate = count("n_generate", n_generate)?;
    let mut stages = Vec::new();
    let mut on_event = |event: &decode::Event, view: &CanvasView<'_>| {
        stages.clear();
        stages.extend(view.stages.iter().map(|&stage| stage_code(stage) as u8));
        match callback(&event_for_c(event, view, &stages)) {
            0 => Control::Continue,
            _ => Control::Cancel,
        }
    };
    let result = state
        .session
        .generate(prompt, n_generate, &state.params, &mut on_event);
    result
        .map(|_| ())
        .map_err(|error: EngineError| error.into())
}

const fn stage_code(stage: Stage) -> StageCode {
    match stage {
        Stage::Invisible => StageCode::Masked,
        Stage::Draft => StageCode::Draft,
        Stage::Visible => StageCode::Visible,
        Stage::Stable => StageCode::Stable,
    }
}

fn event_for_c(event: &decode::Event, view: &CanvasView<'_>, stages: &[u8]) -> Event {
    let int = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
    let blank = |ty: EventType| Event {
        size: size_of::<Event>(),
        type_: ty as i32,
        pos: NONE,
        token: NONE,
        stage: NONE,
        step: NONE,
        n: NONE,
        canvas: view.tokens.as_ptr(),
        stages: stages.as_ptr(),
        n_canvas: signed(view.tokens.len()),
        n_prompt: int(view.n_prompt),
    };
    match *event {
        decode::Event::Committed { pos, token, stage } => Event {
            pos: int(pos),
            token,
            stage: stage_code(stage) as i32,
            ..blank(EventType::Committed)
        },
        decode::Event::Replaced { pos, token } => Event {
            pos: int(pos),
            token,
            ..blank(EventType::Replaced)
        },
        decode::Event::Remasked { pos } => Event {
            pos: int(pos),
            ..blank(EventType::Remasked)
        },
        decode::Event::StablePrefix { len } => Event {
            n: int(len),
            ..blank(EventType::StablePrefix)
        },
        decode::Event::Step { step, n_masked, .. } => Event {
            step: int(step),
            n: int(n_masked),
            ..blank(EventType::Step)
        },
    }
}

/// The report as C sees it.
pub(super) fn report(report: &RunReport) -> Report {
    let counts = &report.counts;
    Report {
        size: size_of::<Report>(),
        n_prompt: counts.n_prompt,
        n_generated: counts.n_generated,
        forwards_prefill: counts.forwards_prefill,
        forwards_refresh: counts.forwards_refresh,
        forwards_step: counts.forwards_step,
        forwards_promotion: counts.forwards_promotion,
        forwards_sweep: counts.forwards_sweep,
        rows_dense: counts.rows_dense,
        rows_padded: counts.rows_padded,
        rows_revision: counts.rows_revision,
        rows_logits: counts.rows_logits,
        drafts_made: counts.drafts_made,
        drafts_kept: counts.drafts_kept,
        revisions_made: counts.revisions_made,
        revisions_replaced: counts.revisions_replaced,
        revisions_remasked: counts.revisions_remasked,
        n_committed: counts.n_committed,
        seconds_total: report.total.as_secs_f64(),
        seconds_dense: report.dense.as_secs_f64(),
        seconds_revision: report.revision.as_secs_f64(),
        seconds_sampling: report.sampling.as_secs_f64(),
        seconds_waiting: report.waiting.as_secs_f64(),
        buckets: counts.buckets,
        npu_ms: counts.npu_ms(),
    }
}
