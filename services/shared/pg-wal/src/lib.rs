//! PostgreSQL write-ahead log bytes: reader, writer and record decoding for versions 13 to 18.
//!
//! The only crate of the tree that knows byte offsets, magics and operation codes. Everything that comes from outside is
//! read with checked accesses: any byte string gives records or an error, never a panic.

#![deny(clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::indexing_slicing))]

pub mod blocks;
pub mod catalog_rows;
pub mod class;
mod cursor;
pub mod describe;
pub mod dir;
pub mod encode;
pub mod end;
pub mod error;
pub mod message;
pub mod page;
pub mod profile;
pub mod reader;
pub mod record;
pub mod rmgr;
pub mod segment;
pub mod stats;
pub mod store;
pub mod text;
pub mod timeline;
mod window;
pub mod writer;

pub use class::RecordClass;
pub use dir::WalDir;
pub use end::{EndReason, WalEnd};
pub use error::{DecodeError, Malformed, WalError};
pub use profile::WalProfile;
pub use reader::WalReader;
pub use record::{Crc, RawRecord, RecordHeader, decode_bytes};
pub use segment::SegmentName;
pub use store::SegmentStore;
pub use timeline::TimelineHistory;
