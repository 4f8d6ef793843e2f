//! Replay: the standby's startup process (`PerformWalRecovery`, `access/transam/xlogrecovery.c`), on a thread of its own.
//!
//! The one writer of the recovery state. It takes batches from the queue, decodes and applies record by record, keeps the restart
//! point on disk, and publishes how far it is once a batch. Readers never wait for it and it never waits for them.
//!
//! Invariants:
//! - I1: records are applied in LSN order, and each record names the one before it (`xl_prev`): a gap or a foreign record halts.
//! - I2: after a halt nothing is applied any more, and readers are told why.
//! - I3: `flushed_lsn` of [`Progress`] is on disk before it is published.

use std::sync::Arc;
use std::time::Duration;

use pg_types::{Lsn, PgVersion, RecordBody, WalRecord, Xid};
use pg_wal::profile::WalProfile;
use pg_wal::record::RawRecord as WalBytes;
use service_kit::{Clock, error_text};
use standby_core::recovery::{ReceiptClock, Resolution, StandbyDelays};
use standby_core::{CompressReason, RecoveryReader, RecoveryWriter, StandbyProfile};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use walstorm_proto::primary::v1::StreamStarted;

use crate::batch::{Batch, RawRecord};
use crate::begin::{BeginSearch, Beginning};
use crate::config::Checked;
use crate::error::{Error, Halt};
use crate::follow::Item;
use crate::lag::Replayed;
use crate::progress::Progress;
use crate::restart_point::{self, RestartPoint};
use crate::server::SnapshotTotals;
use crate::spans::Spans;

/// How long replay waits for WAL before it looks at the idle compression again (`KAX_COMPRESS_IDLE_INTERVAL`).
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// What readers of the recovery state need.
#[derive(Clone, Debug)]
pub struct Readable {
    /// Reads the state that replay publishes.
    pub reader: RecoveryReader,
    /// Version of the primary.
    pub version: PgVersion,
}

/// What replay tells the rest of the node.
#[derive(Debug)]
pub struct Outputs {
    /// How far it is.
    pub progress: watch::Sender<Progress>,
    /// Set when the profile is known, which is when the first stream begins.
    pub readable: watch::Sender<Option<Readable>>,
    /// What snapshots cost.
    pub totals: Arc<SnapshotTotals>,
}

/// What the records are, once the stream has told.
#[derive(Debug)]
struct Wal {
    /// Layout of the records.
    profile: &'static WalProfile,
    /// `system_identifier`.
    system_id: u64,
    /// Timeline.
    timeline: u32,
}

/// The state of replay.
#[derive(Debug)]
pub struct Replay {
    /// Configuration.
    checked: Checked,
    /// Where the last process stopped, if it did.
    restart_point: Option<RestartPoint>,
    /// Time for compressions.
    clock: Arc<dyn Clock>,
    /// Spans of batches and transactions.
    spans: Spans,
    /// To the rest of the node.
    outputs: Outputs,
    /// What the stream carries; none before the first.
    wal: Option<Wal>,
    /// The recovery state; none before the first stream.
    writer: Option<RecoveryWriter>,
    /// Looks for the beginning; none once replay has begun.
    search: Option<BeginSearch>,
    /// The last record, by its start; invalid before the first.
    last_record: Lsn,
    /// What is published, kept up to date between publications.
    progress: Progress,
}

impl Replay {
    /// Replay that has not begun.
    #[must_use]
    pub fn new(
        checked: Checked,
        restart_point: Option<RestartPoint>,
        clock: Arc<dyn Clock>,
        spans: Spans,
        outputs: Outputs,
    ) -> Self {
        let search = restart_point.is_none().then(|| BeginSearch::new(checked.start));
        let begin = restart_point.as_ref().map_or(Lsn::INVALID, |p| p.redo_lsn);
        let progress = Progress { replay_lsn: begin, flushed_lsn: begin, ..Progress::default() };
        Self {
            checked,
            restart_point,
            clock,
            spans,
            outputs,
            wal: None,
            writer: None,
            search,
            last_record: Lsn::INVALID,
            progress,
        }
    }

