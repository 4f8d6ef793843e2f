//! An archive of WAL: segments that an `archive_command`, pgBackRest, wal-g or barman put into a folder or an object store.
//!
//! The problem: an archive is a WAL directory that is slow, grows out of order, may be packed, and may lack pieces. What is not
//! there yet must be waited for, what is missing must be named, and nobody must take the one for the other. So the log's end is
//! that of the segments without a gap; a gap before later segments counts as missing only after `gap_grace`, and then a stream
//! that comes to it is told which segment it lacks.
//!
//! ```text
//!   object store ──list──► names ──► timelines, gaps, end ──► WalLog
//!        └──────download──► SegmentCache (looks like a pg_wal) ──► WalReader of each stream
//! ```

mod cache;
mod download;
mod names;
mod remote;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use pg_types::{Lsn, WalIdentity};
use pg_wal::dir::Segment;
use pg_wal::{SegmentName, TimelineHistory, WalDir, WalEnd, WalError};
use service_kit::Drain;
use std::sync::Arc;
use tokio::runtime::Handle;

use self::cache::{CacheLimits, SegmentCache};
use self::remote::{Listing, Remote};
use crate::config::{ArchiveConfig, PrimaryConfig};
use crate::error::{Error, Result};
use crate::wal_log::{LogEnd, WalLog, directory_error, find_end, find_end_from};

pub(crate) use remote::check_url;

/// Name of the cache's directory below the data directory.
const CACHE_DIR: &str = "archive";
/// Most gaps that are named in the log at the start.
const GAPS_SHOWN_MAX: usize = 20;

/// An archive that is served.
#[derive(Debug)]
pub(crate) struct Archive {
    /// Where it is.
    remote: Remote,
    /// What of it is here.
    cache: SegmentCache,
    /// The timeline that was asked for.
    timeline: Option<u32>,
    /// Set if it grows: how long a missing segment is waited for while later ones are there.
    gap_grace: Option<Duration>,
    /// Missing segments that were seen, by position, and since when; those of the last look.
    gaps: BTreeMap<Lsn, SystemTime>,
    /// Where WAL cannot be read on though later segments are there, and since when: an archiver may be at it.
    stuck: Option<(Lsn, SystemTime)>,
    /// The end that the last look found.
    end: Option<Lsn>,
    /// The timelines of the last look, and its listing.
    seen: Option<(TimelineHistory, Listing)>,
    /// Its cluster, once known.
    identity: Option<WalIdentity>,
}

/// What a look at an archive found.
struct Found {
    /// Its segments.
    dir: WalDir,
    /// Where they end.
    end: LogEnd,
}

/// Opens the archive that `config` names. Blocks on the store; to be called from a thread that may, with a runtime entered.
///
/// # Errors
/// The store cannot be reached, or holds no WAL that can be served.
pub(super) fn open(config: &PrimaryConfig, url: &str, drain: &Drain) -> Result<(WalLog, Archive)> {
    let environment = std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    let remote = Remote::open(url, environment, config.archive.retry_timeout)?;
    let source = &config.source;
    open_remote(remote, &config.archive, &config.data_dir, source.timeline, source.follow, drain)
}

/// Opens an archive in a store that is there.
fn open_remote(
    remote: Remote,
    config: &ArchiveConfig,
    data_dir: &Path,
    timeline: Option<u32>,
    follow: bool,
    drain: &Drain,
) -> Result<(WalLog, Archive)> {
    let limits = CacheLimits { bytes_max: config.cache_bytes, prefetch: config.prefetch };
    let cache = SegmentCache::open(remote.clone(), &data_dir.join(CACHE_DIR), limits, drain.clone())?;
    let gap_grace = follow.then_some(config.gap_grace);
    let known = BTreeMap::new();
    let mut archive =
        Archive { remote, cache, timeline, gap_grace, gaps: known, stuck: None, end: None, seen: None, identity: None };
    let listing = Handle::current().block_on(archive.remote.list())?;
    let found = archive.look(listing, SystemTime::now())?;
    let Some(Found { dir, end }) = found else { return Err(Error::Internal("an archive was looked at twice".to_owned())) };
    archive.cache.check_room(dir.identity().segment_size)?;
    for file in dir.left_out() {
        tracing::warn!(file = %file.display(), "not part of the WAL that is served");
    }
    let gaps = gaps(&dir);
    for (missing, next) in gaps.iter().take(GAPS_SHOWN_MAX) {
        let name = dir.expected_name(*missing);
        tracing::warn!(missing = name, at = %missing, next = %next, gaps = gaps.len(), "the archive lacks segments");
    }
    Ok((WalLog::of_archive(dir, end), archive))
}

