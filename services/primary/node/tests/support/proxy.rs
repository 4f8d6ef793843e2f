//! A TCP proxy in front of a node, whose two directions a test can throttle to the byte, or stop like a cable that was pulled.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tonic::transport::Channel;

/// The proxy; connections end with it.
pub(crate) struct Proxy {
    /// Where it listens.
    addr: SocketAddr,
    /// Bytes that may pass in all towards the client.
    down: watch::Sender<u64>,
    /// Bytes that may pass in all towards the node.
    up: watch::Sender<u64>,
    /// Accepts and copies.
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Passes everything to `node` until it is told otherwise.
    pub(crate) async fn start(node: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (down, up) = (watch::Sender::new(u64::MAX), watch::Sender::new(u64::MAX));
        let (down_seen, up_seen) = (down.subscribe(), up.subscribe());
        let task = tokio::spawn(async move {
            let mut copies = tokio::task::JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let (from_client, to_client) = client.into_split();
                let (from_node, to_node) = TcpStream::connect(node).await.unwrap().into_split();
                copies.spawn(copy(from_client, to_node, up_seen.clone()));
                copies.spawn(copy(from_node, to_client, down_seen.clone()));
            }
        });
        Self { addr, down, up, task }
    }

    /// A connection through it.
    pub(crate) async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.addr)).unwrap().connect().await.unwrap()
    }

    /// From now on no byte passes towards the client, but those of `more`.
    pub(crate) fn hold_down(&self, more: u64) {
        self.down.send_modify(|bytes| *bytes = if *bytes == u64::MAX { more } else { *bytes + more });
    }

    /// Everything passes again towards the client.
    pub(crate) fn open_down(&self) {
        self.down.send_replace(u64::MAX);
    }

    /// Nothing passes any more in either direction, and nobody is told.
    pub(crate) fn pull_the_cable(&self) {
        self.down.send_replace(0);
        self.up.send_replace(0);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Copies one direction, within what may pass in all.
async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut budget: watch::Receiver<u64>) {
    let (mut passed, mut buffer) = (0u64, vec![0; 16 << 10]);
    loop {
        let left = budget.borrow_and_update().saturating_sub(passed);
        if left == 0 {
            if budget.changed().await.is_err() {
                return;
            }
            continue;
        }
        let room = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        tokio::select! {
            read = from.read(&mut buffer[..room]) => match read {
                Ok(0) | Err(_) => return,
                Ok(read) => {
                    if to.write_all(&buffer[..read]).await.is_err() {
                        return;
                    }
                    passed += read as u64;
                }
            },
            changed = budget.changed() => if changed.is_err() { return },
        }
    }
}
