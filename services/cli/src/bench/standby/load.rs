//! The sessions that load a standby: each takes snapshots, scans catalogs or comes and leaves, one step after the other.
//!
//! A session is a stream of `OpenCatalogSession`, as a backend is a process. What a backend does on its own in one go is asked for in one
//! go, and then all answers are read: so a step's latency has one round trip in it, not one for each scan.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use pg_types::Oid;
use service_kit::client::describe;
use standby_core::catalog_session::startup;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval_at};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};
use walstorm_proto::standby::v1::open_catalog_session_request::Kind;
use walstorm_proto::standby::v1::standby_service_client::StandbyServiceClient;
use walstorm_proto::standby::v1::{
    CatalogScan, CatalogSnapshotRule, OpenCatalogSessionRequest, OpenCatalogSessionResponse, SessionConnect,
    SessionEndTransaction, SessionSnapshot, SessionStart,
};

use super::tally::{Counts, Tally};

/// Connections at most; more sessions share them.
const CONNECTIONS_MAX: u32 = 64;

/// What a session asks for at once, at most: requests that wait in its stream.
const ASKED_MAX: usize = 64;

/// What sessions do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// Each step is a transaction that takes its snapshot.
    Snapshots,
    /// Each step is a transaction that takes its snapshot and scans the catalogs of a session's start.
    CatalogScans,
    /// Each step is a session that starts, runs a statement and leaves.
    ConnectionStorm,
}

/// What all sessions are to do.
#[derive(Clone, Debug)]
pub struct Load {
    /// Where the standby is.
    pub endpoint: String,
    /// What they do.
    pub workload: Workload,
    /// When they keep a catalog snapshot.
    pub rule: CatalogSnapshotRule,
    /// Oid of their database.
    pub database: u32,
    /// How many.
    pub sessions: u32,
    /// Steps that they begin together in a second; none: each begins one when the last is done.
    pub rate: Option<u32>,
}

/// Sessions at work. They stop when this is dropped.
#[derive(Debug)]
pub struct Sessions {
    /// Steps that begin now are measured.
    measuring: Arc<AtomicBool>,
    /// Ends them.
    stop: CancellationToken,
    /// Each gives what it did.
    tasks: JoinSet<anyhow::Result<Tally>>,
}

impl Sessions {
    /// Starts them; nothing is measured yet.
    ///
    /// # Errors
    /// No connection.
    pub async fn start(load: &Load) -> anyhow::Result<Self> {
        let (measuring, stop) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
        let mut channels = Vec::new();
        for _ in 0..load.sessions.min(CONNECTIONS_MAX) {
            let endpoint = Endpoint::from_shared(load.endpoint.clone())?.tcp_nodelay(true);
            channels.push(endpoint.connect().await.with_context(|| format!("connect to the standby at {}", load.endpoint))?);
        }
        let mut tasks = JoinSet::new();
        for (n, channel) in (0..load.sessions).zip(channels.iter().cycle()) {
            let session = Session {
                client: StandbyServiceClient::new(channel.clone()),
                load: load.clone(),
                pace: load.rate.map(|rate| pace(n, load.sessions, rate)),
                measuring: Arc::clone(&measuring),
                stop: stop.clone(),
                open: None,
            };
            tasks.spawn(session.run());
        }
        Ok(Self { measuring, stop, tasks })
    }

    /// Measures from now on.
    pub fn measure(&self) {
        self.measuring.store(true, Ordering::Relaxed);
    }

