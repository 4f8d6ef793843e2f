//! Typed WAL records made by hand, and a sink that remembers.

#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod catalog_history;
pub(crate) mod history;
pub(crate) mod versioned_catalog;

use std::sync::Arc;

use decoder_core::{DecodedChange, DecodedTransaction, Decoder, DecoderConfig, NoCatalog, OutputSink, Relation, WorkMem};
use pg_types::record::{CommitRecord, HeapInsert, LogicalMessageRecord, NewCidRecord, RunningXactsRecord, TruncateRecord};
use pg_types::{
    CommandId, InvalidationMessage, Lsn, Oid, PgVersion, RecordBody, RelFileLocator, Timestamp, WalRecord, Work, Xid,
};

/// The database of all tests.
pub(crate) const DATABASE: Oid = Oid(5);

/// A log being written.
#[derive(Default)]
pub(crate) struct Log {
    /// Its records.
    pub(crate) records: Vec<WalRecord>,
}

impl Log {
    /// A log that begins with a consistent point: `next_xid` is the first transaction's.
    pub(crate) fn consistent(next_xid: u32) -> Log {
        let mut log = Log::default();
        log.running(next_xid, next_xid);
        log
    }

    /// Appends a record of `xid`, whose top-level transaction is `top` (0: not told).
    pub(crate) fn push(&mut self, xid: u32, top: u32, body: RecordBody) {
        let lsn = Lsn(0x1000 + 64 * self.records.len() as u64);
        let (xid, top_xid) = (Xid(xid), Xid(top));
        self.records.push(WalRecord { lsn, end_lsn: Lsn(lsn.0 + 64), xid, top_xid, origin: 0, body });
    }

    /// Where the last record is.
    pub(crate) fn last_lsn(&self) -> Lsn {
        self.records.last().map_or(Lsn(0), |record| record.lsn)
    }

    /// RUNNING_XACTS.
    pub(crate) fn running(&mut self, oldest: u32, next: u32) {
        let running = RunningXactsRecord {
            next_xid: Xid(next),
            oldest_running_xid: Xid(oldest),
            latest_completed_xid: Xid(next).prev(),
            ..RunningXactsRecord::default()
        };
        self.push(0, 0, RecordBody::RunningXacts(Box::new(running)));
    }

    /// RUNNING_XACTS with its lists.
    pub(crate) fn running_list(&mut self, xids: Vec<Xid>, subxids: Vec<Xid>, next: u32) {
        let running = RunningXactsRecord {
            next_xid: Xid(next),
            oldest_running_xid: Xid(xids.iter().map(|xid| xid.0).min().unwrap_or(next)),
            latest_completed_xid: Xid(next).prev(),
            subxid_overflow: false,
            xids,
            subxids,
        };
        self.push(0, 0, RecordBody::RunningXacts(Box::new(running)));
    }

    /// A row inserted into the file of relation `rel`.
    pub(crate) fn insert(&mut self, xid: u32, top: u32, rel: u32) {
        self.push(xid, top, RecordBody::Insert(HeapInsert { target: file(rel), logical: true, ..HeapInsert::default() }));
    }

    /// A row inserted into pg_class: catalogs' rows are not logged for decoding.
    pub(crate) fn catalog_row(&mut self, xid: u32, top: u32) {
        self.push(xid, top, RecordBody::Insert(HeapInsert { target: file(1259), ..HeapInsert::default() }));
    }

    /// The command ids of a catalog row.
    pub(crate) fn new_cid(&mut self, xid: u32, top: u32, cid: u32) {
        let new_cid = NewCidRecord {
            top_xid: Xid(if top == 0 { xid } else { top }),
            cmin: CommandId(cid),
            cmax: CommandId::INVALID,
            combocid: CommandId::INVALID,
            target: file(1259),
            ..NewCidRecord::default()
        };
        self.push(xid, top, RecordBody::NewCid(Box::new(new_cid)));
    }

    /// A command's messages (14 and later).
    pub(crate) fn invalidations(&mut self, xid: u32, top: u32, messages: &[InvalidationMessage]) {
        self.push(xid, top, RecordBody::XactInvalidations(messages.to_vec()));
    }

    /// TRUNCATE of relations.
    pub(crate) fn truncate(&mut self, xid: u32, rels: impl IntoIterator<Item = u32>) {
        self.truncate_in(xid, 0, rels);
    }

