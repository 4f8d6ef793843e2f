//! Between the domain and the generated types of the contract. Generated types stop in this folder.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use pg_types::record::{AbortRecord, CommitRecord, LogicalMessageRecord, PrepareRecord, RunningXactsRecord, TruncateRecord};
use pg_types::{InvalidationMessage, Lsn, Oid, RecordBody, RelFileLocator, Timestamp, Xid};
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::wal::v1 as wal;

use pb::typed_record::Kind;

use crate::error::{Error, Result};

/// Seconds from 1970 to 2000, PostgreSQL's epoch.
const POSTGRES_EPOCH_S: i64 = 946_684_800;

/// PostgreSQL's time as protobuf's.
pub(crate) fn timestamp(time: Timestamp) -> prost_types::Timestamp {
    let seconds = time.0.div_euclid(1_000_000) + POSTGRES_EPOCH_S;
    prost_types::Timestamp { seconds, nanos: (time.0.rem_euclid(1_000_000) * 1000) as i32 }
}

/// Milliseconds since 1970 as protobuf's time.
pub(crate) fn timestamp_ms(ms: u64) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: (ms / 1000) as i64, nanos: (ms % 1000 * 1_000_000) as i32 }
}

/// A duration for an answer.
pub(crate) fn duration(d: Duration) -> prost_types::Duration {
    prost_types::Duration { seconds: d.as_secs() as i64, nanos: d.subsec_nanos() as i32 }
}

/// A duration from a request, within `min..=max`; absent: `default`.
///
/// # Errors
/// It is negative or outside the range.
pub(crate) fn duration_field(
    field: &'static str,
    value: Option<prost_types::Duration>,
    default: Duration,
    min: Duration,
    max: Duration,
) -> Result<Duration> {
    let Some(value) = value else { return Ok(default) };
    let parsed = u64::try_from(value.seconds).ok().zip(u32::try_from(value.nanos).ok().filter(|n| *n < 1_000_000_000));
    match parsed.map(|(s, n)| Duration::new(s, n)) {
        Some(d) if d >= min && d <= max => Ok(d),
        _ => Err(Error::field(field, format!("must be between {min:?} and {max:?}"))),
    }
}

/// The last part of a resource name `slots/{slot}`.
///
/// # Errors
/// It does not have that form.
pub(crate) fn slot_name<'a>(field: &'static str, resource: &'a str) -> Result<&'a str> {
    resource.strip_prefix("slots/").ok_or_else(|| Error::field(field, "write the slot's resource name, as in slots/orders"))
}

/// A file's place.
pub(crate) fn locator(l: RelFileLocator) -> wal::RelFileLocator {
    wal::RelFileLocator { tablespace_oid: l.spc.0, database_oid: l.db.0, file_number: l.rel }
}

/// Messages in columns. None of none.
pub(crate) fn invalidation_columns<'a>(
    messages: impl IntoIterator<Item = &'a InvalidationMessage>,
) -> Option<wal::InvalidationColumns> {
    let mut messages = messages.into_iter().peekable();
    messages.peek()?;
    let mut columns = wal::InvalidationColumns::default();
    for message in messages {
        match *message {
            InvalidationMessage::Catcache { cache_id, db, hash } => {
                let c = columns.catcache.get_or_insert_default();
                // Ids are 0 to 127: negative tags are the other kinds.
                c.cache_ids.push(u32::from(cache_id.unsigned_abs()));
                c.database_oids.push(db.0);
                c.hashes.push(hash);
            }
            InvalidationMessage::Catalog { db, catalog } => {
                let c = columns.catalog.get_or_insert_default();
                c.database_oids.push(db.0);
                c.catalog_oids.push(catalog.0);
            }
            InvalidationMessage::Relcache { db, rel } => push_relation(columns.relcache.get_or_insert_default(), db, rel),
            InvalidationMessage::Smgr { backend, locator } => {
                let c = columns.smgr.get_or_insert_default();
                c.backends.push(backend);
                c.tablespace_oids.push(locator.spc.0);
                c.database_oids.push(locator.db.0);
                c.file_numbers.push(locator.rel);
            }
            InvalidationMessage::Relmap { db } => columns.relmap.get_or_insert_default().database_oids.push(db.0),
            InvalidationMessage::Snapshot { db, rel } => {
                let c = columns.snapshot.get_or_insert_default();
                c.database_oids.push(db.0);
                c.catalog_oids.push(rel.0);
            }
            InvalidationMessage::Relsync { db, rel } => push_relation(columns.relsync.get_or_insert_default(), db, rel),
        }
    }
    Some(columns)
}

