//! What `wal_level = logical` adds to records (`access/xlog.h`: `XLogLogicalInfoActive`), by leaving it out below that. Compared with a
//! server of 18.6; but for updated rows, of which a server logs there only what differs from the old ones.

use std::borrow::Cow;

use pg_types::record::OldTuple;
use pg_types::{Oid, RecordBody};

use crate::scenario::WalLevel;

/// A record as it is logged at a level; none if only decoding would need it.
///
/// The xids of subtransactions are told differently, too: see `Backend::xid` and the top-level xid in `Backend::insert`.
pub(super) fn at_level(level: WalLevel, body: &RecordBody) -> Option<Cow<'_, RecordBody>> {
    use RecordBody as B;
    if level == WalLevel::Logical {
        return Some(Cow::Borrowed(body));
    }
    let mut body = match body {
        // `LogLogicalInvalidations`, `log_heap_new_cid`, `ExecuteTruncateGuts`.
        B::XactInvalidations(_) | B::NewCid(_) | B::Truncate(_) => return None,
        B::Insert(_) | B::MultiInsert(_) | B::Update(_) | B::Delete(_) | B::Prune(_) | B::IndexPrune(_) | B::Commit(_) => {
            body.clone()
        }
        _ => return Some(Cow::Borrowed(body)),
    };
    match &mut body {
        // `RelationIsLogicallyLogged`.
        B::Insert(insert) => (insert.logical, insert.toast) = (false, false),
        B::MultiInsert(insert) => (insert.logical, insert.toast) = (false, false),
        B::Update(update) => (update.logical, update.old, update.old_len) = (false, OldTuple::None, 0),
        B::Delete(delete) => (delete.old, delete.old_len) = (OldTuple::None, 0),
        // `RelationIsAccessibleInLogicalDecoding`.
        B::Prune(prune) => prune.is_catalog = false,
        B::IndexPrune(prune) => prune.is_catalog = false,
        // `XactLogCommitRecord`: invalidation messages need the database, too.
        B::Commit(commit) if commit.messages.is_empty() => (commit.db, commit.spc) = (Oid::INVALID, Oid::INVALID),
        _ => {}
    }
    Some(Cow::Owned(body))
}
