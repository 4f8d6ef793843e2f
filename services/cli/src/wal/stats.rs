//! `walstorm wal stats`: counts and sizes per kind of record.

use std::io::Write;
use std::process::ExitCode;

use pg_wal::stats::{Sizes, WalStats};
use serde::Serialize;

use super::ending;
use super::select::Select;
use crate::notes::Stdout;

/// Arguments of `walstorm wal stats`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Which records.
    #[command(flatten)]
    select: Select,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
}

/// A row in JSON.
#[derive(Serialize)]
struct Line<'a> {
    /// Resource manager and operation.
    r#type: &'a str,
    /// Records.
    count: u64,
    /// Bytes without page images.
    record_len: u64,
    /// Bytes of page images.
    fpi_len: u64,
    /// All bytes.
    total_len: u64,
}

/// Runs the command.
pub(super) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let mut reader = args.select.open()?;
    let profile = reader.profile();
    let mut stats = WalStats::new(profile);
    let mut malformed = None;
    while let Some(record) = reader.next()? {
        if args.select.wants(&record)
            && let Err(reason) = stats.add(&record)
        {
            malformed = Some(record.decode_error(profile, reason));
            break;
        }
    }
    let mut text = String::new();
    if args.json {
        write_json(&stats, &mut text)?;
    } else {
        stats.write_table(&mut text)?;
    }
    let mut stdout = Stdout::new();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(ending(&reader, malformed))
}

/// Writes a line per row, and one for all of them.
fn write_json(stats: &WalStats, text: &mut String) -> anyhow::Result<()> {
    let mut line = |r#type: &str, s: Sizes| -> anyhow::Result<()> {
        let (count, record_len, fpi_len, total_len) = (s.count, s.record_len, s.image_len, s.total_len());
        text.push_str(&serde_json::to_string(&Line { r#type, count, record_len, fpi_len, total_len })?);
        text.push('\n');
        Ok(())
    };
    for row in stats.rows() {
        line(&format!("{}/{}", row.rmgr, row.operation), row.sizes)?;
    }
    line("Total", stats.total())
}
