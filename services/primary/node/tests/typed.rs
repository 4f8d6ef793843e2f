//! The typed encoding tells the same transactions as the raw one.

use std::collections::{BTreeMap, BTreeSet};

use pg_types::{InvalidationKind, InvalidationMessage, RecordBody, WalRecord};
use pg_wal::{Crc, WalProfile, decode_bytes};
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::wal::v1 as wal;

use crate::support::{self, Node, fixture, raw_records, start};
use pb::typed_record::Kind;

/// What both encodings must agree on: everything that has an xid, by LSN.
#[derive(Clone, Debug, Default, PartialEq)]
struct Told {
    /// Kind, xid and top xid of each record that tells something.
    records: BTreeMap<u64, (&'static str, u32, u32)>,
    /// Rows by relation file and kind of change.
    rows: BTreeMap<(String, i32), u64>,
    /// Messages of commits by kind.
    messages: BTreeMap<u64, BTreeMap<&'static str, usize>>,
    /// Subtransactions of commits.
    subxids: BTreeMap<u64, Vec<u32>>,
    /// Names of prepared transactions.
    gids: BTreeSet<Vec<u8>>,
    /// Relations that were truncated.
    truncated: Vec<u32>,
    /// Logical messages.
    logical: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Counts by kind.
fn count(messages: &[InvalidationMessage]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for message in messages {
        *counts.entry(message.kind().name()).or_default() += 1;
    }
    counts
}

/// Counts by kind, of columns; the columns must be of equal length.
fn count_columns(columns: Option<&wal::InvalidationColumns>) -> BTreeMap<&'static str, usize> {
    let Some(c) = columns else { return BTreeMap::new() };
    let lengths = [
        (
            InvalidationKind::Catcache,
            c.catcache.as_ref().map(|g| vec![g.cache_ids.len(), g.database_oids.len(), g.hashes.len()]),
        ),
        (InvalidationKind::Catalog, c.catalog.as_ref().map(|g| vec![g.database_oids.len(), g.catalog_oids.len()])),
        (InvalidationKind::Relcache, c.relcache.as_ref().map(|g| vec![g.database_oids.len(), g.relation_oids.len()])),
        (InvalidationKind::Smgr, c.smgr.as_ref().map(|g| vec![g.backends.len(), g.file_numbers.len()])),
        (InvalidationKind::Relmap, c.relmap.as_ref().map(|g| vec![g.database_oids.len()])),
        (InvalidationKind::Snapshot, c.snapshot.as_ref().map(|g| vec![g.database_oids.len(), g.catalog_oids.len()])),
        (InvalidationKind::Relsync, c.relsync.as_ref().map(|g| vec![g.database_oids.len(), g.relation_oids.len()])),
    ];
    let mut counts = BTreeMap::new();
    for (kind, lengths) in lengths {
        if let Some(lengths) = lengths {
            assert!(lengths.iter().all(|l| *l == lengths[0]), "{kind:?} {lengths:?}");
            counts.insert(kind.name(), lengths[0]);
        }
    }
    counts
}

impl Told {
    /// Adds one decoded record.
    fn add_raw(&mut self, r: &WalRecord) {
        let change = |told: &mut Told, locator: pg_types::RelFileLocator, kind: wal::ChangeKind, rows: u64| {
            *told.rows.entry((locator.to_string(), kind.into())).or_default() += rows;
            "change"
        };
        let kind = match &r.body {
            RecordBody::Insert(i) => change(self, i.target, wal::ChangeKind::Insert, 1),
            RecordBody::MultiInsert(i) => change(self, i.target, wal::ChangeKind::Insert, u64::from(i.ntuples)),
            RecordBody::Update(u) => change(self, u.target, wal::ChangeKind::Update, 1),
            RecordBody::Delete(d) => change(self, d.target, wal::ChangeKind::Delete, 1),
            RecordBody::Commit(c) => {
                self.messages.insert(r.lsn.0, count(&c.messages));
                self.subxids.insert(r.lsn.0, c.subxids.iter().map(|x| x.0).collect());
                self.gids.extend((!c.gid.is_empty()).then(|| c.gid.clone()));
                "commit"
            }
            RecordBody::Abort(_) => "abort",
            RecordBody::Prepare(p) => {
                self.gids.insert(p.gid.clone());
                "prepare"
            }
            RecordBody::Assignment(_) => "assignment",
            RecordBody::XactInvalidations(_) | RecordBody::StandbyInvalidations(_) | RecordBody::Relmap(_) => "invalidations",
            RecordBody::Inplace(i) if !i.messages.is_empty() => "invalidations",
            RecordBody::RunningXacts(_) => "running",
            RecordBody::Truncate(t) => {
                self.truncated.extend(t.relids.iter().map(|o| o.0));
                "truncate"
            }
            RecordBody::LogicalMessage(m) => {
                self.logical.push((m.prefix.clone(), m.message.clone()));
                "message"
            }
            _ => return,
        };
        self.records.insert(r.lsn.0, (kind, r.xid.0, r.top_xid.0));
    }

