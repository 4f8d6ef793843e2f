//! What `pgoutput` looks up again after schema changes, against servers of 15.18, 16.14, 17.10 and 18.6.
//!
//! The logs, and how many relations each server described again after each change, are made by `data/relsync/record.py`.

use std::fs::File;
use std::sync::Arc;

use decoder_core::{DecodedChange, DecodedTransaction, Decoder, DecoderConfig, NoCatalog, OutputSink};
use pg_types::{Oid, PgVersion};
use pg_wal::{WalDir, WalReader};

/// Rows since the last time somebody asked.
#[derive(Default)]
struct Rows(u64);

impl OutputSink for Rows {
    fn change(&mut self, change: &DecodedChange<'_>) {
        self.0 += u64::from(change.rows);
    }

    fn commit(&mut self, _: &DecodedTransaction) {}
}

/// Entries that are built for each transaction with rows, in the order of commits.
fn built(version: PgVersion, profile: &str) -> Vec<u64> {
    let folder = tempfile::tempdir().unwrap();
    let packed = format!("{}/tests/data/relsync/pg{}.tar.zst", env!("CARGO_MANIFEST_DIR"), version.major());
    tar::Archive::new(zstd::Decoder::new(File::open(packed).unwrap()).unwrap()).unpack(folder.path()).unwrap();
    let dir = WalDir::open(folder.path(), None).unwrap();
    let mut decoder = Decoder::new(DecoderConfig::new(version, profile.parse().unwrap(), Oid(5)), Arc::new(NoCatalog));
    let mut reader = WalReader::open(&dir, None).unwrap();
    let (mut rows, mut before, mut all) = (Rows::default(), 0, Vec::new());
    while let Some(raw) = reader.next().unwrap() {
        decoder.process(&raw.decode(dir.profile()).unwrap(), &mut rows).unwrap();
        if std::mem::take(&mut rows.0) > 0 {
            let built = decoder.relsync_counts().built;
            all.push(built - before);
            before = built;
        }
    }
    all
}

#[test]
fn relations_are_looked_up_again_where_a_server_does() {
    let servers = include_str!("../data/relsync/servers.txt");
    for version in [PgVersion::V15, PgVersion::V16, PgVersion::V17, PgVersion::V18] {
        let name = format!("pg{}", version.major());
        let lines: Vec<(&str, u64)> = servers
            .lines()
            .filter_map(|line| line.strip_prefix(&name)?.trim().rsplit_once(' '))
            .map(|(change, built)| (change, built.parse().unwrap()))
            .collect();
        assert_eq!(lines.len(), 13, "{name}");
        let ours: Vec<(&str, u64)> =
            lines.iter().map(|(change, _)| *change).zip(built(version, &format!("{name}+pgoutput"))).collect();
        assert_eq!(ours, lines, "{name}: relations built again after each change");
    }
}
