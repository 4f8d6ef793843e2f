//! PostgreSQL's identifiers, snapshots, invalidation messages and WAL records as plain Rust types.
//!
//! Every other crate of the tree speaks these. Nothing here knows bytes on disk (`pg-wal` does), a wire format
//! (`walstorm-proto` does) or a clock.

pub mod catalog_row;
pub mod catalog_snapshot;
pub mod command_id;
pub mod invalidation;
pub mod lsn;
pub mod oid;
pub mod record;
pub mod sinvaladt;
pub mod snapshot;
pub mod syscache_id;
pub mod version;
pub mod work;
pub mod xid;

pub use catalog_row::{CatalogRow, PublicationRow};
pub use catalog_snapshot::{CatalogSnapshot, CatalogSnapshotCounts, CatalogSnapshotRule, DropReason};
pub use command_id::CommandId;
pub use invalidation::{InvalidationKind, InvalidationMessage};
pub use lsn::Lsn;
pub use oid::{Oid, RelFileLocator, Tid};
pub use record::{RecordBody, Timestamp, WalIdentity, WalRecord};
pub use sinvaladt::{QueueCounts, SharedInvalQueue};
pub use snapshot::Snapshot;
pub use syscache_id::{SysCache, SysCacheId, SysCacheTable, catalog};
pub use version::PgVersion;
pub use work::Work;
pub use xid::{FullXid, Xid};
