//! One input under several profiles: what each costs, and whether all decode the same.
//!
//! Whoever has records gives them to a [`Contender`] each, in order; it keeps a digest of what is given out. What one transaction cost is
//! told by a contender that is told for which to look: from its [`DecodedTransaction::restart_lsn`] on, a decoder that
//! [`Decoder::resume`]s has all that the cost depends on but for what caches held, which more WAL before it fills
//! ([`depends_on_the_past`]).
//!
//! Invariants: I1 two contenders give the same digest iff they gave out the same.

use std::hash::{DefaultHasher, Hash, Hasher};

use pg_types::catalog_row::CatalogRowChange;
use pg_types::record::{LogicalMessageRecord, TruncateRecord};
use pg_types::{Lsn, QueueCounts, WalRecord, Work, Xid};

use crate::decode::Decoder;
use crate::output::{DecodedChange, DecodedTransaction, OutputSink, PreparedEnd, Relation};
use crate::relsync::RelsyncCounts;
use crate::snap_build::SnapBuildCounts;
use crate::syscache_callbacks::CallbackCounts;
use crate::{DecodeError, Profile};

/// Counters that depend on what was decoded before a transaction's restart position: on what caches hold, and on the committed xids in
/// snapshots. All others are exact if decoding begins there, but for the messages that `indexed` executes again if they were loaded.
const OF_THE_PAST: [&str; 19] = [
    "catcache_entries_visited",
    "entries_dropped",
    "map_slots_visited",
    "map_entries_dropped",
    "relations_loaded",
    "catalog_scans",
    "snapshot_bytes",
    "map_hits",
    "map_misses",
    "relcache_hits",
    "relcache_misses",
    "relations_rebuilt",
    "catalogs_loaded",
    "catcache_hits",
    "catcache_misses",
    "tuple_cid_lookups",
    "historic_scans",
    "catalog_snapshots_taken",
    "catalog_snapshots_reused",
];

/// Counters that do so under a profile that executes some messages only if what they name was loaded.
const OF_THE_PAST_IF_LEFT_OUT: [&str; 4] = ["messages_executed", "caches_searched", "callbacks_visited", "callbacks_called"];

/// Whether a counter of one transaction is an estimate if decoding under `profile` began at its restart position.
#[must_use]
pub fn depends_on_the_past(profile: &Profile, key: &str) -> bool {
    OF_THE_PAST.contains(&key) || (profile.leaves_out_messages() && OF_THE_PAST_IF_LEFT_OUT.contains(&key))
}

/// What decoding an input under one profile came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The profile.
    pub profile: Profile,
    /// Counters, transactions that were not given out included.
    pub work: Work,
    /// What the shared invalidation queue did to a live consumer.
    pub queue: QueueCounts,
    /// What `pgoutput` did, under a profile that gives rows to it.
    pub relsync: RelsyncCounts,
    /// Syscache callbacks by what each costs.
    pub callbacks: CallbackCounts,
    /// Relcache callbacks, the same.
    pub relcache_callbacks: CallbackCounts,
    /// What building snapshots took.
    pub snap_build: SnapBuildCounts,
    /// Transactions given out at their commit.
    pub transactions: u64,
    /// Transactions given out at their PREPARE.
    pub prepared: u64,
    /// Of everything that was given out.
    pub digest: u64,
}

/// A decoder and what it gave out.
#[derive(Debug)]
pub struct Contender {
    /// The decoder.
    decoder: Decoder,
    /// What it gave out.
    digest: Digest,
}

impl Contender {
    /// One that has seen nothing.
    #[must_use]
    pub fn new(decoder: Decoder) -> Self {
        Self { decoder, digest: Digest::default() }
    }

    /// The same, looking for the transaction whose commit record starts at `lsn`.
    #[must_use]
    pub fn looking_for(mut self, lsn: Lsn) -> Self {
        self.digest.looks_for = lsn;
        self
    }

    /// Takes the next record.
    ///
    /// # Errors
    /// As [`Decoder::process`].
    pub fn process(&mut self, record: &WalRecord) -> Result<(), DecodeError> {
        self.decoder.process(record, &mut self.digest)
    }

    /// The same; `observe` sees the transactions that it sets free.
    ///
    /// # Errors
    /// As [`Decoder::process`].
    pub fn process_seen(
        &mut self,
        record: &WalRecord,
        observe: &mut dyn FnMut(&DecodedTransaction),
    ) -> Result<(), DecodeError> {
        self.decoder.process(record, &mut Seen { digest: &mut self.digest, observe })
    }

    /// As [`Decoder::catalog_row`].
    pub fn catalog_row(&mut self, xid: Xid, change: CatalogRowChange) {
        self.decoder.catalog_row(xid, change);
    }

    /// Its decoder.
    #[must_use]
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// What the transaction that it looks for cost, once that has come.
    #[must_use]
    pub fn found(&self) -> Option<Work> {
        self.digest.found
    }

    /// What it came to so far.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let decoder = &self.decoder;
        Outcome {
            profile: decoder.config().profile.clone(),
            work: decoder.work(),
            queue: decoder.queue_counts(),
            relsync: decoder.relsync_counts(),
            callbacks: decoder.callback_counts(),
            relcache_callbacks: decoder.relcache_callback_counts(),
            snap_build: decoder.snap_build_counts(),
            transactions: self.digest.transactions,
            prepared: self.digest.prepared,
            digest: self.digest.hasher.finish(),
        }
    }
}

