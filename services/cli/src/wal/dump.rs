//! `walstorm wal dump`: a line per record.

use std::io::Write;
use std::process::ExitCode;

use pg_wal::text::Text;
use pg_wal::{Malformed, RawRecord, WalProfile, describe, rmgr};
use serde::Serialize;

use super::ending;
use super::select::Select;
use crate::notes::Stdout;

/// Bytes of text that are gathered before they are written.
const WRITE_AT: usize = 64 << 10;

/// Arguments of `walstorm wal dump`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Which records.
    #[command(flatten)]
    select: Select,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
}

/// A record in JSON.
#[derive(Serialize)]
struct Line<'a> {
    /// Position.
    lsn: String,
    /// The record before.
    prev: String,
    /// Resource manager.
    rmgr: &'a str,
    /// Bytes.
    total_len: u32,
    /// Transaction, 0 if none.
    xid: u32,
    /// Operation, description and block references.
    desc: &'a str,
}

/// Runs the command.
pub(super) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let mut reader = args.select.open()?;
    let profile = reader.profile();
    let mut stdout = Stdout::new();
    let mut out = Text::new();
    let mut scratch = Text::new();
    let mut malformed = None;
    while let Some(record) = reader.next()? {
        if !args.select.wants(&record) {
            continue;
        }
        let written = if args.json {
            json_line(&record, profile, &mut scratch, &mut out)
        } else {
            describe::line(&record, profile, &mut out)
        };
        if let Err(reason) = written {
            malformed = Some(record.decode_error(profile, reason));
            break;
        }
        if out.len() >= WRITE_AT {
            stdout.write_all(out.as_bytes())?;
            out.clear();
        }
    }
    stdout.write_all(out.as_bytes())?;
    stdout.flush()?;
    Ok(ending(&reader, malformed))
}

/// Writes a record as a JSON object and a line end.
fn json_line(
    record: &RawRecord<'_>,
    profile: &'static WalProfile,
    scratch: &mut Text,
    out: &mut Text,
) -> Result<(), Malformed> {
    scratch.clear();
    describe::description(record, &record.parts(profile)?, profile, scratch)?;
    let header = &record.header;
    let line = Line {
        lsn: record.lsn.to_string(),
        prev: header.prev.to_string(),
        rmgr: &rmgr::name(header.rmid),
        total_len: header.total_len,
        xid: header.xid.0,
        desc: scratch.since(0).trim_end(),
    };
    // Strings and numbers always have a JSON form.
    out.str(&serde_json::to_string(&line).unwrap_or_default()).str("\n");
    Ok(())
}
