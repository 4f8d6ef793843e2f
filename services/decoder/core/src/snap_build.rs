//! Finds the point from which WAL can be decoded, and the catalog snapshots from there on: `replication/logical/snapbuild.c`.
//!
//! Decoding a row needs the catalogs as they were then, so the decoder must know which catalog-changing transactions had
//! committed. It starts somewhere in WAL with transactions running that it has not seen from their begin. RUNNING_XACTS
//! records tell when all of those have ended.
//!
//! ```text
//!            nothing runs (a)
//!      ┌──────────────────────────────────────────────────────────────┐
//!   START ──first record (c)──► BUILDING ──all then running ended──► FULL ──all then running ended──► CONSISTENT
//!     │                         nothing is decoded                   changes of new transactions      commits are decoded
//!     └───────────────────────────── a snapshot was serialised there (b) ──────────────────────────────┘ serialises itself at each
//!                                                                                                        RUNNING_XACTS record
//! ```
//!
//! A decoder that begins again must not wait for that, so each RUNNING_XACTS record of a consistent one leaves a file
//! (`snap_build/on_disk.rs`, `snap_build/store.rs`); which of them to begin with is found out in `decode/standby.rs`. Beginning there, it
//! misses what running transactions did before. That their commits changed catalogs is told by the file (16 and later: those that
//! had changed some, `catchange`) or guessed from the record's list (up to 15: all that ran, `InitialRunningXacts`).
//!
//! Invariants: I1 the state never goes back; I2 `committed` holds the catalog-changing transactions that committed and are not
//! older than `xmin`, in the order of their commits or, kept sorted, in plain numeric order; I3 a transaction that began before FULL is
//! never decoded, a commit before CONSISTENT neither.
//!
//! | operation | cost |
//! |---|---|
//! | a commit without catalog changes | O(1) |
//! | a commit with them | O(1); kept sorted O(log c), and at most 256 moves; c = committed catalog changers |
//! | building a snapshot | O(c log c) comparisons and O(c) copies; kept sorted O(c / 256) pointers (`snap_build/committed.rs`) |
//! | RUNNING_XACTS | O(c) |
//!
//! Differences from PostgreSQL: no horizon below which records are skipped (rule 0), which only the creation of a slot has; PostgreSQL
//! waits for listed transactions with locks, this by reading on.

mod committed;
mod on_disk;
mod store;
mod waiting;

use pg_types::record::RunningXactsRecord;
use pg_types::{Lsn, Xid};

use crate::profile::CommittedOrder;
use crate::snap_build::committed::{Committed, CommittedXids};
pub(crate) use crate::snap_build::on_disk::SnapBuildOnDisk;
pub use crate::snap_build::store::{MemorySnapshots, SnapshotError, SnapshotFailure, SnapshotStore, snapshot_file_name};
use crate::snap_build::waiting::Waiting;

/// Room for committed xids at first; it grows to 2n + 1 (`AllocateSnapshotBuilder`).
const COMMITTED_ROOM: u64 = 128;

/// How far the builder is (`SnapBuildState`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SnapBuildState {
    /// No RUNNING_XACTS record seen.
    Start,
    /// Waiting for the transactions that ran at the first one to end.
    Building,
    /// Changes of transactions that began since are collected; waiting for those that began before.
    FullSnapshot,
    /// Every commit from here on is decoded.
    Consistent,
}

/// A catalog snapshot of the past (`SNAPSHOT_HISTORIC_MVCC`): what had committed between `xmin` and `xmax`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoricSnapshot {
    /// Everything before is visible.
    pub xmin: Xid,
    /// Nothing from here on is.
    pub xmax: Xid,
    /// Catalog changers in between that are, in plain numeric order.
    pub xip: Vec<Xid>,
}

/// What building snapshots took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapBuildCounts {
    /// Snapshots built.
    pub built: u64,
    /// Xids copied into them.
    pub copied: u64,
    /// Chunks of xids that they share instead.
    pub shared: u64,
    /// Xids compared to put them in order.
    pub compared: u64,
    /// Xids moved to make room for one in its place.
    pub moved: u64,
    /// Committed xids forgotten because no snapshot needs them any more.
    pub purged: u64,
    /// Builders written out.
    pub serialized: u64,
    /// Their bytes.
    pub serialized_bytes: u64,
}