/// One entry of relation columns.
fn push_relation(columns: &mut wal::RelationInvalidations, db: Oid, rel: Oid) {
    columns.database_oids.push(db.0);
    columns.relation_oids.push(rel.0);
}

/// The parts of a record that have no bound of their own, taken out so that a record larger than a batch can be told in pieces.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Arrays {
    /// Top-level xids of RUNNING_XACTS.
    xids: VecDeque<u32>,
    /// Subtransactions.
    subxids: VecDeque<u32>,
    /// Relations of TRUNCATE.
    relids: VecDeque<u32>,
    /// Invalidation messages.
    messages: VecDeque<InvalidationMessage>,
    /// Prefix of a logical message.
    prefix: VecDeque<u8>,
    /// Its content.
    content: VecDeque<u8>,
}

impl Arrays {
    /// Takes the arrays of a record's body; `None` if the typed encoding leaves the record out. Heap changes are not told in
    /// arrays (see `typed`).
    pub(crate) fn of(body: RecordBody) -> Option<(RecordBody, Arrays)> {
        let mut body = body;
        let mut arrays = Arrays::default();
        let plain = |xids: Vec<Xid>| xids.into_iter().map(|x| x.0).collect();
        match &mut body {
            RecordBody::Commit(r) => {
                arrays.subxids = plain(std::mem::take(&mut r.subxids));
                arrays.messages = std::mem::take(&mut r.messages).into();
            }
            RecordBody::Abort(r) => arrays.subxids = plain(std::mem::take(&mut r.subxids)),
            RecordBody::Prepare(r) => {
                arrays.subxids = plain(std::mem::take(&mut r.subxids));
                arrays.messages = std::mem::take(&mut r.messages).into();
            }
            RecordBody::Assignment(r) => arrays.subxids = plain(std::mem::take(&mut r.subxids)),
            RecordBody::XactInvalidations(messages) => arrays.messages = std::mem::take(messages).into(),
            RecordBody::StandbyInvalidations(r) => arrays.messages = std::mem::take(&mut r.messages).into(),
            RecordBody::Inplace(r) if !r.messages.is_empty() => arrays.messages = std::mem::take(&mut r.messages).into(),
            RecordBody::Relmap(r) => arrays.messages = VecDeque::from([InvalidationMessage::Relmap { db: r.db }]),
            RecordBody::RunningXacts(r) => {
                arrays.xids = plain(std::mem::take(&mut r.xids));
                arrays.subxids = plain(std::mem::take(&mut r.subxids));
            }
            RecordBody::Truncate(r) => arrays.relids = std::mem::take(&mut r.relids).into_iter().map(|r| r.0).collect(),
            RecordBody::LogicalMessage(r) => {
                arrays.prefix = std::mem::take(&mut r.prefix).into();
                arrays.content = std::mem::take(&mut r.message).into();
            }
            _ => return None,
        }
        Some((body, arrays))
    }

    /// The subtransactions.
    pub(crate) fn subxids(&self) -> impl Iterator<Item = u32> {
        self.subxids.iter().copied()
    }

    /// Upper bound of their size on the wire.
    pub(crate) fn wire_bytes(&self) -> usize {
        // An xid or oid is a varint of at most 5 bytes; the largest message, smgr, is four of them.
        (self.xids.len() + self.subxids.len() + self.relids.len()) * 5
            + self.messages.len() * 20
            + self.prefix.len()
            + self.content.len()
    }

