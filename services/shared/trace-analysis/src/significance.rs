//! Whether two samples differ: the Mann–Whitney test, which asks nothing of their distribution, and Holm's correction for many tests.

/// What a comparison of samples gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Two-sided p, by the normal approximation with corrections for ties and continuity; 1 if nothing can be said.
    pub p: f64,
    /// Cliff's delta: how much more often a value of the second sample is the greater one than the smaller one, −1 to 1.
    pub delta: f64,
}

/// How large a delta is, by the usual limits (Romano et al. 2006).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Below 0.147.
    Negligible,
    /// Below 0.33.
    Small,
    /// Below 0.474.
    Medium,
    /// From there on.
    Large,
}

impl Comparison {
    /// How large the difference is.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self.delta.abs() {
            delta if delta < 0.147 => Effect::Negligible,
            delta if delta < 0.33 => Effect::Small,
            delta if delta < 0.474 => Effect::Medium,
            _ => Effect::Large,
        }
    }
}

/// Compares two samples.
#[must_use]
pub fn mann_whitney(first: &[f64], second: &[f64]) -> Comparison {
    let (n, m) = (first.len() as f64, second.len() as f64);
    if first.is_empty() || second.is_empty() {
        return Comparison { p: 1.0, delta: 0.0 };
    }
    let of = |sample: &[f64], is_second: bool| sample.iter().map(|value| (*value, is_second)).collect::<Vec<_>>();
    let mut all = [of(first, false), of(second, true)].concat();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Equal values share the mean of their ranks.
    let (mut ranks_of_second, mut ties, mut before) = (0.0, 0.0, 0.0);
    for equal in all.chunk_by(|a, b| a.0 == b.0) {
        let len = equal.len() as f64;
        let rank = before + (len + 1.0) / 2.0;
        ranks_of_second += rank * equal.iter().filter(|(_, is_second)| *is_second).count() as f64;
        ties += len * len * len - len;
        before += len;
    }
    let u = ranks_of_second - m * (m + 1.0) / 2.0;
    let (mean, total) = (n * m / 2.0, n + m);
    let variance = n * m / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
    let delta = 2.0 * u / (n * m) - 1.0;
    if variance <= 0.0 {
        return Comparison { p: 1.0, delta };
    }
    let z = ((u - mean).abs() - 0.5).max(0.0) / variance.sqrt();
    Comparison { p: libm::erfc(z / std::f64::consts::SQRT_2), delta }
}

/// Holm's correction: the chance of one false alarm among all tests is that of one test.
#[must_use]
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let (mut corrected, mut least) = (vec![1.0; p.len()], 0.0f64);
    for (rank, at) in order.into_iter().enumerate() {
        least = least.max(p[at] * (p.len() - rank) as f64).min(1.0);
        corrected[at] = least;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Equal to four digits.
    fn near(value: f64, expected: f64) -> bool {
        (value - expected).abs() <= 1e-4 * expected.abs().max(1e-4)
    }

    #[test]
    fn p_is_as_other_programs_have_it() {
        // The example of SciPy's documentation: U = 17, p = 0.1113 by the normal approximation.
        let found = mann_whitney(&[20.0, 11.0, 17.0, 12.0], &[19.0, 22.0, 16.0, 29.0, 24.0]);
        assert!(near(found.p, 0.111_346_9) && near(found.delta, 0.7), "{found:?}");
        // R: wilcox.test(extra ~ group, data = sleep) gives W = 25.5, p-value = 0.06933, with ties.
        let one = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0];
        let two = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];
        let found = mann_whitney(&one, &two);
        assert!(near(found.p, 0.069_33) && near(found.delta, 0.49), "{found:?}");
        assert_eq!(found.p, mann_whitney(&two, &one).p);
        assert_eq!((found.effect(), mann_whitney(&one, &one).effect()), (Effect::Large, Effect::Negligible));
    }

    #[test]
    fn samples_that_say_nothing_are_not_significant() {
        for (one, two) in [(&[][..], &[1.0][..]), (&[1.0], &[]), (&[5.0; 9], &[5.0; 7])] {
            assert_eq!(mann_whitney(one, two).p, 1.0);
        }
    }

    #[test]
    fn holm_is_as_r_has_it() {
        // R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm").
        let corrected = holm(&[0.01, 0.04, 0.03, 0.005]);
        for (p, expected) in corrected.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            assert!(near(*p, expected), "{corrected:?}");
        }
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
    }
}
