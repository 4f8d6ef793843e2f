//! The log as the engine's sink: where a run is played for the first time, a writer; where it was cut off, first a comparison.
//!
//! A simulator that is killed must go on where it was: nothing that a consumer has seen may change, nothing may be missing or come
//! twice. The engine is deterministic but for the times that a wall clock gives, and those have the same length whatever they say.
//! So a run that a crash cut off is played again from its beginning, each record is given its place ([`RecordPlacer`]), and as long
//! as the log has it already it is only compared; where the log ends, writing goes on. What a crash tore at the end is written
//! again in its place: the simulated *server* did not crash, so its log has no trace of it. The beginning may be gone meanwhile.
//! What others than the scenario did (`outside.rs`) is noted beside the log, and done again there.
//!
//! Invariants:
//! * I1 A record that was published is never written again.
//! * I2 A record is published only after the flush of its bytes.
//! * I3 A disk without room stops the engine, not the node: the step that needs room waits for it.
//!
//! Cost: a record that is compared costs what writing it would, but for the disk.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pg_types::{Lsn, PgVersion, RecordBody, Xid};
use pg_wal::writer::{LogEnd, LogTail, PlacedRecord, RecordPlacer, WalWriter, WriteError, WriterConfig, WriterCounters};
use pg_wal::{RawRecord, RecordHeader, WalDir, WalError, WalProfile, WalReader, rmgr};
use primary_core::{Placed, SinkError, WalSink};
use service_kit::Drain;
use tokio::sync::watch;

use super::outside::{Note, Notes};
use crate::error::{Error, Result};
use crate::wal_log::{WriterState, directory_error};

#[cfg(test)]
mod tests;

/// Time between two attempts to write to a disk that has no room.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Why nothing is written while the simulated server has no room.
const SCENARIO_FULL: &str = "the scenario says that the disk of its log has no room now: nothing is written until it has";

/// Looks at a directory from which segments are being removed, at most.
const LOOKS_MAX: u32 = 100;

/// A log that is written, or about to be.
pub(super) struct LogSink {
    /// Where the segments are.
    dir: PathBuf,
    /// What the log says of itself.
    config: WriterConfig,
    /// Where it is.
    phase: Phase,
    /// Records must be the same bytes, times and all, if they are compared.
    exact: bool,
    /// Tells how writing goes.
    state: watch::Sender<WriterState>,
    /// Commit records so far, of what was written here.
    commits: u64,
    /// Flushes so far.
    flushes: u64,
    /// Whoever waits for room stops with the node; unset: nobody waits.
    waiting: Option<Drain>,
    /// The disk of the simulated server has no room: it writes nothing now.
    scenario_full: bool,
}

/// What happens to a record.
enum Phase {
    /// It is in the log already.
    Comparing(Box<Existing>),
    /// It is written.
    Writing(Box<WalWriter>),
}

/// The records of a log that was begun earlier.
struct Existing {
    /// Places the records of this run.
    placer: RecordPlacer,
    /// Reads those in the log.
    reader: WalReader,
    /// The oldest whole record in the log, beyond its end if there is none.
    first: Lsn,
    /// Where the log ends.
    tail: LogTail,
    /// What others did meanwhile.
    notes: Notes,
}

impl LogSink {
    /// Opens the log in `dir`, or begins one.
    ///
    /// # Errors
    /// The files cannot be read, or are those of another run.
    pub(super) fn open(dir: PathBuf, config: WriterConfig) -> Result<Self> {
        let start = LogEnd { end: config.start, prev: Lsn::INVALID };
        match LogTail::find(&dir).map_err(|e| directory_error(&dir, e))? {
            Some(tail) => {
                let existing = Existing::open(&dir, &config, tail, start)?;
                Self::new(dir, config, Phase::Comparing(Box::new(existing)))
            }
            None => {
                let writer = WalWriter::create(&dir, config).map_err(write_error)?;
                Notes::clear(&dir)?;
                Self::new(dir, config, Phase::Writing(Box::new(writer)))
            }
        }
    }

