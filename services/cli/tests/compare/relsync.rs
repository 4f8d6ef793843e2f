//! What `pgoutput` looks up again after schema changes, against servers of 15.18, 16.14, 17.10 and 18.6.
//!
//! The logs, and how many relations each server described again after each change, are made by `data/relsync/record.py`.

use std::fs::File;
use std::sync::Arc;

use decoder_core::{DecodedChange, DecodedTransaction, Decoder, DecoderConfig, NoCatalog, OutputSink, WorkMem};
use pg_types::{Oid, PgVersion};
use pg_wal::{WalDir, WalReader};
use primary_core::Scenario;
use walstorm_cli::scenario_log::ScenarioLog;
use walstorm_cli::wal_input::{Decoding, WalInput};

/// Rows since the last time somebody asked.
#[derive(Default)]
struct Rows(u64);

impl OutputSink for Rows {
    fn change(&mut self, change: &DecodedChange<'_>) {
        self.0 += u64::from(change.rows);
    }

    fn commit(&mut self, _: &DecodedTransaction) {}
}

/// A recorded log and what lies beside it.
pub(super) fn unpack(kind: &str, version: PgVersion) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let packed = format!("{}/tests/data/{kind}/pg{}.tar.zst", env!("CARGO_MANIFEST_DIR"), version.major());
    tar::Archive::new(zstd::Decoder::new(File::open(packed).unwrap()).unwrap()).unpack(folder.path()).unwrap();
    folder
}

/// Entries that are built for each transaction with rows, in the order of commits.
fn built(version: PgVersion, profile: &str) -> Vec<u64> {
    let folder = unpack("relsync", version);
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

/// Plays a scenario and decodes it for a subscriber of `names`, with what is published as it was before the log.
fn decode_published(scenario: &str, set: &[(&str, &str)], names: &[&str], profile: &str) -> (Decoder, Vec<DecodedTransaction>) {
    #[derive(Default)]
    struct All(Vec<DecodedTransaction>);
    impl OutputSink for All {
        fn commit(&mut self, transaction: &DecodedTransaction) {
            self.0.push(transaction.clone());
        }
    }
    let scenario = Scenario::load(scenario).unwrap();
    let overrides = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
    let log = ScenarioLog::play(&scenario, &overrides, scenario.seed(), PgVersion::V18).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let catalog = log.engine().catalog();
    for (name, csv) in catalog.published_csv().into_iter().chain([("pg_class", catalog.pg_class_csv())]) {
        std::fs::write(folder.path().join(format!("{name}_start.csv")), csv).unwrap();
    }
    let mut input = WalInput::open(log.dir(), Some(folder.path()), None).unwrap();
    input.options.publication_names = names.iter().map(|name| (*name).to_owned()).collect();
    let mut decoder = input.decoder(Decoding::at_commit(&profile.parse().unwrap(), WorkMem::default())).unwrap();
    let mut all = All::default();
    input.decode(&mut decoder, &mut all).unwrap();
    (decoder, all.0)
}

#[test]
fn a_flood_of_unpublished_rows_is_decoded_and_thrown_away() {
    let set = [("unpublished", "10"), ("length", "4s"), ("rate", "500/s")];
    for profile in ["pg17", "pg18", "indexed"] {
        let (all, everything) = decode_published("unpublished-flood", &set, &[], profile);
        let (one, published) = decode_published("unpublished-flood", &set, &["pub"], profile);
        let shown = |list: &[DecodedTransaction]| list.iter().map(DecodedTransaction::changes).sum::<u64>();
        let (sent, rows) = (shown(&published), shown(&everything));
        assert!(sent > 0 && sent < rows / 50, "{sent} of {rows}");
        assert_eq!((all.work().rows_filtered, one.work().rows_filtered), (0, rows - sent), "{profile}");
        assert_eq!(published.len(), everything.len());
        let named = published.iter().flat_map(|t| &t.relations).map(|r| &*r.name);
        assert!(named.into_iter().all(|name| name == "public.published"));
        assert_eq!(one.relsync_counts().built, 11, "an entry for each relation, published or not");
    }
}

/// ALTER PUBLICATION … SET names all tables of its publication: 20 of one, 2 of the other, five times each. Up to 17 pgoutput forgets all that it
/// knows at either; since 18 it forgets those that are named. The index has none to scan for.
#[test]
fn an_altered_publication_costs_all_tables_up_to_17_and_its_own_since() {
    let set = [("published", "20"), ("few", "2"), ("rate", "400/s"), ("length", "5s")];
    for (profile, of_few, scans) in [("pg17", 20, true), ("pg18", 2, false), ("indexed", 2, false)] {
        let (decoder, transactions) = decode_published("publication-churn", &set, &["pub", "pub_of_few"], profile);
        let altered = transactions.iter().filter(|t| t.changes() == 0).count() as u64;
        let counts = decoder.relsync_counts();
        assert_eq!((altered, decoder.work().rows_filtered), (10, 0), "{profile}: all is published");
        // A transaction that runs beside one is handed its messages, and flushes once more what was built meanwhile.
        assert_eq!(counts.built, counts.flushed + 20, "{profile}: all that is flushed is built again");
        let least = 5 * (20 + of_few);
        assert!((least..least + 2 * altered).contains(&counts.flushed), "{profile}: {}", counts.flushed);
        assert_eq!(counts.visited > 0, scans, "{profile}");
    }
}
