//! Which functions run now, by PostgreSQL's names, so that somebody else can sample where CPU time goes.
//!
//! The core owns no clock. It keeps the stack of running functions in one word, a byte each, with a relaxed store at each boundary;
//! a sampler on another thread reads the word every now and then and shares the decoding thread's CPU time out in proportion
//! (`walstorm compare` and `walstorm profile` do). A store costs about a nanosecond, so it is always on.
//!
//! Invariant: I1, whoever enters a function leaves it with what [`CurrentFunction::enter`] gave back, so that outside of the
//! decoder the stack is empty.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// Functions that run, the innermost in the lowest byte. Of more than eight the outermost are forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stack(u64);

impl Stack {
    /// The innermost function, [`Function::Outside`] of an empty stack.
    #[inline]
    #[must_use]
    pub fn innermost(self) -> Function {
        Function::ALL.get((self.0 & 0xff) as usize).copied().unwrap_or(Function::Outside)
    }

    /// From the outermost function to the innermost.
    pub fn functions(self) -> impl Iterator<Item = Function> {
        let bytes = self.0.to_be_bytes().into_iter();
        bytes.filter_map(|byte| Function::ALL.get(usize::from(byte)).copied()).filter(|f| *f != Function::Outside)
    }
}

/// The word that says which functions run. Clones share it: the decoder writes, a sampler reads.
#[derive(Clone, Debug, Default)]
pub struct CurrentFunction(Arc<AtomicU64>);

impl CurrentFunction {
    /// Says that `function` runs now and gives back what ran before, for [`CurrentFunction::leave`].
    #[inline]
    #[must_use]
    pub fn enter(&self, function: Function) -> Stack {
        let outer = self.get();
        self.0.store(outer.0 << 8 | function as u64, Ordering::Relaxed);
        outer
    }

    /// Says that `outer` runs again.
    #[inline]
    pub fn leave(&self, outer: Stack) {
        self.0.store(outer.0, Ordering::Relaxed);
    }

    /// What runs now.
    #[inline]
    #[must_use]
    pub fn get(&self) -> Stack {
        Stack(self.0.load(Ordering::Relaxed))
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
        assert_eq!(reader.get().innermost().name(), "hash_seq_search");
        let names: Vec<&str> = reader.get().functions().map(Function::name).collect();
        assert_eq!(names, ["ReorderBufferProcessTXN", "hash_seq_search"]);
        marker.leave(inner);
        assert_eq!(reader.get().innermost(), Function::ReorderBufferProcessTxn);
        marker.leave(outer);
        assert_eq!(reader.get(), Stack::default());
        assert_eq!(reader.get().innermost(), Function::Outside);
    }

    #[test]
    fn of_nine_functions_the_outermost_is_forgotten() {
        let marker = CurrentFunction::default();
        let outer = marker.enter(Function::XLogReadRecord);
        for _ in 0..8 {
            let _ = marker.enter(Function::OutputPlugin);
        }
        assert_eq!(marker.get().functions().collect::<Vec<_>>(), [Function::OutputPlugin; 8]);
        marker.leave(outer);
        assert_eq!(marker.get(), Stack::default());
    }

    #[test]
    fn numbers_are_positions_in_the_list() {
        assert!(Function::ALL.iter().enumerate().all(|(i, f)| *f as usize == i));
    }
}
