//! The simulated source: a scenario is played into the log while streams read it, and a run that was cut off goes on.

use std::path::Path;

use crate::support::{self, Node, Record, raw_records, records, segments, start, truncate};
use primary_node::config::{ClockMode, PrimaryConfig};
use primary_node::{Error, PrimaryNode};

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
    // The beginning is gone; the run is played again all the same, compared with what is there, and has nothing to add.
    config.data_dir = data.path().to_owned();
    let before = segments(&data.path().join("wal"));
    let node = Node::start(config, data).await;
    assert!(node.node.log().oldest().0 > 1 << 20);
    node.node.log().subscribe().wait_for(|log| log.closed).await.unwrap();
    assert_eq!(node.node.log().end().lsn.0, end);
    let data = node.stop().await;
    assert_eq!(before, segments(&data.path().join("wal")));
}

/// What a record is but for times and checksums: place, length, transaction, operation, resource manager.
fn timeless(records: &[Record]) -> Vec<(u64, [u8; 8], [u8; 2])> {
    let key = |r: &Record| (r.lsn.0, r.bytes[..8].try_into().unwrap(), r.bytes[16..18].try_into().unwrap());
    records.iter().map(key).collect()
}

#[tokio::test]
async fn a_run_on_a_wall_clock_that_was_cut_off_goes_on_with_the_same_records() {
    let data = tempfile::tempdir().unwrap();
    let (reference, _) = play(config(data.path()), data).await;
    let reference = records(&reference.path().join("wal")).0;
    for kept in [None, Some(1)] {
        let data = tempfile::tempdir().unwrap();
        let mut config = config(data.path());
        config.source.clock = ClockMode::Max;
        config.retention.keep_bytes = kept;
        config.retention.interval = std::time::Duration::from_millis(1);
        let (data, _) = play(PrimaryConfig { retention: Default::default(), ..config.clone() }, data).await;
        let wal = data.path().join("wal");
        let written = records(&wal).0;
        assert_eq!(timeless(&written), timeless(&reference), "times aside, clocks make no difference");
        let cut = written[written.len() * 2 / 3].clone();
        truncate(&wal, cut.lsn.0 + 5);
        let node = PrimaryNode::start(config).await.unwrap();
        node.log().subscribe().wait_for(|log| log.closed).await.unwrap();
        node.shutdown().await.unwrap();
        let again = records(&wal).0;
        let first = again[0].lsn;
        let (old, new): (Vec<_>, Vec<_>) = again.into_iter().partition(|r| r.lsn < cut.lsn);
        let kept: Vec<_> = written.into_iter().filter(|r| r.lsn >= first && r.lsn < cut.lsn).collect();
        assert_eq!(old, kept, "what was there is as it was");
        let rest: Vec<_> = reference.iter().filter(|r| r.lsn >= cut.lsn).cloned().collect();
        assert_eq!(timeless(&new), timeless(&rest));
    }
}

#[tokio::test]
async fn a_log_with_other_contents_is_not_gone_on_with() {
    let data = tempfile::tempdir().unwrap();
    let large = |data: &Path| {
        let mut config = config(data);
        config.source.parameters.insert("tables".to_owned(), "200".into());
        config.source.parameters.insert("transactions".to_owned(), "400".into());
        config
    };
    let (data, whole) = play(large(data.path()), data).await;
    let fails = |change: fn(&mut PrimaryConfig)| {
        let mut config = large(data.path());
        change(&mut config);
        async {
            match PrimaryNode::start(config).await {
                Ok(node) => node.joined().await.unwrap_err().to_string(),
                Err(error) => error.to_string(),
            }
        }
    };
    let shorter = fails(|c| drop(c.source.parameters.insert("transactions".to_owned(), "10".into()))).await;
    assert!(shorter.contains("another run") && shorter.contains("this run has"), "{shorter}");
    let other_times = fails(|c| c.source.pg_version = 17).await;
    assert!(other_times.contains("PostgreSQL 18") && other_times.contains("PostgreSQL 17"), "{other_times}");
    // Damage in the middle is no end.
    let (path, bytes) = &whole[1];
    let mut damaged = bytes.clone();
    damaged[500_000] ^= 1;
    std::fs::write(path, damaged).unwrap();
    let damage = fails(|_| ()).await;
    assert!(damage.contains(path) && damage.contains("goes on to"), "{damage}");
}

