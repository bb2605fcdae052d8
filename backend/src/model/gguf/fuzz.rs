//! Changes bytes of a sound file at random, from a fixed seed so that a failure can be replayed.

use std::time::Instant;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize;
        high % n
    }
}

/// Calls `accepts` with changed copies of `sound`: `n_rounds` times, or for as many seconds as
/// `LLADA_NPU_FUZZ_SECONDS` says. Some must be accepted and some refused, else the changes test nothing.
pub(crate) fn fuzz(sound: &[u8], n_rounds: u64, mut accepts: impl FnMut(&[u8]) -> bool) {
    let seconds: Option<u64> = std::env::var("LLADA_NPU_FUZZ_SECONDS")
        .ok()
        .and_then(|s| s.parse().ok());
    let start = Instant::now();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut rounds, mut accepted) = (0_u64, 0_u64);
    while seconds.map_or(rounds < n_rounds, |s| start.elapsed().as_secs() < s) {
        let mut bytes = sound.to_vec();
        for _ in 0..=random.below(4) {
            change(&mut bytes, &mut random);
        }
        accepted += u64::from(accepts(&bytes));
        rounds += 1;
    }
    println!("{rounds} rounds, {accepted} accepted");
    assert!(accepted > 0 && accepted < rounds);
}

fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len());
    match random.below(4) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = [0, 0xff, 0x7f, 0x80][random.below(4)],
        2 => bytes.truncate(at.max(1)),
        _ => {
            let n = (bytes.len() - at).min(8);
            let value = [u64::MAX, 1 << 63, 1 << 32, 0][random.below(4)].to_le_bytes();
            bytes[at..at + n].copy_from_slice(&value[..n]);
        }
    }
}
