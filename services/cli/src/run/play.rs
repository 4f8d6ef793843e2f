//! One source, played: through three nodes over gRPC, then under every profile.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use decoder_core::{Consumer, PluginOptions, Profile};
use decoder_node::ScenarioDecoder;
use indicatif::ProgressBar;
use pg_types::{Lsn, PgVersion};
use pg_wal::WalDir;
use primary_core::scenario::{Plan, ServerPlan};
use primary_core::{Engine, Overrides, Scenario};
use primary_node::config::{ClockMode, SourceConfig};
use service_kit::telemetry::{Export, Sampler, SamplingConfig};
use standby_core::StandbyProfile;
use standby_node::config::SizeSettings;

use super::Settings;
use super::cluster::{Cluster, ClusterConfig, Reached};
use super::ladder::{Ladder, Side};
use super::out_dir::{create_private, make_dir};
use super::profiles::{self, survey};
use super::readers::{ReaderTrace, Readers};
use super::report::{
    DecoderProfileReport, DecoderProfileTimings, PipelineReport, SourceReport, SourceTimings, StandbyProfileReport,
    StandbyProfileTimings,
};
use super::sample_wal;
use super::source::{Source, SourceKind};
use super::standby_profiles::{SnapshotPlan, measure};
use super::subscriber::Subscriber;
use crate::scenario_log::rehearse;

/// Profiles under which a real WAL is decoded, beside that of its own version.
const WAL_PROFILES: [&str; 5] = ["pg96", "pg10", "pg13", "pg14", "indexed"];
/// Profiles under which readers of a standby walk over a real WAL, beside that of its own version.
const WAL_STANDBY_PROFILES: [&str; 2] = ["pg13.6", "indexed"];
/// Version whose WAL scenarios write.
const SCENARIO_VERSION: PgVersion = PgVersion::V18;
/// Snapshots a second of a WAL's own time, where no scenario says otherwise.
const SNAPSHOTS_PER_SECOND: u64 = 100;
/// A transaction with so many invalidation messages is traced, whatever its share.
const MARK_MESSAGES: u64 = 50;
/// Sessions that read the running standby.
const READERS: u32 = 4;
/// Snapshots a second that they take together, at most.
const LIVE_SNAPSHOTS_PER_SECOND_MAX: u64 = 2000;

/// How a source is set up.
struct SetUp {
    /// For the primary.
    source: SourceConfig,
    /// WAL that is there already; a scenario's comes with the run.
    wal_dir: Option<PathBuf>,
    /// Folder with names of relations.
    catalog: Option<PathBuf>,
    /// How decoders are set up.
    decoder: ScenarioDecoder,
    /// Settings of the standby.
    standby_settings: SizeSettings,
    /// Snapshots a second.
    snapshots_per_second: u64,
    /// Parameters that were asked for, or that a sweep sets.
    chosen: Overrides,
}

