//! A disk without room: said in words and by health, waited out, and nothing torn, lost or twice afterwards.
//!
//! The program runs with its data directory on a file system of a few megabytes in a mount namespace of its own, where a file takes
//! up room until it is removed. That needs root, or a kernel that lets users have namespaces.

#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::program::{Program, clean, primary};
use crate::support::{self, Node, from_slot, raw_records, records, start};
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use walstorm_proto::admin::v1 as admin;
use walstorm_proto::admin::v1::admin_service_client::AdminServiceClient;

/// Bytes of the file system.
const SIZE: u64 = 10 << 20;
/// Bytes that are taken up at first. What is left does not hold all of the run's WAL.
const BALLAST: u64 = 7 << 20;

/// The command that runs a shell in a mount namespace of its own.
fn namespace() -> Command {
    let id = Command::new("id").arg("-u").output().unwrap();
    let root = String::from_utf8(id.stdout).unwrap().trim() == "0";
    let mut command = Command::new("unshare");
    command.args(if root { &["--mount"][..] } else { &["--mount", "--map-root-user"] });
    command.args(["sh", "-ec"]);
    command
}

/// Whether file systems can be mounted here; if not, that is a failure in CI and said aloud elsewhere.
fn can_mount() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let tried = namespace().arg("mount -t tmpfs -o size=1m none \"$0\"").arg(dir.path()).output();
    let why = match tried {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let reason = format!("a small file system cannot be mounted here: {why}");
    assert!(std::env::var_os("CI").is_none(), "{reason}");
    eprintln!("SKIPPED: {reason}");
    false
}

/// A program on a small disk.
struct Small {
    /// The program.
    program: Program,
    /// Where the disk is mounted, in the program's namespace.
    mount: PathBuf,
}

impl Small {
    /// Starts it. Its configuration and its log are in `folder`, which is elsewhere.
    fn start(folder: &Path, fsync: bool) -> Small {
        let mount = folder.join("disk");
        std::fs::create_dir_all(&mount).unwrap();
        let text = format!(
            "data_dir = {mount:?}\n[server]\nlisten = \"127.0.0.1:0\"\n[source]\nscenario = \"catalog-churn\"\nsegment_bytes = 1048576\n\
             flush_bytes = 20000\nfsync = {fsync}\n[source.parameters]\ntables = 200\ntransactions = 400\ngrants = 20\naltered = 20\n\
             "
        );
        std::fs::write(folder.join("primary.toml"), text).unwrap();
        let mut command = clean(namespace(), &folder.join("log"));
        command.arg(format!(
            "mount -t tmpfs -o size={SIZE},mode=700 none \"$0\"; head -c {BALLAST} /dev/zero > \"$0/ballast\"; exec \"$@\""
        ));
        command.arg(&mount).arg(primary()).arg("--config").arg(folder.join("primary.toml"));
        let mut program = Program::spawn(&mut command);
        assert!(program.wait_for_address(), "{}", std::fs::read_to_string(folder.join("log")).unwrap());
        Small { program, mount }
    }

    /// The disk, from outside of the namespace.
    fn disk(&self) -> PathBuf {
        let mount = self.mount.strip_prefix("/").unwrap();
        Path::new("/proc").join(self.program.child.id().to_string()).join("root").join(mount)
    }

    /// Makes room.
    fn make_room(&self) {
        std::fs::remove_file(self.disk().join("ballast")).unwrap();
    }
}

/// What health says of a service.
async fn health(channel: &Channel, service: &str) -> ServingStatus {
    let request = HealthCheckRequest { service: service.to_owned() };
    HealthClient::new(channel.clone()).check(request).await.unwrap().into_inner().status()
}

