//! Which function runs now, by PostgreSQL's name, so that somebody else can sample where CPU time goes.
//!
//! The core owns no clock. It writes the running function's number into one byte with a relaxed store at each boundary; a
//! sampler on another thread reads the byte every now and then and shares the decoding thread's CPU time out in proportion
//! (`walstorm compare` does). A store costs about a nanosecond, so it is always on.
//!
//! Invariant: I1, whoever enters a function leaves it with what [`CurrentFunction::enter`] gave back, so that outside of the
//! decoder the byte says [`Function::Outside`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

macro_rules! functions {
    ($($(#[$doc:meta])* $variant:ident => $name:literal),* $(,)?) => {
        /// A function of PostgreSQL that the decoder models.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Function {
            $($(#[$doc])* $variant,)*
        }

        impl Function {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [Function] = &[$(Function::$variant),*];

            /// PostgreSQL's name for it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Function::$variant => $name,)*
                }
            }
        }
    };
}

functions! {
    /// Not in the decoder.
    Outside => "(outside)",
    /// Reading and decoding WAL bytes; set by the shell.
    XLogReadRecord => "XLogReadRecord",
    /// Dispatch of a record.
    LogicalDecodingProcessRecord => "LogicalDecodingProcessRecord",
    /// Handing a new snapshot and messages to the running transactions.
    SnapBuildDistributeSnapshotAndInval => "SnapBuildDistributeSnapshotAndInval",
    /// Copying and sorting the committed catalog changers.
    SnapBuildBuildSnapshot => "SnapBuildBuildSnapshot",
    /// Replaying a transaction.
    ReorderBufferProcessTxn => "ReorderBufferProcessTXN",
    /// One message.
    LocalExecuteInvalidationMessage => "LocalExecuteInvalidationMessage",
    /// Finding the catcache of a message.
    CatalogCacheIdInvalidate => "CatalogCacheIdInvalidate",
    /// Killing the entries of one catcache.
    CatCacheInvalidate => "CatCacheInvalidate",
    /// Finding and calling the callbacks of a syscache.
    CallSyscacheCallbacks => "CallSyscacheCallbacks",
    /// Dropping a relcache entry.
    RelationCacheInvalidateEntry => "RelationCacheInvalidateEntry",
    /// The relfilenode map's relcache callback, apart from its scan.
    RelfilenodeMapInvalidateCallback => "RelfilenodeMapInvalidateCallback",
    /// The scan of the relfilenode map.
    HashSeqSearch => "hash_seq_search",
    /// File to relation.
    RelidByRelfilenode => "RelidByRelfilenode",
    /// Loading a relation.
    RelationBuildDesc => "RelationBuildDesc",
    /// Handing out decoded changes.
    OutputPlugin => "OutputPlugin",
}

/// The byte that says which function runs. Clones share it: the decoder writes, a sampler reads.
#[derive(Clone, Debug, Default)]
pub struct CurrentFunction(Arc<AtomicU8>);

impl CurrentFunction {
    /// Says that `function` runs now and gives back what ran before, for [`CurrentFunction::leave`].
    #[inline]
    #[must_use]
    pub fn enter(&self, function: Function) -> Function {
        let outer = self.get();
        self.0.store(function as u8, Ordering::Relaxed);
        outer
    }

    /// Says that `outer` runs again.
    #[inline]
    pub fn leave(&self, outer: Function) {
        self.0.store(outer as u8, Ordering::Relaxed);
    }

    /// What runs now.
    #[inline]
    #[must_use]
    pub fn get(&self) -> Function {
        Function::ALL.get(usize::from(self.0.load(Ordering::Relaxed))).copied().unwrap_or(Function::Outside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i1_leaving_restores_what_ran_before() {
        let marker = CurrentFunction::default();
        let reader = marker.clone();
        let outer = marker.enter(Function::ReorderBufferProcessTxn);
        let inner = marker.enter(Function::HashSeqSearch);
        assert_eq!(reader.get().name(), "hash_seq_search");
        marker.leave(inner);
        assert_eq!(reader.get(), Function::ReorderBufferProcessTxn);
        marker.leave(outer);
        assert_eq!(reader.get(), Function::Outside);
    }

    #[test]
    fn numbers_are_positions_in_the_list() {
        assert!(Function::ALL.iter().enumerate().all(|(i, f)| *f as usize == i));
    }
}
