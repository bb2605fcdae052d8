//! A cursor over bytes that cannot leave them.

use super::GgufError;

/// Non-owning cursor. Every read names what it reads, for the error.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// Offset of the next byte.
    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes left.
    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.offset
    }

    /// Takes `n` bytes.
    pub(super) fn take(&mut self, n: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        let taken = usize::try_from(n)
            .ok()
            .and_then(|n| self.offset.checked_add(n))
            .and_then(|end| Some((self.bytes.get(self.offset..end)?, end)));
        let Some((taken, end)) = taken else {
            let file_len = self.bytes.len();
            return Err(GgufError::Truncated {
                what,
                offset: self.offset,
                need: n,
                file_len,
            });
        };
        self.offset = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Takes the four bytes of the magic.
    pub(super) fn magic(&mut self) -> Result<[u8; 4], GgufError> {
        self.array("the magic")
    }
}
