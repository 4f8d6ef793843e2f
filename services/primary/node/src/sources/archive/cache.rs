//! Segments of an archive on this machine's disk: a directory that looks like a `pg_wal`, of bounded size.
//!
//! The problem: readers want files, an archive has objects that take seconds to come; consumers stand at different places; and
//! neither disk nor network may be used without bound. So a reader that opens a segment gets the file if it is here, waits for
//! the one download of it otherwise, and the segments behind it are brought meanwhile.
//!
//! ```text
//!   reader ──open──► here? ──────────────────► file
//!                      │ no                     ▲
//!                      ▼                        │
//!                    on the way? ── wait ───────┤
//!                      │ no                     │
//!                      ▼                        │
//!                    download ──► temporary file, renamed when whole
//!                      └► the next segments too, while downloads are free
//! ```
//!
//! Invariants:
//! * C1 Files here and downloads under way never take more than `bytes_max`, once it is known how large a segment is. A file that
//!   was removed while a reader has it open takes its space until that reader goes on: at most a segment a stream.
//! * C2 A file under a segment's name is whole. What is shorter than a segment (an archiver is at it, or a `.partial`) is never
//!   kept.
//! * C3 A segment is downloaded once, however many wait for it.
//! * C4 No more than `prefetch + 1` downloads run; one that a reader waits for goes before one that none does.
//!
//! Cost: opening what is here is a map look-up and an `open`; finding what to remove is linear in the files here, of which there
//! are `bytes_max` divided by the segment size.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pg_types::Lsn;
use pg_wal::dir::Segment;
use pg_wal::page::is_valid_segment_size;
use pg_wal::{SegmentName, SegmentStore};
use service_kit::Drain;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::download::{Trouble, download};
use super::remote::{Listing, Object, Remote};
use crate::error::{Error, Result};

/// Largest segment that there is: the limit while it is not known how large they are.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// What is brought and kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheLimits {
    /// Most bytes on disk (C1).
    pub(super) bytes_max: u64,
    /// Segments that are brought ahead of a reader.
    pub(super) prefetch: usize,
}

/// The cache; clones are handles on the same one.
#[derive(Clone, Debug)]
pub(super) struct SegmentCache {
    /// Shared by readers, downloads and whoever lists the archive.
    shared: Arc<Shared>,
}

/// What the handles share.
#[derive(Debug)]
struct Shared {
    /// Where segments come from.
    remote: Remote,
    /// Where they are kept.
    dir: PathBuf,
    /// How much.
    limits: CacheLimits,
    /// Where downloads run; readers are on threads that may block.
    runtime: Handle,
    /// A permit a download (C4).
    downloads: Arc<Semaphore>,
    /// Readers that wait give up when the node stops.
    drain: Drain,
    /// Held briefly, and never while waiting.
    state: Mutex<State>,
}

/// A segment's name and whether it is partial.
type Key = (SegmentName, bool);
/// How a download ended: the file, nothing if the segment is gone, or why not.
type Outcome = std::result::Result<Option<Arc<File>>, Arc<Error>>;
/// A download under way tells how it ended.
type Waiting = watch::Receiver<Option<Outcome>>;

/// What is known and here.
#[derive(Debug, Default)]
struct State {
    /// Bytes of a segment; 0 while not known.
    segment_bytes: u64,
    /// The archive's objects.
    objects: BTreeMap<Key, Object>,
    /// Those that make up the WAL that is served.
    segments: BTreeMap<Lsn, Segment>,
    /// Whole segments that are here.
    files: HashMap<Key, Kept>,
    /// Downloads under way.
    coming: HashMap<Key, Waiting>,
    /// Bytes of `files`, and those set aside for `coming`.
    bytes: u64,
    /// Counts uses; the file with the smallest goes first.
    clock: u64,
}

/// Where a segment is.
enum Look {
    /// Here.
    Here(io::Result<File>),
    /// On its way.
    Coming(Waiting),
}

/// A segment that is here.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// Its bytes.
    bytes: u64,
    /// When it was used last.
    used: u64,
}

impl SegmentCache {
    /// An empty cache in `dir`, which is made if missing. What an earlier run left there is removed: the archive may have changed
    /// since. Call it where a runtime is entered.
    ///
    /// # Errors
    /// The directory cannot be made or cleared.
    pub(super) fn open(remote: Remote, dir: &Path, limits: CacheLimits, drain: Drain) -> Result<Self> {
        crate::slots::create_private_dir(dir)?;
        clear(dir)?;
        let downloads = Arc::new(Semaphore::new(limits.prefetch + 1));
        let (dir, runtime, state) = (dir.to_owned(), Handle::current(), Mutex::default());
        Ok(Self { shared: Arc::new(Shared { remote, dir, limits, runtime, downloads, drain, state }) })
    }

    /// Takes over what a listing says. A file whose object changed is not good any more.
    pub(super) fn learn(&self, listing: &Listing) {
        let mut state = self.shared.state();
        let changed = |key: &Key| state.objects.get(key) != listing.segments.get(key);
        let stale: Vec<Key> = state.files.keys().copied().filter(changed).collect();
        stale.into_iter().for_each(|key| self.shared.remove(&mut state, key));
        state.objects.clone_from(&listing.segments);
    }

