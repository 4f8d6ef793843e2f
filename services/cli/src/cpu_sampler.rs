//! Where CPU time goes, by PostgreSQL's function names.
//!
//! The decoder keeps the running functions in a word ([`CurrentFunction`]); a second thread reads it some ten thousand times
//! a second, and the decoding thread's own CPU time is shared out in proportion to what was read. So time the thread did not
//! run is not counted, and a function that runs in short pieces is seen as often as one that runs long.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use decoder_core::{CurrentFunction, Function, Stack};
use service_kit::cpu::thread_cpu_ns;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_micros(50);

/// CPU time of one thread, shared out.
#[derive(Clone, Debug, Default)]
pub struct CpuShares {
    /// What the thread used, in nanoseconds.
    total_ns: u64,
    /// How many looks found which functions running.
    looks: BTreeMap<Stack, u64>,
}

impl CpuShares {
    /// All of it.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// Takes another run of the same work in: the looks of both tell the shares, the shorter run the time, since what makes a run
    /// longer is the machine.
    pub fn merge(&mut self, other: &Self) {
        self.total_ns = self.total_ns.min(other.total_ns);
        other.looks.iter().for_each(|(stack, looks)| *self.looks.entry(*stack).or_default() += looks);
    }

    /// How many looks found which functions running.
    pub fn stacks(&self) -> impl Iterator<Item = (Stack, u64)> + '_ {
        self.looks.iter().map(|(stack, looks)| (*stack, *looks))
    }

    /// Looks by innermost function, in the order of [`Function::ALL`].
    #[must_use]
    pub fn looks(&self) -> BTreeMap<Function, u64> {
        let mut looks = BTreeMap::new();
        self.stacks().for_each(|(stack, n)| *looks.entry(stack.innermost()).or_default() += n);
        looks
    }

    /// Nanoseconds by function, those never seen left out; they add up to at most the total.
    pub fn by_function(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let all = u128::from(self.looks.values().sum::<u64>().max(1));
        let share = move |looks: u64| u64::try_from(u128::from(self.total_ns) * u128::from(looks) / all).unwrap_or(u64::MAX);
        self.looks().into_iter().map(move |(function, looks)| (function.name(), share(looks)))
    }

    /// The `n` functions with the most time, with their share in per cent.
    pub fn leading(&self, n: usize) -> impl Iterator<Item = (&'static str, f64)> {
        let mut all: Vec<_> = self.by_function().collect();
        all.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        let total = self.total_ns.max(1) as f64;
        all.into_iter().take(n).map(move |(name, ns)| (name, 100.0 * ns as f64 / total))
    }
}

/// Runs `f` on this thread while another one looks at `marker`.
pub fn sample<T>(marker: &CurrentFunction, f: impl FnOnce() -> T) -> (T, CpuShares) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut looks = BTreeMap::new();
            while !stop.load(Ordering::Relaxed) {
                let stack = marker.get();
                if stack != Stack::default() {
                    *looks.entry(stack).or_default() += 1;
                }
                thread::sleep(INTERVAL);
            }
            looks
        });
        let before = thread_cpu_ns();
        let done = f();
        let total_ns = thread_cpu_ns().saturating_sub(before);
        stop.store(true, Ordering::Relaxed);
        let looks = sampler.join().unwrap_or_default();
        (done, CpuShares { total_ns, looks })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_to_the_function_that_ran() {
        let marker = CurrentFunction::default();
        let (_, shares) = sample(&marker, || {
            let outer = marker.enter(Function::HashSeqSearch);
            // Long enough in CPU time, however often the thread is interrupted.
            let start = thread_cpu_ns();
            while thread_cpu_ns() - start < 20_000_000 {
                std::hint::spin_loop();
            }
            marker.leave(outer);
        });
        assert!(shares.total_ns() >= 20_000_000);
        let named: Vec<_> = shares.by_function().collect();
        assert_eq!(named.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["hash_seq_search"]);
        assert_eq!(named[0].1, shares.total_ns());
        assert_eq!(shares.leading(3).count(), 1);
    }
}
