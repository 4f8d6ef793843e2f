//! What output plugins are asked for: publications, and where changes come from.

use std::sync::Arc;

use decoder_core::{Catalog, Decoder, DecoderConfig, OriginFilter, PluginOptions, RelationInfo};
use pg_types::record::{AbortRecord, CommitRecord, HeapDelete, OldTuple, PrepareRecord};
use pg_types::{CatalogRow, Lsn, Oid, PgVersion, PublicationRow, RecordBody, RelFileLocator, Timestamp, Work};

use super::support::{DATABASE, Log, Remember, file};

/// Tables 20001 … are named, and `kinds` that are no plain tables.
#[derive(Debug)]
struct Named {
    kinds: Vec<(u32, char)>,
    published: Vec<CatalogRow>,
}

impl Catalog for Named {
    fn by_file(&self, file: RelFileLocator) -> Option<RelationInfo> {
        self.by_oid(Oid(file.rel))
    }

    fn by_oid(&self, oid: Oid) -> Option<RelationInfo> {
        Some(RelationInfo { oid, namespace: Oid(2200), name: format!("t{oid}").into(), logged: oid.0 >= 20_000 })
    }

    fn kind(&self, oid: Oid) -> Option<char> {
        Some(self.kinds.iter().find(|(known, _)| *known == oid.0).map_or('r', |(_, kind)| *kind))
    }

    fn publication_rows(&self) -> Vec<(Option<pg_types::Tid>, CatalogRow)> {
        self.published.iter().map(|row| (None, row.clone())).collect()
    }
}

fn publication(oid: u32, actions: [bool; 4], via_root: bool) -> CatalogRow {
    CatalogRow::Publication(PublicationRow { oid: Oid(oid), name: "pub".into(), all_tables: false, actions, via_root })
}

fn table(publication: u32, rel: u32) -> CatalogRow {
    CatalogRow::PublicationRel { publication: Oid(publication), rel: Oid(rel) }
}

fn decode(log: &Log, catalog: Named, options: PluginOptions, profile: &str) -> (Decoder, Remember) {
    let config = DecoderConfig { options, ..DecoderConfig::new(PgVersion::V18, profile.parse().unwrap(), DATABASE) };
    let (mut decoder, mut sink) = (Decoder::new(config, Arc::new(catalog)), Remember::default());
    log.records.iter().for_each(|record| decoder.process(record, &mut sink).unwrap());
    (decoder, sink)
}

fn publications(names: &[&str]) -> PluginOptions {
    PluginOptions { publication_names: names.iter().map(|name| (*name).to_owned()).collect(), ..PluginOptions::default() }
}

/// Changes of one table of a hundred are sent; the others are opened and thrown away, and cost nothing of what sending costs.
#[test]
fn what_no_publication_has_is_decoded_and_thrown_away() {
    let n = 100;
    let mut log = Log::consistent(1000);
    for xid in 1000..1002 {
        (0..n).for_each(|i| log.insert(xid, 0, 20_001 + i));
        log.commit(xid, &[], vec![]);
    }
    let of = |names: &[&str], profile: &str| {
        let published = vec![publication(7, [true; 4], false), table(7, 20_001)];
        decode(&log, Named { kinds: vec![], published }, publications(names), profile)
    };
    for profile in ["pg18+pgoutput", "indexed+pgoutput", "pg13"] {
        let ((all, _), (some, given), (none, _)) = (of(&[], profile), of(&["pub"], profile), of(&["other"], profile));
        let n = u64::from(n);
        assert_eq!((all.work().rows_filtered, some.work().rows_filtered, none.work().rows_filtered), (0, 2 * n - 2, 2 * n));
        let rows = given.stream.iter().filter(|line| line.contains("Insert")).count();
        assert_eq!((rows, given.work[0].1.rows_filtered), (2, n - 1), "{profile}");
        // Each relation is looked up for its file and opened; the types of a row only if it is sent.
        let opened =
            |work: Work| (work.map_hits + work.map_misses, work.relcache_hits + work.relcache_misses, work.relations_loaded);
        assert_eq!(opened(some.work()), opened(all.work()), "{profile}");
        assert_eq!(some.relsync_counts(), all.relsync_counts(), "{profile}: an entry says so, whether it is published or not");
        let looked_up = |work: Work| work.catcache_hits + work.catcache_misses;
        let a_row = if profile == "pg13" { 6 } else { 2 };
        assert_eq!(looked_up(all.work()) - looked_up(some.work()), a_row * (2 * n - 2), "{profile}");
        assert_eq!(none.missing_publications(), ["other"]);
        assert!(some.missing_publications().is_empty());
    }
}

