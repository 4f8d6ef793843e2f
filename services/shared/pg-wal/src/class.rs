//! What a record is about, by its header alone: for those who pass records on and look into a few.

use crate::record::{RawRecord, RecordHeader};
use crate::rmgr::{self, heap, standby, xact};

/// `XLOG_HEAP2_NEW_CID`, the same in all versions.
const HEAP2_NEW_CID: u8 = 0x70;

/// A coarse class of records. Decoding tells everything; this tells whether decoding is worth while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordClass {
    /// A transaction, perhaps a prepared one, commits.
    Commit,
    /// A transaction or subtransaction, perhaps a prepared one, is rolled back.
    Abort,
    /// A catalog row changed in a transaction that will be decoded.
    NewCid,
    /// A message of an application.
    LogicalMessage,
    /// Invalidation messages outside a commit, or what stands for one (a new relation map). Few versions and operations have
    /// some in every such record: the decoded record tells.
    Invalidations,
    /// The list of running transactions.
    RunningXacts,
    /// Anything else.
    Other,
}

impl RecordClass {
    /// Whether such a record can tell the owner of a cache something, now or at the commit of its transaction.
    #[must_use]
    pub fn concerns_caches(self) -> bool {
        !matches!(self, Self::Other | Self::RunningXacts)
    }
}

impl RecordHeader {
    /// What the record is about.
    #[must_use]
    #[inline]
    pub fn class(&self) -> RecordClass {
        match self.rmid {
            rmgr::RM_XACT => match self.info & xact::OPMASK {
                xact::COMMIT | xact::COMMIT_PREPARED => RecordClass::Commit,
                xact::ABORT | xact::ABORT_PREPARED => RecordClass::Abort,
                xact::INVALIDATIONS => RecordClass::Invalidations,
                _ => RecordClass::Other,
            },
            rmgr::RM_HEAP2 if self.info & heap::OPMASK == HEAP2_NEW_CID => RecordClass::NewCid,
            rmgr::RM_HEAP if self.info & heap::OPMASK == heap::INPLACE => RecordClass::Invalidations,
            rmgr::RM_STANDBY if self.operation() == standby::INVALIDATIONS => RecordClass::Invalidations,
            rmgr::RM_STANDBY if self.operation() == standby::RUNNING_XACTS => RecordClass::RunningXacts,
            rmgr::RM_RELMAP => RecordClass::Invalidations,
            rmgr::RM_LOGICALMSG => RecordClass::LogicalMessage,
            _ => RecordClass::Other,
        }
    }
}

impl RawRecord<'_> {
    /// What the record is about.
    #[must_use]
    #[inline]
    pub fn class(&self) -> RecordClass {
        self.header.class()
    }
}
