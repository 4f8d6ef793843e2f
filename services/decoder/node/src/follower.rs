//! Follows the primary for the life of the node: one run after the other, each with its threads, from the checkpoint on.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use decoder_core::Decoder;
use pg_types::{Lsn, Oid, Xid};
use pg_wal::WalProfile;
use service_kit::Clock;
use service_kit::client::{Backoff, ConnectError};
use service_kit::telemetry::Tracer;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use walstorm_proto::primary::v1::StreamStarted;

use crate::checkpoint::Checkpoint;
use crate::config::{Checked, DecoderConfig};
use crate::costliest::Costliest;
use crate::error::{NodeError, Remedy};
use crate::flusher::{FlushQueue, Flusher};
use crate::output_log::OutputLog;
use crate::pipeline::{Arrival, Outlets, Pipeline};
use crate::received_ends::ReceivedEnds;
use crate::server::Serving;
use crate::sink::EventSink;
use crate::snapshots::FileSnapshots;
use crate::state::{NodeState, OutputProgress};
use crate::subscriptions::{SavedPositions, Subscriptions};
use crate::trace::TransactionSpans;
use crate::upstream::{Ended, Opened, Upstream};

/// Batches that wait for the decoding thread, at most; each is below 1 MiB but for one huge record.
const ARRIVALS: usize = 8;

/// Pauses between attempts after a failed run.
const RESTART_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// Runs something that blocks, off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NodeError> + Send + 'static,
) -> Result<T, NodeError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| NodeError::Internal(error.to_string()))?
}

/// Runs `work` on a thread of its own; gives its end.
fn on_thread(
    name: &str,
    work: impl FnOnce() -> Result<(), NodeError> + Send + 'static,
) -> Result<oneshot::Receiver<Result<(), NodeError>>, NodeError> {
    let (done, ended) = oneshot::channel();
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        // Nobody waiting any more is no error.
        drop(done.send(work()));
    });
    match spawned {
        Ok(_) => Ok(ended),
        Err(error) => Err(NodeError::Internal(format!("cannot start the thread {name}: {error}"))),
    }
}

/// The end of a thread.
async fn thread_end(ended: &mut oneshot::Receiver<Result<(), NodeError>>) -> Result<(), NodeError> {
    ended.await.unwrap_or_else(|_| Err(NodeError::Internal("a thread panicked; its message is on standard error".to_owned())))
}

/// Follows the primary for the life of the node.
pub(crate) struct Follower {
    /// Settings.
    pub(crate) config: DecoderConfig,
    /// What of them was checked.
    pub(crate) checked: Checked,
    /// The client's side of the stream.
    pub(crate) upstream: Upstream,
    /// Makes spans.
    pub(crate) tracer: Tracer,
    /// Time.
    pub(crate) clock: Arc<dyn Clock>,
    /// The node's state.
    pub(crate) state: watch::Sender<NodeState>,
    /// What subscribers watch.
    pub(crate) output: watch::Sender<OutputProgress>,
    /// The run at hand.
    pub(crate) serving: watch::Sender<Option<Arc<Serving>>>,
    /// The costliest transactions.
    pub(crate) costliest: Arc<Mutex<Costliest>>,
}

/// The threads of one run.
struct Run {
    /// To the decoding thread.
    arrivals: mpsc::Sender<Arrival>,
    /// What of it is not decoded yet.
    ahead: ReceivedEnds,
    /// The decoding thread's end.
    decoded: oneshot::Receiver<Result<(), NodeError>>,
    /// To the flusher.
    flusher: Arc<FlushQueue>,
    /// The flusher's end.
    flushed: oneshot::Receiver<Result<(), NodeError>>,
}

