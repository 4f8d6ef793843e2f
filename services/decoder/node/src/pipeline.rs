//! The decoding thread: batches in, output log entries out. Everything that takes CPU time happens here, on a thread of its own,
//! in the order of the WAL.
//!
//! Batches come through a bounded channel. As long as more are waiting, output is collected into large entries, for at most the
//! flush interval; when none is, it is written at once. So a busy node writes large chunks, and an idle one answers at once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use decoder_core::{Decoder, SnapBuildState, TwoPhase};
use opentelemetry::trace::SpanContext;
use pg_types::{Lsn, Oid, RecordBody};
use pg_wal::catalog_rows::CatalogRows;
use pg_wal::{Crc, RawRecord, WalProfile};
use service_kit::telemetry::names;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, watch};
use walstorm_proto::primary::v1 as pb;

use crate::checkpoint::Checkpoint;
use crate::config::Checked;
use crate::costliest::Costliest;
use crate::error::NodeError;
use crate::flusher::{FlushQueue, FlushRequest};
use crate::output_log::LogWriter;
use crate::received_ends::ReceivedEnds;
use crate::sink::EventSink;
use crate::snapshots::FileSnapshots;
use crate::spill::FileSpill;
use crate::state::{NodeState, OutputProgress};

/// Batches that wait for the database to be known, at most: none is decoded before.
const WAITING_MAX: usize = 256;

/// What comes from the primary.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Whole records.
    Batch(Arc<Batch>),
    /// Nothing more before this LSN.
    Progress {
        /// Everything before it has arrived.
        received: Lsn,
        /// Nothing will ever come after it.
        source_ended: bool,
    },
}

/// Whole records in LSN order.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Start of the first.
    pub(crate) start: Lsn,
    /// End of the last.
    pub(crate) end: Lsn,
    /// The records; fragments are joined.
    pub(crate) raw: pb::RawRecords,
    /// Sampled transactions that commit in it, by the start of their commit record, in order.
    pub(crate) contexts: Vec<(Lsn, SpanContext)>,
    /// The primary's span, if it is sampled.
    pub(crate) sender: Option<SpanContext>,
    /// When it arrived.
    pub(crate) arrived: Instant,
}

/// What the thread owns.
#[derive(Debug)]
pub(crate) struct Pipeline {
    /// Settings.
    pub(crate) checked: Checked,
    /// How records of this WAL are laid out.
    wal: &'static WalProfile,
    /// What has arrived and is not decoded yet.
    ahead: ReceivedEnds,
    /// The decoder, once the database is known.
    decoder: Option<Decoder>,
    /// Rows that say what is published, if somebody asks for publications.
    catalog_rows: CatalogRows,
    /// Batches from before that; the checkpoint stays before them.
    waiting: Vec<Arc<Batch>>,
    /// Takes what is decoded.
    sink: EventSink,
    /// Where it goes.
    writer: LogWriter,
    /// The checkpoint that belongs to the state at hand.
    checkpoint: Checkpoint,
    /// Work of the decoder that was published already.
    published_work: pg_types::Work,
    /// When everything was last written and reported.
    published_at: Instant,
    /// Longest time between two such moments while batches come.
    flush_interval: Duration,
    /// Who else wants to know.
    pub(crate) outlets: Outlets,
}

/// Where the thread reports.
#[derive(Clone, Debug)]
pub(crate) struct Outlets {
    /// The node's state.
    pub(crate) state: watch::Sender<NodeState>,
    /// What subscribers watch.
    pub(crate) output: watch::Sender<OutputProgress>,
    /// The flusher.
    pub(crate) flusher: Arc<FlushQueue>,
    /// The costliest transactions.
    pub(crate) costliest: Arc<Mutex<Costliest>>,
    /// Where the snapshot builder is serialised.
    pub(crate) snapshots: FileSnapshots,
}

