//! Counted steps as lines of memory: which function leads, without a clock.
//!
//! What these functions do is walk over structures, and what that costs is lines of 64 bytes that come from memory or a cache. So a
//! step counts for as many lines as it touches in PostgreSQL's structures on a 64-bit machine:
//!
//! | step | bytes | lines |
//! |---|---|---|
//! | a catcache looked at to find a message's (`CatCache`, in a list) | its id and the link, anywhere | 1 |
//! | the catcache of a message | its header with the list of lists; the bucket's head | 2 |
//! | an entry of the bucket (`CatCTup`) | hash and link | 1 |
//! | a syscache callback looked at (`SYSCACHECALLBACK`, in an array) | 24 | 3/8 |
//! | a syscache callback called | what its owner keeps | 1 |
//! | the relcache entry of a message | bucket's head and the entry | 2 |
//! | a slot of the relfilenode map that a scan walks over (a bucket's head, in an array) | 8 | 1/8 |
//! | a message (`SharedInvalidationMessage`, in an array) | 16 | 1/4 |
//!
//! An entry of the relfilenode map takes a line and counts as a slot here, so that of a full map at least this much.

use decoder_core::attribution::{RELCACHE, RELFILENODE_MAP};
use decoder_core::{Attribution, Function};

/// Eighths of a line, for a sum in whole numbers.
const EIGHTHS: u64 = 8;

/// Lines by function, those of the counted functions alone.
#[must_use]
pub fn lines(attribution: &Attribution) -> Vec<(Function, u64)> {
    let total = &attribution.total;
    let (mut catcache_messages, mut relcache_messages) = (0, 0);
    let (mut visited, mut called) = (0, 0);
    for share in &attribution.caches {
        if *share.name == *RELCACHE {
            relcache_messages += share.work.messages_executed;
        } else if *share.name != *RELFILENODE_MAP {
            catcache_messages += share.work.messages_executed;
            visited += share.work.callbacks_visited;
            called += share.work.callbacks_called;
        }
    }
    let eighths = [
        (Function::CatalogCacheIdInvalidate, total.caches_searched * EIGHTHS),
        (Function::CatCacheInvalidate, (2 * catcache_messages + total.catcache_entries_visited) * EIGHTHS),
        (Function::CallSyscacheCallbacks, 3 * visited + called * EIGHTHS),
        (Function::RelationCacheInvalidateEntry, 2 * relcache_messages * EIGHTHS),
        (Function::HashSeqSearch, total.map_slots_visited),
        (Function::LocalExecuteInvalidationMessage, 2 * total.messages_executed),
    ];
    eighths.into_iter().map(|(function, eighths)| (function, eighths.div_ceil(EIGHTHS))).collect()
}

/// The function with the most lines, and its share of all in per cent.
#[must_use]
pub fn leading(attribution: &Attribution) -> (Function, f64) {
    let lines = lines(attribution);
    let all: u64 = lines.iter().map(|(_, lines)| lines).sum();
    let most = lines.into_iter().max_by_key(|(_, lines)| *lines).unwrap_or((Function::Outside, 0));
    (most.0, 100.0 * most.1 as f64 / all.max(1) as f64)
}
