//! What WAL that has been received and is not decoded yet tells about ends of transactions.
//!
//! From 18 on a walsender asks the commit log about a transaction before it writes its changes out, and drops them if it is rolled
//! back; a prepared one is looked up before each catalog lookup. The commit log knows all that has happened at the server. A node on
//! the other side of a network knows less: what is in the batches that wait for the decoding thread, and in the rest of the one at
//! hand. That is an honest part of it: what is said here has happened, and the rest counts as running, as it would on a server that
//! is as far. How much waits is a matter of timing, so counters of spilled and streamed bytes may differ between runs; what commits
//! never does.
//!
//! Nothing is read unless somebody asks, and each batch at most once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use decoder_core::TransactionStatus;
use pg_types::{Lsn, RecordBody, WalRecord, Xid};
use pg_wal::{Crc, RawRecord, RecordClass, WalProfile, decode_bytes};
use rustc_hash::FxHashMap;

use crate::pipeline::{Batch, places};

/// Ends in one batch: where each is and whether it is a rollback, in the order of the WAL.
type Ends = FxHashMap<Xid, Vec<(Lsn, bool)>>;

/// Batches in order, with the ends of each, once they were asked for.
type Waiting = VecDeque<(Arc<Batch>, Option<Ends>)>;

/// Batches that are not decoded, shared by who receives them and who decodes them.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedEnds {
    /// How records of this WAL are laid out.
    wal: &'static WalProfile,
    /// As many as the channel between the two and their tasks hold.
    batches: Arc<Mutex<Waiting>>,
}

impl ReceivedEnds {
    /// Nothing yet.
    pub(crate) fn new(wal: &'static WalProfile) -> Self {
        Self { wal, batches: Arc::default() }
    }

    /// How records of this WAL are laid out.
    pub(crate) fn wal(&self) -> &'static WalProfile {
        self.wal
    }

    /// A batch has arrived.
    pub(crate) fn received(&self, batch: Arc<Batch>) {
        self.lock().push_back((batch, None));
    }

    /// Everything up to `end` is decoded.
    pub(crate) fn decoded(&self, end: Lsn) {
        let mut batches = self.lock();
        while batches.front().is_some_and(|(batch, _)| batch.end <= end) {
            batches.pop_front();
        }
    }

    /// Reads a batch's ends. What comes behind a record that cannot be read counts as running.
    fn read(&self, batch: &Batch) -> Ends {
        let mut ends = Ends::default();
        for (lsn, end_lsn, bytes) in places(batch).map_while(Result::ok) {
            let class = RawRecord::new(lsn, end_lsn, bytes).map(|raw| raw.class());
            if !matches!(class, Ok(RecordClass::Commit | RecordClass::Abort)) {
                continue;
            }
            let Ok(record) = decode_bytes(self.wal, lsn, end_lsn, bytes, Crc::Check) else { break };
            note(&record, &mut ends);
        }
        ends
    }

    /// Nothing panics while holding it.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes the transactions that a record ends.
fn note(record: &WalRecord, ends: &mut Ends) {
    let (subxids, prepared, aborted) = match &record.body {
        RecordBody::Commit(commit) => (&commit.subxids, commit.prepared_xid, false),
        RecordBody::Abort(abort) => (&abort.subxids, abort.prepared_xid, true),
        _ => return,
    };
    let own = if prepared.is_valid() { prepared } else { record.xid };
    for xid in subxids.iter().chain([&own]) {
        ends.entry(*xid).or_default().push((record.lsn, aborted));
    }
}

