//! Rows of a heap that a rewrite fills are not given out; those that follow in the same transaction are.

use std::sync::Arc;

use decoder_core::{Catalog, Decoder, DecoderConfig, RelationInfo};
use pg_types::{Oid, PgVersion, RelFileLocator};

use super::support::{DATABASE, Log, Remember, relcache};

/// A table.
const TABLE: u32 = 20_001;
/// The heap that a rewrite fills, and the number of its file, which is the table's in the end.
const HEAP: u32 = 20_009;

/// A copy of the catalogs after the rewrite.
#[derive(Debug)]
struct Afterwards;

impl Catalog for Afterwards {
    fn by_file(&self, file: RelFileLocator) -> Option<RelationInfo> {
        (file.rel == HEAP).then(|| self.by_oid(Oid(TABLE))).flatten()
    }

    fn by_oid(&self, oid: Oid) -> Option<RelationInfo> {
        (oid == Oid(TABLE)).then(|| RelationInfo { oid, namespace: Oid(2200), name: "t".into(), logged: true })
    }
}

/// The rows given out of a transaction that rewrites the table, which has `rows`, and inserts two of its own, one a command; in blocks if
/// `streaming`.
fn rows_given_out(version: PgVersion, profile: &str, rows: u32, streaming: bool) -> u64 {
    let mut log = Log::consistent(700);
    let told = version >= PgVersion::V14;
    let command = |log: &mut Log, cid, rels: &[u32]| {
        let messages: Vec<_> = rels.iter().map(|rel| relcache(*rel)).collect();
        log.new_cid(700, 0, cid);
        if told {
            log.invalidations(700, 0, &messages);
        }
    };
    command(&mut log, 0, &[TABLE]);
    command(&mut log, 1, &[HEAP]);
    // Its TOAST table.
    command(&mut log, 2, &[HEAP + 1, HEAP]);
    (0..rows).for_each(|_| log.insert(700, 0, HEAP));
    command(&mut log, 3, &[TABLE, HEAP]);
    command(&mut log, 4, &[HEAP]);
    log.insert(700, 0, HEAP);
    // Another change of the table between them.
    command(&mut log, 5, &[TABLE]);
    log.insert(700, 0, HEAP);
    log.commit(700, &[], [TABLE, HEAP, HEAP + 1].map(relcache).into());
    let mut config = DecoderConfig::new(version, profile.parse().unwrap(), DATABASE);
    (config.streaming, config.work_mem) = (streaming, "64kB".parse().unwrap());
    let (mut decoder, mut sink) = (Decoder::new(config, Arc::new(Afterwards)), Remember::default());
    log.records.iter().for_each(|record| decoder.process(record, &mut sink).unwrap());
    assert_eq!(decoder.work().stream_count > 0, streaming && rows > 100);
    sink.stream.iter().filter(|line| line.contains("Insert")).count() as u64
}

#[test]
fn rows_of_a_rewrite_are_not_given_out_and_those_that_follow_are() {
    for (version, profile) in
        [(PgVersion::V14, "pg14"), (PgVersion::V17, "pg17"), (PgVersion::V18, "pg18"), (PgVersion::V18, "indexed")]
    {
        for rows in [0, 1, 7, 2000] {
            for streaming in [false, true] {
                assert_eq!(
                    rows_given_out(version, profile, rows, streaming),
                    2,
                    "{profile}, {rows} rows, streaming {streaming}"
                );
            }
        }
    }
    // Nothing tells when files are swapped: the first command's rows of an empty table are taken for the rewrite's.
    assert_eq!([0, 1, 7].map(|rows| rows_given_out(PgVersion::V13, "pg13", rows, false)), [1, 2, 2]);
}
