//! When a backend keeps its catalog snapshot: `GetNonHistoricCatalogSnapshot` and `InvalidateCatalogSnapshot` of `utils/time/snapmgr.c`.
//!
//! Since 2013 catalogs are read with MVCC snapshots. To take one per scan costs a busy server three to four percent of its
//! throughput, so a backend keeps its catalog snapshot until a message says that a catalog changed. That works as long as each
//! change sends one, which is why there are exceptions:
//!
//! - a catalog without syscache sends no catcache messages; a few of those send snapshot messages (`snapshots only`), the others
//!   are read with a new snapshot each time;
//! - who decodes reads with the historic snapshot of the transaction at hand, and neither takes nor reuses one.
//!
//! ```text
//!   scan ─┬─ historic snapshot active ─► that one
//!         └─ else: catalog sends no messages? drop ─► kept? reuse : take
//!   catcache, catalog or snapshot message, transaction's end, reset … ─► drop
//! ```
//!
//! **Invariants**
//! - S1 there is a snapshot, or the reason why there is none; the first reason stays.
//! - S2 no snapshot outlives a message that says that a catalog changed.
//! - S3 taken + reused + historic are the scans that were asked for.
//!
//! | operation | cost |
//! |---|---|
//! | scan | O(log catalogs), and a snapshot or none |
//! | message | O(1) |
//!
//! **Differences from PostgreSQL.** None known; what a snapshot is, its owner decides.

use crate::invalidation::InvalidationMessage;
use crate::oid::Oid;
use crate::syscache_id::{SysCacheTable, catalog};

/// When a catalog snapshot is kept: a row for each behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatalogSnapshotRule {
    /// A snapshot is used for more than one scan.
    pub reuse: bool,
    /// It is for catalogs that send snapshot messages, too.
    pub snapshots_only: bool,
    /// It is dropped when the database becomes known.
    pub dropped_at_connect: bool,
}

impl CatalogSnapshotRule {
    /// As released.
    pub const TODAY: Self = Self { reuse: true, snapshots_only: true, dropped_at_connect: true };
    /// The patch of the message of June 2013.
    pub const MAIL_2013: Self = Self { reuse: true, snapshots_only: false, dropped_at_connect: false };
    /// Today's without the drop at connect: what it costs, and what it saves from.
    pub const KEPT_AT_CONNECT: Self = Self { dropped_at_connect: false, ..Self::TODAY };
    /// One for each scan, as before the patch.
    pub const ALWAYS_NEW: Self = Self { reuse: false, ..Self::TODAY };

    /// Whether messages say that `relation` changed (`RelationHasSysCache`, `RelationInvalidatesSnapshotsOnly`).
    fn hears_of(self, relation: Oid, syscaches: &SysCacheTable) -> bool {
        let snapshots_only = self.snapshots_only && catalog::invalidates_snapshots_only(relation);
        snapshots_only || !syscaches.caches_on(relation).is_empty()
    }
}

/// Why a catalog snapshot was dropped, or why there was none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// None was taken yet.
    First,
    /// A catcache or catalog message (`SysCacheInvalidate`).
    CatalogChanged,
    /// A snapshot message.
    SnapshotMessage,
    /// Messages were lost (`InvalidateSystemCaches`).
    QueueReset,
    /// The database became known (`InitPostgres`).
    Connected,
    /// A transaction snapshot was taken (`GetTransactionSnapshot`).
    TransactionSnapshot,
    /// The transaction ended (`AtEOXact_Snapshot`).
    TransactionEnd,
    /// The session waits for a command (`InvalidateCatalogSnapshotConditionally`).
    Idle,
    /// The catalog sends no messages that would say when it changed.
    NoMessages,
    /// The rule takes one for each scan.
    AlwaysNew,
}

