//! Reorder buffer, caches, invalidation paths and profiles of the decoder; pure.
//!
//! [`Decoder`] takes typed WAL records in order and gives committed transactions to an [`OutputSink`]. It owns no clock, file,
//! socket or task. What it would have cost PostgreSQL of some version, or walstorm's own way, is counted under a [`Profile`].
//! Reading order: README.md of this crate.

pub mod attribution;
pub mod catalog;
pub mod catalog_csv;
mod catcache;
pub mod compare;
pub mod decode;
mod dynahash;
pub mod footprint;
pub mod historic_catalog;
pub mod interrupt;
pub mod invalidation;
pub mod output;
pub mod plugin_options;
pub mod profile;
mod publications;
mod relations;
mod relcache;
mod relcache_callbacks;
mod relfilenode_map;
mod relsync;
mod reorder_buffer;
pub mod sampling;
pub mod snap_build;
pub mod spill;
pub mod summary;
mod syscache;
mod syscache_callbacks;
mod work_mem;

use pg_types::{Lsn, PgVersion, Xid};

pub use attribution::{Attribution, Share};
pub use catalog::{Catalog, NoCatalog, RelationInfo};
pub use catalog_csv::CsvCatalog;
pub use compare::{Contender, Outcome};
pub use decode::{Decoder, DecoderConfig, DecoderSizes, TwoPhase};
pub use footprint::{CatalogRows, Footprint};
pub use historic_catalog::{AsOf, CatalogRead, HistoricCatalog};
pub use interrupt::Interrupt;
pub use invalidation::{CacheContents, CacheSizes, RegisteredCallbacks};
pub use output::{
    Action, DecodedChange, DecodedTransaction, NoOutput, OutputSink, PreparedEnd, Relation, RelationChanges, TimestampText,
};
pub use pg_types::QueueCounts;
pub use plugin_options::{OriginFilter, PluginOptions, UnknownOrigin};
pub use profile::{Consumer, Profile, UnknownConsumer, UnknownProfile};
pub use relcache::RelcacheCounts;
pub use relsync::RelsyncCounts;
pub use reorder_buffer::distribution::{ALLOCATED_MESSAGES_MAX, DISTRIBUTED_MESSAGES_MAX};
pub use reorder_buffer::tuple_cids::TupleCidCounts;
pub use sampling::{CurrentFunction, Function, Stack};
pub use snap_build::{
    HistoricSnapshot, MemorySnapshots, SnapBuildCounts, SnapBuildState, SnapshotError, SnapshotFailure, SnapshotStore,
    snapshot_file_name,
};
pub use spill::{MemorySpill, SpillError, SpillFailure, SpillFile, SpillStore, TransactionStatus};
pub use summary::Summary;
pub use syscache_callbacks::{CallbackCounts, TooManyCallbacks};
pub use work_mem::{BadWorkMem, WorkMem};

/// Why decoding cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A message names a syscache that this version does not have.
    #[error(
        "record at {lsn} (xid {xid}) invalidates syscache {id}, which PostgreSQL {version} does not have: the WAL is of \
             another version or damaged"
    )]
    UnknownSyscache {
        /// The id.
        id: i8,
        /// Version of the WAL.
        version: PgVersion,
        /// The record.
        lsn: Lsn,
        /// Its transaction.
        xid: Xid,
    },
    /// PostgreSQL could not have allocated the messages handed to a transaction.
    #[error(
        "commit at {lsn} hands xid {xid} invalidation messages of {bytes} bytes, more than one allocation may have \
             (1 GiB - 1): a server of this profile fails here; decode with another profile"
    )]
    AllocTooLarge {
        /// Who was handed too many.
        xid: Xid,
        /// The commit that did it.
        lsn: Lsn,
        /// What they would need.
        bytes: u64,
    },
    /// Changes could not be written to a spill file, or not be read back.
    #[error(transparent)]
    Spill(#[from] SpillError),
    /// The snapshot builder could not be serialised, or not be restored.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Somebody wished that decoding ends.
    #[error("decoding was stopped at {lsn}")]
    Interrupted {
        /// The record at hand.
        lsn: Lsn,
    },
    /// A transaction commits that was said to be rolled back, so that its changes are gone.
    #[error(
        "the commit at {lsn} is of xid {xid}, whose changes were dropped because it was known to be rolled back: its status is \
         not that of this WAL; decode without it, under a profile before pg18"
    )]
    AbortedCommits {
        /// The transaction or subtransaction.
        xid: Xid,
        /// The commit record.
        lsn: Lsn,
    },
}
