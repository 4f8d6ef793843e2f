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

/// A number in (0, 1], each of 2⁵³ equally likely.
fn unit(rng: &mut dyn Rng) -> f64 {
    ((rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// A draw of the exponential distribution with mean 1. `libm` computes in software, so that the bits are the same everywhere.
pub(crate) fn exponential(rng: &mut dyn Rng) -> f64 {
    -libm::log(unit(rng))
}

/// A draw of the normal distribution with mean 0 and deviation 1 (Box and Muller).
pub(crate) fn normal(rng: &mut dyn Rng) -> f64 {
    let radius = libm::sqrt(-2.0 * libm::log(unit(rng)));
    radius * libm::cos(std::f64::consts::TAU * unit(rng))
}

/// A draw of the Pareto distribution with least value 1.
pub(crate) fn pareto(rng: &mut dyn Rng, shape: f64) -> f64 {
    libm::pow(unit(rng), -1.0 / shape)
}

/// A number in 1 ..= n, the k-th with a chance as 1 ∕ kˢ for an exponent s above 0 (rejection-inversion by Hörmann and Derflinger:
/// no table, whatever n).
pub(crate) fn zipf(rng: &mut dyn Rng, n: u64, exponent: f64) -> u64 {
    let area = |x: f64| if exponent == 1.0 { libm::log(x) } else { (libm::pow(x, 1.0 - exponent) - 1.0) / (1.0 - exponent) };
    let inverse =
        |y: f64| if exponent == 1.0 { libm::exp(y) } else { libm::pow(1.0 + y * (1.0 - exponent), 1.0 / (1.0 - exponent)) };
    let height = |x: f64| libm::pow(x, -exponent);
    let (left, right) = (area(1.5) - 1.0, area(n as f64 + 0.5));
    loop {
        let y = right + unit(rng) * (left - right);
        let k = libm::round(inverse(y)).clamp(1.0, n as f64);
        if y >= area(k + 0.5) - height(k) {
            return k as u64;
        }
    }
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

    #[test]
    fn zipf_draws_the_first_most_often_by_its_law() {
        let mut rng = seeded(2);
        for (n, exponent) in [(1, 1.0), (10, 1.0), (100, 0.5), (1000, 1.5)] {
            let mut counts = vec![0u64; n as usize + 1];
            (0..40_000).for_each(|_| counts[zipf(&mut rng, n, exponent) as usize] += 1);
            let whole: f64 = (1..=n).map(|k| (k as f64).powf(-exponent)).sum();
            for k in 1..=n.min(5) {
                let (expected, got) = (40_000.0 * (k as f64).powf(-exponent) / whole, counts[k as usize] as f64);
                assert!((got - expected).abs() < 5.0 * expected.sqrt() + 1.0, "{k} of {n}, {exponent}: {got} for {expected}");
            }
        }
    }
}
