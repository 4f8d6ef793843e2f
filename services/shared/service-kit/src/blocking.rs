//! Work that blocks on the disk, kept away from the threads that answer.
//!
//! A simulation runs a node on one thread and has its own idea of time: there a thread of another pool would end whenever the
//! operating system pleases, and no run would be like another. So a thread may ask for such work to be done on itself.

use std::cell::Cell;

use tokio::task::JoinHandle;

thread_local! {
    /// Set on a thread that does blocking work itself.
    static INLINE: Cell<bool> = const { Cell::new(false) };
}

/// Does `work`, which may block, on a thread that may; to be called where a runtime is entered.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    if INLINE.get() { tokio::spawn(async move { work() }) } else { tokio::task::spawn_blocking(work) }
}

/// From now on, blocking work that is begun on this thread is done by tasks of its runtime. For simulations.
pub fn inline_on_this_thread() {
    INLINE.set(true);
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[tokio::test]
    async fn work_is_done_elsewhere_unless_this_thread_is_simulated() {
        let here = thread::current().id();
        assert_ne!(spawn(|| thread::current().id()).await.expect("done"), here);
        inline_on_this_thread();
        assert_eq!(spawn(|| thread::current().id()).await.expect("done"), here);
    }
}
