//! Changes that `pgoutput` sends while publications change, against servers of 13 to 18. Logs, catalogs and what was sent are made by
//! `services/cli/tests/data/publications/record.py`.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use decoder_core::{
    Action, Catalog, CsvCatalog, DecodedChange, DecodedTransaction, Decoder, DecoderConfig, OutputSink, PluginOptions, Relation,
};
use pg_types::record::TruncateRecord;
use pg_types::{Lsn, Oid, PgVersion, RecordBody, Xid};
use pg_wal::catalog_rows::CatalogRows;
use pg_wal::{WalDir, WalReader};

/// The place of the transaction after DETACH among those with changes.
const DETACHED: usize = 9;

/// Lines as the recorder writes them.
#[derive(Default)]
struct Sent(Vec<String>);

impl OutputSink for Sent {
    fn change(&mut self, change: &DecodedChange<'_>) {
        let action = match change.action {
            Action::Insert => "I",
            Action::Update => "U",
            Action::Delete => "D",
        };
        (0..change.rows).for_each(|_| self.0.push(format!("{action} {}", change.relation.name)));
    }

    fn truncate(&mut self, _: Lsn, _: Xid, relations: &[&Relation], _: &TruncateRecord) {
        let names: Vec<&str> = relations.iter().map(|relation| &*relation.name).collect();
        self.0.push(format!("T {}", names.join(",")));
    }

    fn commit(&mut self, t: &DecodedTransaction) {
        let lines = self.0.iter_mut().filter(|line| !line.starts_with(|c: char| c.is_ascii_digit()));
        lines.for_each(|line| *line = format!("{} {line}", t.xid));
    }
}

/// The database that most rows are of.
fn database(dir: &WalDir) -> Oid {
    let (mut reader, mut found) = (WalReader::open(dir, None).unwrap(), Oid::INVALID);
    while let Some(raw) = reader.next().unwrap() {
        if let RecordBody::Insert(insert) = raw.decode(dir.profile()).unwrap().body
            && insert.logical
        {
            found = insert.target.db;
        }
    }
    found
}

/// What is sent, and the decoder.
fn sent(version: PgVersion, profile: &str, seeded: bool) -> (Vec<String>, Decoder) {
    let folder = tempfile::tempdir().unwrap();
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../cli/tests/data/publications");
    let packed = File::open(data.join(format!("pg{}.tar.zst", version.major()))).unwrap();
    tar::Archive::new(zstd::Decoder::new(packed).unwrap()).unpack(folder.path()).unwrap();
    let dir = WalDir::open(folder.path(), None).unwrap();
    let catalog: Arc<dyn Catalog> = Arc::new(CsvCatalog::load(folder.path()).unwrap());
    let options = PluginOptions { publication_names: ["p", "i", "r"].map(str::to_owned).to_vec(), ..PluginOptions::default() };
    let database = database(&dir);
    let config = DecoderConfig { options, ..DecoderConfig::new(version, profile.parse().unwrap(), database) };
    let (mut rows, mut sent) = (CatalogRows::new(), Sent::default());
    if seeded {
        Decoder::published_before(&*catalog, database).iter().for_each(|(place, row)| rows.seed(*place, row));
    }
    let mut decoder = Decoder::new(config, catalog);
    let mut reader = WalReader::open(&dir, None).unwrap();
    while let Some(raw) = reader.next().unwrap() {
        let record = raw.decode(dir.profile()).unwrap();
        if let Some(change) = rows.read(&raw, dir.profile()).unwrap() {
            decoder.catalog_row(record.xid, change);
        }
        decoder.process(&record, &mut sent).unwrap();
    }
    (sent.0, decoder)
}

#[test]
fn while_publications_change_what_servers_of_13_to_18_send_is_sent() {
    for version in PgVersion::ALL {
        let path = format!("../../cli/tests/data/publications/pg{}.txt", version.major());
        let theirs = std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        let mut theirs: Vec<String> = theirs.lines().map(str::to_owned).collect();
        if version < PgVersion::V15 {
            // They do not look again at the partitions of a partition that is detached, and send one row more as the root's.
            let mut before = theirs.iter().map(|line| line.split(' ').next().unwrap_or_default()).collect::<Vec<_>>();
            before.dedup();
            let line = format!("{} I public.part", before[DETACHED]);
            let stale = theirs.iter().rposition(|other| *other == line).unwrap();
            theirs[stale] += "21";
        }
        // A transaction after the change has looked t1 up; who began before it, and inserts before it, is answered by that entry. Here a row
        // that was inserted before its table was published is not sent.
        let beside = theirs.iter().rposition(|line| line.ends_with("T public.t2,public.t3,public.t4,public.child,public.part"));
        let beside = beside.unwrap() + 2;
        assert!(theirs[beside].ends_with("I public.t1") && theirs[beside + 2].ends_with("I public.t1"));
        theirs.remove(beside);
        let own = format!("pg{}+pgoutput", version.major());
        for profile in [&own, "pg13", "indexed+pgoutput", "pg18+discard-caches"] {
            let (ours, decoder) = sent(version, profile, true);
            let first = ours.iter().zip(&theirs).position(|(our, their)| our != their).unwrap_or(theirs.len());
            let near = |lines: Vec<&str>| lines[first.saturating_sub(4)..(first + 4).min(lines.len())].join("\n");
            let [our, their] = [&ours, &theirs].map(|lines| near(lines.iter().map(String::as_str).collect()));
            assert!(ours == theirs, "{version} {profile}, line {first}:\n{our}\n--- server:\n{their}");
            assert!(decoder.work().rows_filtered > 100 && decoder.missing_publications().is_empty());
            assert!(decoder.tuple_cid_counts().resolved > 0, "own rows of the publications' catalogs");
        }
    }
}

/// Without what an update leaves out of rows from before the WAL, page images tell it, if pages are logged whole.
#[test]
fn page_images_tell_what_updates_leave_out() {
    let of = |version, seeded| sent(version, "pg18", seeded).0;
    assert_eq!(of(PgVersion::V18, true), of(PgVersion::V18, false));
    assert_ne!(of(PgVersion::V17, true), of(PgVersion::V17, false), "its log has no images");
}
