//! What an instance computed, by operation: told at debug level when it ends, node by node at trace level.

use std::collections::BTreeMap;

use llada_npu_ffi::ggml::plugin::view::Node;

/// Who computed a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// A kernel of ours.
    Native,
    /// An accelerator, alone or as part of a segment.
    Accelerator,
    /// The host's CPU backend.
    Delegated,
}

/// Nodes of one operation.
#[derive(Clone, Debug, Default)]
struct Count {
    op: String,
    n_native: u64,
    n_accelerator: u64,
    n_delegated: u64,
}

/// Nodes computed so far, by ggml's operation code.
#[derive(Debug, Default)]
pub(super) struct Counts(BTreeMap<u32, Count>);

impl Counts {
    /// Counts a node.
    pub(super) fn add(&mut self, node: Node<'_>, by: By) {
        let count = self.0.entry(node.op_code()).or_insert_with(|| Count {
            op: node.op_name(),
            ..Count::default()
        });
        match by {
            By::Native => {
                count.n_native += 1;
                log::trace!("node computed: {} native", count.op);
            }
            By::Accelerator => {
                count.n_accelerator += 1;
                log::trace!("node computed: {} native (accelerator)", count.op);
            }
            By::Delegated => {
                count.n_delegated += 1;
                log::trace!("node computed: {} delegated", count.op);
            }
        }
    }

    /// Tells the sums.
    pub(super) fn log(&self) {
        let sum = |of: fn(&Count) -> u64| self.0.values().map(of).sum::<u64>();
        let (n_native, n_delegated) = (sum(|c| c.n_native), sum(|c| c.n_delegated));
        let n_accelerator = sum(|c| c.n_accelerator);
        if n_accelerator > 0 {
            log::debug!("nodes computed: accelerator {n_accelerator}");
        }
        for count in self.0.values() {
            log::debug!(
                "{} nodes computed: native {}, delegated {}",
                count.op,
                count.n_native,
                count.n_delegated
            );
        }
        log::debug!("nodes computed: native {n_native}, delegated {n_delegated}");
    }
}