impl TransactionStatus for ReceivedEnds {
    fn is_aborted(&mut self, xid: Xid, lsn: Lsn) -> bool {
        let mut batches = self.lock();
        for (batch, ends) in batches.iter_mut().filter(|(batch, _)| batch.end > lsn) {
            let ends = ends.get_or_insert_with(|| self.read(batch));
            if let Some((_, aborted)) = ends.get(&xid).and_then(|ends| ends.iter().find(|(end, _)| *end > lsn)) {
                return *aborted;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use pg_types::PgVersion;
    use pg_types::record::AbortRecord;
    use pg_wal::WalReader;
    use pg_wal::writer::{WalWriter, WriterConfig};
    use walstorm_proto::primary::v1::RawRecords;

    use std::time::Instant;

    use super::*;

    /// Two batches of records as a server writes them, and where each record is.
    fn batches(bodies: &[(u32, RecordBody)]) -> ([Arc<Batch>; 2], Vec<Lsn>) {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = WalWriter::create(dir.path(), WriterConfig::new(1).with_segment_size(1 << 20)).unwrap();
        for (xid, body) in bodies {
            writer.append(Xid(*xid), Xid::INVALID, 0, body).unwrap();
        }
        writer.finish().unwrap();
        let mut reader = WalReader::open(&pg_wal::WalDir::open(dir.path(), None).unwrap(), None).unwrap();
        let mut found = Vec::new();
        while let Some(raw) = reader.next().unwrap() {
            if matches!(raw.class(), RecordClass::Commit | RecordClass::Abort) {
                found.push((raw.lsn, raw.end_lsn, raw.bytes.to_vec()));
            }
        }
        assert_eq!(found.len(), bodies.len());
        let batch = |records: &[(Lsn, Lsn, Vec<u8>)]| {
            let (start, mut raw, mut bytes) = (records[0].0, RawRecords::default(), Vec::new());
            for (lsn, end_lsn, record) in records {
                raw.offsets.push(bytes.len() as u32);
                raw.lsn_offsets.push((lsn.0 - start.0) as u32);
                raw.end_lsn_offsets.push((end_lsn.0 - start.0) as u32);
                bytes.extend_from_slice(record);
            }
            raw.records = bytes.into();
            let end = records[records.len() - 1].1;
            Arc::new(Batch { start, end, raw, contexts: Vec::new(), sender: None, arrived: Instant::now() })
        };
        let (first, second) = found.split_at(bodies.len() / 2);
        ([batch(first), batch(second)], found.iter().map(|(lsn, ..)| *lsn).collect())
    }

    #[test]
    fn the_next_end_decides_and_what_is_not_received_counts_as_running() {
        let abort = |subxids: &[u32], prepared: u32| {
            let subxids = subxids.iter().map(|xid| Xid(*xid)).collect();
            RecordBody::Abort(Box::new(AbortRecord { subxids, prepared_xid: Xid(prepared), ..AbortRecord::default() }))
        };
        let commit = || RecordBody::Commit(Box::default());
        let ([first, second], lsns) =
            batches(&[(700, commit()), (701, abort(&[702], 0)), (700, abort(&[], 0)), (0, abort(&[], 703))]);
        let mut ends = ReceivedEnds::new(WalProfile::of(PgVersion::V18));
        let known = |ends: &mut ReceivedEnds, lsn: Lsn| {
            [700, 701, 702, 703, 704].into_iter().filter(|xid| ends.is_aborted(Xid(*xid), lsn)).collect::<Vec<_>>()
        };
        assert_eq!(known(&mut ends, Lsn(1)), Vec::<u32>::new());
        ends.received(Arc::clone(&first));
        assert_eq!(known(&mut ends, Lsn(1)), [701, 702]);
        ends.received(second);
        assert_eq!(known(&mut ends, Lsn(1)), [701, 702, 703], "700 commits first");
        assert_eq!(known(&mut ends, lsns[0]), [700, 701, 702, 703], "and comes again");
        assert_eq!(known(&mut ends, lsns[1]), [700, 703], "behind that record");
        ends.decoded(first.end);
        assert_eq!(known(&mut ends, Lsn(1)), [700, 703]);
        assert_eq!(ends.lock().len(), 1, "what is decoded is not kept");
    }

    #[test]
    fn behind_damage_everything_counts_as_running() {
        let abort = || RecordBody::Abort(Box::default());
        let ([first, _], _) = batches(&[(700, abort()), (701, abort()), (702, abort()), (703, abort())]);
        let mut damaged = Batch {
            start: first.start,
            end: first.end,
            raw: first.raw.clone(),
            contexts: vec![],
            sender: None,
            arrived: first.arrived,
        };
        let mut bytes = damaged.raw.records.to_vec();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        damaged.raw.records = bytes.into();
        let mut ends = ReceivedEnds::new(WalProfile::of(PgVersion::V18));
        ends.received(Arc::new(damaged));
        assert!(ends.is_aborted(Xid(700), Lsn(1)) && !ends.is_aborted(Xid(701), Lsn(1)));
    }
}
