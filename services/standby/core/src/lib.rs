//! The hot standby of walstorm: which transactions run, as far as replayed WAL tells, and the snapshots readers get.
//!
//! Models `KnownAssignedXids` (`storage/ipc/procarray.c`), the recovery state machine (`access/transam/xlogutils.h`,
//! `ProcArrayApplyRecoveryInfo`) and `GetSnapshotData` in recovery. Pure: records in, snapshots out; no clock, no socket, no
//! task. Reading order: [`known_assigned_xids`], [`recovery`], [`snapshot`], [`visibility`], then [`profile`] and [`settings`].
//!
//! ```
//! use pg_types::record::CheckpointRecord;
//! use pg_types::{FullXid, Lsn};
//! use standby_core::{RecoveryWriter, StandbyProfile, StandbySettings};
//!
//! let profile: StandbyProfile = "indexed".parse()?;
//! let mut writer = RecoveryWriter::new(&StandbySettings::default(), profile)?;
//! let checkpoint = CheckpointRecord { shutdown: true, next_xid: FullXid(733), ..CheckpointRecord::default() };
//! writer.start_at_checkpoint(&checkpoint, Lsn(0x70_0028))?;
//! let reader = writer.reader();
//! assert_eq!(reader.snapshot()?.snapshot.xmax.0, 733);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod catalog_session;
pub mod clog;
pub mod error;
pub mod held;
pub mod known_assigned_xids;
pub mod profile;
pub mod recovery;
pub mod settings;
pub mod slru;
pub mod snapshot;
pub mod subtrans;
mod sync;
pub mod visibility;

pub use error::RecoveryError;
pub use known_assigned_xids::KnownAssignedLayout;
pub use known_assigned_xids::compress::{CompressCall, CompressReason, CompressionRule};
pub use known_assigned_xids::skip_offset::{ScanStrategy, SlotCount};
pub use profile::StandbyProfile;
pub use recovery::{PreparedXact, RecoveryWriter, RestartPoint, StandbyState};
pub use settings::StandbySettings;
pub use snapshot::{RecoveryReader, ReplayedState, SnapshotCost, SnapshotMeter, TakenSnapshot};
