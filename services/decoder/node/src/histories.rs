//! Random histories through decoder, sink, output log and what subscribers get, with crashes in between: whole transactions are those of
//! a decoder that gives out nothing else, and whoever puts blocks and prepared transactions together has the same.

#[path = "../../core/tests/support/mod.rs"]
mod support;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use decoder_core::{Decoder, DecoderConfig, NoCatalog, SnapBuildState, TwoPhase, WorkMem};
use pg_types::{Lsn, PgVersion, RecordBody};
use proptest::prelude::*;
use service_kit::SystemClock;
use service_kit::telemetry::Tracer;
use support::Log;
use support::history::{workload, write};
use walstorm_proto::EventBatch;
use walstorm_proto::decoder::v1::event::Kind;
use walstorm_proto::decoder::v1::{Commit, CommitPrepared};

use crate::output_log::{Entry, LogConfig, LogWriter, OutputLog};
use crate::server::assemble::{Piece, Splitter};
use crate::server::filter::{Filter, Wanted};
use crate::server::in_progress::InProgress;
use crate::sink::EventSink;
use crate::trace::TransactionSpans;

/// Where the histories' WAL begins.
const BEGIN: Lsn = Lsn(0x1000);

/// A change, truncate or message, with the (sub)transaction that a block tells.
type Part = (u32, String, u64);

/// A committed transaction: where it ends, what it did, and its commit.
type Done = (Lsn, Vec<Part>, String);

/// A node without network.
struct Node<'a> {
    log: &'a Log,
    config: DecoderConfig,
    output: LogConfig,
    /// Sizes of entries and fragments.
    sizes: (usize, usize),
    /// Everything is written so often, in records.
    publish_every: usize,
    /// Where a decoder begins, and whether it was consistent there.
    restart: (Lsn, bool),
    two_phase_at: Lsn,
}

impl Node<'_> {
    /// A node in a folder.
    fn new<'a>(log: &'a Log, config: DecoderConfig, dir: &Path, sizes: (usize, usize), publish_every: usize) -> Node<'a> {
        let output =
            LogConfig { dir: dir.to_owned(), segment_bytes: 700, memory_bytes: 0, keep_bytes: u64::MAX, bytes_max: u64::MAX };
        Node { log, config, output, sizes, publish_every, restart: (BEGIN, false), two_phase_at: Lsn::INVALID }
    }

    /// Runs from the last checkpoint up to record `until`, and crashes there. What was not written is lost.
    fn run(&mut self, until: usize) -> Arc<OutputLog> {
        let (mut writer, output) = OutputLog::open(self.output.clone(), 1, BEGIN, None).unwrap();
        let spans = TransactionSpans::new(Tracer::off(), Arc::new(SystemClock::new()), "indexed");
        let sink = EventSink::new(writer.end(), writer.open_transactions().clone(), spans);
        let mut sink = sink.with_sizes(self.sizes.0, self.sizes.1);
        let two_phase = self.config.two_phase.is_some().then_some(TwoPhase { at: self.two_phase_at, except: None });
        let config = DecoderConfig { confirmed_lsn: writer.end(), two_phase, ..self.config.clone() };
        let decoder = match self.restart.1 {
            true => Decoder::resume(config, Arc::new(NoCatalog)),
            false => Decoder::new(config, Arc::new(NoCatalog)),
        };
        let mut decoder = decoder.streamed_before(sink.streamed_before());
        let from = self.log.records.partition_point(|record| record.lsn < self.restart.0);
        for (i, record) in self.log.records.iter().enumerate().take(until).skip(from) {
            sink.begin_record(record.lsn, record.end_lsn, matches!(record.body, RecordBody::Prepare(_)));
            decoder.process(record, &mut sink).unwrap();
            sink.end_record();
            write_finished(&mut sink, &mut writer);
            if i % self.publish_every == 0 {
                sink.finish();
                write_finished(&mut sink, &mut writer);
                self.restart = (decoder.restart_lsn(), decoder.state() == SnapBuildState::Consistent);
                self.two_phase_at = decoder.two_phase_at();
            }
        }
        if until >= self.log.records.len() {
            sink.finish();
            write_finished(&mut sink, &mut writer);
        }
        output
    }
}