    /// Takes over which segments make up the WAL that is served, and how large they are.
    pub(super) fn serve(&self, segments: BTreeMap<Lsn, Segment>, segment_bytes: u32) {
        let mut state = self.shared.state();
        (state.segments, state.segment_bytes) = (segments, segment_bytes.into());
        let bytes = state.segment_bytes;
        let short: Vec<Key> = state.files.iter().filter(|(_, kept)| kept.bytes != bytes).map(|(key, _)| *key).collect();
        short.into_iter().for_each(|key| self.shared.remove(&mut state, key));
    }

    /// Whether the limit leaves room for the downloads that may run and a segment to read.
    ///
    /// # Errors
    /// It does not; says what would.
    pub(super) fn check_room(&self, segment_bytes: u32) -> Result<()> {
        let CacheLimits { bytes_max, prefetch } = self.shared.limits;
        let least = (prefetch as u64 + 2) * u64::from(segment_bytes);
        if bytes_max < least {
            return Err(Error::Config(format!(
                "archive.cache_bytes is {bytes_max}, and segments have {segment_bytes} bytes: it must be at least {least}, or \
                 archive.prefetch smaller"
            )));
        }
        Ok(())
    }

    /// Bytes that are taken (C1).
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.shared.state().bytes
    }
}

impl SegmentStore for SegmentCache {
    fn find(&self, start: Lsn) -> Option<Segment> {
        self.shared.state().segments.get(&start).cloned()
    }

    fn find_after(&self, start: Lsn) -> Option<(Lsn, Segment)> {
        let after = (std::ops::Bound::Excluded(start), std::ops::Bound::Unbounded);
        self.shared.state().segments.range(after).next().map(|(lsn, s)| (*lsn, s.clone()))
    }