impl Follower {
    /// Runs until the node stops.
    pub(crate) async fn run(self) {
        let drain = self.upstream.drain.clone();
        let mut backoff = Backoff::new(RESTART_PAUSE.0, RESTART_PAUSE.1);
        loop {
            let Err(error) = self.run_once().await else { return };
            let halted = error.remedy() == Remedy::Halt;
            self.state.send_modify(|state| {
                state.connected = false;
                state.halted = halted;
                state.last_error = error.to_string();
                state.spill_limit = error.spill_limit();
            });
            // Whoever waits for output looks at the state again.
            self.output.send_modify(|_| ());
            if halted {
                tracing::error!(%error, "the decoder has stopped; it serves what it has decoded, and needs help to go on");
                drain.draining().await;
                return;
            }
            let pause = backoff.next_delay();
            tracing::warn!(%error, ?pause, "the decoder starts anew from its checkpoint");
            tokio::select! {
                () = drain.draining() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// One run: from the checkpoint until the node stops or something fails.
    async fn run_once(&self) -> Result<(), NodeError> {
        let path = self.config.data_dir.join("checkpoint");
        let loaded = blocking(move || Ok(Checkpoint::load(&path)?)).await?;
        let mut opened = None;
        let begun = loaded.is_some();
        let checkpoint = match loaded {
            Some(checkpoint) => self.check_settings(checkpoint)?,
            None => {
                let Some(first) = self.open(Lsn::INVALID, None).await? else { return Ok(()) };
                let checkpoint = self.first_checkpoint(&first.started)?;
                opened = Some(first);
                checkpoint
            }
        };
        let mut run = self.begin(checkpoint.clone(), begun).await?;
        let followed = tokio::select! {
            followed = self.follow(&checkpoint, opened, &run.arrivals, &run.ahead) => followed,
            flushed = thread_end(&mut run.flushed) => flushed.and(Err(NodeError::Internal("the flusher ended".to_owned()))),
        };
        self.state.send_modify(|state| state.connected = false);
        drop(run.arrivals);
        let decoded = thread_end(&mut run.decoded).await;
        run.flusher.close();
        let flushed = match &followed {
            Err(_) if run.flushed.is_terminated() => Ok(()),
            _ => thread_end(&mut run.flushed).await,
        };
        if followed.is_err() || decoded.is_err() || flushed.is_err() {
            // The cause first: an ended thread ends the others.
            decoded.and(flushed).and(followed)
        } else {
            Ok(())
        }
    }

    /// The checkpoint, if it fits the settings.
    fn check_settings(&self, checkpoint: Checkpoint) -> Result<Checkpoint, NodeError> {
        let data_dir = &self.config.data_dir;
        let changed = |name, found: String, expected: String| {
            Err(NodeError::Changed { name, found, expected, data_dir: data_dir.clone() })
        };
        if checkpoint.slot != self.config.slot {
            return changed("slot", self.config.slot.clone(), checkpoint.slot);
        }
        match self.checked.database {
            Some(database) if checkpoint.database != Oid::INVALID && database != checkpoint.database => {
                changed("database", database.0.to_string(), checkpoint.database.0.to_string())
            }
            _ => Ok(checkpoint),
        }
    }

    /// Where a node that has nothing begins.
    fn first_checkpoint(&self, started: &StreamStarted) -> Result<Checkpoint, NodeError> {
        let start = Lsn(started.start_lsn);
        let version = pg_types::PgVersion::ALL.into_iter().find(|version| version.major() == started.pg_version);
        Ok(Checkpoint {
            slot: self.config.slot.clone(),
            system_id: started.system_id,
            timeline: started.timeline,
            version: version.ok_or(NodeError::Version(started.pg_version))?,
            database: self.checked.database.unwrap_or(Oid::INVALID),
            consistent: false,
            restart_lsn: start,
            output_end: start,
            decoded_lsn: start,
            two_phase_at: Lsn::INVALID,
            catalog_xmin: Xid::INVALID,
        })
    }

    /// Opens log and positions, starts the threads and lets subscribers in.
    ///
    /// `begun`: the checkpoint is from the disk, so the log must be there.
    async fn begin(&self, checkpoint: Checkpoint, begun: bool) -> Result<Run, NodeError> {
        let data_dir = self.config.data_dir.clone();
        let log_config = self.checked.log.clone();
        let (system_id, restart) = (checkpoint.system_id, checkpoint.restart_lsn);
        let synced = begun.then_some(checkpoint.output_end);
        let positions_path = data_dir.join("positions");
        let saved_path = positions_path.clone();
        let snapshots_dir = data_dir.join("snapshots");
        let (folder, checkpoint_first) = (data_dir.clone(), checkpoint.clone());
        let (writer, log, saved, snapshots) = blocking(move || {
            let (writer, log) = OutputLog::open(log_config, system_id, restart, synced)?;
            let snapshots = FileSnapshots::open(snapshots_dir, begun)?;
            if !begun {
                if writer.end() != restart {
                    return Err(NodeError::NoCheckpoint { data_dir: folder });
                }
                // From now on the log is never without one.
                checkpoint_first.store(&folder.join("checkpoint"))?;
            }
            Ok((writer, log, SavedPositions::load(&saved_path, system_id)?, snapshots))
        })
        .await?;
        let open = writer.open_transactions().clone();
        if !self.checked.two_phase && !open.prepared.is_empty() {
            return Err(NodeError::StillPrepared { count: open.prepared.len(), data_dir });
        }
        let limits = &self.config.subscriptions;
        let subscriptions = Subscriptions::new(&saved, limits.streams_max, limits.names_max);
        let subscriptions = Arc::new(Mutex::new(subscriptions));
        self.state.send_modify(|state| {
            state.received_lsn = restart;
            state.decoded_lsn = checkpoint.decoded_lsn;
            state.output_end = writer.end();
            state.applied_lsn = checkpoint.decoded_lsn;
            state.flushed_lsn = restart;
            state.catalog_xmin = checkpoint.catalog_xmin;
            state.source_ended = false;
        });
        let queue = Arc::new(FlushQueue::default());
        let flusher = Flusher {
            queue: Arc::clone(&queue),
            log: Arc::clone(&log),
            snapshots: snapshots.clone(),
            subscriptions: Arc::clone(&subscriptions),
            state: self.state.clone(),
            checkpoint_path: data_dir.join("checkpoint"),
            positions_path,
            flush_interval: self.config.flush_interval,
            checkpoint_interval: self.config.checkpoint_interval,
            system_id,
        };
        let outlets = Outlets {
            state: self.state.clone(),
            output: self.output.clone(),
            flusher: Arc::clone(&queue),
            costliest: Arc::clone(&self.costliest),
            snapshots,
        };
        let serving = Serving {
            log,
            subscriptions,
            takeovers: Mutex::default(),
            over: CancellationToken::new(),
            system_id,
            timeline: checkpoint.timeline,
            version: checkpoint.version,
            in_progress: (self.checked.streaming || self.checked.two_phase) && Decoder::knows_before_commit(checkpoint.version),
        };
        let (arrivals, receiver) = mpsc::channel(ARRIVALS);
        let spans = TransactionSpans::new(self.tracer.clone(), Arc::clone(&self.clock), &self.checked.profile.name);
        let (checked, interval) = (self.checked.clone(), self.config.flush_interval);
        let ahead = ReceivedEnds::new(WalProfile::of(checkpoint.version));
        let received = ahead.clone();
        // What is in the log already is the end of output, even beyond the checkpoint: it is not given out again.
        let resumed = Checkpoint { output_end: writer.end(), ..checkpoint };
        let decoded = on_thread("decode", move || {
            let sink = EventSink::new(writer.end(), open, spans);
            Pipeline::new(checked, received, resumed, writer, sink, interval, outlets)?.run(receiver)
        })?;
        let flushed = on_thread("flush", move || flusher.run())?;
        if let Some(before) = self.serving.send_replace(Some(Arc::new(serving))) {
            before.over.cancel();
        }
        Ok(Run { arrivals, ahead, decoded, flusher: queue, flushed })
    }

    /// Opens the stream at `from` until it opens; `None` if the node stops before.
    async fn open(&self, from: Lsn, checkpoint: Option<&Checkpoint>) -> Result<Option<Opened>, NodeError> {
        let mut backoff = Backoff::new(self.config.primary.backoff_min, self.config.primary.backoff_max);
        loop {
            let error = match self.upstream.open(from, checkpoint.is_none()).await {
                Ok(opened) => return Ok(Some(opened)),
                Err(NodeError::Connect(ConnectError::Stopped { .. })) => return Ok(None),
                Err(error) => error,
            };
            if error.remedy() == Remedy::Halt {
                return Err(match checkpoint {
                    Some(checkpoint) => self.explain(error, checkpoint).await,
                    None => error,
                });
            }
            let pause = backoff.next_delay();
            tracing::warn!(%error, ?pause, "no stream from the primary");
            self.state.send_modify(|state| state.last_error = error.to_string());
            tokio::select! {
                () = self.upstream.drain.draining() => return Ok(None),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Why the primary refuses what it gave before. Of another cluster's WAL, slots and positions tell nothing: that is said first.
    async fn explain(&self, error: NodeError, checkpoint: &Checkpoint) -> NodeError {
        if let Some(info) = self.upstream.server_info().await
            && let Err(other) = self.check_wal(checkpoint, info.system_id, info.timeline, info.pg_version)
        {
            return other;
        }
        let NodeError::NoSlot { slot } = error else { return error };
        let (decoded, restart) = {
            let state = self.state.borrow();
            (state.applied_lsn, state.flushed_lsn)
        };
        NodeError::SlotGone { slot, data_dir: self.config.data_dir.clone(), decoded, restart }
    }

    /// Keeps the stream open until the node stops or something fails that is not the stream's loss.
    async fn follow(
        &self,
        checkpoint: &Checkpoint,
        mut opened: Option<Opened>,
        arrivals: &mpsc::Sender<Arrival>,
        ahead: &ReceivedEnds,
    ) -> Result<(), NodeError> {
        loop {
            let from = self.state.borrow().received_lsn;
            let stream = match opened.take() {
                Some(stream) => stream,
                None => match self.open(from, Some(checkpoint)).await? {
                    Some(stream) => stream,
                    None => return Ok(()),
                },
            };
            let started = &stream.started;
            self.check_wal(checkpoint, started.system_id, started.timeline, started.pg_version)?;
            tracing::info!(from = %Lsn(stream.started.start_lsn), primary = %self.config.primary.endpoint, "following");
            match self.upstream.follow(stream, arrivals, ahead).await {
                Ok(Ended::Stopped | Ended::DecoderGone) => return Ok(()),
                Err(error) if error.remedy() == Remedy::Halt => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "the stream from the primary is lost");
                    self.state.send_modify(|state| {
                        state.connected = false;
                        state.last_error = error.to_string();
                    });
                }
            }
        }
    }

    /// Whether the primary serves the WAL that this node decoded before.
    fn check_wal(&self, checkpoint: &Checkpoint, system_id: u64, timeline: u32, pg_version: u32) -> Result<(), NodeError> {
        let facts = [
            ("system id", checkpoint.system_id, system_id),
            ("timeline", checkpoint.timeline.into(), timeline.into()),
            ("major version", checkpoint.version.major().into(), pg_version.into()),
        ];
        match facts.into_iter().find(|(_, expected, found)| expected != found) {
            None => Ok(()),
            Some((what, expected, found)) => Err(NodeError::OtherWal {
                what,
                found: found.to_string(),
                expected: expected.to_string(),
                data_dir: self.config.data_dir.clone(),
            }),
        }
    }
}
