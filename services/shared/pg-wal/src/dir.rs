//! A directory of WAL segments: which files belong to one timeline, and what they say of their cluster.
//!
//! Opening reads the first 40 bytes of every segment and nothing else. A segment whose first page is damaged or belongs to
//! another cluster does not make the directory unreadable: the reader ends there and says so. [`WalDir::verify`] asks for more.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use pg_types::{Lsn, WalIdentity};

use crate::error::WalError;
use crate::page::{LONG_HEADER_LEN, LongPageHeader, PAGE_SIZE, PageHeader, is_valid_segment_size};
use crate::profile::WalProfile;
use crate::segment::SegmentName;

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
    /// What the first readable segment says.
    identity: WalIdentity,
    /// The timelines that make up this WAL, newest first, each with the position from which on it counts.
    timelines: Vec<(u32, Lsn)>,
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
        let timelines = choose_timelines(&dir, &files, timeline)?;
        let mine = |f: &&Segment| timelines.iter().any(|(t, _)| *t == f.name.timeline);
        let mut identity = identify(files.iter().filter(mine), &path)?;
        identity.timeline = timelines.first().map_or(identity.timeline, |(t, _)| *t);
        let mut this = Self { path: dir, single, identity, timelines, segments: BTreeMap::new(), left_out: Vec::new() };
        this.assign(files);
        Ok(this)
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
        let end = start.0.saturating_add(u64::from(self.identity.segment_size));
        self.timelines.iter().any(|(timeline, begin)| *timeline == file.name.timeline && end > begin.0)
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

    /// The file of the segment that starts at `start`, were it made after [`WalDir::open`].
    #[must_use]
    pub fn find(&self, start: Lsn) -> Option<Segment> {
        if let Some(known) = self.segments.get(&start)
            && known.path.exists()
        {
            return Some(known.clone());
        }
        if self.single {
            return None;
        }
        let end = start.0.saturating_add(u64::from(self.identity.segment_size));
        for (timeline, _) in self.timelines.iter().filter(|(_, begin)| end > begin.0) {
            let name = SegmentName::of(*timeline, start, self.identity.segment_size);
            for partial in [false, true] {
                let path = self.path.join(if partial { format!("{name}.partial") } else { name.to_string() });
                if path.exists() {
                    return Some(Segment { name, path, partial });
                }
            }
        }
        None
    }

    /// The first segment after `start` that is there now.
    ///
    /// # Errors
    /// If the directory cannot be listed.
    pub fn find_after(&self, start: Lsn) -> Result<Option<(Lsn, Segment)>, WalError> {
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

    /// The newest timeline that may have a page in a file of this name, and the file's own for others.
    #[must_use]
    pub fn timelines(&self) -> &[(u32, Lsn)] {
        &self.timelines
    }

    /// Demands that every segment's first page belongs to this WAL: magic, cluster, segment size and address.
    ///
    /// # Errors
    /// Names the first segment that disagrees, its position and the field.
    pub fn verify(&self) -> Result<(), WalError> {
        for (lsn, segment) in self.segments() {
            let bytes = read_head(&segment.path)?;
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
fn choose_timelines(dir: &Path, files: &[Segment], asked: Option<u32>) -> Result<Vec<(u32, Lsn)>, WalError> {
    let mut present: Vec<u32> = files.iter().map(|f| f.name.timeline).collect();
    present.sort_unstable();
    present.dedup();
    if let Some(timeline) = asked {
        if present.contains(&timeline) {
            return Ok(vec![(timeline, Lsn::INVALID)]);
        }
        let present = present.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        return Err(WalError::NoSuchTimeline { path: dir.to_path_buf(), timeline, present });
    }
    let newest = present.last().copied().unwrap_or_default();
    let history = dir.join(format!("{newest:08X}.history"));
    match fs::read_to_string(&history) {
        Ok(text) => Ok(timelines_of_history(newest, &text)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => Ok(vec![(newest, Lsn::INVALID)]),
        Err(source) => Err(WalError::Io { path: history, source }),
    }
}

/// Reads a history file: a line per ancestor, oldest first, with the position at which it was left (`readTimeLineHistory`).
fn timelines_of_history(newest: u32, text: &str) -> Vec<(u32, Lsn)> {
    let mut timelines = Vec::new();
    let mut begin = Lsn::INVALID;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(timeline), Some(left)) =
            (words.next().and_then(|t| t.parse().ok()), words.next().and_then(|l| l.parse().ok()))
        else {
            continue;
        };
        timelines.push((timeline, begin));
        begin = left;
    }
    timelines.push((newest, begin));
    timelines.reverse();
    timelines
}

/// The identity that the first segment with a right first page gives.
fn identify<'a>(files: impl Iterator<Item = &'a Segment>, path: &Path) -> Result<WalIdentity, WalError> {
    let mut first_error = None;
    for file in files {
        match identity_of(file) {
            Ok(identity) => return Ok(identity),
            Err(error) => _ = first_error.get_or_insert(error),
        }
    }
    Err(first_error.unwrap_or_else(|| WalError::NoSegments { path: path.to_path_buf() }))
}

/// What one segment's first page says.
fn identity_of(file: &Segment) -> Result<WalIdentity, WalError> {
    let path = || file.path.clone();
    let bytes = read_head(&file.path)?;
    let not_wal = |reason: String| WalError::NotWal { path: path(), reason };
    let header = PageHeader::read(&bytes).map_err(|e| not_wal(format!("its first page header is cut off: {e}")))?;
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
    let error = |source| WalError::Io { path: path.to_path_buf(), source };
    let mut bytes = Vec::with_capacity(LONG_HEADER_LEN as usize);
    let file = open_regular(path).map_err(error)?;
    file.take(u64::from(LONG_HEADER_LEN)).read_to_end(&mut bytes).map_err(error)?;
    Ok(bytes)
}
