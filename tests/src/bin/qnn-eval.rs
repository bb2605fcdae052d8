//! `qnn-eval MODEL PROMPTS N_PROMPTS N_GEN KV DECODINGS OUT [HOST]`: answers the first prompts of a task file with the accelerator
//! of the environment (`LLADA_NPU_ACCEL`), over K/V of f16 or f32 (KV), by some [decodings](DECODINGS) (names, separated by commas),
//! and writes what came out into a directory:
//!
//! * `result.json`: for each prompt, by each decoding, the generated tokens, and with HOST, the directory
//!   of an earlier run, the [`difference`](near_tie::compare) from that; the canvas `tokens` of one more forward (prompt, then
//!   masks); `qnn`: what the library did, absent where it was not used;
//! * `N.f32`: the logits of that forward, `[n_vocab, n_tokens]`, little-endian;
//! * `N-DECODING.json`, `N-DECODING.logits`: traces of the generations.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ggml_llada_npu::device::qnn;
use ggml_llada_npu::engine::KvType;
use ggml_llada_npu::engine::sample::Sampling;
use llada_npu_tests::engine::{
    forward, load, session_over, target, traced, traced_together, whole_plan,
};
use llada_npu_tests::files::prompts;
use llada_npu_tests::llama::Llama;
use llada_npu_tests::near_tie::{self, Ties, Trace};
use serde_json::json;

/// A name, options, and which near ties explain another text.
type Decoding = (&'static str, &'static str, Ties);

const DECODINGS: [Decoding; 2] = [
    ("default", "", Ties::All),
    // One position at a time, left to right: neither a threshold nor the order of confidences decides anything.
    (
        "token_by_token",
        "mode=cached block-length=1 suffix=none refresh-blocks=0",
        Ties::Tokens,
    ),
];

/// Prompts whose tokens share a forward, of two rows each: they fill the smallest graphs.
const N_SEATS: usize = 16;

fn decoding(name: &str) -> Decoding {
    let known = DECODINGS.into_iter().find(|decoding| decoding.0 == name);
    known.unwrap_or_else(|| panic!("no decoding {name}"))
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (arguments, host) = match arguments.as_slice() {
        [first @ .., host] if arguments.len() == 8 => (first, Some(PathBuf::from(host))),
        all => (all, None),
    };
    let [model, tasks, n_prompts, n_gen, kv, decodings, out] = arguments else {
        panic!("usage: qnn-eval MODEL PROMPTS N_PROMPTS N_GEN KV DECODINGS OUT [HOST]");
    };
    let number = |text: &String| -> u32 { text.parse().expect("a number") };
    let out = PathBuf::from(out);
    std::fs::create_dir_all(&out).expect("the directory can be made");
    let path = Path::new(model);
    let (llama, loaded) = (Llama::load(path, 512), load(path, target()));
    let kv = match kv.as_str() {
        "f16" => KvType::F16,
        "f32" => KvType::F32,
        other => panic!("K/V of {other}"),
    };
    let mut session = session_over(&loaded, kv, 1, Sampling::default());
    let mask = loaded.traits(512).mask.expect("the model has a mask token");
    let messages = prompts(tasks);
    let messages: Vec<_> = messages.iter().take(number(n_prompts) as usize).collect();
    let chats: Vec<_> = messages.iter().map(|it| llama.chat_prompt(it)).collect();
    let n_gen = number(n_gen);
    let decodings: Vec<_> = decodings.split(',').map(decoding).collect();
    let generate = |&(_, options, ties): &Decoding| match ties {
        Ties::All => {
            let alone = |prompt: &Vec<i32>| traced(&mut session, prompt, n_gen, options);
            chats.iter().map(alone).collect()
        }
        Ties::Tokens => traced_together(&mut session, &chats, n_gen, options, N_SEATS),
    };
    let generated: Vec<Vec<Trace>> = decodings.iter().map(generate).collect();
    let mut results = Vec::new();
    for (i, (message, prompt)) in messages.iter().zip(&chats).enumerate() {
        let mut answers = BTreeMap::new();
        for ((name, _, ties), traces) in decodings.iter().zip(&generated) {
            let file = format!("{i}-{name}");
            traces[i].write(&out.join(&file));
            let on_host = host.as_ref().map(|host| Trace::read(&host.join(&file)));
            let difference = |host: Trace| near_tie::compare(&host, &traces[i], *ties);
            let answer = json!({
                "output": traces[i].output,
                "n_forwards": traces[i].forwards.len(),
                "difference": on_host.and_then(difference),
            });
            answers.insert(*name, answer);
        }
        let mut tokens = prompt.clone();
        tokens.resize(prompt.len() + n_gen as usize, mask);
        let logits = forward(&mut session, &whole_plan(&tokens, 0)).concat();
        let bytes: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
        std::fs::write(out.join(format!("{i}.f32")), bytes).expect("logits can be written");
        results.push(json!({
            "prompt": message,
            "answers": answers,
            "tokens": tokens,
            "n_vocab": llama.n_vocab(),
        }));
    }
    let report = qnn::session().ok().flatten().map(|session| {
        let report = session.report();
        json!({
            "graphs_built": report.n_graphs_built,
            "graphs_loaded": report.n_graphs_loaded,
            "contexts": report.n_contexts,
            "finalize_s": report.finalize.as_secs_f64(),
            "binary_bytes": report.binary_bytes,
            "executions": report.n_executions,
            "attentions": report.n_attentions,
            "worst_nmse": report.worst_nmse,
            "refused": report.refused,
            "overflows": report.n_overflows,
        })
    });
    let result = json!({ "prompts": results, "qnn": report });
    std::fs::write(out.join("result.json"), result.to_string()).expect("results can be written");
}
