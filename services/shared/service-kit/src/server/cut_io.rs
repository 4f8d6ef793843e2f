//! A connection that can be cut from our side: after its token is cancelled, reading and writing fail, so that the task that serves
//! it ends even if the peer never closes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// A byte stream and the token that cuts it.
#[derive(Debug)]
pub(super) struct CutIo<S> {
    stream: S,
    /// Polled with every read, so that a connection that waits for bytes wakes up when it is cut.
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    is_cut: bool,
}

impl<S> CutIo<S> {
    /// Wraps `stream`.
    pub(super) fn new(stream: S, cut: CancellationToken) -> Self {
        Self { stream, cut: Box::pin(cut.cancelled_owned()), is_cut: false }
    }

    /// Registers for the cut; an error once it happened.
    fn poll_cut(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.is_cut = self.is_cut || self.cut.as_mut().poll(cx).is_ready();
        if self.is_cut { Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server stopped")) } else { Ok(()) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CutIo<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Ready(result) if !self.is_cut => Poll::Ready(result),
            _ => match self.poll_cut(cx) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CutIo<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(cx, buf) {
            Poll::Ready(result) => Poll::Ready(result),
            Poll::Pending => match self.poll_cut(cx) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write_vectored(cx, bufs) {
            Poll::Ready(result) => Poll::Ready(result),
            Poll::Pending => match self.poll_cut(cx) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: Connected> Connected for CutIo<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_waiting_reader_wakes_up_when_cut() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let token = CancellationToken::new();
        let mut io = CutIo::new(ours, token.clone());
        theirs.write_all(b"x").await.expect("the pipe is open");
        assert_eq!(io.read_u8().await.expect("a byte came"), b'x');
        let waiting = tokio::spawn(async move { io.read_u8().await });
        tokio::task::yield_now().await;
        token.cancel();
        let error = waiting.await.expect("no panic").expect_err("cut");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    }

    #[tokio::test]
    async fn a_waiting_writer_wakes_up_when_cut() {
        let (ours, _theirs) = tokio::io::duplex(1);
        let token = CancellationToken::new();
        let mut io = CutIo::new(ours, token.clone());
        let waiting = tokio::spawn(async move { io.write_all(b"more than fits").await });
        tokio::task::yield_now().await;
        token.cancel();
        let error = waiting.await.expect("no panic").expect_err("cut");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    }
}
