//! `KnownAssignedXids` (`storage/ipc/procarray.c`, 9.6 to 18): the transactions that replay believes to run on the primary.
//!
//! A standby has no backends that it could ask which transactions run, so it learns ids from WAL: every id seen, and every one
//! below it, runs until its end is replayed. Snapshots copy this list, so its walk is what readers pay for, while replay adds and
//! removes at any rate.
//!
//! Two layouts hold it. The [array](mod@array) is PostgreSQL's: removing leaves gaps; compression closes them, skip offsets jump over them.
//! The [`segments`] of profile `indexed` have no gaps. The measurements that chose them, and what lost, are in the folder's README.
//!
//! **Invariant** of both: a published [`KnownAssignedView`] never changes, whatever the writer does later. Neither makes readers
//! wait or try again.

use pg_types::{Lsn, Xid};

use crate::error::RecoveryError;

pub(crate) mod array;
pub mod compress;
pub mod segments;
pub mod skip_offset;
mod slots;
pub mod view;

use array::KnownAssignedArray;
use compress::{CompressCall, CompressionRule};
use segments::LiveSegments;
pub use view::KnownAssignedView;

/// How the xids are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownAssignedLayout {
    /// PostgreSQL's array, compressed by a rule.
    Array(CompressionRule),
    /// Live xids alone, in sorted segments.
    Segments,
}

/// The writer's side. Readers get clones of [`KnownAssignedXids::view`], published by the owner.
#[derive(Debug)]
pub struct KnownAssignedXids(Layout);

/// The writer of a layout.
#[derive(Debug)]
enum Layout {
    Array(Box<KnownAssignedArray>),
    Segments(LiveSegments),
}

/// Calls the same function of either layout.
macro_rules! each {
    ($self:ident, $xids:ident => $call:expr) => {
        match &mut $self.0 {
            Layout::Array($xids) => $call,
            Layout::Segments($xids) => $call,
        }
    };
}

impl KnownAssignedXids {
    /// None yet, room for `max` (`maxKnownAssignedXids`), in a standby of `max_procs` processes.
    #[must_use]
    pub fn new(max: u32, max_procs: u32, layout: KnownAssignedLayout) -> Self {
        Self(match layout {
            KnownAssignedLayout::Array(rule) => Layout::Array(Box::new(KnownAssignedArray::new(max, max_procs, rule))),
            KnownAssignedLayout::Segments => Layout::Segments(LiveSegments::new(max)),
        })
    }

    /// The xids as they are now, for ever. Publish it only between records.
    #[must_use]
    pub fn view(&self) -> KnownAssignedView {
        match &self.0 {
            Layout::Array(array) => KnownAssignedView::from(array.view().clone()),
            Layout::Segments(segments) => KnownAssignedView::from(segments.view().clone()),
        }
    }

    /// Slots that searches have looked at so far.
    #[must_use]
    pub fn slots_searched(&self) -> u64 {
        match &self.0 {
            Layout::Array(array) => array.slots_searched(),
            Layout::Segments(segments) => segments.searched,
        }
    }

    /// `transactionEndsCounter`; stays 0 where nothing is ever compressed.
    #[must_use]
    pub fn transaction_ends_counter(&self) -> u32 {
        if let Layout::Array(array) = &self.0 { array.transaction_ends_counter() } else { 0 }
    }

    /// The calls of compression since they were cleared.
    #[must_use]
    pub fn calls(&self) -> &[CompressCall] {
        if let Layout::Array(array) = &self.0 { array.calls() } else { &[] }
    }

    /// Forgets the calls; the owner does so at each record, which bounds them.
    pub fn clear_calls(&mut self) {
        if let Layout::Array(array) = &mut self.0 {
            array.clear_calls();
        }
    }

    /// Tells the time, in milliseconds of any clock that does not run backwards.
    pub fn set_now(&mut self, now_ms: u64) {
        if let Layout::Array(array) = &mut self.0 {
            array.set_now(now_ms);
        }
    }

    /// `KnownAssignedTransactionIdsIdleMaintenance`: replay waits for WAL.
    pub fn idle(&mut self) {
        if let Layout::Array(array) = &mut self.0 {
            array.idle();
        }
    }

    /// `KnownAssignedXidsAdd`: appends `from` … `to`, both included. Record `lsn` is for messages.
    ///
    /// # Errors
    /// [`RecoveryError::OutOfOrderXid`] unless `from` follows the newest one; [`RecoveryError::TooManyKnownAssignedXids`] if
    /// they do not fit, even after compression.
    pub fn add(&mut self, from: Xid, to: Xid, lsn: Lsn) -> Result<(), RecoveryError> {
        debug_assert!(from.precedes_or_equals(to));
        each!(self, xids => xids.add(from, to, lsn))
    }

    /// `KnownAssignedXidsRemoveTree`: removes a transaction, if valid, and subtransactions. Absent ones are no error: they may have
    /// been removed by an assignment or never seen.
    pub fn remove_tree(&mut self, xid: Xid, subxids: &[Xid]) {
        each!(self, xids => xids.remove_tree(xid, subxids));
    }

    /// `KnownAssignedXidsRemovePreceding`: removes what is older than `limit`, sparing prepared transactions.
    pub fn prune(&mut self, limit: Xid, is_prepared: impl Fn(Xid) -> bool) {
        each!(self, xids => xids.prune(limit, is_prepared));
    }

    /// `KnownAssignedXidsReset`: removes all.
    pub fn reset(&mut self) {
        each!(self, xids => xids.reset());
    }
}

/// Ids from `from` to `to`, both included, in the circular order; the special ids are none.
fn xids_between(from: Xid, to: Xid) -> u64 {
    let (from, to) = (u64::from(from.numeric()), u64::from(to.numeric()));
    if to >= from { to - from + 1 } else { (1 << 32) - from + (to + 1 - u64::from(Xid::FIRST_NORMAL.numeric())) }
}

#[cfg(test)]
mod tests;
