//! The log as the engine's sink: where a run is played for the first time, a writer; where it was cut off, first what is there.
//!
//! A run that a crash cut off is played again from its beginning: the engine is deterministic, so as long as the log has the
//! records already they are only compared, and where it ends writing goes on.

use std::path::{Path, PathBuf};

use pg_types::{Lsn, PgVersion, RecordBody, Xid};
use pg_wal::writer::{LogEnd, WalWriter, WriteError, WriterConfig};
use pg_wal::{RecordClass, WalDir, WalError, WalReader};
use primary_core::{Placed, SinkError, WalSink};

use crate::error::{Error, Result};

/// The log as the engine's sink: first what is there already, then the writer.
pub(super) struct LogSink {
    /// Where the segments are.
    dir: PathBuf,
    /// What the log says of itself.
    config: WriterConfig,
    /// What is there, as long as there is more of it.
    existing: Option<Existing>,
    /// Writes behind it.
    writer: Option<WalWriter>,
    /// Start of the last record, [`Lsn::INVALID`] before the first.
    last: Lsn,
}

/// The records of a log that was begun earlier.
struct Existing {
    /// Reads them.
    reader: WalReader,
    /// Start of the last one that was read.
    prev: Lsn,
    /// Where the next one starts, once it was asked for.
    next: Option<NextRecord>,
}

/// What is known of a record that was read ahead.
#[derive(Clone, Copy)]
struct NextRecord {
    /// Where it lies.
    placed: Placed,
    /// Who wrote it.
    xid: Xid,
    /// It is a list of running transactions.
    is_list: bool,
}

impl LogSink {
    /// Opens the log in `dir`, or begins one. None if the log's beginning is no longer there.
    pub(super) fn open(dir: PathBuf, config: WriterConfig) -> Result<Option<Self>> {
        let wal = match WalDir::open(&dir, None) {
            Ok(wal) => wal,
            Err(WalError::NoSegments { .. }) => {
                let writer = Some(WalWriter::create(&dir, config).map_err(write_error)?);
                return Ok(Some(Self { dir, config, existing: None, writer, last: Lsn::INVALID }));
            }
            Err(error) => return Err(crate::wal_log::directory_error(&dir, error)),
        };
        check_identity(&wal, &dir, &config)?;
        if wal.first() > config.start {
            return Ok(None);
        }
        let reader = WalReader::open(&wal, None).map_err(|e| crate::wal_log::directory_error(&dir, e))?;
        let existing = Some(Existing { reader, prev: Lsn::INVALID, next: None });
        let mut this = Self { dir, config, existing, writer: None, last: Lsn::INVALID };
        this.next_existing().map_err(|e| Error::Scenario(e.to_string()))?;
        Ok(Some(this))
    }

    /// Opens the log in `dir` behind the record that starts at `prev`, which must be there; what follows it is compared.
    pub(super) fn open_behind(dir: PathBuf, config: WriterConfig, prev: Lsn) -> Result<Self> {
        let wal = WalDir::open(&dir, None).map_err(|e| crate::wal_log::directory_error(&dir, e))?;
        check_identity(&wal, &dir, &config)?;
        let mut reader = WalReader::open(&wal, Some(prev)).map_err(|e| crate::wal_log::directory_error(&dir, e))?;
        let found = reader.next().map_err(|e| crate::wal_log::directory_error(&dir, e))?.map(|record| record.lsn);
        if found != Some(prev) {
            let reason = format!(
                "the record at {prev}, where its last run ended, is not there: the system lost what was written (was source.fsync \
                 off?) or files were removed; use another data directory"
            );
            return Err(Error::WalDirectory { dir, reason });
        }
        let existing = Some(Existing { reader, prev, next: None });
        let mut this = Self { dir, config, existing, writer: None, last: prev };
        this.next_existing().map_err(|e| Error::Scenario(e.to_string()))?;
        Ok(this)
    }

    /// Start of the last record that was compared or appended.
    pub(super) fn last(&self) -> Lsn {
        self.last
    }

    /// Whether records are still only compared.
    pub(super) fn is_replaying(&self) -> bool {
        self.existing.is_some()
    }

    /// Bytes that were appended and not flushed.
    pub(super) fn unflushed(&self) -> u64 {
        self.writer.as_ref().map_or(0, |w| w.end_lsn().0 - w.flushed_lsn().0)
    }

