//! Decoding WAL again, under other profiles, beside following the primary: what ExplainTransaction and CompareProfiles do.
//!
//! The WAL comes from the primary once more, through a stream of its own without slot, or from a scenario that is played for the call. It is
//! held in memory, at most [`AnalysisConfig::wal_bytes_max`] of it, so that each profile decodes the same and no stream waits for a slow
//! one. Decoding runs on a blocking thread and stops soon after its call is gone ([`Interrupt`]).

use std::sync::Arc;

use decoder_core::{Catalog, Contender, Decoder, Interrupt, Outcome, Profile, WorkMem};
use pg_types::{Lsn, Oid, PgVersion, RecordBody, WalRecord, Work};
use pg_wal::{Crc, WalProfile};
use primary_core::rng::seeded;
use primary_core::{Engine, MemorySink, Overrides, Scenario, Step, VirtualClock};
use service_kit::cpu::thread_cpu_time;
use service_kit::status::{Reason, failure, invalid_field};
use tokio::sync::{Semaphore, SemaphorePermit};
use tonic::Status;

use crate::config::{AnalysisConfig, Checked};
use crate::error::NodeError;
use crate::pipeline::{Batch, Joiner, places};
use crate::scenario_decoder::ScenarioDecoder;
use crate::upstream::Upstream;

/// What calls for analysis share.
#[derive(Debug)]
pub(crate) struct Analyst {
    /// The client's side of streams for reading again.
    pub(crate) upstream: Upstream,
    /// Settings.
    pub(crate) checked: Checked,
    /// Limits.
    pub(crate) limits: AnalysisConfig,
    /// Calls that may run now.
    pub(crate) permits: Semaphore,
}

/// Records to be decoded more than once.
#[derive(Debug)]
pub(crate) enum Input {
    /// Of the primary.
    Wal {
        /// How they are laid out.
        wal: &'static WalProfile,
        /// Whole records.
        batches: Vec<Batch>,
        /// Only records that end at or before it.
        to: Lsn,
    },
    /// Of a scenario.
    Records(Vec<WalRecord>),
}

/// How decoders are made.
#[derive(Clone, Debug)]
pub(crate) struct Maker {
    /// Version of the WAL.
    pub(crate) version: PgVersion,
    /// Whose rows are decoded.
    pub(crate) database: Oid,
    /// Names.
    pub(crate) catalog: Arc<dyn Catalog>,
    /// Memory limit, if the set-up names none.
    pub(crate) work_mem: WorkMem,
    /// How decoders are set up. All give out at the commit: profiles of before 14 can do nothing else, and all are compared.
    pub(crate) set_up: ScenarioDecoder,
    /// But for one transaction that was given out at its PREPARE.
    pub(crate) at_prepare: bool,
    /// Stops them.
    pub(crate) interrupt: Interrupt,
}

/// What a profile would have done to a transaction.
#[derive(Clone, Debug)]
pub(crate) struct Forecast {
    /// The profile.
    pub(crate) profile: Profile,
    /// Its work.
    pub(crate) work: Work,
    /// CPU time of decoding the commit record, in nanoseconds.
    pub(crate) cpu_ns: u64,
}

/// Raises its interrupt when it goes: with the call that waits for the work.
#[derive(Debug, Default)]
pub(crate) struct RaisedWhenGone(pub(crate) Interrupt);

impl Drop for RaisedWhenGone {
    fn drop(&mut self) {
        self.0.raise();
    }
}

