//! ExplainTransaction and CompareProfiles of a running node, against decoders of the core that decode the same with these profiles.

use std::collections::BTreeMap;
use std::sync::Arc;

use decoder_core::compare::depends_on_the_past;
use decoder_core::{Contender, Decoder, NoCatalog, Profile};
use pg_types::{Oid, WalRecord};
use pg_wal::{WalDir, WalProfile, WalReader};
use tonic::transport::Channel;
use tonic::{Code, Request};

use super::*;
use pb::compare_profiles_request::Input;
use pb::compare_profiles_response::Kind as CompareKind;
use pb::explain_transaction_request::Transaction;

/// All records of a directory.
fn records(ready: &Ready) -> Vec<WalRecord> {
    let dir = WalDir::open(ready.wal.path(), None).unwrap();
    let mut reader = WalReader::open(&dir, None).unwrap();
    let mut records = Vec::new();
    while let Some(raw) = reader.next().unwrap() {
        records.push(raw.decode(WalProfile::of(dir.identity().version)).unwrap());
    }
    records
}

/// A decoder of the core for the node's database.
fn contender(ready: &Ready, profile: &str) -> Contender {
    let version = WalDir::open(ready.wal.path(), None).unwrap().identity().version;
    let database = ready.node.state().borrow().database;
    assert_ne!(database, Oid::INVALID);
    let config = decoder_core::DecoderConfig::new(version, profile.parse().unwrap(), database);
    Contender::new(Decoder::new(config, Arc::new(NoCatalog)))
}

/// Work as the node tells it, by key.
fn counters(work: &walstorm_proto::wal::v1::Work) -> BTreeMap<String, u64> {
    let value = format!("{work:?}");
    let fields = value.trim_start_matches("Work {").trim_end_matches('}').split(',');
    fields.filter_map(|f| f.split_once(':')).map(|(k, n)| (k.trim().to_owned(), n.trim().parse().unwrap())).collect()
}

async fn client(ready: &Ready) -> DecoderServiceClient<Channel> {
    ready.node.state().wait_for(|state| state.decoded_lsn >= ready.end).await.unwrap();
    DecoderServiceClient::new(connect(ready.node.addr()).await)
}

fn explain(transaction: Transaction, profiles: &[&str]) -> pb::ExplainTransactionRequest {
    let profiles = profiles.iter().map(|p| (*p).to_owned()).collect();
    pb::ExplainTransactionRequest { transaction: Some(transaction), profiles, story_only: false }
}

fn compare(profiles: &[&str], input: Input) -> pb::CompareProfilesRequest {
    pb::CompareProfilesRequest { profiles: profiles.iter().map(|p| (*p).to_owned()).collect(), input: Some(input) }
}

