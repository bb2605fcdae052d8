//! Kernels of [`crate::op::attention`].

use super::Kernel;
#[cfg(target_arch = "aarch64")]
use crate::aarch64::{self, Fhm, Fp16, attention::HalfAttention};
use crate::flash::{Flash, Micro};
use crate::generic;
use crate::op::attention::Attention;
use crate::reference::attention::Reference;
#[cfg(target_arch = "x86_64")]
use crate::x86_64;

/// Returns the kernels of [`crate::op::attention`]: best first, the reference last. Each takes every kind of K and V.
pub fn attention() -> &'static [Kernel<Attention>] {
    ATTENTION
}

static ATTENTION: &[Kernel<Attention>] = &[
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "x86_64-attention-avx512f",
        select: || Some(flash(x86_64::avx512::lanes::attention()?)),
    },
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "x86_64-attention-avx2fma",
        select: || Some(flash(x86_64::avx2::lanes::attention()?)),
    },
    #[cfg(target_arch = "aarch64")]
    Kernel {
        name: "aarch64-attention-fhm",
        select: || Some(Attention(Box::new(HalfAttention::<Fhm>::detect()?))),
    },
    #[cfg(target_arch = "aarch64")]
    Kernel {
        name: "aarch64-attention-fp16",
        select: || Some(Attention(Box::new(HalfAttention::<Fp16>::detect()?))),
    },
    #[cfg(target_arch = "aarch64")]
    Kernel {
        name: "aarch64-attention-neon",
        select: || Some(flash(aarch64::lanes::attention()?)),
    },
    Kernel {
        name: "generic-attention",
        select: || Some(flash(generic::attention::Generic)),
    },
    Kernel {
        name: "reference-attention",
        select: || Some(Attention(Box::new(Reference))),
    },
];

fn flash<M: Micro + 'static>(micro: M) -> Attention {
    Attention(Box::new(Flash(micro)))
}
