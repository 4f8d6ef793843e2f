//! Runs that clients ask for: accepted once, told to the end, found again, cancelled, limited; and the log they leave.

use std::path::Path;

use crate::support::{self, Node, millis};
use pg_types::{Lsn, RecordBody};
use pg_wal::{WalDir, WalReader};
use primary_node::config::PrimaryConfig;
use service_kit::status::{Reason, metadata_of, reason_of};
use tonic::{Status, Streaming};
use tonic_types::StatusExt;
use walstorm_proto::admin::v1 as admin;
use walstorm_proto::primary::v1 as pb;

use pb::run_scenario_request::Scenario;
use pb::run_scenario_response::Kind;

/// A server with short transactions for a time.
const SHORT: &str = r#"
name = "short"
story = "Short transactions."
seed = 4
duration = "$duration"
[parameters]
duration = "2s"
rows = 1
[[tables]]
name = "t"
columns = ["id int", "note text"]
[[actors]]
name = "writer"
sessions = 3
every = "10ms"
steps = [{ insert = { table = "t", rows = "$rows" } }, { wait = { from = "1ms", to = "5ms" } }]
"#;
/// Its pause.
const PAUSE: &str = r#"{ wait = { from = "1ms", to = "5ms" } }"#;

/// A change of a wish.
type Change = fn(&mut pb::RunScenarioRequest);

/// A primary for runs.
fn config(data: &Path) -> PrimaryConfig {
    let mut config = PrimaryConfig { data_dir: data.to_owned(), ..PrimaryConfig::default() };
    config.server.listen = "127.0.0.1:0".to_owned();
    config.server.grace = std::time::Duration::from_millis(300);
    config.source.runs = true;
    config.source.segment_bytes = 1 << 20;
    config.source.fsync = false;
    config.source.flush_bytes = 20_000;
    config
}

/// Starts one.
async fn serve(change: impl FnOnce(&mut PrimaryConfig)) -> Node {
    let data = tempfile::tempdir().unwrap();
    let mut config = config(data.path());
    change(&mut config);
    Node::start(config, data).await
}

/// A wish.
fn wish(id: &str, text: &str) -> pb::RunScenarioRequest {
    pb::RunScenarioRequest {
        request_id: id.to_owned(),
        scenario: Some(Scenario::ScenarioText(text.to_owned())),
        progress_interval: millis(10),
        ..pb::RunScenarioRequest::default()
    }
}

/// A run that is told.
struct Told {
    /// The stream.
    stream: Streaming<pb::RunScenarioResponse>,
}

impl Told {
    /// Asks for a run, and is told that it was accepted.
    async fn begin(node: &Node, wish: pb::RunScenarioRequest) -> Result<(pb::RunAccepted, Told), Status> {
        let mut stream = node.primary().run_scenario(wish).await?.into_inner();
        match stream.message().await?.unwrap().kind.unwrap() {
            Kind::Accepted(accepted) => Ok((accepted, Told { stream })),
            other => panic!("{other:?}"),
        }
    }

    /// The next message.
    async fn next(&mut self) -> Option<Kind> {
        self.stream.message().await.unwrap().map(|message| message.kind.unwrap())
    }

    /// Waits until so many transactions were committed; what else is told is passed over.
    async fn committed(&mut self, count: u64) {
        loop {
            match self.next().await.unwrap() {
                Kind::Progress(progress) if progress.counts.unwrap().committed >= count => return,
                Kind::Report(report) => panic!("{report:?}"),
                _ => {}
            }
        }
    }

    /// Waits for the report.
    async fn report(&mut self) -> pb::Run {
        loop {
            if let Kind::Report(report) = self.next().await.unwrap() {
                assert!(self.next().await.is_none(), "nothing follows a report");
                return report.run.unwrap();
            }
        }
    }
}

/// Plays a run to its end.
async fn play(node: &Node, wish: pb::RunScenarioRequest) -> pb::Run {
    Told::begin(node, wish).await.unwrap().1.report().await
}

/// How a wish is refused.
async fn refused(node: &Node, wish: pb::RunScenarioRequest) -> Status {
    Told::begin(node, wish).await.err().unwrap()
}

