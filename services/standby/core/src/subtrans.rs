//! `pg_subtrans` on a standby (`access/transam/subtrans.c`): the parent of each subtransaction that replay knows one of.
//!
//! A standby drops assigned subtransactions from the known-assigned xids, and readers find them through their top-level
//! transaction. Replay sets a parent at each assignment record (`ProcArrayApplyXidAssignment`) and, for prepared transactions, at
//! a shutdown checkpoint (`StandbyRecoverPreparedTransactions`); always the top-level one, so that readers make one step.
//!
//! **Invariants**
//! - T1 a parent precedes its child.
//! - T2 a parent is set once, or set again to the same; so readers of an older state may see it early, which changes no answer:
//!   if a subtransaction ran then, so did its top-level transaction.
//! - T3 what replay cuts off goes when the last state that has it does.
//!
//! | operation | cost |
//! |---|---|
//! | set a parent | O(log pages); the first of a page copies the list of pages |
//! | parent of | O(log pages); what a server pays beside that, [`crate::slru::SlruBuffers`] counts |
//!
//! **Differences from PostgreSQL.** Pages without any parent are not kept; cut off are pages before the oldest running xid, at each
//! running-transactions record and not at restart points only, because nobody can need them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use pg_types::{Lsn, Xid};

use crate::error::RecoveryError;
use crate::sync::{AtomicU32, Ordering};

/// `SUBTRANS_XACTS_PER_PAGE`: parents on a page of 8 kB.
pub const SUBTRANS_XACTS_PER_PAGE: u32 = 2048;

/// Pages with parents that are kept at most, half a gigabyte: a server has a disk for them.
pub const SUBTRANS_PAGES_MAX: usize = 65_536;

/// The page of an xid.
#[must_use]
pub fn page_of(xid: Xid) -> u32 {
    xid.numeric() / SUBTRANS_XACTS_PER_PAGE
}

/// Parents by xid, 0 where there is none.
struct Page([AtomicU32; SUBTRANS_XACTS_PER_PAGE as usize]);

impl Page {
    /// Where the parent of an xid of this page stands.
    fn entry(&self, xid: Xid) -> &AtomicU32 {
        &self.0[(xid.numeric() % SUBTRANS_XACTS_PER_PAGE) as usize]
    }
}

/// The known parents: the writer's, or those of a published state. Cloning costs one reference count.
#[derive(Clone, Default)]
pub struct Subtrans {
    /// Pages by number.
    pages: Arc<BTreeMap<u32, Arc<Page>>>,
}

impl fmt::Debug for Subtrans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subtrans").field("pages", &self.pages.len()).finish()
    }
}

impl Subtrans {
    /// `SubTransGetParent`: [`Xid::INVALID`] if none is known.
    #[must_use]
    pub fn parent(&self, xid: Xid) -> Xid {
        self.pages.get(&page_of(xid)).map_or(Xid::INVALID, |page| Xid(page.entry(xid).load(Ordering::Relaxed)))
    }

    /// Pages kept.
    #[must_use]
    pub fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// `SubTransSetParent`.
    ///
    /// # Errors
    /// [`RecoveryError::MalformedRecord`] if the parent is not older (T1); [`RecoveryError::TooManySubtransPages`].
    pub(crate) fn set_parent(&mut self, xid: Xid, parent: Xid, lsn: Lsn) -> Result<(), RecoveryError> {
        if !xid.is_normal() || !parent.is_normal() || !parent.precedes(xid) {
            return Err(RecoveryError::MalformedRecord {
                lsn,
                what: "a subtransaction that is not newer than its top-level one",
            });
        }
        let page = page_of(xid);
        if !self.pages.contains_key(&page) {
            if self.pages.len() == SUBTRANS_PAGES_MAX {
                return Err(RecoveryError::TooManySubtransPages { lsn, max: SUBTRANS_PAGES_MAX });
            }
            let empty = Page(std::array::from_fn(|_| AtomicU32::new(0)));
            Arc::make_mut(&mut self.pages).insert(page, Arc::new(empty));
        }
        if let Some(page) = self.pages.get(&page) {
            page.entry(xid).store(parent.numeric(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// `TruncateSUBTRANS`: drops the pages whose xids all precede `oldest`.
    pub(crate) fn truncate(&mut self, oldest: Xid) {
        let gone = |page: u32| Xid(page * SUBTRANS_XACTS_PER_PAGE + (SUBTRANS_XACTS_PER_PAGE - 1)).precedes(oldest);
        if self.pages.keys().any(|&page| gone(page)) {
            Arc::make_mut(&mut self.pages).retain(|&page, _| !gone(page));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t2_states_that_share_pages_see_the_same_parents() {
        let mut subtrans = Subtrans::default();
        subtrans.set_parent(Xid(2047), Xid(2040), Lsn(1)).unwrap();
        let old = subtrans.clone();
        subtrans.set_parent(Xid(2046), Xid(2040), Lsn(1)).unwrap();
        subtrans.set_parent(Xid(2048), Xid(2040), Lsn(1)).unwrap();
        assert_eq!((old.parent(Xid(2046)), old.parent(Xid(2047))), (Xid(2040), Xid(2040)));
        assert_eq!((old.parent(Xid(2048)), subtrans.parent(Xid(2048))), (Xid::INVALID, Xid(2040)));
        assert_eq!(subtrans.parent(Xid(2045)), Xid::INVALID);
    }

    #[test]
    fn t3_pages_go_once_all_of_their_xids_are_old_also_across_the_wraparound() {
        let mut subtrans = Subtrans::default();
        let top = Xid(u32::MAX - 5000);
        for xid in [Xid(u32::MAX - 4000), Xid(u32::MAX), Xid(3), Xid(2050)] {
            subtrans.set_parent(xid, top, Lsn(1)).unwrap();
        }
        let before = subtrans.clone();
        for (oldest, pages) in [(Xid(u32::MAX), 3), (Xid(3), 2), (Xid(2047), 2), (Xid(2048), 1), (Xid(4096), 0)] {
            subtrans.truncate(oldest);
            assert_eq!(subtrans.page_count(), pages, "{oldest}");
        }
        assert_eq!((before.page_count(), before.parent(Xid(3))), (4, top), "an older state keeps what it has");
    }

    #[test]
    fn t1_and_the_bound_are_errors_that_name_the_record() {
        let mut subtrans = Subtrans::default();
        for (xid, parent) in [(100, 100), (100, 101), (2, 100), (100, 0)] {
            let err = subtrans.set_parent(Xid(xid), Xid(parent), Lsn(7)).unwrap_err();
            assert!(matches!(err, RecoveryError::MalformedRecord { lsn: Lsn(7), .. }), "{err}");
        }
        let page = Arc::new(Page(std::array::from_fn(|_| AtomicU32::new(0))));
        subtrans.pages = Arc::new((0..SUBTRANS_PAGES_MAX as u32).map(|n| (n, Arc::clone(&page))).collect());
        subtrans.set_parent(Xid(100), Xid(99), Lsn(7)).unwrap();
        let err = subtrans.set_parent(Xid(SUBTRANS_PAGES_MAX as u32 * SUBTRANS_XACTS_PER_PAGE), Xid(99), Lsn(8));
        assert_eq!(err, Err(RecoveryError::TooManySubtransPages { lsn: Lsn(8), max: SUBTRANS_PAGES_MAX }));
    }
}
