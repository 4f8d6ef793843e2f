//! From what the wire carries to records that replay can trust: fragments joined, every offset checked, repetitions dropped.
//!
//! The stream is at least once and comes from outside: a batch may repeat what a reconnected client has, may be a piece of a
//! record, and may say anything about its own contents. Here it becomes a [`Batch`] whose records lie within its bytes, in LSN
//! order, after everything that came before; or an error that says what does not hold. Nothing is copied but joined fragments.
//!
//! Invariants:
//! - I1: records leave in LSN order, each once; [`BatchAssembler::received`] never goes back.
//! - I2: a fragment is joined only with fragments of the same LSN range, and never beyond [`RECORD_BYTES_MAX`].

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pg_types::Lsn;
use walstorm_proto::primary::v1::{RawRecords, WalBatch, wal_batch};
use walstorm_proto::wal::v1::TransactionContext;

/// Longest record that is joined from fragments, in bytes: PostgreSQL's own limit from 16 on (`XLogRecordMaxSize`, 1020 MiB).
const RECORD_BYTES_MAX: usize = 1020 << 20;

/// One record as it lies in its batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawRecord {
    /// Its first byte in the WAL.
    pub lsn: Lsn,
    /// One past its last byte in the WAL, aligned.
    pub end_lsn: Lsn,
    /// The record, header included.
    pub bytes: Bytes,
}

/// Whole records in LSN order.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Where the batch ends; every record before it is here or came before.
    pub end_lsn: Lsn,
    /// The records.
    pub records: Vec<RawRecord>,
    /// Trace contexts of the transactions that commit in it.
    pub contexts: Vec<TransactionContext>,
    /// Context of the span that sent it, empty if none.
    pub traceparent: String,
    /// Bytes of the records.
    pub bytes: usize,
    /// When it was received whole, by the node's clock.
    pub received: Duration,
}

/// A batch that does not hold together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("batch {start}..{end} from the primary: {reason}")]
pub struct BatchError {
    /// Its start as told.
    pub start: Lsn,
    /// Its end as told.
    pub end: Lsn,
    /// What does not hold.
    pub reason: String,
}

/// Pieces of one record that have arrived.
#[derive(Debug)]
struct Pieces {
    /// Start and end of the record.
    range: (u64, u64),
    /// The first piece's arrays; its bytes are in `bytes`.
    head: RawRecords,
    /// Contexts of the first piece.
    contexts: Vec<TransactionContext>,
    /// The bytes so far.
    bytes: BytesMut,
}

/// Turns the batches of one stream into [`Batch`]es. It lives as long as the standby, so that a new stream continues the old one.
#[derive(Debug)]
pub struct BatchAssembler {
    /// Everything before has been handed out, or lies before the start (I1).
    received: Lsn,
    /// A record in pieces.
    pieces: Option<Pieces>,
}

impl BatchAssembler {
    /// An assembler for which everything before `received` counts as known.
    #[must_use]
    pub fn new(received: Lsn) -> Self {
        Self { received, pieces: None }
    }

    /// Everything before it has arrived: where a new stream is to begin.
    #[must_use]
    pub fn received(&self) -> Lsn {
        self.received
    }

    /// A new stream begins: pieces of the old one are void.
    pub fn stream_started(&mut self) {
        self.pieces = None;
    }

    /// The primary says that nothing more lies before `lsn` (a keepalive's progress).
    pub fn progressed(&mut self, lsn: Lsn) {
        if self.pieces.is_none() {
            self.received = self.received.max(lsn);
        }
    }

    /// Takes a batch; gives the records that it completes, none if it was a piece or all of it was known.
    ///
    /// # Errors
    /// The batch does not hold together; the stream is not to be trusted further.
    pub fn take(&mut self, wire: WalBatch) -> Result<Option<Batch>, BatchError> {
        let (start, end) = (Lsn(wire.start_lsn), Lsn(wire.end_lsn));
        let error = |reason: String| BatchError { start, end, reason };
        if start > end {
            return Err(error("it ends before it starts".to_owned()));
        }
        let Some(wal_batch::Body::Raw(raw)) = wire.body else {
            return Err(error("it is not in the raw encoding that was asked for".to_owned()));
        };
        let Some((raw, contexts)) = self.join(raw, wire.contexts, (start.0, end.0), wire.fragment).map_err(error)? else {
            return Ok(None);
        };
        let records = self.records(start, end, &raw).map_err(error)?;
        self.received = self.received.max(end);
        let bytes = records.iter().map(|r| r.bytes.len()).sum();
        let received = Duration::ZERO;
        Ok(Some(Batch { end_lsn: end, records, contexts, traceparent: wire.traceparent, bytes, received }))
    }

