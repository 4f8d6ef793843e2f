//! What the primary wrote, counted, per actor: what expectations of a scenario compare.

use std::ops::AddAssign;

use pg_types::record::PruneReason;
use pg_types::{CommandId, InvalidationKind, InvalidationMessage, Lsn, PgVersion, RecordBody, Xid};

use super::truth::{RunSummary, TransactionEnd, TransactionTruth};
use crate::sink::{Placed, SinkError, WalSink};

/// The counters with their names, once.
macro_rules! tally {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts of what was written, of an actor or of the whole run. They add up, but for those that say "most".
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Tally {
            $($(#[$doc])* pub $name: u64,)*
            /// The last command id of a NEW_CID record of the running transaction, to count different ones.
            last_new_cid: Option<CommandId>,
        }

        impl Tally {
            /// The names.
            pub const KEYS: &'static [&'static str] = &[$(stringify!($name)),*];

            /// Adds every counter.
            fn add(&mut self, other: &Tally) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
            }

            /// A counter by its name.
            #[must_use]
            pub fn get(&self, name: &str) -> Option<u64> {
                match name {
                    $(stringify!($name) => Some(self.$name),)*
                    _ => None,
                }
            }
        }
    };
}

tally! {
    /// Transactions that ended, those without an xid too.
    transactions,
    /// Transactions that committed with a record.
    committed,
    /// Transactions that rolled back.
    rolled_back,
    /// Records.
    records,
    /// Messages in commit records.
    messages,
    /// Catcache messages in commit records.
    catcache_messages,
    /// Relcache messages in commit records.
    relcache_messages,
    /// Snapshot messages in commit records.
    snapshot_messages,
    /// Most messages in one commit record.
    most_messages,
    /// Messages in records of single commands (14 and later).
    command_messages,
    /// Records with the messages of a command (14 and later).
    command_records,
    /// Times that command ids rose.
    commands,
    /// NEW_CID records.
    new_cids,
    /// Different command ids in the NEW_CID records of a transaction, in a row: increases as a decoder up to 13 sees them.
    new_cid_commands,
    /// Committed subtransactions.
    subtransactions,
    /// Records that assign subtransactions to their transaction.
    assignments,
    /// Subtransactions in those.
    assigned,
    /// Records of running transactions.
    running_xacts,
    /// Those that overflowed.
    running_xacts_overflowed,
    /// Most transactions (with subtransactions) in one of them.
    most_running,
    /// Most xids between the oldest running and the next one in one of them.
    most_running_span,
    /// Checkpoints.
    checkpoints,
    /// Logical messages.
    logical_messages,
    /// Rows inserted into user tables, with those of COPY.
    rows_inserted,
    /// Rows updated in user tables.
    rows_updated,
    /// Rows deleted from user tables.
    rows_deleted,
    /// TRUNCATE records.
    truncates,
    /// Relations in those.
    relations_truncated,
    /// Transactions that were prepared.
    prepared,
    /// Records of AccessExclusive locks.
    lock_records,
    /// Snapshots that readers on a standby were to take.
    reader_snapshots,
    /// Sessions that connected.
    connections,
    /// Versions of catalog rows written: by inserts and by updates.
    catalog_rows_made,
    /// Versions of catalog rows that were deleted, or replaced by updates.
    catalog_rows_dead,
    /// Rows that VACUUM and pruning removed.
    rows_removed,
    /// Crashes of the server.
    crashes,
    /// Restarts of the server in order.
    restarts,
    /// Simulated microseconds in which the log's disk had no room.
    out_of_room_us,
    /// Transactions with an xid that were open at a crash.
    vanished,
    /// Most bytes of WAL that a consumer of the scenario kept at a barrier.
    most_kept_bytes,
}

/// First object id of users: rows of tables below are catalog rows.
const FIRST_NORMAL_OBJECT_ID: u32 = 16_384;

impl AddAssign<&Tally> for Tally {
    fn add_assign(&mut self, other: &Tally) {
        let most = (
            self.most_messages.max(other.most_messages),
            self.most_running.max(other.most_running),
            self.most_running_span.max(other.most_running_span),
            self.most_kept_bytes.max(other.most_kept_bytes),
        );
        self.add(other);
        (self.most_messages, self.most_running, self.most_running_span, self.most_kept_bytes) = most;
    }
}

