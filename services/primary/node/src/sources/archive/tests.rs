//! Archives of every kind, in memory: what is served, what is waited for, what is named.

use std::path::PathBuf;

use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt};
use pg_wal::WalReader;
use tempfile::TempDir;

use super::*;
use crate::wal_log::{end_error, read_error};

/// Bytes of a segment of the fixture.
const MIB: u64 = 1 << 20;

/// An archive in memory, and where it is kept.
struct Bed {
    /// The store.
    store: Arc<InMemory>,
    /// The node's data directory.
    data: TempDir,
    /// Settings.
    config: ArchiveConfig,
    /// The timeline that is asked for.
    timeline: Option<u32>,
    /// The archive grows.
    follow: bool,
    /// The node.
    drain: Drain,
}

/// A record: where it is, and its bytes.
type Record = (Lsn, Lsn, Vec<u8>);

impl Bed {
    /// An empty archive that does not grow.
    fn new() -> Self {
        let config = ArchiveConfig {
            prefetch: 1,
            cache_bytes: 3 * MIB,
            gap_grace: Duration::from_secs(3600),
            retry_timeout: Duration::from_millis(1),
        };
        let (store, data) = (Arc::new(InMemory::new()), tempfile::tempdir().unwrap());
        Self { store, data, config, timeline: None, follow: false, drain: Drain::new() }
    }

    /// Stores an object.
    async fn put(&self, key: &str, bytes: Vec<u8>) {
        self.store.put(&Key::from(key), bytes.into()).await.unwrap();
    }

    /// Removes an object.
    async fn delete(&self, key: &str) {
        self.store.delete(&Key::from(key)).await.unwrap();
    }

    /// The store as the node sees it.
    fn remote(&self) -> Remote {
        let store: Arc<dyn ObjectStore> = Arc::<InMemory>::clone(&self.store);
        Remote::of_store(store, "wal", self.config.retry_timeout)
    }

    /// Opens the archive.
    async fn open(&self) -> Result<(WalLog, Archive)> {
        let (remote, config, data) = (self.remote(), self.config.clone(), self.data.path().to_owned());
        let (timeline, follow, drain) = (self.timeline, self.follow, self.drain.clone());
        blocking(move || open_remote(remote, &config, &data, timeline, follow, &drain)).await
    }

    /// Opens the archive and says why it cannot be.
    async fn refused(&self) -> String {
        self.open().await.map(|(log, _)| log.end()).unwrap_err().to_string()
    }
}

/// Runs what blocks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// The three segments of a real server 18.
fn fixture() -> Vec<(String, Vec<u8>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/pg-wal/tests/fixtures/pg18/wal.tar.zst");
    let packed = std::fs::File::open(path).unwrap();
    let mut tar = tar::Archive::new(zstd::Decoder::new(packed).unwrap());
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for entry in tar.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
        if bytes.len() as u64 == MIB {
            files.push((name, bytes));
        }
    }
    files.sort();
    assert_eq!(files.len(), 3);
    files
}

/// The records of segments in a directory, and where they end.
fn expected(segments: &[(String, Vec<u8>)]) -> (Vec<Record>, WalEnd) {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in segments {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    let mut reader = WalReader::open(&WalDir::open(dir.path(), None).unwrap(), None).unwrap();
    let records = read(&mut reader).unwrap();
    (records, reader.end().unwrap().clone())
}

/// The records up to the next end.
fn read(reader: &mut WalReader) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    while let Some(r) = reader.next().map_err(read_error)? {
        records.push((r.lsn, r.end_lsn, r.bytes.to_vec()));
    }
    Ok(records)
}

