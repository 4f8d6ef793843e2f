//! `walstorm decode`: a line per committed transaction, in commit order.

mod block;
mod prepared;

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use decoder_core::{
    Consumer, DecodedChange, DecodedTransaction, Decoder, OutputSink, PreparedEnd, Profile, Relation, RelationChanges,
    SnapBuildState, TimestampText, TwoPhase, WorkMem,
};
use pg_types::record::{LogicalMessageRecord, TruncateRecord};
use pg_types::{Lsn, Oid, Xid};
use serde::ser::{Serialize, SerializeMap, Serializer};

use self::block::{Aborted, Block};
use self::prepared::{JsonPrepare, PreparedLine};
use crate::notes::{Stdout, note};
use crate::plugin_args::PluginArgs;
use crate::wal_input::{Decoding, WalInput};

/// Exit code when the WAL ends in anything but a complete end.
const TORN: u8 = 3;

/// Arguments of `walstorm decode`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each line is one committed transaction, in the order of commit records, as logical decoding gives them out: rolled-back ones are
absent, prepared ones stand where they were committed. With --json a line is an object with the keys xid, commit_lsn, end_lsn,
commit_time, subxids, origin (id, lsn; for what was replayed from elsewhere), consumer (live or catch-up), relations (name, or tablespace/database/file where no catalog names it ->
insert, update, delete, truncate), messages (invalidation messages by kind, and logical ones) and work (counters of what decoding
it cost under the profile).

With --streaming, a transaction that is too large for --work-mem is shown in blocks before its end is known. A block's object
has the keys block (the xid), first, start_lsn, end_lsn, relations, truncates and messages; one for a transaction or
subtransaction that was rolled back after a block has aborted (its xid), top_xid and lsn. At the commit stands the same line as without.
With --two-phase, the object of a prepared transaction has the keys prepare (its xid), gid, prepare_lsn, end_lsn, prepare_time, subxids,
consumer, relations, messages and work, and that of its end commit_prepared or rollback_prepared, gid, lsn, end_lsn and time.

Exit code: 0 if the WAL ends at a switch or a zeroed tail, 3 if it ends in anything else, 1 on errors.")]
pub struct Args {
    /// Directory with WAL segments, a data directory, or one segment.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// What decoding costs: pg96, pg10, pg13, pg14 ... indexed, each with +switches; what is decoded stays the same.
    #[arg(long, value_name = "P", default_value = "indexed")]
    profile: Profile,
    /// Folder with pg_class.csv and pg_class_start.csv (relname, oid, relfilenode, reltablespace, nsp, relkind) for names.
    #[arg(long, value_name = "DIR")]
    catalog: Option<PathBuf>,
    /// Database to decode; default the one with the most row changes.
    #[arg(long, value_name = "OID")]
    database: Option<u32>,
    /// What changes in memory may count for before some are written out (logical_decoding_work_mem), as 64kB, 64MB or 1GB.
    #[arg(long, value_name = "SIZE", default_value_t)]
    work_mem: WorkMem,
    /// Shows large transactions in blocks as soon as the memory is full, before their end is known (14 and later).
    #[arg(long)]
    streaming: bool,
    /// Shows prepared transactions when they are prepared, and later how they ended (14 and later).
    #[arg(long)]
    two_phase: bool,
    /// With --two-phase: those whose names contain TEXT are shown when they commit all the same (test_decoding: _nodecode).
    #[arg(long, value_name = "TEXT", requires = "two_phase")]
    two_phase_except: Option<String>,
    /// Who decodes: live reads the shared invalidation queue too and is reset when it lags, catch-up does not.
    #[arg(long, value_name = "live|catch-up")]
    consumer: Option<Consumer>,
    /// What is asked for.
    #[command(flatten)]
    plugin: PluginArgs,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

/// Refuses what the WAL or the profile cannot do.
fn check(args: &Args, input: &WalInput) -> anyhow::Result<()> {
    let version = input.dir().identity().version;
    for (flag, set) in [("--streaming", args.streaming), ("--two-phase", args.two_phase)] {
        if set && !Decoder::knows_before_commit(version) {
            anyhow::bail!(
                "{flag}: WAL of PostgreSQL {version} cannot be decoded before commits, from 14 on it can; leave it out"
            );
        }
    }
    if !args.plugin.options().publication_names.is_empty() && args.catalog.is_none() {
        anyhow::bail!(
            "--publication: WAL alone does not tell what is published; name with --catalog the folder that has copies of it"
        );
    }
    if args.streaming && !args.profile.streams() {
        let profile = &args.profile;
        anyhow::bail!("--streaming: a server of profile {profile} gives out whole transactions; take pg14 or a later profile");
    }
    Ok(())
}

/// Runs the command.
///
/// # Errors
/// The WAL or the catalog cannot be read, or a record cannot be decoded.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    run(args, &mut Stdout::new(), &mut io::stderr())
}

