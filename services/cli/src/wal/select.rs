//! Which records: the arguments that `dump` and `stats` share.

use std::path::PathBuf;

use pg_types::{Lsn, Xid};
use pg_wal::{RawRecord, WalDir, WalReader, rmgr};

use crate::notes::{left_out, note};

/// Which WAL, and which of its records.
#[derive(Debug, clap::Args)]
pub(super) struct Select {
    /// Directory with WAL segments, data directory, or one segment.
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// Only records of this resource manager, by name as in the output; may be given several times.
    #[arg(long = "rmgr", value_name = "NAME", value_parser = parse_rmgr)]
    rmgrs: Vec<u8>,
    /// Only records of this transaction.
    #[arg(long, value_name = "XID")]
    xid: Option<u32>,
    /// Begin with the first record at or after this position.
    #[arg(long, value_name = "LSN")]
    start: Option<Lsn>,
    /// Stop before the first record that does not end by this position.
    #[arg(long, value_name = "LSN")]
    end: Option<Lsn>,
    /// Only this timeline. Without it: the newest in DIR, with its ancestors as far as its history file names them.
    #[arg(long, value_name = "N")]
    timeline: Option<u32>,
}

/// Reads the name of a resource manager.
fn parse_rmgr(name: &str) -> Result<u8, String> {
    rmgr::by_name(name).ok_or_else(|| format!("no such resource manager; there are {}", rmgr::names().join(", ")))
}

impl Select {
    /// Opens the WAL at its start. What is left out is said on standard error.
    pub(super) fn open(&self) -> anyhow::Result<WalReader> {
        let dir = WalDir::open(&self.path, self.timeline)?;
        if let (None, Some(left_out)) = (self.timeline, left_out(&dir)) {
            note(&mut std::io::stderr(), format!("{left_out} (see --timeline)"));
        }
        let mut reader = WalReader::open(&dir, self.start)?;
        if let Some(end) = self.end {
            reader.set_limit(end);
        }
        Ok(reader)
    }

    /// Whether a record is asked for.
    #[inline]
    pub(super) fn wants(&self, record: &RawRecord<'_>) -> bool {
        (self.rmgrs.is_empty() || self.rmgrs.contains(&record.header.rmid))
            && self.xid.is_none_or(|xid| Xid(xid) == record.header.xid)
    }
}
