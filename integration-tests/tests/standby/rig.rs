//! A primary over a copy of a scenario's WAL that grows when it is told to, and a standby that follows it. So a test stops the standby
//! at any record and asks over gRPC.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use pg_types::Lsn;
use pg_wal::WalDir;
use primary_node::{PrimaryConfig, PrimaryNode};
use standby_node::config::SizeSettings;
use standby_node::{Config, Progress, StandbyNode};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use walstorm_proto::standby::v1::hold_snapshot_request::Kind as Hold;
use walstorm_proto::standby::v1::hold_snapshot_response::Kind as Held;
use walstorm_proto::standby::v1::open_catalog_session_request::Kind as Act;
use walstorm_proto::standby::v1::standby_service_client::StandbyServiceClient;
use walstorm_proto::standby::v1::{
    CatalogScan, CatalogSnapshotRule, CheckVisibility, HoldSnapshotRequest, HoldSnapshotResponse, HoldStart, LockRelation,
    OpenCatalogSessionRequest, OpenCatalogSessionResponse, SessionConnect, SessionStart, TakeSnapshotRequest,
    TakeSnapshotResponse, VisibilityResult,
};

use crate::played::Played;

/// Database of all sessions: that of a scenario's tables.
pub(crate) const DATABASE: u32 = 5;

/// Both nodes.
pub(crate) struct Rig {
    /// Starts of the segments, and where they are, whole.
    segments: Vec<(Lsn, PathBuf)>,
    /// The folder that is served.
    served: TempDir,
    /// What the primary keeps; it goes with the test.
    _data: TempDir,
    /// It is served up to here.
    grown: Lsn,
    /// Serves the folder.
    primary: PrimaryNode,
    /// Follows it.
    pub(crate) standby: StandbyNode,
    /// Asks the standby.
    pub(crate) client: StandbyServiceClient<Channel>,
}

impl Rig {
    /// Starts both; served is the first record alone. `change` sets the standby up.
    pub(crate) async fn start(played: &Played, change: impl FnOnce(&mut Config)) -> Self {
        let dir = WalDir::open(played.log.dir(), None).unwrap();
        let segments: Vec<_> = dir.segments().map(|(start, segment)| (start, segment.path.clone())).collect();
        let (served, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        copy(&segments, served.path(), Lsn(0), played.records[0].end_lsn);

        let mut config = PrimaryConfig { data_dir: data.path().to_owned(), ..PrimaryConfig::default() };
        config.source.wal_dir = Some(served.path().to_owned());
        (config.source.follow, config.source.follow_interval) = (true, Duration::from_millis(2));
        config.server.listen = "127.0.0.1:0".to_owned();
        config.server.grace = Duration::from_millis(100);
        let primary = PrimaryNode::start(config).await.unwrap();

        let size = played.settings();
        let settings = SizeSettings {
            max_connections: size.max_connections,
            max_prepared_transactions: size.max_prepared_transactions,
            ..SizeSettings::default()
        };
        let mut config = Config { settings, idle_compression: false, ..Config::default() };
        config.primary.endpoint = format!("http://{}", primary.addr());
        change(&mut config);
        let standby = StandbyNode::start(config).await.unwrap();
        let client = StandbyServiceClient::new(channel(&standby).await);
        Self { segments, served, _data: data, grown: played.records[0].end_lsn, primary, standby, client }
    }

    /// Serves everything before `lsn`, the end of a record, and waits until the standby has replayed it.
    pub(crate) async fn grow(&mut self, lsn: Lsn) -> Progress {
        copy(&self.segments, self.served.path(), self.grown, lsn);
        self.grown = self.grown.max(lsn);
        let mut progress = self.standby.progress();
        let reached = progress.wait_for(|p| p.replay_lsn >= lsn || p.halt.is_some()).await.unwrap().clone();
        assert_eq!((reached.replay_lsn, &reached.halt), (lsn, &None));
        reached
    }

    /// A snapshot with its list, now.
    pub(crate) async fn snapshot(&mut self) -> Result<TakeSnapshotResponse, Status> {
        let request = TakeSnapshotRequest { include_xip: true, ..TakeSnapshotRequest::default() };
        Ok(self.client.take_snapshot(request).await?.into_inner())
    }

    /// Stops both.
    pub(crate) async fn stop(self) {
        self.standby.shutdown().await.unwrap();
        self.primary.shutdown().await.unwrap();
    }
}

/// A connection to the standby.
pub(crate) async fn channel(standby: &StandbyNode) -> Channel {
    Channel::from_shared(format!("http://{}", standby.addr())).unwrap().connect().await.unwrap()
}

/// Copies what lies from one position to another; what is not copied of a segment is zeroes.
fn copy(segments: &[(Lsn, PathBuf)], to: &std::path::Path, from_lsn: Lsn, to_lsn: Lsn) {
    for (start, path) in segments {
        let length = std::fs::metadata(path).unwrap().len();
        let range = from_lsn.0.max(start.0)..to_lsn.0.min(start.0 + length);
        if range.is_empty() {
            continue;
        }
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
        File::open(path).unwrap().read_exact_at(&mut bytes, range.start - start.0).unwrap();
        let target = to.join(path.file_name().unwrap());
        let file = File::options().write(true).create(true).truncate(false).open(target).unwrap();
        file.set_len(length).unwrap();
        file.write_all_at(&bytes, range.start - start.0).unwrap();
    }
}

/// A backend that reads catalogs.
pub(crate) struct Session {
    requests: mpsc::Sender<OpenCatalogSessionRequest>,
    responses: Streaming<OpenCatalogSessionResponse>,
}

impl Session {
    /// One that is not connected to a database yet.
    pub(crate) async fn open(
        mut client: StandbyServiceClient<Channel>,
        rule: CatalogSnapshotRule,
        busy: bool,
    ) -> Result<Self, Status> {
        let (requests, receiver) = mpsc::channel(4);
        let start = SessionStart { rule: rule.into(), busy };
        requests.send(OpenCatalogSessionRequest { kind: Some(Act::Start(start)) }).await.unwrap();
        let responses = client.open_catalog_session(ReceiverStream::new(receiver)).await?.into_inner();
        let mut session = Self { requests, responses };
        session.answer().await?;
        Ok(session)
    }

