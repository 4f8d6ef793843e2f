//! VACUUM of a scenario heeds what consumers outside of it need: told with feedback, exchanged at barriers, the same when the run is
//! played again.

use std::path::Path;
use std::time::Duration;

use pg_types::{PgVersion, RecordBody, WalIdentity};
use primary_node::config::{ClockMode, SourceConfig};
use primary_node::slots::{Persistency, SlotFile, Slots};
use primary_node::{PrimaryConfig, PrimaryNode};
use walstorm_proto::primary::v1 as pb;

use crate::support::{Kind, Node, Stream, from_slot, millis, raw_records, records, segments};

/// Rows are deleted one at a time, and vacuumed after each; a barrier comes every other time.
const SCENARIO: &str = include_str!("held.toml");

/// A primary that waits for its slot, in lock-step unless `heed` says otherwise.
fn config(data: &Path, heed: Option<bool>) -> PrimaryConfig {
    let scenario = data.join("held.toml");
    std::fs::write(&scenario, SCENARIO).unwrap();
    let mut config = PrimaryConfig { data_dir: data.to_owned(), ..PrimaryConfig::default() };
    config.server.listen = "127.0.0.1:0".to_owned();
    config.server.grace = Duration::from_millis(300);
    config.source.scenario = Some(scenario.display().to_string());
    config.source.segment_bytes = 1 << 20;
    config.source.fsync = false;
    config.source.wait_for_slots = vec!["standby".to_owned()];
    config.source.heed_slots = heed;
    config
}

/// The xid of a raw record.
fn xid(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[4..8].try_into().unwrap())
}

/// What is needed of the last so many transactions that a standby has replayed.
#[derive(Clone, Copy)]
enum Needs {
    /// Rows of all tables, by its readers.
    Rows(u32),
    /// Rows of catalogs alone, by slots of its own.
    Catalogs(u32),
}

impl Needs {
    /// The feedback of a standby that has seen `newest`.
    fn feedback(self, newest: u32) -> pb::HotStandbyFeedback {
        let back = |behind: u32| if newest > behind + 3 { newest - behind } else { 3 };
        match self {
            Needs::Rows(behind) => pb::HotStandbyFeedback { xmin: back(behind), catalog_xmin: 0 },
            Needs::Catalogs(behind) => pb::HotStandbyFeedback { xmin: 0, catalog_xmin: back(behind) },
        }
    }
}

/// A standby.
struct Standby {
    stream: Stream,
    needs: Needs,
    newest: u32,
}

impl Standby {
    /// Opens its stream; it has seen `newest` before.
    async fn open(node: &Node, needs: Needs, newest: u32) -> Self {
        let mut stream = node.open(pb::StreamStart { feedback_timeout: millis(0), ..from_slot("standby") }).await;
        stream.started().await;
        Self { stream, needs, newest }
    }

    /// Replays up to the end of the source, or until it has seen `newest`.
    async fn replay(&mut self, newest: u32) {
        while self.newest < newest {
            match self.stream.next().await.unwrap() {
                Kind::Batch(batch) => {
                    let records = raw_records(std::slice::from_ref(&batch));
                    self.newest = records.iter().map(|record| xid(&record.bytes)).fold(self.newest, u32::max);
                    let hot_standby = Some(self.needs.feedback(self.newest));
                    let end = batch.end_lsn;
                    let told = pb::Feedback {
                        received_lsn: end,
                        flushed_lsn: end,
                        applied_lsn: end,
                        hot_standby,
                        ..Default::default()
                    };
                    self.stream.feedback(told).await;
                }
                Kind::Keepalive(keepalive) if keepalive.end_of_source => return,
                _ => {}
            }
        }
    }
}

/// Plays the run with a standby to its end; stopped on the way at each of `stops`, xids that the standby has seen.
async fn play(heed: Option<bool>, needs: Needs, stops: &[u32]) -> (Vec<Vec<u8>>, Removed) {
    let mut data = tempfile::tempdir().unwrap();
    let config = config(data.path(), heed);
    let mut newest = 3;
    for (life, stop) in stops.iter().chain([&u32::MAX]).enumerate() {
        let node = Node::start(config.clone(), data).await;
        if life == 0 {
            node.create_slot("standby", 0).await;
        }
        let mut standby = Standby::open(&node, needs, newest).await;
        standby.replay(*stop).await;
        newest = standby.newest;
        data = node.stop().await;
    }
    let wal = data.path().join("wal");
    assert!(records(&wal).1.is_complete());
    let bytes = segments(&wal).iter().map(|path| std::fs::read(path).unwrap()).collect();
    (bytes, removed(&wal))
}

