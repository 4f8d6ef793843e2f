//! Changes with a replication origin, against what servers of 13 to 18 decode: `test_decoding` with and without `only-local`, and the ORIGIN
//! messages of `pgoutput`. The logs and `data/origins/pg*.txt` are made by `data/origins/record.py`.

use std::collections::BTreeMap;

use decoder_core::{Action, DecodedChange, DecodedTransaction, OriginFilter, OutputSink, PluginOptions, Relation, WorkMem};
use pg_types::record::{LogicalMessageRecord, TruncateRecord};
use pg_types::{Lsn, PgVersion, Xid};
use walstorm_cli::wal_input::{Decoding, WalInput};

use super::relsync::unpack;

/// Lines as the recorder writes them, without tables, and the origins told.
#[derive(Default)]
struct Shown {
    lines: Vec<String>,
    origins: Vec<(u32, u16, Lsn)>,
}

impl OutputSink for Shown {
    fn begin(&mut self, xid: Xid, _: Lsn, _: Lsn) {
        self.lines.push(format!("BEGIN {xid}"));
    }

    fn change(&mut self, change: &DecodedChange<'_>) {
        let action = match change.action {
            Action::Insert => "INSERT",
            Action::Update => "UPDATE",
            Action::Delete => "DELETE",
        };
        (0..change.rows).for_each(|_| self.lines.push(action.to_owned()));
    }

    fn truncate(&mut self, _: Lsn, _: Xid, _: &[&Relation], _: &TruncateRecord) {
        self.lines.push("TRUNCATE".to_owned());
    }

    fn message(&mut self, _: Lsn, _: Xid, _: &LogicalMessageRecord) {
        self.lines.push("message".to_owned());
    }

    fn commit(&mut self, t: &DecodedTransaction) {
        self.lines.push(format!("COMMIT {}", t.xid));
        self.origins.push((t.xid.0, t.origin.id, t.origin.lsn));
    }
}

/// What walstorm shows.
fn decoded(version: PgVersion, profile: &str, origin: OriginFilter) -> (Shown, u64) {
    let folder = unpack("origins", version);
    let mut input = WalInput::open(folder.path(), None, None).unwrap();
    input.options = PluginOptions { origin, ..PluginOptions::default() };
    let mut decoder = input.decoder(Decoding::at_commit(&profile.parse().unwrap(), WorkMem::default())).unwrap();
    let mut shown = Shown::default();
    input.decode(&mut decoder, &mut shown).unwrap();
    (shown, decoder.work().origin_skips)
}

/// The transactions of `pgoutput`, each with the origin that it told.
fn transactions_of_pgoutput<'a>(lines: &[&'a str], origin: &str, ids: &BTreeMap<&str, u16>) -> Vec<(u32, u16, Lsn)> {
    let mut all: Vec<(u32, u16, Lsn)> = Vec::new();
    for line in lines.iter().filter_map(|line| line.strip_prefix(&format!("pgoutput {origin} "))) {
        let words: Vec<&'a str> = line.split(' ').collect();
        match words[..] {
            ["begin", xid] => all.push((xid.parse().unwrap(), 0, Lsn::INVALID)),
            ["origin", lsn, name] => {
                let last = all.last_mut().unwrap();
                (last.1, last.2) = (ids[name], Lsn(u64::from_str_radix(lsn, 16).unwrap()));
            }
            _ => panic!("{line}"),
        }
    }
    all
}

#[test]
fn what_is_of_elsewhere_is_what_servers_of_13_to_18_say() {
    for version in PgVersion::ALL {
        let path = format!("{}/tests/data/origins/pg{}.txt", env!("CARGO_MANIFEST_DIR"), version.major());
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let ids: BTreeMap<&str, u16> = lines
            .iter()
            .filter_map(|line| line.strip_prefix("id ")?.split_once(' '))
            .map(|(id, name)| (name, id.parse().unwrap()))
            .collect();
        let own = format!("pg{}", version.major());
        for profile in [&own, "pg13", "indexed"] {
            for (name, origin) in [("all", OriginFilter::Any), ("local", OriginFilter::None)] {
                let (shown, skips) = decoded(version, profile, origin);
                let theirs = lines.iter().filter_map(|line| line.strip_prefix(&format!("{name} ")));
                let theirs: Vec<&str> = theirs.map(|line| line.strip_suffix(" public.t").unwrap_or(line)).collect();
                assert_eq!(shown.lines, theirs, "{version} {profile} {name}");
                assert_eq!(skips > 0, origin == OriginFilter::None);
                let asked = if version < PgVersion::V16 { "any" } else { &*origin.to_string() };
                if origin == OriginFilter::Any || asked == "none" {
                    // From 15 on `pgoutput` leaves empty transactions out.
                    let theirs = transactions_of_pgoutput(&lines, asked, &ids);
                    let with: Vec<_> = shown.origins.iter().filter(|t| theirs.iter().any(|other| other.0 == t.0)).collect();
                    assert_eq!(with, theirs.iter().collect::<Vec<_>>(), "{version} {profile} {name}");
                }
            }
        }
    }
}
