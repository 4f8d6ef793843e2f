//! `walstorm snapshot`: what a standby knows, and what a new reader on it sees, at positions of a WAL directory.

mod start;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use pg_types::Lsn;
use pg_wal::page::next_record_start;
use pg_wal::{WalDir, WalReader};
use serde::Serialize;
use standby_core::{RecoveryError, RecoveryReader, RecoveryWriter, StandbyProfile, StandbySettings};

use crate::notes::{Stdout, left_out, note};
use start::Start;

/// Arguments of `walstorm snapshot`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Replays the WAL as a hot standby does and prints a line per position: the state after every record that ends at or before it.
With --json a line is an object with the keys
  lsn                  the position asked for
  state                initialized: started, no list of running transactions met yet; pending: met, but subtransactions may be
                       missing; ready: snapshots can be taken
  xmin, xmax           as in pg_current_snapshot() of a new reader, without epoch; null unless ready
  xip                  running transactions and subtransactions below xmax, oldest first; null unless ready (a standby keeps
                       them where a primary keeps subtransactions, so pg_current_snapshot() does not show them)
  suboverflowed        xip may lack subtransactions; null unless ready
  last_overflowed_xid  newest id whose subtransactions may be missing, 0 if none
  live                 known-assigned ids that run: how many there are, those from xmax on included
  head, tail           where the array of known-assigned ids ends and begins; depends on the profile's rule of compression
  slots_visited        slots that the snapshot looked at, 0 unless ready; with skip offsets the first one pays for all

A setting that is not given is PostgreSQL's default, or what a PARAMETER_CHANGE record says the primary has, if that is more. One
that is given and is below what such a record says is an error, as on a real standby; WAL without one does not tell.

Exit code: 0 if every position was reached, 1 otherwise.")]
pub struct Args {
    /// Directory with WAL segments, a data directory, or one segment.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Positions, as in 0/A05390; give several with commas.
    #[arg(long, value_name = "LSN", value_delimiter = ',', required = true)]
    at: Vec<Lsn>,
    /// How the standby behaves: pg96, pg10, pg13.6, pg13, pg14.5, pg14, pg15.1, pg15, pg16, pg17, pg17.5, pg17.6, pg18,
    /// indexed, each with +skip-offset; default the current minor of the WAL's version.
    #[arg(long, value_name = "P")]
    profile: Option<StandbyProfile>,
    /// Where the standby begins: a checkpoint's position or its redo position; default the first checkpoint in DIR.
    #[arg(long, value_name = "LSN")]
    start: Option<Lsn>,
    /// Timeline to follow; default the newest.
    #[arg(long, value_name = "N")]
    timeline: Option<u32>,
    /// What sizes the array.
    #[command(flatten)]
    settings: SettingFlags,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

/// The standby's settings; those not given follow the primary.
#[derive(Clone, Copy, Debug, clap::Args)]
struct SettingFlags {
    /// The standby's max_connections [default: 100].
    #[arg(long, value_name = "N")]
    max_connections: Option<u32>,
    /// The standby's max_prepared_transactions [default: 0].
    #[arg(long, value_name = "N", alias = "max-prepared-transactions")]
    max_prepared: Option<u32>,
    /// The standby's max_worker_processes [default: 8].
    #[arg(long, value_name = "N")]
    max_worker_processes: Option<u32>,
    /// The standby's max_wal_senders [default: 10].
    #[arg(long, value_name = "N")]
    max_wal_senders: Option<u32>,
    /// The standby's autovacuum_max_workers, which counts up to 17 [default: 3].
    #[arg(long, value_name = "N")]
    autovacuum_max_workers: Option<u32>,
    /// The standby's autovacuum_worker_slots, which counts instead from 18 on [default: 16].
    #[arg(long, value_name = "N")]
    autovacuum_worker_slots: Option<u32>,
}

impl SettingFlags {
    /// The settings, with PostgreSQL's defaults.
    fn settings(&self) -> StandbySettings {
        let default = StandbySettings::default();
        StandbySettings {
            max_connections: self.max_connections.unwrap_or(default.max_connections),
            autovacuum_max_workers: self.autovacuum_max_workers.unwrap_or(default.autovacuum_max_workers),
            autovacuum_worker_slots: self.autovacuum_worker_slots.unwrap_or(default.autovacuum_worker_slots),
            max_worker_processes: self.max_worker_processes.unwrap_or(default.max_worker_processes),
            max_wal_senders: self.max_wal_senders.unwrap_or(default.max_wal_senders),
            max_prepared_transactions: self.max_prepared.unwrap_or(default.max_prepared_transactions),
            subtransaction_buffers: default.subtransaction_buffers,
        }
    }