impl Tally {
    /// Counts a record.
    pub(super) fn record(&mut self, body: &RecordBody) {
        self.records += 1;
        match body {
            RecordBody::Commit(r) => self.commit(&r.messages),
            RecordBody::XactInvalidations(messages) => {
                self.command_records += 1;
                self.command_messages += messages.len() as u64;
            }
            RecordBody::NewCid(r) => {
                self.new_cids += 1;
                self.catalog_rows_made += u64::from(r.cmin.is_valid() && !r.cmax.is_valid());
                self.catalog_rows_dead += u64::from(r.cmax.is_valid());
                let command = [r.cmin, r.cmax].into_iter().filter(|cid| cid.is_valid()).max();
                if command != self.last_new_cid {
                    self.new_cid_commands += 1;
                    self.last_new_cid = command;
                }
            }
            RecordBody::Assignment(r) => {
                self.assignments += 1;
                self.assigned += r.subxids.len() as u64;
            }
            RecordBody::RunningXacts(r) => {
                self.running_xacts += 1;
                self.running_xacts_overflowed += u64::from(r.subxid_overflow);
                self.most_running = self.most_running.max(r.xids.len() as u64);
                let span = u64::from(r.next_xid.0.wrapping_sub(r.oldest_running_xid.0));
                self.most_running_span = self.most_running_span.max(span);
            }
            RecordBody::Checkpoint(_) => self.checkpoints += 1,
            RecordBody::LogicalMessage(_) => self.logical_messages += 1,
            RecordBody::Insert(r) if r.target.rel >= FIRST_NORMAL_OBJECT_ID && r.logical => self.rows_inserted += 1,
            RecordBody::MultiInsert(r) if r.target.rel >= FIRST_NORMAL_OBJECT_ID && r.logical => {
                self.rows_inserted += u64::from(r.ntuples);
            }
            RecordBody::Update(r) if r.target.rel >= FIRST_NORMAL_OBJECT_ID && r.logical => self.rows_updated += 1,
            RecordBody::Delete(r) if r.target.rel >= FIRST_NORMAL_OBJECT_ID => self.rows_deleted += 1,
            RecordBody::Truncate(r) => {
                self.truncates += 1;
                self.relations_truncated += r.relids.len() as u64;
            }
            RecordBody::Prepare(_) => self.prepared += 1,
            RecordBody::StandbyLocks(_) => self.lock_records += 1,
            // The second pass frees line pointers of rows that the first one removed.
            RecordBody::Prune(r) if r.reason != PruneReason::VacuumCleanup => {
                self.rows_removed += u64::from(r.dead) + u64::from(r.unused);
            }
            _ => {}
        }
    }

    /// Counts the messages of a commit record.
    fn commit(&mut self, messages: &[InvalidationMessage]) {
        let of = |kind| messages.iter().filter(|message| message.kind() == kind).count() as u64;
        self.messages += messages.len() as u64;
        self.most_messages = self.most_messages.max(messages.len() as u64);
        self.catcache_messages += of(InvalidationKind::Catcache);
        self.relcache_messages += of(InvalidationKind::Relcache);
        self.snapshot_messages += of(InvalidationKind::Snapshot);
    }

    /// Counts a transaction that ended, or was prepared.
    pub(super) fn ended(&mut self, truth: &TransactionTruth) {
        match truth.end {
            TransactionEnd::Prepare => {}
            TransactionEnd::Commit | TransactionEnd::CommitPrepared => {
                self.transactions += 1;
                self.committed += u64::from(truth.lsn.is_valid());
                self.subtransactions += truth.subxids as u64;
            }
            TransactionEnd::Rollback | TransactionEnd::RollbackPrepared => {
                self.transactions += 1;
                self.rolled_back += 1;
            }
        }
        self.commands += u64::from(truth.commands);
        self.last_new_cid = None;
    }
}

/// Where what a session writes is counted.
pub(super) struct Counts<'a> {
    /// All.
    pub(super) summary: &'a mut RunSummary,
    /// Its actor's.
    pub(super) tally: &'a mut Tally,
}

impl<'a> Counts<'a> {
    /// Counts what passes to `inner`.
    pub(super) fn of(self, inner: &'a mut dyn WalSink) -> CountingSink<'a> {
        CountingSink { inner, summary: self.summary, tally: self.tally }
    }
}

/// Counts what passes.
pub(super) struct CountingSink<'a> {
    /// The log.
    pub(super) inner: &'a mut dyn WalSink,
    /// The counts.
    pub(super) summary: &'a mut RunSummary,
    /// Those of the actor, or of what the server does on its own.
    pub(super) tally: &'a mut Tally,
}

impl WalSink for CountingSink<'_> {
    fn version(&self) -> PgVersion {
        self.inner.version()
    }

    fn next_lsn(&self) -> Lsn {
        self.inner.next_lsn()
    }

    fn append(&mut self, xid: Xid, top_xid: Xid, origin: u16, body: &RecordBody) -> Result<Placed, SinkError> {
        let placed = self.inner.append(xid, top_xid, origin, body)?;
        if self.summary.records == 0 {
            self.summary.start_lsn = placed.start;
        }
        self.summary.records += 1;
        self.summary.end_lsn = placed.end;
        self.tally.record(body);
        Ok(placed)
    }
}