impl Analyst {
    /// The right to run, held as long as the work lasts.
    ///
    /// # Errors
    ///
    /// As many calls as may run are running.
    pub(crate) fn permit(&self) -> Result<SemaphorePermit<'_>, Status> {
        self.permits.try_acquire().map_err(|_| {
            let limit = self.limits.concurrent_max;
            failure(Reason::AnalysisLimit, format!("{limit} analyses are running, as many as analysis.concurrent_max allows"))
                .metadata("key", "analysis.concurrent_max")
                .quota("analyses", format!("at most {limit}"))
                .retry_after(std::time::Duration::from_secs(1))
                .into_status()
        })
    }

    /// The profiles of a request.
    ///
    /// # Errors
    ///
    /// One is none, or they are too many.
    pub(crate) fn profiles(&self, asked: &[String]) -> Result<Vec<Profile>, Status> {
        let max = self.limits.profiles_max;
        if asked.len() > max {
            let text = format!("{} profiles, more than analysis.profiles_max = {max} allows: ask for fewer", asked.len());
            return Err(too_large(&text, "analysis.profiles_max"));
        }
        let parse = |(i, name): (usize, &String)| {
            name.parse().map_err(|e: decoder_core::UnknownProfile| {
                invalid_field(&format!("profiles[{i}]"), e.to_string()).into_status()
            })
        };
        asked.iter().enumerate().map(parse).collect()
    }

    /// Reads the WAL from `from` (0: the oldest) to `to` from the primary.
    ///
    /// # Errors
    ///
    /// The primary does not have it, does not answer, or it is more than the node may hold.
    pub(crate) async fn fetch(&self, from: Lsn, to: Lsn, version: PgVersion) -> Result<Input, Status> {
        let mut opened = self.upstream.open_again(from).await?;
        let start = Lsn(opened.started.start_lsn);
        self.check_bytes(start, to)?;
        let (mut joiner, mut batches) = (Joiner::default(), Vec::new());
        while let Some(batch) = self.upstream.next_again(&mut opened, &mut joiner, to).await? {
            let end = batch.end;
            batches.push(batch);
            self.check_bytes(start, end)?;
            if end >= to {
                break;
            }
        }
        Ok(Input::Wal { wal: WalProfile::of(version), batches, to })
    }

    /// Whether so much WAL may be held.
    fn check_bytes(&self, from: Lsn, to: Lsn) -> Result<(), Status> {
        let (bytes, max) = (to.0.saturating_sub(from.0), self.limits.wal_bytes_max);
        if bytes <= max {
            return Ok(());
        }
        let text =
            format!("{bytes} bytes of WAL from {from} to {to}, more than analysis.wal_bytes_max = {max} allows: ask for less");
        Err(too_large(&text, "analysis.wal_bytes_max"))
    }

    /// Plays a scenario that ships; gives its records and how its decoders are set up.
    ///
    /// # Errors
    ///
    /// There is no such scenario, it cannot be played so, or it is too large.
    pub(crate) fn play(
        &self,
        name: &str,
        overrides: &Overrides,
        seed: Option<u64>,
        version: PgVersion,
        interrupt: &Interrupt,
    ) -> Result<(Input, ScenarioDecoder), Status> {
        let invalid = |text: String| invalid_field("scenario", text).into_status();
        if !Scenario::names().any(|known| known == name) {
            let known: Vec<&str> = Scenario::names().collect();
            return Err(invalid(format!("'{}' is no scenario that ships: {}", name.escape_debug(), known.join(", "))));
        }
        let scenario = Scenario::load(name).map_err(|e| invalid(e.to_string()))?;
        let plan = scenario.plan(overrides).map_err(|e| invalid(e.to_string()))?;
        let decoder = ScenarioDecoder::from(plan.decoder);
        let mut engine = Engine::new(plan, version).map_err(|e| invalid(e.to_string()))?;
        let mut sink = MemorySink::new(version);
        let (mut clock, mut rng) = (VirtualClock::default(), seeded(seed.unwrap_or(scenario.seed())));
        while engine.step(&mut clock, &mut rng, &mut sink).map_err(|e| invalid(e.to_string()))? != Step::Done {
            let max = self.limits.scenario_records_max;
            if sink.records.len() > max {
                let text = format!("the scenario has more records than analysis.scenario_records_max = {max}: make it smaller");
                return Err(too_large(&text, "analysis.scenario_records_max"));
            }
            if interrupt.is_raised() {
                return Err(Status::cancelled("the call is gone"));
            }
        }
        Ok((Input::Records(sink.records), decoder))
    }
}

/// A limit of the settings is reached.
fn too_large(text: &str, key: &'static str) -> Status {
    failure(Reason::AnalysisLimit, text).metadata("key", key).quota("analysis", text).into_status()
}