    /// Raises a setting that was not given to the primary's value. False if it was given, or is at that value already.
    fn follow(&mut self, setting: &str, primary: u32) -> bool {
        let flag = match setting {
            "max_connections" => &mut self.max_connections,
            "max_worker_processes" => &mut self.max_worker_processes,
            "max_wal_senders" => &mut self.max_wal_senders,
            "max_prepared_transactions" => &mut self.max_prepared,
            _ => return false,
        };
        let follows = flag.is_none();
        if follows {
            *flag = Some(primary);
        }
        follows
    }
}

/// One position's line.
#[derive(Clone, Debug, Serialize)]
struct Line {
    /// The position asked for.
    lsn: String,
    /// State word.
    state: String,
    /// Oldest running id, or `xmax`.
    xmin: Option<u32>,
    /// One past the newest completed id.
    xmax: Option<u32>,
    /// Running ids below `xmax`.
    xip: Option<Vec<u32>>,
    /// `xip` may lack subtransactions.
    suboverflowed: Option<bool>,
    /// 0 if none.
    last_overflowed_xid: u32,
    /// Live ids in the array.
    live: u32,
    /// Where the array ends.
    head: u32,
    /// Where it begins.
    tail: u32,
    /// Slots that the snapshot looked at.
    slots_visited: u64,
}

/// Lines by position.
type Lines = BTreeMap<Lsn, Line>;

/// Runs the command.
///
/// # Errors
/// The WAL cannot be read or replayed, or a position is outside of it.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    run(args, &mut Stdout::new(), &mut io::stderr())
}

/// The command with its outputs given: lines to `out`, in the order asked for, remarks to `notes`. Lines of positions that were
/// reached are written before an error is returned.
///
/// # Errors
/// As [`main`].
pub fn run(args: &Args, out: &mut dyn Write, notes: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let dir = WalDir::open(&args.dir, args.timeline)?;
    if let (None, Some(left_out)) = (args.timeline, left_out(&dir)) {
        note(notes, format!("{left_out} (see --timeline)"));
    }
    let profile = args.profile.unwrap_or_else(|| StandbyProfile::of_version(dir.identity().version));
    let start = Start::find(&dir, args.start)?;
    for at in &args.at {
        if *at < start.redo {
            bail!(
                "--at {at} is before {}, where replay starts: ask for a later position, or --start at an earlier checkpoint",
                start.redo
            );
        }
    }
    let mut flags = args.settings;
    let mut lines = Lines::new();
    let replayed = loop {
        lines.clear();
        match replay(&dir, profile, &flags.settings(), &start, &args.at, &mut lines) {
            Err(Stop::Replay(RecoveryError::InsufficientSetting { setting, primary, .. }))
                if flags.follow(setting, primary) =>
            {
                note(notes, format!("the primary has {setting} = {primary}: the standby gets as much"));
            }
            other => break other,
        }
    };
    let written = args.at.iter().filter_map(|at| lines.get(at)).try_for_each(|line| write_line(line, args.json, out));
    match written.and_then(|()| out.flush()) {
        // Whoever reads wants no more, as in `walstorm snapshot … | head`.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
        other => other?,
    }
    match replayed {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(Stop::Replay(error)) => Err(error.into()),
        Err(Stop::Other(error)) => Err(error),
    }
}

