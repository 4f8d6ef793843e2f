//! SMGR records: files made and cut (`catalog/storage_xlog.h`).

use pg_types::{RecordBody, RelFileLocator};

use crate::blocks::{RecordParts, read_locator};
use crate::cursor::Cursor;
use crate::error::Malformed;
use crate::record::RecordHeader;

/// `XLOG_SMGR_CREATE`.
pub const CREATE: u8 = 0x10;
/// `XLOG_SMGR_TRUNCATE`.
pub const TRUNCATE: u8 = 0x20;

/// `xl_smgr_create`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SmgrCreate {
    /// The file.
    pub(crate) target: RelFileLocator,
    /// Which fork.
    pub(crate) fork: u32,
}

/// `xl_smgr_truncate`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SmgrTruncate {
    /// New length in blocks.
    pub(crate) blocks: u32,
    /// The file.
    pub(crate) target: RelFileLocator,
    /// Which forks.
    pub(crate) flags: u32,
}

impl SmgrCreate {
    /// Reads one.
    pub(crate) fn read(main: &[u8]) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        Ok(Self { target: read_locator(&mut c)?, fork: c.u32()? })
    }
}

impl SmgrTruncate {
    /// Reads one.
    pub(crate) fn read(main: &[u8]) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        Ok(Self { blocks: c.u32()?, target: read_locator(&mut c)?, flags: c.u32()? })
    }
}

/// Decodes an SMGR record.
pub(super) fn decode(header: &RecordHeader, parts: &RecordParts<'_>) -> Result<RecordBody, Malformed> {
    Ok(match header.operation() {
        CREATE => {
            let SmgrCreate { target, fork } = SmgrCreate::read(parts.main)?;
            RecordBody::SmgrCreate { target, fork }
        }
        TRUNCATE => {
            let SmgrTruncate { target, blocks, flags } = SmgrTruncate::read(parts.main)?;
            RecordBody::SmgrTruncate { target, blocks, flags }
        }
        _ => return Ok(super::other(header)),
    })
}