/// All records of a log as a stream reads them, and the error in which they end, if they do.
async fn served(log: &WalLog) -> (Vec<Record>, Option<Error>) {
    let log = log.clone();
    blocking(move || {
        let mut reader = log.reader(log.oldest()).unwrap();
        reader.set_limit(log.end().read_limit());
        match read(&mut reader) {
            Ok(records) => {
                let end = reader.end().unwrap();
                let error = (!end.is_complete()).then(|| end_error(end, &log.identity()));
                (records, error)
            }
            Err(error) => (Vec::new(), Some(error)),
        }
    })
    .await
}

/// How an archiver stores a segment.
type Store = fn(&str, &[u8]) -> (String, Vec<u8>);

/// Archivers, by how they name and pack.
fn archivers() -> [(&'static str, Store); 5] {
    use std::io::Write as _;
    [
        ("cp", |name, bytes| (format!("wal/{name}"), bytes.to_vec())),
        ("wal-g", |name, bytes| {
            let mut out = lz4_flex::frame::FrameEncoder::new(Vec::new());
            out.write_all(bytes).unwrap();
            (format!("wal/{name}.lz4"), out.finish().unwrap())
        }),
        ("pgBackRest", |name, bytes| {
            let sum = "0123456789abcdef0123456789abcdef01234567";
            (format!("wal/18-1/{}/{name}-{sum}.zst", &name[..16]), zstd::encode_all(bytes, 1).unwrap())
        }),
        ("barman-cloud", |name, bytes| {
            let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            out.write_all(bytes).unwrap();
            (format!("wal/wals/{}/{name}.gz", &name[..16]), out.finish().unwrap())
        }),
        ("barman, which gives no suffix", |name, bytes| (format!("wal/{name}"), zstd::encode_all(bytes, 1).unwrap())),
    ]
}

/// A segment of another timeline: the pages' headers say so.
fn with_timeline(bytes: &[u8], timeline: u32) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for page in bytes.chunks_mut(8192).filter(|page| page[..2] != [0, 0]) {
        page[4..8].copy_from_slice(&timeline.to_le_bytes());
    }
    bytes
}

/// A segment's name on another timeline.
fn renamed(name: &str, timeline: u32) -> String {
    format!("{timeline:08X}{}", &name[8..])
}

/// An archive of a cluster that was promoted with the second segment.
async fn promoted() -> (Bed, Vec<(String, Vec<u8>)>) {
    let (bed, segments) = (Bed::new(), fixture());
    bed.put(&format!("wal/{}", segments[0].0), segments[0].1.clone()).await;
    for (name, bytes) in &segments[1..] {
        bed.put(&format!("wal/{}", renamed(name, 2)), with_timeline(bytes, 2)).await;
    }
    // What the old timeline wrote after it was left is another WAL: the reader would stumble over these.
    bed.put(&format!("wal/{}.partial", segments[1].0), vec![1; 300]).await;
    bed.put(&format!("wal/{}", segments[2].0), vec![1; MIB as usize]).await;
    bed.put("wal/00000002.history", b"1\t0/B00000\tno recovery target specified\n".to_vec()).await;
    (bed, segments)
}

#[tokio::test]
async fn every_archiver_is_read_like_the_directory() {
    let segments = fixture();
    let (records, end) = expected(&segments);
    for (archiver, store) in archivers() {
        let bed = Bed::new();
        for (name, bytes) in &segments {
            let (key, bytes) = store(name, bytes);
            bed.put(&key, bytes).await;
        }
        bed.put("wal/00000001000000000000000A.00000028.backup", b"START WAL LOCATION".to_vec()).await;
        bed.put("wal/backup.info", b"{}".to_vec()).await;
        let (log, _archive) = bed.open().await.unwrap();
        assert_eq!(log.end(), LogEnd { lsn: end.lsn, closed: true, damaged: false }, "{archiver}");
        let (got, error) = served(&log).await;
        assert!(error.is_none(), "{archiver}: {error:?}");
        assert!(got == records, "{archiver}: other records");
    }
}

