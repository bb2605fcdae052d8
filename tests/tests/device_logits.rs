//! Logits of libllama's own graphs on the device against those on the CPU backend. API 3.

use llada_npu_tests::llama::{self, Llama, nmse};
use llada_npu_tests::numpy::Numpy;

/// Weights, and how far logits may be apart (NMSE).
const WEIGHTS: [(&str, f64); 6] = [
    ("F32", 1e-4),
    ("F16", 1e-4),
    ("Q8_0", 1e-4),
    ("Q4_0", 1e-4),
    ("Q4_K", 1e-4),
    ("Q6_K", 1e-4),
];

#[test]
fn every_architecture_has_the_logits_of_the_cpu() {
    llama::load_plugin();
    let mut numpy = Numpy::new();
    let mut models = Vec::new();
    for arch in ["llada", "dream", "llama", "qwen2"] {
        for (weights, limit) in WEIGHTS {
            let arguments = format!("--arch {arch} --type {weights} --shape 256");
            let has_cache = ["llama", "qwen2"].contains(&arch);
            models.push((arguments.clone(), numpy.make(&arguments), has_cache, limit));
        }
    }
    numpy.run();
    for (what, path, has_cache, limit) in models {
        let (mut cpu, mut npu) = (
            Llama::load(&path, 256),
            Llama::load_on("llada-npu", &path, 256),
        );
        for n in [1, 3, 40] {
            if has_cache {
                cpu.forget_from(0);
                npu.forget_from(0);
            }
            let tokens: Vec<i32> = (0..n).map(|i| (i * 37 + n) % 500).collect();
            let expected = cpu.decode(&tokens, 0).concat();
            let got = npu.decode(&tokens, 0).concat();
            let error = nmse(&got, &expected);
            println!("{what}, {n} tokens: {error:.1e}");
            assert!(error <= limit, "{what}, {n} tokens: error {error:e}");
        }
    }
}
