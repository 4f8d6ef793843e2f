//! `RunScenario` and its kin: wishes are checked here, before anything is on disk; what is on disk is told as it is.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use primary_core::{Overrides, Scenario, ScenarioError};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tonic::Status;
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::wal::v1 as wal;

use pb::run_scenario_response::Kind;

use super::runs_convert::{finding, names_of, progress, run_message, run_summary, size, time_mode};
use super::{State, convert};
use crate::error::{Error, Result};
use crate::runs::{NewRun, RunPhase, Runs, RunsConfig, Setting, Snapshot, Wish};
use crate::wal_log::LogSource;

/// Runs on a page if the client does not say.
const PAGE_SIZE_DEFAULT: usize = 50;
/// Most runs on a page.
const PAGE_SIZE_MAX: usize = 1000;
/// Most parameters in a request.
const PARAMETERS_MAX: usize = 1000;
/// Most bytes of a parameter's name and value together.
const PARAMETER_BYTES_MAX: usize = 1024;
/// Longest request id.
const REQUEST_ID_MAX: usize = 63;
/// Bounds of the interval of progress.
const PROGRESS_RANGE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(3600));

/// Where responses go.
type Responses = mpsc::Sender<Result<pb::RunScenarioResponse, Status>>;

/// The runs of this primary.
///
/// # Errors
/// It plays none.
pub(super) fn runs_of(state: &State) -> Result<&Runs> {
    state.runs.as_ref().ok_or_else(|| {
        let why = match state.log.source() {
            LogSource::Simulated => "this primary plays the scenario of its configuration, and nothing else",
            _ => "this primary serves WAL that it did not write, and adds nothing to it",
        };
        Error::RunsRefused(why.to_owned())
    })
}

/// Accepts a run, or attaches to it, and tells its story until it ends.
pub(super) async fn run_scenario(state: &Arc<State>, request: pb::RunScenarioRequest, responses: Responses) -> Result<()> {
    let (min, max) = PROGRESS_RANGE;
    let default = Duration::from_secs(1);
    let interval = convert::duration_field("progress_interval", request.progress_interval, default, min, max)?;
    let validate_only = request.validate_only;
    let runs = runs_of(state)?.clone();
    let (version, now_ms) = (state.log.identity().version.major(), state.now_ms());
    let accepting = move || {
        let new = new_run(&runs, request, version, now_ms)?;
        if validate_only {
            return runs.check(&new).map(|()| (None, new));
        }
        runs.accept(&new).map(|accepted| (Some(accepted), new))
    };
    let accepted = tokio::task::spawn_blocking(accepting).await;
    let (accepted, new) = accepted.map_err(|e| Error::Internal(format!("accepting a run failed: {e}")))??;
    let Some((run, attached)) = accepted else {
        let run = Some(pb::Run { pg_version: version, ..super::runs_convert::planned(&new) });
        send(&responses, Kind::Accepted(pb::RunAccepted { run, attached: false })).await;
        return Ok(());
    };
    tokio::select! {
        ended = follow(state, run, attached, interval, &responses) => ended,
        () = responses.closed() => Ok(()),
        () = state.drain.stopping() => Err(Error::Draining),
    }
}

/// Sends one response; nobody may be listening any more.
async fn send(responses: &Responses, kind: Kind) {
    let _ = responses.send(Ok(pb::RunScenarioResponse { kind: Some(kind) })).await;
}

/// Tells a run's story.
async fn follow(
    state: &State,
    mut run: watch::Receiver<Snapshot>,
    attached: bool,
    interval: Duration,
    responses: &Responses,
) -> Result<()> {
    let version = state.log.identity().version.major();
    let mut now = Arc::clone(&run.borrow_and_update());
    let accepted = pb::RunAccepted { run: Some(run_message(&now, version)), attached };
    send(responses, Kind::Accepted(accepted)).await;
    let (mut told, mut next) = (0, Instant::now() + interval);
    loop {
        for found in now.findings.iter().skip(told) {
            send(responses, Kind::Finding(finding(found))).await;
        }
        told = now.findings.len();
        if now.phase != RunPhase::Running {
            send(responses, Kind::Report(pb::RunReport { run: Some(run_message(&now, version)) })).await;
            return Ok(());
        }
        if Instant::now() >= next {
            send(responses, Kind::Progress(progress(&now))).await;
            next = Instant::now() + interval;
        }
        tokio::select! {
            changed = run.changed() => if changed.is_err() {
                return Err(Error::RunNotFound { id: now.id });
            },
            () = tokio::time::sleep_until(next) => {}
            () = state.drain.draining() => {
                let (grace, resume_lsn) = (Some(convert::duration(state.limits.grace)), 0);
                send(responses, Kind::Draining(wal::Draining { grace, resume_lsn })).await;
                return Err(Error::Draining);
            }
        }
        now = Arc::clone(&run.borrow_and_update());
    }
}