    /// Measures no more; gives what all did.
    ///
    /// # Errors
    /// A session panicked.
    pub async fn finish(mut self) -> anyhow::Result<Tally> {
        self.measuring.store(false, Ordering::Relaxed);
        self.stop.cancel();
        let mut all = Tally::new()?;
        while let Some(session) = self.tasks.join_next().await {
            all.merge(session.context("a session of the load")??)?;
        }
        Ok(all)
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// When session `n` of `sessions` begins its steps, so that all begin `rate` a second, evenly. One that is late makes up for it, and the
/// wait counts as latency.
fn pace(n: u32, sessions: u32, rate: u32) -> Interval {
    let period = Duration::from_secs_f64(f64::from(sessions) / f64::from(rate.max(1)));
    let mut ticks = interval_at(tokio::time::Instant::now() + period.mul_f64(f64::from(n) / f64::from(sessions)), period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    ticks
}

/// A session that is open.
#[derive(Debug)]
struct Open {
    /// Towards the standby.
    requests: mpsc::Sender<OpenCatalogSessionRequest>,
    /// From it.
    responses: Streaming<OpenCatalogSessionResponse>,
}

/// One client.
#[derive(Debug)]
struct Session {
    /// The standby.
    client: StandbyServiceClient<Channel>,
    /// What to do.
    load: Load,
    /// When; none: at once.
    pace: Option<Interval>,
    /// Steps that begin now are measured.
    measuring: Arc<AtomicBool>,
    /// Ends it.
    stop: CancellationToken,
    /// The session that goes on from step to step.
    open: Option<Open>,
}

impl Session {
    /// Does steps until it is stopped.
    async fn run(mut self) -> anyhow::Result<Tally> {
        let mut tally = Tally::new()?;
        let stop = self.stop.clone();
        loop {
            let begun = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(tally),
                begun = next(self.pace.as_mut()) => begun,
            };
            let measured = self.measuring.load(Ordering::Relaxed);
            let step = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(tally),
                step = self.step() => step,
            };
            match step {
                Ok(counts) if measured => tally.done(begun.elapsed(), &counts),
                Ok(_) => {}
                Err(status) => {
                    self.open = None;
                    tally.failed(describe(&status));
                    // A standby that refuses everything is not asked without end.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    /// One step.
    async fn step(&mut self) -> Result<Counts, Status> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.begin().await?,
        };
        let asked = steps(self.load.workload, self.load.database);
        let counts = open.ask(asked).await?;
        if self.load.workload != Workload::ConnectionStorm {
            self.open = Some(open);
        }
        Ok(counts)
    }

    /// Opens a session; one that goes on is connected to its database, which is no step.
    async fn begin(&mut self) -> Result<Open, Status> {
        let (requests, receiver) = mpsc::channel(ASKED_MAX);
        let start = Kind::Start(SessionStart { rule: self.load.rule.into(), busy: false });
        // The stream has room, and its other end is here.
        let _ = requests.send(OpenCatalogSessionRequest { kind: Some(start) }).await;
        let responses = self.client.open_catalog_session(ReceiverStream::new(receiver)).await?.into_inner();
        let mut open = Open { requests, responses };
        open.answer().await?;
        if self.load.workload != Workload::ConnectionStorm {
            open.ask(vec![Kind::Connect(SessionConnect { database: self.load.database })]).await?;
        }
        Ok(open)
    }
}

impl Open {
    /// Asks for all of it at once, and reads the answers.
    async fn ask(&mut self, asked: Vec<Kind>) -> Result<Counts, Status> {
        let mut counts = Counts::default();
        let answers = asked.len();
        for kind in asked {
            counts.scans += if let Kind::Scan(scan) = &kind { u64::from(scan.scans) } else { 0 };
            // If the stream is gone, the answer says why.
            let _ = self.requests.send(OpenCatalogSessionRequest { kind: Some(kind) }).await;
        }
        for _ in 0..answers {
            counts.add(&self.answer().await?);
        }
        Ok(counts)
    }

    /// The next answer.
    async fn answer(&mut self) -> Result<OpenCatalogSessionResponse, Status> {
        let answer = self.responses.message().await?;
        answer.ok_or_else(|| Status::unavailable("the standby ended the session without a reason"))
    }
}

/// When the next step begins: the time it is due, or now.
async fn next(pace: Option<&mut Interval>) -> Instant {
    match pace {
        Some(ticks) => ticks.tick().await.into_std(),
        None => Instant::now(),
    }
}

/// What a step asks for.
fn steps(workload: Workload, database: u32) -> Vec<Kind> {
    let scan = |(relation, scans): (Oid, u32)| Kind::Scan(CatalogScan { relation: relation.0, scans });
    let snapshot = Kind::Snapshot(SessionSnapshot {});
    let end = Kind::EndTransaction(SessionEndTransaction {});
    match workload {
        Workload::Snapshots => vec![snapshot],
        Workload::CatalogScans => {
            let scans = startup::CONNECTED.map(scan);
            std::iter::once(snapshot).chain(scans).chain([end]).collect()
        }
        Workload::ConnectionStorm => {
            let connect = Kind::Connect(SessionConnect { database });
            let start = startup::UNCONNECTED.map(scan).into_iter().chain([connect]).chain(startup::CONNECTED.map(scan));
            start.chain([snapshot, end]).collect()
        }
    }
}
