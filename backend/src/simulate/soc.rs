//! The phones' processors as data.
//!
//! Two sets of constants, because two sets of published figures contradict each other: `paper` is calibrated on the two
//! single steps that the paper on dLLM inference with mobile NPUs (arXiv 2606.13740) publishes and on nothing else of it,
//! `today` on what others measured with llama.cpp and QNN. No constant was fitted to the ablation that is predicted, with
//! one exception that its source names: nobody has published what a map costs, and the only figure there is was derived
//! from the step between two rows of that ablation.

use std::str::FromStr;

use super::constant::Confidence::{Assumed, Derived, Documented, Measured};
use super::constant::Constant;
use super::shape::{ModelShape, UnknownName};
use crate::model::gguf::GgmlType;

/// A processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Soc {
    /// Snapdragon 8 Gen 3, NPU v75.
    Sm8650,
    /// Snapdragon 8 Elite, NPU v79.
    Sm8750,
    /// Snapdragon 8 Elite Gen 5, NPU v81.
    Sm8850,
}

impl Soc {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sm8650, Self::Sm8750, Self::Sm8850];

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sm8650 => "sm8650",
            Self::Sm8750 => "sm8750",
            Self::Sm8850 => "sm8850",
        }
    }
}

impl FromStr for Soc {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let soc = Self::ALL
            .into_iter()
            .find(|soc| soc.name().eq_ignore_ascii_case(name));
        soc.ok_or(UnknownName("sm8650, sm8750 or sm8850"))
    }
}

/// Which set of constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Column {
    /// Calibrated on the paper's dense steps of 128 tokens: 14.76 s on the CPU, 1.53 s on the NPU.
    Paper,
    /// What llama.cpp and QNN reach on such phones.
    Today,
}

impl Column {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Paper, Self::Today];

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Today => "today",
        }
    }
}

impl FromStr for Column {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let column = Self::ALL
            .into_iter()
            .find(|column| column.name().eq_ignore_ascii_case(name));
        column.ok_or(UnknownName("paper or today"))
    }
}

macro_rules! profile {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        /// What is known of a processor.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct Profile {
            $($(#[$doc])* pub $field: Constant,)*
        }

        impl Profile {
            /// Returns every constant with its name.
            #[must_use]
            pub fn all(&self) -> Vec<(&'static str, Constant)> {
                vec![$((stringify!($field), self.$field),)*]
            }
        }
    };
}

profile! {
    /// Products with `Q4_0` weights from weights in memory to f32 results, rows of whole tiles.
    npu_gemm_tflops,
    /// Weights streamed from memory and decoded.
    npu_stream_gb_s,
    /// Rows are rounded up to multiples of it.
    npu_row_quantum,
    /// So many rows and fewer are computed by the vector units.
    npu_vector_rows,
    /// From handing a segment to the NPU to its answer.
    npu_dispatch_us,
    /// Products on all cores.
    cpu_gemm_tflops,
    /// Weights read by all cores.
    cpu_stream_gb_s,
    /// Addresses that a session can map.
    va_budget_mib,
    /// To map and unmap 10⁹ bytes.
    map_s_per_gb,
    /// Copies by one core.
    copy_gb_s,
    /// 1 where the NPU reads weights outside its address space, 0 where all must be mapped.
    weights_by_dma,
    /// Power of the busy NPU.
    npu_w,
    /// Power of all cores, busy.
    cpu_w,
    /// Power of the core that maps and copies.
    host_map_w,
}

const MAP: &str = "arXiv 2606.13740: what its memory runtime saves on SM8750, 254 s of 128 steps that map 4.5 GB each; not independent \
    of the ablation's rows `+ dense NPU` and `+ memory runtime`, and good to a factor of 2";
const MAP_ELSEWHERE: &str = "assumed: as on SM8750, see there";
const BUDGET: &str = "llama.cpp, ggml-hexagon: budget of a session from v75 on";
const COPY: &str = "assumed: a core copies more than 10 GB/s on such phones; taken at that";
const DISPATCH: &str =
    "taowen/hexagon-tutorial ch03: 57 to 61 us for a round trip of dspqueue on SM8650";
const QUANTUM: &str = "Hexagon's matrix unit computes tiles of 32 by 32; stairs of 32 rows in HeteroLLM (arXiv 2501.14794)";
const VECTOR_ROWS: &str =
    "llama.cpp, ggml-hexagon: products with more than 4 rows go to the matrix unit";
const CPU_PREFILL: &str =
    "taowen/hexagon-tutorial: llama.cpp, Qwen3-4B Q4_0, prompt tokens per second, halved for 8B";
const CPU_DECODE: &str = "taowen/hexagon-tutorial: llama.cpp, Qwen3-4B Q4_0, tokens per second one at a time, halved for 8B";
const NPU_W: &str = "arXiv 2509.23324: 4.3 W with a model of 3B, below 5 W with one of 1.5B";
const HOST_MAP_W: &str = "assumed: an eighth of the power of all cores";