impl Pipeline {
    /// A pipeline that goes on from `checkpoint`.
    ///
    /// # Errors
    ///
    /// The folder for spill files cannot be used.
    pub(crate) fn new(
        checked: Checked,
        ahead: ReceivedEnds,
        checkpoint: Checkpoint,
        writer: LogWriter,
        sink: EventSink,
        flush_interval: Duration,
        outlets: Outlets,
    ) -> Result<Self, NodeError> {
        let mut pipeline = Self {
            checked,
            wal: ahead.wal(),
            ahead,
            decoder: None,
            catalog_rows: CatalogRows::new(),
            waiting: Vec::new(),
            sink,
            writer,
            checkpoint,
            published_work: pg_types::Work::default(),
            published_at: Instant::now(),
            flush_interval,
            outlets,
        };
        if pipeline.checkpoint.database != Oid::INVALID {
            pipeline.make_decoder()?;
        }
        pipeline.outlets.costliest.lock().unwrap_or_else(PoisonError::into_inner).ledger.begin_run();
        pipeline.outlets.output.send_replace(OutputProgress { end: pipeline.writer.end(), decoded: pipeline.writer.end() });
        Ok(pipeline)
    }

    /// Works until the channel is closed. Blocks: for a thread of its own.
    ///
    /// # Errors
    ///
    /// What cannot be decoded or written.
    pub(crate) fn run(mut self, mut arrivals: mpsc::Receiver<Arrival>) -> Result<(), NodeError> {
        loop {
            let arrival = match arrivals.try_recv() {
                Ok(arrival) => arrival,
                Err(TryRecvError::Disconnected) => return self.publish(),
                Err(TryRecvError::Empty) => {
                    self.publish()?;
                    match arrivals.blocking_recv() {
                        Some(arrival) => arrival,
                        None => return Ok(()),
                    }
                }
            };
            match arrival {
                Arrival::Batch(batch) => self.batch(batch)?,
                Arrival::Progress { received, source_ended } => {
                    self.checkpoint.decoded_lsn = self.checkpoint.decoded_lsn.max(received);
                    self.outlets.state.send_modify(|state| state.source_ended = source_ended);
                }
            }
            self.write_finished()?;
            if self.published_at.elapsed() >= self.flush_interval {
                self.publish()?;
            }
        }
    }

    /// Decodes a batch, or keeps it until the database is known.
    fn batch(&mut self, batch: Arc<Batch>) -> Result<(), NodeError> {
        if self.decoder.is_some() {
            return self.decode(&batch);
        }
        if let Some(database) = self.checked.database.map_or_else(|| self.find_database(&batch), |db| Ok(Some(db)))? {
            tracing::info!(database = database.0, "decoding this database");
            self.checkpoint.database = database;
            self.make_decoder()?;
            for waiting in std::mem::take(&mut self.waiting) {
                self.decode(&waiting)?;
            }
            return self.decode(&batch);
        }
        if self.waiting.len() >= WAITING_MAX {
            return Err(NodeError::Setting {
                name: "database",
                must: "be set: no change in the first batches of WAL tells it",
            });
        }
        self.checkpoint.decoded_lsn = self.checkpoint.decoded_lsn.max(batch.end);
        self.waiting.push(batch);
        Ok(())
    }

    /// The database of the first change in a batch.
    fn find_database(&self, batch: &Batch) -> Result<Option<Oid>, NodeError> {
        for place in places(batch) {
            let (lsn, end_lsn, bytes) = place?;
            let record = pg_wal::decode_bytes(self.wal, lsn, end_lsn, bytes, Crc::Check)?;
            if let Some(database) = database_of(&record.body) {
                return Ok(Some(database));
            }
        }
        Ok(None)
    }

    /// The decoder for the checkpoint's database, with an empty folder for its spill files and the serialised snapshots.
    fn make_decoder(&mut self) -> Result<(), NodeError> {
        let checkpoint = &mut self.checkpoint;
        if !self.checked.two_phase {
            checkpoint.two_phase_at = Lsn::INVALID;
        }
        // As a slot that gets `two_phase` later: what was prepared before comes at its commit.
        let at = if checkpoint.two_phase_at.is_valid() { checkpoint.two_phase_at } else { checkpoint.output_end };
        let two_phase = self.checked.two_phase.then_some(TwoPhase { at, except: None });
        let config = decoder_core::DecoderConfig {
            confirmed_lsn: checkpoint.output_end,
            work_mem: self.checked.work_mem,
            streaming: self.checked.streaming,
            two_phase,
            options: self.checked.options.clone(),
            ..decoder_core::DecoderConfig::new(self.checkpoint.version, self.checked.profile.clone(), self.checkpoint.database)
        };
        let catalog = Arc::clone(&self.checked.catalog);
        self.catalog_rows = CatalogRows::new();
        if !self.checked.options.publication_names.is_empty() {
            let before = Decoder::published_before(&*catalog, self.checkpoint.database);
            before.iter().for_each(|(place, row)| self.catalog_rows.seed(*place, row));
            let from = self.checkpoint.restart_lsn;
            tracing::info!("what is published is as in the catalog's folder at {from}, and followed from there on");
        }
        let spill = FileSpill::open(self.checked.spill.clone())?;
        self.sink.spans.count_spill_io(spill.io_ns());
        let snapshots = Box::new(self.outlets.snapshots.clone());
        let decoder = match self.checkpoint.consistent {
            true => Decoder::restore(config, catalog, snapshots),
            false => Decoder::new(config, catalog).serialize_to(snapshots),
        };
        let decoder = decoder.spill_to(Box::new(spill)).know_status(Box::new(self.ahead.clone()));
        self.decoder = Some(decoder.streamed_before(self.sink.streamed_before()).streams_behind(self.sink.resume_at()));
        Ok(())
    }

