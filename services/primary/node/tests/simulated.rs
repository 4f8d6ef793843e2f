//! The simulated source: a scenario is played into the log while streams read it, and a run that was cut off goes on.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod support;

use std::path::Path;

use primary_node::config::{ClockMode, PrimaryConfig};
use primary_node::{Error, PrimaryNode};
use support::{Node, raw_records, records, segments, start};

/// A small run.
fn config(data: &Path) -> PrimaryConfig {
    let mut config = PrimaryConfig { data_dir: data.to_owned(), ..PrimaryConfig::default() };
    config.server.listen = "127.0.0.1:0".to_owned();
    config.server.grace = std::time::Duration::from_millis(300);
    config.source.scenario = Some("catalog-churn".to_owned());
    for (name, value) in [("tables", "50"), ("transactions", "40"), ("grants", "20"), ("altered", "20")] {
        config.source.parameters.insert(name.to_owned(), value.into());
    }
    config.source.segment_bytes = 1 << 20;
    config.source.fsync = false;
    config.source.flush_bytes = 20_000;
    config
}

/// Plays a run to its end and returns its segments' names and bytes.
async fn play(config: PrimaryConfig, data: tempfile::TempDir) -> (tempfile::TempDir, Vec<(String, Vec<u8>)>) {
    let node = Node::start(config, data).await;
    let (batches, end) = node.open(start()).await.drain().await;
    assert!(end.unwrap().end_of_source);
    let data = node.stop().await;
    let wal = data.path().join("wal");
    assert_eq!(raw_records(&batches), records(&wal).0);
    let files = segments(&wal).iter().map(|p| (p.display().to_string(), std::fs::read(p).unwrap())).collect();
    (data, files)
}

/// The bytes without the names.
fn bytes(files: &[(String, Vec<u8>)]) -> Vec<&[u8]> {
    files.iter().map(|(_, b)| b.as_slice()).collect()
}

#[tokio::test]
async fn the_same_seed_gives_the_same_bytes_and_another_one_others() {
    let run = |seed| async move {
        let data = tempfile::tempdir().unwrap();
        let mut config = config(data.path());
        config.source.seed = seed;
        play(config, data).await.1
    };
    let (a, b, c) = (run(None).await, run(None).await, run(Some(7)).await);
    assert_eq!(bytes(&a), bytes(&b));
    assert_ne!(bytes(&a), bytes(&c));
}

#[tokio::test]
async fn a_run_that_was_cut_off_goes_on_where_its_log_ends() {
    let data = tempfile::tempdir().unwrap();
    let (data, whole) = play(config(data.path()), data).await;
    let all = records(&data.path().join("wal")).0;
    for (index, torn) in [(all.len() / 2, 0), (all.len() / 3, 13), (all.len() - 1, 0), (1, 0)] {
        // What a crash leaves: nothing behind a record, or a part of it.
        let cut = all[index].lsn.0 + torn;
        for (path, bytes) in &whole {
            let name = Path::new(path).file_name().unwrap().to_str().unwrap();
            let start = u64::from_str_radix(&name[16..], 16).unwrap() << 20;
            let mut bytes = bytes.clone();
            if cut <= start {
                std::fs::remove_file(path).unwrap();
                continue;
            }
            let keep = usize::try_from(cut - start).unwrap().min(bytes.len());
            bytes[keep..].fill(0);
            std::fs::write(path, bytes).unwrap();
        }
        let config = config(data.path());
        let node = PrimaryNode::start(config).await.unwrap();
        let mut end = node.log().subscribe();
        end.wait_for(|end| end.closed).await.unwrap();
        node.shutdown().await.unwrap();
        for (path, bytes) in &whole {
            assert!(&std::fs::read(path).unwrap() == bytes, "{path} cut at {index}");
        }
    }
}

#[tokio::test]
async fn a_finished_run_is_served_again_and_another_run_is_refused() {
    let data = tempfile::tempdir().unwrap();
    let (data, whole) = play(config(data.path()), data).await;
    let (data, again) = play(config(data.path()), data).await;
    assert_eq!(whole, again);
    let mut other = config(data.path());
    other.source.seed = Some(99);
    match PrimaryNode::start(other).await {
        Err(Error::WalDirectory { reason, .. }) => assert!(reason.contains("another run"), "{reason}"),
        result => panic!("{result:?}"),
    }
}

#[tokio::test]
async fn wrong_scenarios_are_refused_with_what_there_is() {
    for (name, parameter, part) in [("no-such-thing", None, "catalog-churn"), ("catalog-churn", Some("nonsense"), "nonsense")] {
        let data = tempfile::tempdir().unwrap();
        let mut config = config(data.path());
        config.source.scenario = Some(name.to_owned());
        config.source.parameters = parameter.map(|p| (p.to_owned(), "1".into())).into_iter().collect();
        let error = PrimaryNode::start(config).await.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn wall_clocks_write_a_log_that_reads_well() {
    for clock in [ClockMode::Max, ClockMode::Real] {
        let data = tempfile::tempdir().unwrap();
        let mut config = config(data.path());
        config.source.clock = clock;
        config.source.parameters.insert("transactions".to_owned(), "5".into());
        config.source.parameters.insert("grants".to_owned(), "2".into());
        config.source.parameters.insert("altered".to_owned(), "2".into());
        let (data, _) = play(config, data).await;
        assert!(records(&data.path().join("wal")).1.is_complete());
    }
}

#[tokio::test]
async fn wal_that_nobody_needs_is_removed_and_what_a_slot_needs_is_kept() {
    let data = tempfile::tempdir().unwrap();
    let mut config = config(data.path());
    config.source.parameters.insert("tables".to_owned(), "200".into());
    config.source.parameters.insert("transactions".to_owned(), "400".into());
    config.retention.keep_bytes = Some(1);
    config.retention.interval = std::time::Duration::from_millis(5);
    config.source.ahead_bytes_max = Some(3 << 20);
    let node = Node::start(config.clone(), data).await;
    node.create_slot("keeper", 0).await;
    let mut stream = node.open(support::from_slot("keeper")).await;
    let started = stream.started().await;
    let (batches, end) = stream.drain().await;
    assert!(!batches.is_empty());
    let end = end.unwrap().progress_lsn;
    assert!(end - started.start_lsn > 2 << 20, "several segments");
    stream.flushed(end).await;
    while node.node.log().oldest().0 + (1 << 20) < end {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    let late = node.refused(support::pb_from(started.start_lsn)).await;
    assert_eq!(service_kit::status::reason_of(&late), Some(service_kit::status::Reason::LsnRemoved));
    let data = node.stop().await;
    // The beginning is gone, so the run cannot be compared: it is served as it is.
    config.data_dir = data.path().to_owned();
    let node = Node::start(config, data).await;
    assert!(node.node.log().end().closed && node.node.summary().is_none());
    node.stop().await;
}