impl DropReason {
    /// All of them, in their order.
    pub const ALL: [DropReason; 10] = [
        Self::First,
        Self::CatalogChanged,
        Self::SnapshotMessage,
        Self::QueueReset,
        Self::Connected,
        Self::TransactionSnapshot,
        Self::TransactionEnd,
        Self::Idle,
        Self::NoMessages,
        Self::AlwaysNew,
    ];
}

/// What scans came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatalogSnapshotCounts {
    /// Snapshots taken.
    pub taken: u64,
    /// Scans with one that had been taken before.
    pub reused: u64,
    /// Scans with a historic one.
    pub historic: u64,
    /// Snapshots dropped, by reason.
    dropped: [u64; DropReason::ALL.len()],
}

impl CatalogSnapshotCounts {
    /// Snapshots dropped for a reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }
}

/// A backend's catalog snapshot, if it has one.
#[derive(Clone, Debug)]
pub struct CatalogSnapshot<S> {
    /// When it is kept.
    rule: CatalogSnapshotRule,
    /// It, or why there is none (S1).
    snapshot: Result<S, DropReason>,
    /// What was done so far.
    counts: CatalogSnapshotCounts,
}

impl<S> CatalogSnapshot<S> {
    /// None yet.
    #[must_use]
    pub fn new(rule: CatalogSnapshotRule) -> Self {
        Self { rule, snapshot: Err(DropReason::First), counts: CatalogSnapshotCounts::default() }
    }

    /// When it is kept.
    #[must_use]
    pub fn rule(&self) -> CatalogSnapshotRule {
        self.rule
    }

