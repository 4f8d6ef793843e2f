//! `walstorm bench standby`: sessions that load a standby while it replays, and what it does under them.
//!
//! ```text
//!  source ──► primary ──StreamWal──► standby (threads of its own) ◄─OpenCatalogSession── sessions
//! ```
//!
//! Reading order: [`nodes`] are what is loaded, [`load`] are the sessions, [`tally`] is what they did, [`show`] what is printed.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use primary_core::Overrides;
use primary_node::config::{ClockMode, SourceConfig};
use service_kit::client::{self, ClientConfig};
use standby_core::StandbyProfile;
use standby_node::config::SizeSettings;
use tokio::signal::unix::{SignalKind, signal};
use tonic::transport::{Channel, Endpoint};
use walstorm_proto::standby::v1::standby_service_client::StandbyServiceClient;
use walstorm_proto::standby::v1::{CatalogSnapshotRule, CpuTime, GetRecoveryStateRequest, GetRecoveryStateResponse};

use crate::notes::{Stdout, note};
use crate::run::ladder::{Ladder, Side};
use crate::run::paint::Paint;
use crate::run::source::{self, SourceKind};
use crate::run::{ScenarioArgs, parameters, play, profiles, sample_wal};

pub mod load;
pub mod nodes;
pub mod show;
pub mod tally;

use load::{Load, Sessions, Workload};
use nodes::Nodes;
use tally::Tally;

/// Exit code when steps failed.
const FAILED: u8 = 3;

/// Sessions at most.
const SESSIONS_MAX: i64 = 10_000;

/// Steps in a second at most.
const RATE_MAX: i64 = 1_000_000;

/// Shortest measurement.
const DURATION_MIN: Duration = Duration::from_millis(100);

/// Share of the rate asked for that counts as reached.
const RATE_REACHED: f64 = 0.95;

/// Time between two looks at the standby's array.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Profiles where there are no published figures.
const PROFILES: [&str; 3] = ["pg13.6", "pg18", "indexed"];

/// Database of the sessions, unless another one is named: the one that scenarios play in.
const DATABASE: u32 = primary_core::catalog::DATABASE.0;

/// Arguments of `walstorm bench standby`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// What is replayed meanwhile: a scenario's name or file (*.toml), played at its own pace, or a directory of WAL.
    #[arg(value_name = "SOURCE", default_value = "standby-gaps")]
    source: String,
    /// A standby that runs already, instead of nodes of one's own; SOURCE and what belongs to it are left out.
    #[arg(long, value_name = "URL", conflicts_with_all = ["source", "profiles", "seed", "set", "small"])]
    standby: Option<String>,
    /// What the sessions do.
    #[arg(long, value_enum, default_value = "snapshots")]
    workload: Workload,
    /// Profiles of the standby, separated by commas, a run each; default: those with published figures, or pg13.6, pg18, indexed; for
    /// catalogs pg18.
    #[arg(long, value_name = "P,P,...", value_delimiter = ',')]
    profiles: Vec<String>,
    /// When sessions keep a catalog snapshot, separated by commas, a run each: always-new, mail-2013, kept-at-connect, today; default:
    /// all of them for catalogs, else today.
    #[arg(long, value_name = "R,R,...", value_delimiter = ',', value_enum)]
    rules: Vec<Rule>,
    /// Sessions at a time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=SESSIONS_MAX))]
    sessions: u32,
    /// Steps that all sessions begin together in a second; default: each begins one when its last is done.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=RATE_MAX))]
    rate: Option<u32>,
    /// How long is measured, each run.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// How long sessions and source run before that.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    warm_up: Duration,
    /// Oid of the sessions' database.
    #[arg(long, value_name = "OID", default_value_t = DATABASE)]
    database: u32,
    /// How a scenario is played.
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// One JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
}

/// Help after the options.
const AFTER_HELP: &str = "\
Sessions are streams of OpenCatalogSession. A step of `snapshots` is a transaction that takes its snapshot; of `catalog-scans`, one that
also scans the catalogs that a session's start reads; of `connection-storm`, a session that starts, takes a snapshot and leaves. With
--rate a step's latency counts from when it was due.