/// The builder.
#[derive(Debug)]
pub(crate) struct SnapBuild {
    /// How far it is.
    state: SnapBuildState,
    /// Oldest xid whose commit may still matter.
    xmin: Xid,
    /// One past the newest committed catalog changer.
    xmax: Xid,
    /// Committed catalog changers (`committed.xip`).
    committed: Committed,
    /// Room in that array.
    committed_room: u64,
    /// No transaction without catalog changes has committed yet (`includes_all_transactions`).
    includes_all: bool,
    /// Running transactions that were not seen from their begin and may have changed catalogs, in plain numeric order: `catchange`, or
    /// `InitialRunningXacts`.
    unseen: Vec<Xid>,
    /// How committed ones are ordered.
    order: CommittedOrder,
    /// What was done so far.
    counts: SnapBuildCounts,
    /// The state advances when no older transaction runs (`next_phase_at`).
    next_phase_at: Xid,
    /// Commits whose record starts before this are skipped (`start_decoding_at`).
    start_decoding_at: Lsn,
    /// Where it was serialised last (`last_serialized_snapshot`).
    last_serialized: Lsn,
    /// Whom the state waits for.
    waiting: Waiting,
    /// The snapshot of now, built when somebody needs it.
    snapshot: Option<CommittedXids>,
    /// The `xmin` when PostgreSQL built that, which does not wait until somebody needs it; invalid if it has none yet.
    built_xmin: Xid,
}

impl SnapBuild {
    /// Knows nothing yet; commits before `start_decoding_at` are skipped in any case.
    pub(crate) fn new(start_decoding_at: Lsn, order: CommittedOrder) -> Self {
        Self {
            order,
            counts: SnapBuildCounts::default(),
            state: SnapBuildState::Start,
            xmin: Xid::INVALID,
            xmax: Xid::INVALID,
            committed: Committed::new(order),
            committed_room: COMMITTED_ROOM,
            includes_all: true,
            unseen: Vec::new(),
            next_phase_at: Xid::INVALID,
            start_decoding_at,
            last_serialized: Lsn::INVALID,
            waiting: Waiting::default(),
            snapshot: None,
            built_xmin: Xid::INVALID,
        }
    }

    /// Is consistent at once: for a decoder that was, at a position from which it had everything.
    pub(crate) fn resumed(start_decoding_at: Lsn, order: CommittedOrder) -> Self {
        Self { state: SnapBuildState::Consistent, ..Self::new(start_decoding_at, order) }
    }

    /// How far it is.
    pub(crate) fn state(&self) -> SnapBuildState {
        self.state
    }

    /// The oldest xid that matters to a snapshot of now.
    pub(crate) fn xmin(&self) -> Xid {
        self.xmin
    }

    /// The `xmin` of a base snapshot that is given out now: that of the last snapshot built, which lists of running transactions leave as it
    /// is.
    pub(crate) fn base_xmin(&mut self) -> Xid {
        if !self.built_xmin.is_valid() {
            self.built_xmin = self.xmin;
        }
        self.built_xmin
    }

    /// Committed catalog changers that a snapshot would hold.
    pub(crate) fn committed_len(&self) -> usize {
        self.committed.len()
    }

    /// What building snapshots took so far.
    pub(crate) fn counts(&self) -> SnapBuildCounts {
        self.counts
    }

    /// While it is not consistent: the xid that the oldest running transaction must reach.
    pub(crate) fn waits_for(&self) -> Option<Xid> {
        Some(self.next_phase_at).filter(|xid| xid.is_valid())
    }

    /// The transactions that it waits for, as far as they are known, oldest first.
    pub(crate) fn waiting(&self) -> &[Xid] {
        self.waiting.xids()
    }

    /// A transaction has ended, whoever may see it.
    pub(crate) fn ended(&mut self, xid: Xid) {
        self.waiting.ended(xid);
    }

    /// Where it was serialised last.
    pub(crate) fn last_serialized(&self) -> Lsn {
        self.last_serialized
    }

    /// `SnapBuildProcessChange`, the question in it: whether changes of this transaction are collected (I3).
    pub(crate) fn collects(&self, xid: Xid) -> bool {
        match self.state {
            SnapBuildState::Start | SnapBuildState::Building => false,
            SnapBuildState::FullSnapshot => !xid.precedes(self.next_phase_at),
            SnapBuildState::Consistent => true,
        }
    }

    /// `SnapBuildXactNeedsSkip`: whether a commit record that starts at `lsn` is too early.
    pub(crate) fn skips(&self, lsn: Lsn) -> bool {
        lsn < self.start_decoding_at
    }

