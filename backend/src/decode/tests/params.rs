//! Options as text, and what they come to.

use super::super::*;
use super::machine::{params, traits};

/// A value of every option that is not its default.
const VALUES: &[(&str, &str)] = &[
    ("mode", "reference"),
    ("steps", "7"),
    ("eps", "0.01"),
    ("block-length", "8"),
    ("algorithm", "entropy"),
    ("alg-temp", "0.5"),
    ("cfg-scale", "1.5"),
    ("add-gumbel-noise", "true"),
    ("threshold", "0.8"),
    ("tau-visible", "0.6"),
    ("tau-stable", "0.95"),
    ("factor", "1"),
    ("entropy-bound", "0.1"),
    ("local-radius", "4"),
    ("local-threshold", "0.5"),
    ("stability", "0.7"),
    ("suffix", "12"),
    ("refresh-blocks", "2"),
    ("refresh-steps", "3"),
    ("lookahead-trigger", "4"),
    ("lookahead-max", "16"),
    ("draft-threshold", "0.8"),
    ("fill", "lookahead"),
    ("cost", "npu"),
    ("revision-budget", "2"),
    ("revision-order", "confidence"),
    ("revision-radius", "2"),
    ("revision-context", "window"),
    ("revision-path", "own"),
    ("revision-threads", "2"),
    ("tau-replace", "0.8"),
    ("tau-remask", "0.2"),
    ("max-revisions", "2"),
    ("final-sweep", "2"),
    ("confidence", "without-mask"),
    ("shift-logits", "true"),
    ("mask-id", "4"),
    ("logits-eos-inf", "true"),
    ("confidence-eos-eot-inf", "true"),
];

#[test]
fn set_knows_exactly_the_keys_of_the_table() {
    let keys: Vec<_> = OPTIONS.iter().map(|info| info.key).collect();
    let values: Vec<_> = VALUES.iter().map(|&(key, _)| key).collect();
    assert_eq!(keys, values);
    for (key, value) in VALUES {
        let mut params = Params::default();
        params.set(key, value).unwrap();
        assert_ne!(params, Params::default(), "{key} has no effect");
    }
    for key in ["", "Mode", "tau", "json", "visual", "steps "] {
        let error = Params::default().set(key, "1").unwrap_err();
        assert_eq!(error.to_string(), format!("unknown option `{key}`"));
    }
}

#[test]
fn the_defaults_of_the_table_are_the_defaults() {
    for info in OPTIONS.iter().filter(|info| !info.default.is_empty()) {
        let set = |base: &str| {
            let mut params = params(base);
            params.set(info.key, info.default).unwrap();
            params.resolve(&traits(false, true), 3, 9)
        };
        let plain = |mode: Mode| {
            let params = params(&format!("mode={}", mode.name()));
            params.resolve(&traits(false, true), 3, 9)
        };
        for &mode in info.modes.iter().filter(|_| info.key != "mode") {
            let set = set(&format!("mode={}", mode.name()));
            assert_eq!(set, plain(mode), "{} in {}", info.key, mode.name());
        }
        if info.key == "mode" {
            assert_eq!(set(""), params("").resolve(&traits(false, true), 3, 9));
        }
    }
}

#[test]
fn values_outside_the_domain_are_refused_in_one_line_that_names_key_and_value() {
    let common = [
        "", " ", "nan", "NaN", "-1", "+1", "1x", " 1", "1 ", "0x1", "1,5", "--", "\u{661}",
    ];
    for info in OPTIONS {
        for value in common {
            let error = Params::default()
                .set(info.key, value)
                .expect_err(info.key)
                .to_string();
            assert!(
                error.starts_with(&format!("option `{}`: `{value}` is not ", info.key)),
                "{error}"
            );
            assert!(!error.contains('\n') && !error.ends_with('.'), "{error}");
        }
    }
    let cases: &[(&str, &[&str])] = &[
        ("mode", &["fast", "Cached"]),
        ("steps", &["0", "1.5", "1000001", "inf"]),
        ("eps", &["0", "1", "inf", "1e99", "1e-60"]),
        ("block-length", &["0", "4294967296"]),
        ("algorithm", &["5", "00", "Entropy"]),
        ("alg-temp", &["-0", "inf", "1e39", "infinity"]),
        ("cfg-scale", &["-0.5", "inf"]),
        ("add-gumbel-noise", &["yes", "2"]),
        ("threshold", &["-0.1", "infinity", "1e39", "-inf"]),
        ("tau-remask", &["1.1", "inf"]),
        ("fill", &["all"]),
        ("cost", &["gpu", "1:2:3", "0:1", "2:1,1:2", "1:2,3:1"]),
        ("revision-budget", &["257"]),
        ("revision-radius", &["65"]),
        ("revision-threads", &["0", "513"]),
        ("max-revisions", &["1001"]),
        ("factor", &["inf"]),
        ("suffix", &["1.5", "some"]),
        ("refresh-blocks", &["1.0"]),
        ("refresh-steps", &["1.0"]),
        ("confidence", &["mask"]),
        ("shift-logits", &["maybe"]),
        ("mask-id", &["2147483648"]),
        ("logits-eos-inf", &["auto"]),
        ("confidence-eos-eot-inf", &["auto"]),
    ];
    for &(key, values) in cases {
        for value in values {
            let error = Params::default()
                .set(key, value)
                .expect_err(&format!("{key} {value}"));
            assert!(matches!(error, ParamError::Value { .. }), "{error}");
        }
    }
    let error = Params::default()
        .set("mode", "fast")
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "option `mode`: `fast` is not one of the modes there are: reference, cached, mbsd, full"
    );
}