/// Plays `source` with what the nodes keep in `folder`.
///
/// # Errors
/// A node does not start, the WAL cannot be read, a profile cannot decode it.
pub async fn play(
    source: &Source,
    settings: &Settings,
    folder: &Path,
    export: Export,
    bar: &ProgressBar,
) -> anyhow::Result<(SourceReport, SourceTimings)> {
    let ladder = match &source.kind {
        SourceKind::Scenario { file: None, scenario, .. } => Ladder::of(scenario.name()),
        _ => None,
    };
    let mut set_up = set_up(source, settings, ladder, folder)?;
    bar.set_message(format!("{}: reading the WAL", source.name));
    let read = set_up.wal_dir.as_deref().map(|dir| survey(dir, &mut set_up.standby_settings)).transpose()?;
    bar.set_message(format!("{}: through the nodes", source.name));
    let mut timings = SourceTimings { source: source.name.clone(), ..SourceTimings::default() };
    let (pipeline, wal_dir) = pipeline(&set_up, settings, folder, export, bar, &mut timings).await?;
    let wal = read.map_or_else(|| survey(&wal_dir, &mut set_up.standby_settings), Ok)?;

    let chosen = !set_up.chosen.is_empty();
    let mut report = SourceReport {
        source: source.name.clone(),
        kind: match &source.kind {
            SourceKind::Sample => "sample",
            SourceKind::WalDir(_) => "wal",
            SourceKind::Scenario { .. } => "scenario",
        },
        about: source.about(),
        // Other sizes were asked for, so the ladder's are not those that were played.
        scale: ladder.filter(|_| !chosen).map(|l| l.scale_text.to_owned()).unwrap_or_default(),
        seed: set_up.source.scenario.as_ref().and(set_up.source.seed),
        parameters: set_up.source.parameters.clone(),
        is_point: matches!(&source.kind, SourceKind::Scenario { point: Some(_), .. }),
        wal,
        pipeline,
        consumer: set_up.decoder.consumer(settings.consumer).unwrap_or_default().to_string(),
        ranked_by: String::new(),
        steps_all: 0,
        missing_publications: Vec::new(),
        costliest: Vec::new(),
        decoder_profiles: Vec::new(),
        standby_profiles: Vec::new(),
    };
    let own = format!("pg{}", report.wal.version);
    let catalog = set_up.catalog.as_deref();
    let decoder = set_up.decoder;
    let consumer = decoder.consumer(settings.consumer);
    let options = &settings.options;
    let played = Played { wal_dir: &wal_dir, catalog, decoder, options, consumer, own: &own, ladder, bar };
    if ladder.is_none_or(|l| l.side == Side::Decoder) {
        let names = settings.decoder_profiles(ladder.map(|l| l.rungs), &own, &WAL_PROFILES);
        tokio::task::block_in_place(|| decode_under(&played, &names, &mut report, &mut timings))?;
    }
    if ladder.is_none_or(|l| l.side == Side::Standby) {
        let names = settings.standby_profiles(ladder.map(|l| l.rungs), &own, &WAL_STANDBY_PROFILES);
        let plan = SnapshotPlan { settings: set_up.standby_settings.into(), per_second: set_up.snapshots_per_second };
        tokio::task::block_in_place(|| read_under(&played, &names, &plan, &mut report, &mut timings))?;
    }
    Ok((report, timings))
}

/// Where the WAL comes from, and what the nodes must know.
fn set_up(source: &Source, settings: &Settings, ladder: Option<&Ladder>, folder: &Path) -> anyhow::Result<SetUp> {
    let mut set_up = SetUp {
        source: SourceConfig::default(),
        wal_dir: None,
        catalog: settings.catalog.clone(),
        decoder: ScenarioDecoder::default(),
        standby_settings: SizeSettings { max_prepared_transactions: 100, ..SizeSettings::default() },
        snapshots_per_second: SNAPSHOTS_PER_SECOND,
        chosen: Overrides::new(),
    };
    match &source.kind {
        SourceKind::Sample => {
            let (wal, catalog) = (folder.join("wal"), folder.join("catalog"));
            sample_wal::unpack(&wal, &catalog)?;
            set_up.catalog = Some(catalog);
            set_up.wal_dir = Some(wal);
        }
        SourceKind::WalDir(path) => set_up.wal_dir = Some(path.clone()),
        SourceKind::Scenario { scenario, file, point } => {
            if settings.small {
                set_up.chosen.clone_from(scenario.small());
            }
            let point = point.as_ref();
            set_up.chosen.extend(point.map(|point| point.overrides.clone()).unwrap_or_default());
            let asked = settings.set.iter().filter(|(name, _)| scenario.parameters().contains_key(*name));
            set_up.chosen.extend(asked.map(|(name, value)| (name.clone(), value.clone())));
            let mut overrides = ladder.map(Ladder::overrides).unwrap_or_default();
            overrides.extend(set_up.chosen.clone());
            let plan = scenario.plan(&overrides)?;
            let seed = settings.seed.unwrap_or(point.map_or(scenario.seed(), |point| point.seed));
            set_up.source =
                SourceConfig { clock: settings.clock, ..played_by_primary(scenario, file.as_deref(), overrides, seed) };
            set_up.catalog = Some(write_catalog(&folder.join("catalog"), &plan, &set_up.source)?);
            set_up.decoder = plan.decoder.into();
            set_up.standby_settings = sizes_of(&plan);
            if plan.snapshots_per_second > 0 {
                set_up.snapshots_per_second = plan.snapshots_per_second;
            }
        }
    }
    set_up.source.wal_dir.clone_from(&set_up.wal_dir);
    Ok(set_up)
}