    /// `SnapBuildCommitTxn`, its bookkeeping: `changers` are those of the transaction and its subtransactions that changed
    /// catalogs, `xid` the top-level one. Gives whether the catalogs changed.
    pub(crate) fn commit(&mut self, lsn: Lsn, xid: Xid, changers: &[Xid]) -> bool {
        if self.state < SnapBuildState::Consistent {
            self.start_decoding_at = self.start_decoding_at.max(Lsn(lsn.0.saturating_add(1)));
        }
        if changers.is_empty() {
            self.includes_all = false;
            return false;
        }
        changers.iter().for_each(|changer| self.add_committed(*changer));
        if !changers.contains(&xid) {
            self.add_committed(xid);
        }
        for changer in changers.iter().chain([&xid]) {
            if !self.xmax.is_valid() || changer.follows_or_equals(self.xmax) {
                self.xmax = changer.next();
            }
        }
        self.snapshot = None;
        if self.state >= SnapBuildState::FullSnapshot {
            self.built_xmin = self.xmin;
        }
        true
    }

    /// `SnapBuildAddCommittedTxn`.
    fn add_committed(&mut self, xid: Xid) {
        if self.committed_room == self.committed.len() as u64 {
            self.committed_room = self.committed_room.saturating_mul(2).saturating_add(1);
        }
        self.committed.add(xid, &mut self.counts);
    }

    /// Whether a transaction that began before what was read may have changed catalogs; asked of commits with messages.
    pub(crate) fn is_unseen_changer(&self, xid: Xid) -> bool {
        self.unseen.binary_search_by_key(&xid.numeric(), |unseen| unseen.numeric()).is_ok()
    }

    /// `SnapBuildSerialize`, what goes into the file: before the record at `lsn` is processed, with the running transactions that
    /// changed catalogs.
    pub(crate) fn serialize(&mut self, catchange: Vec<Xid>) -> SnapBuildOnDisk {
        SnapBuildOnDisk {
            state: self.state,
            xmin: self.xmin,
            xmax: self.xmax,
            start_decoding_at: self.start_decoding_at,
            two_phase_at: Lsn::INVALID,
            last_serialized: self.last_serialized,
            committed_room: self.committed_room,
            includes_all: self.includes_all,
            committed: self.committed.to_vec(),
            catchange,
        }
    }

    /// It is in a file of so many bytes, as it was at `lsn`.
    pub(crate) fn serialized(&mut self, lsn: Lsn, bytes: usize) {
        self.last_serialized = lsn;
        self.counts.serialized += 1;
        self.counts.serialized_bytes += bytes as u64;
    }

    /// Rule (a): nothing runs, so that no file is needed.
    pub(crate) fn is_consistent_without_file(running: &RunningXactsRecord) -> bool {
        running.oldest_running_xid == running.next_xid
    }

    /// `SnapBuildRestore`, rule (b): is as it was when the file was written, if it was consistent then. `running`: what the record
    /// lists, where that stands in for `catchange`.
    pub(crate) fn restore(&mut self, file: SnapBuildOnDisk, running: Option<&RunningXactsRecord>) -> bool {
        if file.state < SnapBuildState::Consistent {
            return false;
        }
        (self.state, self.next_phase_at) = (SnapBuildState::Consistent, Xid::INVALID);
        self.waiting.clear();
        (self.xmin, self.xmax) = (file.xmin, file.xmax);
        (self.committed, self.committed_room) = (Committed::of(self.order, file.committed), file.committed_room.max(1));
        self.unseen = file.catchange;
        if let Some(running) = running {
            self.unseen.extend(running.xids.iter().chain(&running.subxids));
            self.unseen.sort_unstable_by_key(|xid| xid.numeric());
        }
        (self.snapshot, self.built_xmin) = (None, self.xmin);
        true
    }

    /// `SnapBuildBuildSnapshot`, unless nothing changed since the last one.
    pub(crate) fn build(&mut self) {
        let (committed, counts) = (&self.committed, &mut self.counts);
        self.snapshot.get_or_insert_with(|| committed.snapshot(counts));
    }

    /// Catalogs changed since the last one.
    pub(crate) fn must_build(&self) -> bool {
        self.snapshot.is_none()
    }

    /// The same without building it: what a snapshot would be now.
    pub(crate) fn would_be(&self) -> HistoricSnapshot {
        let mut xip = self.committed.to_vec();
        xip.sort_unstable_by_key(|xid| xid.numeric());
        HistoricSnapshot { xmin: self.xmin, xmax: self.xmax, xip }
    }

