//! `LoRA` adapters on the plug-in's device: files, runs of `lora-eval`, and the reference.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::trained;
use crate::host::plugin;
use crate::llama::nmse;
use crate::numpy::{self, Numpy};
use crate::program::Finished;
use crate::qnn::{Qnn, report_number};

/// How far logits may be from the f32 reference of the dequantised weights.
const MAX_NMSE: f64 = 1e-5;

/// Adapters by number, each with its scale.
pub type Run<'a> = &'a [(usize, f32)];

/// A model, and random adapters for it: two of ranks that have the same room, two for some matrices alone.
#[derive(Debug)]
pub struct Adapted {
    numpy: Numpy,
    model: PathBuf,
    adapters: [PathBuf; 4],
    tokens: Vec<i32>,
}

impl Adapted {
    /// Takes the trained model, or makes a random one with the arguments of `reference.cli make`.
    ///
    /// # Panics
    /// When the reference fails.
    #[must_use]
    pub fn make(random: Option<&str>) -> Self {
        let mut numpy = Numpy::new();
        let model = random.map_or_else(|| trained("q4_0"), |arguments| numpy.make(arguments));
        let adapters = [
            "--rank 16 --seed 1",
            "--rank 12 --alpha 24 --type F32 --seed 2",
            "--rank 9 --alpha 0 --only attn_(q|v) --seed 3",
            "--rank 8 --alpha 0 --only attn_output --seed 4",
        ]
        .map(|arguments| numpy.adapter(&model, arguments));
        numpy.run();
        Self {
            numpy,
            model,
            adapters,
            tokens: (0..40).map(|i| (i * 37 + 11) % 280).collect(),
        }
    }

    /// Runs `lora-eval` (`program`) on the plug-in's device, one forward for each run, with further variables; returns what the
    /// plug-in logged.
    ///
    /// # Panics
    /// When it fails.
    pub fn eval(
        &self,
        program: &str,
        runs: &[Run<'_>],
        out: &Path,
        qnn: &Qnn,
        settings: &[(&str, &str)],
    ) -> Log {
        let run = |run: &Run<'_>| {
            let pairs = run.iter().map(|(i, scale)| format!("{i}:{scale}"));
            pairs.collect::<Vec<_>>().join(",")
        };
        let tokens: Vec<String> = self.tokens.iter().map(i32::to_string).collect();
        let mut command = Command::new(program);
        command
            .arg(plugin())
            .arg(&self.model)
            .arg(tokens.join(","))
            .arg(out)
            .arg(runs.iter().map(run).collect::<Vec<_>>().join(";"))
            .args(&self.adapters)
            .env("LLADA_NPU_LOG", "debug");
        qnn.set(&mut command);
        command.envs(settings.iter().copied());
        let finished = Finished::from(command.output().expect("the program starts"));
        assert_eq!(finished.code, Some(0), "{finished:?}");
        Log(finished.stderr)
    }

    /// Compares the logits of runs with the reference.
    ///
    /// # Panics
    /// When they are too far apart, or the reference's of two runs too close to tell them apart.
    #[expect(clippy::print_stdout, reason = "what a test found")]
    pub fn check(&mut self, runs: &[Run<'_>], out: &Path) {
        let references: Vec<_> = runs
            .iter()
            .map(|run| {
                let adapters = run
                    .iter()
                    .map(|&(i, scale)| (self.adapters[i].as_path(), scale));
                let adapters: Vec<_> = adapters.collect();
                self.numpy.logits(&self.model, &self.tokens, &adapters)
            })
            .collect();
        self.numpy.run();
        let read = |path: &Path| numpy::rows(path, 1).concat();
        let all: Vec<_> = references.iter().map(|path| read(path)).collect();
        for (i, (run, expected)) in runs.iter().zip(&all).enumerate() {
            let error = nmse(&read(&out.join(format!("{i}.f32"))), expected);
            println!("{run:?}: NMSE {error:.1e} (limit {MAX_NMSE:.0e})");
            assert!(error <= MAX_NMSE, "{run:?}: NMSE {error:e}");
            // An adapter that were not there would show.
            for (j, other) in all.iter().enumerate().filter(|(j, _)| runs[*j] != *run) {
                assert!(nmse(other, expected) > 100.0 * MAX_NMSE, "{i} {j}");
            }
        }
    }
}

/// What a plug-in logged.
#[derive(Clone, Debug)]
pub struct Log(pub String);

impl Log {
    /// Returns a number of the report of the session with the library.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn number(&self, name: &str) -> f64 {
        report_number(&self.0, name).unwrap_or_else(|| panic!("no {name} in {}", self.0))
    }
}
