//! ExplainTransaction and CompareProfiles: from requests to work on blocking threads, and back.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use decoder_core::compare::depends_on_the_past;
use decoder_core::footprint::story::catalog_name;
use decoder_core::{Interrupt, NoCatalog, Profile, Summary};
use pg_types::{Lsn, PgVersion, Work, Xid};
use primary_core::Overrides;
use service_kit::Drain;
use service_kit::status::{Reason, failure, invalid_field};
use tokio::sync::mpsc;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};
use walstorm_proto::decoder::v1 as pb;

use super::{Shared, convert, internal, status};
use crate::analysis::{Analyst, Input, Maker, RaisedWhenGone};
use crate::costliest::{Costliest, TransactionCost};
use crate::error::NodeError;
use crate::scenario_decoder::ScenarioDecoder;

/// Profiles that are asked unless others are named.
const PROFILES: [&str; 4] = ["pg13", "pg14", "pg18", "indexed"];

/// Parameters of a scenario at most.
const PARAMETERS_MAX: usize = 100;

/// How a transaction is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// By its xid.
    Xid(Xid),
    /// By start or end of its commit record.
    Lsn(Lsn),
}

/// Answers ExplainTransaction.
pub(super) async fn explain(
    shared: &Arc<Shared>,
    request: pb::ExplainTransactionRequest,
) -> Result<pb::ExplainTransactionResponse, Status> {
    let which = match request.transaction {
        Some(pb::explain_transaction_request::Transaction::Xid(xid)) if xid > 0 => Which::Xid(Xid(xid)),
        Some(pb::explain_transaction_request::Transaction::CommitLsn(lsn)) if lsn > 0 => Which::Lsn(Lsn(lsn)),
        _ => return Err(invalid_field("transaction", "must have xid or commit_lsn, and not 0").into_status()),
    };
    let analyst = &shared.analyst;
    let names: Vec<String> = match request.profiles.is_empty() {
        true => PROFILES.iter().take(analyst.limits.profiles_max).map(|name| (*name).to_owned()).collect(),
        false => request.profiles,
    };
    let profiles = analyst.profiles(&names)?;
    let cost = find(shared, which).await?;
    let version = shared.serving.borrow().as_ref().map(|s| s.version);
    let mut response = story(&cost, version);
    response.profiles.push(forecast(&analyst.checked.profile, &cost.work, cost.cpu_ns, None));
    if request.story_only {
        return Ok(response);
    }
    let others: Vec<Profile> = profiles.into_iter().filter(|profile| *profile != analyst.checked.profile).collect();
    match replay(shared, &cost, others).await {
        Ok(forecasts) => response.profiles.extend(forecasts),
        Err(status) if status.code() == tonic::Code::Cancelled => return Err(status),
        Err(status) => response.not_replayed = status.message().to_owned(),
    }
    Ok(response)
}

/// The transaction among those that are kept.
async fn find(shared: &Arc<Shared>, which: Which) -> Result<TransactionCost, Status> {
    let costliest = Arc::clone(&shared.costliest);
    let search = move || {
        let list = costliest.lock().unwrap_or_else(PoisonError::into_inner);
        let last = |is_it: &dyn Fn(&TransactionCost) -> bool| list.all().filter(|cost| is_it(cost)).last().cloned();
        let found = match which {
            Which::Xid(xid) => last(&|cost| cost.xid == xid),
            // One may end where the next one's commit record starts: what starts there is meant.
            Which::Lsn(lsn) => last(&|cost| cost.commit_lsn == lsn).or_else(|| last(&|cost| cost.end_lsn == lsn)),
        };
        found.ok_or_else(|| not_found(which, &list))
    };
    tokio::task::spawn_blocking(search).await.map_err(|e| internal(&e))?
}

/// It is not among them: what is.
fn not_found(which: Which, list: &Costliest) -> Status {
    let (mut count, mut first, mut last) = (0_u64, Lsn::INVALID, Lsn::INVALID);
    for cost in list.all() {
        if count == 0 {
            first = cost.commit_lsn;
        }
        (count, last) = (count + 1, cost.commit_lsn);
    }
    let asked = match which {
        Which::Xid(xid) => format!("no transaction with xid {xid}"),
        Which::Lsn(lsn) => format!("no transaction whose commit record starts or ends at {lsn}"),
    };
    let text = format!(
        "{asked} is kept: of what was decoded since the start the costliest and the latest are, {count} now, that committed from {first} to \
         {last}; ListTransactions has them, and `walstorm explain` reads any from a directory"
    );
    failure(Reason::TransactionNotFound, text)
        .metadata("kept", count)
        .metadata("firstLsn", first)
        .metadata("lastLsn", last)
        .into_status()
}