    /// Joins a piece with those before it; gives the whole when its last piece is there, a whole batch at once (I2).
    fn join(
        &mut self,
        raw: RawRecords,
        contexts: Vec<TransactionContext>,
        range: (u64, u64),
        more_follows: bool,
    ) -> Result<Option<(RawRecords, Vec<TransactionContext>)>, String> {
        let Some(mut pieces) = self.pieces.take() else {
            if !more_follows {
                return Ok(Some((raw, contexts)));
            }
            let bytes = BytesMut::from(&raw.records[..]);
            self.pieces = Some(Pieces { range, head: raw, contexts, bytes });
            return Ok(None);
        };
        if pieces.range != range {
            let (start, end) = (Lsn(pieces.range.0), Lsn(pieces.range.1));
            return Err(format!("the record {start}..{end} before it was left in pieces"));
        }
        if pieces.bytes.len().saturating_add(raw.records.len()) > RECORD_BYTES_MAX {
            return Err(format!("its record is longer than {RECORD_BYTES_MAX} bytes"));
        }
        pieces.bytes.extend_from_slice(&raw.records);
        pieces.contexts.extend(contexts);
        if more_follows {
            self.pieces = Some(pieces);
            return Ok(None);
        }
        Ok(Some((RawRecords { records: pieces.bytes.freeze(), ..pieces.head }, pieces.contexts)))
    }

    /// The records of a whole batch that are not known yet.
    fn records(&self, start: Lsn, end: Lsn, raw: &RawRecords) -> Result<Vec<RawRecord>, String> {
        let count = raw.offsets.len();
        if raw.lsn_offsets.len() != count || raw.end_lsn_offsets.len() != count {
            let (starts, ends) = (raw.lsn_offsets.len(), raw.end_lsn_offsets.len());
            return Err(format!("it has {count} offsets, {starts} start LSNs and {ends} end LSNs"));
        }
        let mut records = Vec::with_capacity(count);
        let mut position = start;
        let ends = raw.offsets.iter().skip(1).map(|&o| o as usize).chain([raw.records.len()]);
        let rows = raw.offsets.iter().zip(ends).zip(raw.lsn_offsets.iter().zip(&raw.end_lsn_offsets));
        for (i, ((&from, to), (&lsn_offset, &end_offset))) in rows.enumerate() {
            let from = from as usize;
            if from >= to || to > raw.records.len() {
                return Err(format!("record {i} lies at bytes {from}..{to} of {}", raw.records.len()));
            }
            let lsn = Lsn(start.0.saturating_add(u64::from(lsn_offset)));
            let end_lsn = Lsn(start.0.saturating_add(u64::from(end_offset)));
            if lsn < position || end_lsn <= lsn || end_lsn > end {
                return Err(format!("record {i} at {lsn}..{end_lsn} is out of order or outside"));
            }
            position = end_lsn;
            if end_lsn > self.received {
                records.push(RawRecord { lsn, end_lsn, bytes: raw.records.slice(from..to) });
            }
        }
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A batch of records of 8 bytes each at 16-byte distances, from `start` on.
    fn wire(start: u64, count: u32) -> WalBatch {
        let raw = RawRecords {
            records: (0..count).flat_map(|i| [i as u8; 8]).collect::<Vec<u8>>().into(),
            offsets: (0..count).map(|i| i * 8).collect(),
            lsn_offsets: (0..count).map(|i| i * 16).collect(),
            end_lsn_offsets: (0..count).map(|i| i * 16 + 16).collect(),
        };
        WalBatch {
            start_lsn: start,
            end_lsn: start + u64::from(count) * 16,
            body: Some(wal_batch::Body::Raw(raw)),
            ..WalBatch::default()
        }
    }

    fn raw(batch: &mut WalBatch) -> &mut RawRecords {
        match &mut batch.body {
            Some(wal_batch::Body::Raw(raw)) => raw,
            _ => unreachable!("made raw above"),
        }
    }

    #[test]
    fn repeated_records_are_dropped() {
        let mut assembler = BatchAssembler::new(Lsn(0));
        assert_eq!(assembler.take(wire(160, 3)).unwrap().unwrap().records.len(), 3);
        assembler.stream_started();
        let again = assembler.take(wire(160, 5)).unwrap().unwrap();
        assert_eq!(again.records.iter().map(|r| r.lsn).collect::<Vec<_>>(), [Lsn(208), Lsn(224)]);
        assert_eq!(assembler.received(), Lsn(240));
        assert!(assembler.take(wire(160, 2)).unwrap().unwrap().records.is_empty());
        assert_eq!(assembler.received(), Lsn(240));
    }

    #[test]
    fn pieces_are_joined_and_void_after_a_new_start() {
        let piece = |bytes: &'static [u8], first: bool, fragment: bool| {
            let mut batch = wire(160, 1);
            raw(&mut batch).records = Bytes::from_static(bytes);
            if !first {
                raw(&mut batch).offsets.clear();
                raw(&mut batch).lsn_offsets.clear();
                raw(&mut batch).end_lsn_offsets.clear();
            }
            batch.fragment = fragment;
            batch
        };
        let mut assembler = BatchAssembler::new(Lsn(0));
        assert!(assembler.take(piece(b"ab", true, true)).unwrap().is_none());
        assert!(assembler.take(piece(b"cd", false, true)).unwrap().is_none());
        assembler.progressed(Lsn(9999));
        assert_eq!(assembler.received(), Lsn(0), "a record in pieces has not arrived");
        let batch = assembler.take(piece(b"e", false, false)).unwrap().unwrap();
        assert_eq!(batch.records[0].bytes, "abcde");
        assert_eq!(assembler.received(), Lsn(176));

        let mut assembler = BatchAssembler::new(Lsn(0));
        assembler.take(piece(b"ab", true, true)).unwrap();
        let error = assembler.take(wire(320, 1)).unwrap_err();
        assert!(error.to_string().contains("0/A0..0/B0 before it was left in pieces"), "{error}");
        let mut assembler = BatchAssembler::new(Lsn(0));
        assembler.take(piece(b"ab", true, true)).unwrap();
        assembler.stream_started();
        assert_eq!(assembler.take(wire(160, 1)).unwrap().unwrap().records[0].bytes, [0_u8; 8][..]);
    }

