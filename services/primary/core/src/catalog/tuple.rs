//! One row of a system catalog, and what its change invalidates (`utils/cache/inval.c`: `CacheInvalidateHeapTuple`;
//! `utils/cache/catcache.c`: `PrepareToInvalidateCacheTuple`).
//!
//! A tuple here has only the columns that decide something: those that a syscache or an index is keyed by, and those that say
//! which relation is meant. Which messages a change gives follows from them and from the version's table of syscaches.

use std::sync::Arc;

use pg_types::{Oid, SysCache, catalog};

use super::Dependency;

/// A column's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datum {
    /// An object id.
    Oid(Oid),
    /// A number or a character.
    Int(i64),
    /// A name.
    Name(Arc<str>),
}

/// A row of a catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogTuple {
    /// The catalog.
    pub catalog: Oid,
    /// The columns that matter, by PostgreSQL's names; the first is the object that the row belongs to.
    columns: Vec<(&'static str, Datum)>,
    /// The contents of a row of pg_depend, which needs no other columns.
    dependency: Option<Box<Dependency>>,
}

impl CatalogTuple {
    /// A row.
    #[must_use]
    pub fn new(catalog: Oid, columns: Vec<(&'static str, Datum)>) -> CatalogTuple {
        CatalogTuple { catalog, columns, dependency: None }
    }

    /// A row of pg_depend.
    #[must_use]
    pub fn depend(row: Dependency) -> CatalogTuple {
        CatalogTuple { catalog: catalog::DEPEND, columns: Vec::new(), dependency: Some(Box::new(row)) }
    }

    /// The contents of a row of pg_depend.
    #[must_use]
    pub fn dependency(&self) -> Option<Dependency> {
        self.dependency.as_deref().copied()
    }

    /// The object that the row belongs to: its first column; [`Oid::INVALID`] for pg_depend, which is found by other ways.
    #[must_use]
    pub fn owner(&self) -> Oid {
        match self.columns.first() {
            Some((_, Datum::Oid(oid))) => *oid,
            _ => Oid::INVALID,
        }
    }

    /// An oid column's value, if the row has it.
    #[must_use]
    pub fn oid_column(&self, name: &str) -> Option<Oid> {
        self.oid(name)
    }

    /// A number column's value, if the row has it.
    #[must_use]
    pub fn int_column(&self, name: &str) -> Option<i64> {
        match self.column(name) {
            Some(Datum::Int(number)) => Some(*number),
            _ => None,
        }
    }

    /// A column's value, if the row has it.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&Datum> {
        self.columns.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Sets a column that the row has.
    pub fn set(&mut self, name: &'static str, value: Datum) {
        match self.columns.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.columns.push((name, value)),
        }
    }

    /// An object id among the columns.
    fn oid(&self, name: &str) -> Option<Oid> {
        match self.column(name) {
            Some(Datum::Oid(oid)) => Some(*oid),
            _ => None,
        }
    }

    /// The hash of this row's key in a syscache on its catalog (`CatalogCacheComputeTupleHashValue`): that of its first column, with
    /// those of the others turned by eight bits more each.
    ///
    /// Oids and numbers hash as PostgreSQL hashes them, since a decoder looks up by oid and must find what a message is about. Nobody
    /// can tell how names hash: that is FNV-1a.
    #[must_use]
    pub fn cache_hash(&self, cache: &SysCache) -> u32 {
        debug_assert_eq!(cache.catalog, self.catalog);
        cache.key.iter().zip(0..).fold(0, |hash, (column, position)| {
            let value = self.column(column);
            debug_assert!(value.is_some(), "a row of {} lacks {column}, which {} is keyed by", self.catalog, cache.name);
            let one = match value {
                Some(Datum::Oid(oid)) => oid.0,
                Some(Datum::Int(number)) => *number as u32,
                Some(Datum::Name(name)) => fnv1a(name.as_bytes()),
                None => 0,
            };
            hash ^ murmurhash32(one).rotate_left(8 * position)
        })
    }

    /// The relation whose relcache entry depends on this row, if one does: pg_class, pg_attribute, pg_index, and pg_constraint
    /// for foreign keys.
    #[must_use]
    pub fn relcache_target(&self) -> Option<Oid> {
        match self.catalog {
            catalog::CLASS => self.oid("oid"),
            catalog::ATTRIBUTE => self.oid("attrelid"),
            catalog::INDEX => self.oid("indexrelid"),
            catalog::CONSTRAINT if self.column("contype") == Some(&Datum::Int(i64::from(b'f'))) => self.oid("conrelid"),
            _ => None,
        }
    }