/// Writes entries to the log.
fn write_finished(sink: &mut EventSink, writer: &mut LogWriter) {
    for finished in sink.take_finished() {
        match finished.end {
            Some(end) => writer.append(finished.buffer, end, finished.items).unwrap(),
            None => writer.append_fragment(finished.buffer).unwrap(),
        }
    }
}

/// All entries after `position`.
fn entries(log: &OutputLog, position: Lsn) -> Vec<Entry> {
    let mut cursor = log.seek(position).unwrap();
    let mut all = Vec::new();
    loop {
        let read = log.read(&mut cursor, 1).unwrap();
        if read.is_empty() {
            return all;
        }
        all.extend(read);
    }
}

/// Puts events together, as the contract tells subscribers to.
#[derive(Default)]
struct Consumer {
    names: HashMap<u32, String>,
    /// The whole transaction, or the block, at hand.
    open: Vec<Part>,
    block: Option<u32>,
    /// Blocks of transactions in progress.
    streamed: BTreeMap<u32, Vec<Part>>,
    prepared: BTreeMap<u32, (Vec<Part>, Commit)>,
    done: Vec<Done>,
    /// The last position that may be acknowledged.
    position: Lsn,
    blocks: usize,
}

impl Consumer {
    fn part(&mut self, xid: u32, what: String, n: u64) {
        let list = match self.block {
            Some(top) => self.streamed.get_mut(&top).unwrap(),
            None => &mut self.open,
        };
        assert_eq!(xid != 0, self.block.is_some(), "only blocks tell who did it");
        match list.last_mut().filter(|last| (last.0, &last.1) == (xid, &what)) {
            Some(last) => last.2 += n,
            None => list.push((xid, what, n)),
        }
    }

    fn reached(&mut self, end_lsn: u64) {
        assert!(end_lsn == 0 || Lsn(end_lsn) > self.position, "{end_lsn:x} after {}", self.position);
        self.position = self.position.max(Lsn(end_lsn));
    }

    fn end(&mut self, parts: Vec<Part>, c: &Commit) {
        let parts = parts.into_iter().map(|(_, what, n)| (0, what, n)).collect();
        let sums = (c.xid, c.commit_lsn, &c.commit_time, &c.subxids, &c.messages);
        self.done.push((Lsn(c.end_lsn), parts, format!("{sums:?}")));
    }

    fn batch(&mut self, batch: &EventBatch) {
        self.names.clear();
        for event in batch.events() {
            self.event(event.unwrap().kind.unwrap());
        }
    }