/// Multiply-accumulates of a row, 10⁹, and bytes, 10⁹, of the model that CPU rates are told by.
fn llama_8b_row() -> (f64, f64) {
    let shape = ModelShape::named("llama-8b-ar", GgmlType::Q4_0).expect("it is one of the names");
    (shape.layer_macs() / 1e9, shape.weight_bytes() / 1e9)
}

impl Profile {
    /// Returns the constants of a processor.
    #[must_use]
    pub fn new(soc: Soc, column: Column) -> Self {
        match column {
            Column::Today => Self::today(soc),
            Column::Paper => Self::paper(soc),
        }
    }

    fn today(soc: Soc) -> Self {
        let (gmacs, gb) = llama_8b_row();
        let (prefill, decode, cpu_w) = match soc {
            Soc::Sm8650 => (
                41.0,
                8.0,
                Constant::new(
                    8.22,
                    "W",
                    Measured,
                    "T-MAN (arXiv 2511.11248): CPU inference on SM8650",
                ),
            ),
            Soc::Sm8750 => (
                37.0,
                9.0,
                Constant::new(
                    9.5,
                    "W",
                    Assumed,
                    "assumed: between 8.22 W on SM8650 and 10.7 W on SM8850",
                ),
            ),
            Soc::Sm8850 => (
                45.0,
                9.0,
                Constant::new(
                    10.7,
                    "W",
                    Measured,
                    "arXiv 2607.05475: llama.cpp on the CPU of a phone with SM8850",
                ),
            ),
        };
        Self {
            npu_gemm_tflops: match soc {
                Soc::Sm8650 => Constant::new(
                    4.5,
                    "TFLOPS",
                    Measured,
                    "HeteroLLM (arXiv 2501.14794): 4.7 at 4096 x 4096 x 128 by QNN, 4 to 5 in general",
                ),
                Soc::Sm8750 => {
                    Constant::new(5.0, "TFLOPS", Derived, "between SM8650's and SM8850's")
                }
                Soc::Sm8850 => Constant::new(
                    6.0,
                    "TFLOPS",
                    Measured,
                    "llama.cpp #23368: Qwen3-4B Q4_0, 113 ms + 1.23 ms per row, which is 5.9",
                ),
            },
            npu_stream_gb_s: match soc {
                Soc::Sm8650 => Constant::new(
                    21.5,
                    "GB/s",
                    Derived,
                    "middle of 18 to 25, from decode speeds of Q4_0 models with llama.cpp and QNN",
                ),
                Soc::Sm8750 => Constant::new(
                    25.0,
                    "GB/s",
                    Derived,
                    "middle of 20 to 30, from decode speeds of Q4_0 models with llama.cpp and QNN",
                ),
                Soc::Sm8850 => Constant::new(
                    32.5,
                    "GB/s",
                    Derived,
                    "middle of 20 to 45: 20 from llama.cpp #23368, 45 from decode speeds",
                ),
            },
            npu_row_quantum: Constant::new(32.0, "rows", Documented, QUANTUM),
            npu_vector_rows: Constant::new(4.0, "rows", Documented, VECTOR_ROWS),
            npu_dispatch_us: match soc {
                Soc::Sm8650 => Constant::new(60.0, "us", Measured, DISPATCH),
                Soc::Sm8750 | Soc::Sm8850 => Constant::new(60.0, "us", Derived, DISPATCH),
            },
            cpu_gemm_tflops: Constant::new(
                prefill * 2.0 * gmacs / 1e3,
                "TFLOPS",
                Derived,
                CPU_PREFILL,
            ),
            cpu_stream_gb_s: Constant::new(decode * gb, "GB/s", Derived, CPU_DECODE),
            va_budget_mib: Constant::new(3200.0, "MiB", Documented, BUDGET),
            map_s_per_gb: match soc {
                Soc::Sm8750 => Constant::new(0.44, "s/GB", Derived, MAP),
                Soc::Sm8650 | Soc::Sm8850 => Constant::new(0.44, "s/GB", Assumed, MAP_ELSEWHERE),
            },
            copy_gb_s: Constant::new(10.0, "GB/s", Assumed, COPY),
            weights_by_dma: match soc {
                Soc::Sm8650 | Soc::Sm8750 => Constant::new(
                    0.0,
                    "",
                    Documented,
                    "llama.cpp, ggml-hexagon: no 64-bit DMA below v81",
                ),
                Soc::Sm8850 => Constant::new(
                    1.0,
                    "",
                    Documented,
                    "llama.cpp #29197: from v81 on weights are read by 40-bit DMA and need no map",
                ),
            },
            npu_w: Constant::new(4.5, "W", Measured, NPU_W),
            cpu_w,
            host_map_w: Constant::new(cpu_w.value / 8.0, "W", Assumed, HOST_MAP_W),
        }
    }