#[tokio::test]
async fn an_archive_without_its_last_segments_ends_where_they_do() {
    let (bed, segments) = (Bed::new(), fixture());
    let (name, bytes) = &segments[0];
    bed.put(&format!("wal/{name}"), bytes.clone()).await;
    let (records, end) = expected(&segments[..1]);
    assert!(!end.is_complete(), "for a directory that is damage");
    let (log, _archive) = bed.open().await.unwrap();
    assert_eq!(log.end(), LogEnd { lsn: end.lsn, closed: true, damaged: false });
    let (got, error) = served(&log).await;
    assert!(got == records && error.is_none(), "{error:?}");
}

#[tokio::test]
async fn a_gap_is_named_with_its_remedy() {
    let (bed, segments) = (Bed::new(), fixture());
    for (name, bytes) in [&segments[0], &segments[2]] {
        bed.put(&format!("wal/{name}"), bytes.clone()).await;
    }
    let (log, _archive) = bed.open().await.unwrap();
    assert!(log.end().lsn > Lsn(0xC0_0000), "what is behind the gap can be asked for");
    let (_, error) = served(&log).await;
    let text = error.unwrap().to_string();
    for part in ["0/A", "00000001000000000000000B is missing", "00000001000000000000000C", "put it back, or start behind"] {
        assert!(text.contains(part), "{text} should have {part}");
    }
    let inside = blocking(move || log.reader(Lsn(0xB8_0000)).unwrap_err().to_string()).await;
    assert!(inside.contains("memory:///wal/00000001000000000000000B") && inside.contains("missing"), "{inside}");
}

#[tokio::test]
async fn a_late_segment_is_waited_for_and_a_missing_one_is_not() {
    let segments = fixture();
    for grace in [Duration::from_secs(3600), Duration::ZERO] {
        let mut bed = Bed::new();
        (bed.follow, bed.config.gap_grace) = (true, grace);
        let put = async |i: usize| bed.put(&format!("wal/{}", segments[i].0), segments[i].1.clone()).await;
        let half = async |i: usize| bed.put(&format!("wal/{}", segments[i].0), segments[i].1[..300_000].to_vec()).await;
        put(0).await;
        let (log, mut archive) = bed.open().await.unwrap();
        let (first, last) = (expected(&segments[..1]).1.lsn, expected(&segments).1.lsn);
        assert_eq!(log.end(), LogEnd { lsn: first, closed: false, damaged: false });
        let look = async |mut archive: Archive| {
            let listing = archive.remote.list().await.unwrap();
            let (archive, found) = blocking(move || {
                let found = archive.look(listing, SystemTime::now()).unwrap();
                (archive, found)
            })
            .await;
            if let Some(Found { dir, end }) = found {
                log.renew(dir);
                log.publish(end.lsn);
            }
            archive
        };
        archive = look(archive).await;
        assert_eq!(log.end().lsn, first, "nothing new");
        put(2).await;
        archive = look(archive).await;
        if grace.is_zero() {
            assert_eq!(log.end().lsn, last, "the second one will not come any more");
            let text = served(&log).await.1.unwrap().to_string();
            assert!(text.contains("00000001000000000000000B is missing"), "{text}");
            continue;
        }
        assert_eq!(log.end().lsn, first, "the second one may be on its way");
        half(1).await;
        archive = look(archive).await;
        assert!(log.end().lsn > first && log.end().lsn < Lsn(0xB0_0000 + 300_000), "no further than what is there");
        put(1).await;
        look(archive).await;
        assert_eq!(log.end().lsn, last);
        let (got, error) = served(&log).await;
        assert!(got == expected(&segments).0 && error.is_none(), "{error:?}");
    }
}