/// A scenario, by its name or from its file, as what a primary plays.
pub(crate) fn played_by_primary(scenario: &Scenario, file: Option<&Path>, parameters: Overrides, seed: u64) -> SourceConfig {
    let name = file.map_or_else(|| scenario.name().to_owned(), |path| path.to_string_lossy().into_owned());
    SourceConfig {
        scenario: Some(name),
        parameters,
        seed: Some(seed),
        pg_version: SCENARIO_VERSION.major(),
        segment_bytes: 1 << 20,
        fsync: false,
        ..SourceConfig::default()
    }
}

/// The settings of a standby beside the server of a plan.
pub(crate) fn sizes_of(plan: &Plan) -> SizeSettings {
    let ServerPlan { max_connections, max_prepared_transactions, .. } = plan.server;
    SizeSettings { max_connections, max_prepared_transactions, ..SizeSettings::default() }
}

/// Writes the names of a scenario's relations, so that people need not read file numbers, and what is published. In virtual time, where the
/// log is known before it is written, every file that a relation ever has is named; otherwise those at the beginning.
fn write_catalog(folder: &Path, plan: &Plan, source: &SourceConfig) -> anyhow::Result<PathBuf> {
    make_dir(folder)?;
    let mut engine = Engine::new(plan.clone(), SCENARIO_VERSION)?;
    let class = ("pg_class", engine.catalog().pg_class_csv());
    for (name, csv) in engine.catalog().published_csv().into_iter().chain([class]) {
        write_csv(&folder.join(format!("{name}_start.csv")), &csv)?;
    }
    if let (ClockMode::Virtual, Some(seed)) = (source.clock, source.seed) {
        rehearse(&mut engine, seed, SCENARIO_VERSION, source.segment_bytes)?;
        write_csv(&folder.join("pg_class.csv"), &engine.catalog().pg_class_history_csv())?;
    }
    Ok(folder.to_owned())
}

/// Writes one of its files.
fn write_csv(path: &Path, csv: &str) -> anyhow::Result<()> {
    create_private(path)?.write_all(csv.as_bytes()).with_context(|| format!("write {}", path.display()))
}

