//! Archives as a consumer sees them: the same stream as from the directory, whatever store it is in and whatever goes wrong.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::s3::{self, S3};
use crate::support::{self, Kind, Node, Stream, fixture, from_slot, raw_records, records, segments, start};
use primary_node::PrimaryConfig;
use service_kit::status::{Reason, reason_of};
use tonic::Code;
use tonic::transport::Channel;
use walstorm_proto::admin::v1 as admin;
use walstorm_proto::admin::v1::admin_service_client::AdminServiceClient;
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::primary::v1::primary_service_client::PrimaryServiceClient;

/// What must never be shown.
const SECRET: &str = "a-secret-access-key";

/// A configuration that serves the archive `folder`.
fn config(folder: &Path, data: &Path) -> PrimaryConfig {
    let mut config = support::config(folder, data);
    config.source.wal_dir = None;
    config.source.archive = Some(format!("file://{}", folder.display()));
    config
}

/// A program; killed when it goes out of scope.
struct Program {
    /// The process.
    child: Child,
    /// A connection to it.
    channel: Channel,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command that serves the archive in `s3`, with credentials in its environment and nothing else of this machine's.
fn command(s3: &S3, data: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_walstorm-primary"));
    let ours = ["WALSTORM_", "OTEL_", "AWS_", "GOOGLE_", "AZURE_", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
    for (name, _) in std::env::vars().filter(|(n, _)| ours.iter().any(|o| n.starts_with(o))) {
        command.env_remove(name);
    }
    command
        .env("AWS_ENDPOINT", &s3.endpoint)
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_ACCESS_KEY_ID", s3::ACCESS_KEY_ID)
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env("AWS_REGION", "eu-central-1")
        .env("WALSTORM_PRIMARY__ARCHIVE__RETRY_TIMEOUT", "2s")
        .env("WALSTORM_PRIMARY__ARCHIVE__PREFETCH", "0")
        .args(["--archive", &format!("s3://{}/cluster/wal", s3::BUCKET), "--listen", "127.0.0.1:0", "--log-filter", "trace"])
        .arg("--data-dir")
        .arg(data)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

impl Program {
    /// Starts it and connects. What it says on standard error is passed over.
    async fn start(command: &mut Command) -> Program {
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let out = child.stdout.take().unwrap();
        let line = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(out).read_line(&mut line).map(|_| line)
        });
        let line = line.await.unwrap().unwrap();
        let addr = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("said {line:?}")).to_owned();
        let channel = Channel::from_shared(format!("http://{addr}")).unwrap().connect().await.unwrap();
        Program { child, channel }
    }

    /// Opens a stream.
    async fn open(&self, start: pb::StreamStart) -> Stream {
        let (requests, receiver) = tokio::sync::mpsc::channel(16);
        let first = pb::StreamWalRequest { kind: Some(pb::stream_wal_request::Kind::Start(start)) };
        requests.send(first).await.unwrap();
        let receiver = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let responses = PrimaryServiceClient::new(self.channel.clone()).stream_wal(receiver).await.unwrap().into_inner();
        Stream { requests: Some(requests), responses }
    }
}

/// Stores the segments of a directory as wal-g and pgBackRest would, packed.
fn store(s3: &S3, wal: &Path) {
    s3.with(|bucket| {
        for (i, file) in segments(wal).iter().enumerate() {
            let (name, bytes) = (file.file_name().unwrap().to_str().unwrap(), std::fs::read(file).unwrap());
            let (name, bytes) = match i {
                0 => (name.to_owned(), bytes),
                _ => (format!("{}/{name}.zst", &name[..16]), zstd::encode_all(&bytes[..], 1).unwrap()),
            };
            bucket.objects.insert(format!("cluster/wal/{name}"), bytes.into());
        }
        bucket.objects.insert("cluster/wal/00000001000000000000000A.00000028.backup".to_owned(), "label".into());
        bucket.objects.insert("other/000000090000000000000001".to_owned(), "another cluster's".into());
    });
}

/// Batches without when they were sent.
fn untimed(mut batches: Vec<pb::WalBatch>) -> Vec<pb::WalBatch> {
    batches.iter_mut().for_each(|batch| batch.send_time = None);
    batches
}

/// All batches of a directory, served as one.
async fn batches_of_directory(wal: &Path, encoding: pb::Encoding) -> Vec<pb::WalBatch> {
    let node = Node::serve(wal).await;
    let (batches, end) = node.open(pb::StreamStart { encoding: encoding.into(), ..start() }).await.drain().await;
    end.unwrap();
    node.stop().await;
    untimed(batches)
}