    /// The rates that make the paper's two steps come out on SM8750; elsewhere in proportion to today's.
    fn paper(soc: Soc) -> Self {
        let (today, reference) = (Self::today(soc), Self::today(Soc::Sm8750));
        let shape = ModelShape::named("llada-8b", GgmlType::Q4_0).expect("it is one of the names");
        let flops = 2.0 * PAPER_ROWS * (shape.layer_macs() + shape.head_macs());
        let fixed = shape.weight_bytes() / (reference.npu_stream_gb_s.value * 1e9)
            + shape.n_segments() * reference.npu_dispatch_us.value * 1e-6;
        let npu = flops / (PAPER_NPU_STEP.value - fixed) / 1e12;
        let cpu = flops / PAPER_CPU_STEP.value / 1e12;
        let relative = |of: fn(&Self) -> f64| of(&today) / of(&reference);
        let (npu_source, cpu_source) = match soc {
            Soc::Sm8750 => (PAPER_NPU_STEP.source, PAPER_CPU_STEP.source),
            Soc::Sm8650 | Soc::Sm8850 => (
                "arXiv 2606.13740: the dense step of 1.53 s on SM8750, in proportion to today's rates",
                "arXiv 2606.13740: the dense step of 14.76 s on SM8750, in proportion to today's rates",
            ),
        };
        Self {
            npu_gemm_tflops: Constant::new(
                npu * relative(|p| p.npu_gemm_tflops.value),
                "TFLOPS",
                Derived,
                npu_source,
            ),
            cpu_gemm_tflops: Constant::new(
                cpu * relative(|p| p.cpu_gemm_tflops.value),
                "TFLOPS",
                Derived,
                cpu_source,
            ),
            weights_by_dma: Constant::new(
                0.0,
                "",
                Documented,
                "arXiv 2606.13740 maps what does not fit, on all phones",
            ),
            ..today
        }
    }
}

/// Rows of the paper's dense steps.
const PAPER_ROWS: f64 = 128.0;
/// A dense step of 128 rows of LLaDA-8B `Q4_0`, logits of all rows, on the CPU of SM8750.
pub const PAPER_CPU_STEP: Constant = Constant::new(
    14.76,
    "s",
    Measured,
    "arXiv 2606.13740: one dense step over 128 tokens, CPU of SM8750",
);
/// The same on its NPU, with everything mapped.
pub const PAPER_NPU_STEP: Constant = Constant::new(
    1.53,
    "s",
    Measured,
    "arXiv 2606.13740: one dense step over 128 tokens, NPU of SM8750",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_has_a_source_a_unit_and_a_confidence_that_fits_it() {
        for soc in Soc::ALL {
            for column in Column::ALL {
                let all = Profile::new(soc, column).all();
                assert_eq!(all.len(), 14);
                for (name, constant) in all {
                    let Constant {
                        value,
                        unit,
                        source,
                        confidence,
                    } = constant;
                    let what = format!("{name} of {} {}", soc.name(), column.name());
                    assert!(value.is_finite() && value >= 0.0, "{what}: {value}");
                    assert!(source.trim().len() >= 20, "{what} has no source");
                    assert!(
                        !unit.is_empty() || value == 0.0 || value == 1.0,
                        "{what} has no unit"
                    );
                    assert_eq!(
                        source.starts_with("assumed: "),
                        confidence == Assumed,
                        "{what}: {source}"
                    );
                    if confidence == Measured {
                        let cited = ["arXiv", "llama.cpp", "taowen/"]
                            .iter()
                            .any(|who| source.contains(who));
                        assert!(cited, "{what}: {source}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_constants_are_the_published_ones() {
        let value = |of: fn(&Profile) -> Constant| {
            Soc::ALL.map(|soc| of(&Profile::new(soc, Column::Today)).value)
        };
        assert_eq!(value(|p| p.npu_gemm_tflops), [4.5, 5.0, 6.0]);
        assert_eq!(value(|p| p.npu_stream_gb_s), [21.5, 25.0, 32.5]);
        assert_eq!(value(|p| p.map_s_per_gb), [0.44; 3]);
        assert_eq!(value(|p| p.weights_by_dma), [0.0, 0.0, 1.0]);
        assert_eq!(value(|p| p.va_budget_mib), [3200.0; 3]);
        // 41 tokens per second of 2 x 6.98e9 operations; 8 per second of 4.22e9 bytes.
        let cpu = Profile::new(Soc::Sm8650, Column::Today);
        assert!((cpu.cpu_gemm_tflops.value - 0.5723).abs() < 1e-3, "{cpu:?}");
        assert!((cpu.cpu_stream_gb_s.value - 33.77).abs() < 0.05, "{cpu:?}");
    }

    #[test]
    fn names_are_read_back() {
        for soc in Soc::ALL {
            assert_eq!(soc.name().parse::<Soc>().unwrap(), soc);
        }
        for column in Column::ALL {
            assert_eq!(column.name().parse::<Column>().unwrap(), column);
        }
        assert_eq!(
            "sm8550".parse::<Soc>().unwrap_err().to_string(),
            "expected sm8650, sm8750 or sm8850"
        );
    }
}
