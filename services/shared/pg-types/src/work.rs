//! Work counters: what a node did, in units that do not depend on the machine.
//!
//! The names are part of the interface: every report, command and message that shows work uses exactly these keys.

use std::sync::LazyLock;

macro_rules! work {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts of work done, per transaction, per node or per run. They add up.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Work {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Work {
            /// The keys, in the order in which they are shown.
            pub const KEYS: &'static [&'static str] = &[$(stringify!($name)),*];

            /// The counters with their keys, in the order of [`Work::KEYS`].
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            /// The same counters from keyed values; unknown keys are ignored, missing ones are 0.
            pub fn from_entries<'a>(entries: impl IntoIterator<Item = (&'a str, u64)>) -> Self {
                let mut work = Self::default();
                for (key, value) in entries {
                    match key {
                        $(stringify!($name) => work.$name = value,)*
                        _ => {}
                    }
                }
                work
            }
        }

        impl std::ops::AddAssign for Work {
            fn add_assign(&mut self, other: Self) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
            }
        }

        impl std::ops::Sub for Work {
            type Output = Self;

            /// What was done between two readings of the same counters.
            fn sub(self, before: Self) -> Self {
                Self { $($name: self.$name.saturating_sub(before.$name),)* }
            }
        }
    };
}

work! {
    /// Invalidation messages executed by the decoder (`LocalExecuteInvalidationMessage`).
    messages_executed,
    /// Catcaches looked at to find the one of a message (`CatalogCacheIdInvalidate`: the whole list up to 9.6.3, then one).
    caches_searched,
    /// Catcache entries looked at in buckets and lists (`CatCacheInvalidate`).
    catcache_entries_visited,
    /// Catcache and relcache entries thrown away or marked dead.
    entries_dropped,
    /// Syscache and relcache callback slots looked at (`CallSyscacheCallbacks`).
    callbacks_visited,
    /// Callbacks called.
    callbacks_called,
    /// Relfilenode map: buckets and entries that scans walked over (`hash_seq_search`), or index steps.
    map_slots_visited,
    /// Relfilenode map entries thrown away.
    map_entries_dropped,
    /// Relations loaded into the relcache because a change needed them (`RelationBuildDesc`).
    relations_loaded,
    /// Catalog scans made for loading (`systable_beginscan`).
    catalog_scans,
    /// Historic snapshots handed to running transactions.
    snapshots_distributed,
    /// Their bytes.
    snapshot_bytes,
    /// Transactions looked at when distributing or choosing a victim.
    transactions_visited,
    /// Transactions written out or dropped for memory.
    evictions,
    /// Bytes of changes written out, as PostgreSQL counts their memory (`spill_bytes` of `pg_stat_replication_slots`).
    spill_bytes,
    /// Known-assigned xid slots that snapshots and searches looked at.
    xid_slots_visited,
    /// Known-assigned xid slots that a skip offset jumped over.
    xid_slots_skipped,
    /// Transactions and subtransactions written out for the first time (`spill_txns`).
    spill_txns,
    /// Times that a transaction or subtransaction was written out (`spill_count`).
    spill_count,
    /// Changes read back from spill files.
    changes_restored,
    /// Transactions given out in blocks before their end was known (`stream_txns`).
    stream_txns,
    /// Times that such a transaction's changes were given out (`stream_count`).
    stream_count,
    /// Bytes of changes in memory that were given out so (`stream_bytes`).
    stream_bytes,
    /// Files of changes that the relfilenode map knew, those without relation too.
    map_hits,
    /// Files that it did not.
    map_misses,
    /// Relations that were loaded already when a change needed them.
    relcache_hits,
    /// Those that were not.
    relcache_misses,
    /// Relations built anew in their place by a message, because somebody used them.
    relations_rebuilt,
    /// Catalogs and indexes of catalogs loaded again, because something was to be read in them.
    catalogs_loaded,
    /// Entries and lists that the catcaches had (`SearchCatCache`).
    catcache_hits,
    /// Those that they had not, each of which costs a scan.
    catcache_misses,
    /// Catalog rows of the transaction's own that were looked up (`ResolveCminCmaxDuringDecoding`).
    tuple_cid_lookups,
    /// Catalog scans with the historic snapshot of the transaction that is decoded, which take no snapshot.
    historic_scans,
    /// Catalog snapshots taken for the other scans (`GetNonHistoricCatalogSnapshot`).
    catalog_snapshots_taken,
    /// Scans with a catalog snapshot that had been taken before.
    catalog_snapshots_reused,
    /// Rows and truncated relations that were decoded and thrown away, because no publication that is asked for has them
    /// (`pgoutput_change`, `pgoutput_truncate`).
    rows_filtered,
    /// Changes and ends of transactions that were passed over because of their origin (`FilterByOrigin`).
    origin_skips,
}

/// Counters that are no steps, beside those of bytes: what a lookup that found nothing costs is counted by its scan, and that something
/// is found or reused is what should happen.
const NO_STEPS: [&str; 8] = [
    "map_hits",
    "map_misses",
    "relcache_hits",
    "relcache_misses",
    "catcache_hits",
    "catcache_misses",
    "historic_scans",
    "catalog_snapshots_reused",
];

/// Which of [`Work::KEYS`] are steps.
static IS_STEP: LazyLock<Vec<bool>> =
    LazyLock::new(|| Work::KEYS.iter().map(|key| !key.ends_with("_bytes") && !NO_STEPS.contains(key)).collect());

impl Work {
    /// All counters of steps added up. It ranks; it is no time.
    #[must_use]
    pub fn steps(&self) -> u64 {
        let steps = self.entries().zip(IS_STEP.iter()).filter(|(_, step)| **step);
        steps.fold(0, |sum, ((_, n), _)| sum.saturating_add(n))
    }

    /// Lookups that found nothing, in whatever cache.
    #[must_use]
    pub fn cache_misses(&self) -> u64 {
        self.map_misses.saturating_add(self.relcache_misses).saturating_add(self.catcache_misses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip_and_add_up() {
        let mut a = Work { messages_executed: 2, xid_slots_skipped: 5, ..Work::default() };
        assert_eq!(Work::from_entries(a.entries()), a);
        let before = a;
        a += Work { messages_executed: 3, ..Work::default() };
        assert_eq!(a - before, Work { messages_executed: 3, ..Work::default() });
        assert_eq!(Work::KEYS.len(), a.entries().count());
    }

    #[test]
    fn bytes_and_lookups_are_no_steps_but_what_they_cost_is() {
        assert!(NO_STEPS.iter().all(|key| Work::KEYS.contains(key)));
        let of = |key| Work::from_entries([(key, 7)]).steps();
        assert_eq!((of("spill_bytes"), of("catcache_hits"), of("catcache_misses"), of("catalog_scans")), (0, 0, 0, 7));
        let all = Work::from_entries(Work::KEYS.iter().map(|key| (*key, 1)));
        let bytes = Work::KEYS.iter().filter(|key| key.ends_with("_bytes")).count();
        assert_eq!((all.steps(), all.cache_misses()), ((Work::KEYS.len() - NO_STEPS.len() - bytes) as u64, 3));
    }
}