/// Why a replay did not reach all positions.
enum Stop {
    /// The standby stopped.
    Replay(RecoveryError),
    /// The WAL cannot be read, or is at its end.
    Other(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        let error = error.into();
        match error.downcast::<RecoveryError>() {
            Ok(error) => Self::Replay(error),
            Err(error) => Self::Other(error),
        }
    }
}

/// Replays until the last position asked for and notes the lines on the way.
fn replay(
    dir: &WalDir,
    profile: StandbyProfile,
    settings: &StandbySettings,
    start: &Start,
    at: &[Lsn],
    lines: &mut Lines,
) -> Result<(), Stop> {
    let mut wanted = at.to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    let mut wanted = wanted.into_iter().peekable();
    let mut writer = RecoveryWriter::new(settings, profile)?;
    writer.start_at_checkpoint(&start.checkpoint, start.redo)?;
    let standby = writer.reader();
    let mut reader = WalReader::open(dir, Some(start.redo))?;
    while wanted.peek().is_some() {
        let Some(raw) = reader.next()? else { break };
        while let Some(at) = wanted.next_if(|at| *at < raw.end_lsn) {
            lines.insert(at, line(at, &standby)?);
        }
        writer.apply(&raw.decode(dir.profile())?)?;
    }
    // On a page boundary the next record starts behind the page header, and that is the end which a server tells.
    let end = reader.position();
    let end = end.max(next_record_start(end, dir.identity().segment_size));
    while let Some(at) = wanted.next_if(|at| *at <= end) {
        lines.insert(at, line(at, &standby)?);
    }
    if let Some(at) = wanted.next() {
        let end = reader.end().context("the reader stopped without saying why")?;
        return Err(Stop::Other(anyhow::anyhow!("--at {at} is not reached: {end}")));
    }
    Ok(())
}

/// What a new reader sees now.
fn line(at: Lsn, standby: &RecoveryReader) -> Result<Line, RecoveryError> {
    let state = standby.state();
    let taken = match standby.snapshot() {
        Ok(taken) => Some(taken),
        Err(RecoveryError::NotReady { .. }) => None,
        Err(error) => return Err(error),
    };
    let snapshot = taken.as_ref().map(|t| &t.snapshot);
    Ok(Line {
        lsn: at.to_string(),
        state: state.standby_state.to_string(),
        xmin: snapshot.map(|s| s.xmin.numeric()),
        xmax: snapshot.map(|s| s.xmax.numeric()),
        xip: snapshot.map(|s| s.xip.iter().map(|x| x.numeric()).collect()),
        suboverflowed: snapshot.map(|s| s.suboverflowed),
        last_overflowed_xid: state.last_overflowed_xid.numeric(),
        live: state.known_assigned.live,
        head: state.known_assigned.head,
        tail: state.known_assigned.tail,
        slots_visited: taken.as_ref().map_or(0, |t| t.slots.visited),
    })
}

/// Writes a line as JSON or as text.
fn write_line(line: &Line, json: bool, out: &mut dyn Write) -> io::Result<()> {
    if json {
        serde_json::to_writer(&mut *out, line)?;
        return writeln!(out);
    }
    let Line { lsn, state, live, head, tail, slots_visited, last_overflowed_xid, .. } = line;
    write!(out, "{lsn} {state}: {live} live, slots {tail} to {head}, last overflowed {last_overflowed_xid}")?;
    if let (Some(xmin), Some(xmax), Some(xip), Some(over)) = (line.xmin, line.xmax, &line.xip, line.suboverflowed) {
        let list: Vec<String> = xip.iter().map(u32::to_string).collect();
        let over = if over { ", suboverflowed" } else { "" };
        write!(out, "; snapshot {xmin}:{xmax}:{}{over}, {slots_visited} slots visited", list.join(","))?;
    }
    writeln!(out)
}
