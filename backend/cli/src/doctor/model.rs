//! What `doctor` says about a model file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ggml_llada_npu::model::{LoadError, ModelFile};
use serde::Serialize;

use super::qnn;

/// A model file.
#[derive(Debug, Serialize)]
pub(super) struct Model {
    path: PathBuf,
    error: Option<String>,
    #[serde(flatten)]
    summary: Option<Summary>,
}

#[derive(Debug, Serialize)]
struct Summary {
    architecture: &'static str,
    n_params: u64,
    size_bytes: u64,
    n_vocab: u32,
    n_ctx_train: u32,
    n_layer: u32,
    n_embd: u32,
    n_ff: u32,
    n_head: u32,
    n_head_kv: u32,
    mask_token: Option<u32>,
    eos_token: Option<u32>,
    eot_token: Option<u32>,
    shift_logits: bool,
    /// Number of tensors by type.
    types: BTreeMap<&'static str, usize>,
    copies: qnn::Copies,
}

/// Returns what is known of a file that was opened, or refused.
pub(super) fn of(path: &Path, result: Result<&ModelFile, &LoadError>) -> Model {
    Model {
        path: path.to_path_buf(),
        error: result.err().map(ToString::to_string),
        summary: result.ok().map(summary),
    }
}

fn summary(model: &ModelFile) -> Summary {
    let (hparams, tokens, weights) = (model.hparams(), model.tokens(), model.weights());
    let mut types = BTreeMap::new();
    for weight in weights.all() {
        *types.entry(weight.ty().name()).or_default() += 1;
    }
    Summary {
        architecture: hparams.architecture,
        n_params: weights.n_params(),
        size_bytes: weights.size_bytes(),
        n_vocab: tokens.n_vocab,
        n_ctx_train: hparams.n_ctx_train,
        n_layer: hparams.n_layer,
        n_embd: hparams.n_embd,
        n_ff: hparams.n_ff,
        n_head: hparams.n_head,
        n_head_kv: hparams.n_head_kv,
        mask_token: tokens.mask,
        eos_token: tokens.eos,
        eot_token: tokens.eot,
        shift_logits: tokens.shift_logits,
        types,
        copies: qnn::copies(model),
    }
}

/// Adds the lines of the table.
pub(super) fn lines(model: &Model, qnn: &qnn::Qnn, mut line: impl FnMut(&str, String)) {
    let path = model.path.display();
    let Some(summary) = &model.summary else {
        line("model", format!("{path}: cannot be used"));
        return;
    };
    let id = |token: Option<u32>| token.map_or("none".to_owned(), |id| id.to_string());
    line("model", path.to_string());
    line(
        "",
        format!(
            "{}, {} parameters, {} bytes of weights, context {}",
            summary.architecture, summary.n_params, summary.size_bytes, summary.n_ctx_train
        ),
    );
    line(
        "",
        format!(
            "{} layers, embedding {}, feed-forward {}, {} heads ({} for K/V), vocabulary {}",
            summary.n_layer,
            summary.n_embd,
            summary.n_ff,
            summary.n_head,
            summary.n_head_kv,
            summary.n_vocab
        ),
    );
    line(
        "",
        format!(
            "tokens: mask {}, EOS {}, EoT {}; logits {}",
            id(summary.mask_token),
            id(summary.eos_token),
            id(summary.eot_token),
            if summary.shift_logits {
                "shifted by one row"
            } else {
                "not shifted"
            }
        ),
    );
    let types: Vec<_> = summary
        .types
        .iter()
        .map(|(name, n)| format!("{n} {name}"))
        .collect();
    line("", format!("tensors: {}", types.join(", ")));
    line("", qnn::copies_line(&summary.copies, qnn));
}
