//! `walstorm explain`: the story of one transaction, in words and numbers, and what each profile does to it.

mod show;

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::Context;
use decoder_core::{Consumer, Contender, DecodedTransaction, Profile, SnapBuildState, WorkMem};
use pg_types::{Lsn, Oid, RecordBody, WalRecord, Work, Xid};
use service_kit::cpu::thread_cpu_ns;

use crate::notes::{Stdout, note};
use crate::wal_input::{Decoding, WalInput};

/// Arguments of `walstorm explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The story names the statements that leave such records: where several do, all of them. Each profile decodes the WAL from its first record
up to the transaction's commit, so its counters are exact for a decoder that began there; decoder is CPU time of decoding the commit.

With --json the transaction is one object with the keys xid, commit_lsn, end_lsn, first_lsn, restart_lsn (where WAL must be read from
to decode it), commit_time, gid, subxids (how many), story (text, and statements: at least one of them was executed), relations,
catalogs (rows inserted, updated, deleted, came_and_went, in_place), footprint (counts of files, locks, commands ...), messages, caches,
decoded_from and profiles (profile, consumer, work, cpu_ns).

Exit code: 0; 1 on errors, as when there is no such transaction.")]
pub struct Args {
    /// Directory with WAL segments, a data directory, or one segment.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The transaction: its xid or that of one of its subtransactions, or start or end of its commit record as X/Y.
    #[arg(value_name = "XID|LSN")]
    which: Which,
    /// Profiles, separated by commas: pg96, pg10, pg13, pg14 ... indexed, each with +switches.
    #[arg(long, value_name = "P,P,...", value_delimiter = ',', default_value = "pg96,pg13,pg14,pg18,indexed")]
    profiles: Vec<Profile>,
    /// Folder with pg_class.csv and pg_class_start.csv for names.
    #[arg(long, value_name = "DIR")]
    catalog: Option<PathBuf>,
    /// Database to decode; default the one with the most row changes.
    #[arg(long, value_name = "OID")]
    database: Option<u32>,
    /// What changes in memory may count for before some are written out (logical_decoding_work_mem), as 64kB, 64MB or 1GB.
    #[arg(long, value_name = "SIZE", default_value_t)]
    work_mem: WorkMem,
    /// Who decodes: live reads the shared invalidation queue too and is reset when it lags, catch-up does not.
    #[arg(long, value_name = "live|catch-up")]
    consumer: Option<Consumer>,
    /// As a JSON object.
    #[arg(long)]
    json: bool,
}

/// How a transaction is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// By its top-level xid.
    Xid(Xid),
    /// By start or end of its commit record.
    Lsn(Lsn),
}

/// The text names no transaction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be an xid as 763, or start or end of a commit record as 0/8A0F38")]
struct BadWhich;

impl FromStr for Which {
    type Err = BadWhich;

    fn from_str(text: &str) -> Result<Self, BadWhich> {
        if text.contains('/') {
            return text.parse().map(Which::Lsn).map_err(|_| BadWhich);
        }
        text.parse().ok().filter(|xid| *xid > 0).map(|xid| Which::Xid(Xid(xid))).ok_or(BadWhich)
    }
}

impl Which {
    /// Whether it names a transaction by its xid, or by that of one of its subtransactions.
    fn is_xid_of(self, xid: Xid, subxids: &[Xid]) -> bool {
        matches!(self, Which::Xid(asked) if asked == xid || subxids.contains(&asked))
    }
}

/// What one profile did to it.
#[derive(Debug)]
struct Forecast {
    /// The profile.
    profile: Profile,
    /// Its work.
    work: Work,
    /// CPU time of decoding its commit record, in nanoseconds.
    cpu_ns: u64,
}

/// What is shown.
#[derive(Debug)]
struct Explained {
    /// The transaction, its work being that of the first profile.
    transaction: DecodedTransaction,
    /// Start of the first record.
    decoded_from: Lsn,
    /// By profile.
    profiles: Vec<Forecast>,
}

/// Runs the command.
///
/// # Errors
/// The WAL cannot be read or decoded, or holds no such transaction.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    run(args, &mut Stdout::new(), &mut io::stderr())
}

