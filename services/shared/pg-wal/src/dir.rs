//! A directory of WAL segments: which files belong to one timeline, and what they say of their cluster.
//!
//! Opening reads the first 40 bytes of every segment and nothing else. A segment whose first page is damaged or belongs to
//! another cluster does not make the directory unreadable: the reader ends there and says so. [`WalDir::verify`] asks for more.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pg_types::{Lsn, WalIdentity};

use crate::error::WalError;
use crate::page::{LONG_HEADER_LEN, LongPageHeader, PAGE_SIZE, PageHeader, is_valid_segment_size};
use crate::profile::WalProfile;
use crate::segment::SegmentName;
use crate::store::SegmentStore;
use crate::timeline::TimelineHistory;

/// Segments whose first pages are looked at, at most, to find out which cluster a store is of: each has to be brought.
const IDENTIFY_MAX: usize = 3;

/// One segment file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its name, without `.partial`.
    pub name: SegmentName,
    /// Where it is.
    pub path: PathBuf,
    /// The name ends in `.partial`.
    pub partial: bool,
}

/// The segments of one timeline in a directory.
#[derive(Clone, Debug)]
pub struct WalDir {
    /// The directory.
    path: PathBuf,
    /// Set if one file was asked for, not a directory.
    single: bool,
    /// Set if the segments are no files of a directory.
    store: Option<Arc<dyn SegmentStore>>,
    /// What the first readable segment says.
    identity: WalIdentity,
    /// The timelines that make up this WAL.
    history: TimelineHistory,
    /// Segments by their first position.
    segments: BTreeMap<Lsn, Segment>,
    /// Files with a segment's name that are not part of this WAL.
    left_out: Vec<PathBuf>,
}

impl WalDir {
    /// Lists the segments of one timeline.
    ///
    /// `path` is a directory with segments, a data directory (then its `pg_wal` is meant), or one segment file. Without a
    /// `timeline` it is the newest one in the directory, with its ancestors as far as its history file is there and names
    /// them, as recovery reads them; everything else is [`WalDir::left_out`].
    ///
    /// # Errors
    /// If nothing is there, nothing has a segment's name, no segment holds WAL of a version that is read, or the asked
    /// timeline is missing.
    pub fn open(path: impl AsRef<Path>, timeline: Option<u32>) -> Result<Self, WalError> {
        let (path, single) = resolve(path.as_ref())?;
        let dir = if single { path.parent().map_or_else(PathBuf::new, Path::to_path_buf) } else { path.clone() };
        let files = if single { single_file(&path)? } else { list(&dir)? };
        if files.is_empty() {
            return Err(WalError::NoSegments { path });
        }
        let history = choose_timelines(&dir, &files, timeline)?;
        let mut identity = identify(files.iter().filter(|f| history.contains(f.name.timeline)), &path)?;
        identity.timeline = history.newest();
        let mut this =
            Self { path: dir, single, store: None, identity, history, segments: BTreeMap::new(), left_out: Vec::new() };
        this.assign(files);
        Ok(this)
    }

    /// The segments of a store, of which `files` are known and the newest that holds WAL tells what cluster they are of. `path`
    /// is what the store is called. Unlike a directory's, segments of other clusters are found when they are read.
    ///
    /// # Errors
    /// If no file belongs to `history`, or none holds WAL of a version that is read.
    pub fn of_store(
        path: impl Into<PathBuf>,
        files: Vec<Segment>,
        history: TimelineHistory,
        store: Arc<dyn SegmentStore>,
    ) -> Result<Self, WalError> {
        let path = path.into();
        let mut newest: Vec<&Segment> = files.iter().filter(|f| history.contains(f.name.timeline)).collect();
        newest.sort_by_key(|f| std::cmp::Reverse((f.name, !f.partial)));
        let mut head_error = None;
        for file in newest.into_iter().take(IDENTIFY_MAX) {
            let opened = store.open(file).map_err(|source| WalError::Io { path: file.path.clone(), source })?;
            let Some(opened) = opened else { continue };
            let head = read_head_of(&opened).map_err(|source| WalError::Io { path: file.path.clone(), source })?;
            match identity_of(file, &head) {
                Ok(identity) => {
                    let identity = WalIdentity { timeline: history.newest(), ..identity };
                    return Ok(Self::of_listing(path, files, history, identity, store));
                }
                Err(error) => _ = head_error.get_or_insert(error),
            }
        }
        Err(head_error.unwrap_or(WalError::NoSegments { path }))
    }

