//! A consumer that follows the contract of `StreamWal`, on a simulated network, and dies at any moment: it stores records in order,
//! acknowledges what it has stored, and begins again where it has to.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use pg_types::Lsn;
use service_kit::status::{Reason, reason_of};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};
use turmoil::net::TcpStream;
use walstorm_proto::admin::v1::CreateSlotRequest;
use walstorm_proto::admin::v1::admin_service_client::AdminServiceClient;
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::primary::v1::primary_service_client::PrimaryServiceClient;

use pb::stream_wal_request::Kind as RequestKind;
use pb::stream_wal_response::Kind;

use super::PORT;
use super::world::{Record, Rng, World};

/// Runs consumer `id` until it is killed.
pub(crate) async fn run(world: Rc<World>, id: usize) -> turmoil::Result {
    let starts = {
        let mut disk = world.disks[id].borrow_mut();
        disk.starts += 1;
        disk.starts
    };
    let mut rng = Rng::new(world.seed, 100 + 1000 * id as u64 + starts);
    world.note(&format!("consumer {id} starts"));
    loop {
        let ended = Session::open(&world, id, &mut rng).await;
        let ended = match ended {
            Ok(Some(mut session)) => session.run(&mut rng).await,
            Ok(None) => Ok(()),
            Err(status) => Err(status),
        };
        if let Err(status) = ended {
            world.judge(id, &status);
        }
        tokio::time::sleep(rng.millis(10, if world.calm.get() { 100 } else { 800 })).await;
    }
}

/// A new connection, made when it is first used.
pub(crate) fn channel() -> Channel {
    let connect = |_| async { TcpStream::connect(("primary", PORT)).await.map(TokioIo::new) };
    Endpoint::from_static("http://primary:5500")
        .http2_keep_alive_interval(Duration::from_millis(700))
        .keep_alive_timeout(Duration::from_millis(700))
        .keep_alive_while_idle(true)
        .connect_with_connector_lazy(tower::service_fn(connect))
}

/// What is not stored yet of a group of batches that count as one: a record's fragments, or one batch.
#[derive(Debug, Default)]
struct Fragments {
    /// Start and end of the record.
    place: Option<(u64, u64)>,
    /// Its bytes so far.
    bytes: Vec<u8>,
}

/// One stream.
struct Session {
    /// Everything that survives.
    world: Rc<World>,
    /// Which consumer.
    id: usize,
    /// Upstream.
    requests: mpsc::Sender<pb::StreamWalRequest>,
    /// Downstream.
    responses: Streaming<pb::StreamWalResponse>,
    /// Credit in bytes and in batches.
    credit: (u64, usize),
    /// Received and not stored: lost if it dies.
    buffer: Vec<Record>,
    /// A record that is not whole yet.
    fragments: Fragments,
    /// End and bytes of the groups that were received and not acknowledged.
    unacknowledged: VecDeque<(u64, u64)>,
    /// Everything before was received.
    received: u64,
    /// Acknowledged last.
    acknowledged: u64,
}