    /// The snapshot.
    #[must_use]
    pub fn get(&self) -> Option<&S> {
        self.snapshot.as_ref().ok()
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> &CatalogSnapshotCounts {
        &self.counts
    }

    /// `InvalidateCatalogSnapshot`.
    pub fn invalidate(&mut self, reason: DropReason) {
        if self.snapshot.is_ok() {
            self.snapshot = Err(reason);
            self.counts.dropped[reason as usize] += 1;
        }
    }

    /// What `LocalExecuteInvalidationMessage` does to it (S2); the message must concern the backend's database. Relcache messages do
    /// nothing: what changes a relation changes a catalog, too.
    pub fn execute(&mut self, message: &InvalidationMessage) {
        match message {
            InvalidationMessage::Catcache { .. } | InvalidationMessage::Catalog { .. } => {
                self.invalidate(DropReason::CatalogChanged);
            }
            InvalidationMessage::Snapshot { .. } => self.invalidate(DropReason::SnapshotMessage),
            InvalidationMessage::Relcache { .. }
            | InvalidationMessage::Smgr { .. }
            | InvalidationMessage::Relmap { .. }
            | InvalidationMessage::Relsync { .. } => {}
        }
    }

    /// `GetNonHistoricCatalogSnapshot` for so many scans of `relation` that share what they get, of which there is one at least; `take`
    /// takes a snapshot. Gives how many were taken, and why if any: a rule without reuse takes one for each.
    ///
    /// # Errors
    /// Those of `take`.
    pub fn scan<E>(
        &mut self,
        relation: Oid,
        scans: u32,
        syscaches: &SysCacheTable,
        mut take: impl FnMut() -> Result<S, E>,
    ) -> Result<(u32, Option<DropReason>), E> {
        if !self.rule.reuse {
            self.invalidate(DropReason::AlwaysNew);
        } else if !self.rule.hears_of(relation, syscaches) {
            self.invalidate(DropReason::NoMessages);
        }
        let reason = self.snapshot.as_ref().err().copied();
        let mut taken = 0;
        if reason.is_some() {
            taken = if self.rule.reuse { 1 } else { scans };
            for _ in 0..taken {
                self.snapshot = Ok(take()?);
            }
        }
        self.counts.taken += u64::from(taken);
        self.counts.reused += u64::from(scans - taken);
        Ok((taken, reason))
    }

    /// `GetCatalogSnapshot` while a historic snapshot is active, for so many scans.
    pub fn scan_historic(&mut self, scans: u64) {
        self.counts.historic += scans;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;
    use crate::version::PgVersion;

    /// Catalogs with syscache, with snapshot messages alone, with neither.
    const CATALOGS: [Oid; 3] = [catalog::CLASS, catalog::DEPEND, catalog::INHERITS];

    proptest! {
        /// A naive model: a snapshot may be used while its number is that of the last change that it could have heard of.
        #[test]
        fn s1_to_s3_against_a_naive_model(steps in prop::collection::vec((0u8..8, 0usize..3, 1u32..4), 1..100)) {
            for rule in [CatalogSnapshotRule::TODAY, CatalogSnapshotRule::MAIL_2013, CatalogSnapshotRule::ALWAYS_NEW] {
                let mut snapshot = CatalogSnapshot::new(rule);
                let (mut now, mut kept, mut taken, mut asked) = (0u32, None, 0, 0);
                for (what, on, scans) in &steps {
                    match what {
                        0..=3 => {
                            let heard = *on == 0 || *on == 1 && rule.snapshots_only;
                            let fresh = !rule.reuse || !heard || kept.is_none();
                            let want = if !fresh { 0 } else if rule.reuse { 1 } else { *scans };
                            let done = snapshot.scan(CATALOGS[*on], *scans, SysCacheTable::of(PgVersion::V18), || Ok::<_, Infallible>(now));
                            let (took, why) = done.unwrap();
                            prop_assert_eq!((took, why.is_some()), (want, fresh), "{:?}", rule);
                            if fresh { kept = Some(now) }
                            (taken, asked) = (taken + u64::from(want), asked + u64::from(*scans));
                        }
                        4 => {
                            snapshot.scan_historic(u64::from(*scans));
                            asked += u64::from(*scans);
                        }
                        5 => snapshot.execute(&InvalidationMessage::Relcache { db: Oid(5), rel: Oid(1) }),
                        6 => {
                            (now, kept) = (now + 1, None);
                            snapshot.execute(&[
                                InvalidationMessage::Catcache { db: Oid(5), cache_id: 0, hash: 0 },
                                InvalidationMessage::Catalog { db: Oid(5), catalog: catalog::CLASS },
                                InvalidationMessage::Snapshot { db: Oid(5), rel: catalog::DEPEND },
                            ][*on]);
                        }
                        _ => {
                            kept = None;
                            snapshot.invalidate(DropReason::ALL[*on]);
                        }
                    }
                    prop_assert_eq!(snapshot.get(), kept.as_ref(), "S2 {:?}", rule);
                }
                let counts = snapshot.counts();
                prop_assert_eq!((counts.taken, counts.taken + counts.reused + counts.historic), (taken, asked), "S3");
            }
        }
    }

    #[test]
    fn drops_are_counted_by_reason_and_the_first_one_stays() {
        let mut snapshot = CatalogSnapshot::new(CatalogSnapshotRule::TODAY);
        let scan = |snapshot: &mut CatalogSnapshot<()>, relation| {
            snapshot.scan(relation, 1, SysCacheTable::of(PgVersion::V18), || Ok::<(), Infallible>(())).unwrap().1
        };
        assert_eq!(scan(&mut snapshot, catalog::CLASS), Some(DropReason::First));
        snapshot.invalidate(DropReason::Idle);
        snapshot.invalidate(DropReason::TransactionEnd);
        assert_eq!(scan(&mut snapshot, catalog::CLASS), Some(DropReason::Idle));
        assert_eq!(scan(&mut snapshot, catalog::DEPEND), None);
        assert_eq!(scan(&mut snapshot, catalog::INHERITS), Some(DropReason::NoMessages));
        let dropped = DropReason::ALL.map(|reason| snapshot.counts().dropped(reason));
        assert_eq!(dropped, [0, 0, 0, 0, 0, 0, 0, 1, 1, 0]);
        assert!(DropReason::ALL.iter().enumerate().all(|(at, reason)| *reason as usize == at));
    }
}
