//! Runs: scenarios that clients ask for, each a resource on disk that outlives the stream that began it, and the process.
//!
//! ```text
//!  RunScenario ──accept──► runs/ID.run ──next──► sources::runs plays it ──update──► watchers (streams, GetRun)
//! ```
//!
//! One run at a time is played, and there is no queue: who asks while one is played is told which. [`Runs`] is the table behind a
//! lock; the player takes the run that is to be played from it and puts its progress back.
//!
//! Invariants:
//! * I1 A run is on disk before its client hears of it, and before its first record is in the log.
//! * I2 At most one run is [`RunPhase::Running`]; it is the newest. So the log always ends in the newest run.
//! * I3 A request id names one run. The same wish again gives that run; another wish under its id is refused.
//! * I4 When a run ends early for a client's sake, the step after which it does is on disk before the log shows it: played again
//!   after a crash, it ends at the same record.

mod file;
mod limits;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pg_types::Lsn;
use tokio::sync::watch;

use file::Deleted;
pub(crate) use file::{Bounds, Counts, Finding, FindingKind, LogPlace, NewRun, PointFile, RunFile, RunPhase, Setting, Wish};
pub use limits::RunsConfig;

use crate::error::{Error, Result};

/// A run as it was at a moment.
pub(crate) type Snapshot = Arc<RunFile>;

/// The runs of one primary. Cloned handles share them.
#[derive(Clone, Debug)]
pub(crate) struct Runs {
    /// Shared by the services and the player.
    inner: Arc<Inner>,
}

/// What the handles share.
#[derive(Debug)]
struct Inner {
    /// `runs` below the data directory.
    dir: PathBuf,
    /// Limits.
    config: RunsConfig,
    /// The log they are in.
    system_id: u64,
    /// All of them. Held while a file is written, so that what is in memory and what is on disk change in one order; never across
    /// an await.
    table: Mutex<Table>,
    /// Rung when a run is accepted.
    accepted: Condvar,
}

/// All runs.
#[derive(Debug)]
struct Table {
    /// Those that are kept, by number.
    runs: BTreeMap<u64, watch::Sender<Snapshot>>,
    /// What is left of the others.
    deleted: Deleted,
}

impl Table {
    /// The run that is played (I2).
    fn running(&self) -> Option<Snapshot> {
        let (_, last) = self.runs.last_key_value()?;
        let run = Arc::clone(&last.borrow());
        (run.phase == RunPhase::Running).then_some(run)
    }

    /// The number of the next run.
    fn next_id(&self) -> u64 {
        self.runs.last_key_value().map_or(0, |(last, _)| *last).max(self.deleted.last_id) + 1
    }

    /// Where the log goes on.
    fn log_end(&self) -> Option<LogPlace> {
        let kept = self.runs.values().rev().find_map(|run| run.borrow().end());
        kept.into_iter().chain(self.deleted.end).max_by_key(|place| place.lsn)
    }
}