/// A hash of everything that is given out, in order (I1).
#[derive(Debug, Default)]
struct Digest {
    /// The hash so far.
    hasher: DefaultHasher,
    /// Transactions given out at their commit so far.
    transactions: u64,
    /// At their PREPARE.
    prepared: u64,
    /// Start of the commit record that it waits for.
    looks_for: Lsn,
    /// What that transaction cost.
    found: Option<Work>,
}

impl Digest {
    /// The end of a transaction, of a kind.
    fn whole(&mut self, kind: u8, t: &DecodedTransaction) {
        (kind, t.xid, t.end_lsn, t.commit_time, &t.subxids, t.changes(), t.messages.invalidations()).hash(&mut self.hasher);
        if t.commit_lsn == self.looks_for {
            self.found = Some(t.work);
        }
    }
}

impl OutputSink for Digest {
    fn begin(&mut self, xid: Xid, first_lsn: Lsn, commit_lsn: Lsn) {
        (1, xid, first_lsn, commit_lsn).hash(&mut self.hasher);
    }

    fn change(&mut self, change: &DecodedChange<'_>) {
        (2, change.lsn, &change.relation.name, change.action, change.rows).hash(&mut self.hasher);
    }

    fn truncate(&mut self, lsn: Lsn, _: Xid, relations: &[&Relation], record: &TruncateRecord) {
        (3, lsn, relations.len(), record.cascade, record.restart_seqs).hash(&mut self.hasher);
        relations.iter().for_each(|relation| relation.name.hash(&mut self.hasher));
    }

    fn message(&mut self, lsn: Lsn, _: Xid, message: &LogicalMessageRecord) {
        (4, lsn, &message.prefix, &message.message).hash(&mut self.hasher);
    }

    fn commit(&mut self, t: &DecodedTransaction) {
        self.whole(5, t);
        self.transactions += 1;
    }

    fn stream_start(&mut self, xid: Xid, lsn: Lsn, first: bool) {
        (6, xid, lsn, first).hash(&mut self.hasher);
    }

    fn stream_stop(&mut self, xid: Xid, lsn: Lsn) {
        (7, xid, lsn).hash(&mut self.hasher);
    }

    fn stream_abort(&mut self, top_xid: Xid, xid: Xid, lsn: Lsn) {
        (8, top_xid, xid, lsn).hash(&mut self.hasher);
    }

    fn stream_commit(&mut self, t: &DecodedTransaction) {
        self.whole(9, t);
        self.transactions += 1;
    }

    fn prepare(&mut self, t: &DecodedTransaction) {
        self.whole(10, t);
        self.prepared += 1;
    }

    fn stream_prepare(&mut self, t: &DecodedTransaction) {
        self.whole(11, t);
        self.prepared += 1;
    }

    fn commit_prepared(&mut self, end: &PreparedEnd) {
        (12, end.xid, &end.gid, end.lsn).hash(&mut self.hasher);
    }

    fn rollback_prepared(&mut self, end: &PreparedEnd) {
        (13, end.xid, &end.gid, end.lsn).hash(&mut self.hasher);
    }
}

/// A digest that lets somebody see transactions.
struct Seen<'a> {
    /// The digest.
    digest: &'a mut Digest,
    /// Who sees them.
    observe: &'a mut dyn FnMut(&DecodedTransaction),
}

impl OutputSink for Seen<'_> {
    fn begin(&mut self, xid: Xid, first_lsn: Lsn, commit_lsn: Lsn) {
        self.digest.begin(xid, first_lsn, commit_lsn);
    }

    fn change(&mut self, change: &DecodedChange<'_>) {
        self.digest.change(change);
    }

    fn truncate(&mut self, lsn: Lsn, xid: Xid, relations: &[&Relation], record: &TruncateRecord) {
        self.digest.truncate(lsn, xid, relations, record);
    }

    fn message(&mut self, lsn: Lsn, xid: Xid, message: &LogicalMessageRecord) {
        self.digest.message(lsn, xid, message);
    }

    fn commit(&mut self, transaction: &DecodedTransaction) {
        self.digest.commit(transaction);
        (self.observe)(transaction);
    }
    fn stream_start(&mut self, xid: Xid, lsn: Lsn, first: bool) {
        self.digest.stream_start(xid, lsn, first);
    }

    fn stream_stop(&mut self, xid: Xid, lsn: Lsn) {
        self.digest.stream_stop(xid, lsn);
    }

    fn stream_abort(&mut self, top_xid: Xid, xid: Xid, lsn: Lsn) {
        self.digest.stream_abort(top_xid, xid, lsn);
    }

    fn stream_commit(&mut self, transaction: &DecodedTransaction) {
        self.digest.stream_commit(transaction);
        (self.observe)(transaction);
    }

    fn prepare(&mut self, transaction: &DecodedTransaction) {
        self.digest.prepare(transaction);
        (self.observe)(transaction);
    }

    fn stream_prepare(&mut self, transaction: &DecodedTransaction) {
        self.digest.stream_prepare(transaction);
        (self.observe)(transaction);
    }

    fn commit_prepared(&mut self, end: &PreparedEnd) {
        self.digest.commit_prepared(end);
    }

    fn rollback_prepared(&mut self, end: &PreparedEnd) {
        self.digest.rollback_prepared(end);
    }
}
