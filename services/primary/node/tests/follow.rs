//! A directory that grows is followed; a half-copied segment is waited for, not reported.

use std::path::PathBuf;
use std::time::Duration;

use crate::support::{self, Kind, Node, fixture, raw_records, records, segments, start};

#[tokio::test]
async fn new_segments_are_served_as_they_arrive() {
    let whole = fixture(16);
    let (expected, end) = records(whole.path());
    let files = segments(whole.path());
    let archive = tempfile::tempdir().unwrap();
    let target = |file: &PathBuf| archive.path().join(file.file_name().unwrap());
    std::fs::copy(&files[0], target(&files[0])).unwrap();

    let data = tempfile::tempdir().unwrap();
    let mut config = support::config(archive.path(), data.path());
    config.source.follow = true;
    config.source.follow_interval = Duration::from_millis(5);
    let node = Node::start(config, data).await;
    let mut stream = node.open(start()).await;
    stream.started().await;
    let mut batches = vec![stream.batch().await];
    for file in &files[1..] {
        // A copying program is slow: first a part, then all.
        let bytes = std::fs::read(file).unwrap();
        std::fs::write(target(file), &bytes[..bytes.len() / 2]).unwrap();
        tokio::time::sleep(Duration::from_millis(30)).await;
        std::fs::write(target(file), &bytes).unwrap();
    }
    while batches.last().unwrap().end_lsn < expected.last().unwrap().end_lsn.0 {
        match stream.next().await.unwrap() {
            Kind::Batch(batch) => batches.push(batch),
            Kind::Keepalive(keepalive) => assert!(!keepalive.end_of_source, "more may come"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(raw_records(&batches), expected);
    let mut log = node.node.log().subscribe();
    log.wait_for(|log| log.lsn == end.lsn).await.unwrap();
    node.stop().await;
}