impl Session {
    /// Opens a stream and waits for its start. Nothing if it grew impatient: the stream may still begin, unread, after the next.
    async fn open(world: &Rc<World>, id: usize, rng: &mut Rng) -> Result<Option<Self>, Status> {
        let channel = channel();
        let patience = rng.millis(if world.calm.get() { 5_000 } else { 100 }, 5_000);
        if !world.disks[id].borrow().has_slot {
            make_slot(world, id, channel.clone(), patience).await?;
        }
        let credit = (rng.between(1, 60_000), rng.between(1, 8) as usize);
        // The slot's position, or its own, which may be further.
        let from_lsn = if rng.once_in(2) { 0 } else { world.disks[id].borrow().position };
        let start = pb::StreamStart {
            slot: format!("slots/consumer_{id}"),
            from_lsn,
            max_outstanding_bytes: credit.0 as i64,
            max_outstanding_batches: credit.1 as i32,
            client_id: format!("consumer {id}"),
            keepalive_interval: Some(prost_types::Duration { seconds: 0, nanos: 900_000_000 }),
            feedback_timeout: Some(prost_types::Duration { seconds: rng.between(1, 4) as i64, nanos: 0 }),
            ..pb::StreamStart::default()
        };
        let (requests, receiver) = mpsc::channel(64);
        let _ = requests.send(pb::StreamWalRequest { kind: Some(RequestKind::Start(start)) }).await;
        let mut client = PrimaryServiceClient::new(channel);
        let opening = async move {
            let mut responses = client.stream_wal(ReceiverStream::new(receiver)).await?.into_inner();
            let first = responses.message().await?;
            Ok::<_, Status>((responses, first))
        };
        let mut opening = Box::pin(opening);
        let Ok(opened) = tokio::time::timeout(patience, &mut opening).await else {
            world.note(&format!("consumer {id} gives up waiting"));
            let lifetime = rng.millis(500, 8_000);
            let world = Rc::clone(world);
            tokio::task::spawn_local(tokio::time::timeout(lifetime, async move {
                let unread = async {
                    let (mut responses, _) = opening.await?;
                    while responses.message().await?.is_some() {}
                    Ok(())
                };
                if let Err(status) = unread.await {
                    world.judge(id, &status);
                }
                drop(requests);
            }));
            return Ok(None);
        };
        let (responses, first) = opened?;
        let Some(Kind::Started(started)) = first.and_then(|f| f.kind) else {
            world.violated(&format!("consumer {id}: a stream began without its start"));
            return Ok(None);
        };
        world.note(&format!("consumer {id} reads from {}", Lsn(started.start_lsn)));
        let session = Self {
            world: Rc::clone(world),
            id,
            requests,
            responses,
            credit,
            buffer: Vec::new(),
            fragments: Fragments::default(),
            unacknowledged: VecDeque::new(),
            received: 0,
            acknowledged: 0,
        };
        Ok(Some(session))
    }

    /// Receives, stores, acknowledges, until the stream ends.
    async fn run(&mut self, rng: &mut Rng) -> Result<(), Status> {
        loop {
            let calm = self.world.calm.get();
            let pause = rng.millis(20, if calm { 100 } else { 2_000 });
            let message = match tokio::time::timeout(pause, self.responses.message()).await {
                Ok(message) => message?,
                Err(_) => {
                    self.acknowledge(rng).await;
                    continue;
                }
            };
            match message.and_then(|m| m.kind) {
                None => return Ok(()),
                Some(Kind::Batch(batch)) => {
                    self.take(&batch);
                    if !calm && rng.once_in(60) {
                        self.world.note(&format!("consumer {} leaves", self.id));
                        return Ok(());
                    }
                    if rng.once_in(3) {
                        self.acknowledge(rng).await;
                    }
                }
                Some(Kind::Keepalive(keepalive)) => {
                    // Whoever has everything may confirm what held nothing for it.
                    if self.fragments.place.is_none() {
                        self.received = self.received.max(keepalive.progress_lsn);
                    }
                    if calm || !rng.once_in(4) {
                        self.acknowledge(rng).await;
                    }
                }
                Some(Kind::Draining(_)) => self.acknowledge(rng).await,
                Some(Kind::Started(_)) => self.world.violated("a stream began twice"),
            }
        }
    }

