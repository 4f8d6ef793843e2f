//! Plays a scenario: step after step into the log, on one of three clocks, published in groups once flushed.

use std::sync::Arc;
use std::time::Duration;

use primary_core::{Engine, RunSummary, Step, rng};
use service_kit::Drain;
use tokio::sync::watch;

use super::log_sink::LogSink;
use super::player_clock::PlayerClock;
use super::simulated::scenario_error;
use crate::config::{ClockMode, SourceConfig};
use crate::error::Result;
use crate::slots::Slots;
use crate::wal_log::WalLog;

/// Longest sleep between two looks at whether the node stops.
const NAP: Duration = Duration::from_millis(50);
/// Steps between two looks at the clock and at whether the node stops.
const STEPS_PER_LOOK: u32 = 64;

/// A scenario that is being played.
pub(crate) struct Player {
    /// The simulated server.
    engine: Engine,
    /// All draws.
    rng: Box<dyn rng::Rng + Send>,
    /// What time it is for the scenario.
    clock: PlayerClock,
    /// The log.
    sink: LogSink,
    /// Settings.
    config: SourceConfig,
    /// Tells how far the run is.
    summary: watch::Sender<RunSummary>,
}

impl Player {
    /// Plays the first step, so that there is WAL to serve.
    ///
    /// # Errors
    /// As [`Player::play`].
    pub(super) fn begin(
        engine: Engine,
        seed: u64,
        sink: LogSink,
        config: &SourceConfig,
        clock: Arc<dyn service_kit::Clock>,
    ) -> Result<Self> {
        let (summary, _) = watch::channel(RunSummary::default());
        let clock = PlayerClock::new(config.clock, clock);
        let rng = Box::new(rng::seeded(seed));
        let mut player = Self { engine, rng, clock, sink, config: config.clone(), summary };
        player.step()?;
        player.sink.flush()?;
        Ok(player)
    }

    /// Tells how far the run is.
    pub(crate) fn summary(&self) -> watch::Receiver<RunSummary> {
        self.summary.subscribe()
    }

    /// Plays to the end, or until the node stops. Blocks.
    ///
    /// # Errors
    /// The log cannot be written, or the scenario cannot go on.
    pub(crate) fn play(mut self, log: &WalLog, slots: &Slots, drain: &Drain) -> Result<()> {
        let mut flushed_at = self.clock.monotonic();
        let mut done = false;
        while !done && !drain.is_draining() {
            let waited = self.wait_until_due(log, slots, drain)?;
            self.log_running_xacts_if_asked(log, slots)?;
            if drain.is_draining() {
                break;
            }
            for _ in 0..STEPS_PER_LOOK {
                done = self.step()?;
                let due = self.engine.next_due().is_some_and(|due| self.clock.is_due(due));
                if done || !due || self.sink.unflushed() >= self.config.flush_bytes {
                    break;
                }
            }
            let timely = self.config.clock != ClockMode::Virtual
                && self.clock.monotonic().saturating_sub(flushed_at) >= self.config.flush_interval;
            if waited || timely || self.sink.unflushed() >= self.config.flush_bytes {
                self.publish(log)?;
                flushed_at = self.clock.monotonic();
                self.wait_for_consumers(log, slots, drain);
            }
        }
        self.publish(log)?;
        if done {
            log.close();
            tracing::info!(end = %log.end().lsn, "the scenario is over");
        }
        Ok(())
    }

    /// One step; true if it was the last.
    fn step(&mut self) -> Result<bool> {
        let step = self.engine.step(&mut self.clock, self.rng.as_mut(), &mut self.sink).map_err(scenario_error)?;
        Ok(step == Step::Done)
    }

    /// Flushes what was written, and tells everybody.
    fn publish(&mut self, log: &WalLog) -> Result<()> {
        if let Some(end) = self.sink.flush()? {
            log.publish(end);
        }
        self.summary.send_replace(self.engine.summary().clone());
        Ok(())
    }

    /// On a real clock, waits for the next step; publishes first, so that nobody waits with us. True if it waited.
    fn wait_until_due(&mut self, log: &WalLog, slots: &Slots, drain: &Drain) -> Result<bool> {
        let Some(due) = self.engine.next_due() else { return Ok(false) };
        if self.sink.is_replaying() {
            self.clock.skip_to(due);
        }
        if self.clock.is_due(due) {
            return Ok(false);
        }
        self.publish(log)?;
        while !self.clock.is_due(due) && !drain.is_draining() {
            std::thread::sleep(self.clock.until(due).min(NAP));
            self.log_running_xacts_if_asked(log, slots)?;
        }
        Ok(true)
    }

    /// Logs the running transactions if a slot that is being built asks for them. Not on the virtual clock, where the same seed
    /// gives the same bytes whatever clients do.
    fn log_running_xacts_if_asked(&mut self, log: &WalLog, slots: &Slots) -> Result<()> {
        if self.config.clock == ClockMode::Virtual || self.sink.is_replaying() || !slots.take_running_xacts_wish() {
            return Ok(());
        }
        self.engine.log_running_xacts(&mut self.sink).map_err(scenario_error)?;
        self.publish(log)
    }

    /// Does not run ahead of the slots by more than is configured.
    fn wait_for_consumers(&self, log: &WalLog, slots: &Slots, drain: &Drain) {
        let Some(ahead_max) = self.config.ahead_bytes_max else { return };
        let behind = || slots.table().oldest_saved().map_or(0, |slot| log.end().lsn.0.saturating_sub(slot.0));
        while behind() > ahead_max && !drain.is_draining() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
