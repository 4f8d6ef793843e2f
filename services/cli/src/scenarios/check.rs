//! `walstorm scenarios check`: plays a scenario and compares what came out with what it expects.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use comfy_table::{ContentArrangement, Table, presets};
use decoder_core::{Profile, TwoPhase};
use decoder_node::ScenarioDecoder;
use pg_types::PgVersion;
use primary_core::scenario::{Counter, CounterSource, SweepPoint};
use primary_core::{Overrides, Scenario};
use serde_json::json;
use service_kit::printable;
use standby_node::config::SizeSettings;

use super::Of;
use super::list::values;
use crate::compare;
use crate::run::standby_profiles::{self, SnapshotPlan, StandbyCost};
use crate::scenario_log::ScenarioLog;
use crate::wal_input::{Decoding, WalInput};

/// Exit code if something did not come out as expected.
const UNEXPECTED: u8 = 3;
/// Widest output.
const WIDTH: u16 = 120;

/// One expectation at one point.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// As it is written.
    pub that: String,
    /// The left side.
    pub left: f64,
    /// The right side.
    pub right: f64,
    /// It came out.
    pub holds: bool,
}

/// Plays what `of` names, with its sweep, and writes what came out.
///
/// # Errors
/// It cannot be read or played, or expects nothing.
pub(super) fn run(of: &Of, pg_version: u32, seed: Option<u64>, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let (scenario, overrides) = of.read()?;
    let version = PgVersion::ALL.into_iter().find(|version| version.major() == pg_version);
    let version = version.with_context(|| format!("there is no WAL of PostgreSQL {pg_version} here: --pg-version 13 to 18"))?;
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    table.set_header(["at", "expected", "left", "right", "holds"]);
    let (mut all, mut held) = (0, 0);
    for point in points(&scenario, &overrides, seed)? {
        for outcome in check(&scenario, &point.overrides, point.seed, version)? {
            all += 1;
            held += usize::from(outcome.holds);
            let at = format!("seed {} {}", point.seed, values(&point.overrides));
            if of.json {
                let line = json!({
                    "scenario": scenario.name(), "seed": point.seed, "parameters": point.overrides, "version": pg_version,
                    "that": outcome.that, "left": outcome.left, "right": outcome.right, "holds": outcome.holds,
                });
                writeln!(out, "{line}")?;
            }
            let that = printable(&outcome.that).into_owned();
            let holds = if outcome.holds { "yes" } else { "NO" };
            let row =
                [printable(&at).into_owned(), that, outcome.left.to_string(), outcome.right.to_string(), holds.to_owned()];
            table.add_row(row);
        }
    }
    if all == 0 {
        bail!("'{}' expects nothing of PostgreSQL {version}: give it [[expect]]", scenario.name());
    }
    if !of.json {
        writeln!(out, "{table}\n{held} of {all} came out as expected")?;
    }
    Ok(if held == all { ExitCode::SUCCESS } else { ExitCode::from(UNEXPECTED) })
}

/// Where it is played: the points of the sweep, each with what the caller sets; one if the small size was asked for.
fn points(scenario: &Scenario, overrides: &Overrides, seed: Option<u64>) -> anyhow::Result<Vec<SweepPoint>> {
    if !overrides.is_empty() {
        return Ok(vec![SweepPoint { seed: seed.unwrap_or(scenario.seed()), overrides: overrides.clone() }]);
    }
    let mut points = scenario.sweep()?;
    if let Some(seed) = seed {
        points.iter_mut().for_each(|point| point.seed = seed);
        points.dedup();
    }
    Ok(points)
}

