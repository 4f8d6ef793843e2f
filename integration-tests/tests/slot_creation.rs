//! The creation of a logical slot against the decoder's snapshot builder: two crates that never see each other must find the same
//! consistent point, from any position.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::sync::Arc;

use decoder_core::{Decoder, DecoderConfig, NoCatalog, NoOutput, SnapBuildState};
use integration_tests::wal_fixture::{VERSIONS, WalFixture};
use pg_types::record::{HeapInsert, RunningXactsRecord};
use pg_types::{Lsn, Oid, RecordBody, RelFileLocator, Tid, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use pg_wal::{RecordClass, WalDir, WalProfile, WalReader};
use primary_node::slots::{BuildState, SlotCreation};
use proptest::prelude::*;

/// The same state in the other crate's words.
fn of_decoder(state: SnapBuildState) -> BuildState {
    match state {
        SnapBuildState::Start => BuildState::Start,
        SnapBuildState::Building => BuildState::Building,
        SnapBuildState::FullSnapshot => BuildState::FullSnapshot,
        SnapBuildState::Consistent => BuildState::Consistent,
    }
}

/// Gives the WAL from `start` on to both and compares after each list; the consistent point and the restart position.
fn compare(dir: &WalDir, start: Lsn) -> (Option<Lsn>, Lsn) {
    let version = dir.identity().version;
    let profile = "indexed".parse().unwrap();
    let config = DecoderConfig::new(version, profile, Oid(5));
    let mut decoder = Decoder::new(config, Arc::new(NoCatalog));
    let mut creation = SlotCreation::new(start);
    let mut reader = WalReader::open(dir, Some(start)).unwrap();
    while let Some(record) = reader.next().unwrap() {
        creation.observe(&record, WalProfile::of(version)).unwrap();
        decoder.process(&record.decode(WalProfile::of(version)).unwrap(), &mut NoOutput).unwrap();
        if record.class() == RecordClass::RunningXacts {
            let report = creation.report();
            assert_eq!(report.state, of_decoder(decoder.state()), "at {} from {start}", record.lsn);
            let waits_for = Some(report.waits_for).filter(|xid| xid.is_valid());
            assert_eq!(waits_for, decoder.waits_for(), "at {} from {start}", record.lsn);
        }
    }
    let report = creation.report();
    (report.consistent_lsn, report.restart_lsn)
}

#[test]
fn real_servers_wal_is_consistent_at_the_same_record_from_every_segment_on_and_from_the_restart_position() {
    for version in VERSIONS {
        let fixture = WalFixture::unpack(version).unwrap();
        let dir = WalDir::open(fixture.wal(), None).unwrap();
        let starts: Vec<Lsn> = dir.segments().map(|(start, _)| start).collect();
        let mut found = 0;
        for start in starts {
            let (consistent, restart) = compare(&dir, start);
            found += usize::from(consistent.is_some());
            assert_eq!(compare(&dir, restart).0, consistent, "{version} from {start}");
        }
        assert!(found > 0, "{version}: a fixture without a consistent point shows nothing");
    }
}

/// A log of transactions that begin, end, and are listed as `steps` say.
fn write(dir: &std::path::Path, steps: &[(u8, u8)]) {
    let mut writer = WalWriter::create(dir, WriterConfig::new(9)).unwrap();
    let target = RelFileLocator { spc: Oid::DEFAULT_TABLESPACE, db: Oid(5), rel: 16_400 };
    let (mut next, mut running) = (700u32, Vec::<u32>::new());
    for (op, pick) in steps {
        match op {
            0..=3 => {
                running.push(next);
                next += 1;
                let xid = Xid(next - 1);
                let insert = HeapInsert { target, tid: Tid { block: 0, offset: 1 }, tuple_len: 24, ..HeapInsert::default() };
                writer.append(xid, Xid::INVALID, 0, &RecordBody::Insert(insert)).unwrap();
            }
            4..=7 if !running.is_empty() => {
                let xid = Xid(running.remove(usize::from(*pick) % running.len()));
                let body = if op % 2 == 0 { RecordBody::Commit(Box::default()) } else { RecordBody::Abort(Box::default()) };
                writer.append(xid, Xid::INVALID, 0, &body).unwrap();
            }
            _ => {
                let list = RunningXactsRecord {
                    next_xid: Xid(next),
                    oldest_running_xid: Xid(running.iter().copied().min().unwrap_or(next)),
                    latest_completed_xid: Xid(next - 1),
                    subxid_overflow: false,
                    xids: running.iter().copied().map(Xid).collect(),
                    subxids: Vec::new(),
                };
                writer.append(Xid::INVALID, Xid::INVALID, 0, &RecordBody::RunningXacts(Box::new(list))).unwrap();
            }
        }
    }
    writer.switch().unwrap();
    writer.finish().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_log_is_consistent_at_the_same_record(
        steps in proptest::collection::vec((0u8..10, any::<u8>()), 1..120), from in 0usize..40
    ) {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &steps);
        let dir = WalDir::open(folder.path(), None).unwrap();
        let mut reader = WalReader::open(&dir, None).unwrap();
        let mut start = reader.position();
        for _ in 0..from {
            if let Some(record) = reader.next().unwrap() { start = record.lsn }
        }
        let (consistent, restart) = compare(&dir, start);
        prop_assert_eq!(compare(&dir, restart).0, consistent);
    }
}
