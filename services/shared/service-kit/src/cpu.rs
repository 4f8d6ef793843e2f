//! CPU time of threads.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time that the calling thread has used.
#[must_use]
pub fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The same in nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    u64::try_from(thread_cpu_time().as_nanos()).unwrap_or(u64::MAX)
}

/// What looking at the thread's clock itself costs, in nanoseconds: the least of many looks. What is measured may take less than that.
#[must_use]
pub fn thread_clock_cost_ns() -> u64 {
    (0..1000).map(|_| thread_cpu_ns().abs_diff(thread_cpu_ns())).min().unwrap_or(0)
}

/// CPU time that all running threads with the calling one's name have used: called on a runtime, that of the runtime. [`None`] where
/// the kernel does not tell.
#[must_use]
pub fn namesakes_cpu_time() -> Option<Duration> {
    let name = fs::read("/proc/thread-self/comm").ok()?;
    let tasks = fs::read_dir("/proc/self/task").ok()?.flatten().map(|task| task.path());
    // One that ends meanwhile is left out.
    let of_name = tasks.filter(|task| fs::read(task.join("comm")).is_ok_and(|comm| comm == name));
    let used: Vec<Duration> = of_name.filter_map(|task| on_cpu(&task)).collect();
    (!used.is_empty()).then(|| used.iter().sum())
}

/// What a thread has used: the first number of its `schedstat`, in nanoseconds.
fn on_cpu(task: &Path) -> Option<Duration> {
    let text = fs::read_to_string(task.join("schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses so much CPU time, however often the thread is interrupted.
    fn work(time: Duration) {
        let begun = thread_cpu_time();
        while thread_cpu_time() - begun < time {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn threads_of_one_name_count_together_and_others_do_not() {
        let named = |name: &str, f: fn() -> Option<Duration>| {
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(f);
            thread.unwrap().join().unwrap()
        };
        let busy = || {
            work(Duration::from_millis(20));
            namesakes_cpu_time()
        };
        assert!(named("cpu-busy", busy).unwrap() >= Duration::from_millis(20));
        work(Duration::from_millis(20));
        assert!(named("cpu-idle", namesakes_cpu_time).unwrap() < Duration::from_millis(20));
    }
}
