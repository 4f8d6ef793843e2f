//! A scenario played into the log as fast as the machine goes: without waiting for the disk, with `fdatasync` and with `fsync`, in
//! groups of several sizes. Includes the simulated server, the format, the files, the flushes; nobody reads.

use std::time::Instant;

use primary_node::config::WalSyncMethod;
use primary_node::{PrimaryConfig, PrimaryNode};

use crate::cpu;

/// Bytes that are flushed together.
const GROUPS: [u64; 3] = [8 << 10, 64 << 10, 1 << 20];
/// Sessions.
const SESSIONS: u32 = 50;
/// What a flush waits for.
const SYNCS: [(&str, Option<WalSyncMethod>); 3] =
    [("no", None), ("fdatasync", Some(WalSyncMethod::Fdatasync)), ("fsync", Some(WalSyncMethod::Fsync))];

/// A scenario of transactions of two inserts and a commit.
fn scenario(transactions: u32) -> String {
    let each = transactions / SESSIONS;
    format!(
        "name = \"writing\"\nstory = \"Small transactions.\"\nseed = 1\n\
         [[tables]]\nname = \"t_{{i}}\"\ncount = 4\ncolumns = [\"id int\", \"a int\"]\n\
         [[actors]]\nname = \"writer\"\nsessions = {SESSIONS}\nevery = \"1ms\"\ntransactions = {each}\n\
         steps = [{{ insert = {{ table = \"t_{{random:4}}\", rows = 2 }} }}]\n"
    )
}

/// One run; its row of the table.
async fn run(transactions: u32, (name, sync): (&str, Option<WalSyncMethod>), group: u64) -> String {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("writing.toml");
    std::fs::write(&file, scenario(transactions)).unwrap();
    let mut config = PrimaryConfig { data_dir: data.path().to_owned(), ..PrimaryConfig::default() };
    config.source.scenario = Some(file.display().to_string());
    config.source.fsync = sync.is_some();
    config.source.wal_sync_method = sync.unwrap_or_default();
    config.source.flush_bytes = group;
    config.server.listen = "127.0.0.1:0".to_owned();
    let (began, cpu_before) = (Instant::now(), cpu());
    let node = PrimaryNode::start(config).await.unwrap();
    node.log().subscribe().wait_for(|log| log.closed).await.unwrap();
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu() - cpu_before);
    let written = node.log().writer().unwrap().borrow().clone();
    node.shutdown().await.unwrap();
    let (commits, counters) = (written.commits as f64, written.counters);
    format!(
        "{name:>9} {:>9} {:>14.0} {:>12.0} {:>8.1} {:>14.1} {:>8} {:>20.3}",
        group >> 10,
        commits / seconds,
        counters.records as f64 / seconds,
        counters.bytes as f64 / 1e6 / seconds,
        commits / written.flushes as f64,
        counters.syncs,
        cpu * 1e6 / commits,
    )
}

/// All sizes of groups, by what is waited for.
pub(crate) fn table(runtime: &tokio::runtime::Runtime, transactions: u32) {
    println!("\na scenario played into the log, {transactions} transactions of two inserts and a commit");
    println!(
        "{:>9} {:>9} {:>14} {:>12} {:>8} {:>14} {:>8} {:>20}",
        "sync", "group KiB", "transactions/s", "records/s", "MB/s", "commits/group", "syncs", "CPU us/transaction"
    );
    for sync in SYNCS {
        for group in GROUPS {
            println!("{}", runtime.block_on(run(transactions, sync, group)));
        }
    }
}
