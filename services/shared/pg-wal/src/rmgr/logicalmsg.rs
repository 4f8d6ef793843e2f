//! LOGICALMSG records: what `pg_logical_emit_message` wrote (`replication/message.h`).

use pg_types::record::LogicalMessageRecord;
use pg_types::{Oid, RecordBody};

use crate::blocks::RecordParts;
use crate::cursor::Cursor;
use crate::error::Malformed;
use crate::record::RecordHeader;

/// `XLOG_LOGICAL_MESSAGE`.
pub const MESSAGE: u8 = 0x00;

/// `xl_logical_message`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogicalMessage<'a> {
    /// Database.
    pub(crate) db: Oid,
    /// Part of its transaction.
    pub(crate) transactional: bool,
    /// Prefix, without its NUL.
    pub(crate) prefix: &'a [u8],
    /// Content.
    pub(crate) message: &'a [u8],
}

impl<'a> LogicalMessage<'a> {
    /// Reads one. The prefix's length counts its NUL.
    pub(crate) fn read(main: &'a [u8]) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        let (db, transactional) = (Oid(c.u32()?), c.bool()?);
        c.take(3)?;
        let len = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let (prefix_len, message_len) = (len(c.u64()?), len(c.u64()?));
        let prefix = c.items::<1>(prefix_len)?.as_flattened();
        let prefix = prefix.strip_suffix(&[0]).ok_or(Malformed::NoNul)?;
        Ok(Self { db, transactional, prefix, message: c.items::<1>(message_len)?.as_flattened() })
    }
}

/// Decodes a LOGICALMSG record.
pub(super) fn decode(header: &RecordHeader, parts: &RecordParts<'_>) -> Result<RecordBody, Malformed> {
    if header.operation() != MESSAGE {
        return Ok(super::other(header));
    }
    let LogicalMessage { db, transactional, prefix, message } = LogicalMessage::read(parts.main)?;
    let record = LogicalMessageRecord { db, transactional, prefix: prefix.to_vec(), message: message.to_vec() };
    Ok(RecordBody::LogicalMessage(Box::new(record)))
}
