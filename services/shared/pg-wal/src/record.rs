//! One record: its header, its checksum and its bytes (`access/xlogrecord.h`).

use pg_types::{Lsn, WalRecord, Xid};

use crate::blocks::RecordParts;
use crate::cursor::Cursor;
use crate::error::{DecodeError, Malformed};
use crate::profile::WalProfile;
use crate::rmgr;

/// Bytes of a record's header (`SizeOfXLogRecord`).
pub const RECORD_HEADER_LEN: usize = 24;
/// Bytes of the header that the checksum covers: all before itself.
const CRC_OFFSET: usize = 20;

/// `XLogRecord`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordHeader {
    /// Bytes of the record with its header.
    pub total_len: u32,
    /// Transaction that wrote it.
    pub xid: Xid,
    /// The record before.
    pub prev: Lsn,
    /// Operation in the high half, flags in the low half.
    pub info: u8,
    /// Resource manager.
    pub rmid: u8,
    /// CRC-32C of everything else.
    pub crc: u32,
}

impl RecordHeader {
    /// Reads a header.
    ///
    /// # Errors
    /// [`Malformed::Short`] for fewer than [`RECORD_HEADER_LEN`] bytes.
    #[inline]
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut c = Cursor::new(bytes);
        let (total_len, xid, prev) = (c.u32()?, Xid(c.u32()?), Lsn(c.u64()?));
        let (info, rmid) = (c.u8()?, c.u8()?);
        c.take(2)?;
        Ok(Self { total_len, xid, prev, info, rmid, crc: c.u32()? })
    }

    /// The operation: the high half of `info`, which the resource manager owns.
    #[must_use]
    pub fn operation(&self) -> u8 {
        self.info & 0xF0
    }
}

/// CRC-32C of a record as PostgreSQL computes it: what follows the header first, then the header up to the checksum.
#[must_use]
#[inline]
pub fn record_crc(bytes: &[u8]) -> u32 {
    let head = bytes.get(..CRC_OFFSET).unwrap_or_default();
    let body = bytes.get(RECORD_HEADER_LEN..).unwrap_or_default();
    crc32c::crc32c_append(crc32c::crc32c(body), head)
}

/// Longest record that [`CrcBuffer`] turns round.
const SHORT_RECORD_LEN: usize = 1024;

/// Space for [`record_crc`] of short records. Most records are, and then the number of calls and odd bytes is what costs: here
/// the header is put behind the body, so that one run over both is enough.
#[derive(Clone, Debug)]
pub(crate) struct CrcBuffer([u8; SHORT_RECORD_LEN]);

impl CrcBuffer {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self([0; SHORT_RECORD_LEN])
    }

    /// The same as [`record_crc`].
    #[inline]
    pub(crate) fn record_crc(&mut self, bytes: &[u8]) -> u32 {
        if let (Some((head, rest)), true) = (bytes.split_first_chunk::<CRC_OFFSET>(), bytes.len() < SHORT_RECORD_LEN)
            && let Some((_, body)) = rest.split_first_chunk::<{ RECORD_HEADER_LEN - CRC_OFFSET }>()
            && let Some((front, back)) = self.0.split_at_mut_checked(body.len())
            && let Some(place) = back.first_chunk_mut::<CRC_OFFSET>()
        {
            copy_short(body, front);
            *place = *head;
            return crc32c::crc32c(self.0.get(..body.len() + CRC_OFFSET).unwrap_or_default());
        }
        record_crc(bytes)
    }
}

/// Copies a few words and odd bytes, without the call that a copy of unknown length is.
#[inline]
fn copy_short(from: &[u8], to: &mut [u8]) {
    let ((from_words, from_odd), (to_words, to_odd)) = (from.as_chunks::<8>(), to.as_chunks_mut::<8>());
    for (from, to) in from_words.iter().zip(to_words) {
        *to = *from;
    }
    for (from, to) in from_odd.iter().zip(to_odd) {
        *to = *from;
    }
}