/// Everything that needs no WAL.
fn story(cost: &TransactionCost, version: Option<PgVersion>) -> pb::ExplainTransactionResponse {
    let summary: &Summary = &cost.summary;
    let part = |part: decoder_core::footprint::story::Part| pb::StoryPart {
        text: part.text,
        statements: part.statements.into_iter().map(str::to_owned).collect(),
    };
    let relations = summary.relations.iter().map(|r| pb::RelationRows {
        name: r.name.to_string(),
        oid: r.oid.0,
        inserted: r.insert,
        updated: r.update,
        deleted: r.delete,
        truncated: r.truncate,
    });
    let catalogs = summary.footprint.iter().flat_map(|footprint| footprint.catalogs()).map(|rows| pb::CatalogRows {
        catalog: catalog_name(rows.catalog),
        inserted: rows.inserted,
        updated: rows.updated,
        deleted: rows.deleted,
        came_and_went: rows.passing,
        in_place: rows.in_place,
    });
    let counts = summary.footprint.iter().flat_map(|footprint| footprint.counts()).filter(|(_, n)| *n > 0);
    pb::ExplainTransactionResponse {
        transaction: Some(convert::to_transaction_cost(cost, version)),
        story: summary.story().parts.into_iter().map(part).collect(),
        first_lsn: summary.first_lsn.0,
        restart_lsn: summary.restart_lsn.0,
        relations: relations.collect(),
        relations_left_out: summary.relations_left_out,
        catalogs: catalogs.collect(),
        footprint: counts.map(|(name, n)| (name.to_owned(), n)).collect(),
        profiles: Vec::new(),
        not_replayed: String::new(),
    }
}

/// A profile's row; `replayed` under it, or the node's own work.
fn forecast(profile: &Profile, work: &Work, cpu_ns: u64, replayed: Option<()>) -> pb::ProfileForecast {
    let estimated = Work::KEYS.iter().filter(|key| replayed.is_some() && depends_on_the_past(profile, key));
    pb::ProfileForecast {
        profile: profile.name.clone(),
        consumer: profile.consumer.to_string(),
        work: Some(convert::work(work)),
        estimated: estimated.map(|key| (*key).to_owned()).collect(),
        cpu_ns,
        replayed: replayed.is_some(),
    }
}

/// Decodes the transaction again under other profiles.
async fn replay(
    shared: &Arc<Shared>,
    cost: &TransactionCost,
    profiles: Vec<Profile>,
) -> Result<Vec<pb::ProfileForecast>, Status> {
    if profiles.is_empty() {
        return Ok(Vec::new());
    }
    let guard = RaisedWhenGone::default();
    let (version, mut maker) = maker(shared, guard.0.clone())?;
    let (from, to) = (cost.summary.restart_lsn, cost.end_lsn);
    let permit = shared.analyst.permit()?;
    let input = shared.analyst.fetch(from, to, version).await?;
    let commit_lsn = cost.commit_lsn;
    let work = move || -> Result<Vec<pb::ProfileForecast>, NodeError> {
        let mut rows = Vec::new();
        maker.at_prepare = input.is_prepare(commit_lsn)?;
        for profile in &profiles {
            if let Some(found) = input.forecast(profile, &maker, commit_lsn)? {
                rows.push(forecast(&found.profile, &found.work, found.cpu_ns, Some(())));
            }
        }
        Ok(rows)
    };
    let rows = tokio::task::spawn_blocking(work).await.map_err(|e| internal(&e))?.map_err(|e| decode_status(&e));
    drop((permit, guard));
    rows
}

