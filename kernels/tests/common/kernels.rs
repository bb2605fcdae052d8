//! Running a test on every kernel of a list.

#![expect(
    clippy::print_stdout,
    reason = "scripts/test-arm64.sh reads which kernels ran"
)]

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use llada_npu_kernels::registry::Kernel;

/// Runs `test` on every kernel of a list. Says of each by name, once, that it ran or that this CPU cannot run it.
pub(crate) fn each_kernel<F>(
    kernels: &'static [Kernel<F>],
    mut test: impl FnMut(&'static str, &F),
) {
    for kernel in kernels {
        match kernel.select() {
            Some(selected) => {
                test(kernel.name, &selected);
                say(kernel.name, "ran");
            }
            None => say(kernel.name, "not on this CPU"),
        }
    }
}

fn say(name: &'static str, what: &str) {
    static SAID: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.insert(name) {
        println!("kernel {name}: {what}");
    }
}
