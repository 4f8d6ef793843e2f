//! What can go wrong in replay. PostgreSQL stops the startup process for each of these.

use pg_types::{Lsn, Xid};

use crate::recovery::StandbyState;

/// An error of the standby's core.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// No such profile.
    #[error("'{name}' is not a standby profile: use one of {valid}, or any of them with '+skip-offset'")]
    UnknownProfile {
        /// What was asked for.
        name: String,
        /// The names there are.
        valid: String,
    },
    /// Settings that PostgreSQL would refuse.
    #[error("{what} is {value}, above PostgreSQL's limit of {max}: lower it")]
    InvalidSettings {
        /// Which.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The most there may be.
        max: u32,
    },
    /// A record came before a start, or after an error.
    #[error("replay has not started, or has stopped on an error: start at a checkpoint first")]
    NotStarted,
    /// The checkpoint to start at names no transaction id.
    #[error("the checkpoint with redo {redo} has no valid next transaction id: start at another one")]
    InvalidCheckpoint {
        /// Its redo position.
        redo: Lsn,
    },
    /// A record before the position that replay has reached.
    #[error("record {lsn} is before the replay position {replay_lsn}: send records in order, each once")]
    RecordOutOfOrder {
        /// The record.
        lsn: Lsn,
        /// Where replay is.
        replay_lsn: Lsn,
    },
    /// A record whose fields contradict what it is.
    #[error(
        "record {lsn}: {what}: the WAL is damaged there; bring it anew from the primary or its archive, or begin behind it"
    )]
    MalformedRecord {
        /// The record.
        lsn: Lsn,
        /// What is wrong.
        what: &'static str,
    },
    /// `KnownAssignedXidsAdd`: "out-of-order XID insertion in KnownAssignedXids".
    #[error(
        "record {lsn}: transaction id {xid} is not after {last}, the last known-assigned one: the WAL is damaged, or replay started at a wrong place"
    )]
    OutOfOrderXid {
        /// The record.
        lsn: Lsn,
        /// First id to be added.
        xid: Xid,
        /// Last one in the array.
        last: Xid,
    },
    /// `KnownAssignedXidsAdd`: "too many KnownAssignedXids".
    #[error(
        "record {lsn}: too many KnownAssignedXids: {live} run, {wanted} more are needed, and the array has {max} slots: raise max_connections or max_prepared_transactions to the primary's"
    )]
    TooManyKnownAssignedXids {
        /// The record.
        lsn: Lsn,
        /// Live ones.
        live: u32,
        /// Ids to add.
        wanted: u64,
        /// Slots of the array.
        max: u32,
    },
    /// More pages of parents than are kept.
    #[error(
        "record {lsn}: subtransactions need more than {max} pages of parents: end the oldest running transaction on the primary, which keeps them all"
    )]
    TooManySubtransPages {
        /// The record.
        lsn: Lsn,
        /// Pages kept at most.
        max: usize,
    },
    /// The primary's setting is above the standby's (`CheckRequiredParameterValues`).
    #[error("record {lsn}: the primary has {setting} = {primary}, the standby {standby}: give the standby at least as much")]
    InsufficientSetting {
        /// The record.
        lsn: Lsn,
        /// PostgreSQL's name of the setting.
        setting: &'static str,
        /// The primary's value.
        primary: u32,
        /// The standby's.
        standby: u32,
    },
    /// More exclusive locks than replay may hold ("out of shared memory").
    #[error("record {lsn}: replay holds {max} exclusive locks already, as many as there is room for: raise max_connections")]
    TooManyStandbyLocks {
        /// The record.
        lsn: Lsn,
        /// Locks there can be.
        max: usize,
    },
    /// As many sessions as there is room for (`InitProcess`: "sorry, too many clients already").
    #[error(
        "too many sessions: there are {max} already, which is what the settings add up to: end one, or raise max_connections"
    )]
    TooManySessions {
        /// `MaxBackends`.
        max: u32,
    },
    /// More locks than a reader may have ("out of shared memory").
    #[error("a reader has locked {max} relations already, as many as it may: lock fewer, or end it and start another")]
    TooManyReaderLocks {
        /// Locks it may have.
        max: usize,
    },
    /// A number that no syscache of the version has.
    #[error("{id} is not the id of a syscache in this version")]
    UnknownSysCache {
        /// The number.
        id: i8,
    },
    /// A snapshot was asked for before there can be one.
    #[error(
        "no snapshot yet at {replay_lsn}: the standby is '{state}', it must be 'ready': a later running-transactions record makes it so"
    )]
    NotReady {
        /// Where replay is.
        replay_lsn: Lsn,
        /// The state.
        state: StandbyState,
    },
}