    /// Opens the log in `dir` behind a record, which must be there; what follows it is compared.
    ///
    /// # Errors
    /// As [`LogSink::open`], and that the record is not there.
    pub(super) fn open_behind(dir: PathBuf, config: WriterConfig, at: LogEnd) -> Result<Self> {
        let tail = LogTail::find(&dir).map_err(|e| directory_error(&dir, e))?;
        let Some(tail) = tail.filter(|tail| tail.end >= at.end) else {
            let reason = format!(
                "the record at {}, where its last run ended, is not there: the system lost what was written (was source.fsync \
                 off?) or files were removed; use another data directory",
                at.prev
            );
            return Err(Error::WalDirectory { dir, reason });
        };
        let existing = Existing::open(&dir, &config, tail, at)?;
        Self::new(dir, config, Phase::Comparing(Box::new(existing)))
    }

    /// A log in a phase.
    fn new(dir: PathBuf, config: WriterConfig, phase: Phase) -> Result<Self> {
        let (state, _) = watch::channel(WriterState::default());
        let mut this =
            Self { dir, config, phase, exact: true, state, commits: 0, flushes: 0, waiting: None, scenario_full: false };
        this.take_over_at_end().map_err(write_error)?;
        Ok(this)
    }

    /// Whether records that are compared must bear the same times, too.
    pub(super) fn compare_times(&mut self, exact: bool) {
        self.exact = exact;
    }

    /// Start of the last record that was compared or appended.
    pub(super) fn last(&self) -> Lsn {
        match &self.phase {
            Phase::Comparing(existing) => existing.placer.end().prev,
            Phase::Writing(writer) => writer.log_end().prev,
        }
    }

    /// Tells how writing goes.
    pub(super) fn state(&self) -> watch::Receiver<WriterState> {
        self.state.subscribe()
    }

    /// What others did before step number `step` and the next record, if the log is compared: one thing after another.
    pub(super) fn repeat(&mut self, step: u64) -> Option<Note> {
        match &mut self.phase {
            Phase::Comparing(existing) => existing.notes.take((existing.placer.next_lsn(), step)),
            Phase::Writing(_) => None,
        }
    }

    /// Notes what others do before step number `step` and the next record.
    ///
    /// # Errors
    /// The note cannot be stored; it must not be done then.
    pub(super) fn note(&mut self, step: u64, note: Note) -> Result<()> {
        Notes::append(&self.dir, (self.next_lsn(), step), note)
    }

    /// From now on, waits for room on the disk, until the node stops.
    pub(super) fn wait_for_room(&mut self, drain: &Drain) {
        self.waiting = Some(drain.clone());
    }

    /// Whether the disk has no room for what was to be written last.
    pub(super) fn is_out_of_room(&self) -> bool {
        self.state.borrow().fault.is_some() && !self.scenario_full
    }

    /// Tells whether the disk of the simulated server has no room: that is told as it is of the real one.
    pub(super) fn tell_scenario_full(&mut self, full: bool) {
        if self.scenario_full != full {
            self.scenario_full = full;
            self.tell(None);
        }
    }

    /// Whether records are still only compared.
    pub(super) fn is_replaying(&self) -> bool {
        matches!(self.phase, Phase::Comparing(_))
    }

    /// Bytes that were appended and not flushed.
    pub(super) fn unflushed(&self) -> u64 {
        match &self.phase {
            Phase::Comparing(_) => 0,
            Phase::Writing(writer) => writer.end_lsn().0.saturating_sub(writer.flushed_lsn().0),
        }
    }

    /// Flushes; where the flushed log ends, if anything was written here.
    pub(super) fn flush(&mut self) -> Result<Option<Lsn>> {
        if self.is_replaying() {
            return Ok(None);
        }
        let unflushed = self.unflushed() > 0;
        let flushed = self.patiently(|writer| writer.flush()).map_err(write_error)?;
        self.flushes += u64::from(unflushed);
        self.tell(None);
        Ok(Some(flushed))
    }

    /// The run is over: nothing may be left in the log that it does not have.
    pub(super) fn finish(&self) -> Result<()> {
        match &self.phase {
            Phase::Writing(_) => Ok(()),
            Phase::Comparing(existing) => {
                let (end, there) = (existing.placer.end().end, existing.tail.end);
                Err(self.another_run(&format!("it goes on to {there}, and this run ends at {end}")))
            }
        }
    }

