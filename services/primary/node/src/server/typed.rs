//! The typed encoding: records that concern transactions and caches, as messages for any language.
//!
//! Changes of one transaction in one relation that follow each other become one run of columns. An xid is announced by `begin`
//! when the stream meets it first; it is forgotten when it ends, or when a RUNNING_XACTS record says that it is no longer
//! running, so that the set of open xids stays as small as the server's own.

use std::collections::HashSet;

use pg_types::{Lsn, RecordBody, RelFileLocator, WalRecord, Xid};
use prost::Message;
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::wal::v1 as wal;

use pb::typed_record::Kind;
use pb::wal_batch::Body;

use super::convert::{self, Arrays};

/// Upper bound of a record's fixed part on the wire: two LSNs, two xids, a time, a few oids, headers.
const FIXED_WIRE_BYTES: usize = 120;
/// Upper bound of one change in a run.
const CHANGE_WIRE_BYTES: usize = 1 + 5 + 3 + 5;
/// Longest name of a prepared transaction (`GIDSIZE`).
const GID_BYTES_MAX: usize = 200;
/// Most open xids that are remembered; past it an xid may be announced twice. PostgreSQL cannot have more than 2^31 open, but a
/// damaged or cut WAL may never end them.
const OPEN_XIDS_MAX: usize = 1 << 20;

/// Records for one batch.
#[derive(Debug, Default)]
pub(crate) struct TypedEncoder {
    /// Finished records.
    records: Vec<pb::TypedRecord>,
    /// Upper bound of their size.
    wire_bytes: usize,
    /// The last record of `records` is a run of changes in this relation.
    run: Option<RelFileLocator>,
    /// Xids that were announced and have not ended.
    open: HashSet<u32>,
}

/// What became of a record.
#[derive(Debug)]
pub(crate) enum Typed {
    /// It concerns neither transactions nor caches.
    LeftOut,
    /// It is in the batch.
    Taken,
    /// It is larger than a batch: these are its pieces, to be sent alone.
    Large(Vec<Body>),
}

impl TypedEncoder {
    /// Upper bound of the batch so far.
    pub(crate) fn wire_bytes(&self) -> usize {
        self.wire_bytes
    }

    /// The message's body; the encoder is empty then.
    pub(crate) fn finish(&mut self) -> Body {
        self.wire_bytes = 0;
        self.run = None;
        Body::Typed(pb::TypedRecords { records: std::mem::take(&mut self.records) })
    }

    /// Adds a record; `piece_bytes` is the most that one message may take.
    pub(crate) fn push(&mut self, record: WalRecord, piece_bytes: usize) -> Typed {
        if let Some((locator, change)) = change_of(&record.body) {
            self.announce(&record);
            self.push_change(&record, locator, change);
            return Typed::Taken;
        }
        let WalRecord { lsn, end_lsn, xid, top_xid, body, .. } = record;
        let Some((body, mut arrays)) = Arrays::of(body) else { return Typed::LeftOut };
        let head = Head { lsn, end_lsn, xid, top_xid };
        self.forget_ended(&body, xid, &arrays);
        if arrays.wire_bytes() + FIXED_WIRE_BYTES + GID_BYTES_MAX <= piece_bytes {
            self.announce_if_open(&head, &body);
            self.add(head, convert::typed_kind(&body, xid, arrays));
            return Typed::Taken;
        }
        let mut pieces = Vec::new();
        while !arrays.is_empty() {
            let piece = arrays.split_off(piece_bytes - FIXED_WIRE_BYTES - GID_BYTES_MAX);
            let records = head.record(convert::typed_kind(&body, xid, piece)).into_iter().collect();
            pieces.push(Body::Typed(pb::TypedRecords { records }));
        }
        Typed::Large(pieces)
    }

    /// Adds a record that is no run.
    fn add(&mut self, head: Head, kind: Option<Kind>) {
        if let Some(record) = head.record(kind) {
            self.run = None;
            // One tag and a length before each record.
            self.wire_bytes += record.encoded_len() + 5;
            self.records.push(record);
        }
    }

