//! kill -9 while large transactions are written out or given out in blocks: WAL comes to the node a few kilobytes at a time, so that it is
//! killed in the middle of them wherever the test wants.

use std::net::SocketAddr;
use std::path::Path;

use pg_types::Lsn;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use walstorm_proto::decoder::v1 as pb;
use walstorm_proto::decoder::v1::decoder_service_client::DecoderServiceClient;

use super::mixed::mixed;
use super::support::{Item, Subscription, any, assert_same, connect, expected, primary_with, start};
use super::{Program, command};

/// Bytes that pass at a time.
pub(super) const STEP: u64 = 4096;

/// Stands before the primary, and lets only so many bytes pass to the node.
pub(super) struct Sluice {
    pub(super) addr: SocketAddr,
    /// Bytes that may pass in each connection.
    pub(super) allowed: watch::Sender<u64>,
    task: tokio::task::JoinHandle<()>,
}

impl Sluice {
    pub(super) async fn start(primary: SocketAddr) -> Self {
        let listener = TcpListener::bind(any()).await.unwrap();
        let (addr, allowed) = (listener.local_addr().unwrap(), watch::Sender::new(0));
        let seen = allowed.subscribe();
        let task = tokio::spawn(async move {
            let mut copies = tokio::task::JoinSet::new();
            while let Ok((node, _)) = listener.accept().await {
                let (mut from_node, mut to_node) = node.into_split();
                let (mut from_primary, mut to_primary) = TcpStream::connect(primary).await.unwrap().into_split();
                copies.spawn(async move { drop(tokio::io::copy(&mut from_node, &mut to_primary).await) });
                let mut seen = seen.clone();
                copies.spawn(async move {
                    let (mut passed, mut buffer) = (0, vec![0; STEP as usize]);
                    while seen.wait_for(|allowed| *allowed > passed).await.is_ok() {
                        let Ok(n @ 1..) = from_primary.read(&mut buffer).await else { return };
                        if to_node.write_all(&buffer[..n]).await.is_err() {
                            return;
                        }
                        passed += n as u64;
                    }
                });
            }
        });
        Self { addr, allowed, task }
    }
}

impl Drop for Sluice {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Who has read so far, and goes on in each round where he was.
struct Reader {
    start: pb::SubscribeStart,
    items: Vec<Item>,
    /// What he has prepared, and his position.
    last: Option<Subscription>,
}

impl Reader {
    fn new(delivery: pb::Delivery) -> Self {
        Self { start: pb::SubscribeStart { delivery: delivery.into(), ..start() }, items: Vec::new(), last: None }
    }

    /// Subscribes again behind everything that was read.
    async fn again(&mut self, program: &Program) -> Subscription {
        let position = self.last.as_ref().map_or(Lsn::INVALID, |last| last.position);
        let from = pb::SubscribeStart { from_lsn: position.0, ..self.start.clone() };
        let (mut subscription, _) = Subscription::open_when_ready(program.addr, from).await;
        if let Some(last) = self.last.take() {
            subscription.go_on_for(last);
        }
        subscription
    }

    /// Keeps what was read.
    fn stop(&mut self, mut subscription: Subscription) {
        self.items.append(&mut subscription.items);
        self.last = Some(subscription);
    }
}

/// Takes what is there.
async fn take_some(subscription: &mut Subscription) {
    while let Ok(kind) = tokio::time::timeout(std::time::Duration::from_millis(1), subscription.next()).await {
        subscription.take(kind.unwrap().expect("the server ended the stream"));
        subscription.flush(subscription.position, false).await;
    }
}

/// Kills a node so many times on its way through the WAL.
async fn killed(settings: &[&str], kills: u64, wal: &Path, blocks: bool) {
    let (items, end) = expected(wal);
    let data = tempfile::tempdir().unwrap();
    let primary = primary_with(wal, &data.path().join("primary"), any(), |config| config.streams.batch_bytes = 4 << 10).await;
    let begin = items[0].end_lsn.0;
    let mut readers = vec![Reader::new(pb::Delivery::OnCommit)];
    readers.extend(blocks.then(|| Reader::new(pb::Delivery::InProgress)));
    for round in 1..=kills {
        let sluice = Sluice::start(primary.addr()).await;
        let mut command = command(&data.path().join("decoder"), sluice.addr);
        command.args(["--profile", "pg17"]).args(settings).env("WALSTORM_DECODER__WORK_MEM", "64kB");
        let mut program = Program::start(command);
        let mut client = DecoderServiceClient::new(connect(program.addr).await);
        // A part of the way, and another part of the bytes between two batches each time.
        let target = begin + (end.0 - begin) * round / (kills + 1);
        let mut subscriptions = Vec::new();
        loop {
            sluice.allowed.send_modify(|allowed| *allowed += STEP + round * 97);
            let state = client.get_decoder_state(pb::GetDecoderStateRequest {}).await.unwrap().into_inner();
            assert_eq!(state.last_reason, "", "{}", state.last_error);
            if subscriptions.is_empty() && state.connected {
                for reader in &mut readers {
                    subscriptions.push(reader.again(&program).await);
                }
            }
            if state.decoded_lsn >= target && !subscriptions.is_empty() {
                break;
            }
        }
        for subscription in &mut subscriptions {
            take_some(subscription).await;
        }
        program.kill();
        readers.iter_mut().zip(subscriptions).for_each(|(reader, subscription)| reader.stop(subscription));
    }
    let mut command = command(&data.path().join("decoder"), primary.addr());
    command.args(["--profile", "pg17"]).args(settings).env("WALSTORM_DECODER__WORK_MEM", "64kB");
    let program = Program::start(command);
    for mut reader in readers {
        let mut subscription = reader.again(&program).await;
        subscription.read_to(end).await;
        reader.stop(subscription);
        assert_same(&reader.items, &items);
        // And all of it in one go.
        let mut all = Reader::new(pb::Delivery::try_from(reader.start.delivery).unwrap()).again(&program).await;
        all.read_to(end).await;
        assert_same(&all.items, &items);
    }
    primary.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_in_the_middle_of_blocks_and_prepared_transactions_loses_and_repeats_nothing() {
    killed(&["--streaming", "--two-phase"], 16, mixed(700).path(), true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_while_large_transactions_are_written_out_loses_and_repeats_nothing() {
    killed(&[], 16, mixed(700).path(), false).await;
}
