//! Whether the service may be used, which is what health says: snapshots can be taken, and the primary is not silent for too long.
//!
//! A standby whose primary is gone goes on serving: its snapshots are right, only old, and say how old. Who would rather be led to
//! another standby sets `max_primary_silence`: past it health says NOT_SERVING until the primary is heard of again.

use std::sync::Arc;
use std::time::Duration;

use service_kit::{Clock, Drain, Health};
use tokio::sync::watch;
use walstorm_proto::service_names::STANDBY;

use crate::progress::{Progress, Upstream};

/// What readiness depends on.
#[derive(Clone, Debug)]
pub struct Readiness {
    /// How far replay is.
    pub progress: watch::Receiver<Progress>,
    /// How the stream is.
    pub upstream: watch::Receiver<Upstream>,
    /// The node's clock.
    pub clock: Arc<dyn Clock>,
    /// Longest silence of the primary; none: for ever.
    pub max_silence: Option<Duration>,
}

impl Readiness {
    /// Why the service should not be used, for people; none if it may.
    #[must_use]
    pub fn why_not(&self) -> Option<String> {
        let (progress, upstream) = (self.progress.borrow(), self.upstream.borrow());
        if !progress.is_ready() {
            let no_stream = !upstream.connected && !upstream.last_error.is_empty() && progress.halt.is_none();
            let stream =
                if no_stream { format!("; no stream from the primary: {}", upstream.last_error) } else { String::new() };
            return Some(format!("{}{stream}", progress.waits_for()));
        }
        let silence = upstream.silence(self.clock.monotonic()).unwrap_or_default();
        let max = self.max_silence.filter(|max| silence > *max)?;
        Some(format!(
            "the primary was last heard of {silence:.0?} ago, max_primary_silence is {max:?}: snapshots are as of then; {}",
            if upstream.last_error.is_empty() { "it is connected, but silent" } else { &upstream.last_error }
        ))
    }

    /// Keeps health equal to it until the node stops.
    pub async fn report(mut self, health: Health, drain: Drain) {
        // The stream's task may end before replay does, which tells the rest.
        let (mut served, mut followed) = (false, true);
        loop {
            let ready = self.progress.borrow_and_update().is_ready();
            self.upstream.borrow_and_update();
            let why_not = self.why_not();
            let serves = why_not.is_none() && !drain.is_draining();
            match &why_not {
                Some(why) if served => tracing::warn!("health says NOT_SERVING: {why}"),
                None if serves && !served => tracing::info!("health says SERVING"),
                _ => {}
            }
            if serves != served {
                health.set(STANDBY, serves).await;
                served = serves;
            }
            let silent_at = self.silent_in();
            tokio::select! {
                () = drain.draining() => return,
                changed = self.progress.wait_for(|p| p.is_ready() != ready) => if changed.is_err() { return },
                changed = self.upstream.changed(), if followed => followed = changed.is_ok(),
                () = tokio::time::sleep(silent_at.unwrap_or_default()), if silent_at.is_some() => {}
            }
        }
    }

    /// How long until the primary's silence is too long; none if there is no limit, or it is already.
    fn silent_in(&self) -> Option<Duration> {
        let silence = self.upstream.borrow().silence(self.clock.monotonic()).unwrap_or_default();
        // A little more, so that it is past the limit when it is looked at.
        self.max_silence?.checked_sub(silence).map(|rest| rest + Duration::from_millis(1))
    }
}
