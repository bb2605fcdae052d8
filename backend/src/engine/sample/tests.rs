//! The sampler against an obvious one: f64, full sorts, no shortcuts.

use proptest::prelude::*;

use super::*;

const MASK: Token = 5;
const EOS: Token = 1;
const EOT: Token = 2;

fn params(n_vocab: usize) -> SampleParams {
    SampleParams {
        sampling: Sampling::default(),
        n_vocab: u32::try_from(n_vocab).unwrap(),
        mask: MASK,
        eos: Some(EOS),
        eot: Some(EOT),
        confidence_with_mask: true,
        logits_eos_inf: false,
        confidence_eos_eot_inf: false,
        gumbel_noise: false,
        measure: Measure::Confidence,
        cfg_scale: 0.0,
    }
}

fn at(pos: u32) -> Predict {
    Predict {
        pos,
        row: 0,
        uncond_row: None,
        probe: None,
    }
}

fn predict(params: SampleParams, logits: &[f32]) -> Prediction {
    Sampler::new(params)
        .predict(logits, None, at(3), 4)
        .unwrap()
}

/// Softmax in f64 over the ids that `counts` accepts; 0 elsewhere.
fn softmax(logits: &[f32], temperature: f64, counts: impl Fn(usize) -> bool) -> Vec<f64> {
    let scaled = |id: usize| f64::from(logits[id]) / temperature;
    let max = (0..logits.len())
        .filter(|&id| counts(id))
        .map(scaled)
        .fold(f64::NEG_INFINITY, f64::max);
    let weight = |id: usize| {
        if counts(id) {
            (scaled(id) - max).exp()
        } else {
            0.0
        }
    };
    let total: f64 = (0..logits.len()).map(weight).sum();
    (0..logits.len()).map(|id| weight(id) / total).collect()
}

/// The sampled distribution at a temperature above 0.
fn sampled(params: &SampleParams, logits: &[f32]) -> Vec<f64> {
    let temperature = f64::from(params.sampling.temperature);
    let may = |id: usize| id != index(MASK) && !(params.logits_eos_inf && id == index(EOS));
    let mut p = softmax(logits, temperature, may);
    let mut ids: Vec<usize> = (0..p.len()).filter(|&id| may(id)).collect();
    ids.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let mut before = 0.0;
    for (rank, &id) in ids.iter().enumerate() {
        let over_p = before > f64::from(params.sampling.top_p);
        let over_k = params.sampling.top_k > 0 && rank >= params.sampling.top_k as usize;
        before += p[id];
        if over_p || over_k {
            p[id] = 0.0;
        }
    }
    let total: f64 = p.iter().sum();
    p.iter().map(|p| p / total).collect()
}

fn close(found: f32, expected: f64) -> bool {
    (f64::from(found) - expected).abs() <= 1e-5 * expected.abs().max(1.0)
}

#[test]
fn argmax_takes_the_lowest_id_on_ties_and_never_the_mask() {
    let mut logits = [0.0; 8];
    logits[3] = 2.0;
    logits[6] = 2.0;
    logits[index(MASK)] = 9.0;
    assert_eq!(predict(params(8), &logits).token, 3);
}

#[test]
fn temperature_zero_does_not_look_at_seed_filters_or_noise() {
    let logits = [0.1, 0.2, 0.3, 0.9, 0.8, 0.0, 0.85, 0.7];
    for seed in 0..20 {
        for gumbel_noise in [false, true] {
            let sampling = Sampling {
                seed,
                top_k: 2,
                top_p: 0.3,
                temperature: 0.0,
            };
            let params = SampleParams {
                sampling,
                gumbel_noise,
                ..params(8)
            };
            assert_eq!(predict(params, &logits), predict(self::params(8), &logits));
        }
    }
}

#[test]
fn the_mask_counts_in_the_denominator_only_where_asked() {
    let logits = [0.0, 0.0, 0.0, 1.0, 0.0, 3.0, 0.0, 0.0];
    let e = std::f64::consts::E;
    let with = predict(params(8), &logits);
    assert!(
        close(with.confidence, e / (e + 6.0 + e.powi(3))),
        "{with:?}"
    );
    let without = SampleParams {
        confidence_with_mask: false,
        ..params(8)
    };
    let without = predict(without, &logits);
    assert!(close(without.confidence, e / (e + 6.0)), "{without:?}");
}