/// `publish`: kinds of changes; a DELETE whose record has no key is never sent; a view's rows are not.
#[test]
fn only_published_actions_of_tables_are_sent() {
    let mut log = Log::consistent(1000);
    log.insert(1000, 0, 20_001);
    for old in [OldTuple::Key, OldTuple::None] {
        log.push(1000, 0, RecordBody::Delete(HeapDelete { target: file(20_001), old, ..HeapDelete::default() }));
    }
    log.truncate(1000, [20_001, 20_002]);
    log.insert(1000, 0, 20_003);
    log.commit(1000, &[], vec![]);
    let of = |actions| {
        let published = vec![publication(7, actions, false), table(7, 20_001), table(7, 20_003)];
        let (decoder, given) = decode(&log, Named { kinds: vec![(20_003, 'm')], published }, publications(&["pub"]), "pg18");
        let shown = given.stream.iter().filter(|line| !line.contains("begin") && !line.contains("Transaction"));
        let shown: Vec<&str> = shown.map(|line| line.split_once(' ').unwrap().1).collect();
        (shown.join(", "), decoder.work().rows_filtered)
    };
    let none = (String::new(), 6);
    assert_eq!(of([true, false, false, false]), ("Insert t20001 x1".to_owned(), 5));
    assert_eq!(of([false, true, false, false]), none);
    assert_eq!(of([false, false, true, false]), ("Delete t20001 x1".to_owned(), 5));
    assert_eq!(of([false, false, false, true]), ("truncate [\"t20001\"]".to_owned(), 5));
}

/// `publish_via_partition_root`: rows of a partition are its partitioned table's; TRUNCATE names that one alone.
#[test]
fn partitions_are_sent_as_their_root() {
    let mut log = Log::consistent(1000);
    log.insert(1000, 0, 20_002);
    log.truncate(1000, [20_001, 20_002]);
    log.commit(1000, &[], vec![]);
    for (via_root, rows, truncated) in [(false, "t20002", "t20002"), (true, "t20001", "t20001")] {
        let inherits = CatalogRow::Inherits { child: Oid(20_002), parent: Oid(20_001) };
        let published = vec![publication(7, [true; 4], via_root), table(7, 20_001), inherits];
        let (decoder, given) = decode(&log, Named { kinds: vec![(20_001, 'p')], published }, publications(&["pub"]), "pg18");
        assert!(given.stream[1].ends_with(&format!("Insert {rows} x1")), "{:?}", given.stream);
        assert!(given.stream[2].ends_with(&format!("truncate [\"{truncated}\"]")), "{:?}", given.stream);
        assert_eq!(decoder.work().rows_filtered, 1, "of the two truncated ones");
    }
}

/// A log whose records have origins: 1 or none.
fn from_elsewhere(log: &mut Log, origin: u16, write: impl FnOnce(&mut Log)) {
    let before = log.records.len();
    write(log);
    log.records[before..].iter_mut().for_each(|record| record.origin = origin);
}