/// One run.
pub(super) fn get(state: &State, name: &str) -> Result<pb::Run> {
    let id = run_id(name)?;
    let run = match &state.runs {
        Some(runs) => Arc::clone(&runs.watch(id)?.borrow()),
        None => return Err(Error::RunNotFound { id }),
    };
    Ok(run_message(&run, state.log.identity().version.major()))
}

/// A page of runs.
pub(super) fn list(state: &State, request: &pb::ListRunsRequest) -> Result<pb::ListRunsResponse> {
    let page = match usize::try_from(request.page_size) {
        Err(_) => return Err(Error::field("page_size", "must not be negative")),
        Ok(0) => PAGE_SIZE_DEFAULT,
        Ok(size) => size.min(PAGE_SIZE_MAX),
    };
    // The token is the number before which the page begins: it stays good when runs come and go.
    let before = match request.page_token.as_str() {
        "" => u64::MAX,
        token => token.parse().map_err(|_| Error::field("page_token", "is none that ListRuns gave"))?,
    };
    let all = state.runs.as_ref().map(Runs::newest_first).unwrap_or_default();
    let mut found: Vec<Snapshot> = all.into_iter().filter(|run| run.id < before).take(page + 1).collect();
    let more = found.len() > page;
    found.truncate(page);
    let next_page_token = found.last().filter(|_| more).map(|run| run.id.to_string()).unwrap_or_default();
    let version = state.log.identity().version.major();
    Ok(pb::ListRunsResponse { runs: found.iter().map(|run| run_summary(run, version)).collect(), next_page_token })
}

/// Asks for a run's end.
pub(super) async fn cancel(state: &State, name: &str) -> Result<pb::Run> {
    let id = run_id(name)?;
    let run = blocking(state, id, move |runs| runs.cancel(id)).await?;
    Ok(run_message(&run, state.log.identity().version.major()))
}

/// Forgets a run.
pub(super) async fn delete(state: &State, name: &str) -> Result<()> {
    let id = run_id(name)?;
    blocking(state, id, move |runs| runs.delete(id)).await
}

/// Changes run `id`, which blocks on the disk.
async fn blocking<T: Send + 'static>(
    state: &State,
    id: u64,
    work: impl FnOnce(&Runs) -> Result<T> + Send + 'static,
) -> Result<T> {
    let runs = state.runs.clone().ok_or(Error::RunNotFound { id })?;
    let worked = tokio::task::spawn_blocking(move || work(&runs)).await;
    worked.map_err(|e| Error::Internal(format!("storing a run failed: {e}")))?
}

/// Checks a scenario.
pub(super) fn validate(config: &RunsConfig, request: pb::ValidateScenarioRequest) -> Result<pb::ValidateScenarioResponse> {
    use pb::validate_scenario_request::Scenario as Asked;
    let asked = request.scenario.map(|scenario| match scenario {
        Asked::ScenarioName(name) => Source::Name(name),
        Asked::ScenarioText(text) => Source::Text(text),
    });
    let parameters = parameters(request.parameters)?;
    let checked = check(config, asked, &parameters)?;
    let scenario = &checked.scenario;
    let used = scenario.parameters().iter().map(|(name, value)| {
        let asked = parameters.get(name);
        (name.clone(), asked.cloned().unwrap_or_else(|| value.to_string()))
    });
    Ok(pb::ValidateScenarioResponse {
        name: scenario.name().to_owned(),
        story: scenario.story().to_owned(),
        parameters: used.collect(),
        seed: scenario.seed(),
        size: Some(checked.size),
    })
}

/// The number in `runs/7`.
fn run_id(name: &str) -> Result<u64> {
    let id = name.strip_prefix("runs/").filter(|id| id.bytes().all(|b| b.is_ascii_digit()));
    id.and_then(|id| id.parse().ok()).ok_or_else(|| Error::field("name", "write the run's resource name, as in runs/7"))
}

/// A scenario as a request has it.
enum Source {
    /// By its name.
    Name(String),
    /// By its text.
    Text(String),
}

/// A scenario that may be played here.
struct Checked {
    /// The scenario.
    scenario: Scenario,
    /// It was asked for by its name.
    by_name: bool,
    /// Points of its sweep.
    sweep: Vec<Setting>,
    /// How large it is: the largest of its points.
    size: pb::ScenarioSize,
}