impl Runs {
    /// Reads the runs below `data_dir` (made if missing), for the log of `system_id`.
    ///
    /// # Errors
    /// A damaged file, one of another log, or what the system says.
    pub(crate) fn open(data_dir: &Path, system_id: u64, config: RunsConfig) -> Result<Self> {
        let dir = data_dir.join("runs");
        crate::slots::create_private_dir(&dir)?;
        let mut table = Table { runs: BTreeMap::new(), deleted: file::load_deleted(&dir)? };
        for run in file::load_all(&dir)? {
            if run.system_id != system_id {
                let reason = format!(
                    "it is of the log with system identifier {}, but the log here has {system_id}: use another data directory",
                    run.system_id
                );
                return Err(Error::RunFile { path: file::path_of(&dir, run.id), reason });
            }
            table.runs.insert(run.id, watch::channel(Arc::new(run)).0);
        }
        let inner = Inner { dir, config, system_id, table: Mutex::new(table), accepted: Condvar::new() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The limits.
    pub(crate) fn config(&self) -> &RunsConfig {
        &self.inner.config
    }

    /// System identifier of the log.
    pub(crate) fn system_id(&self) -> u64 {
        self.inner.system_id
    }

    /// All runs, newest first.
    pub(crate) fn newest_first(&self) -> Vec<Snapshot> {
        self.table().runs.values().rev().map(|run| Arc::clone(&run.borrow())).collect()
    }

    /// One run, and how it goes on.
    ///
    /// # Errors
    /// There is none of that number.
    pub(crate) fn watch(&self, id: u64) -> Result<watch::Receiver<Snapshot>> {
        self.table().runs.get(&id).map(watch::Sender::subscribe).ok_or(Error::RunNotFound { id })
    }

    /// Accepts a run; true if it was there already. Blocks on the disk.
    ///
    /// # Errors
    /// Another run is played, its request id was used for something else, too many runs are kept, or the files cannot be written.
    pub(crate) fn accept(&self, new: &NewRun) -> Result<(watch::Receiver<Snapshot>, bool)> {
        let mut table = self.table();
        if let Some(run) = self.requested(&table, new)? {
            return Ok((run, true));
        }
        self.check_room(&table)?;
        let id = table.next_id();
        let run = RunFile::new(id, new);
        file::create(&self.inner.dir, &run, &new.text)?;
        let (sender, receiver) = watch::channel(Arc::new(run));
        table.runs.insert(id, sender);
        self.inner.accepted.notify_all();
        Ok((receiver, false))
    }

    /// Whether a run could be accepted now.
    ///
    /// # Errors
    /// As [`Runs::accept`].
    pub(crate) fn check(&self, new: &NewRun) -> Result<()> {
        let table = self.table();
        if self.requested(&table, new)?.is_some() { Ok(()) } else { self.check_room(&table) }
    }

    /// The run with the request id of `new`, which must be the same wish (I3).
    fn requested(&self, table: &Table, new: &NewRun) -> Result<Option<watch::Receiver<Snapshot>>> {
        let request_id = new.wish.request_id.as_str();
        let same_id = |run: &&watch::Sender<Snapshot>| run.borrow().wish.request_id == request_id;
        let Some(found) = table.runs.values().find(same_id).filter(|_| !request_id.is_empty()) else { return Ok(None) };
        let run = Arc::clone(&found.borrow());
        if run.wish == new.wish && run.scenario == new.scenario && file::text(&self.inner.dir, run.id)? == new.text {
            Ok(Some(found.subscribe()))
        } else {
            Err(Error::RequestIdReused { request_id: request_id.to_owned(), id: run.id })
        }
    }

    /// I2, and the limit.
    fn check_room(&self, table: &Table) -> Result<()> {
        match table.running() {
            Some(run) => Err(Error::RunActive { id: run.id }),
            None => self.inner.config.check_kept(table.runs.len()),
        }
    }

    /// Notes that a client wants a run to end. Blocks on the disk.
    ///
    /// # Errors
    /// There is none of that number, or its file cannot be written.
    pub(crate) fn cancel(&self, id: u64) -> Result<Snapshot> {
        let run = Arc::clone(&self.watch(id)?.borrow());
        if run.phase != RunPhase::Running || run.cancel_requested {
            return Ok(run);
        }
        // It may have ended meanwhile.
        self.change(id, |run| run.cancel_requested |= run.phase == RunPhase::Running)
    }

    /// Forgets a run that has ended. Blocks on the disk.
    ///
    /// # Errors
    /// There is none of that number, it is played, or its files cannot be removed.
    pub(crate) fn delete(&self, id: u64) -> Result<()> {
        let mut table = self.table();
        let run = table.runs.get(&id).map(|run| Arc::clone(&run.borrow())).ok_or(Error::RunNotFound { id })?;
        if run.phase == RunPhase::Running {
            return Err(Error::RunActive { id });
        }
        let deleted = Deleted { last_id: table.deleted.last_id.max(id), end: table.log_end() };
        file::store_deleted(&self.inner.dir, &deleted)?;
        table.deleted = deleted;
        file::remove(&self.inner.dir, id)?;
        table.runs.remove(&id);
        Ok(())
    }

    /// The scenario's text of a run. Blocks on the disk.
    pub(crate) fn text(&self, id: u64) -> Result<String> {
        file::text(&self.inner.dir, id)
    }

    /// The run that is to be played, now or after at most `patience`.
    pub(crate) fn next(&self, patience: Duration) -> Option<Snapshot> {
        let table = self.table();
        if let Some(run) = table.running() {
            return Some(run);
        }
        let waited = self.inner.accepted.wait_timeout(table, patience);
        waited.unwrap_or_else(PoisonError::into_inner).0.running()
    }

    /// Where the log goes on behind the newest run; none before the first.
    pub(crate) fn log_end(&self) -> Option<LogPlace> {
        self.table().log_end()
    }

    /// Start of the oldest record that is needed to go on: the last one before the run, or the point of it, that is played.
    pub(crate) fn needs(&self) -> Lsn {
        let table = self.table();
        let begun = table.running().and_then(|run| run.points.last().map(|point| point.end.unwrap_or(point.begin)));
        begun.or_else(|| table.log_end()).map_or(Lsn(0), |place| place.prev)
    }

    /// Changes a run on disk and then in memory, and tells its watchers. Blocks on the disk.
    ///
    /// # Errors
    /// There is none of that number, or its file cannot be written.
    pub(crate) fn change(&self, id: u64, change: impl FnOnce(&mut RunFile)) -> Result<Snapshot> {
        let table = self.table();
        let sender = table.runs.get(&id).ok_or(Error::RunNotFound { id })?;
        let mut run = RunFile::clone(&sender.borrow());
        change(&mut run);
        file::store(&self.inner.dir, &run)?;
        let run = Arc::new(run);
        sender.send_replace(Arc::clone(&run));
        Ok(run)
    }

    /// Tells the watchers of a run how far its last point is; it is not stored.
    pub(crate) fn progress(&self, id: u64, counts: Counts) {
        let table = self.table();
        let Some(sender) = table.runs.get(&id) else { return };
        sender.send_modify(|run| {
            if let Some(point) = Arc::make_mut(run).points.last_mut() {
                point.counts = counts;
            }
        });
    }

    /// The table.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.inner.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