/// Reads everything through a slot, until the slot says so.
async fn read_all(node: &Node, slot: &str) {
    let mut stream = node.open(support::from_slot(slot)).await;
    let (batches, end) = stream.drain().await;
    end.unwrap();
    let last = batches.last().unwrap().end_lsn;
    while node.slot(slot).await.confirmed_flush_lsn < last {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn on_a_wall_clock_wal_that_a_consumer_has_may_not_be_lost() {
    let data = tempfile::tempdir().unwrap();
    let mut config = config(data.path());
    config.source.clock = ClockMode::Max;
    let node = Node::start(config.clone(), data).await;
    node.create_slot("reader", 0).await;
    read_all(&node, "reader").await;
    let data = node.stop().await;
    truncate(&data.path().join("wal"), 1_500_000);
    match PrimaryNode::start(config.clone()).await {
        Err(Error::SlotAhead { name, .. }) => assert_eq!(name, "reader"),
        other => panic!("{other:?}"),
    }
    // Simulated times come again.
    let data = tempfile::tempdir().unwrap();
    config.data_dir = data.path().to_owned();
    config.source.clock = ClockMode::Virtual;
    let node = Node::start(config.clone(), data).await;
    node.create_slot("reader", 0).await;
    read_all(&node, "reader").await;
    let data = node.stop().await;
    truncate(&data.path().join("wal"), 1_500_000);
    let node = Node::start(config, data).await;
    node.node.log().subscribe().wait_for(|log| log.closed).await.unwrap();
    let slot = node.slot("reader").await;
    assert!(slot.confirmed_flush_lsn > 1_500_000 && slot.confirmed_flush_lsn <= node.node.log().end().lsn.0);
    node.stop().await;
}

#[tokio::test]
async fn many_transactions_are_flushed_together_and_counted() {
    for (fsync, flush_bytes) in [(true, 20_000), (true, 1 << 20), (false, 1 << 20)] {
        let data = tempfile::tempdir().unwrap();
        let mut config = config(data.path());
        (config.source.fsync, config.source.flush_bytes) = (fsync, flush_bytes);
        let node = Node::start(config, data).await;
        let (_, end) = node.open(start()).await.drain().await;
        end.unwrap();
        let state = node.node.log().writer().unwrap().borrow().clone();
        let summary = node.node.summary().unwrap().borrow().clone();
        assert_eq!((state.counters.records, state.commits), (summary.records, summary.committed));
        let bytes = node.node.log().end().lsn.0 - (1 << 20);
        assert!(state.flushes >= 2 && state.flushes <= bytes / flush_bytes + 2, "{state:?}");
        // A sync for each flush, and one for each segment's end.
        let syncs = if fsync { state.flushes..=state.flushes + state.counters.segments } else { 0..=0 };
        assert!(syncs.contains(&state.counters.syncs), "{state:?}");
        node.stop().await;
    }
}

/// A scenario whose log's disk is full for a fifth of a second.
const FULL: &str = "name = 'full'\nstory = 'A full disk.'\nseed = 1\nduration = '600ms'\n[server]\nbarrier_every = '50ms'\n\
    [[faults]]\nat = '100ms'\nkind = 'disk_full'\nfor = '200ms'\n[[tables]]\nname = 't'\ncolumns = ['id int']\n\
    [[actors]]\nname = 'a'\nevery = '10ms'\nsteps = [{ insert = { table = 't' } }]\n";

#[tokio::test]
async fn a_simulated_disk_without_room_is_told_as_a_real_one_is() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("full.toml");
    std::fs::write(&path, FULL).unwrap();
    let mut config = config(data.path());
    config.source.parameters.clear();
    config.source.scenario = Some(path.display().to_string());
    config.source.clock = ClockMode::Real;
    let node = Node::start(config, data).await;
    let mut writer = node.node.log().writer().unwrap();
    let full = writer.wait_for(|state| state.fault.is_some()).await.unwrap().clone();
    assert!(full.fault.as_deref().unwrap().contains("the scenario says"), "{full:?}");
    writer.wait_for(|state| state.fault.is_none()).await.unwrap();
    node.node.log().subscribe().wait_for(|log| log.closed).await.unwrap();
    assert!(node.node.log().writer().unwrap().borrow().commits > full.commits + 20, "it goes on by itself");
    node.stop().await;
}
