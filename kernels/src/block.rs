//! Byte-level views of ggml's quantised blocks and half floats.
//!
//! Views, not structs: a block may lie at any address of a mapped file.

use half::f16;

/// Elements of a quantised block.
pub(crate) const QK: usize = 32;

/// Returns the half float with these bits as f32; exact, NaN stays NaN.
pub(crate) fn f16_to_f32(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32_const()
}

/// Rounds to half (to nearest, ties to even; overflow to infinity).
pub(crate) fn f32_to_f16(x: f32) -> [u8; 2] {
    f16::from_f32_const(x).to_le_bytes()
}

/// Rounds through half and back.
pub(crate) fn round_to_f16(x: f32) -> f32 {
    f16_to_f32(f32_to_f16(x))
}

/// Returns the dot product of a block's integers as f32.
#[expect(
    clippy::cast_precision_loss,
    reason = "at most 32 * 128 * 127, exact in f32"
)]
pub(crate) fn exact(dot: i32) -> f32 {
    dot as f32
}

/// How floats become signed bytes `q`, which are at most 127: `x` is nearly `d * q`, and `q` nearly `x * id`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// Value of 1.
    pub(crate) d: f32,
    /// Its inverse; 0 where all `q` are to be 0, whatever x is.
    pub(crate) id: f32,
}

impl Scale {
    /// Returns the scale of floats that are at most `amax`, NaN above infinity, with `amax / 127` rounded through f16 as
    /// its `d`: that of ggml's `Q8_0`.
    pub(crate) fn q8_0(amax: f32, d: f32) -> Self {
        let id = if amax.is_finite() && d != 0.0 {
            127.0 / amax
        } else {
            0.0
        };
        Self { d, id }
    }

    /// Returns the scale of floats that are at most `amax`, NaN above infinity, in f32: that of ggml's `Q8_K`.
    pub(crate) fn q8_k(amax: f32) -> Self {
        let id = 127.0 / amax;
        if !amax.is_finite() {
            Self { d: amax, id: 0.0 }
        } else if id.is_finite() {
            Self { d: 1.0 / id, id }
        } else {
            Self { d: 0.0, id: 0.0 }
        }
    }
}

/// Non-owning view of a `Q8_0` block: f16 `d`, then 32 signed bytes; element `i` is `d * q[i]`.
#[derive(Clone, Copy)]
pub(crate) struct Q8_0<'a>(pub(crate) &'a [u8; Q8_0::SIZE_BYTES]);

impl<'a> Q8_0<'a> {
    pub(crate) const SIZE_BYTES: usize = 2 + QK;

    pub(crate) fn d(self) -> f32 {
        f16_to_f32([self.0[0], self.0[1]])
    }

    pub(crate) fn qs(self) -> &'a [u8; QK] {
        self.0
            .last_chunk()
            .expect("a block is longer than its bytes")
    }

    pub(crate) fn q(self, i: usize) -> i8 {
        self.qs()[i].cast_signed()
    }
}

/// Non-owning view of a `Q4_0` block: f16 `d`, then 16 bytes; low nibbles are elements 0..16, high ones 16..32;
/// element `i` is `d * (nibble[i] - 8)`.
#[derive(Clone, Copy)]
pub(crate) struct Q4_0<'a>(pub(crate) &'a [u8; Q4_0::SIZE_BYTES]);

impl<'a> Q4_0<'a> {
    pub(crate) const SIZE_BYTES: usize = 2 + QK / 2;

    pub(crate) fn d(self) -> f32 {
        f16_to_f32([self.0[0], self.0[1]])
    }

    pub(crate) fn qs(self) -> &'a [u8; QK / 2] {
        self.0
            .last_chunk()
            .expect("a block is longer than its nibbles")
    }

    pub(crate) fn q(self, i: usize) -> i8 {
        let byte = self.qs()[i % (QK / 2)];
        (if i < QK / 2 { byte & 15 } else { byte >> 4 }).cast_signed() - 8
    }
}