    /// Takes a batch: its records must be those of the log that come next, or ones that are here already.
    fn take(&mut self, batch: &pb::WalBatch) {
        let Some(pb::wal_batch::Body::Raw(raw)) = &batch.body else {
            return self.world.violated("a batch is not raw");
        };
        if self.fragments.place.is_none() {
            let bytes: u64 = self.unacknowledged.iter().map(|(_, bytes)| bytes).sum();
            let groups = self.unacknowledged.len();
            if groups > 0 && (bytes >= self.credit.0 || groups >= self.credit.1) {
                let (id, credit) = (self.id, self.credit);
                self.world.violated(&format!("consumer {id} has {bytes} bytes in {groups} batches, its credit is {credit:?}"));
            }
        }
        if batch.fragment || self.fragments.place.is_some() {
            self.fragments.place = Some((batch.start_lsn, batch.end_lsn));
            self.fragments.bytes.extend_from_slice(&raw.records);
            if batch.fragment {
                return;
            }
            let Fragments { bytes, .. } = std::mem::take(&mut self.fragments);
            self.take_record(Record { lsn: batch.start_lsn, end: batch.end_lsn, crc: crc32c::crc32c(&bytes) });
            self.unacknowledged.push_back((batch.end_lsn, bytes.len() as u64));
        } else {
            for (i, offset) in raw.offsets.iter().enumerate() {
                let to = raw.offsets.get(i + 1).map_or(raw.records.len(), |next| *next as usize);
                self.take_record(Record {
                    lsn: batch.start_lsn + u64::from(raw.lsn_offsets[i]),
                    end: batch.start_lsn + u64::from(raw.end_lsn_offsets[i]),
                    crc: crc32c::crc32c(&raw.records[*offset as usize..to]),
                });
            }
            self.unacknowledged.push_back((batch.end_lsn, raw.records.len() as u64));
        }
        self.received = self.received.max(batch.end_lsn);
        self.world.note(&format!("consumer {} has {}", self.id, Lsn(self.received)));
    }

    /// Takes a record.
    fn take_record(&mut self, record: Record) {
        let next = self.world.disks[self.id].borrow().records.len() + self.buffer.len();
        let log = self.world.log.borrow();
        if log.get(next) == Some(&record) {
            self.buffer.push(record);
            return;
        }
        // At least once: what is here comes again after a reconnection.
        let known = log[..next.min(log.len())].binary_search_by_key(&record.lsn, |r| r.lsn);
        if known.ok().and_then(|i| log.get(i)) != Some(&record) {
            let (id, expected) = (self.id, log.get(next));
            self.world
                .violated(&format!("consumer {id} got {record:?} where the log has {expected:?}: lost, or not of the log"));
        }
    }

    /// Stores what was received, then says so.
    async fn acknowledge(&mut self, rng: &mut Rng) {
        if self.world.acknowledge_early {
            // The defect: what is acknowledged here is lost if it dies before it is stored.
            self.send_feedback(self.received).await;
            tokio::time::sleep(rng.millis(0, 500)).await;
        }
        let position = {
            let mut disk = self.world.disks[self.id].borrow_mut();
            disk.records.append(&mut self.buffer);
            disk.position = disk.position.max(self.received);
            disk.position
        };
        // Only what this stream has sent may be acknowledged on it.
        let flushed = position.min(self.received);
        if !self.world.calm.get() && rng.once_in(5) {
            // Stored, and the acknowledgement is late or never comes.
            return;
        }
        self.send_feedback(flushed).await;
    }

    /// Acknowledges.
    async fn send_feedback(&mut self, flushed: u64) {
        if flushed < self.acknowledged {
            return;
        }
        self.acknowledged = flushed;
        while self.unacknowledged.front().is_some_and(|(end, _)| *end <= flushed) {
            self.unacknowledged.pop_front();
        }
        let feedback = pb::Feedback { received_lsn: self.received, flushed_lsn: flushed, ..pb::Feedback::default() };
        // If the stream has ended, its responses tell.
        let _ = self.requests.try_send(pb::StreamWalRequest { kind: Some(RequestKind::Feedback(feedback)) });
    }
}

/// Makes the consumer's slot, unless it is there.
async fn make_slot(world: &World, id: usize, channel: Channel, patience: Duration) -> Result<(), Status> {
    let request = CreateSlotRequest {
        slot_id: format!("consumer_{id}"),
        start_lsn: world.log.borrow()[0].lsn,
        ..CreateSlotRequest::default()
    };
    let mut client = AdminServiceClient::new(channel);
    let made = tokio::time::timeout(patience, client.create_slot(request)).await;
    match made.unwrap_or_else(|_| Err(Status::unavailable("no answer"))) {
        Ok(_) => {}
        // The answer to an earlier call was lost.
        Err(status) if reason_of(&status) == Some(Reason::SlotExists) => {}
        Err(status) => return Err(status),
    }
    world.disks[id].borrow_mut().has_slot = true;
    Ok(())
}
