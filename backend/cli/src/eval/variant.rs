//! What is compared: decoding modes, and options changed about them.

use std::collections::BTreeMap;

use ggml_llada_npu::decode::{OPTIONS, ParamError, Params, Resolved};

use crate::args::EvalArgs;
use crate::error::Error;
use crate::generation::Setup;
use crate::output;

/// One way of decoding.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    /// The mode, and the options changed by `--sweep`.
    pub(crate) name: String,
    /// The mode.
    pub(crate) mode: String,
    /// Options changed by `--sweep`.
    pub(crate) options: BTreeMap<&'static str, String>,
    /// Everything that the engine needs to know.
    pub(crate) params: Params,
    resolved: Resolved,
}

/// Options and their values; every combination is meant.
type Grid = Vec<(&'static str, Vec<String>)>;

/// Returns the variants that the flags ask for: each mode as it is, followed by the combinations of `--sweep`. Those that
/// come to the same, or change an option without meaning in the mode, are left out; the latter with a note.
///
/// # Errors
/// [`Error::Flags`], [`Error::Param`], [`Error::Grid`].
pub(crate) fn variants(args: &EvalArgs, setup: &Setup) -> Result<Vec<Variant>, Error> {
    let given = args.generation.diffusion.0.iter();
    let mode_given = given.clone().any(|(key, _)| *key == "mode");
    if !args.modes.is_empty() && mode_given {
        return Err(Error::Flags(
            "--modes and --diffusion-mode exclude each other",
        ));
    }
    let grids = args
        .sweep
        .iter()
        .map(|text| grid(text))
        .collect::<Result<Vec<Grid>, Error>>()?;
    let modes = if args.modes.is_empty() {
        vec![setup.mode().to_owned()]
    } else {
        args.modes.clone()
    };
    let mut variants = Vec::new();
    for mode in modes {
        add_mode(&mut variants, setup, &mode, &grids)?;
    }
    Ok(variants)
}

fn add_mode(
    variants: &mut Vec<Variant>,
    setup: &Setup,
    mode: &str,
    grids: &[Grid],
) -> Result<(), Error> {
    let mut params = *setup.params();
    params.set("mode", mode).map_err(|error| match error {
        ParamError::Value {
            value, expected, ..
        } => Error::Value {
            flag: "--modes",
            value,
            expected: expected.to_string(),
        },
        error => error.into(),
    })?;
    let plain = Variant {
        name: mode.to_owned(),
        mode: mode.to_owned(),
        options: BTreeMap::new(),
        params,
        resolved: setup.check(&params)?,
    };
    add(variants, plain.clone());
    for combination in grids.iter().flat_map(|grid| combinations(grid)) {
        match plain.with(setup, &combination) {
            Ok(variant) => add(variants, variant),
            Err(
                error @ (ParamError::NoMeaningInMode { .. }
                | ParamError::NoMeaningWithAlgorithm { .. }),
            ) => {
                output::note(format_args!("left out: {}", Error::Param(error)));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn add(variants: &mut Vec<Variant>, variant: Variant) {
    if variants
        .iter()
        .all(|other| other.resolved != variant.resolved)
    {
        variants.push(variant);
    }
}

impl Variant {
    fn with(&self, setup: &Setup, options: &[(&'static str, String)]) -> Result<Self, ParamError> {
        let mut variant = self.clone();
        for (key, value) in options {
            variant.params.set(key, value)?;
            variant.name += &format!(" {key}={value}");
            variant.options.insert(key, value.clone());
        }
        variant.resolved = setup.check(&variant.params)?;
        Ok(variant)
    }
}

/// Most combinations of one `--sweep`.
const MAX_N_COMBINATIONS: usize = 10_000;

/// Parses `KEY=VALUE,VALUE… KEY=VALUE…`.
fn grid(text: &str) -> Result<Grid, Error> {
    let bad = |part: &str, reason| Error::Grid {
        part: part.to_owned(),
        reason,
    };
    let mut grid = Grid::new();
    for part in text.split_whitespace() {
        let (key, values) = part
            .split_once('=')
            .ok_or_else(|| bad(part, "is not KEY=VALUE,VALUE…"))?;
        let option = OPTIONS
            .iter()
            .find(|option| option.key == key && key != "mode")
            .ok_or_else(|| bad(key, "is not an option that can be varied"))?;
        if grid.iter().any(|(other, _)| *other == option.key) {
            return Err(bad(key, "is there twice"));
        }
        if values.split(',').any(str::is_empty) {
            return Err(bad(part, "lacks a value"));
        }
        grid.push((option.key, values.split(',').map(str::to_owned).collect()));
    }
    if grid.is_empty() {
        return Err(bad(text, "is empty"));
    }
    let n_combinations = grid
        .iter()
        .try_fold(1_usize, |n, (_, values)| n.checked_mul(values.len()));
    if n_combinations.is_none_or(|n| n > MAX_N_COMBINATIONS) {
        return Err(bad(text, "is more than 10000 combinations"));
    }
    Ok(grid)
}

/// Returns every choice of one value for each option, the last option changing fastest.
fn combinations(grid: &Grid) -> Vec<Vec<(&'static str, String)>> {
    let mut found = vec![Vec::new()];
    for (key, values) in grid {
        let extended = |begun: &Vec<(&'static str, String)>| {
            let begun = begun.clone();
            values.iter().map(move |value| {
                let mut combination = begun.clone();
                combination.push((*key, value.clone()));
                combination
            })
        };
        found = found.iter().flat_map(extended).collect();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{combinations, grid};

    #[test]
    fn a_grid_is_every_combination_in_order() {
        let grid = grid("threshold=0.8,0.9 suffix=none,all").expect("a good grid");
        let texts: Vec<String> = combinations(&grid)
            .iter()
            .map(|options| {
                let options: Vec<_> = options
                    .iter()
                    .map(|(key, value)| format!("{key}={value}"))
                    .collect();
                options.join(" ")
            })
            .collect();
        let expected = [
            "threshold=0.8 suffix=none",
            "threshold=0.8 suffix=all",
            "threshold=0.9 suffix=none",
            "threshold=0.9 suffix=all",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn a_bad_grid_names_its_part() {
        let million = [
            "threshold",
            "tau-visible",
            "tau-stable",
            "factor",
            "stability",
            "eps",
        ]
        .map(|key| format!("{key}=0,.1,.2,.3,.4,.5,.6,.7,.8,.9"))
        .join(" ");
        for (text, part) in [
            ("threshold", "threshold"),
            ("nonsense=1", "nonsense"),
            ("mode=cached", "mode"),
            ("threshold=0.9 threshold=0.5", "is there twice"),
            ("threshold=0.9,", "threshold=0.9,"),
            ("  ", "is empty"),
            (&million, "is more than 10000 combinations"),
        ] {
            let message = grid(text).expect_err("a bad grid").to_string();
            assert!(message.starts_with("--sweep: "), "{message}");
            assert!(message.contains(part), "{message}");
        }
    }
}
