//! How decoding is stopped from outside, even in the middle of a commit: `CHECK_FOR_INTERRUPTS` of `tcop/postgres.c`.
//!
//! One commit may take minutes under an old profile. Whoever started it may have gone away, or his deadline may have passed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A wish to stop, shared by who wishes and who stops. Once raised it stays.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Wishes that decoding ends.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Somebody does.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