#[tokio::test]
async fn the_newest_timeline_is_followed_from_its_parent() {
    let (mut bed, segments) = promoted().await;
    let (records, end) = expected(&segments);
    let (log, _archive) = bed.open().await.unwrap();
    assert_eq!((log.identity().timeline, log.end().lsn), (2, end.lsn));
    let (got, error) = served(&log).await;
    assert!(got == records && error.is_none(), "{error:?}");

    // The parent, when asked for: its own segments only, the last one partial.
    bed.timeline = Some(1);
    bed.delete(&format!("wal/{}", segments[2].0)).await;
    let (log, _archive) = bed.open().await.unwrap();
    assert_eq!((log.identity().timeline, log.end().damaged), (1, true), "the .partial of this test is no WAL");
    let (got, error) = served(&log).await;
    assert!(records.starts_with(&got) && !got.is_empty(), "{error:?}");
    let text = error.unwrap().to_string();
    assert!(text.contains("00000001000000000000000B.partial"), "{text}");
}

#[tokio::test]
async fn a_timeline_without_segments_ends_where_it_begins() {
    let (bed, segments) = promoted().await;
    bed.put("wal/00000003.history", b"1\t0/B00000\t\n2\t0/B80000\t\n".to_vec()).await;
    let (log, _archive) = bed.open().await.unwrap();
    assert_eq!(log.identity().timeline, 3);
    assert!(log.end().lsn <= Lsn(0xB8_0000) && log.end().lsn > Lsn(0xB7_0000), "{:?}", log.end());
    let (got, error) = served(&log).await;
    assert!(error.is_none() && expected(&segments).0.starts_with(&got), "{error:?}");
    assert_eq!(got.last().unwrap().1, log.end().lsn);
}

#[tokio::test]
async fn histories_that_are_missing_or_wrong_are_named() {
    let (mut bed, _) = promoted().await;
    bed.timeline = Some(7);
    let text = bed.refused().await;
    assert!(text.contains("no WAL of timeline 7") && text.contains("newest that it has is 2"), "{text}");
    bed.timeline = None;
    bed.put("wal/00000002.history", b"1\there\n".to_vec()).await;
    let text = bed.refused().await;
    assert!(text.contains("memory:///wal/00000002.history") && text.contains("line 1"), "{text}");
    bed.delete("wal/00000002.history").await;
    let text = bed.refused().await;
    assert!(text.contains("00000002.history is missing") && text.contains("copy it"), "{text}");
    bed.put("wal/00000002.history.gz", vec![0x1f, 0x8b, 8, 0]).await;
    let text = bed.refused().await;
    assert!(text.contains("00000002.history.gz") && text.contains("gzip"), "{text}");
    assert!(Bed::new().refused().await.contains("holds no WAL segments"));
}

#[tokio::test]
async fn a_promotion_ends_what_is_followed() {
    let (mut bed, segments) = (Bed::new(), fixture());
    bed.follow = true;
    for (name, bytes) in &segments[..2] {
        bed.put(&format!("wal/{name}"), bytes.clone()).await;
    }
    let (log, archive) = bed.open().await.unwrap();
    bed.put("wal/00000002.history", b"1\t0/B80000\t\n".to_vec()).await;
    let ended = archive.follow(log, Duration::from_millis(1), bed.drain.clone()).await.unwrap_err();
    let text = ended.to_string();
    assert!(text.contains("timeline 2 appeared, which left timeline 1 at 0/B80000: start the primary again"), "{text}");
}