fn commit_from(log: &mut Log, xid: u32, origin: u16, messages: Vec<pg_types::InvalidationMessage>) {
    let told = (origin != 0).then_some((Lsn(0x900 + u64::from(xid)), Timestamp(77)));
    let commit = CommitRecord { db: DATABASE, time: Timestamp(1), origin: told, messages, ..CommitRecord::default() };
    from_elsewhere(log, origin, |log| log.push(xid, 0, RecordBody::Commit(Box::new(commit))));
}

/// What came from elsewhere is passed over before it is collected; its commit still drops what its messages name.
#[test]
fn changes_from_elsewhere_are_passed_over_before_they_are_collected() {
    let mut log = Log::consistent(1000);
    for (xid, origin) in [(1000, 0), (1001, 1), (1002, 0)] {
        from_elsewhere(&mut log, origin, |log| (0..10).for_each(|_| log.insert(xid, 0, 20_001)));
        commit_from(&mut log, xid, origin, vec![super::support::relcache(20_001)]);
    }
    let of = |origin| {
        let options = PluginOptions { origin, ..PluginOptions::default() };
        decode(&log, Named { kinds: vec![], published: vec![] }, options, "pg18")
    };
    let ((any, all), (none, local)) = (of(OriginFilter::Any), of(OriginFilter::None));
    assert_eq!((any.work().origin_skips, none.work().origin_skips), (0, 11), "each change, and the end");
    assert_eq!((all.work.len(), local.work.len()), (3, 2));
    assert!(all.stream.iter().any(|line| line.contains("origin: Origin { id: 1, lsn: Lsn(3305) }")), "{:?}", all.stream);
    assert!(!local.stream.iter().any(|line| line.contains("id: 1,")));
    assert_eq!(none.work().relations_loaded, any.work().relations_loaded - 1, "nothing of it is opened");
    // Its base snapshot is there, set by the first of its changes: so its messages are executed all the same.
    assert_eq!(none.work().messages_executed, 2 * 2 + 1);
}

/// The same of prepared transactions: neither PREPARE nor its end is told.
#[test]
fn prepared_transactions_from_elsewhere_are_not_told() {
    let mut log = Log::consistent(1000);
    for (xid, origin) in [(1000, 0), (1001, 3)] {
        from_elsewhere(&mut log, origin, |log| {
            log.insert(xid, 0, 20_001);
            let prepare = PrepareRecord { db: DATABASE, gid: b"g".to_vec(), ..PrepareRecord::default() };
            log.push(xid, 0, RecordBody::Prepare(Box::new(prepare)));
            let abort =
                AbortRecord { db: DATABASE, prepared_xid: pg_types::Xid(xid), gid: b"g".to_vec(), ..AbortRecord::default() };
            log.push(1002, 0, RecordBody::Abort(Box::new(abort)));
        });
    }
    #[derive(Default)]
    struct Told(Vec<(u32, u16)>);
    impl decoder_core::OutputSink for Told {
        fn prepare(&mut self, t: &decoder_core::DecodedTransaction) {
            self.0.push((t.xid.0, t.origin.id));
        }
        fn rollback_prepared(&mut self, end: &decoder_core::PreparedEnd) {
            self.0.push((end.xid.0, end.origin.id));
        }
    }
    for (origin, told) in [(OriginFilter::Any, 4), (OriginFilter::None, 2)] {
        let config = DecoderConfig {
            options: PluginOptions { origin, ..PluginOptions::default() },
            two_phase: Some(decoder_core::TwoPhase::default()),
            ..DecoderConfig::new(PgVersion::V18, "pg18".parse().unwrap(), DATABASE)
        };
        let (mut decoder, mut given) = (Decoder::new(config, Arc::new(decoder_core::NoCatalog)), Told::default());
        log.records.iter().for_each(|record| decoder.process(record, &mut given).unwrap());
        assert_eq!(given.0.len(), told, "{:?}", given.0);
        assert_eq!(given.0[..2], [(1000, 0), (1000, 0)]);
        assert_eq!(decoder.sizes().transactions, 0);
    }
}