/// The command with its outputs given: lines to `out`, remarks to `notes`.
///
/// # Errors
/// As [`main`].
pub fn run(args: &Args, out: &mut dyn Write, notes: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let mut input = WalInput::open(&args.dir, args.catalog.as_deref(), args.database.map(Oid))?;
    input.notes.iter().for_each(|text| note(notes, text));
    check(args, &input)?;
    input.options = args.plugin.options();
    let (profile, work_mem, streaming) = (args.profile.clone().consumed_by(args.consumer), args.work_mem, args.streaming);
    let consumer = profile.consumer;
    let except = args.two_phase_except.clone().map(String::into_bytes);
    let two_phase = args.two_phase.then_some(TwoPhase { at: Lsn::INVALID, except });
    let mut decoder = input.decoder(Decoding { profile, work_mem, streaming, two_phase })?;
    let mut lines = Lines { out, json: args.json, consumer, failed: None, block: Block::default() };
    let decoded = input.decode(&mut decoder, &mut lines);
    let written = lines.failed.map_or_else(|| out.flush(), Err);
    match written {
        // Whoever reads wants no more, as in `walstorm decode DIR | head`.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
        other => other?,
    }
    let end = decoded?;
    if decoder.state() != SnapBuildState::Consistent {
        let waits = decoder.waits_for().map_or_else(
            || "no RUNNING_XACTS record was found".to_owned(),
            |xid| format!("it waits until no transaction before {xid} runs"),
        );
        note(notes, format!("no consistent point in this WAL, so nothing can be decoded: {waits}"));
    }
    for name in decoder.missing_publications() {
        note(
            notes,
            format!("there is no publication '{}', so nothing of it is shown: copy it into the catalog", printable(&name)),
        );
    }
    if end.is_complete() {
        return Ok(ExitCode::SUCCESS);
    }
    note(notes, end);
    Ok(ExitCode::from(TORN))
}

/// Writes a line per transaction.
struct Lines<'a> {
    /// Where to.
    out: &'a mut dyn Write,
    /// As JSON.
    json: bool,
    /// Whose figures they are.
    consumer: Consumer,
    /// The first failure; nothing is written after it.
    failed: Option<io::Error>,
    /// The block at hand.
    block: Block,
}

impl Lines<'_> {
    /// Writes a line: as text, or as an object.
    fn line(&mut self, text: impl FnOnce(&mut dyn Write) -> io::Result<()>, json: impl Serialize) {
        if self.failed.is_some() {
            return;
        }
        let written = if self.json {
            serde_json::to_writer(&mut *self.out, &json).map_err(io::Error::from).and_then(|()| writeln!(self.out))
        } else {
            text(self.out)
        };
        self.failed = written.err();
    }
}

impl OutputSink for Lines<'_> {
    fn change(&mut self, change: &DecodedChange<'_>) {
        self.block.change(change);
    }

    fn truncate(&mut self, _: Lsn, _: Xid, relations: &[&Relation], _: &TruncateRecord) {
        self.block.truncate(relations);
    }

    fn message(&mut self, _: Lsn, _: Xid, message: &LogicalMessageRecord) {
        self.block.messages += u64::from(message.transactional);
    }

    fn commit(&mut self, transaction: &DecodedTransaction) {
        let consumer = self.consumer;
        self.line(|out| write_text(out, transaction, consumer), JsonTransaction(transaction, consumer));
    }

    fn stream_start(&mut self, xid: Xid, lsn: Lsn, first: bool) {
        self.block = Block::new(xid, lsn, first);
    }

    fn stream_stop(&mut self, _: Xid, lsn: Lsn) {
        let mut block = std::mem::take(&mut self.block);
        block.end_lsn = lsn;
        self.line(|out| block.write_text(out), &block);
    }

    fn stream_abort(&mut self, top_xid: Xid, xid: Xid, lsn: Lsn) {
        let aborted = Aborted { xid, top_xid, lsn };
        self.line(|out| aborted.write_text(out), &aborted);
    }

    fn stream_commit(&mut self, transaction: &DecodedTransaction) {
        self.commit(transaction);
    }

    fn prepare(&mut self, transaction: &DecodedTransaction) {
        let consumer = self.consumer;
        let text = |out: &mut dyn Write| write!(out, "prepare ").and_then(|()| write_text(out, transaction, consumer));
        self.line(text, JsonPrepare(transaction, consumer));
    }

    fn stream_prepare(&mut self, transaction: &DecodedTransaction) {
        self.prepare(transaction);
    }

    fn commit_prepared(&mut self, end: &PreparedEnd) {
        let end = PreparedLine { committed: true, end };
        self.line(|out| end.write_text(out), &end);
    }

    fn rollback_prepared(&mut self, end: &PreparedEnd) {
        let end = PreparedLine { committed: false, end };
        self.line(|out| end.write_text(out), &end);
    }
}