    fn event(&mut self, kind: Kind) {
        match kind {
            Kind::Relation(r) => drop(self.names.insert(r.relation_id, format!("{:?}", r.locator))),
            Kind::Begin(_) => assert!(self.open.is_empty() && self.block.is_none()),
            Kind::Change(c) => {
                let (name, columns) = (self.names[&c.relation_id].clone(), c.columns.unwrap());
                for ((kind, at), rows) in columns.kinds.iter().zip(&columns.lsn_offsets).zip(&columns.row_counts) {
                    let what = format!("{kind} {name} {:x}", c.lsn + u64::from(*at));
                    self.part(c.xid, what, (*rows).into());
                }
            }
            Kind::Truncate(t) => {
                let names: Vec<_> = t.relation_ids.iter().map(|id| &self.names[id]).collect();
                let what = format!("{:x} {names:?}", t.lsn);
                self.part(t.xid, what, 1);
            }
            Kind::Message(m) => self.part(m.xid, format!("{:x} {:?}", m.lsn, m.content), 1),
            Kind::Commit(c) => {
                let open = std::mem::take(&mut self.open);
                self.reached(c.end_lsn);
                self.end(open, &c);
            }
            Kind::StreamStart(s) => {
                assert!(self.open.is_empty() && self.block.is_none());
                if s.first {
                    self.streamed.insert(s.xid, Vec::new());
                }
                assert!(self.streamed.contains_key(&s.xid), "the first block comes first");
                self.block = Some(s.xid);
                self.blocks += 1;
            }
            Kind::StreamStop(s) => {
                assert_eq!(self.block.take(), Some(s.xid));
                self.reached(s.end_lsn);
            }
            Kind::StreamAbort(a) => {
                if a.xid == a.subxid {
                    assert!(self.streamed.remove(&a.xid).is_some());
                } else {
                    self.streamed.get_mut(&a.xid).unwrap().retain(|part| part.0 != a.subxid);
                }
                self.reached(a.end_lsn);
            }
            Kind::StreamCommit(s) => {
                let commit = s.commit.unwrap();
                let parts = self.streamed.remove(&commit.xid).unwrap();
                self.reached(commit.end_lsn);
                self.end(parts, &commit);
            }
            Kind::Prepare(p) => {
                let sums = *p.transaction.unwrap();
                let parts = if p.streamed { self.streamed.remove(&sums.xid).unwrap() } else { std::mem::take(&mut self.open) };
                self.reached(p.end_lsn);
                assert!(self.prepared.insert(sums.xid, (parts, sums)).is_none());
            }
            Kind::CommitPrepared(end) => self.commit_prepared(&end),
            Kind::RollbackPrepared(end) => {
                assert!(self.prepared.remove(&end.xid).is_some());
                self.reached(end.end_lsn);
            }
        }
    }

    fn commit_prepared(&mut self, end: &CommitPrepared) {
        let (parts, sums) = self.prepared.remove(&end.xid).unwrap();
        assert_eq!(sums.subxids, end.subxids);
        self.reached(end.end_lsn);
        let (commit_lsn, end_lsn, commit_time) = (end.commit_lsn, end.end_lsn, end.commit_time);
        self.end(parts, &Commit { commit_lsn, end_lsn, commit_time, ..sums });
    }
}

/// Whole transactions after `position`, as a stream puts them together.
fn on_commit(log: &OutputLog, position: Lsn) -> Consumer {
    let (mut consumer, mut splitter) = (Consumer { position, ..Consumer::default() }, Splitter::default());
    let mut filter = Filter::new(position, Wanted::new(Vec::new()), false);
    let mut told = position;
    let mut tell = |end: Option<Lsn>| {
        assert!(end.is_none_or(|end| end >= told || end <= position), "positions do not go back");
        told = told.max(end.unwrap_or(told));
    };
    for entry in entries(log, position) {
        let end = (!entry.is_fragment()).then_some(entry.end);
        let (stored, all) = (EventBatch::from_encoded(entry.payload.clone()), filter.passes_whole(entry.prev_end));
        let pieces = match splitter.passes_whole(&entry) {
            true => vec![Piece::Batch(Some(stored), end)],
            false => splitter.split(&stored, end).unwrap(),
        };
        for piece in pieces {
            match piece {
                Piece::Batch(batch, end) => {
                    let left = match batch {
                        Some(batch) if !all => filter.apply(&batch).unwrap(),
                        batch => batch,
                    };
                    left.iter().for_each(|batch| consumer.batch(batch));
                    tell(end);
                }
                Piece::Back(read) if read.end_lsn() <= position => {}
                Piece::Back(mut read) => {
                    let mut done = false;
                    for entry in entries(log, read.start) {
                        let (batch, all) = read.take(&EventBatch::from_encoded(entry.payload)).unwrap();
                        batch.iter().for_each(|batch| consumer.batch(batch));
                        done = all;
                        if done {
                            break;
                        }
                    }
                    assert!(done, "its end is in the log");
                    tell(Some(read.end_lsn()));
                }
            }
        }
    }
    assert!(consumer.open.is_empty());
    consumer
}