/// Reads a scenario and holds it against the limits.
fn check(config: &RunsConfig, asked: Option<Source>, parameters: &BTreeMap<String, String>) -> Result<Checked> {
    let wrong = |field: &'static str| move |error: ScenarioError| Error::ScenarioField { field, error };
    let (scenario, by_name) = match asked {
        None => return Err(Error::field("scenario", "give scenario_name or scenario_text")),
        // Never a path, and never a text that happens to be in the field for names.
        Some(Source::Name(name)) if !Scenario::names().any(|shipped| shipped == name) => {
            let names: Vec<&str> = Scenario::names().collect();
            return Err(Error::field("scenario_name", format!("no scenario has this name; there are {}", names.join(", "))));
        }
        Some(Source::Name(name)) => (Scenario::load(&name).map_err(wrong("scenario_name"))?, true),
        Some(Source::Text(text)) => {
            config.check_text(&text)?;
            (Scenario::parse("scenario_text", &text).map_err(wrong("scenario_text"))?, false)
        }
    };
    let text_field = if by_name { "scenario_name" } else { "scenario_text" };
    let points = scenario.sweep().map_err(wrong(text_field))?;
    config.check_points(points.len() as u64)?;
    let mut largest = pb::ScenarioSize::default();
    for point in &points {
        let asked = parameters.iter().map(|(name, value)| (name.clone(), value.as_str().into()));
        let overrides: Overrides = asked.chain(point.overrides.clone()).collect();
        let plan = scenario.plan(&overrides).map_err(|error| {
            let field = if error.line == 0 { "parameters" } else { text_field };
            Error::ScenarioField { field, error }
        })?;
        let planned = plan.size();
        config.check_size(&planned)?;
        largest = size(&planned, points.len(), &largest);
    }
    let sweep = points.into_iter().map(|point| Setting { seed: point.seed, parameters: point.overrides }).collect();
    Ok(Checked { scenario, by_name, sweep, size: largest })
}

/// What a request asks for, checked.
fn new_run(runs: &Runs, request: pb::RunScenarioRequest, version: u32, created_at_ms: u64) -> Result<NewRun> {
    use pb::run_scenario_request::Scenario as Asked;
    check_request_id(&request.request_id)?;
    if request.pg_version != 0 && request.pg_version != version {
        return Err(Error::field("pg_version", format!("the log is of version {version}, which its first record fixed")));
    }
    let clock = time_mode(request.time_mode)?;
    let asked = request.scenario.map(|scenario| match scenario {
        Asked::ScenarioName(name) => Source::Name(name),
        Asked::ScenarioText(text) => Source::Text(text),
    });
    let parameters = parameters(request.parameters)?;
    let Checked { scenario, by_name, mut sweep, .. } = check(runs.config(), asked, &parameters)?;
    if let Some(seed) = request.seed {
        if sweep.iter().any(|point| point.seed != scenario.seed()) {
            return Err(Error::field("seed", "is not for a scenario whose sweep sets seeds"));
        }
        sweep.iter_mut().for_each(|point| point.seed = seed);
    }
    let wish = Wish {
        request_id: request.request_id,
        by_name,
        parameters,
        seed: request.seed,
        clock,
        max_txn_rate: request.max_txn_rate,
    };
    Ok(NewRun {
        system_id: runs.system_id(),
        wish,
        scenario: scenario.name().to_owned(),
        text: scenario.text().to_owned(),
        sweep,
        bounds: runs.config().bounds(),
        created_at_ms,
    })
}

/// `[a-zA-Z0-9._-]{0,63}`.
fn check_request_id(id: &str) -> Result<()> {
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if id.len() <= REQUEST_ID_MAX && id.bytes().all(good) {
        return Ok(());
    }
    Err(Error::field("request_id", "an id has at most 63 of the characters a-z, A-Z, 0-9, '.', '_' and '-'"))
}

/// Parameters of a request, not too many and not too long.
fn parameters(asked: HashMap<String, String>) -> Result<BTreeMap<String, String>> {
    if asked.len() > PARAMETERS_MAX {
        return Err(Error::field("parameters", format!("there are {}, and must be at most {PARAMETERS_MAX}", asked.len())));
    }
    if asked.iter().any(|(name, value)| name.len() + value.len() > PARAMETER_BYTES_MAX) {
        return Err(Error::field("parameters", format!("a name with its value has at most {PARAMETER_BYTES_MAX} bytes")));
    }
    names_of(asked)
}