    /// Decodes all records of a batch.
    fn decode(&mut self, batch: &Batch) -> Result<(), NodeError> {
        let Some(decoder) = &mut self.decoder else { return Ok(()) };
        let mut span = self.sink.spans.batch(batch.sender.as_ref(), batch.contexts.iter().cloned(), batch.arrived.elapsed());
        if let Some(span) = &mut span {
            span.number(names::RECORDS, batch.raw.offsets.len() as u64)
                .number(names::BYTES, batch.raw.records.len() as u64)
                .number(names::TRANSACTIONS, batch.contexts.len() as u64)
                .number(names::MESSAGING_BATCH_COUNT, batch.raw.offsets.len() as u64)
                .lsn(names::START_LSN, batch.start.0)
                .lsn(names::END_LSN, batch.end.0);
        }
        for place in places(batch) {
            let (lsn, end_lsn, bytes) = place?;
            let record = pg_wal::decode_bytes(self.wal, lsn, end_lsn, bytes, Crc::Check)?;
            if decoder.reads_catalog_rows()
                && let Ok(raw) = RawRecord::new(lsn, end_lsn, bytes)
                && let Some(change) = self.catalog_rows.read(&raw, self.wal)?
            {
                decoder.catalog_row(record.xid, change);
            }
            self.sink.begin_record(lsn, end_lsn, matches!(record.body, RecordBody::Prepare(_)));
            decoder.process(&record, &mut self.sink)?;
            self.sink.end_record();
        }
        self.sink.spans.end_batch(span);
        self.ahead.decoded(batch.end);
        self.checkpoint.decoded_lsn = self.checkpoint.decoded_lsn.max(batch.end);
        Ok(())
    }

    /// Writes full entries to the log, for subscribers to read.
    fn write_finished(&mut self) -> Result<(), NodeError> {
        if !self.sink.has_finished() {
            return Ok(());
        }
        for finished in self.sink.take_finished() {
            match finished.end {
                Some(end) => self.writer.append(finished.buffer, end, finished.items)?,
                None => self.writer.append_fragment(finished.buffer)?,
            }
        }
        self.sink.spans.written();
        let end = self.writer.end();
        self.outlets.output.send_modify(|output| {
            output.end = end;
            output.decoded = output.decoded.max(end);
        });
        Ok(())
    }

    /// Writes everything that was given out, offers the checkpoint that belongs to it, and reports.
    fn publish(&mut self) -> Result<(), NodeError> {
        self.published_at = Instant::now();
        self.sink.finish();
        self.write_finished()?;
        self.checkpoint.output_end = self.writer.end();
        if let Some(decoder) = &self.decoder {
            // A decoder that has read nothing yet knows no better than the checkpoint.
            if decoder.restart_lsn() >= self.checkpoint.restart_lsn {
                self.checkpoint.consistent = decoder.restarts_from_snapshot();
                self.checkpoint.restart_lsn = decoder.restart_lsn();
            }
            let (before, xmin) = (self.checkpoint.catalog_xmin, decoder.catalog_xmin());
            // What was read again had been further before.
            if xmin.is_valid() && (!before.is_valid() || xmin.follows(before)) {
                self.checkpoint.catalog_xmin = xmin;
            }
            if self.checked.two_phase && decoder.state() == SnapBuildState::Consistent {
                self.checkpoint.two_phase_at = decoder.two_phase_at();
            }
        }
        self.outlets.flusher.offer(FlushRequest { sync: self.writer.sync_point(), checkpoint: self.checkpoint.clone() });
        self.report();
        Ok(())
    }

