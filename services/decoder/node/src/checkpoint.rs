//! What a decoder must know to go on after kill -9: where to read WAL again, and what it gave out already.
//!
//! As PostgreSQL's slot file, which has serialised snapshots beside it (`snapshots.rs`): a decoder reads WAL again from one that is older
//! than every transaction that had not ended, and gives out nothing that the output log has.
//!
//! # Invariants
//!
//! * **I1** `restart_lsn` ≤ the start of every transaction that ends after `output_end`; WAL before it may be forgotten upstream.
//! * **I2** `catalog_xmin` never goes back: the primary may have forgotten catalog rows from before it.
//! * **I3** The serialised snapshot at `restart_lsn` was durable before the checkpoint was written, and so was the output log up to `output_end`.

use std::path::Path;

use pg_types::{Lsn, Oid, PgVersion, Xid};
use serde::{Deserialize, Serialize};

use crate::durable_file::{self, DurableFileError};

/// First bytes of the file: name and version of the format.
const MAGIC: [u8; 8] = *b"WSDCKPT1";

/// What to do about a damaged file.
const REMEDY: &str = "restore data_dir as a whole from a backup, or move it away, drop the slot and start anew";

/// The checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Slot at the primary, without `slots/`; empty if none.
    pub slot: String,
    /// The cluster.
    pub system_id: u64,
    /// Its timeline.
    pub timeline: u32,
    /// Version of its WAL.
    pub version: PgVersion,
    /// The database that is decoded.
    pub database: Oid,
    /// There is a serialised snapshot at `restart_lsn`; if not, the decoder finds its consistent point again from there.
    pub consistent: bool,
    /// Where WAL must be read again.
    pub restart_lsn: Lsn,
    /// End of the output log that belongs to it.
    pub output_end: Lsn,
    /// Every record before it was decoded.
    pub decoded_lsn: Lsn,
    /// What was prepared before is given out at its commit (`two_phase_at` of a slot); invalid without `two_phase`.
    pub two_phase_at: Lsn,
    /// The oldest xid whose catalog rows are needed from `restart_lsn` on; invalid before the first list of running transactions.
    pub catalog_xmin: Xid,
}

/// The checkpoint as it is on disk: JSON, so that people can read it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    slot: String,
    system_id: u64,
    timeline: u32,
    pg_version: String,
    database: u32,
    consistent: bool,
    restart_lsn: String,
    output_end: String,
    decoded_lsn: String,
    #[serde(default)]
    two_phase_at: Option<String>,
    #[serde(default)]
    catalog_xmin: u32,
}

impl Checkpoint {
    /// Reads the file; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`DurableFileError`], naming file and remedy.
    pub fn load(path: &Path) -> Result<Option<Self>, DurableFileError> {
        let Some(bytes) = durable_file::read(path, MAGIC, REMEDY)? else { return Ok(None) };
        let damaged = |reason: String| DurableFileError::Damaged { path: path.to_owned(), reason, remedy: REMEDY };
        let stored: Stored = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
        let lsn = |text: &str| text.parse::<Lsn>().map_err(|e| damaged(e.to_string()));
        Ok(Some(Self {
            system_id: stored.system_id,
            timeline: stored.timeline,
            version: stored.pg_version.parse().map_err(|e: pg_types::version::ParseVersionError| damaged(e.to_string()))?,
            database: Oid(stored.database),
            consistent: stored.consistent,
            restart_lsn: lsn(&stored.restart_lsn)?,
            output_end: lsn(&stored.output_end)?,
            decoded_lsn: lsn(&stored.decoded_lsn)?,
            two_phase_at: stored.two_phase_at.as_deref().map(lsn).transpose()?.unwrap_or(Lsn::INVALID),
            catalog_xmin: Xid(stored.catalog_xmin),
            slot: stored.slot,
        }))
    }

    /// Replaces the file.
    ///
    /// # Errors
    ///
    /// [`DurableFileError::Io`]; the old checkpoint is then still there.
    pub fn store(&self, path: &Path) -> Result<(), DurableFileError> {
        let stored = Stored {
            slot: self.slot.clone(),
            system_id: self.system_id,
            timeline: self.timeline,
            pg_version: self.version.to_string(),
            database: self.database.0,
            consistent: self.consistent,
            restart_lsn: self.restart_lsn.to_string(),
            output_end: self.output_end.to_string(),
            decoded_lsn: self.decoded_lsn.to_string(),
            two_phase_at: self.two_phase_at.is_valid().then(|| self.two_phase_at.to_string()),
            catalog_xmin: self.catalog_xmin.0,
        };
        // A struct of numbers and texts always has a JSON form.
        durable_file::write(path, MAGIC, &serde_json::to_vec(&stored).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_survives_and_damage_is_named_with_its_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint");
        assert_eq!(Checkpoint::load(&path).unwrap(), None);
        let checkpoint = Checkpoint {
            slot: "orders".to_owned(),
            system_id: u64::MAX,
            timeline: 3,
            version: PgVersion::V16,
            database: Oid(16_384),
            consistent: true,
            restart_lsn: Lsn(0x1_0000_0100),
            output_end: Lsn(0x1_0000_0200),
            decoded_lsn: Lsn(0x1_0000_0300),
            two_phase_at: Lsn(0x1_0000_0280),
            catalog_xmin: Xid(u32::MAX),
        };
        for two_phase_at in [checkpoint.two_phase_at, Lsn::INVALID] {
            let checkpoint = Checkpoint { two_phase_at, ..checkpoint.clone() };
            checkpoint.store(&path).unwrap();
            assert_eq!(Checkpoint::load(&path).unwrap(), Some(checkpoint));
        }
        for bad in [&b"{}"[..], b"", b"[1"] {
            durable_file::write(&path, MAGIC, bad).unwrap();
            let error = Checkpoint::load(&path).unwrap_err().to_string();
            assert!(error.contains("checkpoint is damaged") && error.contains("move it away"), "{error}");
        }
    }
}