    /// Bytes of such a row with its `xl_heap_header`, as measured in records of PostgreSQL 18.
    #[must_use]
    pub fn record_len(&self) -> u32 {
        match self.catalog {
            catalog::CLASS => 158,
            catalog::ATTRIBUTE => 114,
            catalog::TYPE => 162,
            catalog::INDEX => 148,
            catalog::CONSTRAINT => 145,
            catalog::ATTRDEF => 169,
            catalog::SEQUENCE => 55,
            catalog::DEPEND => 31,
            catalog::SHDEPEND => 31,
            catalog::INHERITS => 19,
            _ => 100,
        }
    }
}

/// FNV-1a with 32 bits.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811C_9DC5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Mixes a number's bits (`murmurhash32` in common/hashfn.h): the caches take the low ones for their buckets.
fn murmurhash32(number: u32) -> u32 {
    let mut hash = number;
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85EB_CA6B);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xC2B2_AE35);
    hash ^ (hash >> 16)
}

#[cfg(test)]
mod tests {
    use pg_types::{PgVersion, SysCacheTable};

    use super::*;

    fn class(oid: u32, name: &str) -> CatalogTuple {
        let columns =
            vec![("oid", Datum::Oid(Oid(oid))), ("relname", Datum::Name(name.into())), ("relnamespace", Datum::Oid(Oid(2200)))];
        CatalogTuple::new(catalog::CLASS, columns)
    }

    #[test]
    fn hashes_differ_by_key_and_cache_but_not_by_version() {
        let hash = |version, cache: &str, tuple: &CatalogTuple| {
            let table = SysCacheTable::of(version);
            tuple.cache_hash(table.cache(table.id_of(cache).unwrap()))
        };
        let (a, b) = (class(16_384, "a"), class(16_384, "b"));
        assert_eq!(hash(PgVersion::V18, "RELOID", &a), hash(PgVersion::V13, "RELOID", &a));
        assert_eq!(hash(PgVersion::V18, "RELOID", &a), hash(PgVersion::V18, "RELOID", &b), "the name is no part of this key");
        assert_ne!(hash(PgVersion::V18, "RELNAMENSP", &a), hash(PgVersion::V18, "RELNAMENSP", &b));
        assert_ne!(hash(PgVersion::V18, "RELOID", &a), hash(PgVersion::V18, "RELNAMENSP", &a));
    }

    /// What 18.6 wrote for the row of pg_class with oid 16384, and for its column 1.
    #[test]
    fn keys_of_numbers_hash_as_a_server_hashes_them() {
        let table = SysCacheTable::of(PgVersion::V18);
        let of = |cache: &str, tuple: &CatalogTuple| tuple.cache_hash(table.cache(table.id_of(cache).unwrap()));
        let columns =
            vec![("attrelid", Datum::Oid(Oid(16_384))), ("attnum", Datum::Int(1)), ("attname", Datum::Name("a".into()))];
        assert_eq!(of("RELOID", &class(16_384, "a")), 0x5308_5746);
        assert_eq!(of("ATTNUM", &CatalogTuple::new(catalog::ATTRIBUTE, columns)), 0x1D20_E017);
    }

    #[test]
    fn hashes_spread_over_buckets() {
        let table = SysCacheTable::of(PgVersion::V18);
        let cache = table.cache(table.id_of("RELOID").unwrap());
        let mut buckets = [0u32; 128];
        for oid in 0..12_800 {
            buckets[(class(16_384 + oid, "t").cache_hash(cache) % 128) as usize] += 1;
        }
        assert!(buckets.iter().all(|n| (50..=160).contains(n)), "{buckets:?}");
    }

    #[test]
    fn only_foreign_keys_among_constraints_touch_a_relation() {
        let constraint = |kind: u8| {
            let columns =
                vec![("oid", Datum::Oid(Oid(1))), ("conrelid", Datum::Oid(Oid(2))), ("contype", Datum::Int(i64::from(kind)))];
            CatalogTuple::new(catalog::CONSTRAINT, columns).relcache_target()
        };
        assert_eq!((constraint(b'f'), constraint(b'p')), (Some(Oid(2)), None));
    }
}