impl Input {
    /// Calls `f` for every record until it gives false.
    ///
    /// # Errors
    ///
    /// A record cannot be read, or what `f` says.
    pub(crate) fn each(&self, mut f: impl FnMut(&WalRecord) -> Result<bool, NodeError>) -> Result<(), NodeError> {
        match self {
            Input::Records(records) => {
                for record in records {
                    if !f(record)? {
                        break;
                    }
                }
            }
            Input::Wal { wal, batches, to } => {
                for place in batches.iter().flat_map(places) {
                    let (lsn, end_lsn, bytes) = place?;
                    if end_lsn > *to || !f(&pg_wal::decode_bytes(wal, lsn, end_lsn, bytes, Crc::Check)?)? {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Start of the first record, end of the last, and how many there are.
    ///
    /// # Errors
    ///
    /// As [`Input::each`].
    pub(crate) fn extent(&self) -> Result<(Lsn, Lsn, u64), NodeError> {
        let (mut start, mut end, mut count) = (Lsn::INVALID, Lsn::INVALID, 0);
        self.each(|record| {
            if count == 0 {
                start = record.lsn;
            }
            (end, count) = (record.end_lsn, count + 1);
            Ok(true)
        })?;
        Ok((start, end, count))
    }

    /// Whether the record at `lsn` is a PREPARE.
    ///
    /// # Errors
    ///
    /// As [`Input::each`].
    pub(crate) fn is_prepare(&self, lsn: Lsn) -> Result<bool, NodeError> {
        let mut found = false;
        self.each(|record| {
            found |= record.lsn == lsn && matches!(record.body, RecordBody::Prepare(_));
            Ok(record.lsn < lsn)
        })?;
        Ok(found)
    }

    /// The database of the first change of a row in it.
    pub(crate) fn database(&self) -> Result<Oid, NodeError> {
        let mut found = Oid::INVALID;
        self.each(|record| {
            if let Some(database) = crate::pipeline::database_of(&record.body) {
                found = database;
            }
            Ok(!found.is_valid())
        })?;
        Ok(found)
    }

    /// Decodes all of it under a profile; gives what it came to and its CPU time in nanoseconds.
    ///
    /// # Errors
    ///
    /// It cannot be decoded, or was interrupted.
    pub(crate) fn outcome(&self, profile: &Profile, maker: &Maker) -> Result<(Outcome, u64), NodeError> {
        let before = thread_cpu_time();
        let mut contender = Contender::new(maker.decoder(profile, false)?);
        self.each(|record| Ok(contender.process(record).map(|()| true)?))?;
        let cpu = thread_cpu_time().saturating_sub(before);
        Ok((contender.outcome(), u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// What a profile would have done to the transaction that commits at `commit_lsn`, if it is in it; decoding begins with the first
    /// record, as a decoder that resumes there.
    ///
    /// # Errors
    ///
    /// As [`Input::outcome`].
    pub(crate) fn forecast(&self, profile: &Profile, maker: &Maker, commit_lsn: Lsn) -> Result<Option<Forecast>, NodeError> {
        let mut contender = Contender::new(maker.decoder(profile, true)?).looking_for(commit_lsn);
        let mut cpu = std::time::Duration::ZERO;
        self.each(|record| {
            let before = thread_cpu_time();
            contender.process(record)?;
            cpu = thread_cpu_time().saturating_sub(before);
            Ok(record.lsn < commit_lsn)
        })?;
        let cpu_ns = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        Ok(contender.found().map(|work| Forecast { profile: profile.clone(), work, cpu_ns }))
    }
}

impl Maker {
    /// A decoder of a profile; one that `resumes` counts as consistent from the first record on.
    fn decoder(&self, profile: &Profile, resumes: bool) -> Result<Decoder, NodeError> {
        let profile = self.set_up.profile(profile.clone());
        let config = decoder_core::DecoderConfig::new(self.version, profile, self.database);
        let (work_mem, two_phase) =
            (self.set_up.work_mem.unwrap_or(self.work_mem), self.at_prepare.then(decoder_core::TwoPhase::default));
        let config = decoder_core::DecoderConfig { work_mem, two_phase, ..config };
        let catalog = Arc::clone(&self.catalog);
        let decoder = if resumes { Decoder::resume(config, catalog) } else { Decoder::new(config, catalog) };
        let mut decoder = decoder.stopped_by(self.interrupt.clone());
        decoder.register_callbacks(self.set_up.callbacks).map_err(|e| NodeError::Callbacks(e.to_string()))?;
        Ok(decoder)
    }
}