    /// What the writer has done.
    fn counters(&self) -> WriterCounters {
        match &self.phase {
            Phase::Comparing(_) => WriterCounters::default(),
            Phase::Writing(writer) => writer.counters(),
        }
    }

    /// Tells how writing goes.
    fn tell(&self, fault: Option<String>) {
        let fault = fault.or_else(|| self.scenario_full.then(|| SCENARIO_FULL.to_owned()));
        let state = WriterState { counters: self.counters(), commits: self.commits, flushes: self.flushes, fault };
        self.state.send_if_modified(|told| {
            let changed = *told != state;
            *told = state;
            changed
        });
    }

    /// Does something with the writer; as long as the disk has no room, again and again (I3).
    fn patiently<T>(&mut self, mut op: impl FnMut(&mut WalWriter) -> Result<T, WriteError>) -> Result<T, WriteError> {
        loop {
            let Phase::Writing(writer) = &mut self.phase else { return Err(WriteError::Closed { dir: self.dir.clone() }) };
            match op(writer) {
                Err(error) if self.waits_after(&error) => {}
                Err(error) => return Err(error),
                Ok(done) => {
                    if self.is_out_of_room() {
                        tracing::info!("WAL can be written again: the run goes on");
                        self.tell(None);
                    }
                    return Ok(done);
                }
            }
        }
    }

    /// Whether an error is to be waited out, after having waited a little.
    fn waits_after(&self, error: &WriteError) -> bool {
        let waits = self.waiting.as_ref().is_some_and(|drain| !drain.is_draining());
        if !waits || !error.is_no_space() {
            return false;
        }
        if !self.is_out_of_room() {
            tracing::error!(%error, "WAL cannot be written: free some space there; nothing is lost, and the run then goes on");
        }
        self.tell(Some(error.to_string()));
        std::thread::sleep(RETRY_AFTER);
        true
    }

    /// Where everything that the log has was compared, the writer takes over.
    fn take_over_at_end(&mut self) -> Result<(), WriteError> {
        let Phase::Comparing(existing) = &self.phase else { return Ok(()) };
        let at = existing.placer.end();
        if at.end < existing.tail.end {
            return Ok(());
        }
        let writer = loop {
            match WalWriter::resume(&self.dir, self.config, at) {
                Err(error) if self.waits_after(&error) => {}
                resumed => break resumed?,
            }
        };
        tracing::info!(at = %at.end, after = %existing.tail.reason.reason, "the run goes on where it stopped");
        self.phase = Phase::Writing(Box::new(writer));
        self.tell(None);
        Ok(())
    }

    /// The error for a log that has something else.
    fn another_run(&self, what: &str) -> Error {
        another_run(&self.dir, what)
    }
}

/// The error for a log that has something else than this run.
fn another_run(dir: &Path, what: &str) -> Error {
    let reason = format!(
        "it holds the WAL of another run (scenario, parameters, seed, version or segment size differ): {what}. Use another data \
         directory, or remove it"
    );
    Error::WalDirectory { dir: dir.to_owned(), reason }
}

impl Existing {
    /// Prepares to compare the log in `dir` behind `at`, from its first record there on.
    fn open(dir: &Path, config: &WriterConfig, tail: LogTail, at: LogEnd) -> Result<Self> {
        let unreadable = |error| directory_error(dir, error);
        let wal = WalDir::open(dir, None).map_err(unreadable)?;
        let found = wal.identity();
        if (found.system_id, found.version, found.segment_size) != (config.system_id, config.version, config.segment_size) {
            let what = format!(
                "it is of system {}, PostgreSQL {}, with segments of {} bytes, and this run's would be of system {}, PostgreSQL \
                 {}, with segments of {} bytes",
                found.system_id, found.version, found.segment_size, config.system_id, config.version, config.segment_size
            );
            return Err(another_run(dir, &what));
        }
        let (_, first, reader) = open_reader(dir, at.end).map_err(unreadable)?;
        let placer = RecordPlacer::new(config.version, config.segment_size, at);
        let notes = Notes::load(dir, at.end, tail.end)?;
        Ok(Self { placer, reader, first, tail, notes })
    }