/// What a subscriber of transactions in progress has, who had `prepared` ones at `position`.
fn in_progress(log: &OutputLog, position: Lsn, prepared: BTreeMap<u32, (Vec<Part>, Commit)>) -> Consumer {
    let live = log.seek(position).unwrap().next();
    let open = log.open_at(position).unwrap();
    assert_eq!(open.prepared.len(), prepared.len(), "at {position}");
    let first = open.streamed.values().map(|streamed| streamed.start).min().unwrap_or(position);
    let again = open.streamed.into_keys().collect();
    let mut wishes = InProgress::new(position, live, again, HashSet::new(), Wanted::new(Vec::new()));
    let mut consumer = Consumer { position, prepared, ..Consumer::default() };
    for entry in entries(log, first) {
        let batch = match wishes.passes_whole(&entry) {
            true => Some(EventBatch::from_encoded(entry.payload)),
            false => wishes.apply(&entry).unwrap(),
        };
        batch.iter().for_each(|batch| consumer.batch(batch));
    }
    consumer
}

/// What a node that gives out whole transactions gives, without crashes.
fn reference(log: &Log) -> Vec<Done> {
    let dir = tempfile::tempdir().unwrap();
    let config = support::config(PgVersion::V18, "indexed", WorkMem::default());
    let output = Node::new(log, config, dir.path(), (1 << 20, 1 << 20), 1).run(log.records.len());
    on_commit(&output, BEGIN).done
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(120) })]

    #[test]
    fn every_delivery_gives_the_same_committed_changes_whatever_crashes(
        steps in workload(true),
        tiny in 1u64..1500,
        switches in 0u8..4,
        sizes in (1usize..400, 1usize..400),
        publish_every in 1usize..12,
        crashes in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        profile in prop::sample::select(vec!["pg14", "pg18", "indexed"]),
    ) {
        let log = write(&steps, PgVersion::V18, 4);
        let expected = reference(&log);
        let config = support::config(PgVersion::V18, profile, WorkMem::from_bytes(tiny));
        let two_phase = (switches & 2 != 0).then(TwoPhase::default);
        let config = DecoderConfig { streaming: switches & 1 != 0, two_phase, ..config };
        let dir = tempfile::tempdir().unwrap();
        let mut node = Node::new(&log, config, dir.path(), sizes, publish_every);
        let mut stops: Vec<usize> = crashes.iter().map(|at| at.index(log.records.len())).collect();
        stops.sort_unstable();
        for stop in stops {
            node.run(stop);
        }
        let output = node.run(log.records.len());

        // Every position at which a unit ends, and some between.
        for record in log.records.iter().step_by(3) {
            let position = record.end_lsn;
            let rest: Vec<Done> = expected.iter().filter(|done| done.0 > position).cloned().collect();
            prop_assert_eq!(on_commit(&output, position).done, rest, "from {}", position);
        }
        let all = in_progress(&output, BEGIN, BTreeMap::new());
        prop_assert_eq!(&all.done, &expected);
        prop_assert!(all.blocks == 0 || switches & 1 != 0);
        // A subscriber that stops at a position forgets blocks, and keeps what is prepared.
        for record in log.records.iter().step_by(5) {
            let position = record.end_lsn;
            let before = stopped_at(&output, position);
            let rest: Vec<Done> = expected.iter().filter(|done| done.0 > position).cloned().collect();
            prop_assert_eq!(in_progress(&output, position, before).done, rest, "from {}", position);
        }
    }
}

/// What is prepared at `position`.
fn stopped_at(log: &OutputLog, position: Lsn) -> BTreeMap<u32, (Vec<Part>, Commit)> {
    let mut consumer = Consumer { position: BEGIN, ..Consumer::default() };
    let mut unit = Vec::new();
    for entry in entries(log, BEGIN) {
        for event in EventBatch::from_encoded(entry.payload.clone()).events() {
            let kind = event.unwrap().kind.unwrap();
            let end = crate::output_log::end_of(&kind);
            unit.push(kind);
            match end {
                Some(end) if end > position => return consumer.prepared,
                Some(_) => unit.drain(..).for_each(|kind| consumer.event(kind)),
                None => {}
            }
        }
    }
    consumer.prepared
}