    /// Flushes; where the flushed log ends, if anything was written here.
    pub(super) fn flush(&mut self) -> Result<Option<Lsn>> {
        self.writer.as_mut().map(|w| w.flush().map_err(write_error)).transpose()
    }

    /// The next record that is there already; at their end the writer takes over.
    fn next_existing(&mut self) -> Result<Option<NextRecord>, SinkError> {
        let Some(existing) = &mut self.existing else { return Ok(None) };
        if existing.next.is_none() {
            existing.next = existing.reader.next()?.map(|record| NextRecord {
                placed: Placed { start: record.lsn, end: record.end_lsn },
                xid: record.header.xid,
                is_list: record.class() == RecordClass::RunningXacts,
            });
        }
        if existing.next.is_none() {
            let at = LogEnd { end: existing.reader.position(), prev: existing.prev };
            self.take_over(at)?;
        }
        Ok(self.existing.as_ref().and_then(|e| e.next))
    }

    /// Goes on behind a record; the next one is looked up at once, so that its place can be told.
    fn pass(&mut self, record: NextRecord) -> Result<(), SinkError> {
        if let Some(existing) = &mut self.existing {
            (existing.prev, existing.next) = (record.placed.start, None);
        }
        self.last = record.placed.start;
        self.next_existing().map(|_| ())
    }

    /// Goes on behind what is there. Segments that a crash left behind the end hold nothing.
    fn take_over(&mut self, at: LogEnd) -> Result<(), SinkError> {
        let wal = WalDir::open(&self.dir, None)?;
        for (_, segment) in wal.segments().filter(|(start, _)| *start >= at.end) {
            std::fs::remove_file(&segment.path)?;
        }
        tracing::info!(at = %at.end, "the run goes on where it stopped");
        self.existing = None;
        self.writer = Some(WalWriter::resume(&self.dir, self.config, at)?);
        Ok(())
    }

    /// The writer, which there is whenever nothing is left to compare.
    fn writer(&mut self) -> Result<&mut WalWriter, SinkError> {
        self.writer.as_mut().ok_or_else(|| "the log is not open for writing".into())
    }
}

impl WalSink for LogSink {
    fn version(&self) -> PgVersion {
        self.config.version
    }

    fn next_lsn(&self) -> Lsn {
        let existing = self.existing.as_ref().and_then(|e| e.next).map(|next| next.placed.start);
        existing.or(self.writer.as_ref().map(WalWriter::next_lsn)).unwrap_or_default()
    }

    fn append(&mut self, xid: Xid, top_xid: Xid, origin: u16, body: &RecordBody) -> Result<Placed, SinkError> {
        let Some(next) = self.next_existing()? else {
            let (start, end) = self.writer()?.append(xid, top_xid, origin, body)?;
            self.last = start;
            return Ok(Placed { start, end });
        };
        if next.is_list && !matches!(body, RecordBody::RunningXacts(_)) {
            // It was logged for a slot that was made then, not by the scenario.
            self.pass(next)?;
            return self.append(xid, top_xid, origin, body);
        }
        if next.xid != xid {
            return Err(format!(
                "the log in {} has a record of transaction {} at {} where this run has one of {xid}: it is of another run, so use \
                 another data directory",
                self.dir.display(),
                next.xid,
                next.placed.start
            )
            .into());
        }
        self.pass(next)?;
        Ok(next.placed)
    }
}

/// Makes sure that the log is of this run, or of these runs.
fn check_identity(wal: &WalDir, dir: &Path, config: &WriterConfig) -> Result<()> {
    let found = wal.identity();
    let same =
        found.system_id == config.system_id && (found.version, found.segment_size) == (config.version, config.segment_size);
    if same {
        return Ok(());
    }
    let reason =
        "it holds the WAL of another run (scenario, seed, version or segment size differ): use another data directory, or \
                  remove it"
            .to_owned();
    Err(Error::WalDirectory { dir: dir.to_owned(), reason })
}

/// An error of the writer.
fn write_error(error: WriteError) -> Error {
    match error {
        WriteError::Io { action, path, source } => Error::Io { action, path, source },
        error => Error::Scenario(error.to_string()),
    }
}