#[test]
fn logits_eos_inf_takes_eos_out_of_choice_and_denominator() {
    let logits = [0.0, 4.0, 3.0, 1.0, 0.0, 0.0, 0.0, 0.0];
    let params = SampleParams {
        logits_eos_inf: true,
        ..params(8)
    };
    let found = predict(params, &logits);
    assert_eq!(found.token, EOT);
    let expected = softmax(&logits, 1.0, |id| id != index(EOS))[index(EOT)];
    assert!(close(found.confidence, expected), "{found:?}");
}

#[test]
fn confidence_eos_eot_inf_demotes_after_the_choice() {
    let params = SampleParams {
        confidence_eos_eot_inf: true,
        ..params(8)
    };
    let eos = predict(params, &[0.0, 4.0, 3.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!((eos.token, eos.confidence, eos.score), (EOS, 0.0, 0.0));
    let other = [0.0, 2.0, 2.0, 4.0, 0.0, 0.0, 0.0, 0.0];
    let found = predict(params, &other);
    let expected = softmax(&other, 1.0, |id| id != index(EOS) && id != index(EOT))[3];
    assert!(
        found.token == 3 && close(found.confidence, expected),
        "{found:?}"
    );
}

#[test]
fn above_temperature_zero_only_eot_is_demoted() {
    let sampling = Sampling {
        temperature: 0.01,
        ..Sampling::default()
    };
    let params = SampleParams {
        sampling,
        confidence_eos_eot_inf: true,
        ..params(8)
    };
    let eos = predict(params, &[0.0, 4.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    assert!(eos.token == EOS && eos.confidence > 0.8, "{eos:?}");
    let eot = predict(params, &[0.0, 1.0, 4.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    assert!(eot.token == EOT && eot.confidence == 0.0, "{eot:?}");
}

#[test]
fn guidance_is_the_rows_formula() {
    let cond = [0.5, 0.0, 0.0, 1.0, -1.0, 0.0, 0.25, 0.0];
    let un = [0.25, 0.5, 0.0, 1.5, -2.0, 0.0, -1.0, 0.0];
    let params = SampleParams {
        cfg_scale: 1.5,
        ..params(8)
    };
    let mixed: Vec<f32> = cond
        .iter()
        .zip(un)
        .map(|(c, u)| u + 2.5 * (c - u))
        .collect();
    let found = Sampler::new(params)
        .predict(&cond, Some(&un), at(3), 4)
        .unwrap();
    assert_eq!(found, predict(self::params(8), &mixed));
    assert_eq!(found.token, 6);
}

#[test]
fn entropy_scores_a_peaked_row_above_a_flat_one() {
    let params = SampleParams {
        measure: Measure::NegEntropy,
        ..params(8)
    };
    let peaked = predict(params, &[0.0, 0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0]);
    let flat = predict(params, &[0.0; 8]);
    assert!(peaked.score > flat.score);
    assert!(close(flat.score, -(8f64.ln())), "{flat:?}");
}

#[test]
fn bad_rows_are_errors() {
    let mut sampler = Sampler::new(params(8));
    for bad in [f32::NAN, f32::INFINITY] {
        for place in 0..8 {
            let mut logits = [0.0; 8];
            logits[place] = bad;
            assert_eq!(
                sampler.predict(&logits, None, at(7), 0),
                Err(SampleError::NotANumber { pos: 7 })
            );
        }
    }
    let nothing = [f32::NEG_INFINITY; 8];
    assert_eq!(
        sampler.predict(&nothing, None, at(7), 0),
        Err(SampleError::NothingToChoose { pos: 7 })
    );
    let length = SampleError::Length {
        pos: 7,
        expected: 8,
        found: 9,
    };
    assert_eq!(sampler.predict(&[0.0; 9], None, at(7), 0), Err(length));
    assert_eq!(
        sampler.predict(&[0.0; 8], Some(&[0.0; 9]), at(7), 0),
        Err(length)
    );
}

#[test]
fn parameters_out_of_range_are_named() {
    let model = crate::decode::ModelTraits {
        mask: Some(MASK),
        eos: None,
        eot: None,
        n_vocab: 8,
        n_ctx: 64,
        shift_logits: false,
        default_block_length: 32,
        family: crate::decode::Family::Llada,
    };
    let resolved = crate::decode::Params::default()
        .resolve(&model, 1, 1)
        .unwrap();
    let with = |temperature, top_p| {
        let sampling = Sampling {
            temperature,
            top_p,
            ..Sampling::default()
        };
        SampleParams::new(&resolved, sampling).map(|_| ())
    };
    assert_eq!(with(0.0, 1.0), Ok(()));
    assert_eq!(with(0.8, 0.0), Ok(()));
    for temperature in [-0.5, f32::INFINITY] {
        assert_eq!(
            with(temperature, 1.0),
            Err(SampleError::Temperature { temperature })
        );
    }
    assert!(with(f32::NAN, 1.0).is_err() && with(0.5, f32::NAN).is_err());
    assert_eq!(with(0.5, 1.5), Err(SampleError::TopP { top_p: 1.5 }));
}

/// Both ways of drawing follow the sampled distribution: Pearson's statistic over 20000 draws, 11 degrees of freedom at
/// most, stays under 40 (probability of more: 4e-5).
#[test]
fn draws_follow_the_sampled_distribution() {
    let logits = [
        1.0, 0.2, -0.5, 2.0, 1.5, 3.0, 0.0, -1.0, 0.7, 1.9, 0.3, -2.0,
    ];
    for (temperature, top_k, top_p) in [
        (1.0, 0, 1.0),
        (0.7, 0, 1.0),
        (1.3, 5, 1.0),
        (1.0, 0, 0.8),
        (0.9, 4, 0.9),
    ] {
        for gumbel_noise in [false, true] {
            let sampling = Sampling {
                temperature,
                top_k,
                top_p,
                seed: 11,
            };
            let params = SampleParams {
                sampling,
                gumbel_noise,
                ..params(12)
            };
            let expected = sampled(&params, &logits);
            let mut counts = [0u32; 12];
            let mut sampler = Sampler::new(params);
            let n = 20_000u32;
            for draw in 0..n {
                counts[index(
                    sampler
                        .predict(&logits, None, at(draw % 100), draw / 100)
                        .unwrap()
                        .token,
                )] += 1;
            }
            let mut statistic = 0.0;
            for (id, &count) in counts.iter().enumerate() {
                let mean = expected[id] * f64::from(n);
                if mean == 0.0 {
                    assert_eq!(count, 0, "token {id} is filtered at {sampling:?}");
                } else {
                    statistic += (f64::from(count) - mean).powi(2) / mean;
                }
            }
            assert!(
                statistic < 40.0,
                "{statistic} at {sampling:?}, gumbel {gumbel_noise}"
            );
        }
    }
}

#[test]
fn top_p_keeps_the_token_that_exceeds_it() {
    let mut logits = [f32::NEG_INFINITY; 8];
    for id in [0, 3, 4, 7] {
        logits[id] = 1.0;
    }
    // Sums 1/4, 1/2, 3/4: the third is the first above.
    let sampling = Sampling {
        temperature: 1.0,
        top_p: 0.5,
        ..Sampling::default()
    };
    let mut sampler = Sampler::new(SampleParams {
        sampling,
        ..params(8)
    });
    let mut seen: Vec<Token> = (0..200)
        .map(|step| sampler.predict(&logits, None, at(0), step).unwrap().token)
        .collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, [0, 3, 4]);
}

#[test]
fn top_k_finds_the_best_of_a_large_vocabulary_wherever_they_are() {
    let n = 50_000;
    for descending in [false, true] {
        let logit = |id: usize| f32::from(u16::try_from(id % 50_000).unwrap()) / 5000.0;
        let logits: Vec<f32> = (0..n)
            .map(|id| logit(if descending { n - 1 - id } else { id }))
            .collect();
        let sampling = Sampling {
            temperature: 5.0,
            top_k: 3,
            ..Sampling::default()
        };
        let params = SampleParams {
            sampling,
            ..params(n)
        };
        let mut sampler = Sampler::new(params);
        let mut seen: Vec<Token> = (0..200)
            .map(|step| sampler.predict(&logits, None, at(0), step).unwrap().token)
            .collect();
        seen.sort_unstable();
        seen.dedup();
        let expected = if descending {
            [0, 1, 2]
        } else {
            [49_997, 49_998, 49_999]
        };
        assert_eq!(seen, expected);
    }
}

fn measures() -> impl Strategy<Value = Measure> {
    prop_oneof![
        Just(Measure::Confidence),
        Just(Measure::Probability),
        Just(Measure::Margin),
        Just(Measure::NegEntropy),
    ]
}

prop_compose! {
    fn any_params()(
        temperature in prop_oneof![Just(0.0f32), 0.05f32..3.0],
        top_k in 0u32..12,
        top_p in prop_oneof![Just(1.0f32), 0.0f32..1.0],
        seed in any::<u64>(),
        confidence_with_mask in any::<bool>(),
        logits_eos_inf in any::<bool>(),
        gumbel_noise in any::<bool>(),
        measure in measures(),
    ) -> SampleParams {
        SampleParams {
            sampling: Sampling { temperature, top_k, top_p, seed },
            confidence_with_mask,
            logits_eos_inf,
            gumbel_noise,
            measure,
            ..params(0)
        }
    }
}

proptest! {
    #[test]
    fn predictions_agree_with_the_obvious_sampler(
        params in any_params(),
        // A coarse grid makes ties.
        grid in proptest::collection::vec(-8i8..8, 7..80),
        pos in 0u32..1000,
        step in 0u32..1000,
    ) {
        let logits: Vec<f32> = grid.iter().map(|&x| f32::from(x) / 2.0).collect();
        let params = SampleParams { n_vocab: u32::try_from(logits.len()).unwrap(), ..params };
        let found = Sampler::new(params).predict(&logits, None, at(pos), step).unwrap();
        let chosen = index(found.token);
        let may = |id: usize| id != index(MASK) && !(params.logits_eos_inf && id == index(EOS));
        let counts = |id: usize| {
            (params.confidence_with_mask || id != index(MASK)) && !(params.logits_eos_inf && id == index(EOS))
        };
        let raw = softmax(&logits, 1.0, counts);
        prop_assert!(may(chosen));
        prop_assert!(close(found.confidence, raw[chosen]), "{found:?}, {}", raw[chosen]);

        let drawn = params.sampling.temperature > 0.0;
        let p = if drawn { sampled(&params, &logits) } else { raw };
        prop_assert!(p[chosen] > 0.0, "token {chosen} is filtered");
        let mut choices: Vec<f64> = (0..p.len()).filter(|&id| may(id)).map(|id| p[id]).collect();
        choices.sort_by(|a, b| b.total_cmp(a));
        if !drawn {
            let first = (0..p.len()).filter(|&id| may(id)).find(|&id| p[id] == choices[0]);
            prop_assert_eq!(Some(chosen), first);
        }
        let score = match params.measure {
            Measure::Confidence => f64::from(found.confidence),
            Measure::Probability => p[chosen],
            Measure::Margin => choices[0] - choices[1],
            Measure::NegEntropy => p.iter().map(|p| p * (p + 1e-10).ln()).sum(),
        };
        prop_assert!(close(found.score, score), "{found:?}, {score}");
    }

    #[test]
    fn a_prediction_depends_on_its_arguments_alone(
        params in any_params(),
        rows in proptest::collection::vec(proptest::collection::vec(-4.0f32..4.0, 20), 1..6),
    ) {
        let params = SampleParams { n_vocab: 20, ..params };
        let mut one = Sampler::new(params);
        let mut other = Sampler::new(params);
        let forwards: Vec<_> = (0u32..).zip(&rows).map(|(pos, row)| one.predict(row, None, at(pos), 9).unwrap()).collect();
        for (pos, row) in (0u32..6).zip(&rows).collect::<Vec<_>>().into_iter().rev() {
            prop_assert_eq!(other.predict(row, None, at(pos), 9).unwrap(), forwards[pos as usize]);
        }
    }
}

#[test]
fn a_probe_has_the_probability_that_it_would_have_as_the_choice() {
    let logits = [0.1, 0.5, 2.0, -1.0, 1.5, 3.0, 0.0, f32::NEG_INFINITY];
    let total: f32 = logits.iter().map(|logit: &f32| logit.exp()).sum();
    for (token, logit) in (0..).zip(logits) {
        let wanted = Predict {
            probe: Some(token),
            ..at(3)
        };
        let found = Sampler::new(params(logits.len()))
            .predict(&logits, None, wanted, 4)
            .unwrap();
        assert!(
            (found.probe - logit.exp() / total).abs() < 1e-6,
            "{token}: {}",
            found.probe
        );
        assert_eq!(found.token, 2);
        if token == 2 {
            assert_eq!(found.probe, found.confidence);
        }
    }
    assert_eq!(predict(params(logits.len()), &logits).probe, 0.0);
}