    /// Tells everyone how far decoding is.
    fn report(&mut self) {
        let totals = self.sink.take_totals();
        let decoder = self.decoder.as_ref();
        let total = decoder.map(Decoder::work).unwrap_or_default();
        let work = total - std::mem::replace(&mut self.published_work, total);
        {
            let mut costliest = self.outlets.costliest.lock().unwrap_or_else(PoisonError::into_inner);
            self.sink.costs.drain(..).for_each(|cost| costliest.add(cost));
            if let Some(decoder) = decoder.filter(|_| work != pg_types::Work::default()) {
                costliest.ledger.set(decoder.attribution());
            }
        }
        let (end, decoded) = (self.writer.end(), self.checkpoint.decoded_lsn);
        self.outlets.state.send_modify(|state| {
            if let Some(decoder) = decoder {
                (state.snapshot, state.sizes) = (decoder.state(), decoder.sizes());
                state.waits_for = decoder.waits_for().unwrap_or_default();
                state.waiting.clear();
                state.waiting.extend_from_slice(decoder.waiting());
            }
            state.database = self.checkpoint.database;
            state.decoded_lsn = decoded;
            state.output_end = end;
            state.transactions += totals.transactions;
            state.rows += totals.rows;
            state.work += work;
        });
        self.outlets.output.send_modify(|output| output.decoded = output.decoded.max(decoded));
    }
}

/// The database of a record's rows or message, if it tells one.
pub(crate) fn database_of(body: &RecordBody) -> Option<Oid> {
    let database = match body {
        RecordBody::Insert(insert) => insert.target.db,
        RecordBody::MultiInsert(insert) => insert.target.db,
        RecordBody::Update(update) => update.target.db,
        RecordBody::Delete(delete) => delete.target.db,
        RecordBody::LogicalMessage(message) => message.db,
        _ => Oid::INVALID,
    };
    Some(database).filter(|database| database.is_valid())
}

/// The records of a batch: start, end and bytes of each.
///
/// Items are errors where the batch contradicts itself.
pub(crate) fn places(batch: &Batch) -> impl Iterator<Item = Result<(Lsn, Lsn, &[u8]), NodeError>> {
    let raw = &batch.raw;
    let bad = move |reason: &str| NodeError::Batch { lsn: batch.start, reason: reason.to_owned() };
    let ends = raw.offsets.iter().skip(1).map(|at| *at as usize).chain([raw.records.len()]);
    let columns = raw.offsets.iter().zip(ends).zip(raw.lsn_offsets.iter().zip(&raw.end_lsn_offsets));
    let mut columns = columns.map(move |((at, end), (lsn, end_lsn))| {
        let bytes = raw.records.get(*at as usize..end).ok_or_else(|| bad("its offsets lie outside of its records"))?;
        Ok((Lsn(batch.start.0 + u64::from(*lsn)), Lsn(batch.start.0 + u64::from(*end_lsn)), bytes))
    });
    let uneven = raw.lsn_offsets.len() != raw.offsets.len() || raw.end_lsn_offsets.len() != raw.offsets.len();
    let mut uneven = uneven.then(|| bad("its columns differ in length"));
    std::iter::from_fn(move || uneven.take().map(Err).or_else(|| columns.next()))
}

/// Joins the fragments of a record.
#[derive(Debug, Default)]
pub(crate) struct Joiner {
    /// Fragments so far: the first one's columns and all bytes.
    open: Option<(pb::RawRecords, Vec<u8>)>,
}

impl Joiner {
    /// Takes a batch's records; gives them whole when nothing more belongs to them.
    pub(crate) fn join(&mut self, raw: pb::RawRecords, more_follows: bool) -> Option<pb::RawRecords> {
        if self.open.is_none() && !more_follows {
            return Some(raw);
        }
        let (_, bytes) = match &mut self.open {
            Some(open) => {
                open.1.extend_from_slice(&raw.records);
                open
            }
            None => {
                let bytes = raw.records.to_vec();
                self.open.insert((raw, bytes))
            }
        };
        if more_follows {
            return None;
        }
        let bytes = std::mem::take(bytes);
        self.open.take().map(|(first, _)| pb::RawRecords { records: Bytes::from(bytes), ..first })
    }
}