/// Rows that VACUUM removed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Removed {
    /// Of the table.
    table: u32,
    /// Of catalogs.
    catalogs: u32,
}

/// Rows that VACUUM removed.
fn removed(wal: &Path) -> Removed {
    let mut reader = pg_wal::WalReader::open(&pg_wal::WalDir::open(wal, None).unwrap(), None).unwrap();
    let (mut removed, profile) = (Removed::default(), reader.profile());
    while let Some(record) = reader.next().unwrap() {
        if let RecordBody::Prune(prune) = record.decode(profile).unwrap().body {
            let count = if prune.is_catalog { &mut removed.catalogs } else { &mut removed.table };
            *count += u32::from(prune.unused);
        }
    }
    removed
}

/// What is removed where nobody is heeded.
const ALL: Removed = Removed { table: 60, catalogs: 60 };

#[tokio::test]
async fn what_a_standby_needs_stays_until_it_says_otherwise() {
    let (unheeded, all) = play(None, Needs::Rows(1_000_000), &[]).await;
    assert_eq!(all, ALL, "on the virtual clock nobody is heeded unless it is asked for");
    let (bytes, removed) = play(Some(true), Needs::Rows(1_000_000), &[]).await;
    assert_eq!(removed, Removed::default(), "readers need everything from xid 3 on");
    assert_ne!(bytes, unheeded);
    let (lagging, removed) = play(Some(true), Needs::Rows(10), &[]).await;
    let most = |count: u32| (40..60).contains(&count);
    assert!(most(removed.table) && most(removed.catalogs), "{removed:?} of 60: the last rows are needed still");
    let (again, _) = play(Some(true), Needs::Rows(10), &[]).await;
    assert!(lagging == again, "in lock-step the same readers give the same bytes");
}

#[tokio::test]
async fn what_slots_of_a_standby_need_of_catalogs_stays_and_other_rows_go() {
    let (_, removed) = play(Some(true), Needs::Catalogs(1_000_000), &[]).await;
    assert_eq!(removed, Removed { catalogs: 0, ..ALL }, "decoders need no rows of users' tables");
    let (_, removed) = play(Some(true), Needs::Catalogs(10), &[]).await;
    assert!(removed.table == 60 && (40..60).contains(&removed.catalogs), "{removed:?}");
}

#[tokio::test]
async fn a_run_that_is_played_again_heeds_what_it_heeded() {
    for needs in [Needs::Rows(10), Needs::Catalogs(10)] {
        let (whole, _) = play(Some(true), needs, &[]).await;
        let first = 731;
        // The second one between two barriers.
        let (stopped, _) = play(Some(true), needs, &[first + 20, first + 60]).await;
        assert!(whole == stopped, "what was noted is done again");
    }
}

#[tokio::test]
async fn on_a_wall_clock_slots_are_always_heeded() {
    let data = tempfile::tempdir().unwrap();
    let mut config = config(data.path(), None);
    config.source.clock = ClockMode::Max;
    config.source.system_id = Some(4711);
    // What a standby told before it went stays with its slot.
    let identity = WalIdentity { version: PgVersion::V18, system_id: 4711, timeline: 1, segment_size: 1 << 20 };
    let start = pg_wal::writer::WriterConfig::new(4711).with_segment_size(1 << 20).start;
    let mut slot = SlotFile::new("standby", &identity, start, 1);
    slot.xmin = 3;
    Slots::open(data.path(), &identity, 1).unwrap().create(slot, Persistency::Persistent).unwrap();
    let node = Node::start(config, data).await;
    node.node.log().subscribe().wait_for(|log| log.closed).await.unwrap();
    let data = node.stop().await;
    assert_eq!(removed(&data.path().join("wal")), Removed::default());
}

#[tokio::test]
async fn heeding_without_a_slot_to_wait_for_is_refused_on_the_virtual_clock() {
    let data = tempfile::tempdir().unwrap();
    let mut alone = config(data.path(), Some(true));
    alone.source.wait_for_slots.clear();
    let error = PrimaryNode::start(alone).await.unwrap_err().to_string();
    assert!(error.contains("source.wait_for_slots") && error.contains("source.clock"), "{error}");
    let mut idle = config(data.path(), Some(true));
    idle.source = SourceConfig { wal_dir: Some(data.path().to_owned()), heed_slots: Some(true), ..SourceConfig::default() };
    let error = PrimaryNode::start(idle).await.unwrap_err().to_string();
    assert!(error.contains("source.heed_slots"), "{error}");
}
