//! Orderly stopping. A node stops in steps, each with its own signal:
//!
//! ```text
//!  SIGTERM ──► draining ──────► stopping ───────► cut ────► exit 0
//!              health says       streams must      connections are
//!              NOT_SERVING,      end now           closed under them
//!              streams say
//!              `draining` and
//!              take last feedback
//!              (at most the grace)
//! ```
//!
//! Servers for HTTP/2 wait for every open stream, and a stream of WAL never ends by itself; so each stream holds a [`StreamGuard`],
//! listens to [`Drain::draining`] and [`Drain::stopping`], and the server (`server.rs`) cuts what is left. A second signal skips the
//! grace, and a thread outside the runtime ends the process if even that hangs.

use std::time::Duration;

use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tonic::Status;

use crate::status::{Reason, failure};

/// What a draining server tells clients to wait before they connect again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Time beyond the grace after which [`Drain::on_signals`] ends the process from outside the runtime.
const WATCHDOG_MARGIN: Duration = Duration::from_millis(2500);

/// The state of stopping, shared by a node's parts. Clones are handles on the same state.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    /// Cancelled when stopping begins.
    draining: CancellationToken,
    /// Cancelled when the grace is over.
    stopping: CancellationToken,
    /// Open streams.
    streams: TaskTracker,
}

/// Held by an open stream; the server waits for it while it drains.
#[derive(Debug)]
#[must_use = "the server does not wait for a stream without its guard"]
pub struct StreamGuard {
    _token: TaskTrackerToken,
}

impl Drain {
    /// Nothing is stopping.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins to stop. Repeating it changes nothing.
    pub fn start(&self) {
        self.draining.cancel();
        self.streams.close();
    }

    /// Ends the grace: streams must end at once.
    pub fn stop(&self) {
        self.start();
        self.stopping.cancel();
    }

    /// Waits until stopping begins: send `draining`, take the last feedback.
    pub fn draining(&self) -> WaitForCancellationFuture<'_> {
        self.draining.cancelled()
    }

    /// Waits until the grace is over: end with [`Drain::status`] now.
    pub fn stopping(&self) -> WaitForCancellationFuture<'_> {
        self.stopping.cancelled()
    }

    /// Whether stopping has begun.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// A token that is cancelled when stopping begins, for parts that take one.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.draining.clone()
    }

    /// Registers a stream or a long call.
    ///
    /// # Errors
    /// UNAVAILABLE / DRAINING when stopping has begun.
    pub fn open_stream(&self) -> Result<StreamGuard, Status> {
        let guard = StreamGuard { _token: self.streams.token() };
        if self.is_draining() { Err(Self::status()) } else { Ok(guard) }
    }

    /// How a stream ends that is ended by stopping: UNAVAILABLE / DRAINING.
    #[must_use]
    pub fn status() -> Status {
        failure(Reason::Draining, "the server is about to stop: connect again and resume where you are")
            .retry_after(RETRY_AFTER)
            .into_status()
    }

    /// Waits until stopping has begun and every registered stream has ended.
    pub async fn streams_ended(&self) {
        self.draining.cancelled().await;
        self.streams.wait().await;
    }

    /// Streams registered now.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// For programs: the first SIGTERM or SIGINT begins to stop, the second ends the grace. If the process still lives
    /// 2.5 s after the grace, a thread ends it with exit code 0: nothing is acknowledged that is not safe, so an abrupt end
    /// loses nothing.
    ///
    /// # Errors
    /// The operating system refuses to install a handler.
    pub fn on_signals(&self, grace: Duration) -> std::io::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let drain = self.clone();
        tokio::spawn(async move {
            let name = tokio::select! { _ = term.recv() => "SIGTERM", _ = int.recv() => "SIGINT" };
            spawn_watchdog(grace.saturating_add(WATCHDOG_MARGIN));
            drain.start();
            tracing::info!(signal = name, grace_ms = grace.as_millis() as u64, "stopping");
            tokio::select! { _ = term.recv() => (), _ = int.recv() => () }
            tracing::warn!("second signal: stopping without grace");
            drain.stop();
        });
        Ok(())
    }
}

/// Ends the process after `limit`, whatever the runtime does.
fn spawn_watchdog(limit: Duration) {
    let watch = move || {
        std::thread::sleep(limit);
        tracing::warn!("stopping took too long: leaving at once");
        std::process::exit(0);
    };
    if let Err(error) = std::thread::Builder::new().name("drain-watchdog".to_owned()).spawn(watch) {
        tracing::warn!(%error, "cannot start the thread that limits stopping");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn streams_are_waited_for_and_new_ones_refused() {
        let drain = Drain::new();
        let guard = drain.open_stream().expect("not draining yet");
        assert_eq!(drain.open_streams(), 1);
        drain.start();
        let refused = drain.open_stream().expect_err("draining");
        assert_eq!(crate::status::reason_of(&refused), Some(Reason::Draining));

        let ended = drain.streams_ended();
        tokio::pin!(ended);
        tokio::select! {
            biased;
            () = &mut ended => panic!("a stream is still open"),
            () = tokio::task::yield_now() => (),
        }
        drop(guard);
        ended.await;
    }

    #[tokio::test]
    async fn stopping_implies_draining() {
        let drain = Drain::new();
        drain.stop();
        drain.draining().await;
        drain.stopping().await;
        drain.streams_ended().await;
        assert!(drain.is_draining());
    }
}
