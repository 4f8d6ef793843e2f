//! A decoder that stops anywhere and is resumed gives out every transaction exactly once.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod support;

use std::sync::Arc;

use decoder_core::{Catalog, CsvCatalog, DecodedTransaction, Decoder, DecoderConfig, MemorySnapshots, OutputSink, Profile};
use pg_types::{Lsn, Oid, WalRecord};
use pg_wal::{WalDir, WalReader};
use support::{FIXTURES, Fixture};

/// What was given out, without work.
#[derive(Default)]
struct Given(Vec<(u32, Lsn, String)>);

impl OutputSink for Given {
    fn commit(&mut self, t: &DecodedTransaction) {
        let mut rows: Vec<_> = t.relations.iter().map(|r| (&*r.name, r.insert, r.update, r.delete, r.truncate)).collect();
        rows.sort_unstable();
        self.0.push((t.xid.0, t.end_lsn, format!("{rows:?} {:?} {:?}", t.subxids, t.messages)));
    }
}

fn records(fixture: &Fixture) -> (WalDir, Vec<WalRecord>) {
    let dir = WalDir::open(fixture.wal(), None).unwrap();
    let mut reader = WalReader::open(&dir, None).unwrap();
    let mut records = Vec::new();
    while let Some(raw) = reader.next().unwrap() {
        records.push(raw.decode(dir.profile()).unwrap());
    }
    (dir, records)
}

#[test]
fn resuming_at_any_record_loses_and_repeats_nothing() {
    for name in FIXTURES {
        let fixture = Fixture::unpack(name);
        let (dir, records) = records(&fixture);
        let loaded: Arc<dyn Catalog> = Arc::new(CsvCatalog::load(&fixture.catalog()).unwrap());
        let catalog = || Arc::clone(&loaded);
        let database = if name == "pg13" { Oid(13383) } else { Oid(5) };
        let config = |confirmed_lsn| DecoderConfig {
            confirmed_lsn,
            ..DecoderConfig::new(dir.identity().version, Profile::indexed(), database)
        };
        let mut whole = Given::default();
        let mut decoder = Decoder::new(config(Lsn::INVALID), catalog());
        records.iter().for_each(|record| decoder.process(record, &mut whole).unwrap());
        assert_eq!(whole.0.len(), 279);
        let mut restarted_from_snapshots = 0;
        for stop in (1..records.len()).step_by(193) {
            let (mut given, store) = (Given::default(), Box::new(MemorySnapshots::default()));
            let mut first = Decoder::new(config(Lsn::INVALID), catalog()).serialize_to(store.clone());
            records[..stop].iter().for_each(|record| first.process(record, &mut given).unwrap());
            let (restart, confirmed) = (first.restart_lsn(), given.0.last().map_or(Lsn::INVALID, |t| t.1));
            let from_snapshot = first.restarts_from_snapshot();
            restarted_from_snapshots += usize::from(from_snapshot);
            let mut second = match from_snapshot {
                true => Decoder::restore(config(confirmed), catalog(), store),
                false => Decoder::new(config(confirmed), catalog()).serialize_to(store),
            };
            let rest = records.iter().filter(|record| record.lsn >= restart);
            rest.for_each(|record| second.process(record, &mut given).unwrap());
            assert_eq!(given.0, whole.0, "{name}: stopped after {}", records[stop - 1].lsn);
        }
        assert!(restarted_from_snapshots > 0, "{name}: a log without a second list shows nothing");
    }
}