impl Archive {
    /// Looks for new WAL every `interval` until the node stops.
    ///
    /// # Errors
    /// A newer timeline appeared: to serve it, the node has to start again.
    pub(super) async fn follow(mut self, log: WalLog, interval: Duration, drain: Drain) -> Result<()> {
        loop {
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                () = drain.draining() => return Ok(()),
            }
            let listing = tokio::select! {
                listing = self.remote.list() => listing,
                () = drain.draining() => return Ok(()),
            };
            let looked = tokio::task::spawn_blocking(move || {
                let found = listing.and_then(|listing| self.look(listing, SystemTime::now()));
                (self, found)
            });
            let (archive, found) = looked.await.map_err(|e| Error::Internal(e.to_string()))?;
            self = archive;
            match found {
                Ok(Some(Found { dir, end })) => {
                    log.renew(dir);
                    log.publish(end.lsn);
                }
                Ok(None) => {}
                Err(error @ Error::TimelineSwitched { .. }) => return Err(error),
                Err(error) => tracing::warn!(%error, "cannot look for new WAL; trying again"),
            }
        }
    }

    /// Takes a listing in: which timelines, which segments, where they end. Nothing if nothing changed. Blocks on the store.
    fn look(&mut self, listing: Listing, now: SystemTime) -> Result<Option<Found>> {
        let stuck = self.stuck.iter().map(|(_, since)| since);
        let waiting = self.gaps.values().chain(stuck).any(|since| !self.is_settled(*since, now));
        if !waiting && self.seen.as_ref().is_some_and(|(_, seen)| *seen == listing) {
            return Ok(None);
        }
        if listing.twice > 0 {
            let segments = listing.twice;
            tracing::warn!(segments, "segments are there more than once, the newest object counts; name one cluster's folder");
        }
        let history = self.choose_timelines(&listing)?;
        if let Some((before, _)) = &self.seen
            && before.newest() != history.newest()
        {
            let (from, to) = (before.newest(), history.newest());
            return Err(Error::TimelineSwitched { from, to, left: history.left_at(from).unwrap_or_default() });
        }
        self.cache.learn(&listing);
        let dir = self.directory(&listing, &history)?;
        self.identity = Some(dir.identity());
        let segments = dir.segments().map(|(start, segment)| (start, segment.clone())).collect();
        self.cache.serve(segments, dir.identity().segment_size);
        let limit = self.limit(&dir, &listing, now);
        let end = self.find_end(&dir, limit, now)?;
        let closed = self.gap_grace.is_none();
        let usual = is_usual(&dir, &end);
        if !usual {
            tracing::warn!(%end, "WAL does not go on as it should; what is before is served");
        }
        self.end = Some(end.lsn);
        self.seen = Some((history, listing));
        Ok(Some(Found { dir, end: LogEnd { lsn: end.lsn, closed, damaged: closed && !usual } }))
    }

    /// The segments of a listing. The first time, the newest segment tells what cluster they are of.
    fn directory(&self, listing: &Listing, history: &TimelineHistory) -> Result<WalDir> {
        let segment = |(&(name, partial), object): (&(SegmentName, bool), &remote::Object)| Segment {
            name,
            path: self.remote.shown(&object.path),
            partial,
        };
        let files: Vec<Segment> = listing.segments.iter().map(segment).collect();
        let (path, store) = (self.remote.name(), Arc::new(self.cache.clone()));
        match self.identity {
            Some(identity) => Ok(WalDir::of_listing(path, files, history.clone(), identity, store)),
            None => WalDir::of_store(&path, files, history.clone(), store).map_err(|e| directory_error(&path, e)),
        }
    }

    /// The timelines to serve: the asked one, or the newest that has a segment or a history (`findNewestTimeLine`), with the
    /// ancestors that its history names.
    fn choose_timelines(&self, listing: &Listing) -> Result<TimelineHistory> {
        let wrong = |reason: String| Error::WalDirectory { dir: self.remote.name(), reason };
        let newest = listing.segments.keys().map(|(name, _)| name.timeline).chain(listing.histories.keys().copied()).max();
        let Some(newest) = newest else {
            return Err(directory_error(&self.remote.name(), WalError::NoSegments { path: self.remote.name() }));
        };
        let chosen = self.timeline.unwrap_or(newest);
        let has = |timeline: u32| listing.segments.keys().any(|(name, _)| name.timeline == timeline);
        if let Some(object) = listing.histories.get(&chosen) {
            let text = Handle::current().block_on(self.remote.history(object))?;
            let shown = self.remote.shown(&object.path);
            return TimelineHistory::parse(chosen, &text)
                .map_err(|e| Error::ArchiveUnreadable { object: shown, reason: e.to_string() });
        }
        if !has(chosen) {
            return Err(wrong(format!("it holds no WAL of timeline {chosen}; the newest that it has is {newest}")));
        }
        // Without parents a timeline may be read alone; but not if its parents' WAL would be passed over without a word.
        if (1..chosen).any(has) {
            return Err(wrong(format!(
                "{chosen:08X}.history is missing, so it is not known where timeline {chosen} left its parent: copy it from the \
                 server's pg_wal, or name an older timeline (--timeline)"
            )));
        }
        Ok(TimelineHistory::alone(chosen))
    }

    /// How far the segments may be read: to the first gap that may still be filled, and no further than where the newest timeline
    /// begins while it has no segment of its own.
    fn limit(&mut self, dir: &WalDir, listing: &Listing, now: SystemTime) -> Option<Lsn> {
        let newest = dir.history().timelines().first();
        let begins = newest.filter(|(timeline, _)| !dir.segments().any(|(_, s)| s.name.timeline == *timeline));
        let begins = begins.map(|(_, begin)| *begin).filter(|begin| begin.is_valid());
        self.note_gaps(dir, listing, now);
        let open = self.gaps.iter().find(|(_, since)| !self.is_settled(**since, now)).map(|(missing, _)| *missing);
        match (begins, open) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Where WAL ends before `limit`. What came since the last look is read in whole: a segment that is only half there yet must
    /// not be passed by because the one behind it is whole. One that stays so for `gap_grace` is passed by, and streams end there.
    fn find_end(&mut self, dir: &WalDir, limit: Option<Lsn>, now: SystemTime) -> Result<WalEnd> {
        let told = |e| directory_error(dir.path(), e);
        let Some(from) = self.end else { return find_end(dir, limit).map_err(told) };
        let read = find_end_from(dir, from, limit).map_err(told);
        match &read {
            Ok(end) if is_usual(dir, end) => {
                self.stuck = None;
                return read;
            }
            // Before a gap that may still be filled the limit lies; this one is passed by.
            Ok(end) if end.is_missing_segment() => return find_end(dir, limit).map_err(told),
            Ok(_) | Err(Error::ArchiveUnreadable { .. }) => {}
            Err(_) => return read,
        }
        let at = read.as_ref().map_or(from, |end| end.lsn);
        let since = self.stuck.filter(|(stuck, _)| *stuck == at).map_or(now, |(_, since)| since);
        self.stuck = Some((at, since));
        if self.is_settled(since, now) { find_end(dir, limit).map_err(told) } else { read }
    }

    /// Remembers since when each missing segment is missing. One that was missing when the node started is so since the segment
    /// behind it was stored.
    fn note_gaps(&mut self, dir: &WalDir, listing: &Listing, now: SystemTime) {
        let first = self.seen.is_none();
        let stored = |start: &Lsn| {
            let segment = dir.segments().find(|(at, _)| at == start)?.1;
            Some(listing.segments.get(&(segment.name, segment.partial))?.modified)
        };
        let since = |missing: &Lsn, next: &Lsn| match self.gaps.get(missing) {
            Some(since) => *since,
            None if first => stored(next).unwrap_or(now),
            None => now,
        };
        self.gaps = gaps(dir).iter().map(|(missing, next)| (*missing, since(missing, next))).collect();
    }

    /// Whether a segment that is missing since `since` counts as missing, not as late.
    fn is_settled(&self, since: SystemTime, now: SystemTime) -> bool {
        self.gap_grace.is_none_or(|grace| now.duration_since(since).is_ok_and(|age| age >= grace))
    }
}

/// The gaps of a listing: the first missing position of each, and the next that is there.
fn gaps(dir: &WalDir) -> Vec<(Lsn, Lsn)> {
    let size = u64::from(dir.identity().segment_size);
    let starts: Vec<Lsn> = dir.segments().map(|(start, _)| start).collect();
    let gap = |pair: &[Lsn]| match pair {
        [a, b] if a.0 + size != b.0 => Some((Lsn(a.0 + size), *b)),
        _ => None,
    };
    starts.windows(2).filter_map(gap).collect()
}

/// Whether an archive may end so: as WAL does, or with a full segment whose next one is not there yet.
fn is_usual(dir: &WalDir, end: &WalEnd) -> bool {
    use pg_wal::EndReason::TornRecord;
    let at = if let TornRecord { at, .. } = end.reason { at } else { end.lsn };
    end.is_complete() || (end.is_missing_segment() && at >= dir.end())
}