/// The three nodes, a subscriber and readers, until both followers have everything. Gives the WAL's directory too.
async fn pipeline(
    set_up: &SetUp,
    settings: &Settings,
    folder: &Path,
    export: Export,
    bar: &ProgressBar,
    timings: &mut SourceTimings,
) -> anyhow::Result<(PipelineReport, PathBuf)> {
    let own = set_up.wal_dir.as_ref().map(|dir| WalDir::open(dir, None)).transpose()?;
    let own = own.map(|dir| format!("pg{}", dir.identity().version));
    let config = ClusterConfig {
        source: set_up.source.clone(),
        data_dir: folder.to_owned(),
        decoder_profile: own
            .as_deref()
            .unwrap_or("indexed")
            .parse::<Profile>()?
            .consumed_by(set_up.decoder.consumer(settings.consumer))
            .name,
        standby_profile: set_up.wal_dir.is_none().then(|| "indexed".to_owned()),
        standby_settings: set_up.standby_settings,
        catalog: set_up.catalog.clone(),
        options: settings.options.clone(),
        sampling: SamplingConfig { ratio: settings.sampling, mark_messages: MARK_MESSAGES, ..SamplingConfig::default() },
        export,
    };
    let decoder_profile = config.decoder_profile.clone();
    let sampler = Sampler::new(&config.sampling)?;
    let begun = Instant::now();
    let cluster = Cluster::start_with(config, set_up.decoder).await?;
    let subscriber = Subscriber::start(cluster.decoder.addr(), cluster.subscriber.clone()).await?;
    // Beside the one who gets everything at its commit, one who gets it as it comes.
    let before_commit = match set_up.decoder.streaming || set_up.decoder.two_phase {
        true => Some(Subscriber::start_in_progress(cluster.decoder.addr()).await?),
        false => None,
    };
    let live_rate = set_up.snapshots_per_second.min(LIVE_SNAPSHOTS_PER_SECOND_MAX);
    let server = cluster.standby.addr();
    let trace = ReaderTrace { tracer: cluster.reader.clone(), sampler, server };
    let readers = Readers::start(server, READERS, live_rate, trace).await?;
    let finished = with_progress(&cluster, bar).await;
    let reached = match finished {
        Ok(reached) => reached,
        Err(error) => {
            // The node that failed says why when it is joined.
            cluster.shutdown().await?;
            return Err(error);
        }
    };
    let decoder = cluster.decoder.state().borrow().clone();
    let standby = cluster.standby.progress().borrow().clone();
    let end = decoder.output_end.min(reached.end);
    let subscriber = subscriber.finished(end).await?;
    let before_commit = match before_commit {
        Some(subscriber) => Some(subscriber.finished_in_progress(end).await?),
        None => None,
    };
    timings.pipeline_wall_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    timings.readers = readers.finish().await;
    let wal_dir = set_up.wal_dir.clone().unwrap_or_else(|| folder.join("primary").join("wal"));
    cluster.shutdown().await?;
    for node in ["decoder", "standby"] {
        let dir = folder.join(node);
        if dir.exists() {
            std::fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
        }
    }
    let report = PipelineReport {
        decoder_profile,
        standby_profile: standby.profile,
        transactions_decoded: decoder.transactions,
        subscriber,
        before_commit,
        decoder_work: decoder.work,
        transactions_replayed: standby.transactions_ended,
        records_replayed: standby.records_replayed,
        standby_state: standby.state.map_or_else(|| "waiting to begin".to_owned(), |state| state.to_string()),
        stopped: reached.stopped,
    };
    Ok((report, wal_dir))
}

/// Waits until the nodes have everything, and shows how far they are. Why the primary cannot write, as on a full disk that it waits for,
/// is said once.
async fn with_progress(cluster: &Cluster, bar: &ProgressBar) -> anyhow::Result<Reached> {
    let finished = cluster.finished();
    tokio::pin!(finished);
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    let writer = cluster.primary.log().writer();
    let mut said = None;
    loop {
        tokio::select! {
            reached = &mut finished => return reached,
            _ = ticks.tick() => show_progress(cluster, bar),
        }
        let fault = writer.as_ref().and_then(|writer| writer.borrow().fault.clone());
        if let Some(fault) = fault.filter(|fault| said.as_ref() != Some(fault)) {
            // Nobody may read it.
            let _ = bar.suspend(|| writeln!(std::io::stderr(), "walstorm: waiting: {}", service_kit::printable(&fault)));
            said = Some(fault);
        }
    }
}

/// How far the nodes are, on the bar.
fn show_progress(cluster: &Cluster, bar: &ProgressBar) {
    let end = cluster.primary.log().end().lsn;
    let start = cluster.primary.log().oldest();
    let decoded = cluster.decoder.state().borrow().decoded_lsn;
    let replayed = cluster.standby.progress().borrow().replay_lsn;
    let done = |lsn: Lsn| lsn.0.saturating_sub(start.0).min(end.0 - start.0);
    bar.set_length((end.0 - start.0).max(1) * 2);
    bar.set_position(done(decoded) + done(replayed));
}

