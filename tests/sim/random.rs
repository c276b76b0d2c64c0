//! Random numbers from a seed: a stream for each purpose, so that the streams are independent.

use std::time::Duration;

/// SplitMix64.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64, purpose: &str, number: u64) -> Self {
        // FNV-1a: the same in every build.
        let mut state = 0xcbf2_9ce4_8422_2325_u64;
        let numbers = [seed.to_le_bytes(), number.to_le_bytes()];
        for byte in purpose.bytes().chain(numbers.into_iter().flatten()) {
            state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Self(state)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31) % limit
    }

    /// Returns true in this many of a thousand cases.
    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Returns a time up to `longest`, a multiple of `grain`. One in eight is zero, so that events
    /// coincide.
    pub(crate) fn time(&mut self, longest: Duration, grain: Duration) -> Duration {
        if self.below(8) == 0 {
            return Duration::ZERO;
        }
        let grains = longest.as_micros() / grain.as_micros();
        grain * self.below(grains as u64 + 1) as u32
    }

    /// Lets the other tasks run `count` times, so that tasks do not always run in the same order.
    pub(crate) async fn turns(count: u64) {
        for _ in 0..count {
            tokio::task::yield_now().await;
        }
    }
}