    /// The same in a subtransaction.
    pub(crate) fn truncate_in(&mut self, xid: u32, top: u32, rels: impl IntoIterator<Item = u32>) {
        let relids = rels.into_iter().map(Oid).collect();
        self.push(
            xid,
            top,
            RecordBody::Truncate(Box::new(TruncateRecord { db: DATABASE, relids, ..TruncateRecord::default() })),
        );
    }

    /// Commit with subtransactions and messages.
    pub(crate) fn commit(&mut self, xid: u32, subxids: &[u32], messages: Vec<InvalidationMessage>) {
        let db = if messages.is_empty() { Oid(0) } else { DATABASE };
        let time = Timestamp(i64::from(xid) * 1_000_000);
        let subxids = subxids.iter().map(|x| Xid(*x)).collect();
        let commit = CommitRecord { time, db, subxids, messages, ..CommitRecord::default() };
        self.push(xid, 0, RecordBody::Commit(Box::new(commit)));
    }
}

/// The file of relation `rel`.
pub(crate) fn file(rel: u32) -> RelFileLocator {
    RelFileLocator { spc: Oid(1663), db: DATABASE, rel }
}

/// A relcache message.
pub(crate) fn relcache(rel: u32) -> InvalidationMessage {
    InvalidationMessage::Relcache { db: DATABASE, rel: Oid(rel) }
}

/// A catcache message of RELOID in 18 (57) or another cache.
pub(crate) fn catcache(cache_id: i8, hash: u32) -> InvalidationMessage {
    InvalidationMessage::Catcache { cache_id, db: DATABASE, hash }
}

/// A decoder without catalog.
pub(crate) fn decoder(version: PgVersion, profile: &str) -> Decoder {
    decoder_within(version, profile, WorkMem::default())
}

/// The same with a memory limit.
pub(crate) fn decoder_within(version: PgVersion, profile: &str, work_mem: WorkMem) -> Decoder {
    Decoder::new(config(version, profile, work_mem), Arc::new(NoCatalog))
}

/// Settings of a decoder that gives out whole transactions.
pub(crate) fn config(version: PgVersion, profile: &str, work_mem: WorkMem) -> DecoderConfig {
    let profile = profile.parse().unwrap();
    DecoderConfig { work_mem, ..DecoderConfig::new(version, profile, DATABASE) }
}

/// Everything that was given out, as text, and each transaction's work.
#[derive(Default)]
pub(crate) struct Remember {
    /// Calls in order.
    pub(crate) stream: Vec<String>,
    /// By transaction.
    pub(crate) work: Vec<(Xid, Work)>,
}

impl OutputSink for Remember {
    fn begin(&mut self, xid: Xid, first_lsn: Lsn, commit_lsn: Lsn) {
        self.stream.push(format!("begin {xid} {first_lsn} {commit_lsn}"));
    }

    fn change(&mut self, change: &DecodedChange<'_>) {
        self.stream.push(format!("{} {:?} {} x{}", change.lsn, change.action, change.relation.name, change.rows));
    }

    fn truncate(&mut self, lsn: Lsn, _: Xid, relations: &[&Relation], _: &TruncateRecord) {
        self.stream.push(format!("{lsn} truncate {:?}", relations.iter().map(|r| &r.name).collect::<Vec<_>>()));
    }

    fn message(&mut self, lsn: Lsn, _: Xid, message: &LogicalMessageRecord) {
        self.stream.push(format!("{lsn} {message:?}"));
    }

    fn commit(&mut self, t: &DecodedTransaction) {
        let shown = DecodedTransaction { work: Work::default(), ..t.clone() };
        self.stream.push(format!("{shown:?}"));
        self.work.push((t.xid, t.work));
    }
}

/// Decodes a whole log.
pub(crate) fn decode(log: &Log, version: PgVersion, profile: &str) -> (Decoder, Remember) {
    decode_within(log, version, profile, WorkMem::default())
}

/// The same with a memory limit.
pub(crate) fn decode_within(log: &Log, version: PgVersion, profile: &str, work_mem: WorkMem) -> (Decoder, Remember) {
    let (mut decoder, mut sink) = (decoder_within(version, profile, work_mem), Remember::default());
    log.records.iter().for_each(|record| decoder.process(record, &mut sink).unwrap());
    (decoder, sink)
}