/// How decoders of the node's WAL are made, and its version.
fn maker(shared: &Shared, interrupt: Interrupt) -> Result<(PgVersion, Maker), Status> {
    let serving = shared.serving.borrow().as_ref().map(|s| s.version);
    let database = shared.state.borrow().database;
    let Some(version) = serving.filter(|_| database.is_valid()) else {
        return Err(status::not_ready("nothing is decoded yet"));
    };
    let checked = &shared.analyst.checked;
    let (catalog, work_mem) = (Arc::clone(&checked.catalog), checked.work_mem);
    let set_up = ScenarioDecoder::default();
    Ok((version, Maker { version, database, catalog, work_mem, set_up, at_prepare: false, interrupt }))
}

/// Why WAL could not be decoded again.
fn decode_status(error: &NodeError) -> Status {
    match error {
        NodeError::Decode(decoder_core::DecodeError::Interrupted { .. }) => Status::cancelled(error.to_string()),
        NodeError::Decode(decoder_core::DecodeError::AllocTooLarge { .. }) => {
            failure(Reason::AllocTooLarge, error.to_string()).into_status()
        }
        NodeError::Callbacks(_) => invalid_field("profiles", error.to_string()).into_status(),
        _ => failure(Reason::Internal, error.to_string()).into_status(),
    }
}

/// What CompareProfiles is asked for, checked.
#[derive(Debug)]
pub(super) struct Comparison {
    /// The profiles.
    profiles: Vec<Profile>,
    /// On what.
    input: pb::compare_profiles_request::Input,
    /// When the client wants no more.
    deadline: Option<Duration>,
}

impl Comparison {
    /// Checks a request.
    pub(super) fn new(analyst: &Analyst, request: Request<pb::CompareProfilesRequest>) -> Result<Self, Status> {
        let deadline = deadline(request.metadata())?;
        let request = request.into_inner();
        if request.profiles.is_empty() {
            return Err(invalid_field("profiles", "must have at least one").into_status());
        }
        let profiles = analyst.profiles(&request.profiles)?;
        let input = request.input.ok_or_else(|| invalid_field("input", "must be wal or scenario").into_status())?;
        Ok(Self { profiles, input, deadline })
    }

