//! Files of the node that somebody damaged, a disk without room for spill files, and SIGTERM beside work that takes long.

use std::path::{Path, PathBuf};

use pg_types::Lsn;
use walstorm_proto::decoder::v1 as pb;
use walstorm_proto::decoder::v1::decoder_service_client::DecoderServiceClient;

use super::kills::{STEP, Sluice};
use super::mixed::mixed;
use super::support::{Subscription, any, assert_same, connect, expected, primary_with, start};
use super::{Program, command, is_serving};

/// The node's spill files with what is in them.
fn spill_files(data: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let Ok(entries) = std::fs::read_dir(data.join("spill")) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter_map(|path| Some((path.clone(), std::fs::read(path).ok()?))).collect()
}

/// Waits until the node says an error that has this in it.
async fn error_with(client: &mut DecoderServiceClient<tonic::transport::Channel>, what: &str) -> String {
    loop {
        let state = client.get_decoder_state(pb::GetDecoderStateRequest {}).await.unwrap().into_inner();
        if state.last_error.contains(what) {
            return state.last_error;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// Lets WAL come until all large transactions are written out, damages what they left, and lets the rest come.
async fn spill_damaged(damage: fn(&Path, Vec<u8>), is_told: bool) {
    let wal = mixed(700);
    let (items, end) = expected(wal.path());
    let folder = tempfile::tempdir().unwrap();
    let primary =
        primary_with(wal.path(), &folder.path().join("primary"), any(), |config| config.streams.batch_bytes = 4 << 10).await;
    let sluice = Sluice::start(primary.addr()).await;
    let data = folder.path().join("decoder");
    let mut command = command(&data, sluice.addr);
    command.args(["--profile", "pg17"]).env("WALSTORM_DECODER__WORK_MEM", "64kB");
    let program = Program::start(command);
    let mut client = DecoderServiceClient::new(connect(program.addr).await);
    while spill_files(&data).iter().filter(|(_, bytes)| bytes.len() > 10_000).count() < 4 {
        sluice.allowed.send_modify(|allowed| *allowed += STEP);
        let state = client.get_decoder_state(pb::GetDecoderStateRequest {}).await.unwrap().into_inner();
        assert!(state.decoded_lsn < end.0, "nothing was written out");
    }
    spill_files(&data).into_iter().for_each(|(path, bytes)| damage(&path, bytes));
    sluice.allowed.send_replace(u64::MAX);
    if is_told {
        let error = error_with(&mut client, "spill file").await;
        assert!(error.contains(data.to_str().unwrap()) && error.contains("decode again from the last checkpoint"), "{error}");
    }
    // The node has done what it said.
    let mut found = Vec::new();
    while found.len() < items.len() {
        let from = found.last().map_or(Lsn::INVALID, |item: &super::Item| item.end_lsn);
        let often = prost_types::Duration { seconds: 0, nanos: 20_000_000 };
        let own = pb::SubscribeStart { from_lsn: from.0, heartbeat_interval: Some(often), ..start() };
        let (mut subscription, _) = Subscription::open_when_ready(program.addr, own).await;
        while subscription.position < end {
            match subscription.next().await {
                Ok(Some(kind)) => subscription.take(kind),
                // Streams end when the decoder begins anew.
                Ok(None) | Err(_) => break,
            }
        }
        found.append(&mut subscription.items);
    }
    assert_same(&found, &items);
    while !is_serving(program.addr).await {}
    primary.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_in_a_damaged_spill_file_is_read_again_from_wal() {
    let flipped = |path: &Path, mut bytes: Vec<u8>| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    spill_damaged(flipped, true).await;
    spill_damaged(|path, bytes| std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap(), true).await;
    // A file that is open still is read as if nothing had happened.
    spill_damaged(|path, _| std::fs::remove_file(path).unwrap(), false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_without_room_for_spill_files_is_waited_for() {
    let wal = mixed(700);
    let (items, end) = expected(wal.path());
    let folder = tempfile::tempdir().unwrap();
    let primary = primary_with(wal.path(), &folder.path().join("primary"), any(), |_| ()).await;
    let data = folder.path().join("decoder");
    let mut program = command(&data, primary.addr());
    program.args(["--profile", "pg17"]).env("WALSTORM_DECODER__WORK_MEM", "64kB");
    let program = super::without_room(&program, 20_000);
    let mut client = DecoderServiceClient::new(connect(program.addr).await);
    let error = error_with(&mut client, "spill file").await;
    assert!(error.contains(".spill") && error.contains("free space on that disk"), "{error}");
    assert!(!is_serving(program.addr).await);
    super::limit_files(&program, None);
    while !is_serving(program.addr).await {}
    let (mut subscription, _) = Subscription::open_when_ready(program.addr, start()).await;
    subscription.read_to(end).await;
    assert_same(&subscription.items, &items);
    primary.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_positions_halt_the_node_and_without_them_subscribers_name_where_they_are() {
    let wal = mixed(20);
    let (items, end) = expected(wal.path());
    let folder = tempfile::tempdir().unwrap();
    let primary = primary_with(wal.path(), &folder.path().join("primary"), any(), |_| ()).await;
    let data = folder.path().join("decoder");
    let named = || pb::SubscribeStart { subscription: "kept".to_owned(), ..start() };
    let mut program = Program::start(command(&data, primary.addr()));
    let (mut subscription, _) = Subscription::open_when_ready(program.addr, named()).await;
    subscription.read_to(end).await;
    program.terminate();
    assert!(program.child.wait().unwrap().success());
    let path = data.join("positions");
    let good = std::fs::read(&path).unwrap();
    let (mut flipped, cut) = (good.clone(), good[..good.len() - 1].to_vec());
    flipped[20] ^= 1;
    for bytes in [flipped, cut, b"positions".to_vec(), Vec::new()] {
        std::fs::write(&path, bytes).unwrap();
        let program = Program::start(command(&data, primary.addr()));
        let mut client = DecoderServiceClient::new(connect(program.addr).await);
        let error = error_with(&mut client, path.to_str().unwrap()).await;
        assert!(error.contains("is damaged") && error.contains("restore it, or delete it"), "{error}");
        assert!(!is_serving(program.addr).await);
        let mut subscription = Subscription::open(connect(program.addr).await, named()).await;
        let refused = subscription.next().await.unwrap_err();
        assert!(refused.message().contains("halted") && refused.message().contains(&error), "{refused}");
    }
    // Restored, it is as before; deleted, everything that is kept comes again.
    for (restored, expected) in [(true, &items[items.len()..]), (false, &items[..])] {
        match restored {
            true => std::fs::write(&path, &good).unwrap(),
            false => std::fs::remove_file(&path).unwrap(),
        }
        let mut program = Program::start(command(&data, primary.addr()));
        let (mut subscription, started) = Subscription::open_when_ready(program.addr, named()).await;
        assert_eq!(Lsn(started.start_lsn) >= items.last().unwrap().end_lsn, restored);
        subscription.read_to(end).await;
        assert_same(&subscription.items, expected);
        program.terminate();
        assert!(program.child.wait().unwrap().success());
    }
    primary.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_ends_a_comparison_that_runs() {
    let wal = mixed(20);
    let (_, end) = expected(wal.path());
    let folder = tempfile::tempdir().unwrap();
    let primary = primary_with(wal.path(), &folder.path().join("primary"), any(), |_| ()).await;
    let data = folder.path().join("decoder");
    let mut program = Program::start(command(&data, primary.addr()));
    let (mut subscription, _) = Subscription::open_when_ready(program.addr, start()).await;
    subscription.read_to(end).await;
    let mut client = DecoderServiceClient::new(connect(program.addr).await);
    // A map of 4,000 tables is walked over 32 million times: minutes.
    let parameters = [("tables".to_owned(), "4000".to_owned())].into();
    let scenario = pb::ScenarioInput { name: "grant-all".to_owned(), parameters, seed: None };
    let profiles = ["pg13", "pg96", "pg10"].map(str::to_owned).to_vec();
    let request = pb::CompareProfilesRequest { profiles, input: Some(pb::compare_profiles_request::Input::Scenario(scenario)) };
    let mut answers = client.compare_profiles(request).await.unwrap().into_inner();
    assert!(matches!(answers.message().await.unwrap().unwrap().kind, Some(pb::compare_profiles_response::Kind::Started(_))));
    program.terminate();
    let status = answers.message().await.unwrap_err();
    assert!(matches!(status.code(), tonic::Code::Cancelled | tonic::Code::Unavailable), "{status:?}");
    assert!(program.child.wait().unwrap().success(), "it drains and exits with 0");
    // Nothing that was acknowledged is lost.
    let program = Program::start(command(&data, primary.addr()));
    let (mut subscription, _) = Subscription::open_when_ready(program.addr, start()).await;
    subscription.read_to(end).await;
    assert_same(&subscription.items, &expected(wal.path()).0);
    primary.shutdown().await.unwrap();
}
