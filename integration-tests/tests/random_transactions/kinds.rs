//! Which kinds of things happened in random histories, told by what was logged and what the server says that it did.

use std::collections::{BTreeMap, BTreeSet};

use pg_types::{Oid, RecordBody};
use primary_core::TransactionEnd;

use super::Run;

/// What must happen at least once in all histories together.
const WANTED: [&str; 36] = [
    "AccessExclusive lock",
    "ANALYZE",
    "checkpoint",
    "COMMIT PREPARED",
    "COPY",
    "crash",
    "CREATE INDEX",
    "CREATE TABLE",
    "DROP TABLE",
    "DROP TABLE, then another of that name",
    "message in a transaction",
    "message outside of one",
    "ON CONFLICT",
    "origin",
    "overflow",
    "partition that comes or goes",
    "PREPARE with messages",
    "restart",
    "rewrite",
    "ROLLBACK PREPARED",
    "ROLLBACK",
    "row lock",
    "rows of partitions",
    "savepoint rolled back",
    "session that came again",
    "subtransactions that committed",
    "temporary table dropped at commit",
    "temporary table dropped at the session's end",
    "temporary table",
    "TRUNCATE of several",
    "TRUNCATE of what was made here",
    "TRUNCATE",
    "VACUUM that froze",
    "VACUUM",
    "value outside of its row",
    "xid wrapped",
];

/// How often each happened.
#[derive(Debug, Default)]
pub(super) struct Kinds(BTreeMap<&'static str, u64>);

impl Kinds {
    /// Adds what happened in a run.
    pub(super) fn count(&mut self, run: &Run) {
        self.add("temporary table", run.known.temporary.len() as u64);
        self.add("temporary table dropped at commit", run.known.dropped_at_commit.len() as u64);
        self.add("session that came again", run.summary.connections.saturating_sub(run.sessions));
        self.add("crash", run.summary.crashes);
        self.add("restart", run.summary.restarts);
        for record in &run.records {
            self.add("origin", u64::from(record.origin > 0));
            self.add("xid wrapped", u64::from(record.xid.0 == 3));
            self.record(&record.body, run);
        }
        let truncating: BTreeSet<u32> = xids(run, |body| matches!(body, RecordBody::Truncate(_)));
        let cutting = xids(run, |body| matches!(body, RecordBody::SmgrTruncate { blocks: 0, .. }));
        self.add("TRUNCATE of what was made here", truncating.intersection(&cutting).count() as u64);
        for truth in &run.truths {
            self.end(truth.end, truth.subxids as u64);
            self.did(&truth.did);
        }
    }

    /// What never happened.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        WANTED.into_iter().filter(|kind| self.0.get(kind).is_none_or(|count| *count == 0)).collect()
    }

    /// So many more.
    fn add(&mut self, kind: &'static str, count: u64) {
        assert!(WANTED.contains(&kind), "'{kind}' is not among those that are wanted");
        *self.0.entry(kind).or_default() += count;
    }

    /// What a record tells.
    fn record(&mut self, body: &RecordBody, run: &Run) {
        use RecordBody as B;
        let user = |file: u32| file >= Oid::FIRST_NORMAL.0;
        let kind = match body {
            B::Truncate(r) if r.relids.len() > 1 => "TRUNCATE of several",
            B::Truncate(_) => "TRUNCATE",
            B::MultiInsert(r) if r.logical => "COPY",
            B::Insert(r) if run.known.toast.contains(&r.target.rel) => "value outside of its row",
            B::Lock(r) if user(r.target.rel) => "row lock",
            B::Confirm(_) => "ON CONFLICT",
            B::Prune(r) if r.frozen > 0 => "VACUUM that froze",
            B::Prune(_) => "VACUUM",
            B::LogicalMessage(r) if r.transactional => "message in a transaction",
            B::LogicalMessage(_) => "message outside of one",
            B::Abort(r) if r.db.is_valid() => "ROLLBACK PREPARED",
            B::Abort(_) => "ROLLBACK",
            B::Prepare(r) if !r.messages.is_empty() => "PREPARE with messages",
            B::RunningXacts(r) if r.subxid_overflow => "overflow",
            B::Checkpoint(r) if !r.shutdown => "checkpoint",
            B::StandbyLocks(_) => "AccessExclusive lock",
            _ => return,
        };
        self.add(kind, 1);
    }

    /// What a transaction's end tells.
    fn end(&mut self, end: TransactionEnd, subxids: u64) {
        self.add("subtransactions that committed", subxids);
        self.add("COMMIT PREPARED", u64::from(end == TransactionEnd::CommitPrepared));
    }

    /// What a transaction says that it did.
    fn did(&mut self, did: &[String]) {
        let begins = |word: &str| did.iter().filter(|did| did.starts_with(word)).count() as u64;
        let has = |word: &str| did.iter().filter(|did| did.contains(word)).count() as u64;
        self.add("temporary table dropped at the session's end", has("at the session's end"));
        self.add("savepoint rolled back", begins("ROLLBACK TO"));
        self.add("CREATE INDEX", begins("CREATE INDEX"));
        self.add("rewrite", has(" TYPE ") + begins("CLUSTER"));
        self.add("ANALYZE", begins("ANALYZE"));
        self.add("rows of partitions", has("partitions of"));
        self.add("partition that comes or goes", has("TACH PARTITION"));
        let dropped: BTreeSet<&str> = did.iter().filter_map(|did| did.strip_prefix("DROP TABLE ")).collect();
        self.add("DROP TABLE", dropped.len() as u64);
        let made: Vec<&str> = did.iter().filter_map(|did| did.strip_prefix("CREATE TABLE ")).collect();
        self.add("CREATE TABLE", made.len() as u64);
        self.add("DROP TABLE, then another of that name", made.iter().filter(|name| dropped.contains(*name)).count() as u64);
    }
}

/// Transactions (and subtransactions) with such a record.
fn xids(run: &Run, is: impl Fn(&RecordBody) -> bool) -> BTreeSet<u32> {
    run.records.iter().filter(|record| is(&record.body)).map(|record| record.xid.0).collect()
}
