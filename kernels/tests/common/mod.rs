//! What the suites share: a generator, and ggml's blocks read from their definition.

#![allow(dead_code, unused_imports, reason = "each suite uses a part")]
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test"
)]

mod kernels;
pub(crate) mod product;

use half::f16;
use llada_npu_kernels::tile::TileType;

pub(crate) use kernels::each_kernel;

/// A small deterministic generator.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 ^ (self.0 >> 29)).wrapping_mul(0xbf58476d1ce4e5b9) >> 16
    }

    /// Mostly within 3, with some large values and zeros of both signs.
    pub(crate) fn float(&mut self) -> f32 {
        let v = (0..4)
            .map(|_| (self.next() % 2001) as f32 / 1000.0 - 1.0)
            .sum::<f32>();
        match self.next() % 50 {
            0 => v * 100.0,
            1 => 0.0,
            2 => -0.0,
            _ => v,
        }
    }

    /// Returns any bytes.
    pub(crate) fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }

    /// Returns a row of ggml's blocks: any integers, scales of both signs and a usual size.
    pub(crate) fn ggml_row(&mut self, ty: TileType, k: usize) -> Vec<u8> {
        let size = k / ty.blck_size() * ty.type_size();
        let mut row = self.bytes(size);
        for block in row.chunks_mut(ty.type_size()) {
            for &at in scale_offsets(ty) {
                // K-quants multiply them with integers of 6 or 8 bits; F16 "blocks" are single values.
                let unit = match ty {
                    TileType::F16 => 1.0,
                    TileType::Q4K | TileType::Q6K => 2048.0,
                    _ => 64.0,
                };
                let scale = f16::from_f32(self.float() / unit);
                block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            }
        }
        row
    }
}

/// Returns where the f16 scales of a block lie.
pub(crate) fn scale_offsets(ty: TileType) -> &'static [usize] {
    match ty {
        TileType::F16 | TileType::Q4_0 | TileType::Q8_0 => &[0],
        TileType::Q4_1 | TileType::Q4K => &[0, 2],
        TileType::Q6K => &[208],
    }
}

fn f16_at(bytes: &[u8], at: usize) -> f64 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f64()
}

/// An element of a row of ggml's blocks: its value is `d * (q - offset) + m`.
pub(crate) struct Element {
    /// The bits as stored.
    pub(crate) q: i32,
    pub(crate) offset: i32,
    pub(crate) d: f64,
    pub(crate) m: f64,
}

impl Element {
    /// Returns element `k` of a row; for `F16`, `d` is its value.
    pub(crate) fn of(ty: TileType, row: &[u8], k: usize) -> Self {
        let (offset, m) = (0, 0.0);
        let block = &row[k / ty.blck_size() * ty.type_size()..];
        let i = k % ty.blck_size();
        let nibble = |from: usize| i32::from(block[from + i % 16] >> (i / 16 * 4) & 15);
        match ty {
            TileType::F16 => Self {
                q: 1,
                offset,
                d: f16_at(block, 0),
                m,
            },
            TileType::Q4_0 => Self {
                q: nibble(2),
                offset: 8,
                d: f16_at(block, 0),
                m,
            },
            TileType::Q4_1 => Self {
                q: nibble(4),
                offset,
                d: f16_at(block, 0),
                m: f16_at(block, 2),
            },
            TileType::Q8_0 => Self {
                q: i32::from(block[2 + i].cast_signed()),
                offset,
                d: f16_at(block, 0),
                m,
            },
            TileType::Q4K => Self::of_q4_k(block, i),
            TileType::Q6K => Self::of_q6_k(block, i),
        }
    }

    fn of_q4_k(block: &[u8], i: usize) -> Self {
        // Eight pairs of 6 bits in 12 bytes: four whole ones, then four whose top bits are in the first.
        let (s, b) = (i / 32, &block[4..16]);
        let (scale, min) = match s {
            0..4 => (b[s] % 64, b[s + 4] % 64),
            _ => (
                b[s + 4] % 16 + b[s - 4] / 64 * 16,
                b[s + 4] / 16 + b[s] / 64 * 16,
            ),
        };
        let byte = block[16 + i / 64 * 32 + i % 32];
        Self {
            q: i32::from(if s % 2 == 0 { byte % 16 } else { byte / 16 }),
            offset: 0,
            d: f16_at(block, 0) * f64::from(scale),
            m: -f16_at(block, 2) * f64::from(min),
        }
    }

    fn of_q6_k(block: &[u8], i: usize) -> Self {
        let (half, quarter, l) = (i / 128, i / 32 % 4, i % 32);
        let low = block[half * 64 + quarter % 2 * 32 + l];
        let low = if quarter < 2 { low % 16 } else { low / 16 };
        let high = block[128 + half * 32 + l] >> (quarter * 2) & 3;
        Self {
            q: i32::from(low) + i32::from(high) * 16,
            offset: 32,
            d: f16_at(block, 208) * f64::from(block[192 + i / 16].cast_signed()),
            m: 0.0,
        }
    }

    /// Returns the value, in f64.
    pub(crate) fn value(&self) -> f64 {
        self.d * f64::from(self.q - self.offset) + self.m
    }
}