/// A record as it stands in WAL, page headers taken out.
#[derive(Clone, Copy, Debug)]
pub struct RawRecord<'a> {
    /// First byte.
    pub lsn: Lsn,
    /// First byte after it, aligned; for a switch record the end of its segment.
    pub end_lsn: Lsn,
    /// Its header.
    pub header: RecordHeader,
    /// All of it, header included.
    pub bytes: &'a [u8],
}

impl<'a> RawRecord<'a> {
    /// A record from its bytes, as they stand in WAL or came over a wire. The checksum is not looked at.
    ///
    /// # Errors
    /// If `bytes` are not as many as the record's header says.
    pub fn new(lsn: Lsn, end_lsn: Lsn, bytes: &'a [u8]) -> Result<Self, Malformed> {
        let header = RecordHeader::read(bytes)?;
        if header.total_len as usize != bytes.len() {
            return Err(Malformed::TotalLength { said: header.total_len, present: bytes.len() });
        }
        Ok(Self { lsn, end_lsn, header, bytes })
    }

    /// Checks the checksum.
    ///
    /// # Errors
    /// [`Malformed::Crc`] if it is wrong.
    pub fn check_crc(&self) -> Result<(), Malformed> {
        let computed = record_crc(self.bytes);
        if computed == self.header.crc { Ok(()) } else { Err(Malformed::Crc { computed, said: self.header.crc }) }
    }

    /// Splits it into block references, origin, top-level transaction and main data.
    ///
    /// # Errors
    /// If its inner headers contradict each other or its length.
    pub fn parts(&self, profile: &'static WalProfile) -> Result<RecordParts<'a>, Malformed> {
        RecordParts::parse(self.bytes, profile)
    }

    /// What it says.
    ///
    /// # Errors
    /// If its contents contradict the layout of its kind.
    pub fn decode(&self, profile: &'static WalProfile) -> Result<WalRecord, DecodeError> {
        let parts = match RecordParts::walk(self.bytes, profile) {
            Ok(parts) => parts,
            Err(reason) => return Err(self.decode_error(profile, reason)),
        };
        match rmgr::decode_body(&self.header, &parts, profile) {
            Ok(body) => Ok(WalRecord {
                lsn: self.lsn,
                end_lsn: self.end_lsn,
                xid: self.header.xid,
                top_xid: parts.top_xid,
                origin: parts.origin,
                body,
            }),
            Err(reason) => Err(self.decode_error(profile, reason)),
        }
    }

    /// Names this record in an error.
    #[cold]
    #[must_use]
    pub fn decode_error(&self, profile: &WalProfile, reason: Malformed) -> DecodeError {
        DecodeError {
            lsn: self.lsn,
            rmgr: rmgr::name(self.header.rmid).into_owned(),
            operation: rmgr::operation_name(profile, self.header.rmid, self.header.info).into_owned(),
            reason,
        }
    }
}

/// What to do about a record's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crc {
    /// Compute and compare it.
    Check,
    /// Somebody did already.
    Trust,
}

/// Decodes one record from its bytes, as they came over a wire.
///
/// # Errors
/// If the length or the checksum is wrong, or the contents contradict the layout of their kind.
pub fn decode_bytes(
    profile: &'static WalProfile,
    lsn: Lsn,
    end_lsn: Lsn,
    bytes: &[u8],
    crc: Crc,
) -> Result<WalRecord, DecodeError> {
    let raw = RawRecord::new(lsn, end_lsn, bytes).map_err(|reason| DecodeError {
        lsn,
        rmgr: "unknown".to_owned(),
        operation: "unknown".to_owned(),
        reason,
    })?;
    if crc == Crc::Check {
        raw.check_crc().map_err(|reason| raw.decode_error(profile, reason))?;
    }
    raw.decode(profile)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn short_and_long_records_have_the_same_crc(bytes in proptest::collection::vec(any::<u8>(), 0..1100)) {
            prop_assert_eq!(CrcBuffer::new().record_crc(&bytes), record_crc(&bytes));
        }
    }
}