/// Everything that a comparison answers.
async fn compared(
    client: &mut DecoderServiceClient<Channel>,
    request: impl tonic::IntoRequest<pb::CompareProfilesRequest>,
) -> Result<(pb::CompareStarted, Vec<pb::ProfileResult>), Status> {
    let mut answers = client.compare_profiles(request).await?.into_inner();
    let Some(CompareKind::Started(started)) = answers.message().await?.and_then(|a| a.kind) else { panic!("started") };
    let mut results = Vec::new();
    while let Some(answer) = answers.message().await? {
        let Some(CompareKind::Result(result)) = answer.kind else { panic!("a result") };
        results.push(result);
    }
    Ok((started, results))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_is_explained_as_its_profiles_decode_it() {
    let ready = Ready::new(16, |c| c.profile = "pg13".to_owned()).await;
    let mut client = client(&ready).await;
    let order = pb::ListTransactionsRequest { order_by: "messages_executed desc".to_owned(), ..Default::default() };
    let top = client.list_transactions(order).await.unwrap().into_inner().transactions.remove(0);
    let profiles = ["pg96", "pg13", "pg14", "pg18", "indexed"];
    let by_xid = client.explain_transaction(explain(Transaction::Xid(top.xid), &profiles)).await.unwrap().into_inner();
    assert_eq!(by_xid.transaction, Some(top.clone()));
    assert!(!by_xid.story.is_empty() && by_xid.story.iter().any(|part| !part.statements.is_empty()), "{:?}", by_xid.story);
    assert!(by_xid.catalogs.iter().any(|rows| rows.catalog == "pg_class"), "{:?}", by_xid.catalogs);
    assert!(by_xid.footprint["new_cids"] > 0 && by_xid.restart_lsn <= by_xid.first_lsn);
    assert_eq!(by_xid.not_replayed, "");
    for lsn in [top.commit_lsn, top.end_lsn] {
        let story = pb::ExplainTransactionRequest { story_only: true, ..explain(Transaction::CommitLsn(lsn), &[]) };
        let told = client.explain_transaction(story).await.unwrap().into_inner();
        assert_eq!((told.story, told.profiles.len()), (by_xid.story.clone(), 1), "the node's own profile alone");
    }
    let told: Vec<&str> = by_xid.profiles.iter().map(|p| p.profile.as_str()).collect();
    assert_eq!(told, ["pg13", "pg96", "pg14", "pg18", "indexed"], "its own first");
    let records = records(&ready);
    for row in &by_xid.profiles {
        let mut true_decode = contender(&ready, &row.profile).looking_for(Lsn(top.commit_lsn));
        records.iter().for_each(|record| true_decode.process(record).unwrap());
        let told = counters(row.work.as_ref().unwrap());
        let profile: Profile = row.profile.parse().unwrap();
        for (key, n) in true_decode.found().unwrap().entries() {
            let estimated = row.estimated.iter().any(|e| e == key);
            assert_eq!(estimated, row.replayed && depends_on_the_past(&profile, key), "{} {key}", row.profile);
            assert!(estimated || told[key] == n, "{} {key}: {} told, {n} in a true decode", row.profile, told[key]);
        }
        assert_eq!(row.replayed, row.profile != "pg13");
    }
    ready.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_explained_or_compared_is_told_with_its_remedy() {
    let limits = |c: &mut DecoderConfig| {
        (c.analysis.wal_bytes_max, c.analysis.profiles_max, c.analysis.scenario_records_max) = (4096, 3, 1000);
        c.costliest = 5;
    };
    let ready = Ready::new(15, limits).await;
    let mut client = client(&ready).await;
    for unknown in [Transaction::Xid(4_000_000_000), Transaction::CommitLsn(1)] {
        let status = client.explain_transaction(explain(unknown, &[])).await.unwrap_err();
        assert_eq!((status.code(), reason_of(&status)), (Code::NotFound, Some(Reason::TransactionNotFound)));
        let kept: usize = metadata_of(&status, "kept").unwrap().parse().unwrap();
        assert!((5..5 * 26).contains(&kept), "{kept}");
        assert!(metadata_of(&status, "firstLsn").unwrap() < metadata_of(&status, "lastLsn").unwrap());
        assert!(status.message().contains("walstorm explain"), "{}", status.message());
    }
    let latest = pb::ListTransactionsRequest { order_by: "work desc".to_owned(), page_size: 1, ..Default::default() };
    let top = client.list_transactions(latest).await.unwrap().into_inner().transactions.remove(0);
    let told = client.explain_transaction(explain(Transaction::Xid(top.xid), &["pg13"])).await.unwrap().into_inner();
    assert!(told.not_replayed.contains("analysis.wal_bytes_max = 4096"), "{}", told.not_replayed);
    assert_eq!(told.profiles.len(), 1);
    let wal = |from_lsn, to_lsn| Input::Wal(pb::WalRange { from_lsn, to_lsn });
    let scenario = |name: &str, parameter: &str| {
        let parameters = [(parameter.to_owned(), "3".to_owned())].into();
        Input::Scenario(pb::ScenarioInput { name: name.to_owned(), parameters, seed: None })
    };
    let end = ready.end.0;
    let wrong = [
        (compare(&[], wal(0, 0)), Reason::RequestInvalid, "profiles"),
        (compare(&["pg81"], wal(0, 0)), Reason::RequestInvalid, "did you mean 'pg18'"),
        (compare(&["pg18", "pg18+smal-map"], wal(0, 0)), Reason::RequestInvalid, "did you mean 'small-map'"),
        (compare(&["pg18"; 4], wal(0, 0)), Reason::AnalysisLimit, "analysis.profiles_max = 3"),
        (compare(&["pg18"], wal(end, end)), Reason::RequestInvalid, "must be below to_lsn"),
        (compare(&["pg18"], wal(0, end + 1)), Reason::LsnAhead, "lies beyond"),
        (compare(&["pg18"], wal(0, 0)), Reason::AnalysisLimit, "analysis.wal_bytes_max = 4096"),
        (compare(&["pg18"], scenario("truncate", "partitions")), Reason::RequestInvalid, "truncate-partitions"),
        (compare(&["pg18"], scenario("truncate-partitions", "x")), Reason::RequestInvalid, "'x'"),
        (compare(&["pg18"], scenario("catalog-churn", "tables")), Reason::AnalysisLimit, "scenario_records_max = 1000"),
    ];
    for (request, reason, text) in wrong {
        let shown = format!("{request:?}");
        let status = compared(&mut client, request).await.unwrap_err();
        assert_eq!(reason_of(&status), Some(reason), "{shown}: {status:?}");
        assert!(describe(&status).contains(text), "{shown}: {}", describe(&status));
    }
    let nothing = pb::CompareProfilesRequest { profiles: vec!["pg18".to_owned()], input: None };
    assert_eq!(reason_of(&compared(&mut client, nothing).await.unwrap_err()), Some(Reason::RequestInvalid));
    ready.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn profiles_are_compared_on_the_primarys_wal_and_on_a_scenario() {
    let ready = Ready::new(18, |c| c.analysis.concurrent_max = 1).await;
    let mut client = client(&ready).await;
    let profiles = ["pg96", "pg96+small-map", "pg13+live", "indexed"];
    let range = Input::Wal(pb::WalRange { from_lsn: 0, to_lsn: 0 });
    let (started, results) = compared(&mut client, compare(&profiles, range)).await.unwrap();
    let records = records(&ready);
    assert_eq!((started.start_lsn, started.end_lsn), (records[0].lsn.0, ready.end.0));
    assert_eq!((started.records, started.pg_version), (records.len() as u64, 18));
    for (profile, result) in profiles.iter().zip(&results) {
        let mut own = contender(&ready, profile);
        records.iter().for_each(|record| own.process(record).unwrap());
        let outcome = own.outcome();
        let expected: BTreeMap<String, u64> = outcome.work.entries().map(|(k, n)| (k.to_owned(), n)).collect();
        assert_eq!((result.profile.as_str(), counters(result.work.as_ref().unwrap())), (*profile, expected));
        assert_eq!((result.transactions, result.identical_output), (outcome.transactions, true));
        assert_eq!(result.queue_messages, outcome.queue.messages);
        assert!(result.cpu_ns > 0);
    }
    assert_eq!(results.len(), profiles.len());

    let scenario = |partitions: &str| {
        let parameters = [("partitions".to_owned(), partitions.to_owned())].into();
        Input::Scenario(pb::ScenarioInput { name: "truncate-partitions".to_owned(), parameters, seed: None })
    };
    let (_, results) = compared(&mut client, compare(&["pg13", "pg14"], scenario("20"))).await.unwrap();
    let executed: Vec<u64> = results.iter().map(|r| r.work.unwrap().messages_executed).collect();
    assert!(executed[0] > 10 * executed[1] && results.iter().all(|r| r.identical_output), "{executed:?}");

    // Minutes of work: the call's deadline ends it, and what it worked with is free for the next.
    let mut request = Request::new(compare(&["pg96"], scenario("1000")));
    request.metadata_mut().insert("grpc-timeout", "400m".parse().unwrap());
    let status = compared(&mut client, request).await.unwrap_err();
    assert!([Code::DeadlineExceeded, Code::Cancelled].contains(&status.code()), "{status:?}");
    compared(&mut client, compare(&["indexed"], scenario("5"))).await.unwrap();
    // So does a client that goes away.
    let answers = client.compare_profiles(compare(&["pg96"], scenario("1000"))).await.unwrap();
    drop(answers);
    ready.stop().await;
}
