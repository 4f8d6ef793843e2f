//! The seam to chance: every draw comes from a generator that the caller seeds, so that a run can be repeated.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

pub use rand::Rng;

/// The generator of a run. ChaCha gives the same numbers on every machine and in every release.
#[must_use]
pub fn seeded(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// A whole number in `from ..= to`, each equally likely (`from` if the range is empty). Widening multiplication: the bias is
/// below 2⁻⁶⁴ times the width.
pub(crate) fn uniform(rng: &mut dyn Rng, from: u64, to: u64) -> u64 {
    let width = u128::from(to.saturating_sub(from)) + 1;
    from + ((u128::from(rng.next_u64()) * width) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_stay_in_range_and_reach_both_ends() {
        let mut rng = seeded(1);
        let draws: Vec<u64> = (0..200).map(|_| uniform(&mut rng, 3, 6)).collect();
        assert!(draws.iter().all(|d| (3..=6).contains(d)));
        assert!((3..=6).all(|d| draws.contains(&d)));
        assert_eq!(uniform(&mut rng, 5, 5), 5);
    }
}