/// A run by its name.
async fn get(node: &Node, name: &str) -> Result<pb::Run, Status> {
    let got = node.primary().get_run(pb::GetRunRequest { name: name.to_owned() }).await?;
    Ok(got.into_inner().run.unwrap())
}

/// Cancels a run.
async fn cancel(node: &Node, name: &str) -> pb::Run {
    let cancelled = node.primary().cancel_run(pb::CancelRunRequest { name: name.to_owned() }).await.unwrap();
    cancelled.into_inner().run.unwrap()
}

/// Typed records of the log, each with its start.
fn log_records(data: &Path) -> Vec<(Lsn, u32, RecordBody)> {
    let dir = WalDir::open(data.join("wal"), None).unwrap();
    let profile = dir.profile();
    let mut reader = WalReader::open(&dir, None).unwrap();
    let mut records = Vec::new();
    while let Some(raw) = reader.next().unwrap() {
        let record = raw.decode(profile).unwrap();
        records.push((record.lsn, record.xid.0, record.body));
    }
    assert!(reader.end().unwrap().is_complete());
    records
}

/// Transactions that neither committed nor rolled back.
fn open_transactions(records: &[(Lsn, u32, RecordBody)]) -> Vec<u32> {
    let mut open = std::collections::BTreeSet::new();
    for (_, xid, body) in records {
        match body {
            RecordBody::Commit(_) | RecordBody::Abort(_) => drop(open.remove(xid)),
            _ if *xid > 0 => drop(open.insert(*xid)),
            _ => {}
        }
    }
    open.into_iter().collect()
}

#[tokio::test]
async fn runs_follow_one_another_in_one_log() {
    let node = serve(|_| {}).await;
    let idle = node.node.log().end();
    assert!(idle.lsn > node.node.log().oldest() && !idle.closed, "an idle log has a beginning and no end");
    let first = play(&node, wish("first", SHORT)).await;
    assert_eq!((first.name.as_str(), first.state()), ("runs/1", pb::RunState::Succeeded));
    let counts = first.counts.unwrap();
    assert!(counts.committed >= 600 && counts.wal_bytes > 10_000, "{counts:?}");
    assert_eq!(first.points[0].start_lsn, idle.lsn.0);
    let named = pb::RunScenarioRequest {
        scenario: Some(Scenario::ScenarioName("truncate-partitions".to_owned())),
        parameters: [("partitions".to_owned(), "5".to_owned())].into(),
        ..wish("second", "")
    };
    let second = play(&node, named).await;
    assert_eq!((second.name.as_str(), second.scenario.as_str()), ("runs/2", "truncate-partitions"));
    assert_eq!(second.points[0].start_lsn, first.points[0].end_lsn);
    assert_eq!(node.node.log().end().lsn.0, second.points[0].end_lsn);

    let data = node.stop().await;
    let records = log_records(data.path());
    assert_eq!(open_transactions(&records), Vec::<u32>::new());
    let checkpoints: Vec<_> = records
        .iter()
        .filter_map(|(lsn, _, body)| match body {
            RecordBody::Checkpoint(c) if c.shutdown => Some((*lsn, c.next_xid.0)),
            _ => None,
        })
        .collect();
    assert_eq!(checkpoints.len(), 3, "the idle server's, and one for each run");
    let newest = records.iter().filter(|(lsn, ..)| *lsn < checkpoints[2].0).map(|(_, xid, _)| *xid).max().unwrap();
    assert_eq!(checkpoints[2].1, u64::from(newest) + 1, "xids go on");
    assert_eq!(records.iter().filter(|(_, _, body)| matches!(body, RecordBody::Switch)).count(), 2);
}

