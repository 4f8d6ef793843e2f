//! Records that are larger than a message: they go out in fragments below 1 MiB that join to the whole.

use pg_types::record::{CommitRecord, LogicalMessageRecord};
use pg_types::{InvalidationMessage, Oid, RecordBody, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use prost::Message;
use walstorm_proto::primary::v1 as pb;

use crate::support::{Kind, Node, from_slot, raw_records, records, start};

const MESSAGES: usize = 150_000;
const SUBXIDS: usize = 200_000;
const CONTENT: usize = 3_000_000;

/// Small records around two large ones.
fn write(dir: &std::path::Path) {
    let mut writer = WalWriter::create(dir, WriterConfig::new(9)).unwrap();
    let mut append = |xid, body: RecordBody| writer.append(Xid(xid), Xid::INVALID, 0, &body).unwrap();
    let small = |_| RecordBody::Commit(Box::default());
    append(100, small(()));
    let message = (0..CONTENT).map(|i| (i % 251) as u8).collect();
    let prefix = b"\x1b[31mprefix".to_vec();
    let logical = LogicalMessageRecord { db: Oid(5), transactional: true, prefix, message };
    append(101, RecordBody::LogicalMessage(Box::new(logical)));
    append(101, small(()));
    let messages = (0..MESSAGES as u32).map(|i| InvalidationMessage::Relcache { db: Oid(5), rel: Oid(i + 1) }).collect();
    let subxids = (0..SUBXIDS as u32).map(|i| Xid(1000 + i)).collect();
    let commit = CommitRecord { messages, subxids, db: Oid(5), spc: Oid(1663), ..CommitRecord::default() };
    append(102, RecordBody::Commit(Box::new(commit)));
    append(103, small(()));
    writer.switch().unwrap();
    writer.finish().unwrap();
}

#[tokio::test]
async fn raw_fragments_join_to_the_record_and_count_as_one() {
    let wal = tempfile::tempdir().unwrap();
    write(wal.path());
    let (expected, _) = records(wal.path());
    let node = Node::serve(wal.path()).await;
    node.create_slot("s", 0).await;
    // One batch of credit: all fragments of a record are one.
    let small = pb::StreamStart { max_outstanding_bytes: 1, max_outstanding_batches: 1, ..from_slot("s") };
    let (batches, end) = node.open(small).await.drain().await;
    end.unwrap();
    assert!(batches.iter().all(|b| b.encoded_len() < 1 << 20));
    assert!(batches.iter().filter(|b| b.fragment).count() >= 6 + 4);
    assert_eq!(raw_records(&batches), expected);
    for (i, batch) in batches.iter().enumerate().filter(|(_, b)| b.fragment) {
        let next = &batches[i + 1];
        assert_eq!((batch.start_lsn, batch.end_lsn), (next.start_lsn, next.end_lsn));
        assert!(batch.contexts.is_empty());
    }
    let commits: usize = batches.iter().map(|b| b.contexts.len()).sum();
    assert_eq!(commits, 4, "the context comes with the last fragment");
    node.stop().await;
}

#[tokio::test]
async fn a_stream_that_breaks_between_fragments_begins_the_record_again() {
    let wal = tempfile::tempdir().unwrap();
    write(wal.path());
    let node = Node::serve(wal.path()).await;
    node.create_slot("s", 0).await;
    let mut stream = node.open(from_slot("s")).await;
    let record = loop {
        match stream.next().await.unwrap() {
            Kind::Batch(batch) if batch.fragment => break batch.start_lsn,
            Kind::Batch(batch) => stream.flushed(batch.end_lsn).await,
            _ => {}
        }
    };
    stream.flushed(record).await;
    drop(stream);
    let mut stream = node.open(from_slot("s")).await;
    stream.started().await;
    let first = stream.batch().await;
    assert!(first.fragment && first.start_lsn == record);
    node.stop().await;
}

#[tokio::test]
async fn typed_fragments_join_by_columns() {
    let wal = tempfile::tempdir().unwrap();
    write(wal.path());
    let node = Node::serve(wal.path()).await;
    let typed = pb::StreamStart { encoding: pb::Encoding::Typed.into(), ..start() };
    let (batches, end) = node.open(typed).await.drain().await;
    end.unwrap();
    assert!(batches.iter().all(|b| b.encoded_len() < 1 << 20));
    let (mut content, mut prefix, mut rels, mut subxids) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut commits = 0;
    for batch in &batches {
        let Some(pb::wal_batch::Body::Typed(typed)) = &batch.body else { panic!() };
        for record in &typed.records {
            match record.kind.as_ref().unwrap() {
                pb::typed_record::Kind::LogicalMessage(m) => {
                    prefix.extend_from_slice(&m.prefix);
                    content.extend_from_slice(&m.content);
                }
                pb::typed_record::Kind::Commit(c) if record.xid == 102 => {
                    subxids.extend_from_slice(&c.subxids);
                    let relcache = c.invalidations.as_ref().and_then(|i| i.relcache.as_ref());
                    rels.extend_from_slice(relcache.map_or(&[][..], |r| &r.relation_oids));
                }
                pb::typed_record::Kind::Commit(_) => commits += 1,
                _ => {}
            }
        }
    }
    assert_eq!(prefix, b"\x1b[31mprefix");
    assert!(content.len() == CONTENT && content.iter().enumerate().all(|(i, b)| *b == (i % 251) as u8));
    assert!(rels.iter().copied().eq(1..=MESSAGES as u32));
    assert!(subxids.iter().copied().eq(1000..1000 + SUBXIDS as u32));
    assert_eq!(commits, 3);
    node.stop().await;
}

#[tokio::test]
async fn large_sets_of_invalidations_come_in_fragments_that_resume_at_the_commit() {
    let wal = tempfile::tempdir().unwrap();
    write(wal.path());
    let node = Node::serve(wal.path()).await;
    let from_lsn = node.node.log().oldest().0;
    let request = pb::StreamInvalidationsRequest { from_lsn, ..Default::default() };
    let mut stream = node.primary().stream_invalidations(request).await.unwrap().into_inner();
    let (mut rels, mut fragments) = (Vec::new(), 0);
    loop {
        use pb::stream_invalidations_response::Kind;
        let message = stream.message().await.unwrap().unwrap();
        assert!(message.encoded_len() < 1 << 20);
        match message.kind.unwrap() {
            Kind::Invalidations(i) => {
                assert_eq!(i.xid, 102);
                rels.extend_from_slice(&i.messages.unwrap().relcache.unwrap().relation_oids);
                assert_eq!(i.fragment, i.end_lsn == i.commit_lsn, "a fragment resumes at its commit");
                fragments += usize::from(i.fragment);
            }
            Kind::Keepalive(k) if k.end_of_source => break,
            _ => {}
        }
    }
    assert!(rels.iter().copied().eq(1..=MESSAGES as u32));
    assert!(fragments > 5);
    node.stop().await;
}