    fn open(&self, segment: &Segment) -> io::Result<Option<File>> {
        let shared = &self.shared;
        let key = (segment.name, segment.partial);
        let look = shared.look(key);
        shared.prefetch_after(key);
        let waiting = match look {
            Look::Here(file) => return file.map(Some),
            Look::Coming(waiting) => waiting,
        };
        let stopped =
            || Error::ArchiveUnavailable { object: segment.path.clone(), reason: "the primary is stopping".to_owned() };
        let outcome = shared.runtime.block_on(async {
            tokio::select! {
                outcome = ended(waiting) => outcome,
                () = shared.drain.stopping() => Err(Arc::new(stopped())),
            }
        });
        match outcome {
            Ok(Some(file)) => file.try_clone().map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

/// Waits for a download.
async fn ended(mut waiting: Waiting) -> Outcome {
    match waiting.wait_for(Option::is_some).await.map(|outcome| outcome.clone()) {
        Ok(Some(outcome)) => outcome,
        _ => Err(Arc::new(Error::Internal("a download of a segment failed".to_owned()))),
    }
}

impl Shared {
    /// The state.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a segment is kept.
    fn path(&self, (name, partial): Key) -> PathBuf {
        self.dir.join(if partial { format!("{name}.partial") } else { name.to_string() })
    }

    /// A segment that is here, or its download, begun if it is not under way (C3).
    fn look(self: &Arc<Self>, key: Key) -> Look {
        let mut state = self.state();
        state.clock += 1;
        let now = state.clock;
        if let Some(kept) = state.files.get_mut(&key) {
            kept.used = now;
            match File::open(self.path(key)) {
                // Somebody cleared the directory.
                Err(e) if e.kind() == io::ErrorKind::NotFound => state.forget(key),
                opened => return Look::Here(opened),
            }
        }
        if let Some(waiting) = state.coming.get(&key) {
            return Look::Coming(waiting.clone());
        }
        Look::Coming(self.begin(&mut state, key, None))
    }

    /// Begins a download. One that somebody waits for has no permit yet and queues for it.
    fn begin(self: &Arc<Self>, state: &mut State, key: Key, permit: Option<OwnedSemaphorePermit>) -> Waiting {
        let (done, waiting) = watch::channel(None);
        state.coming.insert(key, waiting.clone());
        let shared = Arc::clone(self);
        self.runtime.spawn(async move {
            let permit = match permit {
                Some(permit) => Ok(permit),
                None => Arc::clone(&shared.downloads).acquire_owned().await,
            };
            let outcome = tokio::select! {
                outcome = shared.bring(key) => outcome,
                () = shared.drain.stopping() => Ok(None),
            };
            drop(permit);
            shared.state().coming.remove(&key);
            done.send_replace(Some(outcome.map_err(Arc::new)));
        });
        waiting
    }

    /// Begins to bring the segments after one, while downloads are free (C4).
    fn prefetch_after(self: &Arc<Self>, (name, _): Key) {
        let mut state = self.state();
        let Some(start) = u32::try_from(state.segment_bytes).ok().filter(|b| *b > 0).and_then(|bytes| name.start(bytes)) else {
            return;
        };
        let after = (std::ops::Bound::Excluded(start), std::ops::Bound::Unbounded);
        let next: Vec<Key> = state.segments.range(after).take(self.limits.prefetch).map(|(_, s)| (s.name, s.partial)).collect();
        for key in next {
            if state.files.contains_key(&key) || state.coming.contains_key(&key) {
                continue;
            }
            let Ok(permit) = Arc::clone(&self.downloads).try_acquire_owned() else { return };
            self.begin(&mut state, key, Some(permit));
        }
    }

    /// Brings a segment, trying again while that may help. Nothing if it is not in the archive any more.
    async fn bring(&self, key: Key) -> Result<Option<Arc<File>>> {
        let mut retry = self.remote.retry();
        let mut listed = false;
        loop {
            let Some(object) = self.state().objects.get(&key).cloned() else { return Ok(None) };
            let shown = self.remote.shown(&object.path);
            let reason = match self.bring_once(key, &object).await {
                Ok(file) => return Ok(Some(Arc::new(file))),
                Err(Trouble::Gone) if listed => return Ok(None),
                Err(Trouble::Gone) => {
                    // Removed, or renamed: packed later, or moved to another folder.
                    let listing = self.remote.list().await?;
                    self.state().retain(&listing);
                    listed = true;
                    continue;
                }
                Err(Trouble::Damaged(reason)) => return Err(Error::ArchiveUnreadable { object: shown, reason }),
                Err(Trouble::Refused(reason)) => return Err(Error::ArchiveUnavailable { object: shown, reason }),
                Err(Trouble::Transient(reason)) => reason,
                Err(Trouble::Disk(e)) => format!("it cannot be kept in {}: {e}", self.dir.display()),
            };
            tracing::debug!(object = %shown.display(), reason, "a segment did not come; trying again");
            if !retry.pause().await {
                return Err(Error::ArchiveUnavailable { object: shown, reason });
            }
        }
    }

    /// One attempt.
    async fn bring_once(&self, key: Key, object: &Object) -> Result<File, Trouble> {
        let bytes_max = self.set_aside()?;
        let path = self.path(key);
        let temporary = path.with_extension("tmp");
        let downloaded = download(self.remote.store.as_ref(), object, &temporary, bytes_max).await;
        let mut state = self.state();
        state.bytes -= bytes_max;
        let known = state.segment_bytes;
        // While it is not known how large they are, any size that segments may have is taken for whole.
        let whole = |bytes| bytes == known || known == 0 && u32::try_from(bytes).is_ok_and(is_valid_segment_size);
        match downloaded {
            Ok(downloaded) if whole(downloaded.bytes) => {
                std::fs::rename(&temporary, &path).map_err(Trouble::Disk)?;
                state.clock += 1;
                let kept = Kept { bytes: downloaded.bytes, used: state.clock };
                state.files.insert(key, kept);
                state.bytes += kept.bytes;
                Ok(downloaded.file)
            }
            other => {
                // Short (C2) or of no use; who waits for it has the open file.
                let removed = std::fs::remove_file(&temporary);
                let downloaded = other?;
                removed.map_err(Trouble::Disk)?;
                Ok(downloaded.file)
            }
        }
    }

    /// Sets space aside for one segment, for which the files not used for longest go (C1). Returns how large it may be.
    fn set_aside(&self) -> Result<u64, Trouble> {
        let mut state = self.state();
        let known = state.segment_bytes;
        let bytes = if known > 0 { known } else { SEGMENT_BYTES_MAX };
        while state.bytes + bytes > self.limits.bytes_max {
            let Some(oldest) = state.files.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| *key) else { break };
            match std::fs::remove_file(self.path(oldest)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Trouble::Disk(e)),
                _ => state.forget(oldest),
            }
        }
        state.bytes += bytes;
        Ok(bytes)
    }

    /// Removes a file. One that cannot be removed is not read any more, and its space is counted no longer.
    fn remove(&self, state: &mut State, key: Key) {
        let path = self.path(key);
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "cannot remove a segment that is kept");
        }
        state.forget(key);
    }
}

impl State {
    /// A file is not here any more.
    fn forget(&mut self, key: Key) {
        if let Some(kept) = self.files.remove(&key) {
            self.bytes -= kept.bytes;
        }
    }

    /// Forgets segments that a newer listing does not have, and where the others were.
    fn retain(&mut self, listing: &Listing) {
        self.objects.clone_from(&listing.segments);
        let objects = &self.objects;
        self.segments.retain(|_, segment| objects.contains_key(&(segment.name, segment.partial)));
    }
}

/// Removes what an earlier run left: files with names that this one gives, and no others.
fn clear(dir: &Path) -> Result<()> {
    for entry in std::fs::read_dir(dir).map_err(Error::io("list", dir))? {
        let path = entry.map_err(Error::io("list", dir))?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let ours = name.strip_suffix(".tmp").unwrap_or(name);
        if SegmentName::parse(ours).is_some() {
            std::fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        }
    }
    Ok(())
}