    /// `SnapBuildProcessRunningXacts`: advances the state and, but for the first list, forgets what no snapshot needs any more.
    pub(crate) fn running_xacts(&mut self, lsn: Lsn, running: &RunningXactsRecord) {
        if self.state < SnapBuildState::Consistent && !self.find_snapshot(lsn, running) {
            return;
        }
        self.xmin = running.oldest_running_xid;
        self.purge_older();
    }

    /// `SnapBuildFindSnapshot`: rules (a) and (c). Gives whether there may be something to forget.
    fn find_snapshot(&mut self, lsn: Lsn, running: &RunningXactsRecord) -> bool {
        let ended = |boundary: Xid| boundary.precedes_or_equals(running.oldest_running_xid);
        if Self::is_consistent_without_file(running) {
            self.start_decoding_at = self.start_decoding_at.max(Lsn(lsn.0.saturating_add(1)));
            (self.xmin, self.xmax) = (running.next_xid, running.next_xid);
            (self.state, self.next_phase_at) = (SnapBuildState::Consistent, Xid::INVALID);
            self.waiting.clear();
            return false;
        }
        let first = self.state == SnapBuildState::Start;
        match self.state {
            SnapBuildState::Start => {
                (self.xmin, self.xmax) = (running.next_xid, running.next_xid);
                (self.state, self.next_phase_at) = (SnapBuildState::Building, running.next_xid);
            }
            SnapBuildState::Building if ended(self.next_phase_at) => {
                (self.state, self.next_phase_at) = (SnapBuildState::FullSnapshot, running.next_xid);
            }
            SnapBuildState::FullSnapshot if ended(self.next_phase_at) => {
                (self.state, self.next_phase_at) = (SnapBuildState::Consistent, Xid::INVALID);
            }
            _ => {}
        }
        self.waiting.take_list(self.next_phase_at, running);
        !first
    }