    /// Decodes under one profile after the other until the client is gone, his deadline has passed or the node stops.
    pub(super) async fn run(self, shared: Arc<Shared>, responses: mpsc::Sender<Result<pb::CompareProfilesResponse, Status>>) {
        let guard = RaisedWhenGone::default();
        let deadline = self.deadline;
        let work = self.work(&shared, guard.0.clone(), &responses);
        let passed = async {
            match deadline {
                Some(deadline) => tokio::time::sleep(deadline).await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            ended = work => ended,
            () = responses.closed() => return,
            () = passed => Err(Status::deadline_exceeded("the call's deadline has passed; ask for fewer profiles or less WAL")),
            () = shared.drain.draining() => Err(Drain::status()),
        };
        drop(guard);
        if let Err(status) = ended {
            // A client that is gone needs no answer.
            drop(responses.send(Err(status)).await);
        }
    }

    /// The same, undisturbed.
    async fn work(
        self,
        shared: &Arc<Shared>,
        interrupt: Interrupt,
        responses: &mpsc::Sender<Result<pb::CompareProfilesResponse, Status>>,
    ) -> Result<(), Status> {
        let _permit = shared.analyst.permit()?;
        let (input, maker) = input(shared, self.input, interrupt).await?;
        let (input, maker) = (Arc::new(input), Arc::new(maker));
        let first = Arc::clone(&input);
        let extent = blocking(move || first.extent()).await?;
        let started = pb::CompareStarted {
            pg_version: maker.version.major(),
            start_lsn: extent.0.0,
            end_lsn: extent.1.0,
            records: extent.2,
        };
        let kind = pb::compare_profiles_response::Kind::Started(started);
        let send = |kind| responses.send(Ok(pb::CompareProfilesResponse { kind: Some(kind) }));
        if send(kind).await.is_err() {
            return Ok(());
        }
        let mut reference = None;
        for profile in self.profiles {
            let (input, maker) = (Arc::clone(&input), Arc::clone(&maker));
            let (outcome, cpu_ns) = blocking(move || input.outcome(&profile, &maker)).await?;
            let result = pb::ProfileResult {
                profile: outcome.profile.name.clone(),
                consumer: outcome.profile.consumer.to_string(),
                work: Some(convert::work(&outcome.work)),
                transactions: outcome.transactions,
                identical_output: *reference.get_or_insert(outcome.digest) == outcome.digest,
                cpu_ns,
                queue_messages: outcome.queue.messages,
                queue_resets: outcome.queue.resets,
            };
            if send(pb::compare_profiles_response::Kind::Result(result)).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// The records of a comparison, and how their decoders are made.
async fn input(
    shared: &Arc<Shared>,
    asked: pb::compare_profiles_request::Input,
    interrupt: Interrupt,
) -> Result<(Input, Maker), Status> {
    match asked {
        pb::compare_profiles_request::Input::Wal(range) => {
            let (version, maker) = maker(shared, interrupt)?;
            let decoded = shared.state.borrow().decoded_lsn;
            let (from, to) = (Lsn(range.from_lsn), if range.to_lsn == 0 { decoded } else { Lsn(range.to_lsn) });
            if to > decoded {
                return Err(status::ahead(to, decoded));
            }
            if from >= to {
                return Err(invalid_field("wal.from_lsn", format!("must be below to_lsn, {to}")).into_status());
            }
            Ok((shared.analyst.fetch(from, to, version).await?, maker))
        }
        pb::compare_profiles_request::Input::Scenario(scenario) => {
            let parameters = parameters(scenario.parameters)?;
            let version = shared.serving.borrow().as_ref().map_or(PgVersion::V18, |s| s.version);
            let (analyst, playing) = (Arc::clone(&shared.analyst), interrupt.clone());
            let play = move || analyst.play(&scenario.name, &parameters, scenario.seed, version, &playing);
            let (input, set_up) = tokio::task::spawn_blocking(play).await.map_err(|e| internal(&e))??;
            let database = input.database().map_err(|e| decode_status(&e))?;
            let work_mem = shared.analyst.checked.work_mem;
            Ok((
                input,
                Maker { version, database, catalog: Arc::new(NoCatalog), work_mem, set_up, at_prepare: false, interrupt },
            ))
        }
    }
}

/// A scenario's parameters.
fn parameters(asked: HashMap<String, String>) -> Result<Overrides, Status> {
    if asked.len() > PARAMETERS_MAX {
        return Err(invalid_field("scenario.parameters", format!("must be at most {PARAMETERS_MAX}")).into_status());
    }
    Ok(asked.into_iter().map(|(name, value)| (name, value.as_str().into())).collect())
}

/// Runs work that takes CPU time off the async threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, NodeError> + Send + 'static) -> Result<T, Status> {
    tokio::task::spawn_blocking(work).await.map_err(|e| internal(&e))?.map_err(|e| decode_status(&e))
}

/// The deadline of a call, as gRPC tells it (`grpc-timeout`): up to eight digits and a unit.
fn deadline(metadata: &MetadataMap) -> Result<Option<Duration>, Status> {
    let Some(text) = metadata.get("grpc-timeout") else { return Ok(None) };
    let bad = || invalid_field("grpc-timeout", "must be up to eight digits and one of H, M, S, m, u, n").into_status();
    let text = text.to_str().map_err(|_| bad())?;
    let (digits, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(bad)?;
    let n: u64 = digits.parse().map_err(|_| bad())?;
    if digits.len() > 8 {
        return Err(bad());
    }
    let duration = match unit {
        "H" => Duration::from_secs(n * 3600),
        "M" => Duration::from_secs(n * 60),
        "S" => Duration::from_secs(n),
        "m" => Duration::from_millis(n),
        "u" => Duration::from_micros(n),
        "n" => Duration::from_nanos(n),
        _ => return Err(bad()),
    };
    Ok(Some(duration))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read_as_grpc_writes_them() {
        let of = |text: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", text.parse().unwrap());
            deadline(&metadata).map_err(|status| status.code())
        };
        assert_eq!(of("15S"), Ok(Some(Duration::from_secs(15))));
        assert_eq!(of("100m"), Ok(Some(Duration::from_millis(100))));
        assert_eq!(of("99999999H"), Ok(Some(Duration::from_secs(99_999_999 * 3600))));
        for bad in ["", "S", "1", "1x", "123456789S", "-1S"] {
            assert_eq!(of(bad), Err(tonic::Code::InvalidArgument), "{bad}");
        }
        assert_eq!(deadline(&MetadataMap::new()).unwrap(), None);
    }
}
