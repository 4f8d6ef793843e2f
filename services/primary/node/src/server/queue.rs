//! The queue between a stream's task and its connection, which knows how many bytes wait in it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::Status;

/// A response or the end of the stream, and its size.
type Item<T> = (Result<T, Status>, u64);

/// A queue of `messages` responses.
pub(super) fn queue<T>(messages: usize) -> (QueueSender<T>, QueueStream<T>) {
    let (sender, receiver) = mpsc::channel(messages);
    let bytes = Arc::new(AtomicU64::new(0));
    (QueueSender { sender, bytes: Arc::clone(&bytes) }, QueueStream { receiver, bytes })
}

/// The stream's end of it.
#[derive(Debug)]
pub(super) struct QueueSender<T> {
    /// The channel.
    sender: mpsc::Sender<Item<T>>,
    /// Bytes that wait in it.
    bytes: Arc<AtomicU64>,
}

impl<T> QueueSender<T> {
    /// Waits for room; nothing if the connection is gone.
    pub(super) async fn reserve(&self) -> Option<QueuePermit<'_, T>> {
        let permit = self.sender.reserve().await.ok()?;
        Some(QueuePermit { permit, bytes: &self.bytes })
    }

    /// Sends a small message or the stream's end; false if the connection is gone.
    pub(super) async fn send(&self, response: Result<T, Status>) -> bool {
        self.sender.send((response, 0)).await.is_ok()
    }

    /// Waits until the connection is gone.
    pub(super) async fn closed(&self) {
        self.sender.closed().await;
    }

    /// Whether the connection has not taken what was sent before.
    pub(super) fn is_full(&self) -> bool {
        self.sender.capacity() == 0
    }

    /// Bytes that wait for the connection.
    pub(super) fn bytes(&self) -> &Arc<AtomicU64> {
        &self.bytes
    }
}

/// Room for one message.
#[derive(Debug)]
pub(super) struct QueuePermit<'a, T> {
    /// In the channel.
    permit: mpsc::Permit<'a, Item<T>>,
    /// Bytes that wait in it.
    bytes: &'a AtomicU64,
}

impl<T> QueuePermit<'_, T> {
    /// Sends a message of `bytes`.
    pub(super) fn send(self, response: T, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.permit.send((Ok(response), bytes));
    }
}

/// The connection's end of it.
#[derive(Debug)]
pub(super) struct QueueStream<T> {
    /// The channel.
    receiver: mpsc::Receiver<Item<T>>,
    /// Bytes that wait in it.
    bytes: Arc<AtomicU64>,
}

impl<T> Stream for QueueStream<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some((response, bytes)) = ready!(self.receiver.poll_recv(cx)) else { return Poll::Ready(None) };
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Poll::Ready(Some(response))
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;

    #[tokio::test]
    async fn what_waits_is_counted_until_the_connection_takes_it() {
        let (sender, mut stream) = queue::<u8>(2);
        for _ in 0..2 {
            sender.reserve().await.unwrap().send(1, 100);
        }
        assert!(sender.is_full());
        assert_eq!(sender.bytes().load(Ordering::Relaxed), 200);
        assert_eq!(stream.next().await.unwrap().unwrap(), 1);
        assert_eq!(sender.bytes().load(Ordering::Relaxed), 100);
        drop(stream);
        assert!(sender.reserve().await.is_none() && !sender.send(Ok(1)).await);
        sender.closed().await;
    }
}