#[tokio::test]
async fn the_same_wish_is_the_same_run_also_after_a_restart() {
    let node = serve(|_| {}).await;
    let first = play(&node, wish("a-1", SHORT)).await;
    let (again, mut told) = Told::begin(&node, wish("a-1", SHORT)).await.unwrap();
    assert!(again.attached);
    assert_eq!(told.report().await, first);
    let changes: [Change; 4] = [
        |w| w.seed = Some(9),
        |w| drop(w.parameters.insert("rows".to_owned(), "2".to_owned())),
        |w| w.max_txn_rate = 1,
        |w| w.scenario = Some(Scenario::ScenarioText(format!("{SHORT}\n"))),
    ];
    for change in changes {
        let mut other = wish("a-1", SHORT);
        change(&mut other);
        let status = refused(&node, other).await;
        assert_eq!(reason_of(&status), Some(Reason::RequestIdReused), "{status}");
        assert_eq!(metadata_of(&status, "run").as_deref(), Some("runs/1"));
    }
    let nameless = [play(&node, wish("", SHORT)).await, play(&node, wish("", SHORT)).await];
    assert_eq!(nameless.map(|run| run.name), ["runs/2", "runs/3"], "without an id each call is a run");

    let data = node.stop().await;
    let config = config(data.path());
    let node = Node::start(config, data).await;
    let (again, mut told) = Told::begin(&node, wish("a-1", SHORT)).await.unwrap();
    assert!(again.attached);
    assert_eq!(told.report().await, first, "the run and its times are what they were");
    assert_eq!(play(&node, wish("b", SHORT)).await.name, "runs/4");
}

#[tokio::test]
async fn a_lost_stream_does_not_end_a_run_and_a_cancelled_one_ends_with_a_clean_log() {
    let node = serve(|_| {}).await;
    let endless = pb::RunScenarioRequest {
        time_mode: pb::TimeMode::Real.into(),
        parameters: [("duration".to_owned(), "1h".to_owned())].into(),
        ..wish("endless", SHORT)
    };
    let (accepted, told) = Told::begin(&node, endless.clone()).await.unwrap();
    let name = accepted.run.unwrap().name;
    drop(told);
    let (accepted, mut told) = Told::begin(&node, endless).await.unwrap();
    assert!(accepted.attached);
    told.committed(20).await;
    let status = refused(&node, wish("other", SHORT)).await;
    assert_eq!((reason_of(&status), metadata_of(&status, "run")), (Some(Reason::RunActive), Some(name.clone())));
    let delete = pb::DeleteRunRequest { name: name.clone() };
    let status = node.primary().delete_run(delete.clone()).await.unwrap_err();
    assert_eq!(reason_of(&status), Some(Reason::RunActive));

    assert!(cancel(&node, &name).await.cancel_requested);
    let cancelled = told.report().await;
    assert_eq!(cancelled.state(), pb::RunState::Cancelled);
    assert_eq!(cancelled.findings[0].kind(), pb::FindingKind::Cancelled);
    assert_eq!(cancel(&node, &name).await, cancelled, "cancelling again changes nothing");
    let next = play(&node, wish("next", SHORT)).await;
    assert_eq!(next.points[0].start_lsn, cancelled.points[0].end_lsn);

    node.primary().delete_run(delete).await.unwrap();
    assert_eq!(reason_of(&get(&node, &name).await.unwrap_err()), Some(Reason::RunNotFound));
    let data = node.stop().await;
    assert_eq!(open_transactions(&log_records(data.path())), Vec::<u32>::new());
}