    /// Places a record and compares it with what the log has there.
    fn append(
        &mut self,
        dir: &Path,
        exact: bool,
        (xid, top_xid, origin): (Xid, Xid, u16),
        body: &RecordBody,
    ) -> Result<Placed, SinkError> {
        let placed = self.placer.place(xid, top_xid, origin, body)?;
        let place = Placed { start: placed.start, end: placed.end };
        if placed.bytes.is_empty() || placed.start < self.first {
            return Ok(place);
        }
        let profile = self.reader.profile();
        let Some(record) = self.reader.next()? else {
            let (oldest, first, reader) = open_reader(dir, Lsn::INVALID)?;
            if oldest > placed.start {
                // Removed meanwhile, because nobody needs it.
                (self.first, self.reader) = (first, reader);
                return Ok(place);
            }
            let end = self.reader.end().map_or_else(String::new, ToString::to_string);
            let there = self.tail.end;
            return Err(
                format!("{end}; and yet it goes on to {there}. Restore that file, or use another data directory").into()
            );
        };
        let same = record.lsn == placed.start && if exact { record.bytes == placed.bytes } else { is_like(&record, &placed) };
        if same {
            return Ok(place);
        }
        let here = RecordHeader::read(placed.bytes)?;
        let what = format!(
            "at {} it has {}, where this run has {} at {}",
            record.lsn,
            describe(&record.header, profile),
            describe(&here, profile),
            placed.start
        );
        Err(Box::new(another_run(dir, &what)))
    }
}

/// Where the log in `dir` begins at or behind `from`, its oldest whole record there (beyond the log's end if there is none: the end
/// of a long record may be all that was kept), and a reader from there on.
fn open_reader(dir: &Path, from: Lsn) -> Result<(Lsn, Lsn, WalReader), WalError> {
    let open = || {
        let wal = WalDir::open(dir, None)?;
        let from = from.max(wal.first());
        let first = WalReader::open(&wal, Some(from))?.next()?.map_or(Lsn(u64::MAX), |record| record.lsn);
        Ok((from, first, WalReader::open(&wal, Some(from))?))
    };
    // A segment may be removed between being listed and being opened; the next look does not list it.
    let gone = |error: &WalError| matches!(error, WalError::Io { source, .. } if source.kind() == ErrorKind::NotFound);
    let mut opened = open();
    for _ in 0..LOOKS_MAX {
        if !opened.as_ref().is_err_and(gone) {
            break;
        }
        opened = open();
    }
    opened
}

/// Whether two records are the same but for times: of one transaction, kind and length.
fn is_like(record: &RawRecord<'_>, placed: &PlacedRecord<'_>) -> bool {
    let header = RecordHeader::read(placed.bytes).unwrap_or_default();
    let key = |h: &RecordHeader| (h.total_len, h.xid, h.info, h.rmid);
    key(&record.header) == key(&header)
}

/// A record in words.
fn describe(header: &RecordHeader, profile: &'static WalProfile) -> String {
    let operation = rmgr::operation_name(profile, header.rmid, header.info);
    format!("{} {operation} of transaction {} with {} bytes", rmgr::name(header.rmid), header.xid, header.total_len)
}

impl WalSink for LogSink {
    fn version(&self) -> PgVersion {
        self.config.version
    }

    fn next_lsn(&self) -> Lsn {
        match &self.phase {
            Phase::Comparing(existing) => existing.placer.next_lsn(),
            Phase::Writing(writer) => writer.next_lsn(),
        }
    }

    fn append(&mut self, xid: Xid, top_xid: Xid, origin: u16, body: &RecordBody) -> Result<Placed, SinkError> {
        if let Phase::Comparing(existing) = &mut self.phase {
            let placed = existing.append(&self.dir, self.exact, (xid, top_xid, origin), body)?;
            self.take_over_at_end()?;
            return Ok(placed);
        }
        let (start, end) = self.patiently(|writer| writer.append(xid, top_xid, origin, body))?;
        self.commits += u64::from(matches!(body, RecordBody::Commit(_)));
        Ok(Placed { start, end })
    }
}

/// An error of the writer.
fn write_error(error: WriteError) -> Error {
    match error {
        error if error.is_no_space() => Error::NoSpace(error),
        WriteError::Io { action, path, source } => Error::Io { action, path, source },
        error => Error::Scenario(error.to_string()),
    }
}
