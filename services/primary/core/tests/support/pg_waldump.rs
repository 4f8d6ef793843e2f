//! A log of ours beside what PostgreSQL's own pg_waldump says of it: every segment on its own and the log in whole, its statistics,
//! and its records in words.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::Command;

use pg_types::{Lsn, PgVersion};
use pg_wal::stats::{Sizes, WalStats};
use pg_wal::text::Text;
use pg_wal::{EndReason, WalDir, WalReader, describe};

/// Resource managers that we describe in full; of others the operation and the block references.
const DESCRIBED: [&str; 8] = ["XLOG", "Transaction", "Storage", "RelMap", "Standby", "Heap2", "Heap", "LogicalMessage"];

/// What our own reader finds in a log.
pub(crate) struct Log {
    /// Where it is.
    dir: PathBuf,
    /// A line for each record.
    pub(crate) lines: Vec<String>,
    /// Statistics of all records.
    pub(crate) all: WalStats,
    /// By segment file, statistics of the records that it has in whole.
    pub(crate) segments: BTreeMap<PathBuf, WalStats>,
    /// Segment files without a whole record.
    pub(crate) without: usize,
    /// Records that go on in another segment.
    pub(crate) crossing: usize,
}

impl Log {
    /// Reads a log to its end, which must be a switch.
    pub(crate) fn read(dir: &Path) -> Log {
        let wal = WalDir::open(dir, None).expect("open the log");
        let (profile, size) = (wal.profile(), u64::from(wal.identity().segment_size));
        let mut log = Log {
            dir: dir.to_owned(),
            lines: Vec::new(),
            all: WalStats::new(profile),
            segments: BTreeMap::new(),
            without: 0,
            crossing: 0,
        };
        let mut text = Text::new();
        let mut reader = WalReader::open(&wal, None).expect("open a reader");
        while let Some(record) = reader.next().expect("read a record") {
            record.decode(profile).expect("decode a record");
            text.clear();
            describe::line(&record, profile, &mut text).expect("describe a record");
            log.lines.push(text.since(0).trim_end_matches('\n').to_owned());
            log.all.add(&record).expect("count a record");
            if record.lsn.0 / size == (record.end_lsn.0 - 1) / size {
                let file = dir.join(wal.expected_name(Lsn(record.lsn.0 / size * size)));
                let stats = log.segments.entry(file).or_insert_with(|| WalStats::new(profile));
                stats.add(&record).expect("count a record");
            } else {
                log.crossing += 1;
            }
        }
        assert_eq!(reader.end().expect("an end").reason, EndReason::Switch);
        log.without = wal.segments().count() - log.segments.len();
        log
    }

    /// Records by resource manager.
    fn by_rmgr(&self) -> BTreeMap<String, Sizes> {
        let mut sums: BTreeMap<String, Sizes> = BTreeMap::new();
        self.all.rows().for_each(|row| *sums.entry(row.rmgr.into_owned()).or_default() += row.sizes);
        sums
    }
}

/// A real pg_waldump.
pub(crate) struct PgWaldump {
    /// Of which version.
    pub(crate) version: PgVersion,
    /// The program.
    program: PathBuf,
}

impl PgWaldump {
    /// Those that there are, of 15 (Debian's) and 18 (`$WALSTORM_PG18_BIN`, else `.tools/pg18/bin` of the repository). A missing
    /// one is a failure in CI and said aloud elsewhere.
    pub(crate) fn all() -> Vec<PgWaldump> {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let bin = std::env::var_os("WALSTORM_PG18_BIN").map_or_else(|| repository.join(".tools/pg18/bin"), PathBuf::from);
        let places = [(PgVersion::V15, PathBuf::from("/usr/lib/postgresql/15/bin")), (PgVersion::V18, bin)];
        let there = places.into_iter().filter_map(|(version, bin)| {
            let program = bin.join("pg_waldump");
            if program.exists() {
                return Some(PgWaldump { version, program });
            }
            let reason = format!("no pg_waldump {version} in {}; run `make test`, which installs it", bin.display());
            assert!(std::env::var_os("CI").is_none(), "{reason}");
            eprintln!("SKIPPED: {reason}");
            None
        });
        there.collect()
    }

    /// What it prints; it must succeed and complain of nothing.
    fn say(&self, args: &[&str]) -> String {
        let output = Command::new(&self.program).args(args).env("TZ", "UTC").output().expect("run pg_waldump");
        let complaint = String::from_utf8_lossy(&output.stderr);
        let version = self.version;
        assert!(output.status.success() && complaint.is_empty(), "pg_waldump {version} {args:?}: {complaint}");
        String::from_utf8(output.stdout).expect("pg_waldump writes UTF-8")
    }

    /// Compares everything that it says of a log.
    pub(crate) fn check(&self, log: &Log, name: &str) {
        let (from, to) = log.all.range();
        let whole = ["-p", path(&log.dir), "-s", &from.to_string(), "-e", &to.to_string()];
        let name = format!("{name}, ours and that of pg_waldump {}", self.version);
        let text = self.say(&whole);
        compare(&name, log.lines.iter().map(|line| said(line)), text.lines().map(said));
        let with = |option| [&whole[..], &[option]].concat();
        compare(&name, table(&log.all).lines(), self.say(&with("--stats=record")).lines());
        assert_eq!(log.by_rmgr(), rows(&self.say(&with("--stats"))), "{name}");
        for (file, stats) in &log.segments {
            let theirs = self.say(&["--stats=record", path(file)]);
            compare(&format!("{name}, {}", file.display()), table(stats).lines(), theirs.lines());
        }
    }
}

/// Compares line by line, so that the first that differs is shown.
fn compare<T: PartialEq + Debug>(what: &str, ours: impl Iterator<Item = T>, mut theirs: impl Iterator<Item = T>) {
    for our in ours {
        assert_eq!(Some(our), theirs.next(), "{what}");
    }
    assert_eq!(theirs.next(), None, "{what}");
}

/// Our table of statistics.
fn table(stats: &WalStats) -> String {
    let mut text = String::new();
    stats.write_table(&mut text).expect("write to a string");
    text
}

/// A path as an argument.
fn path(path: &Path) -> &str {
    path.to_str().expect("a temporary folder has a name in UTF-8")
}

/// What both say of a record: columns, description, block references.
fn said(line: &str) -> (&str, &str, &str) {
    let (columns, description) = line.split_once(", desc: ").expect("a record's line");
    let rmgr = columns.strip_prefix("rmgr: ").and_then(|rest| rest.split_whitespace().next()).expect("a resource manager");
    let blocks = description.find(", blkref").unwrap_or(description.len());
    let (description, blocks) = description.split_at(blocks);
    let operation = description.split_whitespace().next().unwrap_or_default();
    (columns, if DESCRIBED.contains(&rmgr) { description } else { operation }, blocks)
}

/// The rows of a table in which something was counted.
fn rows(table: &str) -> BTreeMap<String, Sizes> {
    let rows = table.lines().filter_map(|line| {
        let (name, rest) = line.split_once(char::is_whitespace)?;
        let numbers: Vec<u64> = rest.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [count, record_len, image_len, _] if count > 0 && name != "Total" => {
                Some((name.to_owned(), Sizes { count, record_len, image_len }))
            }
            _ => None,
        }
    });
    rows.collect()
}