#[tokio::test]
async fn a_slot_that_waits_for_a_list_when_a_run_begins_gets_it_and_the_run_can_be_gone_on_with() {
    let node = serve(|_| {}).await;
    let end = node.node.log().end().lsn.0;
    let logical = admin::CreateSlotRequest {
        slot_id: "early".to_owned(),
        kind: admin::SlotKind::Logical.into(),
        start_lsn: end,
        wait_timeout: millis(0),
        ..Default::default()
    };
    node.admin().create_slot(logical).await.unwrap();
    // It has read everything, and waits.
    while node.slot("early").await.creation.is_some_and(|creation| creation.read_lsn < end) {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let endless = pb::RunScenarioRequest {
        time_mode: pb::TimeMode::Real.into(),
        parameters: [("duration".to_owned(), "1h".to_owned())].into(),
        ..wish("endless", SHORT)
    };
    let (accepted, mut told) = Told::begin(&node, endless.clone()).await.unwrap();
    told.committed(20).await;
    assert_eq!(node.slot("early").await.state(), admin::SlotState::Free);
    drop(told);
    let data = node.stop().await;
    let config = config(data.path());
    let node = Node::start(config, data).await;
    let (_, mut told) = Told::begin(&node, endless).await.unwrap();
    told.committed(60).await;
    cancel(&node, &accepted.run.unwrap().name).await;
    assert_eq!(told.report().await.state(), pb::RunState::Cancelled);
    node.stop().await;
}

#[tokio::test]
async fn wal_of_a_run_on_the_real_clock_that_a_consumer_has_may_not_be_lost() {
    for (time_mode, may) in [(pb::TimeMode::Real, false), (pb::TimeMode::Virtual, true)] {
        let node = serve(|_| {}).await;
        node.create_slot("reader", 0).await;
        let endless = pb::RunScenarioRequest {
            time_mode: time_mode.into(),
            parameters: [("duration".to_owned(), "1h".to_owned())].into(),
            ..wish("endless", SHORT)
        };
        let (_, told) = Told::begin(&node, endless).await.unwrap();
        let mut stream = node.open(support::from_slot("reader")).await;
        stream.started().await;
        let mut end = 0;
        while end < (1 << 20) + 30_000 {
            end = stream.batch().await.end_lsn;
            stream.flushed(end).await;
        }
        while node.slot("reader").await.confirmed_flush_lsn < end {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        drop((told, stream));
        let data = node.stop().await;
        support::truncate(&data.path().join("wal"), (1 << 20) + 20_000);
        let config = config(data.path());
        match primary_node::PrimaryNode::start(config).await {
            Ok(node) => {
                assert!(may, "other times would be at positions that the consumer has passed");
                node.shutdown().await.unwrap();
            }
            Err(error) => assert!(!may && error.to_string().contains("\"reader\" has confirmed WAL"), "{error}"),
        }
    }
}

#[tokio::test]
async fn deleted_runs_leave_their_numbers_and_their_log() {
    let node = serve(|_| {}).await;
    let first = play(&node, wish("a", SHORT)).await;
    node.primary().delete_run(pb::DeleteRunRequest { name: first.name }).await.unwrap();
    let data = node.stop().await;
    let config = config(data.path());
    let node = Node::start(config, data).await;
    let second = play(&node, wish("a", SHORT)).await;
    assert_eq!(second.name, "runs/2");
    assert_eq!(second.points[0].start_lsn, first.points[0].end_lsn);
}

#[tokio::test]
async fn runs_are_listed_by_pages_newest_first() {
    let node = serve(|_| {}).await;
    let tiny = SHORT.replace("\"2s\"", "\"20ms\"");
    for i in 0..5 {
        play(&node, wish(&format!("w{i}"), &tiny)).await;
    }
    let page = |page_size, page_token: &str| {
        let (mut client, page_token) = (node.primary(), page_token.to_owned());
        async move { client.list_runs(pb::ListRunsRequest { page_size, page_token }).await }
    };
    let names = |page: &pb::ListRunsResponse| page.runs.iter().map(|run| run.name.clone()).collect::<Vec<_>>();
    let first = page(2, "").await.unwrap().into_inner();
    assert_eq!(names(&first), ["runs/5", "runs/4"]);
    let second = page(2, &first.next_page_token).await.unwrap().into_inner();
    assert_eq!(names(&second), ["runs/3", "runs/2"]);
    let third = page(2, &second.next_page_token).await.unwrap().into_inner();
    assert_eq!((names(&third), third.next_page_token.as_str()), (vec!["runs/1".to_owned()], ""));
    assert_eq!(page(0, "").await.unwrap().into_inner().runs.len(), 5);
    for (size, token) in [(-1, ""), (1, "x")] {
        assert_eq!(reason_of(&page(size, token).await.unwrap_err()), Some(Reason::RequestInvalid));
    }
}

#[tokio::test]
async fn validating_plays_nothing_and_says_where_a_scenario_is_wrong() {
    let node = serve(|_| {}).await;
    let end = node.node.log().end();
    let only = pb::RunScenarioRequest { validate_only: true, ..wish("v", SHORT) };
    let (accepted, mut told) = Told::begin(&node, only).await.unwrap();
    let run = accepted.run.unwrap();
    assert_eq!((run.name.as_str(), run.scenario.as_str(), run.seed, run.pg_version), ("", "short", 4, 18));
    assert!(told.next().await.is_none());
    assert_eq!(node.node.log().end(), end);

    let validate = |text: String, parameters: &[(&str, &str)]| {
        let parameters = parameters.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let scenario = Some(pb::validate_scenario_request::Scenario::ScenarioText(text));
        let mut client = node.primary();
        async move { client.validate_scenario(pb::ValidateScenarioRequest { scenario, parameters }).await }
    };
    let good = validate(SHORT.to_owned(), &[("rows", "3")]).await.unwrap().into_inner();
    assert_eq!((good.name.as_str(), good.seed), ("short", 4));
    assert_eq!(good.parameters["rows"], "3");
    let size = good.size.unwrap();
    assert_eq!((size.tables, size.sessions, size.rows), (1, 3, 3 * 201 * 3));

    let status = validate(SHORT.replace("sessions", "sesions"), &[]).await.unwrap_err();
    assert_eq!(reason_of(&status), Some(Reason::ScenarioInvalid));
    assert_eq!(metadata_of(&status, "line").as_deref(), Some("14"));
    assert_eq!(metadata_of(&status, "column").as_deref(), Some("1"));
    let violations = status.get_details_bad_request().unwrap().field_violations;
    assert_eq!(violations[0].field, "scenario_text");
    assert!(violations[0].description.contains("line 14, column 1"), "{violations:?}");
    let status = validate(SHORT.to_owned(), &[("nonsense", "1")]).await.unwrap_err();
    assert_eq!(status.get_details_bad_request().unwrap().field_violations[0].field, "parameters");
    let status = refused(&node, wish("bad", "name = 1")).await;
    assert_eq!(reason_of(&status), Some(Reason::ScenarioInvalid));
}

#[tokio::test]
async fn a_wish_can_name_no_file_and_must_fit_the_log() {
    let node = serve(|_| {}).await;
    let secret = node.data.path().join("secret.toml");
    std::fs::write(&secret, SHORT).unwrap();
    for name in [secret.to_str().unwrap(), "file:///etc/passwd", "http://localhost/x.toml", SHORT, ""] {
        let by_name = pb::RunScenarioRequest { scenario: Some(Scenario::ScenarioName(name.to_owned())), ..wish("x", "") };
        let status = refused(&node, by_name).await;
        assert_eq!(reason_of(&status), Some(Reason::RequestInvalid), "{status}");
        assert!(!status.message().contains("Short transactions"), "nothing was read: {status}");
    }
    // A path in the field for text is a text that is no scenario.
    let status = refused(&node, wish("x", secret.to_str().unwrap())).await;
    assert_eq!(reason_of(&status), Some(Reason::ScenarioInvalid));

    let changes: [(&str, Change); 6] = [
        ("request_id", |w| w.request_id = "a b".to_owned()),
        ("request_id", |w| w.request_id = "x".repeat(64)),
        ("scenario", |w| w.scenario = None),
        ("time_mode", |w| w.time_mode = 77),
        ("pg_version", |w| w.pg_version = 15),
        ("parameters", |w| drop(w.parameters.insert("rows".to_owned(), "\u{1b}[2J".to_owned()))),
    ];
    for (field, change) in changes {
        let mut wrong = wish("x", SHORT);
        change(&mut wrong);
        let status = refused(&node, wrong).await;
        assert_eq!(status.get_details_bad_request().unwrap().field_violations[0].field, field, "{status}");
    }
}

#[tokio::test]
async fn each_limit_is_an_error_that_names_its_setting() {
    let node = serve(|config| {
        config.runs.text_bytes_max = 2000;
        config.runs.tables_max = 10;
        config.runs.rows_max = 100_000;
        config.runs.message_bytes_max = 5000;
        config.runs.sessions_max = 5;
        config.runs.statements_max = 30_000;
        config.runs.duration_max = std::time::Duration::from_secs(10);
        config.runs.kept_max = 3;
        config.runs.wal_bytes_max = 200_000;
        config.runs.messages_max = 100;
    })
    .await;
    let message = r#"{ message = { prefix = "p", bytes = 100 } }"#;
    let cases = [
        ("runs.text_bytes_max", format!("{SHORT}{}", "#".repeat(2000))),
        ("runs.tables_max", format!("{SHORT}[[tables]]\nname = \"u_{{i}}\"\ncount = 11\ncolumns = [\"id int\"]\n")),
        ("runs.rows_max", SHORT.replace("rows = 1\n", "rows = 1000\n")),
        ("runs.message_bytes_max", SHORT.replace(PAUSE, message)),
        ("runs.sessions_max", SHORT.replace("sessions = 3", "sessions = 6")),
        ("runs.statements_max", SHORT.replace("10ms", "100us")),
        ("runs.duration_max", SHORT.replace("duration = \"2s\"", "duration = \"11s\"")),
    ];
    for (key, text) in cases {
        let status = refused(&node, wish("x", &text)).await;
        assert_eq!(reason_of(&status), Some(Reason::RunLimit), "{key}: {status}");
        assert_eq!(metadata_of(&status, "key").as_deref(), Some(key));
        assert_eq!(status.get_details_quota_failure().unwrap().violations[0].subject, key);
        assert!(status.message().contains(key), "{status}");
    }

    // What a plan does not tell ends the run while it is played, with a clean log.
    let large = play(&node, wish("large", &SHORT.replace("\"2s\"", "\"9s\""))).await;
    assert_eq!((large.state(), large.findings[0].kind()), (pb::RunState::Failed, pb::FindingKind::LimitReached));
    assert!(large.error.contains("runs.wal_bytes_max"), "{}", large.error);
    let waits = SHORT.replace("every = \"10ms\"", "transactions = 1").replace("\"5ms\"", "\"22s\"");
    let long = play(&node, wish("long", &waits)).await;
    assert!(long.error.contains("runs.duration_max"), "{}", long.error);
    assert_eq!(long.points[0].start_lsn, large.points[0].end_lsn);
    let altered = SHORT.replace(PAUSE, r#"{ create_table = { table = "made_{n}", columns = ["id serial primary key"] } }"#);
    let messages = play(&node, wish("messages", &altered)).await;
    let sent = messages.counts.unwrap().messages;
    assert_eq!(messages.error, format!("{sent} invalidation messages: runs.messages_max is 100"));
    assert!((101..300).contains(&sent), "it ends with the transaction that goes over it, not {sent} messages later");

    let status = refused(&node, wish("fourth", SHORT)).await;
    assert_eq!(metadata_of(&status, "key").as_deref(), Some("runs.kept_max"));
    let data = node.stop().await;
    assert_eq!(open_transactions(&log_records(data.path())), Vec::<u32>::new());
}

#[tokio::test]
async fn a_scenario_that_cannot_go_on_fails_its_run_and_nothing_else() {
    let node = serve(|_| {}).await;
    let twice = r#"{ create_table = { table = "made", columns = ["id int"] } }"#;
    let wrong = SHORT.replace(PAUSE, &format!("{twice}, {PAUSE}"));
    let failed = play(&node, wish("wrong", &wrong)).await;
    assert_eq!((failed.state(), failed.findings[0].kind()), (pb::RunState::Failed, pb::FindingKind::ScenarioFailed));
    assert!(failed.error.contains("made"), "{}", failed.error);
    assert_eq!(play(&node, wish("right", SHORT)).await.state(), pb::RunState::Succeeded);
    let data = node.stop().await;
    assert_eq!(open_transactions(&log_records(data.path())), Vec::<u32>::new());
}

#[tokio::test]
async fn a_primary_that_serves_a_directory_or_its_own_scenario_plays_nothing_for_others() {
    let wal = support::fixture(15);
    let archive = Node::serve(wal.path()).await;
    let simulated = serve(|config| {
        config.source.runs = false;
        config.source.scenario = Some("truncate-partitions".to_owned());
        config.source.parameters.insert("partitions".to_owned(), "3".into());
    })
    .await;
    for node in [archive, simulated] {
        let status = refused(&node, wish("x", SHORT)).await;
        assert_eq!((status.code(), reason_of(&status)), (tonic::Code::FailedPrecondition, Some(Reason::RunsRefused)));
        assert_eq!(reason_of(&get(&node, "runs/1").await.unwrap_err()), Some(Reason::RunNotFound));
        let list = pb::ListRunsRequest::default();
        assert!(node.primary().list_runs(list).await.unwrap().into_inner().runs.is_empty());
        let scenario = Some(pb::validate_scenario_request::Scenario::ScenarioText(SHORT.to_owned()));
        let validate = pb::ValidateScenarioRequest { scenario, ..Default::default() };
        assert_eq!(node.primary().validate_scenario(validate).await.unwrap().into_inner().name, "short");
    }
}

#[tokio::test]
async fn the_same_wishes_on_two_primaries_give_the_same_bytes() {
    let mut logs = Vec::new();
    for seed in [None, None, Some(77)] {
        let node = serve(|_| {}).await;
        let first = pb::RunScenarioRequest { seed, ..wish("a", SHORT) };
        let limited = pb::RunScenarioRequest { max_txn_rate: 50, ..wish("b", SHORT) };
        let (first, limited) = (play(&node, first).await, play(&node, limited).await);
        assert!(limited.counts.unwrap().committed < first.counts.unwrap().committed / 2);
        let data = node.stop().await;
        let files: Vec<Vec<u8>> =
            support::segments(&data.path().join("wal")).iter().map(|path| std::fs::read(path).unwrap()).collect();
        logs.push(files);
    }
    assert!(logs[0] == logs[1], "one seed, one log");
    assert!(logs[0] != logs[2], "another seed, another log");
}

#[tokio::test]
async fn a_sweep_is_one_run_with_a_point_for_each_setting_and_expectations_are_judged() {
    let node = serve(|_| {}).await;
    let text = format!(
        "{SHORT}[sweep]\nparameters = {{ rows = [1, 2] }}\nseeds = [5, 6]\n[[expect]]\nthat = \"records > 300\"\n[[expect]]\nthat = \"rolled_back == 1\"\n"
    );
    let run = play(&node, wish("sweep", &text)).await;
    assert_eq!(run.state(), pb::RunState::Succeeded, "{}", run.error);
    assert_eq!((run.point_count, run.points.len()), (4, 4));
    let settings: Vec<_> = run.points.iter().map(|p| (p.parameters["rows"].as_str(), p.seed)).collect();
    assert_eq!(settings, [("1", 5), ("1", 6), ("2", 5), ("2", 6)]);
    for pair in run.points.windows(2) {
        assert_eq!(pair[0].end_lsn, pair[1].start_lsn);
    }
    let records: Vec<u64> = run.points.iter().map(|p| p.counts.unwrap().records).collect();
    assert!(records[2] > records[0] + 500, "{records:?}");
    assert_eq!(run.counts.unwrap().records, records.iter().sum::<u64>());
    let kinds: Vec<_> = run.findings.iter().map(|f| (f.kind(), f.point)).collect();
    let judged = |point| [(pb::FindingKind::ExpectationHeld, point), (pb::FindingKind::ExpectationFailed, point)];
    assert_eq!(kinds, [judged(0), judged(1), judged(2), judged(3)].concat());
    assert!(run.findings[1].text.contains("rolled_back == 1: 0 and 1"), "{}", run.findings[1].text);
    let seeded = pb::RunScenarioRequest { seed: Some(1), ..wish("seeded", &text) };
    let status = refused(&node, seeded).await;
    assert_eq!(status.get_details_bad_request().unwrap().field_violations[0].field, "seed");
}

#[tokio::test]
async fn slots_of_a_runs_consumers_go_with_it_and_names_that_clash_end_it() {
    let node = serve(|config| config.retention.keep_bytes = Some(1)).await;
    let consumed = format!("{SHORT}[[consumers]]\nslot = 'reader'\npaused = [{{ from = '0s', to = '1h' }}]\n");
    for id in ["first", "second"] {
        let run = play(&node, wish(id, &consumed)).await;
        assert_eq!(run.state(), pb::RunState::Succeeded, "{}", run.error);
        assert!(
            node.admin().get_slot(walstorm_proto::admin::v1::GetSlotRequest { name: "slots/reader".into() }).await.is_err()
        );
    }
    node.create_slot("reader", node.node.log().end().lsn.0).await;
    let end = node.node.log().end().lsn;
    let run = play(&node, wish("third", &consumed)).await;
    assert_eq!(run.state(), pb::RunState::Failed);
    assert!(run.error.contains("\"reader\"") && run.error.contains("DeleteSlot"), "{}", run.error);
    assert_eq!(node.node.log().end().lsn, end, "it wrote nothing");
    node.stop().await;
}
