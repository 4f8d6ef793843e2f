//! What the versions do differently when a statement changes the catalog: one row a version.

use pg_types::PgVersion;

use crate::invalidation_queue::MessageOrder;

/// Habits of one version.
#[derive(Clone, Copy, Debug)]
pub struct CatalogTraits {
    /// Whose row this is.
    pub version: PgVersion,
    /// Each command's messages are logged at its end, and records carry the top-level xid (14 and later).
    pub logs_command_messages: bool,
    /// A table that was never counted has −1 tuples instead of 0, and building an index over it leaves that alone (14 and
    /// later). Before, the build of a truncated index updates its pg_class tuple in place.
    pub unknown_tuple_count: bool,
    /// TRUNCATE builds the index of a TOAST table before the table's own indexes (17 and later), not after them.
    pub toast_index_first: bool,
    /// How lists of messages are read.
    pub message_order: MessageOrder,
    /// Several rows of a catalog go into one record (14 and later).
    pub catalog_multi_insert: bool,
    /// TOAST tables and sequences have a row type in pg_type (13 and before).
    pub rowtype_for_toast_and_sequence: bool,
    /// A dropped column of a table that is written anew depends on no type, which is a row of pg_depend all the same (13 and
    /// before).
    pub dropped_columns_depend: bool,
    /// NOT NULL has a pg_constraint row (18 and later).
    pub not_null_constraints: bool,
    /// ADD CONSTRAINT locks all partitions ahead (18 and later), not each table's when its parent is done.
    pub constraint_locks_partitions: bool,
    /// A partitioned table has triggers for its foreign keys, as its partitions have (15 and later).
    pub foreign_key_triggers_of_parents: bool,
    /// DETACH PARTITION locks the partition, too, and goes in two commands (14 and later).
    pub detach_locks_partition: bool,
    /// The rule of a view depends on the view once more, for its OLD and NEW (15 and before).
    pub rule_depends_on_view: bool,
    /// CREATE MATERIALIZED VIEW fills it as REFRESH does (17 and later).
    pub matview_filled_by_refresh: bool,
    /// Values of an enum go into one record (16 and later).
    pub enum_multi_insert: bool,
    /// A statistics object has a row of data from the beginning (14 and before), not from ANALYZE on.
    pub statistics_data_at_once: bool,
    /// A publication can be for the tables of a schema (15 and later).
    pub publication_schemas: bool,
    /// A publication's new name gives relsync messages (18 and later).
    pub relsync_messages: bool,
    /// An index that is built counts its table only where autovacuum is on (18 and later).
    pub index_build_heeds_autovacuum: bool,
    /// Records of in-place updates carry the messages (18 and later).
    pub inplace_messages: bool,
    /// Statistics entries are dropped by commit and abort records (15 and later).
    pub dropped_stats: bool,
    /// A checkpoint's redo position has a record of its own (17 and later).
    pub checkpoint_redo: bool,
    /// Inserts into TOAST tables say so (14 and later).
    pub toast_inserts_told: bool,
    /// Abort records tell a replicated transaction's origin (16 and later), not only those of prepared transactions.
    pub abort_tells_origin: bool,
    /// The number that a new backend gets, and its temporary schemas with it, is the one that was free for longest (17 and later),
    /// not the lowest free one.
    pub backend_numbers_in_turn: bool,
}

/// PostgreSQL 13.
const V13: CatalogTraits = CatalogTraits {
    version: PgVersion::V13,
    logs_command_messages: false,
    unknown_tuple_count: false,
    toast_index_first: false,
    message_order: MessageOrder::NewestChunkFirst,
    catalog_multi_insert: false,
    rowtype_for_toast_and_sequence: true,
    dropped_columns_depend: true,
    not_null_constraints: false,
    constraint_locks_partitions: false,
    foreign_key_triggers_of_parents: false,
    detach_locks_partition: false,
    rule_depends_on_view: true,
    matview_filled_by_refresh: false,
    enum_multi_insert: false,
    statistics_data_at_once: true,
    publication_schemas: false,
    relsync_messages: false,
    index_build_heeds_autovacuum: false,
    inplace_messages: false,
    dropped_stats: false,
    checkpoint_redo: false,
    toast_inserts_told: false,
    abort_tells_origin: false,
    backend_numbers_in_turn: false,
};

/// PostgreSQL 14.
const V14: CatalogTraits = CatalogTraits {
    version: PgVersion::V14,
    logs_command_messages: true,
    toast_inserts_told: true,
    unknown_tuple_count: true,
    catalog_multi_insert: true,
    detach_locks_partition: true,
    rowtype_for_toast_and_sequence: false,
    dropped_columns_depend: false,
    ..V13
};

/// PostgreSQL 15.
const V15: CatalogTraits = CatalogTraits {
    version: PgVersion::V15,
    message_order: MessageOrder::OldestFirst,
    dropped_stats: true,
    publication_schemas: true,
    statistics_data_at_once: false,
    foreign_key_triggers_of_parents: true,
    ..V14
};

/// PostgreSQL 16.
const V16: CatalogTraits = CatalogTraits {
    version: PgVersion::V16,
    abort_tells_origin: true,
    rule_depends_on_view: false,
    enum_multi_insert: true,
    ..V15
};

/// PostgreSQL 17.
const V17: CatalogTraits = CatalogTraits {
    version: PgVersion::V17,
    toast_index_first: true,
    backend_numbers_in_turn: true,
    checkpoint_redo: true,
    matview_filled_by_refresh: true,
    ..V16
};

/// PostgreSQL 18.
const V18: CatalogTraits = CatalogTraits {
    version: PgVersion::V18,
    not_null_constraints: true,
    constraint_locks_partitions: true,
    index_build_heeds_autovacuum: true,
    inplace_messages: true,
    relsync_messages: true,
    ..V17
};

impl CatalogTraits {
    /// The row of `version`.
    #[must_use]
    pub fn of(version: PgVersion) -> &'static CatalogTraits {
        match version {
            PgVersion::V13 => &V13,
            PgVersion::V14 => &V14,
            PgVersion::V15 => &V15,
            PgVersion::V16 => &V16,
            PgVersion::V17 => &V17,
            PgVersion::V18 => &V18,
        }
    }
}
