//! kill -9 at any moment, two hundred times, under load: nothing that a consumer acknowledged is lost, there is no gap, nothing
//! comes twice after deduplication, and nothing that was ever received is different when it comes again.
//!
//! The program plays a scenario as fast as it can on the wall clock, removes WAL that its slot no longer needs, and is killed while
//! it starts, while it compares what it has, while it writes, while it makes segments. The consumer lives on, in this process.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::program::{Program, clean, primary};
use crate::support::{from_slot, raw_records};
use pg_types::{Lsn, PgVersion, RecordBody, Xid};
use pg_wal::RecordHeader;
use pg_wal::writer::{LogEnd, RecordPlacer};
use primary_core::rng::{Rng, seeded};
use primary_core::{Engine, Placed, Scenario, SinkError, Step, VirtualClock, WalSink};
use tokio_stream::wrappers::ReceiverStream;
use walstorm_proto::admin::v1 as admin;
use walstorm_proto::admin::v1::admin_service_client::AdminServiceClient;
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::primary::v1::primary_service_client::PrimaryServiceClient;

/// Times that the program is killed, unless `WALSTORM_KILLS` says otherwise.
const KILLS: u64 = 200;
/// Bytes of a segment.
const SEGMENT: u32 = 1 << 20;

/// Transactions of several kinds, in several sessions; records inside pages and over many.
const SCENARIO: &str = r#"
name = "killed"
story = "Is killed."
seed = 11
[server]
checkpoint_every = "2s"
running_xacts_every = "500ms"
[[tables]]
name = "t_{i}"
count = 10
columns = ["id int", "a int"]
[[actors]]
name = "writer"
sessions = 4
transactions = 1000000
every = "3ms"
rollback_percent = 10
steps = [{ insert = { table = "t_{random:10}", rows = 3 } }, { savepoint = "s" }, { update = { table = "t_{random:10}" } }]
[[actors]]
name = "definer"
transactions = 1000000
every = "50ms"
steps = [{ create_table = { table = "made_{n}", columns = ["id serial primary key", "b text"] } }, { truncate = { table = "t_{random:10}" } }]
[[actors]]
name = "talker"
transactions = 1000000
every = "100ms"
steps = [{ message = { prefix = "p", bytes = 30000 } }, { insert = { table = "t_1" } }]
"#;

/// What is known of a record that came: place, header and checksum of all its bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Known {
    /// Its place.
    lsn: Lsn,
    /// Its end.
    end: Lsn,
    /// Its header, with the checksum of the rest.
    header: RecordHeader,
}

/// A consumer that outlives the program.
#[derive(Default)]
struct Consumer {
    /// Everything that came, in order, each once.
    known: Vec<Known>,
    /// Records that came again.
    again: u64,
    /// Up to where it has acknowledged.
    acknowledged: u64,
}

impl Consumer {
    /// Acknowledges everything before `lsn`, if anything came.
    async fn acknowledge(&mut self, lsn: u64, requests: &Requests) {
        if lsn > 0 {
            self.acknowledged = self.acknowledged.max(lsn);
            let feedback = pb::Feedback { flushed_lsn: lsn, ..pb::Feedback::default() };
            let feedback = pb::stream_wal_request::Kind::Feedback(feedback);
            requests.send(pb::StreamWalRequest { kind: Some(feedback) }).await.unwrap();
        }
    }

    /// Takes a batch: what is new must follow what is known, what is known must be the same.
    fn take(&mut self, batch: &pb::WalBatch) {
        for record in raw_records(std::slice::from_ref(batch)) {
            let known = Known { lsn: record.lsn, end: record.end_lsn, header: RecordHeader::read(&record.bytes).unwrap() };
            assert_eq!(pg_wal::record::record_crc(&record.bytes), known.header.crc, "at {}", known.lsn);
            let last = self.known.last().map_or(Lsn::INVALID, |k| k.lsn);
            if known.lsn > last {
                assert_eq!(known.header.prev, last, "a gap before {}", known.lsn);
                self.known.push(known);
            } else {
                let at = self.known.binary_search_by_key(&known.lsn, |k| k.lsn).expect("no record was there before");
                assert_eq!(self.known[at], known, "another record than before");
                self.again += 1;
            }
        }
    }
}