#[tokio::test]
async fn an_archive_streams_byte_for_byte_what_its_directory_does() {
    for version in [13, 14, 15, 16, 17, 18] {
        let (wal, data) = (fixture(version), tempfile::tempdir().unwrap());
        let node = Node::start(config(wal.path(), data.path()), data).await;
        for encoding in [pb::Encoding::Raw, pb::Encoding::Typed] {
            let expected = batches_of_directory(wal.path(), encoding).await;
            let (batches, end) = node.open(pb::StreamStart { encoding: encoding.into(), ..start() }).await.drain().await;
            end.unwrap();
            assert!(untimed(batches) == expected, "{version}, {encoding:?}");
        }
        let info = node.admin().get_server_info(admin::GetServerInfoRequest {}).await.unwrap().into_inner();
        assert_eq!(info.source(), admin::SourceKind::Archive);
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_is_read_in_pages_and_over_faults() {
    let (wal, data, s3) = (fixture(18), tempfile::tempdir().unwrap(), S3::start().await);
    store(&s3, wal.path());
    s3.with(|bucket| (bucket.busy, bucket.cut) = (2, 2));
    let program = Program::start(&mut command(&s3, data.path())).await;
    s3.with(|bucket| (bucket.busy, bucket.cut) = (1, 1));
    let (batches, end) = program.open(start()).await.drain().await;
    end.unwrap();
    assert!(untimed(batches) == batches_of_directory(wal.path(), pb::Encoding::Raw).await);
    s3.with(|bucket| {
        assert_eq!((bucket.busy, bucket.cut), (0, 0), "the faults were met");
        assert!(bucket.pages > 1, "a listing has pages");
        assert!(bucket.got.iter().all(|key| key.starts_with("cluster/wal/0")), "{:?}", bucket.got);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_goes_away_is_told_and_the_consumer_resumes() {
    let (wal, data, s3) = (fixture(18), tempfile::tempdir().unwrap(), S3::start().await);
    store(&s3, wal.path());
    let mut command = command(&s3, data.path());
    command.env("WALSTORM_PRIMARY__ARCHIVE__RETRY_TIMEOUT", "100ms").env("WALSTORM_PRIMARY__STREAMS__BATCH_BYTES", "65536");
    let program = Program::start(&mut command).await;
    let request = admin::CreateSlotRequest { slot_id: "orders".to_owned(), ..admin::CreateSlotRequest::default() };
    AdminServiceClient::new(program.channel.clone()).create_slot(request).await.unwrap();
    let slot = from_slot("orders");
    let mut stream = program.open(pb::StreamStart { max_outstanding_batches: 1, ..slot.clone() }).await;
    stream.started().await;
    let mut batches = vec![stream.batch().await];

    s3.with(|bucket| bucket.busy = usize::MAX);
    let status = loop {
        stream.flushed(batches.last().unwrap().end_lsn).await;
        match stream.next().await {
            Ok(Kind::Batch(batch)) => batches.push(batch),
            Ok(_) => {}
            Err(status) => break status,
        }
    };
    assert_eq!((status.code(), reason_of(&status)), (Code::Unavailable, Some(Reason::NotReady)), "{status:?}");
    assert!(status.message().contains(&format!("s3://{}/cluster/wal/", s3::BUCKET)), "{status:?}");
    assert!(!format!("{status:?}").contains(SECRET));

    s3.with(|bucket| bucket.busy = 0);
    let (rest, end) = program.open(slot).await.drain().await;
    end.unwrap();
    // The last feedback may not have arrived before the stream ended; then the batch comes again.
    let mut got = raw_records(&batches);
    let again = raw_records(&rest);
    got.retain(|r| r.lsn < again[0].lsn);
    got.extend(again);
    assert!(got == records(wal.path()).0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_refuses_is_told_without_credentials() {
    let (data, s3) = (tempfile::tempdir().unwrap(), S3::start().await);
    let run = async || {
        let mut command = command(&s3, data.path());
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!text.contains(SECRET), "the secret is shown");
        text.lines().last().unwrap_or_default().to_owned()
    };
    let text = run().await;
    assert!(text.contains("holds no WAL segments") && text.contains("s3://wal-archive/cluster/wal"), "{text}");
    s3.with(|bucket| bucket.refuse = true);
    let text = run().await;
    assert!(text.contains("cannot read s3://wal-archive/cluster/wal") && text.contains("AccessDenied"), "{text}");
}

#[tokio::test]
async fn an_archive_that_grows_is_followed() {
    let (whole, archive, data) = (fixture(16), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (expected, _) = records(whole.path());
    let files = segments(whole.path());
    let target = |file: &Path| archive.path().join(file.file_name().unwrap());
    std::fs::copy(&files[0], target(&files[0])).unwrap();
    let mut config = config(archive.path(), data.path());
    config.source.follow = true;
    config.source.follow_interval = Duration::from_millis(5);
    config.archive.gap_grace = Duration::from_secs(3600);
    let node = Node::start(config, data).await;
    let mut stream = node.open(start()).await;
    stream.started().await;
    let mut batches = vec![stream.batch().await];
    // Archivers work in parallel: the last one comes first, and the one before is half there for a while.
    std::fs::copy(&files[2], target(&files[2])).unwrap();
    let bytes = std::fs::read(&files[1]).unwrap();
    std::fs::write(target(&files[1]), &bytes[..bytes.len() / 2]).unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    std::fs::write(target(&files[1]), &bytes).unwrap();
    while batches.last().unwrap().end_lsn < expected.last().unwrap().end_lsn.0 {
        match stream.next().await.unwrap() {
            Kind::Batch(batch) => batches.push(batch),
            Kind::Keepalive(keepalive) => assert!(!keepalive.end_of_source, "more may come"),
            other => panic!("{other:?}"),
        }
    }
    assert!(raw_records(&batches) == expected);
    node.stop().await;
}