#[test]
fn a_refused_value_leaves_the_option_as_it_was() {
    let mut params = params("threshold=0.5");
    params.set("threshold", "nan").unwrap_err();
    assert_eq!(params, self::params("threshold=0.5"));
}

#[test]
fn algorithms_have_the_numbers_of_stock_and_the_names_of_the_papers() {
    let cases = [
        ("0 origin", Algorithm::Origin),
        ("1 entropy", Algorithm::Entropy),
        ("2 margin topk_margin", Algorithm::Margin),
        ("3 random", Algorithm::Random),
        (
            "4 confidence maskgit_plus low_confidence",
            Algorithm::Confidence,
        ),
    ];
    for (names, expected) in cases {
        for name in names.split(' ') {
            let params = params(&format!("mode=reference algorithm={name}"));
            match params.resolve(&traits(false, true), 1, 1).unwrap().mode {
                ModeParams::Reference { algorithm, .. } => {
                    assert_eq!(algorithm, expected, "{name}")
                }
                ModeParams::Cached(_) | ModeParams::Full(_) => panic!("mode=reference"),
            }
        }
    }
}

fn error(words: &str) -> String {
    params(words)
        .resolve(&traits(false, true), 3, 9)
        .unwrap_err()
        .to_string()
}

#[test]
fn options_without_meaning_are_refused_by_name() {
    for mode in Mode::ALL.map(Mode::name) {
        let mut refused = Vec::new();
        for (key, value) in VALUES.iter().filter(|(key, _)| *key != "mode") {
            let words = format!("mode={mode} {key}={value}");
            match params(&words).resolve(&traits(false, true), 3, 9) {
                Ok(_) => {}
                Err(error) => {
                    let expected = format!("option `{key}` has no meaning in mode `{mode}`");
                    assert_eq!(error.to_string(), expected);
                    refused.push(*key);
                }
            }
        }
        let schedule = "steps eps algorithm alg-temp cfg-scale";
        let commits = "factor entropy-bound local-radius local-threshold stability";
        let cache = "suffix refresh-blocks refresh-steps";
        let ahead = "lookahead-trigger lookahead-max draft-threshold fill cost";
        let full = "tau-visible tau-stable revision-budget revision-order revision-radius revision-context \
                    revision-path revision-threads tau-replace tau-remask max-revisions final-sweep";
        let expected = match mode {
            "reference" => vec!["threshold", commits, cache, ahead, full],
            "cached" => vec![schedule, ahead, full],
            "mbsd" => vec![schedule, full],
            _ => vec![schedule, "threshold"],
        };
        let mut expected: Vec<&str> = expected.iter().flat_map(|keys| keys.split(' ')).collect();
        expected.sort_unstable();
        refused.sort_unstable();
        assert_eq!(refused, expected, "mode {mode}");
    }
    assert_eq!(
        error("mode=mbsd fill=visible"),
        "option `fill=visible` has no meaning in mode `mbsd`"
    );
    for algorithm in ["origin", "random"] {
        let words = format!("mode=reference alg-temp=0.5 algorithm={algorithm}");
        assert_eq!(
            error(&words),
            format!("option `alg-temp` has no meaning with algorithm `{algorithm}`")
        );
        params(&format!("mode=reference alg-temp=0 algorithm={algorithm}"))
            .resolve(&traits(false, true), 3, 9)
            .unwrap();
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let expected =
        "options `eps` and `block-length` exclude each other: they choose different schedules";
    assert_eq!(error("mode=reference eps=0.1 block-length=8"), expected);
    assert_eq!(
        error("factor=1 entropy-bound=0.1"),
        "options `factor` and `entropy-bound` exclude each other: they choose different schedules"
    );
    assert_eq!(
        error("mask-id=30"),
        "mask token 30 is outside the vocabulary of 30 tokens"
    );
    let model = ModelTraits {
        mask: None,
        n_ctx: 10,
        ..traits(false, true)
    };
    let resolve = |words: &str, n_prompt, n_gen| {
        params(words)
            .resolve(&model, n_prompt, n_gen)
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    assert_eq!(
        resolve("", 1, 1),
        Err("the model names no mask token: give option `mask-id`".to_owned())
    );
    assert_eq!(resolve("mask-id=3", 4, 6), Ok(()));
    assert_eq!(resolve("mask-id=3", 0, 1), Ok(()));
    let context = "prompt of 5 tokens and 6 tokens to generate exceed the context of 10 tokens";
    assert_eq!(resolve("mask-id=3", 5, 6), Err(context.to_owned()));
    assert!(
        resolve("mask-id=3", u32::MAX, 1)
            .unwrap_err()
            .contains("exceed the context")
    );
    assert_eq!(
        resolve("mask-id=3", 5, 0),
        Err("0 tokens to generate: at least 1 is needed".to_owned())
    );
}

#[test]
fn schedules_follow_the_model_and_the_option_given() {
    let dream = ModelTraits {
        family: Family::Dream,
        shift_logits: true,
        default_block_length: 16,
        ..traits(true, true)
    };
    let llada = traits(false, true);
    let cases = [
        (
            llada,
            "",
            Schedule::Blocks {
                steps: 9,
                block_length: 32,
            },
            Measure::Confidence,
            true,
        ),
        (
            llada,
            "block-length=4 steps=5",
            Schedule::Blocks {
                steps: 5,
                block_length: 4,
            },
            Measure::Confidence,
            true,
        ),
        (
            llada,
            "eps=0.01 algorithm=4",
            Schedule::Timesteps {
                steps: 9,
                eps: 0.01,
            },
            Measure::Probability,
            false,
        ),
        (
            dream,
            "",
            Schedule::Timesteps {
                steps: 9,
                eps: 1e-3,
            },
            Measure::Confidence,
            false,
        ),
        (
            dream,
            "algorithm=maskgit_plus",
            Schedule::Timesteps {
                steps: 9,
                eps: 1e-3,
            },
            Measure::Probability,
            false,
        ),
        (
            dream,
            "algorithm=1 steps=3",
            Schedule::Timesteps {
                steps: 3,
                eps: 1e-3,
            },
            Measure::NegEntropy,
            false,
        ),
        (
            dream,
            "algorithm=2",
            Schedule::Timesteps {
                steps: 9,
                eps: 1e-3,
            },
            Measure::Margin,
            false,
        ),
        (
            dream,
            "block-length=4",
            Schedule::Blocks {
                steps: 9,
                block_length: 4,
            },
            Measure::Confidence,
            false,
        ),
        (
            dream,
            "block-length=4 add-gumbel-noise=1",
            Schedule::Blocks {
                steps: 9,
                block_length: 4,
            },
            Measure::Confidence,
            true,
        ),
    ];
    for (model, words, expected, measure, gumbel_noise) in cases {
        let resolved = params(&format!("mode=reference {words}"))
            .resolve(&model, 3, 9)
            .unwrap();
        match resolved.mode {
            ModeParams::Reference { schedule, .. } => assert_eq!(schedule, expected, "{words}"),
            ModeParams::Cached(_) | ModeParams::Full(_) => panic!("mode=reference"),
        }
        assert_eq!(
            (resolved.measure, resolved.gumbel_noise),
            (measure, gumbel_noise),
            "{words}"
        );
        assert_eq!(resolved.shift_logits, model.shift_logits);
    }
    let cached = params("mode=cached shift-logits=false mask-id=4")
        .resolve(&dream, 3, 9)
        .unwrap();
    let expected = ModeParams::Cached(CacheParams {
        block_length: 16,
        commit: CommitParams {
            rule: CommitRule::Threshold(0.9),
            local_radius: 0,
            local_threshold: 0.75,
            stability: 0.0,
        },
        suffix: Suffix::All,
        refresh_blocks: 1,
        refresh_steps: 0,
    });
    assert_eq!(
        (cached.mode, cached.shift_logits, cached.mask),
        (expected, false, 4)
    );
}

#[test]
fn the_readme_has_every_option() {
    let readme = include_str!("../../../../README.md");
    for option in OPTIONS {
        let flag = format!("`--diffusion-{}", option.key);
        assert!(readme.contains(&flag), "README.md lacks {flag}");
    }
}
