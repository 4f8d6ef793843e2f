//! StreamInvalidations over real WAL: one message a catalog-changing commit, resumption, lost history.

use pg_types::record::CommitRecord;
use pg_types::{InvalidationMessage, Oid, RecordBody, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use pg_wal::{WalDir, WalReader};
use prost::Message;
use service_kit::status::{Reason, reason_of};
use tonic::{Status, Streaming};
use walstorm_proto::primary::v1 as pb;

use crate::support::{Node, fixture, millis, segments};
use pb::stream_invalidations_response::Kind;

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

/// A commit of a hundred thousand messages between two small ones.
fn write_huge(dir: &std::path::Path) -> Vec<InvalidationMessage> {
    let messages: Vec<_> = (0..100_000u32)
        .map(|i| match i % 4 {
            0 | 1 => InvalidationMessage::Catcache { cache_id: 57, db: Oid(5), hash: i.wrapping_mul(0x9E37_79B9) },
            2 => InvalidationMessage::Relcache { db: Oid(5), rel: Oid(16_384 + i) },
            _ => InvalidationMessage::Snapshot { db: Oid(6), rel: Oid(2608) },
        })
        .collect();
    let mut writer = WalWriter::create(dir, WriterConfig::new(9)).unwrap();
    for (xid, messages) in [(700, &messages[..3]), (701, &messages[..]), (702, &messages[..3])] {
        let commit = CommitRecord { messages: messages.to_vec(), db: Oid(5), spc: Oid(1663), ..CommitRecord::default() };
        writer.append(Xid(xid), Xid::INVALID, 0, &RecordBody::Commit(Box::new(commit))).unwrap();
    }
    writer.switch().unwrap();
    writer.finish().unwrap();
    messages
}

#[tokio::test]
async fn a_commit_of_a_hundred_thousand_messages_comes_in_packed_fragments_and_whole_after_a_break() {
    let wal = tempfile::tempdir().unwrap();
    let messages = write_huge(wal.path());
    let node = Node::serve(wal.path()).await;
    let oldest = node.node.log().oldest().0;
    let (all, _) = drain(&mut open(&node, from(oldest)).await).await;
    let huge: Vec<_> = all.iter().filter(|i| i.xid == 701).collect();
    let flags: Vec<_> = huge.iter().map(|i| i.fragment).collect();
    assert_eq!(flags, [true, true, true, true, false]);
    assert!(all.iter().all(|i| i.encoded_len() < 1 << 20), "far below the 4 MiB that clients accept");
    let wire: usize = huge.iter().map(|i| i.encoded_len()).sum();
    assert!(wire < messages.len() * 9, "{wire} bytes: a cache id, an oid and a hash, without a header for each message");

    // In the order of the record within each kind.
    let (mut hashes, mut relations, mut snapshots) = (Vec::new(), Vec::new(), 0);
    for columns in huge.iter().map(|i| i.messages.as_ref().unwrap()) {
        let (catcache, relcache) = (columns.catcache.as_ref().unwrap(), columns.relcache.as_ref().unwrap());
        assert_eq!((catcache.cache_ids.len(), catcache.database_oids.len()), (catcache.hashes.len(), catcache.hashes.len()));
        hashes.extend_from_slice(&catcache.hashes);
        relations.extend_from_slice(&relcache.relation_oids);
        snapshots += columns.snapshot.as_ref().unwrap().catalog_oids.len();
    }
    let expected_hashes: Vec<_> = messages
        .iter()
        .filter_map(|m| if let InvalidationMessage::Catcache { hash, .. } = m { Some(*hash) } else { None })
        .collect();
    let expected_relations: Vec<_> = messages
        .iter()
        .filter_map(|m| if let InvalidationMessage::Relcache { rel, .. } = m { Some(rel.0) } else { None })
        .collect();
    assert_eq!((hashes, relations, snapshots), (expected_hashes, expected_relations, 25_000));

    // Who was cut off between two fragments gets the commit again, who had the last one does not.
    let (again, _) = drain(&mut open(&node, from(huge[2].end_lsn)).await).await;
    assert_eq!(again, all[1..]);
    let (after, _) = drain(&mut open(&node, from(huge[4].end_lsn)).await).await;
    assert_eq!(after, all[all.len() - 1..]);
    let other = pb::StreamInvalidationsRequest { database_oid: 6, ..from(oldest) };
    let (filtered, _) = drain(&mut open(&node, other).await).await;
    assert_eq!(filtered.iter().filter(|i| i.xid == 701).map(count).sum::<usize>(), 25_000);
    node.stop().await;
}
