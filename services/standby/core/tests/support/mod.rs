//! Recordings of real standbys: their WAL, and what was seen after which record.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use pg_types::{Lsn, WalRecord};
use pg_wal::{WalDir, WalReader};
use serde_json::Value;
use standby_core::StandbySettings;

/// One recorded run of a standby.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Folder.
    pub(crate) version: &'static str,
    /// What the names of its files end in.
    pub(crate) suffix: &'static str,
    /// The profile of the server that ran.
    pub(crate) profile: &'static str,
    /// The base backup that it started from: 1 quiet, 2 with an overflowed transaction open.
    pub(crate) backup: usize,
}

/// Every recorded run.
pub(crate) const RUNS: &[Run] = &[
    run("13", "", "pg13", 1),
    run("13", "_13.23_b2", "pg13", 2),
    run("13", "_13.6_b1", "pg13.6", 1),
    run("13", "_idle", "pg13", 1),
    run("15", "", "pg15", 1),
    run("15", "_15.18_b2", "pg15", 2),
    run("15", "_15.1_b1", "pg15.1", 1),
    run("15", "_idle", "pg15", 1),
    run("16", "", "pg16", 1),
    run("16", "_16.14_b2", "pg16", 2),
    run("16", "_idle", "pg16", 1),
    run("18", "", "pg18", 1),
    run("18", "_18.4_b2", "pg18", 2),
    run("18", "_idle", "pg18", 1),
];

/// A row of the table.
const fn run(version: &'static str, suffix: &'static str, profile: &'static str, backup: usize) -> Run {
    Run { version, suffix, profile, backup }
}

impl Run {
    /// A file of the recording.
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/standby/pg{}/{name}", self.version))
    }

    /// A compressed text file.
    fn text(&self, name: &str) -> String {
        let file = fs::File::open(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        String::from_utf8(zstd::decode_all(file).unwrap()).unwrap()
    }

    /// The stops of this run, or of the run without a debugger.
    pub(crate) fn stops(&self, name: &str) -> Vec<Value> {
        self.text(&format!("{name}.jsonl.zst")).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The rows of `trace` or `compress`, header left out.
    pub(crate) fn rows(&self, name: &str) -> Vec<String> {
        self.text(&format!("{name}{}.csv.zst", self.suffix)).lines().skip(1).map(str::to_owned).collect()
    }

    /// What the recording says of itself.
    pub(crate) fn manifest(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.path("manifest.json")).unwrap()).unwrap()
    }

    /// The standby's settings.
    pub(crate) fn settings(&self) -> StandbySettings {
        let settings = &self.manifest()["settings"];
        let get = |name: &str| settings[name].as_str().map(|s| s.parse::<u32>().unwrap());
        let default = StandbySettings::default();
        StandbySettings {
            max_connections: get("max_connections").unwrap(),
            autovacuum_max_workers: get("autovacuum_max_workers").unwrap(),
            autovacuum_worker_slots: get("autovacuum_worker_slots").unwrap_or(default.autovacuum_worker_slots),
            max_worker_processes: get("max_worker_processes").unwrap(),
            max_wal_senders: get("max_wal_senders").unwrap(),
            max_prepared_transactions: get("max_prepared_transactions").unwrap(),
            subtransaction_buffers: 0,
        }
    }

    /// Positions in the backup's label: where redo starts, and the checkpoint record.
    pub(crate) fn backup_label(&self) -> (Lsn, Lsn) {
        let label = fs::read_to_string(self.path(&format!("backup_label_{}.txt", self.backup))).unwrap();
        let position = |key: &str| {
            let line = label.lines().find_map(|l| l.strip_prefix(key)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        (position("START WAL LOCATION: "), position("CHECKPOINT LOCATION: "))
    }

    /// When the startup process found no WAL: position → (time, time of the last compression) in milliseconds of one clock.
    pub(crate) fn idle_calls(&self) -> BTreeMap<Lsn, Vec<(u64, u64)>> {
        /// 2000-01-01 in Unix time.
        const EPOCH_MS: f64 = 946_684_800_000.0;
        let mut calls = BTreeMap::<Lsn, Vec<_>>::new();
        let name = self.suffix.trim_start_matches('_');
        let manifest = self.manifest();
        for call in manifest["replays"][name]["idle_calls"].as_array().into_iter().flatten() {
            let now_ms = (call[1].as_f64().unwrap() * 1000.0 - EPOCH_MS) as u64;
            let last_ms = call[5].as_u64().unwrap() / 1000;
            calls.entry(call[0].as_str().unwrap().parse().unwrap()).or_default().push((now_ms, last_ms));
        }
        calls
    }

    /// The records from the start of redo on.
    pub(crate) fn records(&self) -> Vec<WalRecord> {
        let dir = tempfile::tempdir().unwrap();
        let file = fs::File::open(self.path("wal.tar.zst")).unwrap();
        tar::Archive::new(zstd::Decoder::new(file).unwrap()).unpack(dir.path()).unwrap();
        let wal = WalDir::open(dir.path(), None).unwrap();
        let mut reader = WalReader::open(&wal, Some(self.backup_label().0)).unwrap();
        let mut records = Vec::new();
        while let Some(raw) = reader.next().unwrap() {
            records.push(raw.decode(wal.profile()).unwrap());
        }
        records
    }
}