    /// The next answer.
    async fn answer(&mut self) -> Result<OpenCatalogSessionResponse, Status> {
        Ok(self.responses.message().await?.expect("the server ended the session"))
    }

    /// Does something; gives the answer.
    pub(crate) async fn act(&mut self, kind: Act) -> OpenCatalogSessionResponse {
        self.requests.send(OpenCatalogSessionRequest { kind: Some(kind) }).await.unwrap();
        self.answer().await.unwrap()
    }

    /// A scan that may be refused.
    pub(crate) async fn try_scan(&mut self, relation: u32) -> Result<OpenCatalogSessionResponse, Status> {
        let scan = Act::Scan(CatalogScan { relation, scans: 1 });
        self.requests.send(OpenCatalogSessionRequest { kind: Some(scan) }).await.unwrap();
        self.answer().await
    }

    /// The database becomes known.
    pub(crate) async fn connect(&mut self) {
        self.act(Act::Connect(SessionConnect { database: DATABASE })).await;
    }

    /// So many scans of a catalog, together.
    pub(crate) async fn scan(&mut self, relation: u32, scans: u32) -> OpenCatalogSessionResponse {
        self.act(Act::Scan(CatalogScan { relation, scans })).await
    }
}

/// A reader that holds its snapshot.
pub(crate) struct Reader {
    requests: mpsc::Sender<HoldSnapshotRequest>,
    responses: Streaming<HoldSnapshotResponse>,
    /// The snapshot.
    pub(crate) snapshot: TakeSnapshotResponse,
}

impl Reader {
    /// Takes a snapshot in the sessions' database.
    pub(crate) async fn start(mut client: StandbyServiceClient<Channel>) -> Result<Self, Status> {
        let (requests, receiver) = mpsc::channel(4);
        let snapshot = TakeSnapshotRequest { include_xip: true, ..TakeSnapshotRequest::default() };
        let start = HoldStart { snapshot: Some(snapshot), database: DATABASE };
        requests.send(HoldSnapshotRequest { kind: Some(Hold::Start(start)) }).await.unwrap();
        let mut responses = client.hold_snapshot(ReceiverStream::new(receiver)).await?.into_inner();
        match responses.message().await?.and_then(|response| response.kind) {
            Some(Held::Snapshot(snapshot)) => Ok(Self { requests, responses, snapshot }),
            other => panic!("{other:?}"),
        }
    }

    /// Sends a message; gives the answer.
    pub(crate) async fn ask(&mut self, kind: Hold) -> Result<Held, Status> {
        self.requests.send(HoldSnapshotRequest { kind: Some(kind) }).await.unwrap();
        Ok(self.responses.message().await?.and_then(|response| response.kind).expect("the server ended the reader"))
    }

    /// What runs for the snapshot.
    pub(crate) async fn check(&mut self, xids: Vec<u32>) -> VisibilityResult {
        match self.ask(Hold::Check(CheckVisibility { xids })).await.unwrap() {
            Held::Visibility(result) => result,
            other => panic!("{other:?}"),
        }
    }

    /// Whether a relation can be locked.
    pub(crate) async fn lock(&mut self, relation: u32) -> bool {
        match self.ask(Hold::Lock(LockRelation { relation, shared: false })).await.unwrap() {
            Held::Lock(result) => result.granted,
            other => panic!("{other:?}"),
        }
    }
}