    /// Splits off what fits `bytes` on the wire, at least one element.
    pub(crate) fn split_off(&mut self, bytes: usize) -> Arrays {
        let mut left = bytes.max(20);
        Arrays {
            xids: take_front(&mut self.xids, 5, &mut left),
            subxids: take_front(&mut self.subxids, 5, &mut left),
            relids: take_front(&mut self.relids, 5, &mut left),
            messages: take_front(&mut self.messages, 20, &mut left),
            prefix: take_front(&mut self.prefix, 1, &mut left),
            content: take_front(&mut self.content, 1, &mut left),
        }
    }

    /// True when nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.wire_bytes() == 0
    }
}

/// Takes the elements at the front that fit `left` bytes at `each` bytes, and lowers `left`.
fn take_front<T>(from: &mut VecDeque<T>, each: usize, left: &mut usize) -> VecDeque<T> {
    let count = from.len().min(*left / each);
    *left -= count * each;
    if count == from.len() { std::mem::take(from) } else { from.drain(..count).collect() }
}

/// A record's message with `arrays` in the place of its own.
pub(crate) fn typed_kind(body: &RecordBody, xid: Xid, arrays: Arrays) -> Option<Kind> {
    let invalidations = |db: Oid, immediate, arrays: Arrays| {
        let messages = invalidation_columns(&arrays.messages);
        Kind::Invalidations(pb::RecordInvalidations { database_oid: db.0, messages, immediate })
    };
    Some(match body {
        RecordBody::Commit(r) => Kind::Commit(commit(r, arrays)),
        RecordBody::Abort(r) => Kind::Abort(abort(r, arrays)),
        RecordBody::Prepare(r) => Kind::Prepare(prepare(r, arrays)),
        RecordBody::Assignment(_) => Kind::Assignment(pb::Assignment { subxids: arrays.subxids.into() }),
        RecordBody::XactInvalidations(_) => invalidations(Oid::INVALID, !xid.is_valid(), arrays),
        RecordBody::StandbyInvalidations(r) => invalidations(r.db, true, arrays),
        RecordBody::Inplace(r) => invalidations(r.db, true, arrays),
        RecordBody::Relmap(r) => invalidations(r.db, true, arrays),
        RecordBody::RunningXacts(r) => Kind::RunningXacts(running_xacts(r, arrays)),
        RecordBody::Truncate(r) => Kind::Truncate(truncate(r, arrays)),
        RecordBody::LogicalMessage(r) => Kind::LogicalMessage(logical_message(r, arrays)),
        _ => return None,
    })
}

/// Commit.
fn commit(r: &CommitRecord, arrays: Arrays) -> pb::Commit {
    pb::Commit {
        prepared_xid: r.prepared_xid.0,
        commit_time: Some(timestamp(r.time)),
        database_oid: r.db.0,
        subxids: arrays.subxids.into(),
        invalidations: invalidation_columns(&arrays.messages),
        gid: Bytes::copy_from_slice(&r.gid),
    }
}

/// Abort.
fn abort(r: &AbortRecord, arrays: Arrays) -> pb::Abort {
    pb::Abort {
        prepared_xid: r.prepared_xid.0,
        abort_time: Some(timestamp(r.time)),
        database_oid: r.db.0,
        subxids: arrays.subxids.into(),
        gid: Bytes::copy_from_slice(&r.gid),
    }
}

/// Prepare.
fn prepare(r: &PrepareRecord, arrays: Arrays) -> pb::Prepare {
    pb::Prepare {
        prepare_time: Some(timestamp(r.time)),
        database_oid: r.db.0,
        subxids: arrays.subxids.into(),
        invalidations: invalidation_columns(&arrays.messages),
        gid: Bytes::copy_from_slice(&r.gid),
    }
}

/// Running transactions.
fn running_xacts(r: &RunningXactsRecord, arrays: Arrays) -> pb::RunningXacts {
    pb::RunningXacts {
        next_xid: r.next_xid.0,
        oldest_running_xid: r.oldest_running_xid.0,
        latest_completed_xid: r.latest_completed_xid.0,
        subxid_overflow: r.subxid_overflow,
        xids: arrays.xids.into(),
        subxids: arrays.subxids.into(),
    }
}