/// Plays a scenario once and compares everything that it expects of this version.
///
/// # Errors
/// It cannot be played, or an expectation names a profile that there is not.
pub fn check(scenario: &Scenario, overrides: &Overrides, seed: u64, version: PgVersion) -> anyhow::Result<Vec<Outcome>> {
    let log = ScenarioLog::play(scenario, overrides, seed, version)?;
    let major = u64::from(version.major());
    let plan = log.engine().plan();
    let mut measured = Measured { log: &log, input: None, decoders: BTreeMap::new(), standbys: BTreeMap::new() };
    let mut outcomes = Vec::new();
    for expectation in plan.expect.iter().filter(|expectation| expectation.is_about(major)) {
        for counter in expectation.counters() {
            measured.measure(counter).with_context(|| format!("measure for '{}'", expectation.text.escape_debug()))?;
        }
        let verdict = expectation.evaluate(major, &mut |counter| measured.value(counter));
        let verdict = verdict.map_err(|counter| anyhow::anyhow!("nobody counts '{}'", counter.name.escape_debug()))?;
        let (left, right) = (verdict.left, verdict.right);
        outcomes.push(Outcome { that: expectation.text.clone(), left, right, holds: verdict.holds });
    }
    Ok(outcomes)
}

/// How a profile decodes the scenario: as its `[decoder]` says, as far as the profile can.
fn decoding(decoder: ScenarioDecoder, profile: Profile) -> Decoding {
    Decoding {
        work_mem: decoder.work_mem.unwrap_or_default(),
        streaming: decoder.streaming && profile.streams(),
        two_phase: decoder.two_phase.then(TwoPhase::default),
        profile: decoder.profile(profile),
    }
}

/// What was measured, each profile once.
struct Measured<'a> {
    /// What was played.
    log: &'a ScenarioLog,
    /// Its WAL, once a decoder or a standby is asked.
    input: Option<WalInput>,
    /// What decoders came to, by profile.
    decoders: BTreeMap<String, decoder_core::Outcome>,
    /// Work of readers of a standby by profile.
    standbys: BTreeMap<String, StandbyCost>,
}

impl Measured<'_> {
    /// The WAL.
    fn input(&mut self) -> anyhow::Result<&WalInput> {
        if self.input.is_none() {
            let mut input = WalInput::open(self.log.dir(), None, None)?;
            input.callbacks = self.log.callbacks();
            self.input = Some(input);
        }
        self.input.as_ref().context("the WAL is open")
    }

    /// Makes sure that a counter is known.
    fn measure(&mut self, counter: &Counter) -> anyhow::Result<()> {
        let profile = counter.of.clone().unwrap_or_default();
        match counter.source() {
            CounterSource::Decoder if !self.decoders.contains_key(&profile) => {
                let decoding = decoding(self.log.decoder(), profile.parse()?);
                let (row, _, _) = compare::measure(self.input()?, &decoding, None, &mut |_| ())?;
                self.decoders.insert(profile, row.outcome);
            }
            CounterSource::Standby if !self.standbys.contains_key(&profile) => {
                let parsed = profile.parse::<standby_core::StandbyProfile>()?;
                let plan = self.log.engine().plan();
                let settings = SizeSettings {
                    max_connections: plan.server.max_connections,
                    max_prepared_transactions: plan.server.max_prepared_transactions,
                    ..SizeSettings::default()
                };
                let snapshots = SnapshotPlan { settings: settings.into(), per_second: plan.snapshots_per_second };
                let cost = standby_profiles::measure(self.input()?.dir(), parsed, &snapshots)?;
                self.standbys.insert(profile, cost);
            }
            _ => {}
        }
        Ok(())
    }

    /// A counter's value.
    fn value(&self, counter: &Counter) -> Option<f64> {
        let of = counter.of.as_deref();
        let name = counter.name.as_str();
        let value = match counter.source() {
            CounterSource::Primary => self.log.engine().tally(of)?.get(name)?,
            CounterSource::Decoder => {
                let outcome = self.decoders.get(of?)?;
                match name {
                    "given_at_commit" => outcome.transactions,
                    "given_at_prepare" => outcome.prepared,
                    _ => outcome.work.entries().find(|(key, _)| *key == name)?.1,
                }
            }
            CounterSource::Standby => {
                let cost = self.standbys.get(of?)?;
                match name {
                    "snapshots_taken" => cost.snapshots,
                    "span_max" => cost.span_max.into(),
                    "live_max" => cost.live_max.into(),
                    "compressions" => cost.compressions,
                    "snapshots_suboverflowed" => cost.suboverflowed,
                    _ => cost.work.entries().find(|(key, _)| *key == name)?.1,
                }
            }
        };
        Some(value as f64)
    }
}
