//! Models of the tests: random ones, and scripted ones whose every prediction is chosen.
//!
//! A scripted model has one-hot embeddings and layers that add nothing, so the logits of a row are what the script says of
//! the row's own token. Without shifted logits a masked position is predicted by its mask: all say the same. With shifted
//! logits a position is predicted by the token before it: a chain of tokens is told one after the other, each sure only
//! when the one before it stands.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use ggml_llada_npu::model::ModelFile;
use llada_npu_tests::numpy::Numpy;

/// End of text, mask and end of turn of the vocabulary that `tests/reference` makes; ids below 256 are bytes.
pub(crate) const EOS: i32 = 270;
pub(crate) const MASK: i32 = 271;
pub(crate) const EOT: i32 = 273;

/// A logit that leaves the other 319 tokens (0 each) less than 0.2 percent.
pub(crate) const SURE: f32 = 12.0;

const N_VOCAB: usize = 320;

/// All models of this program, made by one interpreter.
#[derive(Debug)]
pub(crate) struct Models {
    numpy: Numpy,
    /// Random, architecture llada, with the key `diffusion.shift_logits`, false.
    pub(crate) llada: PathBuf,
    /// Random, architecture dream, without that key.
    pub(crate) dream: PathBuf,
    /// The same weights with the key, true.
    pub(crate) dream_with_key: PathBuf,
    /// Random, with one matrix for Q, K and V.
    pub(crate) fused: PathBuf,
    /// Random, smallest shape, context of 512: for many generations.
    pub(crate) small_llada: PathBuf,
    /// The same, architecture dream.
    pub(crate) small_dream: PathBuf,
    base_llada: PathBuf,
    base_dream: PathBuf,
}

pub(crate) static MODELS: LazyLock<Models> = LazyLock::new(|| {
    let mut numpy = Numpy::in_directory(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("defects"));
    // Enough attention gain for varied text.
    let random = "--shape tiny --type F32 --attention-gain 3";
    let small =
        "--shape tiny --n-embd 32 --n-head 2 --n-head-kv 2 --n-layer 1 --n-ff 32 --context 512";
    let base = "--shape tiny --n-embd 320 --n-layer 1 --n-ff 32 --type F32";
    let mut make = |arguments: String| numpy.make(&arguments);
    let llada = make(format!("--arch llada {random}"));
    let dream = make(format!("--arch dream {random}"));
    let dream_with_key = make(format!("--arch dream {random} --shift-key true"));
    let fused = make(format!("--arch llada {random} --fused-qkv"));
    let small_llada = make(format!("--arch llada {small}"));
    let small_dream = make(format!("--arch dream {small}"));
    let base_llada = make(format!("--arch llada {base}"));
    let base_dream = make(format!("--arch dream {base}"));
    numpy.run();
    Models {
        numpy,
        llada,
        dream,
        dream_with_key,
        fused,
        small_llada,
        small_dream,
        base_llada,
        base_dream,
    }
});

impl Models {
    /// Returns a model that says of every masked position the same: these tokens with these logits, all others 0.
    pub(crate) fn constant(&self, name: &str, says: &[(i32, f32)]) -> PathBuf {
        let script = BTreeMap::from([(MASK, says.to_vec())]);
        self.scripted(name, &self.base_llada, &script)
    }

    /// Returns a model that, after the prompt `x`, is sure of these tokens, one after the other. They differ from each
    /// other; of what follows the last one it knows nothing.
    pub(crate) fn chain(&self, name: &str, tokens: &[i32]) -> PathBuf {
        let mut script = BTreeMap::new();
        let mut before = i32::from(b'x');
        for &token in tokens {
            assert!(
                script.insert(before, vec![(token, SURE)]).is_none(),
                "{before} occurs twice"
            );
            before = token;
        }
        self.scripted(name, &self.base_dream, &script)
    }

    /// Returns a copy of the random llada model whose output matrix is all NaN.
    pub(crate) fn not_a_number(&self) -> PathBuf {
        self.edited("nan.gguf", &self.llada, |name, values| {
            if name == "output.weight" {
                values.fill(f32::NAN);
            }
        })
    }

    fn scripted(
        &self,
        name: &str,
        base: &Path,
        script: &BTreeMap<i32, Vec<(i32, f32)>>,
    ) -> PathBuf {
        // The norm turns a one-hot vector into its square root of N_VOCAB.
        let scale = (N_VOCAB as f32).sqrt().recip();
        self.edited(name, base, |tensor, values| {
            let one_hot = |values: &mut [f32]| {
                values.fill(0.0);
                values
                    .iter_mut()
                    .step_by(N_VOCAB + 1)
                    .for_each(|x| *x = 1.0);
            };
            match tensor {
                "token_embd.weight" => one_hot(values),
                "output_norm.weight" => values.fill(1.0),
                "output.weight" => {
                    values.fill(0.0);
                    for (&seen, says) in script {
                        for &(token, logit) in says {
                            values[index(token) * N_VOCAB + index(seen)] = logit * scale;
                        }
                    }
                }
                "blk.0.attn_output.weight" | "blk.0.ffn_down.weight" => values.fill(0.0),
                _ => {}
            }
        })
    }

    /// Writes a copy of an F32 model with other weights.
    fn edited(&self, name: &str, base: &Path, edit: impl Fn(&str, &mut Vec<f32>)) -> PathBuf {
        let mut bytes = std::fs::read(base).expect("the base model can be read");
        let file = ModelFile::open(base).expect("the base model is a model");
        for weight in file.weights().all() {
            let data = &mut bytes[weight.data().range()];
            let (chunks, _) = data.as_chunks::<4>();
            let mut values: Vec<f32> = chunks.iter().map(|&x| f32::from_le_bytes(x)).collect();
            edit(weight.name(), &mut values);
            let (chunks, _) = data.as_chunks_mut::<4>();
            for (chunk, value) in chunks.iter_mut().zip(values) {
                *chunk = value.to_le_bytes();
            }
        }
        let path = self.numpy.path(name);
        std::fs::write(&path, bytes).expect("a writable directory");
        path
    }
}

fn index(token: i32) -> usize {
    usize::try_from(token).expect("an id")
}

/// Returns the bytes of a text as tokens.
pub(crate) fn bytes(text: &str) -> Vec<i32> {
    text.bytes().map(i32::from).collect()
}

/// Returns a GGUF file that holds nothing but the name of an architecture.
pub(crate) fn header_of(architecture: &str) -> Vec<u8> {
    const STRING: u32 = 8;
    let string = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    [
        &b"GGUF"[..],
        &3_u32.to_le_bytes(),
        &0_u64.to_le_bytes(),
        &1_u64.to_le_bytes(),
        &string("general.architecture"),
        &STRING.to_le_bytes(),
        &string(architecture),
    ]
    .concat()
}