    #[test]
    fn a_batch_that_lies_about_itself_is_refused() {
        type Lie = fn(&mut WalBatch);
        let lies: [(Lie, &str); 8] = [
            (|b| b.end_lsn = 0, "ends before it starts"),
            (|b| b.body = None, "raw encoding"),
            (|b| raw(b).offsets.truncate(1), "1 offsets, 3 start LSNs"),
            (|b| raw(b).offsets[2] = 4, "record 1 lies at bytes 8..4"),
            (|b| raw(b).offsets[2] = 100, "record 1 lies at bytes 8..100"),
            (|b| raw(b).lsn_offsets[1] = 0, "record 1 at 0/A0..0/C0 is out of order"),
            (|b| raw(b).end_lsn_offsets[1] = 16, "record 1 at 0/B0..0/B0"),
            (|b| raw(b).end_lsn_offsets[2] = u32::MAX, "outside"),
        ];
        for (lie, says) in lies {
            let mut batch = wire(160, 3);
            lie(&mut batch);
            let error = BatchAssembler::new(Lsn(0)).take(batch).unwrap_err().to_string();
            assert!(error.contains(says), "{error} should say {says}");
        }
    }

    proptest! {
        /// I1 for any way of cutting and repeating a stream: every record once, in order.
        #[test]
        fn i1_every_record_once_and_in_order(cuts in prop::collection::vec((0_u64..40, 1_u32..9), 1..40)) {
            let mut assembler = BatchAssembler::new(Lsn(0));
            let mut seen: Vec<u64> = Vec::new();
            let mut next = 0;
            for (back, count) in cuts {
                let from = next - back.min(next);
                let batch = assembler.take(wire(from * 16, count)).unwrap().unwrap();
                seen.extend(batch.records.iter().map(|r| r.lsn.0 / 16));
                next = next.max(from + u64::from(count));
            }
            prop_assert_eq!(seen, (0..next).collect::<Vec<_>>());
        }
    }
}
