//! The raw encoding: records verbatim, copied once from the log into the message.

use bytes::{Bytes, BytesMut};
use pg_types::Lsn;
use pg_wal::RawRecord;
use walstorm_proto::primary::v1 as pb;

/// Upper bound of a record's three offsets on the wire: `offsets` stays below 2^21, distances of LSNs below 2^32.
const OFFSETS_WIRE_BYTES: usize = 3 + 5 + 5;

/// Records for one batch.
#[derive(Debug, Default)]
pub(crate) struct RawEncoder {
    /// The records, one behind the other.
    records: BytesMut,
    /// Where each starts.
    offsets: Vec<u32>,
    /// LSN of each, from the batch's start.
    lsn_offsets: Vec<u32>,
    /// End LSN of each, from the batch's start.
    end_lsn_offsets: Vec<u32>,
    /// LSN of the first.
    start: Lsn,
}

impl RawEncoder {
    /// Upper bound of what `record` adds to the message.
    pub(crate) fn cost(record: &RawRecord<'_>) -> usize {
        record.bytes.len() + OFFSETS_WIRE_BYTES
    }

    /// Adds a record.
    pub(crate) fn push(&mut self, record: &RawRecord<'_>) {
        if self.offsets.is_empty() {
            self.start = record.lsn;
        }
        self.offsets.push(self.records.len() as u32);
        self.lsn_offsets.push(distance(self.start, record.lsn));
        self.end_lsn_offsets.push(distance(self.start, record.end_lsn));
        self.records.extend_from_slice(record.bytes);
    }

    /// The message's body. The encoder is empty then, with room for as much again: batches of a busy stream are alike.
    pub(crate) fn finish(&mut self) -> pb::wal_batch::Body {
        let (bytes, count) = (self.records.len(), self.offsets.len());
        let records = std::mem::replace(&mut self.records, BytesMut::with_capacity(bytes)).freeze();
        let take = |v: &mut Vec<u32>| std::mem::replace(v, Vec::with_capacity(count));
        pb::wal_batch::Body::Raw(pb::RawRecords {
            records,
            offsets: take(&mut self.offsets),
            lsn_offsets: take(&mut self.lsn_offsets),
            end_lsn_offsets: take(&mut self.end_lsn_offsets),
        })
    }
}

/// The bodies of the fragments of one large record: its bytes in pieces of at most `piece_bytes`.
pub(crate) fn fragments(record: &RawRecord<'_>, piece_bytes: usize) -> Vec<pb::wal_batch::Body> {
    let mut bodies = Vec::new();
    let mut rest = Bytes::copy_from_slice(record.bytes);
    while !rest.is_empty() {
        let records = rest.split_to(piece_bytes.min(rest.len()));
        let first = bodies.is_empty();
        let one = |value: u32| if first { vec![value] } else { Vec::new() };
        bodies.push(pb::wal_batch::Body::Raw(pb::RawRecords {
            records,
            offsets: one(0),
            lsn_offsets: one(0),
            end_lsn_offsets: one(distance(record.lsn, record.end_lsn)),
        }));
    }
    bodies
}

/// How far `lsn` is from the start of a batch. A batch reads at most 16 MiB and one record more; that record can lie behind one
/// that was lost half written (below 1 GiB), have 1 GiB itself, and end a segment of 1 GiB: below 4 GiB in all.
fn distance(start: Lsn, lsn: Lsn) -> u32 {
    u32::try_from(lsn.0.saturating_sub(start.0)).unwrap_or(u32::MAX)
}
