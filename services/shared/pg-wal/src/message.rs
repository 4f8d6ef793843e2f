//! The 16-byte `SharedInvalidationMessage` union (`storage/sinval.h`), unchanged from 13 to 18 but for one tag.
//!
//! The first byte is a signed tag: a syscache id if it is not negative, else one of the kinds below. What lies between and
//! behind the fields is padding: a server writes whatever its memory held, so messages are compared by their fields.

use pg_types::{InvalidationMessage, Oid, RelFileLocator};

/// Bytes of one message on disk (`sizeof(SharedInvalidationMessage)`).
pub const MESSAGE_LEN: usize = 16;

/// `SHAREDINVALCATALOG_ID`.
const TAG_CATALOG: i8 = -1;
/// `SHAREDINVALRELCACHE_ID`.
const TAG_RELCACHE: i8 = -2;
/// `SHAREDINVALSMGR_ID`.
const TAG_SMGR: i8 = -3;
/// `SHAREDINVALRELMAP_ID`.
const TAG_RELMAP: i8 = -4;
/// `SHAREDINVALSNAPSHOT_ID`.
const TAG_SNAPSHOT: i8 = -5;
/// `SHAREDINVALRELSYNC_ID`, 18 and later.
pub(crate) const TAG_RELSYNC: i8 = -6;

/// A message's tag is none that PostgreSQL 13 to 18 writes; a server calls that a fatal error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown invalidation message tag {0}")]
pub struct UnknownTag(pub i8);

/// Reads one message.
///
/// # Errors
/// [`UnknownTag`] if the first byte names no kind. Whether a version has the kind (relsync: 18 and later) is the caller's
/// question: see `WalProfile`.
pub fn read_message(bytes: &[u8; MESSAGE_LEN]) -> Result<InvalidationMessage, UnknownTag> {
    let [tag, hi, lo0, lo1, a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3] = *bytes;
    let first = u32::from_le_bytes([a0, a1, a2, a3]);
    let second = u32::from_le_bytes([b0, b1, b2, b3]);
    let third = u32::from_le_bytes([c0, c1, c2, c3]);
    let db = Oid(first);
    Ok(match tag as i8 {
        cache_id @ 0.. => InvalidationMessage::Catcache { cache_id, db, hash: second },
        TAG_CATALOG => InvalidationMessage::Catalog { db, catalog: Oid(second) },
        TAG_RELCACHE => InvalidationMessage::Relcache { db, rel: Oid(second) },
        TAG_SMGR => InvalidationMessage::Smgr {
            backend: i32::from(hi as i8) << 16 | i32::from(u16::from_le_bytes([lo0, lo1])),
            locator: RelFileLocator { spc: Oid(first), db: Oid(second), rel: third },
        },
        TAG_RELMAP => InvalidationMessage::Relmap { db },
        TAG_SNAPSHOT => InvalidationMessage::Snapshot { db, rel: Oid(second) },
        TAG_RELSYNC => InvalidationMessage::Relsync { db, rel: Oid(second) },
        unknown => return Err(UnknownTag(unknown)),
    })
}

/// Writes one message, with zeroes for padding.
///
/// A [`InvalidationMessage::Catcache`] whose id is negative names no syscache; it must not be written (debug builds assert).
#[must_use]
pub fn write_message(message: &InvalidationMessage) -> [u8; MESSAGE_LEN] {
    let mut head = [0u8; 4];
    let (tag, words) = match *message {
        InvalidationMessage::Catcache { cache_id, db, hash } => {
            debug_assert!(cache_id >= 0, "catcache id {cache_id} is none");
            (cache_id, [db.0, hash, 0])
        }
        InvalidationMessage::Catalog { db, catalog } => (TAG_CATALOG, [db.0, catalog.0, 0]),
        InvalidationMessage::Relcache { db, rel } => (TAG_RELCACHE, [db.0, rel.0, 0]),
        InvalidationMessage::Smgr { backend, locator } => {
            let [lo0, lo1, hi, _] = backend.to_le_bytes();
            head = [0, hi, lo0, lo1];
            (TAG_SMGR, [locator.spc.0, locator.db.0, locator.rel])
        }
        InvalidationMessage::Relmap { db } => (TAG_RELMAP, [db.0, 0, 0]),
        InvalidationMessage::Snapshot { db, rel } => (TAG_SNAPSHOT, [db.0, rel.0, 0]),
        InvalidationMessage::Relsync { db, rel } => (TAG_RELSYNC, [db.0, rel.0, 0]),
    };
    let [_, h1, h2, h3] = head;
    let [[a0, a1, a2, a3], [b0, b1, b2, b3], [c0, c1, c2, c3]] = words.map(u32::to_le_bytes);
    [tag as u8, h1, h2, h3, a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn layout_is_the_servers() {
        // relcache 16399 of database 5, as in a commit record of PostgreSQL 18 (padding is arbitrary).
        let mut bytes = [0xAA; 16];
        bytes[0] = 0xFE;
        bytes[4..8].copy_from_slice(&5u32.to_le_bytes());
        bytes[8..12].copy_from_slice(&16399u32.to_le_bytes());
        assert_eq!(read_message(&bytes), Ok(InvalidationMessage::Relcache { db: Oid(5), rel: Oid(16399) }));
        bytes[0] = 0xF9;
        assert_eq!(read_message(&bytes), Err(UnknownTag(-7)));
    }

    #[test]
    fn smgr_backend_is_24_bits_with_sign() {
        for backend in [-1, 0, 1, 0xFFFF, 0x1_0000, (1 << 23) - 1] {
            let message = InvalidationMessage::Smgr { backend, locator: RelFileLocator { spc: Oid(1663), db: Oid(5), rel: 7 } };
            assert_eq!(read_message(&write_message(&message)), Ok(message));
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_and_read_again(bytes: [u8; 16]) {
            if let Ok(message) = read_message(&bytes) {
                prop_assert_eq!(read_message(&write_message(&message)), Ok(message));
            }
        }
    }
}