    /// The segments of a store of which the identity is known.
    #[must_use]
    pub fn of_listing(
        path: impl Into<PathBuf>,
        files: Vec<Segment>,
        history: TimelineHistory,
        identity: WalIdentity,
        store: Arc<dyn SegmentStore>,
    ) -> Self {
        let (segments, left_out) = (BTreeMap::new(), Vec::new());
        let mut this = Self { path: path.into(), single: false, store: Some(store), identity, history, segments, left_out };
        this.assign(files);
        this
    }

    /// Sorts files into segments and those left out. Of two files for one segment the newer timeline's counts, and a
    /// complete one before a partial one.
    fn assign(&mut self, files: Vec<Segment>) {
        for file in files {
            let Some(start) = file.name.start(self.identity.segment_size).filter(|s| self.counts(&file, *s)) else {
                self.left_out.push(file.path);
                continue;
            };
            let rank = |s: &Segment| (s.name.timeline, !s.partial);
            match self.segments.get_mut(&start) {
                Some(old) if rank(old) < rank(&file) => self.left_out.push(std::mem::replace(old, file).path),
                Some(_) => self.left_out.push(file.path),
                None => drop(self.segments.insert(start, file)),
            }
        }
    }

    /// Whether a file's timeline is one of ours and has anything at its place.
    fn counts(&self, file: &Segment, start: Lsn) -> bool {
        self.history.counts(file.name, start, self.identity.segment_size)
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Version, cluster, timeline and segment size.
    #[must_use]
    pub fn identity(&self) -> WalIdentity {
        self.identity
    }

    /// What the version writes.
    #[must_use]
    pub fn profile(&self) -> &'static WalProfile {
        WalProfile::of(self.identity.version)
    }

    /// The segments, in order.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = (Lsn, &Segment)> {
        self.segments.iter().map(|(lsn, s)| (*lsn, s))
    }

    /// Files with a segment's name that were not taken: other timelines, `.partial` beside a complete one, impossible names.
    #[must_use]
    pub fn left_out(&self) -> &[PathBuf] {
        &self.left_out
    }

    /// First position in the directory.
    #[must_use]
    pub fn first(&self) -> Lsn {
        self.segments.keys().next().copied().unwrap_or_default()
    }

    /// First position after the last segment.
    #[must_use]
    pub fn end(&self) -> Lsn {
        let last = self.segments.keys().next_back().copied().unwrap_or_default();
        Lsn(last.0.saturating_add(u64::from(self.identity.segment_size)))
    }

    /// The segment that starts at `start`, were it made after [`WalDir::open`].
    #[must_use]
    pub fn find(&self, start: Lsn) -> Option<Segment> {
        if let Some(store) = &self.store {
            return store.find(start);
        }
        if let Some(known) = self.segments.get(&start)
            && known.path.exists()
        {
            return Some(known.clone());
        }
        if self.single {
            return None;
        }
        for (timeline, _) in self.history.timelines() {
            let name = SegmentName::of(*timeline, start, self.identity.segment_size);
            for partial in [false, true] {
                let path = self.path.join(if partial { format!("{name}.partial") } else { name.to_string() });
                let segment = Segment { name, path, partial };
                if self.counts(&segment, start) && segment.path.exists() {
                    return Some(segment);
                }
            }
        }
        None
    }

    /// Opens a segment; nothing if it is gone from its store. Blocks.
    pub(crate) fn open_file(&self, segment: &Segment) -> Result<Option<File>, WalError> {
        let opened = match &self.store {
            Some(store) => store.open(segment),
            None => open_regular(&segment.path).map(Some),
        };
        opened.map_err(|source| WalError::Io { path: segment.path.clone(), source })
    }

    /// The first segment after `start` that is there now.
    ///
    /// # Errors
    /// If the directory cannot be listed.
    pub fn find_after(&self, start: Lsn) -> Result<Option<(Lsn, Segment)>, WalError> {
        if let Some(store) = &self.store {
            return Ok(store.find_after(start));
        }
        if self.single {
            return Ok(None);
        }
        let mut now = Self { segments: BTreeMap::new(), left_out: Vec::new(), ..self.clone() };
        now.assign(list(&self.path)?);
        let after = (std::ops::Bound::Excluded(start), std::ops::Bound::Unbounded);
        Ok(now.segments.range(after).next().map(|(lsn, s)| (*lsn, s.clone())))
    }

    /// The name that the segment at `start` should have.
    #[must_use]
    pub fn expected_name(&self, start: Lsn) -> String {
        SegmentName::of(self.identity.timeline, start, self.identity.segment_size).to_string()
    }

    /// The timelines that make up this WAL.
    #[must_use]
    pub fn history(&self) -> &TimelineHistory {
        &self.history
    }

    /// Demands that every segment's first page belongs to this WAL: magic, cluster, segment size and address.
    ///
    /// # Errors
    /// Names the first segment that disagrees, its position and the field.
    pub fn verify(&self) -> Result<(), WalError> {
        for (lsn, segment) in self.segments() {
            let Some(file) = self.open_file(segment)? else { continue };
            let bytes = read_head_of(&file).map_err(|source| WalError::Io { path: segment.path.clone(), source })?;
            let header = PageHeader::read(&bytes);
            let reason = match header {
                Err(_) => Some(format!("the file has only {} bytes", bytes.len())),
                Ok(_) if bytes.iter().all(|&b| b == 0) => None,
                Ok(header) => check_header(&header, lsn, self.identity).err(),
            };
            if let Some(reason) = reason {
                return Err(WalError::Disagreement { path: segment.path.clone(), lsn, reason });
            }
        }
        Ok(())
    }
}

