//! Where a standby begins: finding the checkpoint.

use anyhow::bail;
use pg_types::Lsn;
use pg_types::record::{CheckpointRecord, RecordBody};
use pg_wal::{WalDir, WalReader};

/// A checkpoint to start at.
#[derive(Clone, Debug)]
pub(super) struct Start {
    /// First record to replay.
    pub(super) redo: Lsn,
    /// The checkpoint.
    pub(super) checkpoint: CheckpointRecord,
}

impl Start {
    /// The checkpoint whose record or whose redo position is at `asked`; without it the first one in `dir` whose redo position
    /// is in `dir` too.
    ///
    /// # Errors
    /// There is none, or its redo position is not in `dir`.
    pub(super) fn find(dir: &WalDir, asked: Option<Lsn>) -> anyhow::Result<Self> {
        let mut reader = WalReader::open(dir, asked)?;
        let mut first = None;
        while let Some(raw) = reader.next()? {
            let record = raw.decode(dir.profile())?;
            let first = *first.get_or_insert(record.lsn);
            let RecordBody::Checkpoint(checkpoint) = record.body else { continue };
            let redo = checkpoint.redo;
            let found = match asked {
                Some(asked) => record.lsn == asked || redo == asked,
                None => redo >= first,
            };
            if found {
                if redo < dir.first() || redo > record.lsn {
                    bail!(
                        "the checkpoint at {} starts at {redo}, and {} begins at {}: add the segments between, or --start at \
                         a later checkpoint",
                        record.lsn,
                        dir.path().display(),
                        dir.first()
                    );
                }
                return Ok(Self { redo, checkpoint: *checkpoint });
            }
            if let Some(asked) = asked
                && redo > asked
            {
                bail!(
                    "no checkpoint is or starts at {asked}; the next one is at {} and starts at {redo}: --start at either",
                    record.lsn
                );
            }
        }
        let end = reader.end().map(|end| format!(" ({end})")).unwrap_or_default();
        match asked {
            Some(asked) => {
                bail!("no checkpoint is or starts at {asked}{end}: --start takes a checkpoint's position or its redo")
            }
            None => bail!(
                "{} holds no checkpoint together with the WAL from its redo position on{end}: a standby cannot start there",
                dir.path().display()
            ),
        }
    }
}
