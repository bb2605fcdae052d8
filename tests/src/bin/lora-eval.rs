//! `lora-eval PLUGIN MODEL TOKENS OUT RUNS ADAPTER…`: logits of one model with `LoRA` adapters, one run after the other in one context of
//! stock libllama, on the plug-in's device.
//!
//! `TOKENS` are numbers separated by commas. `RUNS` are separated by `;`, each a list of `ADAPTER:SCALE` separated by commas, where
//! adapters go by their number among the arguments; an empty one has none. Run `N` writes `N.f32` into the directory `OUT`: the
//! logits of all tokens, `[n_vocab, n_tokens]`, little-endian. What the plug-in logs goes to stderr.

use std::path::{Path, PathBuf};

use llada_npu_tests::llama::{Llama, load_plugin_at, log_to_stderr};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [plugin, model, tokens, out, runs, adapters @ ..] = arguments.as_slice() else {
        panic!("usage: lora-eval PLUGIN MODEL TOKENS OUT RUNS ADAPTER…");
    };
    let out = PathBuf::from(out);
    std::fs::create_dir_all(&out).expect("the directory can be made");
    let tokens = tokens.split(',').map(|id| id.parse().expect("a token"));
    let tokens: Vec<i32> = tokens.collect();
    load_plugin_at(Path::new(plugin));
    log_to_stderr("llada-npu: ");
    let mut llama = Llama::load_on("llada-npu", Path::new(model), 512);
    let adapters = adapters
        .iter()
        .map(|path| llama.load_adapter(Path::new(path)));
    let adapters: Vec<_> = adapters.collect();
    for (i, run) in runs.split(';').enumerate() {
        let used = run.split(',').filter(|text| !text.is_empty()).map(|text| {
            let (adapter, scale) = text.split_once(':').expect("ADAPTER:SCALE");
            let adapter: usize = adapter.parse().expect("a number of an adapter");
            (adapters[adapter], scale.parse().expect("a scale"))
        });
        llama.set_adapters(&used.collect::<Vec<_>>());
        let logits = llama.decode(&tokens, 0).concat();
        let bytes: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
        std::fs::write(out.join(format!("{i}.f32")), bytes).expect("logits can be written");
    }
}