The share of CPU is that of taking snapshots in what the standby's serving threads used; it is measured, as all rates and latencies are.
Slots, snapshots and messages are counted.

With --json a line is an object with the keys source, profile, rule, workload, sessions, measured_s, done, failed, per_s, latency_ns (p50,
p95, p99, max), snapshots, reused, scans, slots_visited, slots_skipped, messages, resets, span_max, live_max, records_replayed,
cpu_serving_ns, cpu_snapshots_ns, cpu_walks_ns, xids_bytes_max.

Exit code: 0; 3 if steps failed; 1 on errors.";

/// When sessions keep a catalog snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Rule {
    /// One for each scan.
    AlwaysNew,
    /// As in the patch of June 2013.
    #[value(name = "mail-2013")]
    Mail2013,
    /// As today, but kept when the database becomes known.
    KeptAtConnect,
    /// As released.
    Today,
}

impl Rule {
    /// As messages have it.
    #[must_use]
    pub fn message(self) -> CatalogSnapshotRule {
        match self {
            Self::AlwaysNew => CatalogSnapshotRule::AlwaysNew,
            Self::Mail2013 => CatalogSnapshotRule::Mail2013,
            Self::KeptAtConnect => CatalogSnapshotRule::KeptAtConnect,
            Self::Today => CatalogSnapshotRule::Today,
        }
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct Row {
    /// Profile of the standby.
    pub profile: String,
    /// When sessions kept a catalog snapshot.
    pub rule: Rule,
    /// What they did.
    pub tally: Tally,
    /// How long it was measured.
    pub measured: Duration,
    /// What the standby did meanwhile.
    pub standby: Meanwhile,
}

/// What a standby did while it was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meanwhile {
    /// Most slots from tail to head that a look found.
    pub span_max: u32,
    /// Most live xids that a look found.
    pub live_max: u32,
    /// Records replayed.
    pub records_replayed: u64,
    /// CPU time of the threads that serve, in nanoseconds; none where the kernel does not tell.
    pub cpu_serving_ns: Option<u64>,
    /// In it: taking snapshots.
    pub cpu_snapshots_ns: Option<u64>,
    /// In that: walks over the known-assigned xids.
    pub cpu_walks_ns: Option<u64>,
    /// Most bytes of the known-assigned xids that a look found.
    pub xids_bytes_max: u64,
}

/// What the source is, for nodes of one's own.
struct Source {
    /// Its name.
    name: String,
    /// For the primary.
    config: SourceConfig,
    /// For the standby.
    settings: SizeSettings,
    /// Figures of others.
    ladder: Option<&'static Ladder>,
    /// Deleted afterwards, if the WAL had to be unpacked.
    _folder: Option<tempfile::TempDir>,
}

/// Runs the command.
///
/// # Errors
/// An argument is wrong, a node does not start, or the standby cannot be reached.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    for profile in &args.profiles {
        profile.parse::<StandbyProfile>()?;
    }
    if let Some(endpoint) = &args.standby {
        client::endpoint(&ClientConfig { endpoint: endpoint.clone(), ..ClientConfig::default() }).context("--standby")?;
    }
    if args.duration < DURATION_MIN {
        bail!("--duration {:?} is too short to measure anything: give {DURATION_MIN:?} or more, as 10s", args.duration);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut runs = Runs::default();
    let done = runtime.block_on(async {
        tokio::select! {
            done = run(args, &mut runs) => done,
            // What runs is dropped, so the nodes' folder goes, too.
            signal = ended() => Err(signal),
        }
    });
    runtime.shutdown_background();
    let Runs { source, rows } = runs;
    if done.is_ok() || !rows.is_empty() {
        let shown =
            if args.json { show::json(args, &source, &rows)? } else { show::text(args, &source, &rows, Paint::for_stdout()) };
        let mut stdout = Stdout::new();
        stdout.write_all(shown.as_bytes()).and_then(|()| stdout.flush())?;
    }
    done?;
    for row in &rows {
        tell_rate_out_of_reach(args, row);
    }
    let failed = rows.iter().any(|row| row.tally.counts.failed > 0);
    Ok(if failed { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

/// Says so if the sessions did not keep up with `--rate`.
fn tell_rate_out_of_reach(args: &Args, row: &Row) {
    let Some(rate) = args.rate.map(f64::from) else { return };
    let reached = show::per_second(row);
    if reached < RATE_REACHED * rate {
        let of = if row.profile.is_empty() { String::new() } else { format!(" under {}", row.profile) };
        let text = format!(
            "--rate {rate} was not reached{of}, but {reached:.0}: latencies count the waiting, too; lower it, or raise --sessions"
        );
        note(&mut std::io::stderr(), text);
    }
}

/// Waits for SIGINT or SIGTERM; gives it as the reason to end.
async fn ended() -> anyhow::Error {
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signals) => drop(signals.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => anyhow::anyhow!("interrupted: no more than the complete runs is shown"),
        () = terminated => anyhow::anyhow!("terminated: no more than the complete runs is shown"),
    }
}

/// Runs so far.
#[derive(Default)]
struct Runs {
    /// Name of the source, or where the standby is.
    source: String,
    /// Complete runs.
    rows: Vec<Row>,
}

/// All runs, each of which is in `runs` when it is complete.
async fn run(args: &Args, runs: &mut Runs) -> anyhow::Result<()> {
    let rules = rules(args);
    if let Some(endpoint) = &args.standby {
        runs.source.clone_from(endpoint);
        for rule in rules {
            runs.rows.push(measure(args, endpoint, String::new(), rule).await?);
        }
        return Ok(());
    }
    let source = open(args)?;
    if args.sessions > source.settings.max_connections {
        bail!(
            "--sessions {} is more than the {} that the standby's max_connections has room for: use a scenario with more",
            args.sessions,
            source.settings.max_connections
        );
    }
    runs.source.clone_from(&source.name);
    for profile in chosen_profiles(args, &source) {
        for &rule in &rules {
            let nodes = Nodes::start(source.config.clone(), &profile, source.settings).await?;
            let row = measure(args, &nodes.endpoint(), profile.clone(), rule).await;
            nodes.stop().await?;
            runs.rows.push(row?);
        }
    }
    Ok(())
}

/// The rules of the runs.
fn rules(args: &Args) -> Vec<Rule> {
    match args.workload {
        _ if !args.rules.is_empty() => args.rules.clone(),
        Workload::Snapshots => vec![Rule::Today],
        Workload::CatalogScans | Workload::ConnectionStorm => {
            vec![Rule::AlwaysNew, Rule::Mail2013, Rule::KeptAtConnect, Rule::Today]
        }
    }
}

/// The profiles of the runs.
fn chosen_profiles(args: &Args, source: &Source) -> Vec<String> {
    if !args.profiles.is_empty() {
        return args.profiles.clone();
    }
    if args.workload != Workload::Snapshots {
        return vec!["pg18".to_owned()];
    }
    let rungs = source.ladder.map(|ladder| ladder.rungs.iter().map(|rung| rung.profile.to_owned()).collect());
    rungs.unwrap_or_else(|| PROFILES.map(str::to_owned).into())
}

/// The source that the arguments name, as a primary plays it.
fn open(args: &Args) -> anyhow::Result<Source> {
    let set = parameters(&args.scenario.set)?;
    let mut sources = source::resolve(std::slice::from_ref(&args.source))?;
    source::check_parameters(&sources, &set)?;
    let source = sources.pop().context("no source")?;
    let mut settings = SizeSettings { max_prepared_transactions: 100, ..SizeSettings::default() };
    let of_wal = |dir: &Path| SourceConfig { wal_dir: Some(dir.to_owned()), ..SourceConfig::default() };
    let name = source.name;
    match source.kind {
        SourceKind::Sample => {
            let folder = tempfile::tempdir().context("make a folder for the sample WAL")?;
            let wal = folder.path().join("wal");
            sample_wal::unpack(&wal, &folder.path().join("catalog"))?;
            profiles::survey(&wal, &mut settings)?;
            Ok(Source { name, config: of_wal(&wal), settings, ladder: None, _folder: Some(folder) })
        }
        SourceKind::WalDir(wal) => {
            profiles::survey(&wal, &mut settings)?;
            Ok(Source { name, config: of_wal(&wal), settings, ladder: None, _folder: None })
        }
        SourceKind::Scenario { scenario, file, .. } => {
            let mut overrides = if args.scenario.small { scenario.small().clone() } else { Overrides::new() };
            overrides.extend(set);
            let settings = play::sizes_of(&scenario.plan(&overrides)?);
            let ladder = Ladder::of(scenario.name()).filter(|ladder| file.is_none() && ladder.side == Side::Standby);
            let seed = args.scenario.seed.unwrap_or(scenario.seed());
            let config = play::played_by_primary(&scenario, file.as_deref(), overrides, seed);
            let config = SourceConfig { clock: ClockMode::Real, ..config };
            Ok(Source { name, config, settings, ladder, _folder: None })
        }
    }
}

/// One run against the standby at `endpoint`.
async fn measure(args: &Args, endpoint: &str, profile: String, rule: Rule) -> anyhow::Result<Row> {
    let load = Load {
        endpoint: endpoint.to_owned(),
        workload: args.workload,
        rule: rule.message(),
        database: args.database,
        sessions: args.sessions,
        rate: args.rate,
    };
    let channel = Endpoint::from_shared(load.endpoint.clone())?.connect().await;
    let mut client = StandbyServiceClient::new(channel.with_context(|| format!("connect to the standby at {endpoint}"))?);
    let sessions = Sessions::start(&load).await?;
    tokio::time::sleep(args.warm_up).await;
    let before = recovery_state(&mut client).await?;
    sessions.measure();
    let begun = Instant::now();
    let (mut span_max, mut live_max, mut xids_bytes_max) = (0, 0, 0);
    while begun.elapsed() < args.duration {
        tokio::time::sleep(LOOK_EVERY.min(args.duration.saturating_sub(begun.elapsed()))).await;
        let state = recovery_state(&mut client).await?;
        span_max = span_max.max(state.array_head.wrapping_sub(state.array_tail));
        live_max = live_max.max(state.array_live);
        xids_bytes_max = xids_bytes_max.max(state.xids_bytes);
    }
    let measured = begun.elapsed();
    let after = recovery_state(&mut client).await?;
    let tally = sessions.finish().await?;
    if !after.not_serving.is_empty() {
        note(&mut std::io::stderr(), format_args!("the standby is not to be used: {}", after.not_serving));
    }
    let profile = if profile.is_empty() { after.profile.clone() } else { profile };
    let standby = Meanwhile { span_max, live_max, xids_bytes_max, ..meanwhile(&before, &after) };
    Ok(Row { profile, rule, tally, measured, standby })
}

/// How far the standby is.
async fn recovery_state(client: &mut StandbyServiceClient<Channel>) -> anyhow::Result<GetRecoveryStateResponse> {
    let answer = client.get_recovery_state(GetRecoveryStateRequest {}).await;
    Ok(answer
        .map_err(|status| anyhow::anyhow!("ask the standby how far it is: {}", service_kit::client::describe(&status)))?
        .into_inner())
}

/// What the standby did between two looks.
fn meanwhile(before: &GetRecoveryStateResponse, after: &GetRecoveryStateResponse) -> Meanwhile {
    let ns = |time: Option<prost_types::Duration>| u64::try_from(Duration::try_from(time?).ok()?.as_nanos()).ok();
    let cpu = |state: &GetRecoveryStateResponse| state.cpu_time.unwrap_or_default();
    let (before_cpu, after_cpu) = (cpu(before), cpu(after));
    let used =
        |of: fn(&CpuTime) -> Option<prost_types::Duration>| Some(ns(of(&after_cpu))?.saturating_sub(ns(of(&before_cpu))?));
    Meanwhile {
        records_replayed: after.records_replayed.saturating_sub(before.records_replayed),
        cpu_serving_ns: used(|cpu| cpu.serving),
        cpu_snapshots_ns: used(|cpu| cpu.snapshots),
        cpu_walks_ns: used(|cpu| cpu.walks),
        ..Meanwhile::default()
    }
}
