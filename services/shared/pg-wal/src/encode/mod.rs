//! Typed records to bytes: what a backend does between `XLogBeginInsert` and `XLogRecordAssemble` (`access/transam/xloginsert.c`).
//!
//! A typed record does not hold the rows themselves, only their lengths: the encoder makes a valid heap tuple of that length
//! (columns of zero), so that a reader finds the same typed record again and `pg_waldump` has nothing to complain about.
//! Chunks that a version does not have are left out or refused, as [`EncodeError`] says.
//!
//! | file | resource managers |
//! |---|---|
//! | `assemble` | block references, data headers, the record header |
//! | `heap` | HEAP, HEAP2 |
//! | `index` | BTREE, SEQUENCE, as far as they are written |
//! | `tuple` | heap tuples of a given length |
//! | `xact` | XACT |
//! | `prune` | HEAP2: pruning, freezing, visibility |
//! | `prepare` | the state of a prepared transaction |
//! | `standby` | STANDBY |
//! | `xlog` | XLOG |
//! | `storage` | SMGR, RELMAP, LOGICALMSG |

mod assemble;
mod heap;
mod index;
mod prepare;
mod prune;
mod standby;
mod storage;
mod tuple;
mod xact;
mod xlog;

use pg_types::{InvalidationMessage, PgVersion, RecordBody, Xid};

pub(crate) use assemble::seal;

use crate::profile::WalProfile;
use assemble::{Assembler, RmgrOp};

/// A typed record cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The version has no such record or field.
    #[error("PostgreSQL {version} cannot write {what}; choose another version or leave it out")]
    NotInVersion {
        /// The version asked for.
        version: PgVersion,
        /// The record or field.
        what: &'static str,
    },
    /// The record is opaque: its bytes are not known.
    #[error(
        "a record of resource manager {rmid} with info 0x{info:02X} is opaque and cannot be written; only typed records can"
    )]
    Opaque {
        /// Resource manager.
        rmid: u8,
        /// Operation.
        info: u8,
    },
    /// It is read from servers' logs alone.
    #[error("{what} cannot be written: it is read from servers' logs alone")]
    ReadOnly {
        /// The record.
        what: &'static str,
    },
    /// Less bytes than the rows' headers need.
    #[error("{what} of {len} bytes is too short to hold what it must: {min} bytes are the least")]
    TooShort {
        /// What was to be written.
        what: &'static str,
        /// Its length as given.
        len: usize,
        /// The least length.
        min: usize,
    },
    /// More bytes or items than the format allows.
    #[error("{what} is too large: {len}, at most {max} fit")]
    TooLarge {
        /// What was to be written.
        what: &'static str,
        /// Its size as given.
        len: usize,
        /// The greatest size.
        max: usize,
    },
}

/// Encodes records of one version. Holds buffers that are reused from record to record.
#[derive(Debug)]
pub struct Encoder {
    /// The format that is written.
    profile: &'static WalProfile,
    /// Buffers of the record under construction.
    assembler: Assembler,
}

impl Encoder {
    /// An encoder for the format of `version`.
    #[must_use]
    pub fn new(version: PgVersion) -> Encoder {
        Encoder { profile: WalProfile::of(version), assembler: Assembler::default() }
    }

    /// Replaces `out` by the record's bytes, complete but for `xl_prev` and the CRC, which the place in the log decides.
    ///
    /// `top_xid` and `origin` are left out if invalid and 0. The record is not padded to the next 8-byte boundary.
    ///
    /// # Errors
    /// [`EncodeError`] when the version or the format has no room for what the record says; `out` is then empty.
    pub fn encode(
        &mut self,
        xid: Xid,
        top_xid: Xid,
        origin: u16,
        body: &RecordBody,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        out.clear();
        self.assembler.begin();
        if top_xid.is_valid() && !self.profile.has_top_xid {
            return Err(self.not_in_version("a top-level transaction id on each record"));
        }
        let relsync = |message: &InvalidationMessage| matches!(message, InvalidationMessage::Relsync { .. });
        if !self.profile.has_relsync_messages && messages_of(body).iter().any(relsync) {
            return Err(self.not_in_version("a relsync message"));
        }
        let op = self.body(xid, body)?;
        self.assembler.finish(self.profile, op, (xid, top_xid, origin), out)
    }

    /// Writes the body's block references and main data; the resource manager and operation come back.
    fn body(&mut self, xid: Xid, body: &RecordBody) -> Result<RmgrOp, EncodeError> {
        use RecordBody as B;
        match body {
            B::Commit(_) | B::Abort(_) | B::Prepare(_) | B::Assignment(_) | B::XactInvalidations(_) => self.xact(xid, body),
            B::StandbyLocks(_) | B::RunningXacts(_) | B::StandbyInvalidations(_) => self.standby(body),
            B::Insert(_)
            | B::Delete(_)
            | B::Update(_)
            | B::Truncate(_)
            | B::Confirm(_)
            | B::Lock(_)
            | B::Inplace(_)
            | B::MultiInsert(_)
            | B::LockUpdated(_)
            | B::NewCid(_)
            | B::Prune(_)
            | B::Visible(_)
            | B::Rewrite(_) => self.heap(body),
            B::Checkpoint(_)
            | B::CheckpointRedo
            | B::NextOid(_)
            | B::Switch
            | B::EndOfRecovery { .. }
            | B::ParameterChange(_)
            | B::OverwriteContrecord(_)
            | B::BackupEnd(_)
            | B::XlogOther => self.xlog(body),
            B::SmgrCreate { .. } | B::SmgrTruncate { .. } | B::Relmap(_) | B::LogicalMessage(_) => self.storage(body),
            B::IndexInsert(r) => self.index_insert(r),
            B::SequenceLog(target) => self.sequence_log(*target),
            B::IndexPrune(_) => Err(EncodeError::ReadOnly { what: "a removal of index entries" }),
            B::Other { rmid, info } => Err(EncodeError::Opaque { rmid: *rmid, info: *info }),
        }
    }

    /// The error for something that this version lacks.
    fn not_in_version(&self, what: &'static str) -> EncodeError {
        EncodeError::NotInVersion { version: self.profile.version, what }
    }

    /// Where main data goes.
    fn main(&mut self) -> &mut Vec<u8> {
        &mut self.assembler.main
    }
}

/// The invalidation messages that a record carries.
fn messages_of(body: &RecordBody) -> &[InvalidationMessage] {
    match body {
        RecordBody::Commit(r) => &r.messages,
        RecordBody::Prepare(r) => &r.messages,
        RecordBody::XactInvalidations(messages) => messages,
        RecordBody::StandbyInvalidations(r) => &r.messages,
        RecordBody::Inplace(r) => &r.messages,
        _ => &[],
    }
}