    /// `SnapBuildPurgeOlderTxn` (I2). The last snapshot stays as it is, until catalogs change.
    fn purge_older(&mut self) {
        let xmin = self.xmin;
        self.counts.purged += self.committed.retain(|xid| !xid.precedes(xmin)) as u64;
        self.unseen.retain(|xid| !xid.precedes(xmin));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn running(oldest: u32, next: u32) -> RunningXactsRecord {
        RunningXactsRecord { oldest_running_xid: Xid(oldest), next_xid: Xid(next), ..RunningXactsRecord::default() }
    }

    /// The last snapshot built, built if need be.
    fn snapshot(builder: &mut SnapBuild) -> HistoricSnapshot {
        builder.build();
        HistoricSnapshot { xmin: builder.xmin, xmax: builder.xmax, xip: builder.snapshot.as_ref().unwrap().to_vec() }
    }

    /// One that is consistent and knows nothing.
    fn consistent(order: CommittedOrder) -> SnapBuild {
        SnapBuild::resumed(Lsn(0), order)
    }

    #[test]
    fn rule_a_nothing_runs() {
        let mut builder = SnapBuild::new(Lsn(0), CommittedOrder::SortedEachTime);
        builder.running_xacts(Lsn(100), &running(700, 700));
        assert_eq!(builder.state(), SnapBuildState::Consistent);
        assert!(builder.skips(Lsn(100)) && !builder.skips(Lsn(101)));
    }

    #[test]
    fn lists_are_heeded_before_it_is_consistent_and_bases_keep_the_xmin_of_their_snapshot() {
        let mut builder = SnapBuild::new(Lsn(0), CommittedOrder::SortedEachTime);
        builder.running_xacts(Lsn(100), &running(690, 700));
        assert_eq!(builder.xmin(), Xid(700), "nothing could have built up before the first list");
        builder.running_xacts(Lsn(110), &running(700, 710));
        assert_eq!((builder.state(), builder.xmin()), (SnapBuildState::FullSnapshot, Xid(700)));
        assert!(builder.commit(Lsn(120), Xid(705), &[Xid(705)]));
        assert_eq!((builder.committed_len(), builder.base_xmin()), (1, Xid(700)));
        builder.running_xacts(Lsn(130), &running(706, 720));
        assert_eq!((builder.state(), builder.xmin()), (SnapBuildState::FullSnapshot, Xid(706)));
        assert_eq!((builder.committed_len(), builder.base_xmin()), (0, Xid(700)), "the snapshot of 705 is still the last");
        assert!(builder.commit(Lsn(140), Xid(715), &[Xid(715)]));
        assert_eq!(builder.base_xmin(), Xid(706));
    }

    #[test]
    fn rule_c_climbs_one_state_per_generation_of_transactions() {
        let mut builder = SnapBuild::new(Lsn(0), CommittedOrder::SortedEachTime);
        let steps = [
            (690, 700, SnapBuildState::Building),
            (695, 705, SnapBuildState::Building),
            (701, 710, SnapBuildState::FullSnapshot),
            (705, 720, SnapBuildState::FullSnapshot),
            (712, 730, SnapBuildState::Consistent),
        ];
        for (oldest, next, state) in steps {
            builder.running_xacts(Lsn(100), &running(oldest, next));
            assert_eq!(builder.state(), state, "I1");
            if state == SnapBuildState::FullSnapshot {
                assert!(!builder.collects(Xid(709)) && builder.collects(Xid(710)), "I3");
                assert_eq!(builder.waits_for(), Some(Xid(710)));
                builder.commit(Lsn(200), Xid(708), &[]);
            }
        }
        assert!(builder.skips(Lsn(200)) && !builder.skips(Lsn(201)), "I3");
    }

    #[test]
    fn i2_snapshots_hold_sorted_changers_from_xmin_on() {
        for order in [CommittedOrder::SortedEachTime, CommittedOrder::KeptSorted] {
            snapshots_hold_sorted_changers(consistent(order));
        }
    }

    fn snapshots_hold_sorted_changers(mut builder: SnapBuild) {
        assert!(!builder.commit(Lsn(1), Xid(50), &[]));
        assert!(builder.commit(Lsn(2), Xid(60), &[Xid(62)]), "a subtransaction's change counts for its parent");
        assert!(builder.commit(Lsn(3), Xid(55), &[Xid(55)]));
        let HistoricSnapshot { xip, xmax, .. } = snapshot(&mut builder);
        assert_eq!((xip, xmax), (vec![Xid(55), Xid(60), Xid(62)], Xid(63)));
        snapshot(&mut builder);
        assert_eq!(builder.counts().built, 1, "built once");
        builder.running_xacts(Lsn(4), &running(58, 70));
        assert_eq!(
            (builder.committed_len(), snapshot(&mut builder).xip.len()),
            (2, 3),
            "the last one is used until catalogs change"
        );
        assert!(builder.commit(Lsn(5), Xid(71), &[Xid(71)]));
        assert_eq!(snapshot(&mut builder).xip, [Xid(60), Xid(62), Xid(71)]);
    }

    /// A running transaction holds `xmin` back while others commit in order and take a snapshot each: sorting looks at all each time.
    #[test]
    fn kept_sorted_compares_less_and_moves_nothing_in_order() {
        let counts = |order, n: u32| {
            let mut builder = consistent(order);
            for xid in 0..n {
                builder.commit(Lsn(u64::from(xid)), Xid(1000 + xid), &[Xid(1000 + xid)]);
                assert_eq!(snapshot(&mut builder).xip.len(), xid as usize + 1);
            }
            builder.counts()
        };
        let (each, kept) = (counts(CommittedOrder::SortedEachTime, 256), counts(CommittedOrder::KeptSorted, 256));
        assert_eq!((each.built, each.copied, each.moved), (256, 256 * 257 / 2, 0));
        assert_eq!((kept.built, kept.copied, kept.shared, kept.moved), (256, 0, 256, 0));
        assert!(each.compared >= 255 * 256 / 2, "at least each neighbour, each time: {}", each.compared);
        assert!(kept.compared <= 256 * 9, "a binary search each: {}", kept.compared);
    }

    proptest! {
        #[test]
        fn both_orders_build_the_same_snapshots(steps in prop::collection::vec((3u32..400, prop::option::of(3u32..400)), 1..60)) {
            let [mut each, mut kept] = [CommittedOrder::SortedEachTime, CommittedOrder::KeptSorted]
                .map(consistent);
            for (i, (xid, oldest)) in steps.into_iter().enumerate() {
                for builder in [&mut each, &mut kept] {
                    builder.commit(Lsn(i as u64), Xid(xid), &[Xid(xid)]);
                    if let Some(oldest) = oldest {
                        builder.running_xacts(Lsn(i as u64), &running(oldest, 500));
                    }
                }
                let (snapshot, other) = (snapshot(&mut each), snapshot(&mut kept));
                prop_assert_eq!(&snapshot, &other);
                prop_assert!(snapshot.xip.is_sorted_by_key(|xid| xid.numeric()));
            }
        }
    }
}
