//! CPU time of a real PostgreSQL 18 walsender and of walstorm's decoder on the same WAL: TRUNCATE of partitions, a storm of schema changes,
//! plain rows.
//!
//! `cargo bench -p integration-tests --bench walsender [WORKLOAD]`. Needs the programs of PostgreSQL 18 below `.tools` (`make test` sets them
//! up) or in `WALSTORM_PG18_BIN`.
//!
//! Each workload has rows of all its tables decoded first, by the same process, so that its caches are full. The server's figure is the
//! difference between walsenders that decode up to the workload and such that decode it, too (test_decoding to a file; fastest of three
//! each); ours is the time of the thread that reads and decodes, after the rows. Neither waits for anybody.

#![allow(clippy::unwrap_used, reason = "a panic here is a report")]

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use decoder_core::{DecodedTransaction, OutputSink, Profile, WorkMem};
use pg_types::Lsn;
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;
use walstorm_cli::wal_input::{Decoding, WalInput};

/// Runs of each kind; the fastest counts.
const RUNS: usize = 3;
/// Between two looks at how far a walsender is.
const LOOK: Duration = Duration::from_millis(100);
/// `nobody`: a server does not run as root.
const NOBODY: u32 = 65_534;
/// A server that keeps all its WAL, and asks nothing of the disk.
const SETTINGS: &str = "
wal_level = logical
listen_addresses = ''
fsync = off
autovacuum = off
checkpoint_timeout = 1h
max_wal_size = 100GB
max_locks_per_transaction = 20000
";

/// What is measured.
struct Workload {
    /// Its name.
    name: &'static str,
    /// Makes tables.
    tables: &'static str,
    /// Rows for each of them.
    rows: &'static str,
    /// What is compared.
    work: &'static str,
    /// So many times.
    times: usize,
}

/// The workloads, as they were measured in 2020, 2017 and by ourselves.
const WORKLOADS: [Workload; 3] = [
    Workload {
        name: "truncate-partitions",
        tables: "
            DO $$ BEGIN FOR parent IN 1..2 LOOP
              EXECUTE format('CREATE TABLE p%s (id int, c1 int, c2 int, c3 int, c4 int, c5 int, c6 int, c7 int, c8 int, c9 text, c10 text,
                c11 text, c12 text) PARTITION BY RANGE (id)', parent);
              FOR i IN 0..999 LOOP
                EXECUTE format('CREATE TABLE p%1$s_%2$s PARTITION OF p%1$s FOR VALUES FROM (%3$s) TO (%4$s)', parent, i, 10*i, 10*i+10);
              END LOOP; END LOOP; END $$;",
        rows: "INSERT INTO p1 SELECT generate_series(0, 9999); INSERT INTO p2 SELECT generate_series(0, 9999);",
        work: "TRUNCATE p1;",
        times: 1,
    },
    Workload {
        name: "schema-storm, 10,000 tables",
        tables: "
            DO $$ BEGIN FOR i IN 1..10000 LOOP EXECUTE format('CREATE TABLE t%s (id int)', i);
              IF i % 1000 = 0 THEN COMMIT; END IF; END LOOP; END $$;",
        rows: "DO $$ BEGIN FOR i IN 1..10000 LOOP EXECUTE format('INSERT INTO t%s VALUES (1)', i); END LOOP; END $$;",
        work: "BEGIN; CREATE TABLE s{i} (id serial PRIMARY KEY, a int, b text, c timestamptz DEFAULT now());
            CREATE INDEX ON s{i} (a); CREATE INDEX ON s{i} (b); COMMIT;",
        times: 500,
    },
    Workload {
        name: "plain, 100,000 inserts",
        tables: "CREATE TABLE t (id int, v text);",
        rows: "INSERT INTO t VALUES (0, 'first');",
        work: "DO $$ BEGIN FOR i IN 1..100000 LOOP INSERT INTO t VALUES (i, 'a row'); COMMIT; END LOOP; END $$;",
        times: 1,
    },
];

/// A server of its own, removed in the end.
struct Server {
    /// Its programs.
    bin: PathBuf,
    /// What it keeps.
    root: TempDir,
}

