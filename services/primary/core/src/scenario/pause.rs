//! Lengths of time as a plan has them: fixed, or drawn anew each time.

use crate::rng::{self, Rng};

/// Longest draw: a year, in microseconds. Distributions with long tails are cut here at the latest.
pub(super) const TIME_MAX_US: u64 = 366 * 86_400 * 1_000_000;

/// A length of time in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pause {
    /// Always the same.
    Fixed(u64),
    /// Each length equally likely.
    Uniform {
        /// The least.
        from_us: u64,
        /// The greatest.
        to_us: u64,
    },
    /// As between the arrivals of a Poisson process.
    Exponential {
        /// The mean.
        mean_us: u64,
        /// Where it is cut.
        at_most_us: u64,
    },
    /// The normal distribution, negative draws as 0.
    Normal {
        /// The mean.
        mean_us: u64,
        /// The standard deviation.
        deviation_us: u64,
        /// Where it is cut.
        at_most_us: u64,
    },
    /// The Pareto distribution: most are short, a few very long.
    Pareto {
        /// The least.
        least_us: u64,
        /// The exponent.
        shape: f64,
        /// Where it is cut.
        at_most_us: u64,
    },
}

impl Pause {
    /// No time at all.
    pub const NONE: Pause = Pause::Fixed(0);

    /// One length.
    pub fn draw(&self, rng: &mut dyn Rng) -> u64 {
        match *self {
            Pause::Fixed(us) => us,
            Pause::Uniform { from_us, to_us } => rng::uniform(rng, from_us, to_us),
            Pause::Exponential { mean_us, at_most_us } => cut(mean_us as f64 * rng::exponential(rng), at_most_us),
            Pause::Normal { mean_us, deviation_us, at_most_us } => {
                cut(mean_us as f64 + deviation_us as f64 * rng::normal(rng), at_most_us)
            }
            Pause::Pareto { least_us, shape, at_most_us } => cut(least_us as f64 * rng::pareto(rng, shape), at_most_us),
        }
    }

    /// The mean of many draws, rounded down; not above where they are cut.
    #[must_use]
    pub fn mean_us(&self) -> u64 {
        match *self {
            Pause::Fixed(us) => us,
            Pause::Uniform { from_us, to_us } => (from_us / 2).saturating_add(to_us / 2),
            Pause::Exponential { mean_us, at_most_us } | Pause::Normal { mean_us, at_most_us, .. } => mean_us.min(at_most_us),
            // With a shape of 1 or less there is no mean but for the cut: the least is the safe side.
            Pause::Pareto { least_us, shape, at_most_us } if shape > 1.0 => {
                cut(least_us as f64 * shape / (shape - 1.0), at_most_us)
            }
            Pause::Pareto { least_us, at_most_us, .. } => least_us.min(at_most_us),
        }
    }

    /// Whether every draw is 0.
    #[must_use]
    pub fn is_none(&self) -> bool {
        match *self {
            Pause::Fixed(us) | Pause::Uniform { to_us: us, .. } | Pause::Pareto { least_us: us, .. } => us == 0,
            Pause::Exponential { mean_us, at_most_us } => mean_us.min(at_most_us) == 0,
            Pause::Normal { mean_us, deviation_us, at_most_us } => at_most_us == 0 || mean_us == 0 && deviation_us == 0,
        }
    }
}

/// Whole microseconds of a draw.
fn cut(us: f64, at_most_us: u64) -> u64 {
    // A cast from f64 saturates: negative and not-a-number become 0.
    (us as u64).min(at_most_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_mean_that_was_asked_for_and_keep_their_limits() {
        let mut rng = rng::seeded(7);
        let mut mean = |pause: Pause| (0..20_000).map(|_| pause.draw(&mut rng)).sum::<u64>() as f64 / 20_000.0;
        let cut = TIME_MAX_US;
        let cases = [
            (Pause::Fixed(500), 500.0),
            (Pause::Uniform { from_us: 0, to_us: 1000 }, 500.0),
            (Pause::Exponential { mean_us: 500, at_most_us: cut }, 500.0),
            (Pause::Normal { mean_us: 500, deviation_us: 50, at_most_us: cut }, 500.0),
            // shape / (shape - 1) times the least.
            (Pause::Pareto { least_us: 400, shape: 5.0, at_most_us: cut }, 500.0),
        ];
        for (pause, expected) in cases {
            let got = mean(pause);
            assert_eq!(pause.mean_us(), expected as u64, "{pause:?}");
            assert!((got - expected).abs() < 0.03 * expected, "{pause:?}: {got}");
        }
        assert!((0..2000).all(|_| Pause::Pareto { least_us: 10, shape: 0.1, at_most_us: 99 }.draw(&mut rng) <= 99));
    }

    #[test]
    fn draws_are_the_same_on_every_machine() {
        let mut rng = rng::seeded(1);
        let pause = Pause::Exponential { mean_us: 1_000_000, at_most_us: TIME_MAX_US };
        let drawn: Vec<u64> = (0..4).map(|_| pause.draw(&mut rng)).collect();
        assert_eq!(drawn, [910_095, 2_520_943, 516_575, 1_517_202]);
    }
}