/// Where requests of a stream go.
type Requests = tokio::sync::mpsc::Sender<pb::StreamWalRequest>;

/// When to kill.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// So long after the start, listening or not.
    Started(Duration),
    /// After so many batches.
    Batches(u64),
    /// So long after the first batch.
    FirstBatch(Duration),
}

/// Starts the program over `data`.
fn start(data: &Path, fsync: bool) -> Program {
    let mut command = clean(Command::new(primary()), &data.join("log"));
    command.arg("--config").arg(data.join("primary.toml")).env("WALSTORM_PRIMARY__SOURCE__FSYNC", fsync.to_string());
    Program::spawn(&mut command)
}

/// Writes the configuration.
fn configure(data: &Path) {
    std::fs::write(data.join("killed.toml"), SCENARIO).unwrap();
    let text = format!(
        "data_dir = {:?}\n[server]\nlisten = \"127.0.0.1:0\"\n[log]\nfilter = \"warn\"\n[source]\nscenario = {:?}\nclock = \"max\"\n\
         segment_bytes = {SEGMENT}\nahead_bytes_max = 65536\nflush_bytes = 8192\n\
         [retention]\nkeep_bytes = 1\ninterval = \"5ms\"\n",
        data.join("state"),
        data.join("killed.toml"),
    );
    std::fs::write(data.join("primary.toml"), text).unwrap();
}

/// One life of the program; true if it was reached before it was killed.
async fn live(program: &mut Program, consumer: &mut Consumer, moment: Moment, rng: &mut impl Rng, log: &Path) -> bool {
    if let Moment::Started(span) = moment {
        tokio::time::sleep(span).await;
        program.child.kill().unwrap();
        return false;
    }
    let listens = tokio::task::block_in_place(|| program.wait_for_address());
    assert!(listens, "the program ended: {}", std::fs::read_to_string(log).unwrap());
    let channel = program.channel().await;
    if consumer.known.is_empty() {
        let create = admin::CreateSlotRequest { slot_id: "consumer".to_owned(), start_lsn: 0, ..Default::default() };
        let created = AdminServiceClient::new(channel.clone()).create_slot(create).await;
        assert!(created.is_ok() || created.unwrap_err().code() == tonic::Code::AlreadyExists);
    }
    let (requests, receiver) = tokio::sync::mpsc::channel(16);
    let first = pb::stream_wal_request::Kind::Start(from_slot("consumer"));
    requests.send(pb::StreamWalRequest { kind: Some(first) }).await.unwrap();
    let mut stream = PrimaryServiceClient::new(channel).stream_wal(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    let (mut batches, mut last, mut deadline) = (0, 0, tokio::time::Instant::now() + Duration::from_secs(3600));
    loop {
        // Whoever acknowledges nothing for long is waited for by the run: one that does not go on is acknowledged.
        let wake = deadline.min(tokio::time::Instant::now() + Duration::from_millis(20));
        let Ok(message) = tokio::time::timeout_at(wake, stream.message()).await else {
            if tokio::time::Instant::now() >= deadline {
                break;
            }
            consumer.acknowledge(last, &requests).await;
            continue;
        };
        let message = message.unwrap_or_else(|e| panic!("{e}: {}", std::fs::read_to_string(log).unwrap()));
        match message.expect("the stream goes on").kind.unwrap() {
            pb::stream_wal_response::Kind::Started(started) => {
                let received = consumer.known.last().map_or(u64::MAX, |known| known.end.0);
                // The first record behind a page's header, at most.
                assert!(started.start_lsn <= received.saturating_add(40), "a slot never passes what was received");
            }
            pb::stream_wal_response::Kind::Batch(batch) => {
                consumer.take(&batch);
                batches += 1;
                last = batch.end_lsn;
                if !rng.next_u64().is_multiple_of(4) {
                    consumer.acknowledge(last, &requests).await;
                }
                match moment {
                    Moment::Batches(count) if batches >= count => break,
                    Moment::FirstBatch(span) if batches == 1 => deadline = tokio::time::Instant::now() + span,
                    _ => {}
                }
            }
            _ => {}
        }
    }
    program.child.kill().unwrap();
    // What was on its way when it died counts as received.
    while let Ok(Some(response)) = stream.message().await {
        if let Some(pb::stream_wal_response::Kind::Batch(batch)) = response.kind {
            consumer.take(&batch);
        }
    }
    true
}

/// Compares what came with what a run that nobody killed has, times aside.
struct Reference<'a> {
    /// Gives places.
    placer: RecordPlacer,
    /// What came.
    known: &'a [Known],
    /// How many of it were compared.
    compared: usize,
}

