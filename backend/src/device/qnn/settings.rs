//! What users say about QNN.

use std::time::Duration;

use super::engine::OpenOptions;
use super::rows::RowCounts;
use crate::knobs::{
    Accel, Attention, HostWeights, KnobError, LLADA_NPU_ACCEL, LLADA_NPU_HOST_WEIGHTS,
    LLADA_NPU_QNN_ATTENTION, LLADA_NPU_QNN_DIR, LLADA_NPU_QNN_LINEAR, LLADA_NPU_QNN_PERFORMANCE,
    LLADA_NPU_QNN_ROWS, LLADA_NPU_QNN_SOC, LLADA_NPU_QNN_TIMEOUT, LLADA_NPU_QNN_VTCM,
    LLADA_NPU_QNN_WEIGHTS, Linear, Tier,
};

/// The settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether QNN is wanted.
    pub accel: Accel,
    /// What is opened.
    pub open: OpenOptions,
    /// Row counts of graphs.
    pub rows: RowCounts,
    /// What weights become.
    pub tier: Tier,
    /// How products are written down.
    pub linear: Linear,
    /// Where attention runs.
    pub attention: Attention,
    /// Fast memory of a graph, in MiB.
    pub vtcm_mb: Option<u32>,
    /// How long a call of the library may take.
    pub timeout: Duration,
    /// What becomes of the host's bytes of weights.
    pub host_weights: HostWeights,
}

impl Settings {
    /// Reads the environment.
    ///
    /// # Errors
    /// [`KnobError`] for the first variable that is not understood.
    pub fn read() -> Result<Self, KnobError> {
        let tier = LLADA_NPU_QNN_WEIGHTS.get()?;
        let linear = LLADA_NPU_QNN_LINEAR.get()?;
        Ok(Self {
            accel: LLADA_NPU_ACCEL.get()?,
            open: OpenOptions {
                dir: LLADA_NPU_QNN_DIR.get()?,
                soc: Some(LLADA_NPU_QNN_SOC.get()?),
                performance: Some(LLADA_NPU_QNN_PERFORMANCE.get()?),
            },
            rows: RowCounts::new(&LLADA_NPU_QNN_ROWS.get()?),
            tier,
            // Bytes with one scale per row are taken by convolutions alone.
            linear: if tier == Tier::Int8 {
                Linear::Conv
            } else {
                linear
            },
            attention: LLADA_NPU_QNN_ATTENTION.get()?,
            vtcm_mb: LLADA_NPU_QNN_VTCM.get()?,
            timeout: Duration::from_secs_f64(LLADA_NPU_QNN_TIMEOUT.get()?),
            host_weights: LLADA_NPU_HOST_WEIGHTS.get()?,
        })
    }
}