    /// Starts the thread. It ends when the queue is closed and empty, or after a halt when the queue is closed.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn spawn(self, queue: mpsc::Receiver<Item>, runtime: Handle) -> Result<std::thread::JoinHandle<()>, Error> {
        let thread = std::thread::Builder::new().name("replay".to_owned());
        thread.spawn(move || self.run(queue, &runtime)).map_err(Error::Thread)
    }

    /// Replays until the queue is closed, or a halt.
    fn run(mut self, mut queue: mpsc::Receiver<Item>, runtime: &Handle) {
        self.publish();
        loop {
            let item = match queue.try_recv() {
                Ok(item) => item,
                Err(mpsc::error::TryRecvError::Disconnected) => return,
                Err(mpsc::error::TryRecvError::Empty) => {
                    self.idle();
                    match runtime.block_on(async { tokio::time::timeout(IDLE_INTERVAL, queue.recv()).await }) {
                        Ok(Some(item)) => item,
                        Ok(None) => return,
                        Err(_) => continue,
                    }
                }
            };
            if let Err(halt) = self.take(item) {
                tracing::error!("{halt}");
                // Records of a batch that came before the one which halts were applied.
                let applied = self.writer.as_ref().map_or(Lsn::INVALID, |writer| writer.state().replay_lsn);
                self.progress.replay_lsn = self.progress.replay_lsn.max(applied);
                self.progress.halt = Some(halt);
                self.publish();
                // The stream's task sees the closed queue and ends.
                return;
            }
            self.publish();
        }
    }

    /// Takes one item of the queue.
    fn take(&mut self, item: Item) -> Result<(), Halt> {
        match item {
            Item::Started(started) => self.started(&started),
            Item::Batch(batch) => self.batch(&batch),
            Item::NothingBefore(lsn) => {
                self.progress.replay_lsn = self.progress.replay_lsn.max(lsn);
                self.note_flushed();
                Ok(())
            }
            Item::Halt(halt) => Err(halt),
        }
    }

    /// A stream began. The first one tells what the WAL is; the others were compared with it by who opened them.
    fn started(&mut self, started: &StreamStarted) -> Result<(), Halt> {
        if self.wal.is_some() {
            return Ok(());
        }
        let refused = |reason: String| Halt::Refused { lsn: Lsn(started.start_lsn), reason };
        let version: PgVersion = started.pg_version.to_string().parse().map_err(|e| refused(format!("{e}")))?;
        let profile = self.checked.profile.unwrap_or(StandbyProfile::of_version(version));
        let settings = self.checked.config.settings.into();
        let mut writer = RecoveryWriter::metered(&settings, profile, Some(Arc::clone(&self.outputs.totals) as _))
            .map_err(|e| refused(e.to_string()))?;
        if let Some(point) = &self.restart_point {
            writer.start_at_restart_point(&point.to_core()).map_err(|e| refused(e.to_string()))?;
            tracing::info!(redo = %point.redo_lsn, checkpoint = %point.checkpoint_lsn, "restarting at the restart point");
        }
        self.progress.profile = profile.to_string();
        self.progress.array_size = writer.sizes().max_known_assigned_xids;
        self.outputs.readable.send_replace(Some(Readable { reader: writer.reader(), version }));
        self.writer = Some(writer);
        let (system_id, timeline) = (started.system_id, started.timeline);
        self.wal = Some(Wal { profile: WalProfile::of(version), system_id, timeline });
        Ok(())
    }

    /// Applies a batch.
    fn batch(&mut self, batch: &Batch) -> Result<(), Halt> {
        let now = self.clock.monotonic();
        let span = self.spans.process_wal(batch, now.saturating_sub(batch.received));
        self.progress.lag.taken(batch.received, now);
        let (now_ms, received_ms) = (self.now_ms(), millis(batch.received));
        if let Some(writer) = &mut self.writer {
            writer.set_now(now_ms);
        }
        let mut contexts = batch.contexts.iter().peekable();
        for raw in &batch.records {
            while contexts.next_if(|c| c.commit_lsn < raw.lsn.0).is_some() {}
            let context = contexts.next_if(|c| c.commit_lsn == raw.lsn.0);
            let span = context.and_then(|context| self.spans.apply(context));
            let record = self.decode(raw)?;
            let before = span.is_some().then(|| self.clock.monotonic());
            self.wait_for_readers(&record, received_ms);
            let waited = before.map(|before| self.clock.monotonic().saturating_sub(before));
            self.record(&record)?;
            if let Some(span) = span {
                self.spans.applied(span, &record, waited.unwrap_or_default());
            }
        }
        self.progress.replay_lsn = self.progress.replay_lsn.max(batch.end_lsn);
        self.note_flushed();
        let now = self.clock.monotonic();
        self.progress.lag.applied(now);
        self.progress.rate.add(now, Replayed { bytes: batch.bytes as u64, records: batch.records.len() as u64 });
        self.spans.end(span);
        Ok(())
    }

    /// Waits while readers are in the way of a record; they end their streams, which a stop of the node does too, or are cancelled when
    /// the WAL that arrived at `received_ms` has waited long enough.
    fn wait_for_readers(&mut self, record: &WalRecord, received_ms: u64) {
        let streaming_ms = u64::try_from(self.checked.config.max_standby_streaming_delay_ms).ok();
        let delays = StandbyDelays { streaming_ms, ..StandbyDelays::default() };
        loop {
            let clock = ReceiptClock { now_ms: self.now_ms(), received_ms, from_stream: true };
            let Some(writer) = &mut self.writer else { return };
            match writer.resolve_conflicts(record, delays, clock) {
                Resolution::Wait { victims, for_ms } => {
                    if self.progress.waits_for_readers != victims {
                        self.progress.waits_for_readers = victims;
                        self.publish();
                    }
                    std::thread::sleep(Duration::from_millis(for_ms));
                }
                Resolution::Clear { cancelled } => {
                    let waited = std::mem::take(&mut self.progress.waits_for_readers) > 0;
                    if cancelled > 0 || waited {
                        self.publish();
                    }
                    return;
                }
            }
        }
    }

    /// Decodes a record, checks its CRC, and that it follows the last one (I1).
    fn decode(&mut self, raw: &RawRecord) -> Result<WalRecord, Halt> {
        let halt = |reason: String| Halt::Record { lsn: raw.lsn, reason };
        let Some(wal) = &self.wal else { return Err(halt("records came before the stream's start".to_owned())) };
        let bytes = WalBytes::new(raw.lsn, raw.end_lsn, &raw.bytes).map_err(|e| halt(e.to_string()))?;
        bytes.check_crc().map_err(|e| halt(bytes.decode_error(wal.profile, e).to_string()))?;
        let prev = bytes.header.prev;
        if self.last_record.is_valid() && prev != self.last_record {
            return Err(halt(format!("it follows a record at {prev}, but the last one was at {}", self.last_record)));
        }
        let record = bytes.decode(wal.profile).map_err(|e| halt(e.to_string()))?;
        self.last_record = raw.lsn;
        Ok(record)
    }

    /// Applies a record, or looks whether replay can begin at it.
    fn record(&mut self, record: &WalRecord) -> Result<(), Halt> {
        let halt = |reason: String| Halt::Record { lsn: record.lsn, reason };
        let Some(writer) = &mut self.writer else { return Err(halt("records came before the stream's start".to_owned())) };
        if let Some(search) = &mut self.search {
            let Some(Beginning { checkpoint, lsn, first }) = search.look(record) else { return Ok(()) };
            writer.start_at_checkpoint(&checkpoint, lsn).map_err(|e| halt(e.to_string()))?;
            writer.apply(&first).map_err(|e| halt(e.to_string()))?;
            tracing::info!(%lsn, "replay begins");
            self.search = None;
        } else {
            writer.apply(record).map_err(|e| halt(e.to_string()))?;
        }
        self.progress.records_replayed += 1;
        let ended = match &record.body {
            RecordBody::Commit(commit) => Some(commit.time),
            RecordBody::Abort(abort) => Some(abort.time),
            _ => None,
        };
        if ended.is_some() {
            self.progress.transactions_ended += 1;
            self.progress.last_transaction_time = ended;
        }
        self.count_compressions();
        if matches!(record.body, RecordBody::Checkpoint(_)) {
            self.keep_restart_point(record.lsn)?;
        }
        Ok(())
    }

    /// Writes the core's restart point if it is a newer one (I3).
    fn keep_restart_point(&mut self, at: Lsn) -> Result<(), Halt> {
        let (Some(data_dir), Some(writer), Some(wal)) = (&self.checked.config.data_dir, &self.writer, &self.wal) else {
            return Ok(());
        };
        let Some(core) = writer.restart_point() else { return Ok(()) };
        let point = RestartPoint::of_core(wal.system_id, wal.timeline, core);
        if self.restart_point.as_ref().is_some_and(|kept| kept.redo_lsn >= point.redo_lsn) {
            return Ok(());
        }
        restart_point::write(data_dir, &point).map_err(|e| Halt::RestartPoint { lsn: at, reason: error_text(&e) })?;
        tracing::info!(redo = %point.redo_lsn, checkpoint = %point.checkpoint_lsn, "restart point written");
        self.restart_point = Some(point);
        Ok(())
    }

    /// What the primary may forget: all that is replayed if nothing is kept here, else all before the restart point. Before
    /// replay has begun nothing that passed is needed.
    fn note_flushed(&mut self) {
        let kept = self.checked.config.data_dir.is_some() && self.search.is_none();
        if !kept {
            self.progress.flushed_lsn = self.progress.flushed_lsn.max(self.progress.replay_lsn);
        } else if let Some(point) = &self.restart_point {
            self.progress.flushed_lsn = self.progress.flushed_lsn.max(point.redo_lsn);
        }
    }

    /// Nothing is to be replayed: the array may be compressed, and readers may have left.
    fn idle(&mut self) {
        let compressed = self.compress_idle();
        // Readers come and leave without records, too: what they needed must not be held for ever.
        if compressed || self.feedback_xmin() != self.progress.feedback_xmin {
            self.publish();
        }
    }

    /// Compresses the array if the settings want that; true if it was.
    fn compress_idle(&mut self) -> bool {
        let now_ms = self.now_ms();
        if !self.checked.config.idle_compression || self.search.is_some() {
            return false;
        }
        let Some(writer) = &mut self.writer else { return false };
        writer.idle(now_ms);
        self.count_compressions()
    }

    /// Oldest xid that the primary shall keep rows for; invalid if it shall not know one.
    fn feedback_xmin(&self) -> Xid {
        let begun = self.writer.as_ref().filter(|_| self.checked.config.hot_standby_feedback && self.search.is_none());
        begun.map_or(Xid::INVALID, |writer| writer.hot_standby_feedback().xmin.xid())
    }

    /// Adds the compressions of the last record or idle call; true if there were any.
    fn count_compressions(&mut self) -> bool {
        let Some(writer) = &self.writer else { return false };
        let mut any = false;
        for call in writer.compress_calls().iter().filter(|call| call.compressed) {
            any = true;
            let name = reason_name(call.reason);
            match self.progress.compressions.iter_mut().find(|(reason, _)| *reason == name) {
                Some((_, count)) => *count += 1,
                None => self.progress.compressions.push((name, 1)),
            }
        }
        any
    }

    /// Publishes how far replay is.
    fn publish(&mut self) {
        if let Some(writer) = &self.writer {
            let state = writer.state();
            let begun = self.search.is_none();
            self.progress.state = begun.then_some(state.standby_state);
            self.progress.pending_xmin = state.pending_xmin;
            self.progress.last_overflowed_xid = state.last_overflowed_xid;
            self.progress.latest_completed_xid = state.latest_completed_xid;
            self.progress.array_head = state.known_assigned.head;
            self.progress.array_tail = state.known_assigned.tail;
            self.progress.array_live = state.known_assigned.live;
            self.progress.work = writer.work();
        }
        self.progress.feedback_xmin = self.feedback_xmin();
        self.outputs.progress.send_replace(self.progress.clone());
    }

    /// The time as the core wants it.
    fn now_ms(&self) -> u64 {
        millis(self.clock.monotonic())
    }
}

/// Whole milliseconds.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// `KAXCompressReason` without its prefix.
fn reason_name(reason: CompressReason) -> &'static str {
    match reason {
        CompressReason::NoSpace => "NO_SPACE",
        CompressReason::Prune => "PRUNE",
        CompressReason::TransactionEnd => "TRANSACTION_END",
        CompressReason::StartupProcessIdle => "STARTUP_PROCESS_IDLE",
    }
}