#[tokio::test]
async fn segments_of_others_and_damaged_ones_are_named() {
    let segments = fixture();
    let foreign = |change: fn(&mut [u8])| {
        let mut bytes = segments[1].1.clone();
        change(&mut bytes);
        bytes
    };
    let cases: [(&str, Vec<u8>, &[&str]); 6] = [
        ("", foreign(|b| b[24] ^= 1), &["belongs to another cluster: system identifier"]),
        ("", foreign(|b| b[32..36].copy_from_slice(&(16u32 << 20).to_le_bytes())), &["segment size is 16777216"]),
        ("", foreign(|b| b[..2].copy_from_slice(&[0x16, 0xD1])), &["page magic is D116"]),
        ("", segments[1].1[..300_000].to_vec(), &["truncated"]),
        (".zst", b"\x28\xb5\x2f\xfdno zstd".to_vec(), &["zstd cannot be unpacked"]),
        (".zst", zstd::encode_all(&vec![7; 2 * MIB as usize][..], 1).unwrap(), &["more than the 1048576 bytes"]),
    ];
    for (suffix, bytes, parts) in cases {
        let bed = Bed::new();
        for (name, bytes) in [&segments[0], &segments[2]] {
            bed.put(&format!("wal/{name}"), bytes.clone()).await;
        }
        let key = format!("wal/{}{suffix}", segments[1].0);
        bed.put(&key, bytes).await;
        let (log, _archive) = bed.open().await.unwrap();
        let text = served(&log).await.1.unwrap().to_string();
        for part in parts.iter().chain([&format!("memory:///{key}")[..]].iter()) {
            assert!(text.contains(part), "{text} should have {part}");
        }
    }
}

#[tokio::test]
async fn an_object_that_goes_or_moves_while_it_is_read() {
    let segments = fixture();
    for moved in [true, false] {
        let mut bed = Bed::new();
        bed.config.prefetch = 0;
        for (name, bytes) in &segments {
            bed.put(&format!("wal/{name}"), bytes.clone()).await;
        }
        let (log, _archive) = bed.open().await.unwrap();
        let mut reader = blocking({
            let log = log.clone();
            move || {
                let mut reader = log.reader(log.oldest()).unwrap();
                reader.set_limit(log.end().read_limit());
                assert!(reader.next().unwrap().is_some());
                reader
            }
        })
        .await;
        bed.delete(&format!("wal/{}", segments[1].0)).await;
        if moved {
            bed.put(&format!("wal/old/{}.zst", segments[1].0), zstd::encode_all(&segments[1].1[..], 1).unwrap()).await;
        }
        let (records, reader) = blocking(move || (read(&mut reader), reader)).await;
        let end = reader.end().unwrap();
        if moved {
            assert!(end.is_complete(), "{end}");
            assert_eq!(records.unwrap().len() + 1, expected(&segments).0.len());
        } else {
            assert!(end.to_string().contains("00000001000000000000000B is missing; the next one there is"), "{end}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cache_stays_within_its_limit_and_is_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let (mut bed, segments) = (Bed::new(), fixture());
    let dir = bed.data.path().join(CACHE_DIR);
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join(&segments[0].0), b"left by a crash").unwrap();
    std::fs::write(dir.join("mine"), b"not ours").unwrap();
    for (name, bytes) in &segments {
        bed.put(&format!("wal/{name}"), bytes.clone()).await;
    }
    bed.config.cache_bytes = 2 * MIB;
    let text = bed.refused().await;
    assert!(text.contains("archive.cache_bytes") && text.contains(&(3 * MIB).to_string()), "{text}");
    bed.config.prefetch = 0;
    let (log, archive) = bed.open().await.unwrap();
    let records = expected(&segments).0;
    // Readers that overtake each other make each other's segments go; none may see it, and the limit holds at every moment.
    let readers: Vec<_> = (0..4)
        .map(|_| {
            tokio::spawn({
                let log = log.clone();
                async move { served(&log).await }
            })
        })
        .collect();
    for reader in readers {
        assert!(archive.cache.bytes() <= 2 * MIB);
        let (got, error) = reader.await.unwrap();
        assert!(got == records && error.is_none(), "{error:?}");
    }
    let files: Vec<PathBuf> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(files.len() <= 3 && files.contains(&dir.join("mine")), "{files:?}");
    for file in files.iter().filter(|f| !f.ends_with("mine")) {
        let meta = std::fs::metadata(file).unwrap();
        assert_eq!((meta.permissions().mode() & 0o777, meta.len()), (0o600, MIB), "{}", file.display());
    }
}
