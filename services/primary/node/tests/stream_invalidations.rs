//! StreamInvalidations over real WAL: one message a catalog-changing commit, resumption, lost history.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod support;

use pg_types::{Oid, RecordBody};
use pg_wal::{WalDir, WalReader};
use service_kit::status::{Reason, reason_of};
use tonic::{Status, Streaming};
use walstorm_proto::primary::v1 as pb;

use pb::stream_invalidations_response::Kind;
use support::{Node, fixture, millis, segments};

/// Opens a stream.
async fn open(node: &Node, request: pb::StreamInvalidationsRequest) -> Streaming<pb::StreamInvalidationsResponse> {
    node.primary().stream_invalidations(request).await.unwrap().into_inner()
}

/// The next response.
async fn next(stream: &mut Streaming<pb::StreamInvalidationsResponse>) -> Result<Kind, Status> {
    Ok(stream.message().await?.expect("the server ended the stream").kind.unwrap())
}

/// All messages up to the end of the source.
async fn drain(
    stream: &mut Streaming<pb::StreamInvalidationsResponse>,
) -> (Vec<pb::Invalidations>, Result<pb::Keepalive, Status>) {
    let mut all = Vec::new();
    loop {
        match next(stream).await {
            Ok(Kind::Started(_)) => {}
            Ok(Kind::Invalidations(i)) => all.push(i),
            Ok(Kind::Keepalive(k)) if k.end_of_source => return (all, Ok(k)),
            Ok(Kind::Keepalive(_)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(status) => return (all, Err(status)),
        }
    }
}

/// From the oldest WAL on.
fn from(lsn: u64) -> pb::StreamInvalidationsRequest {
    pb::StreamInvalidationsRequest { from_lsn: lsn, ..Default::default() }
}

/// What a directory's records say: LSN, xid and number of messages of everything that counts when it is committed.
fn expected(wal: &std::path::Path, db: Option<Oid>) -> Vec<(u64, u32, usize)> {
    let dir = WalDir::open(wal, None).unwrap();
    let mut reader = WalReader::open(&dir, None).unwrap();
    let mut all = Vec::new();
    while let Some(raw) = reader.next().unwrap() {
        let r = raw.decode(dir.profile()).unwrap();
        let (xid, messages) = match r.body {
            RecordBody::Commit(c) if c.prepared_xid.is_valid() => (c.prepared_xid.0, c.messages),
            RecordBody::Commit(c) => (r.xid.0, c.messages),
            RecordBody::StandbyInvalidations(i) => (0, i.messages),
            RecordBody::Inplace(i) => (0, i.messages),
            RecordBody::Relmap(m) => (0, vec![pg_types::InvalidationMessage::Relmap { db: m.db }]),
            _ => continue,
        };
        let count = messages.iter().filter(|m| db.is_none_or(|db| m.concerns(db))).count();
        if count > 0 {
            all.push((r.lsn.0, xid, count));
        }
    }
    all
}

/// Messages in columns.
fn count(i: &pb::Invalidations) -> usize {
    let Some(c) = &i.messages else { return 0 };
    c.catcache.as_ref().map_or(0, |g| g.cache_ids.len())
        + c.catalog.as_ref().map_or(0, |g| g.catalog_oids.len())
        + c.relcache.as_ref().map_or(0, |g| g.relation_oids.len())
        + c.smgr.as_ref().map_or(0, |g| g.file_numbers.len())
        + c.relmap.as_ref().map_or(0, |g| g.database_oids.len())
        + c.snapshot.as_ref().map_or(0, |g| g.catalog_oids.len())
        + c.relsync.as_ref().map_or(0, |g| g.relation_oids.len())
}

#[tokio::test]
async fn every_catalog_changing_commit_is_one_message() {
    for version in [13, 15, 16, 18] {
        let wal = fixture(version);
        let node = Node::serve(wal.path()).await;
        let oldest = node.node.log().oldest().0;
        let (all, end) = drain(&mut open(&node, from(oldest)).await).await;
        let told: Vec<_> = all.iter().map(|i| (i.commit_lsn, i.xid, count(i))).collect();
        assert_eq!(told, expected(wal.path(), None), "version {version}");
        assert!(told.len() > 50);
        assert!(all.iter().all(|i| !i.everything && !i.fragment));
        assert!(all.iter().all(|i| (i.xid != 0) == (i.commit_time.is_some() && i.context.is_some())));
        let end = end.unwrap();
        assert_eq!(end.progress_lsn, end.wal_end_lsn);

        let dboid = Oid(all.iter().map(|i| i.database_oid).max().unwrap());
        let mine = pb::StreamInvalidationsRequest { database_oid: dboid.0, ..from(oldest) };
        let (filtered, _) = drain(&mut open(&node, mine).await).await;
        let told: Vec<_> = filtered.iter().map(|i| (i.commit_lsn, i.xid, count(i))).collect();
        assert_eq!(told, expected(wal.path(), Some(dboid)));
        node.stop().await;
    }
}

#[tokio::test]
async fn a_consumer_resumes_at_the_last_position_it_received() {
    let wal = fixture(16);
    let node = Node::serve(wal.path()).await;
    let (all, _) = drain(&mut open(&node, from(node.node.log().oldest().0)).await).await;
    for cut in [0, 1, all.len() / 2, all.len() - 1] {
        let (rest, _) = drain(&mut open(&node, from(all[cut].end_lsn)).await).await;
        assert_eq!(rest, all[cut + 1..]);
    }
    let mut stream = open(&node, pb::StreamInvalidationsRequest { keepalive_interval: millis(10), ..from(0) }).await;
    let Kind::Started(started) = next(&mut stream).await.unwrap() else { panic!() };
    assert_eq!(started.start_lsn, node.node.log().end().lsn.0, "0 is the present end");
    for _ in 0..3 {
        let Kind::Keepalive(keepalive) = next(&mut stream).await.unwrap() else { panic!() };
        assert_eq!(keepalive.progress_lsn, started.start_lsn);
    }
    node.stop().await;
}

#[tokio::test]
async fn who_comes_too_late_is_told_to_drop_everything_and_who_comes_too_early_is_refused() {
    let wal = fixture(16);
    let node = Node::serve(wal.path()).await;
    let (all, _) = drain(&mut open(&node, from(node.node.log().oldest().0)).await).await;
    let (late, _) = drain(&mut open(&node, from(8)).await).await;
    assert!(late[0].everything && late[0].messages.is_none() && late[0].commit_lsn == 0);
    assert_eq!(late[0].end_lsn, node.node.log().oldest().0);
    assert_eq!(late[1..], all);
    let (_, ended) = drain(&mut open(&node, from(u64::MAX)).await).await;
    assert_eq!(reason_of(&ended.unwrap_err()), Some(Reason::LsnAhead));
    node.stop().await;
}

#[tokio::test]
async fn damage_and_draining_end_the_stream_by_name() {
    let wal = fixture(16);
    let node = Node::serve(wal.path()).await;
    let mut idle = open(&node, from(0)).await;
    next(&mut idle).await.unwrap();

    let victim = &segments(wal.path())[1];
    let mut bytes = std::fs::read(victim).unwrap();
    let middle = bytes.len() / 3;
    bytes[middle] ^= 1;
    std::fs::write(victim, &bytes).unwrap();
    let (some, ended) = drain(&mut open(&node, from(node.node.log().oldest().0)).await).await;
    assert!(!some.is_empty());
    assert_eq!(reason_of(&ended.unwrap_err()), Some(Reason::WalCorrupt));

    node.node.drain().start();
    let status = loop {
        match next(&mut idle).await {
            Ok(Kind::Draining(d)) => assert_eq!(d.resume_lsn, node.node.log().end().lsn.0),
            Ok(_) => {}
            Err(status) => break status,
        }
    };
    assert_eq!(reason_of(&status), Some(Reason::Draining));
    node.stop().await;
}
