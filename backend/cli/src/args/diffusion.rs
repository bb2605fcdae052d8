//! The `--diffusion-<key>` flags, made from the table of the decoding mode.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use ggml_llada_npu::decode::{OPTIONS, OptionInfo, Params};
use ggml_llada_npu::engine::option_value;

use crate::error::Error;

/// The `--diffusion-<key>` flags that were given, in the table's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiffusionArgs(pub(crate) Vec<(&'static str, String)>);

impl DiffusionArgs {
    /// Returns the parameters, each value checked for itself.
    ///
    /// # Errors
    /// [`Error::Param`] naming the flag.
    pub(crate) fn params(&self) -> Result<Params, Error> {
        let mut params = Params::default();
        for (key, value) in &self.0 {
            params.set(key, &option_value(key, value)?)?;
        }
        Ok(params)
    }
}

fn flag_of(option: &OptionInfo) -> String {
    format!("diffusion-{}", option.key)
}

fn arg_of(option: &'static OptionInfo) -> Arg {
    let default = match option.default {
        "" => String::new(),
        default => format!(" [default: {default}]"),
    };
    let arg = Arg::new(flag_of(option))
        .long(flag_of(option))
        .value_name(option.value_name)
        .help(format!("{}{default}", option.help))
        .help_heading("Decoding")
        .action(ArgAction::Set);
    if option.value_name == "BOOL" {
        arg.num_args(0..=1).default_missing_value("true")
    } else {
        arg.allow_hyphen_values(true)
    }
}

impl Args for DiffusionArgs {
    fn augment_args(command: Command) -> Command {
        command.args(OPTIONS.iter().map(arg_of))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for DiffusionArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |option: &OptionInfo| {
            let value = matches.get_one::<String>(&flag_of(option))?;
            Some((option.key, value.clone()))
        };
        Ok(Self(OPTIONS.iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