/// Waits until health says so of the primary's service.
async fn wait_for_health(channel: &Channel, status: ServingStatus) {
    while health(channel, walstorm_proto::service_names::PRIMARY).await != status {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Where the log ends.
async fn wal_end(channel: &Channel) -> u64 {
    let info = AdminServiceClient::new(channel.clone()).get_server_info(admin::GetServerInfoRequest {}).await;
    info.unwrap().into_inner().wal_end_lsn
}

/// The same run with room for everything: its WAL.
async fn undisturbed() -> Vec<support::Record> {
    let data = tempfile::tempdir().unwrap();
    let mut config = primary_node::config::PrimaryConfig { data_dir: data.path().to_owned(), ..Default::default() };
    config.server.listen = "127.0.0.1:0".to_owned();
    config.source.scenario = Some("catalog-churn".to_owned());
    config.source.segment_bytes = 1 << 20;
    config.source.fsync = false;
    for (name, value) in [("tables", "200"), ("transactions", "400"), ("grants", "20"), ("altered", "20")] {
        config.source.parameters.insert(name.to_owned(), value.into());
    }
    let node = Node::start(config, data).await;
    node.node.log().subscribe().wait_for(|log| log.closed).await.unwrap();
    let data = node.stop().await;
    records(&data.path().join("wal")).0
}

/// Receives from a stream until everything before `end` came.
async fn receive(channel: &Channel, start: walstorm_proto::primary::v1::StreamStart, end: u64) -> Vec<support::Record> {
    let mut stream = support::open(channel, start).await;
    stream.started().await;
    let mut batches = Vec::new();
    loop {
        let batch = stream.batch().await;
        stream.flushed(batch.end_lsn).await;
        let reached = batch.end_lsn;
        batches.push(batch);
        if reached >= end {
            return raw_records(&batches);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_told_and_waited_out_and_nothing_is_torn_or_lost() {
    if !can_mount() {
        return;
    }
    let whole = undisturbed().await;
    for fsync in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let small = Small::start(folder.path(), fsync);
        let channel = small.program.channel().await;
        wait_for_health(&channel, ServingStatus::NotServing).await;
        assert_eq!(health(&channel, "").await, ServingStatus::Serving, "the process lives");
        assert_eq!(health(&channel, walstorm_proto::service_names::ADMIN).await, ServingStatus::Serving);
        let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
        assert!(log.contains("No space left on device") && log.contains("free some space there"), "{log}");
        let file = if fsync { "disk/wal/xlogtemp." } else { "disk/wal/0000000100000000000000" };
        assert!(log.contains(file), "the file is named: {log}");

        // What is flushed is served, whole.
        let end = wal_end(&channel).await;
        let served = receive(&channel, start(), end).await;
        assert!(served.len() > 1000 && served.len() < whole.len());
        assert_eq!(served, whole[..served.len()], "whole records, the right ones");
        assert_eq!(served.last().unwrap().end_lsn.0, end);
        let leftovers = std::fs::read_dir(small.disk().join("wal")).unwrap().map(|f| f.unwrap().metadata().unwrap().len());
        assert!(leftovers.into_iter().all(|len| len == 1 << 20), "no half-made segment stays");

        // With room it goes on by itself.
        small.make_room();
        wait_for_health(&channel, ServingStatus::Serving).await;
        let create = admin::CreateSlotRequest { slot_id: "later".to_owned(), start_lsn: 0, ..Default::default() };
        AdminServiceClient::new(channel.clone()).create_slot(create).await.unwrap();
        let last = whole[whole.len() - 2].end_lsn.0;
        let all = receive(&channel, from_slot("later"), last).await;
        assert_eq!(all[..], whole[..all.len()], "nothing is lost, nothing twice");
        assert!(all.len() + 1 >= whole.len());
        assert_eq!(small.program.terminate(), Some(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_whose_disk_is_full_stops_in_order() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let small = Small::start(folder.path(), true);
    let channel = small.program.channel().await;
    wait_for_health(&channel, ServingStatus::NotServing).await;
    drop(channel);
    assert_eq!(small.program.terminate(), Some(0), "{}", std::fs::read_to_string(folder.path().join("log")).unwrap());
}