/// TRUNCATE.
fn truncate(r: &TruncateRecord, arrays: Arrays) -> pb::Truncate {
    pb::Truncate {
        database_oid: r.db.0,
        relation_oids: arrays.relids.into(),
        cascade: r.cascade,
        restart_identity: r.restart_seqs,
    }
}

/// Logical message.
fn logical_message(r: &LogicalMessageRecord, arrays: Arrays) -> pb::LogicalMessage {
    pb::LogicalMessage {
        database_oid: r.db.0,
        transactional: r.transactional,
        prefix: Vec::from(arrays.prefix).into(),
        content: Vec::from(arrays.content).into(),
    }
}

/// An LSN that 0 stands for none of.
pub(crate) fn optional_lsn(lsn: u64) -> Option<Lsn> {
    (lsn != 0).then_some(Lsn(lsn))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_before_2000_and_1970_keep_their_order() {
        assert_eq!(timestamp(Timestamp(0)), prost_types::Timestamp { seconds: 946_684_800, nanos: 0 });
        assert_eq!(timestamp(Timestamp(-1)), prost_types::Timestamp { seconds: 946_684_799, nanos: 999_999_000 });
        timestamp(Timestamp(i64::MIN));
        timestamp(Timestamp(i64::MAX));
    }

    #[test]
    fn durations_have_a_range() {
        let field = |value: Option<(i64, i32)>| {
            let value = value.map(|(seconds, nanos)| prost_types::Duration { seconds, nanos });
            duration_field("f", value, Duration::from_secs(7), Duration::from_millis(1), Duration::from_secs(100))
        };
        assert_eq!(field(None).unwrap(), Duration::from_secs(7));
        assert_eq!(field(Some((1, 500_000_000))).unwrap(), Duration::from_millis(1500));
        for bad in [(0, 0), (-1, 0), (0, -1), (101, 0), (i64::MAX, i32::MAX), (i64::MIN, i32::MIN)] {
            assert!(matches!(field(Some(bad)), Err(Error::InvalidField { field: "f", .. })), "{bad:?}");
        }
    }

    fn message() -> impl Strategy<Value = InvalidationMessage> {
        (0u8..7, 0i8..127, any::<u32>(), any::<u32>(), -1i32..(1 << 23)).prop_map(|(kind, cache_id, a, b, backend)| {
            let (db, rel) = (Oid(a), Oid(b));
            match kind {
                0 => InvalidationMessage::Catcache { cache_id, db, hash: b },
                1 => InvalidationMessage::Catalog { db, catalog: rel },
                2 => InvalidationMessage::Relcache { db, rel },
                3 => InvalidationMessage::Smgr { backend, locator: RelFileLocator { spc: db, db: rel, rel: a } },
                4 => InvalidationMessage::Relmap { db },
                5 => InvalidationMessage::Snapshot { db, rel },
                _ => InvalidationMessage::Relsync { db, rel },
            }
        })
    }

    proptest! {
        #[test]
        fn pieces_are_bounded_on_the_wire_and_join_to_the_whole(
            messages in proptest::collection::vec(message(), 0..300),
            subxids in proptest::collection::vec(any::<u32>(), 0..300),
            content in proptest::collection::vec(any::<u8>(), 0..300),
            limit in 20usize..2000,
        ) {
            use prost::Message;
            let whole = Arrays { messages: messages.into(), subxids: subxids.into(), content: content.into(), ..Arrays::default() };
            let (mut rest, mut joined) = (whole.clone(), Arrays::default());
            while !rest.is_empty() {
                let piece = rest.split_off(limit);
                let commit = commit(&CommitRecord::default(), piece.clone());
                // The fixed part and the headers of the columns come on top.
                prop_assert!(commit.encoded_len() <= limit + 100, "{} > {limit}", commit.encoded_len());
                joined.messages.extend(piece.messages);
                joined.subxids.extend(piece.subxids);
                joined.content.extend(piece.content);
            }
            prop_assert_eq!(joined, whole);
        }
    }
}