/// A transaction as a line for people: what is zero is left out.
fn write_text(out: &mut dyn Write, t: &DecodedTransaction, consumer: Consumer) -> io::Result<()> {
    write!(out, "xid {} commit {} end {} at {}", t.xid, t.commit_lsn, t.end_lsn, TimestampText(t.commit_time))?;
    if !t.gid.is_empty() {
        write!(out, " prepared '{}'", printable(&String::from_utf8_lossy(&t.gid)))?;
    }
    if t.origin.id != 0 {
        write!(out, " origin {} {}", t.origin.id, t.origin.lsn)?;
    }
    if !t.subxids.is_empty() {
        write!(out, " subxids {}", t.subxids.len())?;
    }
    for relation in &t.relations {
        write!(out, " | {}", printable(&relation.name))?;
        write_counts(out, counts(relation))?;
    }
    let work = format!("work ({consumer})");
    for (title, entries) in
        [("messages", t.messages.entries().collect::<Vec<_>>()), (work.as_str(), t.work.entries().collect())]
    {
        if entries.iter().any(|(_, n)| *n > 0) {
            write!(out, " | {title}:")?;
            write_counts(out, entries)?;
        }
    }
    writeln!(out)
}

/// Names and numbers, zeroes left out.
fn write_counts(out: &mut dyn Write, counts: impl IntoIterator<Item = (&'static str, u64)>) -> io::Result<()> {
    counts.into_iter().filter(|(_, n)| *n > 0).try_for_each(|(name, n)| write!(out, " {name} {n}"))
}

/// A relation's counts under their keys.
fn counts(r: &RelationChanges) -> [(&'static str, u64); 4] {
    [("insert", r.insert), ("update", r.update), ("delete", r.delete), ("truncate", r.truncate)]
}

/// Text from outside, made harmless for a terminal: control characters and those that turn the writing direction are escaped.
fn printable(text: &str) -> Cow<'_, str> {
    let harmful =
        |c: char| c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if !text.contains(harmful) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if harmful(c) {
            safe.extend(c.escape_unicode());
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// A transaction as the documented JSON object, and whose figures its work is.
struct JsonTransaction<'a>(&'a DecodedTransaction, Consumer);

impl Serialize for JsonTransaction<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let t = self.0;
        let mut map = serializer.serialize_map(Some(9))?;
        map.serialize_entry("xid", &t.xid.0)?;
        map.serialize_entry("commit_lsn", &t.commit_lsn.to_string())?;
        map.serialize_entry("end_lsn", &t.end_lsn.to_string())?;
        map.serialize_entry("commit_time", &TimestampText(t.commit_time).to_string())?;
        serialize_contents(&mut map, t, self.1)?;
        map.end()
    }
}

/// Where a transaction was made.
#[derive(serde::Serialize)]
struct JsonOrigin {
    /// Number of the origin.
    id: u16,
    /// Where it ended there.
    lsn: String,
}

/// What a transaction holds, whatever ended it, and whose figures its work is.
fn serialize_contents<M: SerializeMap>(map: &mut M, t: &DecodedTransaction, consumer: Consumer) -> Result<(), M::Error> {
    map.serialize_entry("subxids", &t.subxids.iter().map(|xid| xid.0).collect::<Vec<_>>())?;
    if t.origin.id != 0 {
        map.serialize_entry("origin", &JsonOrigin { id: t.origin.id, lsn: t.origin.lsn.to_string() })?;
    }
    map.serialize_entry("consumer", &consumer.to_string())?;
    map.serialize_entry("relations", &Relations(&t.relations))?;
    map.serialize_entry("messages", &Counts(t.messages.entries().collect()))?;
    map.serialize_entry("work", &Counts(t.work.entries().collect()))
}

/// The object of relations.
pub(crate) struct Relations<'a>(pub(crate) &'a [RelationChanges]);

impl Serialize for Relations<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|r| (&*r.name, Counts(counts(r).to_vec()))))
    }
}

/// An object of numbers, in order.
pub(crate) struct Counts(pub(crate) Vec<(&'static str, u64)>);

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_write_to_the_terminal() {
        assert_eq!(printable("public.t"), "public.t");
        assert_eq!(printable("a\u{1b}[2Jb\u{202e}ö\u{9b}"), "a\\u{1b}[2Jb\\u{202e}ö\\u{9b}");
    }
}
