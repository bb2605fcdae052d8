//! Whether attention works as a graph.

use super::{Finding, Prober, judge};
use crate::device::qnn::attention::{AttentionForm, Example, MAX_NMSE};

impl Prober<'_> {
    pub(super) fn attention(&self) -> Finding {
        let form = AttentionForm {
            n_rows: 32,
            n_kv: 128,
            n_head: 4,
            n_head_kv: 2,
            d_k: 64,
            d_v: 64,
            vtcm_mb: self.settings.vtcm_mb,
        };
        let example = Example::new(&form);
        let inputs = example.inputs();
        let done = self.worker.call(move |engine, beat| {
            let made = engine.build_attention(&form, beat)?;
            let (mut outputs, _) = engine.execute_bytes(made.context, 0, &inputs)?;
            engine.free(made.context);
            Ok::<_, llada_npu_ffi::qnn::Error>(outputs.swap_remove(0))
        });
        let nmse = match done {
            Ok(Ok(output)) => Ok(example.nmse(&output)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(gone) => Err(gone.to_string()),
        };
        judge("attention over K and V as inputs", nmse, MAX_NMSE)
    }
}