/// Compares a page header with what its place demands (`XLogReaderValidatePageHeader`).
pub(crate) fn check_header(header: &PageHeader, page: Lsn, identity: WalIdentity) -> Result<(), String> {
    let magic = WalProfile::of(identity.version).page_magic;
    if header.magic != magic {
        return Err(format!("page magic is {:04X}, not {magic:04X}", header.magic));
    }
    if header.info & !crate::page::ALL_FLAGS != 0 {
        return Err(format!("page flags {:04X} are invalid", header.info));
    }
    let first_of_segment = page.0 & (u64::from(identity.segment_size) - 1) == 0;
    match header.long {
        None if first_of_segment => return Err("the segment's first page lacks the long header".to_owned()),
        Some(long) => check_long(&long, identity)?,
        None => {}
    }
    if header.long.is_some() && !first_of_segment {
        return Err("a page inside a segment has a long header".to_owned());
    }
    if header.address != page {
        return Err(format!("the page says that it is {}, not {page}", header.address));
    }
    Ok(())
}

/// Compares what a long header says of the cluster.
fn check_long(long: &LongPageHeader, identity: WalIdentity) -> Result<(), String> {
    if long.system_id != identity.system_id {
        return Err(format!("it belongs to another cluster: system identifier {}, not {}", long.system_id, identity.system_id));
    }
    if long.segment_size != identity.segment_size {
        return Err(format!("segment size is {}, not {}", long.segment_size, identity.segment_size));
    }
    if long.page_size != PAGE_SIZE {
        return Err(format!("page size is {}, not {PAGE_SIZE}", long.page_size));
    }
    Ok(())
}

/// Where the segments are: the path itself, its `pg_wal`, or one file.
fn resolve(path: &Path) -> Result<(PathBuf, bool), WalError> {
    let meta = fs::metadata(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => WalError::NotFound { path: path.to_path_buf() },
        _ => WalError::Io { path: path.to_path_buf(), source },
    })?;
    if !meta.is_dir() {
        return Ok((path.to_path_buf(), true));
    }
    let inner = path.join("pg_wal");
    Ok((if inner.is_dir() { inner } else { path.to_path_buf() }, false))
}

/// One file as the only segment.
fn single_file(path: &Path) -> Result<Vec<Segment>, WalError> {
    let name = path.file_name().and_then(|n| n.to_str()).and_then(SegmentName::parse);
    let Some((name, partial)) = name else {
        return Err(WalError::NotWal {
            path: path.to_path_buf(),
            reason: "its name is not that of a segment, as in 00000001000000000000000A".to_owned(),
        });
    };
    Ok(vec![Segment { name, path: path.to_path_buf(), partial }])
}