impl Server {
    /// Starts one.
    fn start(bin: &Path) -> Self {
        let server = Self { bin: bin.to_owned(), root: tempfile::tempdir().unwrap() };
        if rustix::process::geteuid().is_root() {
            chown(server.root.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let data = server.data();
        let data = data.to_str().unwrap();
        server.run("initdb", &["-D", data, "-A", "trust", "-U", "postgres", "--no-locale", "-E", "UTF8"]);
        let conf = server.data().join("postgresql.conf");
        let socket = format!("unix_socket_directories = '{}'\n", server.root.path().display());
        std::fs::write(&conf, std::fs::read_to_string(&conf).unwrap() + SETTINGS + &socket).unwrap();
        let log = server.root.path().join("server.log");
        server.run("pg_ctl", &["-D", data, "-w", "-l", log.to_str().unwrap(), "start"]);
        server
    }

    /// Its data directory.
    fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    /// One of its programs.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join(name));
        command
            .current_dir(self.root.path())
            .env("PGHOST", self.root.path())
            .env("PGUSER", "postgres")
            .env("PGDATABASE", "postgres");
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// Runs one of its programs to its end.
    fn run(&self, name: &str, args: &[&str]) -> String {
        // A server that is started keeps its starter's pipes open.
        let out = self.root.path().join("out");
        let file = std::fs::File::create(&out).unwrap();
        let mut command = self.program(name);
        command.args(args).stdout(file.try_clone().unwrap()).stderr(file);
        let status = command.status().unwrap_or_else(|e| panic!("cannot run {name} of {}: {e}", self.bin.display()));
        let text = std::fs::read_to_string(&out).unwrap();
        assert!(status.success(), "{name} {args:?}: {text}");
        text
    }

    /// Runs statements.
    fn sql(&self, text: &str) -> String {
        let file = self.root.path().join("statements.sql");
        std::fs::write(&file, text).unwrap();
        self.run("psql", &["-XqAt", "-v", "ON_ERROR_STOP=1", "-f", file.to_str().unwrap()]).trim().to_owned()
    }

    /// Where its log ends.
    fn lsn(&self) -> Lsn {
        self.sql("SELECT pg_current_wal_insert_lsn()").parse().unwrap()
    }

    /// CPU time of a walsender that decodes from the slot to `until`, and the transactions that it gave out.
    fn walsender(&self, slot: &str, until: Lsn) -> (Duration, usize) {
        let out = self.root.path().join("decoded");
        let mut receiver: Child = self
            .program("pg_recvlogical")
            .args(["-d", "postgres", "-S", slot, "--start", "-F", "0", "-f"])
            .arg(&out)
            .spawn()
            .unwrap();
        let pid = loop {
            std::thread::sleep(LOOK);
            assert!(receiver.try_wait().unwrap().is_none(), "pg_recvlogical has ended: it says why above");
            let query = format!("SELECT pid FROM pg_stat_replication WHERE sent_lsn >= '{until}'");
            let pid = self.sql(&query);
            if !pid.is_empty() {
                break pid;
            }
        };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
        let cpu = Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap());
        receiver.kill().unwrap();
        receiver.wait().unwrap();
        while self.sql("SELECT count(*) FROM pg_stat_replication") != "0" {
            std::thread::sleep(LOOK);
        }
        let commits = std::fs::read_to_string(&out).unwrap().lines().filter(|line| line.starts_with("COMMIT")).count();
        std::fs::remove_file(&out).unwrap();
        (cpu, commits)
    }

    /// The fastest of some walsenders, each with a slot of its own.
    fn fastest(&self, slots: &str, until: Lsn) -> (Duration, usize) {
        (0..RUNS).map(|run| self.walsender(&format!("{slots}{run}"), until)).min().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let data = self.data();
        let _ = self.program("pg_ctl").args(["-m", "immediate", "-w", "stop", "-D"]).arg(data).output();
    }
}

/// Counts transactions.
#[derive(Default)]
struct Transactions(usize);

impl OutputSink for Transactions {
    fn commit(&mut self, _: &DecodedTransaction) {
        self.0 += 1;
    }
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// CPU time in which we read and decode what lies behind `from`, with everything before decoded, and its transactions.
fn walstorm(input: &WalInput, profile: &str, from: Lsn) -> (Duration, usize) {
    let profile: Profile = profile.parse().unwrap();
    let mut decoder = input.decoder(Decoding::at_commit(&profile, WorkMem::default())).unwrap();
    let (mut before, mut work) = (Transactions::default(), Transactions::default());
    let mut began = None;
    let marker = decoder.current_function();
    input
        .each_record(&marker, |record, _| {
            let sink = if record.lsn < from { &mut before } else { &mut work };
            if record.lsn >= from {
                began.get_or_insert_with(cpu);
            }
            Ok(decoder.process(record, sink)?)
        })
        .unwrap();
    (cpu() - began.unwrap(), work.0)
}

/// One row of the table.
fn compare(bin: &Path, workload: &Workload) {
    let server = Server::start(bin);
    server.sql(workload.tables);
    for slots in ["before", "after"] {
        for run in 0..RUNS {
            server.sql(&format!("SELECT 1 FROM pg_create_logical_replication_slot('{slots}{run}', 'test_decoding')"));
        }
    }
    server.sql(workload.rows);
    let from = server.lsn();
    let (rows_took, rows) = server.fastest("before", from);
    let work: String = (0..workload.times).map(|i| workload.work.replace("{i}", &i.to_string())).collect();
    server.sql(&work);
    let (all_took, all) = server.fastest("after", server.lsn());
    let real = all_took.saturating_sub(rows_took);
    let data = server.data();
    server.run("pg_ctl", &["-m", "fast", "-w", "stop", "-D", data.to_str().unwrap()]);
    let input = WalInput::open(&data.join("pg_wal"), None, None).unwrap();
    print!("{:<28} {:>8.1}", workload.name, real.as_secs_f64() * 1e3);
    for profile in ["pg18", "indexed"] {
        let (took, transactions) = (0..RUNS).map(|_| walstorm(&input, profile, from)).min().unwrap();
        assert_eq!(transactions, all - rows, "{} under {profile}: transactions of the workload", workload.name);
        print!(" {:>8.1} {:>6.1}", took.as_secs_f64() * 1e3, real.as_secs_f64() / took.as_secs_f64());
    }
    println!();
}

fn main() {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/pg18/bin");
    let bin = std::env::var_os("WALSTORM_PG18_BIN").map_or_else(own, PathBuf::from);
    if !bin.join("postgres").exists() {
        println!("SKIPPED: there is no PostgreSQL 18 in {}: `make test` sets it up", bin.display());
        return;
    }
    let bin = bin.canonicalize().unwrap();
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    println!("CPU ms                       walsender     pg18  times  indexed  times");
    for workload in WORKLOADS.iter().filter(|w| wanted.is_empty() || wanted.iter().any(|name| w.name.contains(&**name))) {
        compare(&bin, workload);
    }
}