/// WAL that went through the nodes, to be looked at under other profiles.
struct Played<'a> {
    /// Its directory.
    wal_dir: &'a Path,
    /// Folder with names of relations.
    catalog: Option<&'a Path>,
    /// How decoders are set up.
    decoder: ScenarioDecoder,
    /// What the output plugin is asked for.
    options: &'a PluginOptions,
    /// Who decodes, if it was asked for or the scenario says so.
    consumer: Option<Consumer>,
    /// Profile of its own version.
    own: &'a str,
    /// Figures of others.
    ladder: Option<&'a Ladder>,
    /// Tells how far it is.
    bar: &'a ProgressBar,
}

/// The decoder under each profile.
fn decode_under(
    played: &Played<'_>,
    names: &[String],
    report: &mut SourceReport,
    timings: &mut SourceTimings,
) -> anyhow::Result<()> {
    let Played { wal_dir, catalog, decoder, options, consumer, own, ladder, bar } = *played;
    let profiles =
        names.iter().map(|name| Ok(name.parse::<Profile>()?.consumed_by(consumer))).collect::<anyhow::Result<Vec<_>>>()?;
    let rank_by = profiles.iter().find(|p| p.is_named(own)).or(profiles.last()).context("no profile to decode under")?.clone();
    bar.set_length(profiles.len() as u64);
    bar.set_position(0);
    let source = report.source.clone();
    let mut done = 0;
    let result = profiles::run(wal_dir, catalog, (decoder, options), &profiles, &rank_by, &mut |profile| {
        bar.set_message(format!("{source}: decoding as {profile}"));
        bar.set_position(done);
        done += 1;
    })?;
    for row in result.rows {
        let rung = ladder.and_then(|l| l.rung(&row.outcome.profile.name));
        timings.decoder_profiles.push(DecoderProfileTimings {
            profile: row.outcome.profile.name.clone(),
            cpu_ns: row.cpu.total_ns(),
            functions_cpu_ns: row.cpu.by_function().collect(),
            wall_ns: row.wall_ns,
        });
        report.decoder_profiles.push(DecoderProfileReport {
            consumer: row.outcome.profile.consumer.to_string(),
            profile: row.outcome.profile.name,
            published: rung.map_or("", |rung| rung.published),
            real_server: rung.map_or("", |rung| rung.real_server),
            work: row.outcome.work,
            snapshots: row.outcome.snap_build,
            identical_output: row.identical_output,
        });
    }
    report.consumer = rank_by.consumer.to_string();
    report.ranked_by = rank_by.name;
    report.steps_all = result.steps_all;
    report.costliest = result.costliest;
    report.missing_publications = result.missing_publications;
    Ok(())
}

/// Readers of a standby under each profile.
fn read_under(
    played: &Played<'_>,
    names: &[String],
    plan: &SnapshotPlan,
    report: &mut SourceReport,
    timings: &mut SourceTimings,
) -> anyhow::Result<()> {
    let Played { wal_dir, ladder, bar, .. } = *played;
    let dir = WalDir::open(wal_dir, None)?;
    bar.set_length(names.len() as u64);
    bar.set_position(0);
    let mut first = None;
    for (i, name) in names.iter().enumerate() {
        bar.set_message(format!("{}: snapshots as {name}", report.source));
        bar.set_position(i as u64);
        let profile: StandbyProfile = name.parse()?;
        let cost = measure(&dir, profile, plan).with_context(|| format!("replay as {name}"))?;
        let reference = *first.get_or_insert((cost.snapshots, cost.xids_seen));
        let rung = ladder.and_then(|l| l.rung(name));
        timings.standby_profiles.push(StandbyProfileTimings {
            profile: name.clone(),
            snapshot_cpu_ns: cost.snapshot_cpu_ns,
            replay_cpu_ns: cost.replay_cpu_ns,
        });
        report.standby_profiles.push(StandbyProfileReport {
            profile: name.clone(),
            published: rung.map_or("", |rung| rung.published),
            real_server: rung.map_or("", |rung| rung.real_server),
            snapshots: cost.snapshots,
            span_max: cost.span_max,
            live_max: cost.live_max,
            compressions: cost.compressions,
            work: cost.work,
            identical_snapshots: reference == (cost.snapshots, cost.xids_seen),
        });
    }
    Ok(())
}
