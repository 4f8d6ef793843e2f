//! Plays a scenario: step after step into the log, on one of three clocks, published in groups once flushed.

use std::time::{Duration, Instant, UNIX_EPOCH};

use pg_types::WalIdentity;
use primary_core::{Clock as _, Engine, PrimaryError, RunSummary, Step, rng};
use service_kit::Drain;

use super::log_sink::LogSink;
use super::outside::Note;
use super::player_clock::PlayerClock;
use super::simulated::scenario_error;
use crate::config::{ClockMode, SourceConfig};
use crate::error::{Error, Result};
use crate::slots::{ConsumerRun, Horizon, Slots};
use crate::wal_log::WalLog;

/// Longest sleep between two looks at whether the node stops.
const NAP: Duration = Duration::from_millis(50);
/// Sleep between two looks at which slots there are.
const SLOTS_NAP: Duration = Duration::from_millis(2);
/// A wait for what slots have applied that takes so long is told.
const SLOTS_LATE: Duration = Duration::from_secs(10);
/// Steps between two looks at the clock and at whether the node stops.
const STEPS_PER_LOOK: u32 = 64;

/// Who a player plays for: decides on an early end, and hears how far it is.
pub(super) trait Conductor {
    /// Asked before step number `step` (from 0): why the run is to end here, if it is. `live` says that the log is written and no
    /// longer compared. What is answered while the log is compared must be what was answered when it was written.
    ///
    /// # Errors
    /// The decision cannot be stored.
    fn ends_before(&mut self, step: u64, live: bool, summary: &RunSummary) -> Result<Option<EarlyEnd>>;

    /// Whether somebody waits for an early end: waiting for the clock or for consumers is then over.
    fn is_hurried(&self) -> bool;

    /// The engine cannot go on, but the log can: the early end that this is, or the error that it is for the node.
    ///
    /// # Errors
    /// As told.
    fn refused(&mut self, error: PrimaryError) -> Result<EarlyEnd>;

    /// The log was flushed.
    fn published(&mut self, live: bool, summary: &RunSummary);
}

/// Why a run ends before its scenario does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EarlyEnd {
    /// Somebody wants it to.
    Cancelled,
    /// A limit was reached.
    Limit(String),
    /// The scenario cannot go on.
    Failed(String),
}

/// How playing ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Played {
    /// The scenario is over.
    Whole,
    /// It was ended early; the log is as good as after a whole one.
    Early(EarlyEnd),
    /// The node stops. The run is to be gone on with.
    Stopped,
}

/// What a player works with beside its engine.
#[derive(Clone, Copy)]
pub(super) struct Stage<'a> {
    /// The log's published end.
    pub(super) log: &'a WalLog,
    /// Slots, for those who do not run ahead of them.
    pub(super) slots: &'a Slots,
    /// Whether the node stops.
    pub(super) drain: &'a Drain,
}

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
    /// Steps that were taken.
    steps: u64,
    /// There was a barrier, and clients' slots were not looked at since.
    at_barrier: bool,
    /// How far back clients' slots hold VACUUM.
    horizon: Horizon,
    /// Transactions that may begin in a second of the monotonic clock, if that is limited.
    wall_rate: Option<WallRate>,
}

/// A limit on transactions where simulated time does not set the pace.
struct WallRate {
    /// Transactions in a second.
    per_second: u32,
    /// When counting began.
    since: Duration,
}

impl Player {
    /// A player that did nothing yet.
    pub(super) fn new(mut engine: Engine, seed: u64, mut sink: LogSink, config: &SourceConfig, clock: PlayerClock) -> Self {
        if config.heeds_slots() {
            engine.want_barriers();
        }
        sink.compare_times(config.clock == ClockMode::Virtual);
        let rng = Box::new(rng::seeded(seed));
        let (at_barrier, horizon) = (true, Horizon::NONE);
        Self { engine, rng, clock, sink, config: config.clone(), steps: 0, at_barrier, horizon, wall_rate: None }
    }

    /// Plays the first step, so that there is WAL to serve.
    ///
    /// # Errors
    /// As [`Player::play`].
    pub(super) fn begin(&mut self) -> Result<()> {
        self.step().map_err(scenario_error)?;
        self.sink.flush()?;
        // Slots are looked at before anything else is done.
        self.at_barrier = true;
        Ok(())
    }

