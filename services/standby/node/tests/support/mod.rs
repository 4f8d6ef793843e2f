//! A primary that does what a test says, over WAL of a real server, and a standby that follows it.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "each test binary uses its part of these modules")]

pub mod scripted_primary;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pg_types::record::RunningXactsRecord;
use pg_types::{Lsn, RecordBody, WalIdentity, Xid};
use pg_wal::dir::WalDir;
use pg_wal::reader::WalReader;
use pg_wal::writer::{WalWriter, WriterConfig};
use service_kit::telemetry::Export;
use service_kit::{Drain, SystemClock};
use standby_node::{Config, Progress, StandbyNode};
use tonic::transport::Channel;
use walstorm_proto::standby::v1::standby_service_client::StandbyServiceClient;
use walstorm_proto::standby::v1::{TakeSnapshotRequest, TakeSnapshotResponse};

/// One record of a fixture.
#[derive(Clone, Debug)]
pub struct Record {
    pub lsn: Lsn,
    pub end_lsn: Lsn,
    pub bytes: Vec<u8>,
}

/// All of a fixture's WAL.
#[derive(Clone, Debug)]
pub struct Wal {
    pub identity: WalIdentity,
    pub records: Vec<Record>,
}

impl Wal {
    /// The WAL of `standby/VERSION`: a base backup's redo position first, then 12 busy sessions.
    pub fn standby(version: &str) -> Self {
        Self::unpack(&standby_fixture(version).join("wal.tar.zst"))
    }

    /// Reads the WAL in a compressed archive.
    fn unpack(archive: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let plain = zstd::Decoder::new(std::fs::File::open(archive).unwrap()).unwrap();
        tar::Archive::new(plain).unpack(dir.path()).unwrap();
        Self::read(dir.path())
    }

    /// WAL with these records, each with its xid.
    pub fn written(records: &[(u32, RecordBody)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = WalWriter::create(dir.path(), WriterConfig::new(1)).unwrap();
        for (xid, body) in records {
            writer.append(Xid(*xid), Xid::INVALID, 0, body).unwrap();
        }
        writer.finish().unwrap();
        Self::read(dir.path())
    }

    /// Reads the WAL in a directory.
    fn read(dir: &Path) -> Self {
        let wal = WalDir::open(dir, None).unwrap();
        let mut reader = WalReader::open(&wal, None).unwrap();
        let identity = reader.identity();
        let mut records = Vec::new();
        while let Some(r) = reader.next().unwrap() {
            records.push(Record { lsn: r.lsn, end_lsn: r.end_lsn, bytes: r.bytes.to_vec() });
        }
        Self { identity, records }
    }

    /// End of the last record.
    pub fn end(&self) -> Lsn {
        self.records.last().map_or(Lsn::INVALID, |r| r.end_lsn)
    }

    /// Only the records that start before `lsn`.
    pub fn before(mut self, lsn: Lsn) -> Self {
        self.records.retain(|r| r.lsn < lsn);
        self
    }

    /// Only the records from `lsn` on.
    pub fn from(mut self, lsn: Lsn) -> Self {
        self.records.retain(|r| r.lsn >= lsn);
        self
    }
}

/// The folder of a fixture with a real standby's states.
pub fn standby_fixture(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/fixtures/standby").join(version)
}

/// The settings under which the fixtures were made.
pub fn config(primary: &scripted_primary::ScriptedPrimary) -> Config {
    let mut config = Config { idle_compression: false, ..Config::default() };
    config.primary.endpoint = primary.endpoint();
    config.primary.backoff_min = std::time::Duration::from_millis(5);
    config.primary.backoff_max = std::time::Duration::from_millis(20);
    config.settings.max_connections = 40;
    config.settings.max_prepared_transactions = 10;
    config
}

/// Starts a standby without traces.
pub async fn start(config: Config) -> StandbyNode {
    StandbyNode::start_with(config, Export::Off, Arc::new(SystemClock::new()), Drain::new()).await.unwrap()
}

/// A connection to a server that listens on `address`.
pub async fn channel(address: impl std::fmt::Display) -> Channel {
    tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// A client of the standby.
pub async fn client(node: &StandbyNode) -> StandbyServiceClient<Channel> {
    StandbyServiceClient::new(channel(node.addr()).await)
}

/// Waits until replay is as `wanted`, or has stopped for good.
pub async fn wait_for(node: &StandbyNode, wanted: impl Fn(&Progress) -> bool) -> Progress {
    node.progress().wait_for(|p| wanted(p) || p.halt.is_some()).await.unwrap().clone()
}

/// A snapshot with its list, once `min_lsn` is replayed; without what is measured.
pub async fn snapshot(client: &mut StandbyServiceClient<Channel>, min_lsn: Lsn) -> TakeSnapshotResponse {
    let request = TakeSnapshotRequest { min_lsn: min_lsn.0, include_xip: true, max_xip: 0 };
    TakeSnapshotResponse { primary_silence: None, ..client.take_snapshot(request).await.unwrap().into_inner() }
}

/// A list of running transactions.
pub fn running_xacts(next: u32, oldest: u32, completed: u32, running: &[u32]) -> RecordBody {
    RecordBody::RunningXacts(Box::new(RunningXactsRecord {
        next_xid: Xid(next),
        oldest_running_xid: Xid(oldest),
        latest_completed_xid: Xid(completed),
        xids: running.iter().copied().map(Xid).collect(),
        ..RunningXactsRecord::default()
    }))
}

/// The end of a transaction.
pub fn commit(xid: u32) -> (u32, RecordBody) {
    (xid, RecordBody::Commit(Box::default()))
}
