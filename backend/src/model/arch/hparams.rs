//! The shape of a model.

use super::{ArchError, ArchMetadata, key_type};

const MAX_N_LAYER: u64 = 1 << 12;
const MAX_N_EMBD: u64 = 1 << 20;
const MAX_N_FF: u64 = 1 << 22;
const MAX_N_HEAD: u64 = 1 << 12;
const MAX_N_CTX: u64 = 1 << 24;
/// `rope.freq_base` of files that do not say it.
const DEFAULT_ROPE_FREQ_BASE: f32 = 10_000.0;

/// How rotary embedding pairs the elements of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeKind {
    /// Neighbours: `(0, 1), (2, 3), …`.
    Norm,
    /// Halves: `(0, d/2), (1, d/2 + 1), …`.
    NeoX,
}

/// How the official code of an architecture goes through the positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Block by block, as LLaDA's.
    Blocks,
    /// By timesteps, as Dream's.
    Timesteps,
}

/// Shape of a model. All numbers are at least 1; `n_embd_head * n_head` need not be `n_embd`.
#[derive(Clone, Debug, PartialEq)]
pub struct Hparams {
    /// Name of the architecture.
    pub architecture: &'static str,
    /// Layers.
    pub n_layer: u32,
    /// Length of a row of the residual stream.
    pub n_embd: u32,
    /// Length of a row inside the feed-forward network.
    pub n_ff: u32,
    /// Heads of Q.
    pub n_head: u32,
    /// Heads of K and V; divides `n_head`.
    pub n_head_kv: u32,
    /// Elements of one head of Q, K and V; even.
    pub n_embd_head: u32,
    /// Positions the model was trained on.
    pub n_ctx_train: u32,
    /// Epsilon of the RMS norms.
    pub rms_eps: f32,
    /// Base of rotary embedding.
    pub rope_freq_base: f32,
    /// Pairing of rotary embedding, over the whole head.
    pub rope: RopeKind,
    /// Schedule of the official code.
    pub schedule: Schedule,
}

impl Hparams {
    /// Length of a row of K or V.
    pub const fn n_embd_kv(&self) -> u32 {
        self.n_embd_head * self.n_head_kv
    }

    /// Length of a row of Q.
    pub const fn n_embd_q(&self) -> u32 {
        self.n_embd_head * self.n_head
    }
}

impl ArchMetadata<'_> {
    /// Reads the shape of the model.
    pub(in crate::model) fn hparams(&self) -> Result<Hparams, ArchError> {
        let eps_key = "attention.layer_norm_rms_epsilon";
        let n_embd = self.required("embedding_length", MAX_N_EMBD)?;
        let n_head = self.required("attention.head_count", MAX_N_HEAD)?;
        let n_head_kv = self
            .count("attention.head_count_kv", MAX_N_HEAD)?
            .unwrap_or(n_head);
        divisible(
            "attention.head_count",
            n_head,
            "attention.head_count_kv",
            n_head_kv,
        )?;
        let n_embd_head = if let Some(length) = self.count("attention.key_length", MAX_N_EMBD)? {
            length
        } else {
            divisible("embedding_length", n_embd, "attention.head_count", n_head)?;
            n_embd / n_head
        };
        self.check_head(n_embd_head, n_head)?;
        self.check_rope_scaling()?;
        let rms_eps = self.float(eps_key)?.ok_or_else(|| ArchError::MissingKey {
            key: self.key(eps_key),
        })?;
        Ok(Hparams {
            architecture: self.spec.name,
            n_layer: self.required("block_count", MAX_N_LAYER)?,
            n_embd,
            n_ff: self.required("feed_forward_length", MAX_N_FF)?,
            n_head,
            n_head_kv,
            n_embd_head,
            n_ctx_train: self.required("context_length", MAX_N_CTX)?,
            rms_eps,
            rope_freq_base: self
                .float("rope.freq_base")?
                .unwrap_or(DEFAULT_ROPE_FREQ_BASE),
            rope: self.spec.rope,
            schedule: self.spec.schedule,
        })
    }

    /// K, V and the rotated part must have the same length, in bounds together.
    fn check_head(&self, n_embd_head: u32, n_head: u32) -> Result<(), ArchError> {
        if !n_embd_head.is_multiple_of(2) {
            return Err(ArchError::OddHead {
                n_embd_head: n_embd_head.into(),
            });
        }
        let n_embd_q = u64::from(n_embd_head) * u64::from(n_head);
        if n_embd_q > MAX_N_EMBD {
            let key = self.key("attention.key_length");
            let max = MAX_N_EMBD / u64::from(n_head);
            return Err(ArchError::KeyRange {
                key,
                actual: n_embd_head.into(),
                min: 1,
                max,
            });
        }
        for suffix in ["attention.value_length", "rope.dimension_count"] {
            match self.count(suffix, MAX_N_EMBD)? {
                Some(actual) if actual != n_embd_head => {
                    let (actual, expected) = (actual.into(), n_embd_head.into());
                    return Err(ArchError::HeadDim {
                        key: self.key(suffix),
                        actual,
                        expected,
                    });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Only the absence of scaling is supported, in whatever way a file says it.
    fn check_rope_scaling(&self) -> Result<(), ArchError> {
        let key = self.key("rope.scaling.type");
        if let Some(value) = self.header.value(&key) {
            let value = value
                .as_str()
                .ok_or_else(|| key_type(&key, &value, "string"))?;
            match value {
                "none" => return Ok(()),
                // By the factor 1 of files that do not say it: no scaling.
                "linear" => {}
                _ => {
                    let value = value.escape_debug().to_string();
                    return Err(ArchError::RopeScaling { key, value });
                }
            }
        }
        for suffix in ["rope.scaling.factor", "rope.scale_linear"] {
            let key = self.key(suffix);
            let factor = self.header.value(&key).map(|value| (value, value.as_f64()));
            if let Some((value, factor)) = factor {
                let factor = factor.ok_or_else(|| key_type(&key, &value, "float"))?;
                if factor != 0.0 && factor != 1.0 {
                    return Err(ArchError::RopeScaling {
                        key,
                        value: factor.to_string(),
                    });
                }
            }
        }
        Ok(())
    }
}

fn divisible(
    what: &'static str,
    value: u32,
    divisor_name: &'static str,
    divisor: u32,
) -> Result<(), ArchError> {
    if value.is_multiple_of(divisor) {
        return Ok(());
    }
    Err(ArchError::NotDivisible {
        what,
        value: value.into(),
        divisor_name,
        divisor: divisor.into(),
    })
}