    /// Adds a change to the last run, or starts a new one.
    fn push_change(&mut self, record: &WalRecord, locator: RelFileLocator, change: Change) {
        if self.run == Some(locator)
            && let Some(last) = self.records.last_mut()
            && (last.xid, last.top_xid) == (record.xid.0, record.top_xid.0)
            && let Ok(offset) = u32::try_from(record.lsn.0.saturating_sub(last.lsn))
            && let Some(Kind::Changes(pb::Changes { columns: Some(columns), .. })) = &mut last.kind
        {
            change.push_to(columns, offset);
            last.end_lsn = record.end_lsn.0;
            self.wire_bytes += CHANGE_WIRE_BYTES;
            return;
        }
        let mut columns = wal::ChangeColumns::default();
        change.push_to(&mut columns, 0);
        let kind = Kind::Changes(pb::Changes { locator: Some(convert::locator(locator)), columns: Some(columns) });
        self.records.extend(Head::of(record).record(Some(kind)));
        self.wire_bytes += FIXED_WIRE_BYTES + CHANGE_WIRE_BYTES;
        self.run = Some(locator);
    }

    /// Announces the xid of a record that is not the end of it.
    fn announce_if_open(&mut self, head: &Head, body: &RecordBody) {
        let ends = matches!(body, RecordBody::Commit(_) | RecordBody::Abort(_));
        let concerns_one = !matches!(body, RecordBody::RunningXacts(_) | RecordBody::Assignment(_));
        if !ends && concerns_one && head.xid.is_valid() && self.is_new(head.xid) {
            self.add(*head, Some(Kind::Begin(pb::Begin {})));
        }
    }

    /// Announces the xid of a change.
    fn announce(&mut self, record: &WalRecord) {
        if record.xid.is_valid() && self.is_new(record.xid) {
            self.add(Head::of(record), Some(Kind::Begin(pb::Begin {})));
        }
    }

    /// Remembers an xid as open; true if it was not.
    fn is_new(&mut self, xid: Xid) -> bool {
        if self.open.len() >= OPEN_XIDS_MAX {
            self.open.clear();
        }
        self.open.insert(xid.0)
    }

    /// Forgets the xids that a record ends.
    fn forget_ended(&mut self, body: &RecordBody, xid: Xid, arrays: &Arrays) {
        match body {
            RecordBody::Commit(r) => self.forget(xid, r.prepared_xid, arrays),
            RecordBody::Abort(r) => self.forget(xid, r.prepared_xid, arrays),
            RecordBody::RunningXacts(r) => {
                let oldest = r.oldest_running_xid;
                self.open.retain(|x| !Xid(*x).precedes(oldest));
            }
            _ => {}
        }
    }

    /// Forgets a transaction and its subtransactions.
    fn forget(&mut self, xid: Xid, prepared_xid: Xid, arrays: &Arrays) {
        self.open.remove(&xid.0);
        self.open.remove(&prepared_xid.0);
        for subxid in arrays.subxids() {
            self.open.remove(&subxid);
        }
    }
}

/// What stands before each typed record.
#[derive(Clone, Copy, Debug)]
struct Head {
    /// Start.
    lsn: Lsn,
    /// End.
    end_lsn: Lsn,
    /// Writer.
    xid: Xid,
    /// Its top-level transaction.
    top_xid: Xid,
}

impl Head {
    /// Of a record.
    fn of(record: &WalRecord) -> Self {
        Self { lsn: record.lsn, end_lsn: record.end_lsn, xid: record.xid, top_xid: record.top_xid }
    }

    /// With its contents; none without.
    fn record(self, kind: Option<Kind>) -> Option<pb::TypedRecord> {
        let (lsn, end_lsn) = (self.lsn.0, self.end_lsn.0);
        kind.map(|kind| pb::TypedRecord { lsn, end_lsn, xid: self.xid.0, top_xid: self.top_xid.0, kind: Some(kind) })
    }
}

/// One heap change.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// What.
    kind: wal::ChangeKind,
    /// Rows.
    rows: u32,
    /// Bytes of tuple data.
    tuple_bytes: u32,
}

impl Change {
    /// Appends it to columns.
    fn push_to(self, columns: &mut wal::ChangeColumns, lsn_offset: u32) {
        columns.kinds.push(self.kind.into());
        columns.lsn_offsets.push(lsn_offset);
        columns.row_counts.push(self.rows);
        columns.tuple_bytes.push(self.tuple_bytes);
    }
}

/// The heap change that a record is, and where.
fn change_of(body: &RecordBody) -> Option<(RelFileLocator, Change)> {
    use wal::ChangeKind::{Delete, Insert, Update};
    let (locator, kind, rows, tuple_bytes) = match body {
        RecordBody::Insert(r) => (r.target, Insert, 1, r.tuple_len),
        RecordBody::MultiInsert(r) => (r.target, Insert, u32::from(r.ntuples), r.tuples_len),
        RecordBody::Update(r) => (r.target, Update, 1, r.tuple_len),
        RecordBody::Delete(r) => (r.target, Delete, 1, 0),
        _ => return None,
    };
    Some((locator, Change { kind, rows, tuple_bytes }))
}