/// The command with its outputs given: the answer to `out`, remarks to `notes`.
///
/// # Errors
/// As [`main`].
pub fn run(args: &Args, out: &mut dyn Write, notes: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let input = WalInput::open(&args.dir, args.catalog.as_deref(), args.database.map(Oid))?;
    input.notes.iter().for_each(|text| note(notes, text));
    let profiles = args.profiles.iter().map(|profile| profile.clone().consumed_by(args.consumer));
    let (mut transaction, decoded_from) = find(&input, args.which, args.work_mem)?;
    if let Which::Xid(xid) = args.which
        && xid != transaction.xid
    {
        note(notes, format!("{xid} is a subtransaction of {}, which is explained", transaction.xid));
    }
    let forecast = |profile| forecast(&input, profile, args.work_mem, transaction.commit_lsn);
    let profiles = profiles.map(forecast).collect::<anyhow::Result<Vec<Forecast>>>()?;
    transaction.work = profiles.first().map(|first| first.work).unwrap_or_default();
    let explained = Explained { transaction, decoded_from, profiles };
    if args.json {
        show::json(out, &explained, input.dir().identity().version)?;
    } else {
        show::text(out, &explained, input.dir().identity().version)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Looks for the transaction; gives also where decoding began.
fn find(input: &WalInput, which: Which, work_mem: WorkMem) -> anyhow::Result<(DecodedTransaction, Lsn)> {
    let profile = Profile::indexed();
    let mut contender = Contender::new(input.decoder(Decoding { profile, work_mem, streaming: false, two_phase: None })?);
    // One may end where the next one's commit record starts: what starts there is meant.
    let (mut found, mut ends_there, mut over) = (None, None, false);
    let (mut seen, mut first_lsn) = (Seen::default(), Lsn::INVALID);
    input.records_until(None, |record| {
        if !first_lsn.is_valid() {
            first_lsn = record.lsn;
        }
        seen.note_end(which, record, input.database);
        contender.process_seen(record, &mut |t| {
            seen.add(t);
            over |= ends_there.is_some();
            if which.is_xid_of(t.xid, &t.subxids) || which == Which::Lsn(t.commit_lsn) {
                found.get_or_insert_with(|| t.clone());
            } else if which == Which::Lsn(t.end_lsn) {
                ends_there.get_or_insert_with(|| t.clone());
            }
        })?;
        Ok(if over || found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    match found.or(ends_there) {
        Some(transaction) => Ok((transaction, first_lsn)),
        None => anyhow::bail!("{}", seen.but_not(which, contender.decoder().state())),
    }
}

/// The transactions that were decoded, for who asked for another.
#[derive(Default)]
struct Seen {
    /// How many.
    count: u64,
    /// Xid and commit of the first.
    first: (Xid, Lsn),
    /// The same of the last.
    last: (Xid, Lsn),
    /// Why the one asked for is not among them, as far as its end tells.
    why: Option<String>,
}

impl Seen {
    /// Another.
    fn add(&mut self, t: &DecodedTransaction) {
        if self.count == 0 {
            self.first = (t.xid, t.commit_lsn);
        }
        self.count += 1;
        self.last = (t.xid, t.commit_lsn);
    }

    /// Looks whether a record ends `which`, and what that means to a decoder of `database`.
    fn note_end(&mut self, which: Which, record: &WalRecord, database: Oid) {
        let (prepared, subxids) = match &record.body {
            RecordBody::Commit(commit) => (commit.prepared_xid, &commit.subxids),
            RecordBody::Abort(abort) => (abort.prepared_xid, &abort.subxids),
            _ => return,
        };
        let xid = if prepared.is_valid() { prepared } else { record.xid };
        let is_at = which == Which::Lsn(record.lsn) || which == Which::Lsn(record.end_lsn) && self.why.is_none();
        if !which.is_xid_of(xid, subxids) && !is_at {
            return;
        }
        self.why = match &record.body {
            RecordBody::Commit(commit) if commit.db != database && commit.db.is_valid() => {
                Some(format!("xid {xid} committed in database {0}, and {database} is decoded: --database {0}", commit.db))
            }
            RecordBody::Abort(_) if which.is_xid_of(xid, &[]) || is_at => {
                Some(format!("xid {xid} was rolled back, so it is never decoded"))
            }
            RecordBody::Abort(_) => {
                Some(format!("it is a subtransaction of {xid}, which was rolled back, so it is never decoded"))
            }
            _ => None,
        };
    }

    /// What to say if `which` was not among them.
    fn but_not(&self, which: Which, state: SnapBuildState) -> String {
        if let Some(why) = &self.why {
            return why.clone();
        }
        let asked = match which {
            Which::Xid(xid) => format!("no transaction with xid {xid}"),
            Which::Lsn(lsn) => format!("no transaction whose commit record starts or ends at {lsn}"),
        };
        let Seen { count, first, last, .. } = self;
        match (count, state) {
            (0, SnapBuildState::Consistent) => format!("{asked}: nothing is decoded of this WAL"),
            (0, _) => format!("{asked}: no consistent point in this WAL, so nothing can be decoded"),
            _ => format!(
                "{asked} is decoded of this WAL; there are {count}, from xid {} at {} to xid {} at {} (`walstorm decode` lists \
                 all)",
                first.0, first.1, last.0, last.1
            ),
        }
    }
}

/// What the transaction that commits at `commit_lsn` costs under a profile, decoded from the first record on.
fn forecast(input: &WalInput, profile: Profile, work_mem: WorkMem, commit_lsn: Lsn) -> anyhow::Result<Forecast> {
    let decoding = Decoding { profile: profile.clone(), work_mem, streaming: false, two_phase: None };
    let mut contender = Contender::new(input.decoder(decoding)?).looking_for(commit_lsn);
    let mut cpu_ns = 0;
    input.records_until(None, |record| {
        if record.lsn < commit_lsn {
            contender.process(record)?;
            return Ok(ControlFlow::Continue(()));
        }
        let before = thread_cpu_ns();
        contender.process(record)?;
        cpu_ns = thread_cpu_ns().saturating_sub(before);
        Ok(ControlFlow::Break(()))
    })?;
    let work = contender.found().with_context(|| format!("{profile} does not give out the transaction at {commit_lsn}"))?;
    Ok(Forecast { profile, work, cpu_ns })
}