    /// Makes the slots of the scenario's consumers, or finds those that they had before a restart. After the first step. Blocks on
    /// the disk.
    ///
    /// # Errors
    /// A client has a slot of that name, there are too many, or one cannot be stored.
    pub(super) fn adopt_consumers(&self, identity: &WalIdentity, slots: &Slots, clock: &dyn service_kit::Clock) -> Result<()> {
        let now_ms = clock.now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_millis() as u64);
        let run = ConsumerRun { identity: *identity, start: self.engine.summary().start_lsn, now_ms };
        slots.adopt_consumers(run, &self.engine.plan().consumers)?;
        slots.move_consumers(self.engine.consumers());
        Ok(())
    }

    /// Waits until there are all slots that the configuration names, and they are whole, or the node stops. Blocks.
    ///
    /// # Errors
    /// They do not come in time.
    pub(super) fn wait_for_slots(&self, stage: Stage<'_>) -> Result<()> {
        let names = &self.config.wait_for_slots;
        let since = self.clock.monotonic();
        loop {
            let is_there = |name: &String| stage.slots.table().get(name).is_ok_and(|slot| !slot.state.building);
            let missing: Vec<&String> = names.iter().filter(|name| !is_there(name)).collect();
            if missing.is_empty() || stage.drain.is_draining() {
                return Ok(());
            }
            let waited = self.clock.monotonic().saturating_sub(since);
            if waited >= self.config.wait_for_slots_timeout {
                let quoted = |names: &mut dyn Iterator<Item = &str>| {
                    let names: Vec<String> = names.map(|name| format!("\"{name}\"")).collect();
                    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
                };
                let missing = quoted(&mut missing.iter().map(|name| name.as_str()));
                let there = quoted(&mut stage.slots.table().list().map(|slot| slot.state.name.as_str()));
                return Err(Error::SlotsAwaited { missing, there, waited_s: waited.as_secs() });
            }
            std::thread::sleep(SLOTS_NAP);
        }
    }

    /// Lets at most so many transactions begin in a second: of simulated time, or of the wall clock if that alone passes.
    pub(super) fn limit_rate(&mut self, per_second: u32) {
        if self.config.clock == ClockMode::Max && per_second > 0 {
            self.wall_rate = Some(WallRate { per_second, since: self.clock.monotonic() });
        } else {
            self.engine.limit_rate(per_second);
        }
    }

    /// The engine.
    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The log.
    pub(super) fn sink(&self) -> &LogSink {
        &self.sink
    }

    /// What time it is for the scenario.
    pub(super) fn now(&self) -> pg_types::Timestamp {
        self.clock.now()
    }

    /// The log, for the next player.
    pub(super) fn into_sink(self) -> LogSink {
        self.sink
    }

    /// Plays to the end, or until the node stops. Blocks.
    ///
    /// # Errors
    /// The log cannot be written, or the scenario cannot go on.
    pub(super) fn play(&mut self, stage: Stage<'_>, conductor: &mut dyn Conductor) -> Result<Played> {
        self.sink.wait_for_room(stage.drain);
        match self.play_steps(stage, conductor) {
            Err(error) if stage.drain.is_draining() && self.sink.is_out_of_room() => {
                tracing::warn!(%error, "stopping without the WAL that there is no room for; the run will go on from what is \
                                        flushed");
                Ok(Played::Stopped)
            }
            played => played,
        }
    }

    /// Plays to the end, or until the node stops.
    fn play_steps(&mut self, stage: Stage<'_>, conductor: &mut dyn Conductor) -> Result<Played> {
        let mut flushed_at = self.clock.monotonic();
        let mut played = Played::Stopped;
        while played == Played::Stopped && !stage.drain.is_draining() {
            let waited = self.wait_until_due(stage, conductor)?;
            self.log_running_xacts_if_asked(stage, conductor)?;
            self.heed_slots_at_barrier(stage, conductor)?;
            if stage.drain.is_draining() {
                break;
            }
            played = self.some_steps(conductor)?;
            let timely = self.config.clock != ClockMode::Virtual
                && self.clock.monotonic().saturating_sub(flushed_at) >= self.config.flush_interval;
            if waited || timely || self.sink.unflushed() >= self.config.flush_bytes {
                self.publish(stage, conductor)?;
                flushed_at = self.clock.monotonic();
                self.wait_for_consumers(stage, conductor);
            }
        }
        self.publish(stage, conductor)?;
        Ok(played)
    }

    /// As many steps as are due, at most [`STEPS_PER_LOOK`] and until there is enough to flush.
    fn some_steps(&mut self, conductor: &mut dyn Conductor) -> Result<Played> {
        for _ in 0..STEPS_PER_LOOK {
            self.repeat_outside().map_err(scenario_error)?;
            let live = !self.sink.is_replaying();
            if let Some(why) = conductor.ends_before(self.steps, live, self.engine.summary())? {
                return self.end_early(why);
            }
            match self.step() {
                Ok(true) => return Ok(Played::Whole),
                Ok(false) => {}
                Err(error) => {
                    let why = conductor.refused(error)?;
                    return self.end_early(why);
                }
            }
            let due = self.engine.next_due().is_some_and(|due| self.clock.is_due(due));
            if !due || !self.until_rate().is_zero() || self.sink.unflushed() >= self.config.flush_bytes || self.heeds_now() {
                break;
            }
        }
        Ok(Played::Stopped)
    }

    /// Ends the run with a clean log.
    fn end_early(&mut self, why: EarlyEnd) -> Result<Played> {
        self.engine.end_early(&mut self.clock, self.rng.as_mut(), &mut self.sink).map_err(scenario_error)?;
        Ok(Played::Early(why))
    }

    /// One step; true if it was the last.
    fn step(&mut self) -> Result<bool, PrimaryError> {
        let step = self.engine.step(&mut self.clock, self.rng.as_mut(), &mut self.sink)?;
        self.sink.tell_scenario_full(self.engine.is_out_of_room());
        self.steps += 1;
        // What is played again has heeded slots at the barriers behind it, and may end between two.
        self.at_barrier = matches!(step, Step::Barrier(_));
        Ok(step == Step::Done)
    }

    /// Whether what clients' slots need is to be heeded now. What was when the log was written is noted there.
    fn heeds_now(&self) -> bool {
        self.at_barrier && self.config.heeds_slots() && !self.sink.is_replaying()
    }

    /// Flushes what was written, and tells everybody.
    fn publish(&mut self, stage: Stage<'_>, conductor: &mut dyn Conductor) -> Result<()> {
        if let Some(end) = self.sink.flush()? {
            stage.log.publish(end);
        }
        stage.slots.move_consumers(self.engine.consumers());
        conductor.published(!self.sink.is_replaying(), self.engine.summary());
        Ok(())
    }

    /// On a real clock, waits for the next step; publishes first, so that nobody waits with us. True if it waited.
    fn wait_until_due(&mut self, stage: Stage<'_>, conductor: &mut dyn Conductor) -> Result<bool> {
        let Some(due) = self.engine.next_due() else { return Ok(false) };
        if self.sink.is_replaying() {
            self.clock.skip_to(due);
            self.forgive_rate();
        }
        if self.clock.is_due(due) && self.until_rate().is_zero() {
            return Ok(false);
        }
        self.publish(stage, conductor)?;
        loop {
            let wait = self.clock.until(due).max(self.until_rate());
            if wait.is_zero() || stage.drain.is_draining() || conductor.is_hurried() {
                return Ok(true);
            }
            std::thread::sleep(wait.min(NAP));
            self.log_running_xacts_if_asked(stage, conductor)?;
        }
    }

    /// How long to wait for the limit on the wall clock.
    fn until_rate(&self) -> Duration {
        let Some(rate) = &self.wall_rate else { return Duration::ZERO };
        let summary = self.engine.summary();
        let due = Duration::from_secs(1).mul_f64((summary.committed + summary.rolled_back) as f64 / f64::from(rate.per_second));
        (rate.since + due).saturating_sub(self.clock.monotonic())
    }

    /// What was played before a restart does not count.
    fn forgive_rate(&mut self) {
        let wait = self.until_rate();
        if let Some(rate) = &mut self.wall_rate {
            rate.since = rate.since.saturating_sub(wait);
        }
    }

    /// Logs the running transactions if a slot that is being built asks for them. Not on the virtual clock, where the same seed
    /// gives the same bytes whatever clients do.
    fn log_running_xacts_if_asked(&mut self, stage: Stage<'_>, conductor: &mut dyn Conductor) -> Result<()> {
        // Before its first step, after its last and without room an engine logs none, and the wish stays for when it can be
        // granted.
        let can = self.engine.next_due().is_some() && !self.engine.is_out_of_room();
        let grants = self.config.clock != ClockMode::Virtual && !self.sink.is_replaying() && can;
        if !grants || !stage.slots.take_running_xacts_wish() {
            return Ok(());
        }
        self.log_asked()?;
        self.publish(stage, conductor)
    }

    /// Logs the running transactions for a slot, so that a run that is played again does the same.
    fn log_asked(&mut self) -> Result<()> {
        self.sink.note(self.steps, Note::RunningXacts)?;
        self.engine.log_running_xacts(&mut self.sink).map_err(scenario_error)
    }

    /// Does what others did when this was played before. Before anybody decides on the next step, as then.
    fn repeat_outside(&mut self) -> Result<(), PrimaryError> {
        while let Some(note) = self.sink.repeat(self.steps) {
            match note {
                Note::RunningXacts => self.engine.log_running_xacts(&mut self.sink)?,
                Note::Horizon(horizon) => self.set_horizon(horizon),
            }
        }
        Ok(())
    }

    /// At a barrier: VACUUM heeds from now on what clients' slots need. On the virtual clock those that the run waited for are
    /// first given the time to have applied everything.
    fn heed_slots_at_barrier(&mut self, stage: Stage<'_>, conductor: &mut dyn Conductor) -> Result<()> {
        if !self.heeds_now() {
            return Ok(());
        }
        self.at_barrier = false;
        if self.config.clock == ClockMode::Virtual {
            self.publish(stage, conductor)?;
            self.wait_for_applied(stage, conductor);
        }
        let horizon = stage.slots.table().horizon();
        if horizon != self.horizon {
            self.sink.note(self.steps, Note::Horizon(horizon))?;
            self.set_horizon(horizon);
        }
        Ok(())
    }

    /// VACUUM heeds it.
    fn set_horizon(&mut self, horizon: Horizon) {
        self.horizon = horizon;
        self.engine.set_horizon(horizon.xmin);
        self.engine.set_catalog_horizon(horizon.catalog_xmin);
    }

    /// Waits until the slots that the configuration names have applied the whole log, those that are lost excepted.
    fn wait_for_applied(&self, stage: Stage<'_>, conductor: &dyn Conductor) {
        let end = stage.log.end().lsn;
        let table = || stage.slots.table();
        let applied =
            |name: &String| table().get(name).is_ok_and(|slot| slot.has_applied(end) || slot.state.invalidated.is_some());
        let (begun, mut said) = (Instant::now(), false);
        while let Some(slot) = self.config.wait_for_slots.iter().find(|name| !applied(name)) {
            if stage.drain.is_draining() || conductor.is_hurried() {
                return;
            }
            if !said && begun.elapsed() >= SLOTS_LATE {
                tracing::warn!(slot, %end, "the run waits until this slot has applied all: is its consumer there, or does a reader hold its replay?");
                said = true;
            }
            std::thread::sleep(SLOTS_NAP);
        }
    }

    /// Does not run ahead of the slots by more than is configured.
    fn wait_for_consumers(&self, stage: Stage<'_>, conductor: &dyn Conductor) {
        let Some(ahead_max) = self.config.ahead_bytes_max else { return };
        let behind = || stage.slots.table().oldest_saved().map_or(0, |slot| stage.log.end().lsn.0.saturating_sub(slot.0));
        while behind() > ahead_max && !stage.drain.is_draining() && !conductor.is_hurried() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use pg_types::PgVersion;
    use pg_wal::writer::WriterConfig;
    use primary_core::{Overrides, Scenario};
    use service_kit::SystemClock;

    use super::*;

    /// Sessions of which steps write nothing, among them such as give a transaction its xid.
    const SILENT: &str = r#"
name = "silent"
story = "Temporary tables are not logged, but their transactions have xids."
seed = 1
[[tables]]
name = "t"
columns = ["id int"]
[[actors]]
name = "temporary"
sessions = 2
transactions = 2
every = "3ms"
connects = { every = 2 }
steps = [
    { create_table = { table = "work", columns = ["id int"], temporary = true, on_commit = "drop" } },
    { wait = "1ms" },
    { commit = {} },
    { create_table = { table = "kept_{n}", columns = ["id int"], temporary = true } },
    { commit = {} },
    { insert = { table = "kept_{n}" } },
    { wait = "1ms" },
    { savepoint = "s" },
    { insert = { table = "t" } },
]
"#;

    /// A player over the log in `dir`.
    fn player(dir: &Path) -> Player {
        std::fs::create_dir_all(dir.join("wal")).unwrap();
        let version = PgVersion::V18;
        let sink = LogSink::open(dir.join("wal"), WriterConfig::new(7).with_segment_size(1 << 20)).unwrap();
        let plan = Scenario::parse("silent", SILENT).unwrap().plan(&Overrides::new()).unwrap();
        let config = SourceConfig { clock: ClockMode::Virtual, ..SourceConfig::default() };
        let clock = PlayerClock::new(config.clock, Arc::new(SystemClock::new()));
        Player::new(Engine::new(plan, version).unwrap(), 1, sink, &config, clock)
    }

    /// Steps until `steps` were taken or the run is over.
    fn advance(player: &mut Player, steps: u64) {
        while player.steps < steps {
            player.repeat_outside().unwrap();
            if player.step().unwrap() {
                break;
            }
        }
        player.sink.flush().unwrap();
    }

    /// The bytes of the log, which must be whole.
    fn bytes(player: &Player, dir: &Path) -> Vec<u8> {
        player.sink.finish().unwrap();
        std::fs::read(dir.join("wal/000000010000000000000001")).unwrap()
    }

    /// Ends a run before a step.
    struct EndsBefore(u64);

    impl Conductor for EndsBefore {
        fn ends_before(&mut self, step: u64, _: bool, _: &RunSummary) -> Result<Option<EarlyEnd>> {
            Ok((step >= self.0).then_some(EarlyEnd::Cancelled))
        }

        fn is_hurried(&self) -> bool {
            false
        }

        fn refused(&mut self, error: PrimaryError) -> Result<EarlyEnd> {
            Err(scenario_error(error))
        }

        fn published(&mut self, _: bool, _: &RunSummary) {}
    }

    /// Plays until the run is ended before step `step`.
    fn end_before(player: &mut Player, step: u64) {
        while player.some_steps(&mut EndsBefore(step)).unwrap() == Played::Stopped {}
        player.sink.flush().unwrap();
    }

    #[test]
    fn lists_that_slots_asked_for_come_again_at_the_same_place_whatever_the_steps_there_write() {
        let quiet = tempfile::tempdir().unwrap();
        let mut undisturbed = player(quiet.path());
        advance(&mut undisturbed, u64::MAX);
        let steps = undisturbed.steps;
        assert!(steps > 30);
        let without = bytes(&undisturbed, quiet.path());
        for asked in 1..steps {
            let [whole, killed, ended] = [(); 3].map(|()| tempfile::tempdir().unwrap());
            for (dir, lives) in [(&whole, 1), (&killed, 3)] {
                let mut first = player(dir.path());
                advance(&mut first, asked);
                first.log_asked().unwrap();
                for life in 1..lives {
                    advance(&mut first, asked + life * 2);
                    first = player(dir.path());
                }
                advance(&mut first, u64::MAX);
                assert_eq!(first.steps, steps);
                let log = bytes(&first, dir.path());
                assert!(log != without);
                std::fs::write(dir.path().join("log"), log).unwrap();
            }
            let log = |dir: &Path| std::fs::read(dir.join("log")).unwrap();
            assert!(log(whole.path()) == log(killed.path()), "asked for before step {asked}");

            let mut first = player(ended.path());
            advance(&mut first, asked);
            first.log_asked().unwrap();
            end_before(&mut first, asked);
            let log = bytes(&first, ended.path());
            let mut again = player(ended.path());
            end_before(&mut again, asked);
            assert!(log == bytes(&again, ended.path()), "asked for before step {asked}, and ended there");
        }
    }

    #[test]
    fn a_list_that_was_lost_with_the_end_of_the_log_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = player(dir.path());
        advance(&mut first, 10);
        // Noted, and killed before the list was flushed.
        first.log_asked().unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("wal_asked")).unwrap().lines().count(), 1);
        let mut again = player(dir.path());
        advance(&mut again, 20);
        assert_eq!(std::fs::read(dir.path().join("wal_asked")).unwrap(), b"");
        // Nor do the notes of a log outlive it.
        again.log_asked().unwrap();
        std::fs::remove_dir_all(dir.path().join("wal")).unwrap();
        let mut anew = player(dir.path());
        advance(&mut anew, 25);
        drop(anew);
        advance(&mut player(dir.path()), u64::MAX);
    }
}
