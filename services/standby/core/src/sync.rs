//! The atomics, the mutex and the publication cell, from `std` and `arc-swap` or, to be model-checked, from `loom`.
//!
//! `cfg(loom)` exchanges only what threads share. There the cell keeps all values and an atomic number that says which is the last:
//! stored with release, read with acquire order, so a reader may get an older value, as long as what it gets comes with every
//! write made before it was stored. `ArcSwap` promises no less; what loom explores is the protocol over the slots.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

use std::sync::Arc;

/// A pointer that one thread replaces and many read; neither waits for the other.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct Published<T>(arc_swap::ArcSwap<T>);

#[cfg(not(loom))]
impl<T> Published<T> {
    /// A cell that holds `value`.
    pub(crate) fn new(value: Arc<T>) -> Self {
        Self(arc_swap::ArcSwap::new(value))
    }

    /// The value stored last.
    pub(crate) fn load(&self) -> Arc<T> {
        self.0.load_full()
    }

    /// Stores `value` (with all writes made before) and returns the one before it.
    pub(crate) fn swap(&self, value: Arc<T>) -> Arc<T> {
        self.0.swap(value)
    }
}

/// The same, for the model checker. The lock is not modelled: model threads run one at a time, so it is never waited for.
#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct Published<T> {
    /// Index of the value stored last.
    last: AtomicU64,
    /// All values.
    values: std::sync::Mutex<Vec<Arc<T>>>,
}

#[cfg(loom)]
#[expect(clippy::unwrap_used, reason = "a model run in which a thread panicked has failed already")]
impl<T> Published<T> {
    /// A cell that holds `value`.
    pub(crate) fn new(value: Arc<T>) -> Self {
        Self { last: AtomicU64::new(0), values: std::sync::Mutex::new(vec![value]) }
    }

    /// A value stored, not older than the last one that this thread saw.
    pub(crate) fn load(&self) -> Arc<T> {
        let last = self.last.load(Ordering::Acquire) as usize;
        Arc::clone(&self.values.lock().unwrap()[last])
    }

    /// Stores `value` (with all writes made before) and returns the one before it.
    pub(crate) fn swap(&self, value: Arc<T>) -> Arc<T> {
        let mut values = self.values.lock().unwrap();
        values.push(value);
        let (last, before) = (values.len() - 1, Arc::clone(&values[values.len() - 2]));
        drop(values);
        self.last.store(last as u64, Ordering::Release);
        before
    }
}