    /// Adds one typed record.
    fn add_typed(&mut self, r: &pb::TypedRecord) {
        let kind = match r.kind.as_ref().unwrap() {
            Kind::Begin(_) => return,
            Kind::Changes(changes) => {
                let l = changes.locator.as_ref().unwrap();
                let locator = format!("{}/{}/{}", l.tablespace_oid, l.database_oid, l.file_number);
                let c = changes.columns.as_ref().unwrap();
                assert!(c.kinds.len() == c.lsn_offsets.len() && c.kinds.len() == c.row_counts.len());
                for ((kind, offset), rows) in c.kinds.iter().zip(&c.lsn_offsets).zip(&c.row_counts) {
                    *self.rows.entry((locator.clone(), *kind)).or_default() += u64::from(*rows);
                    self.records.insert(r.lsn + u64::from(*offset), ("change", r.xid, r.top_xid));
                }
                return;
            }
            Kind::Commit(c) => {
                self.messages.insert(r.lsn, count_columns(c.invalidations.as_ref()));
                self.subxids.insert(r.lsn, c.subxids.clone());
                self.gids.extend((!c.gid.is_empty()).then(|| c.gid.to_vec()));
                "commit"
            }
            Kind::Abort(_) => "abort",
            Kind::Prepare(p) => {
                self.gids.insert(p.gid.to_vec());
                "prepare"
            }
            Kind::Assignment(_) => "assignment",
            Kind::Invalidations(_) => "invalidations",
            Kind::RunningXacts(_) => "running",
            Kind::Truncate(t) => {
                self.truncated.extend(&t.relation_oids);
                "truncate"
            }
            Kind::LogicalMessage(m) => {
                self.logical.push((m.prefix.to_vec(), m.content.to_vec()));
                "message"
            }
        };
        self.records.insert(r.lsn, (kind, r.xid, r.top_xid));
    }
}

/// The records of typed batches.
fn typed_records(batches: &[pb::WalBatch]) -> Vec<pb::TypedRecord> {
    let mut records = Vec::new();
    for batch in batches {
        assert!(!batch.fragment, "nothing in the fixtures is that large");
        assert!(prost::Message::encoded_len(batch) < 1 << 20);
        let Some(pb::wal_batch::Body::Typed(typed)) = &batch.body else { panic!("not typed") };
        for record in &typed.records {
            assert!(record.lsn >= batch.start_lsn && record.end_lsn <= batch.end_lsn);
        }
        records.extend(typed.records.clone());
    }
    records
}

#[tokio::test]
async fn typed_and_raw_tell_the_same_transactions() {
    for version in [13, 15, 16, 18] {
        let wal = fixture(version);
        let node = Node::serve(wal.path()).await;
        let (raw, end) = node.open(start()).await.drain().await;
        end.unwrap();
        let profile = pg_types::PgVersion::ALL.into_iter().find(|v| v.major() == version).map(WalProfile::of).unwrap();
        let mut expected = Told::default();
        for record in raw_records(&raw) {
            expected.add_raw(&decode_bytes(profile, record.lsn, record.end_lsn, &record.bytes, Crc::Check).unwrap());
        }
        for max_outstanding_bytes in [1, 64 << 20] {
            let typed = pb::StreamStart { encoding: pb::Encoding::Typed.into(), max_outstanding_bytes, ..start() };
            let (batches, end) = node.open(typed).await.drain().await;
            let end = end.unwrap();
            assert_eq!(end.progress_lsn, end.wal_end_lsn, "records that are left out count as progress");
            let mut told = Told::default();
            typed_records(&batches).iter().for_each(|r| told.add_typed(r));
            assert_eq!(told, expected, "version {version}");
            assert!(expected.records.values().any(|(kind, ..)| *kind == "prepare"), "the fixture has all of it");
        }
        node.stop().await;
    }
}

#[tokio::test]
async fn an_xid_is_announced_before_its_first_record_and_once() {
    let wal = fixture(16);
    let node = Node::serve(wal.path()).await;
    let typed = pb::StreamStart { encoding: pb::Encoding::Typed.into(), ..start() };
    let (batches, _) = node.open(typed).await.drain().await;
    let mut open = BTreeSet::new();
    let mut announced = 0;
    for record in typed_records(&batches) {
        match record.kind.unwrap() {
            Kind::Begin(_) => {
                assert!(open.insert(record.xid), "{} was announced twice", record.xid);
                announced += 1;
            }
            Kind::Changes(_) => assert!(open.contains(&record.xid), "{} was not announced", record.xid),
            Kind::Commit(c) => {
                open.remove(&record.xid);
                open.remove(&c.prepared_xid);
                c.subxids.iter().for_each(|x| _ = open.remove(x));
            }
            Kind::Abort(a) => {
                open.remove(&record.xid);
                open.remove(&a.prepared_xid);
                a.subxids.iter().for_each(|x| _ = open.remove(x));
            }
            _ => {}
        }
    }
    assert!(announced > 100, "{announced}");
    node.stop().await;
}

#[tokio::test]
async fn contexts_stand_beside_their_commits() {
    let wal = fixture(18);
    let data = tempfile::tempdir().unwrap();
    let mut config = support::config(wal.path(), data.path());
    config.telemetry.sampling.ratio = 0.25;
    let node = Node::start(config, data).await;
    let mut contexts = Vec::new();
    for encoding in [pb::Encoding::Raw, pb::Encoding::Typed] {
        for which in [pb::TraceContexts::All, pb::TraceContexts::Sampled] {
            let wanted = pb::StreamStart { encoding: encoding.into(), trace_contexts: which.into(), ..start() };
            let (batches, _) = node.open(wanted).await.drain().await;
            for batch in &batches {
                for c in &batch.contexts {
                    assert!((batch.start_lsn..batch.end_lsn).contains(&c.commit_lsn));
                }
            }
            contexts.push(batches.into_iter().flat_map(|b| b.contexts).collect::<Vec<_>>());
        }
    }
    let [raw_all, raw_sampled, typed_all, typed_sampled] = &contexts[..] else { panic!() };
    assert_eq!(raw_all, typed_all, "the same in every stream");
    assert_eq!(raw_sampled, typed_sampled);
    assert!(raw_all.len() > 250 && raw_sampled.len() < raw_all.len() && !raw_sampled.is_empty());
    assert!(raw_sampled.iter().all(|c| c.traceparent.ends_with("-01") && raw_all.contains(c)));
    let system_id = pg_wal::WalDir::open(wal.path(), None).unwrap().identity().system_id;
    for c in raw_all {
        let ids = service_kit::telemetry::WalId { system_id, timeline: 1 }.transaction_ids(c.commit_lsn);
        assert!(c.traceparent.contains(&ids.0.to_string()) && c.traceparent.contains(&ids.1.to_string()));
    }
    node.stop().await;
}