/// The files of a directory that have a segment's name, in the order of their names.
fn list(dir: &Path) -> Result<Vec<Segment>, WalError> {
    let error = |source| WalError::Io { path: dir.to_path_buf(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(error)? {
        let entry = entry.map_err(error)?;
        if let Some((name, partial)) = entry.file_name().to_str().and_then(SegmentName::parse) {
            files.push(Segment { name, path: entry.path(), partial });
        }
    }
    files.sort_by_key(|f| (f.name, f.partial));
    Ok(files)
}

/// The timelines to read, newest first, with where each begins.
fn choose_timelines(dir: &Path, files: &[Segment], asked: Option<u32>) -> Result<TimelineHistory, WalError> {
    let mut present: Vec<u32> = files.iter().map(|f| f.name.timeline).collect();
    present.sort_unstable();
    present.dedup();
    if let Some(timeline) = asked {
        if present.contains(&timeline) {
            return Ok(TimelineHistory::alone(timeline));
        }
        let present = present.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        return Err(WalError::NoSuchTimeline { path: dir.to_path_buf(), timeline, present });
    }
    let newest = present.last().copied().unwrap_or_default();
    let history = dir.join(format!("{newest:08X}.history"));
    match fs::read_to_string(&history) {
        // A file that is none is as good as missing: the ancestors' segments are then left out, and listed as such.
        Ok(text) => Ok(TimelineHistory::parse(newest, &text).unwrap_or_else(|_| TimelineHistory::alone(newest))),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {
            Ok(TimelineHistory::alone(newest))
        }
        Err(source) => Err(WalError::Io { path: history, source }),
    }
}

/// The identity that the first segment with a right first page gives.
fn identify<'a>(files: impl Iterator<Item = &'a Segment>, path: &Path) -> Result<WalIdentity, WalError> {
    let mut first_error = None;
    for file in files {
        match read_head(&file.path).and_then(|head| identity_of(file, &head)) {
            Ok(identity) => return Ok(identity),
            Err(error) => _ = first_error.get_or_insert(error),
        }
    }
    Err(first_error.unwrap_or_else(|| WalError::NoSegments { path: path.to_path_buf() }))
}

/// What one segment's first page says.
fn identity_of(file: &Segment, bytes: &[u8]) -> Result<WalIdentity, WalError> {
    let path = || file.path.clone();
    let not_wal = |reason: String| WalError::NotWal { path: path(), reason };
    let header = PageHeader::read(bytes).map_err(|e| not_wal(format!("its first page header is cut off: {e}")))?;
    let Some(profile) = WalProfile::of_magic(header.magic) else {
        return Err(match WalProfile::refused_product(header.magic) {
            Some(product) => WalError::UnsupportedVersion { path: path(), magic: header.magic, product },
            None if bytes.iter().all(|&b| b == 0) => not_wal("it holds only zeroes".to_owned()),
            None => not_wal(format!("its first bytes {:04X} are no page magic of PostgreSQL", header.magic)),
        });
    };
    let Some(long) = header.long else { return Err(not_wal("its first page lacks the long header".to_owned())) };
    if !is_valid_segment_size(long.segment_size) {
        return Err(not_wal(format!("its segment size {} is no power of two from 1 MB to 1 GB", long.segment_size)));
    }
    let identity = WalIdentity {
        version: profile.version,
        system_id: long.system_id,
        timeline: file.name.timeline,
        segment_size: long.segment_size,
    };
    let Some(start) = file.name.start(long.segment_size) else {
        return Err(not_wal(format!("no segment of {} bytes has its name", long.segment_size)));
    };
    check_header(&header, start, identity).map_err(not_wal)?;
    Ok(identity)
}

/// Opens a file of bytes. A pipe with a segment's name would be waited for, a device has no end.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    if fs::metadata(path)?.is_file() { File::open(path) } else { Err(io::Error::other("it is no regular file")) }
}

/// The first bytes of a segment, as many as a long header has or fewer.
fn read_head(path: &Path) -> Result<Vec<u8>, WalError> {
    open_regular(path).and_then(|file| read_head_of(&file)).map_err(|source| WalError::Io { path: path.to_path_buf(), source })
}

/// The first bytes of an open segment.
fn read_head_of(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; LONG_HEADER_LEN as usize];
    let mut got = 0;
    while let Some(room) = bytes.get_mut(got..).filter(|room| !room.is_empty()) {
        match file.read_at(room, got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    bytes.truncate(got);
    Ok(bytes)
}