impl WalSink for Reference<'_> {
    fn version(&self) -> PgVersion {
        PgVersion::V18
    }

    fn next_lsn(&self) -> Lsn {
        self.placer.next_lsn()
    }

    fn append(&mut self, xid: Xid, top_xid: Xid, origin: u16, body: &RecordBody) -> Result<Placed, SinkError> {
        let placed = self.placer.place(xid, top_xid, origin, body)?;
        if let Some(known) = self.known.get(self.compared) {
            let header = RecordHeader::read(placed.bytes)?;
            let key = |h: &RecordHeader| (h.total_len, h.xid, h.info, h.rmid, h.prev);
            assert_eq!((known.lsn, known.end, key(&known.header)), (placed.start, placed.end, key(&header)));
            self.compared += 1;
        }
        Ok(Placed { start: placed.start, end: placed.end })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_moment_to_be_killed_loses_repeats_or_changes_anything() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let kills = number("WALSTORM_KILLS").unwrap_or(KILLS);
    let seed: u64 = number("WALSTORM_KILL_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("again: WALSTORM_KILL_SEED={seed} cargo nextest run -p primary-node --test main kill_loop --no-capture");
    let mut rng = seeded(seed);
    let mut draw = move |below: u64| rng.next_u64() % below;
    let folder = tempfile::tempdir().unwrap();
    configure(folder.path());
    let mut consumer = Consumer::default();
    let log = folder.path().join("log");
    let (mut reached, mut acknowledging) = (0, seeded(seed ^ 1));
    for kill in 0..kills {
        let moment = match draw(8) {
            0 => Moment::Started(Duration::from_micros(draw(40_000))),
            1..=4 => Moment::Batches(1 + draw(12)),
            _ => Moment::FirstBatch(Duration::from_micros(draw(30_000))),
        };
        let mut program = start(folder.path(), draw(2) == 0);
        reached += u64::from(live(&mut program, &mut consumer, moment, &mut acknowledging, &log).await);
        drop(program);
        let log = std::fs::read_to_string(&log).unwrap();
        assert!(!log.contains("ERROR"), "kill {kill}, {moment:?}, seed {seed}: {log}");
    }
    let Consumer { known, again, acknowledged } = consumer;
    let commits = known.iter().filter(|k| k.header.rmid == 1 && k.header.info & 0x70 == 0).count();
    println!(
        "{kills} kills, {reached} of them while streaming: {} records with {commits} commits up to {}, {again} of them again, \
         acknowledged up to {}",
        known.len(),
        known.last().unwrap().end,
        Lsn(acknowledged)
    );
    assert!(reached > kills / 2 && again > 0 && commits as u64 > kills, "the load was one");

    // The whole of it is what an undisturbed run has.
    let start = LogEnd { end: Lsn(u64::from(SEGMENT)), prev: Lsn::INVALID };
    let placer = RecordPlacer::new(PgVersion::V18, SEGMENT, start);
    let mut sink = Reference { placer, known: &known, compared: 0 };
    let scenario = Scenario::parse("killed", SCENARIO).unwrap();
    let mut engine = Engine::new(scenario.plan(&Default::default()).unwrap(), PgVersion::V18).unwrap();
    let (mut clock, mut rng) = (VirtualClock::default(), seeded(scenario.seed()));
    while sink.compared < known.len() {
        assert_ne!(engine.step(&mut clock, &mut rng, &mut sink).unwrap(), Step::Done);
    }
}
