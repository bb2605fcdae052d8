//! Two models on the device in one process, each in a thread of its own. API 3.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use std::path::Path;

use llada_npu_tests::llama::{self, Llama, nmse};
use llada_npu_tests::numpy::Numpy;

const ROUNDS: usize = 4;

/// Computes the logits of a few token lists, one after another.
fn logits(mut model: Llama, n_vocab: i32) -> Vec<Vec<f32>> {
    (0..ROUNDS)
        .map(|round| {
            let first = i32::try_from(round).unwrap();
            let tokens: Vec<i32> = (0..24).map(|i| (first * 31 + i * 7) % n_vocab).collect();
            let rows = model.decode(&tokens, 0);
            rows.concat()
        })
        .collect()
}

fn on_device(path: &Path) -> Vec<Vec<f32>> {
    logits(Llama::load_on("llada-npu", path, 64), 200)
}

#[test]
fn two_models_compute_beside_each_other() {
    llama::load_plugin();
    let mut numpy = Numpy::new();
    let llada = numpy.make("--arch llada --type F16 --shape tiny");
    let dream = numpy.make("--arch dream --type Q8_0 --shape tiny --seed 2");
    numpy.run();
    let got = std::thread::scope(|scope| {
        let threads = [&llada, &dream].map(|path| scope.spawn(|| on_device(path)));
        threads.map(|thread| thread.join().unwrap())
    });
    for (path, got) in [&llada, &dream].into_iter().zip(got) {
        let expected = logits(Llama::load(path, 64), 200);
        for (expected, got) in expected.iter().zip(&got) {
            let error = nmse(expected, got);
            assert!(error < 1e-6, "{}: error {error:e}", path.display());
        }
    }
}
