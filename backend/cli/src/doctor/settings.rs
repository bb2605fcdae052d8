//! What `doctor` says about the environment: which variables are set, and what they come to for memory.

use ggml_llada_npu::knobs::{KnobError, LLADA_NPU_BUDGET, LLADA_NPU_MEMORY, settings};
use serde::Serialize;

use crate::output;

/// Variables and the memory budget.
#[derive(Debug, Serialize)]
pub(super) struct Settings {
    set: Vec<Variable>,
    /// Addresses that an instance may map; none where there is no limit.
    budget_bytes: Option<u64>,
    /// Who decides what is mapped within a budget.
    memory_policy: Option<&'static str>,
    /// The first that is not understood.
    #[serde(skip)]
    pub(super) error: Option<KnobError>,
}

/// A variable that is set.
#[derive(Debug, Serialize)]
struct Variable {
    name: String,
    value: String,
    /// Why it does nothing or keeps everything from working.
    error: Option<String>,
}

/// Looks at the environment.
pub(super) fn look() -> Settings {
    let settings = settings();
    let error = settings.iter().find_map(|setting| setting.error.clone());
    let set = settings.into_iter().map(|setting| Variable {
        error: match setting.error {
            Some(error) => Some(error.to_string()),
            None if !setting.is_known => Some("there is no such setting".to_owned()),
            None => None,
        },
        name: setting.name,
        value: setting.value,
    });
    Settings {
        set: set.collect(),
        budget_bytes: LLADA_NPU_BUDGET.get().ok().flatten(),
        memory_policy: LLADA_NPU_MEMORY.get().ok().map(|policy| policy.name()),
        error,
    }
}

/// Adds the lines of the table.
pub(super) fn lines(settings: &Settings, line: &mut impl FnMut(&str, String)) {
    for Variable { name, value, error } in &settings.set {
        let text = format!("{name}={value}");
        let text = match error {
            Some(error) if error.contains(&text) => error.clone(),
            Some(error) => format!("{text}: {error}"),
            None => text,
        };
        line("setting", output::one_line(&text));
    }
    let text = match (settings.budget_bytes, settings.memory_policy) {
        (Some(bytes), Some(policy)) => {
            format!("budget of {} MiB an instance, policy {policy}", bytes >> 20)
        }
        (None, Some(_)) => "no budget (LLADA_NPU_BUDGET)".to_owned(),
        (_, None) => "LLADA_NPU_MEMORY is not understood".to_owned(),
    };
    line("memory", text);
}
