//! Catalogs as relations that VACUUM FULL and REINDEX are for: their size, indexes and files (`catalog/pg_*.h`;
//! `utils/cache/relmapper.c`).
//!
//! A mapped catalog's file is not in pg_class but in the relation map. The relcache init file has the catalogs with syscaches and
//! the indexes that those use: a message about one of them makes the file go.
//!
//! Differences from PostgreSQL: only these catalogs are here; of the others rows change, but they cannot be vacuumed or written
//! anew, nor can one that has a TOAST table be written anew.

use pg_types::{CommandId, Oid, Xid, catalog};

use super::{
    Attribute, Catalog, CatalogTuple, Datum, HeapFile, IndexInfo, OnCommit, PG_CATALOG, RelKind, RelStats, Relation,
    ReplicaIdentity, StoredTuple,
};

/// An index of a catalog.
struct SystemIndex {
    /// Its oid.
    oid: u32,
    /// Its name.
    name: &'static str,
    /// A syscache uses it.
    syscache: bool,
}

/// A catalog.
struct SystemCatalog {
    /// Its oid.
    oid: Oid,
    /// Its name.
    name: &'static str,
    /// Columns in 13, 14, …, 18.
    columns: [u16; 6],
    /// Its indexes, in the order of their oids.
    indexes: &'static [SystemIndex],
    /// Its TOAST table.
    toast: Option<u32>,
}

/// An index.
const fn index(oid: u32, name: &'static str, syscache: bool) -> SystemIndex {
    SystemIndex { oid, name, syscache }
}

/// Catalogs that can be vacuumed.
const SYSTEM: [SystemCatalog; 5] = [
    SystemCatalog {
        oid: catalog::CLASS,
        name: "pg_class",
        columns: [33, 33, 33, 33, 33, 34],
        indexes: &[
            index(2662, "pg_class_oid_index", true),
            index(2663, "pg_class_relname_nsp_index", true),
            index(3455, "pg_class_tblspc_relfilenode_index", false),
        ],
        toast: None,
    },
    SystemCatalog {
        oid: catalog::ATTRIBUTE,
        name: "pg_attribute",
        columns: [25, 26, 26, 26, 26, 25],
        indexes: &[index(2658, "pg_attribute_relid_attnam_index", true), index(2659, "pg_attribute_relid_attnum_index", true)],
        toast: None,
    },
    SystemCatalog {
        oid: catalog::TYPE,
        name: "pg_type",
        columns: [31, 32, 32, 32, 32, 32],
        indexes: &[index(2703, "pg_type_oid_index", true), index(2704, "pg_type_typname_nsp_index", true)],
        toast: Some(4171),
    },
    SystemCatalog {
        oid: catalog::DEPEND,
        name: "pg_depend",
        columns: [7; 6],
        indexes: &[index(2673, "pg_depend_depender_index", false), index(2674, "pg_depend_reference_index", false)],
        toast: None,
    },
    SystemCatalog {
        oid: catalog::PUBLICATION,
        name: "pg_publication",
        columns: [9, 9, 9, 9, 9, 10],
        indexes: &[index(6110, "pg_publication_oid_index", true), index(6111, "pg_publication_pubname_index", true)],
        toast: None,
    },
];

/// Relations in the map of a database: pg_class, pg_attribute, pg_proc, pg_type, their indexes and TOAST tables.
const MAPPED: [u32; 17] =
    [1259, 1249, 1255, 1247, 2836, 2837, 4171, 4172, 2690, 2691, 2703, 2704, 2658, 2659, 2662, 2663, 3455];

/// Whether a relation's file is in the relation map (`RelationIsMapped`).
#[must_use]
pub(crate) fn is_mapped(rel: Oid) -> bool {
    MAPPED.contains(&rel.0)
}

/// Whether a relation is the system's (`IsSystemRelation`).
#[must_use]
pub(crate) fn is_system(rel: Oid) -> bool {
    rel < Oid::FIRST_NORMAL
}

impl Catalog {
    /// Adds the catalogs as relations, with their rows of pg_class.
    pub(super) fn add_system_catalogs(&mut self) {
        let version = self.traits.version as usize;
        for system in &SYSTEM {
            let columns = (1..=system.columns[version]).map(|attnum| Attribute {
                name: format!("column_{attnum}").into(),
                type_name: "".into(),
                type_oid: None,
                width: 4,
                toastable: false,
                not_null: true,
                missing: false,
                dropped: false,
            });
            let indexes: Vec<Oid> = system.indexes.iter().map(|index| Oid(index.oid)).collect();
            self.add_system_relation(system.oid, system.name, RelKind::Table, columns.collect(), indexes, None);
            for index in system.indexes {
                let info = IndexInfo { table: system.oid, unique: true, ..IndexInfo::default() };
                self.add_system_relation(Oid(index.oid), index.name, RelKind::Index, Vec::new(), Vec::new(), Some(info));
            }
            if let Some(toast) = system.toast.map(Oid) {
                let name = format!("pg_toast_{}", system.oid);
                self.add_system_relation(toast, &name, RelKind::Toast, Vec::new(), Vec::new(), None);
                self.heaps.insert(toast.0, HeapFile::default());
            }
        }
    }

    /// The TOAST table of a catalog that has one.
    pub(super) fn toast_of(catalog: Oid) -> Option<Oid> {
        SYSTEM.iter().find(|system| system.oid == catalog)?.toast.map(Oid)
    }

    /// One relation with its row.
    fn add_system_relation(
        &mut self,
        oid: Oid,
        name: &str,
        kind: RelKind,
        columns: Vec<Attribute>,
        indexes: Vec<Oid>,
        index: Option<IndexInfo>,
    ) {
        let row = CatalogTuple::new(
            catalog::CLASS,
            vec![
                ("oid", Datum::Oid(oid)),
                ("relname", Datum::Name(name.into())),
                ("relnamespace", Datum::Oid(PG_CATALOG)),
                ("relfilenode", Datum::Int(i64::from(oid.0))),
            ],
        );
        let tid = pg_types::Tid { block: 0, offset: self.tuples.len() as u16 + 1 };
        let class_row = self.add_tuple(StoredTuple { tuple: row, tid, xmin: Xid::INVALID, cmin: CommandId::INVALID });
        let relation = Relation {
            oid,
            name: name.into(),
            namespace: PG_CATALOG,
            temporary: false,
            transient: false,
            on_commit: OnCommit::default(),
            kind,
            filenode: oid.0,
            toast: Catalog::toast_of(oid),
            stats: RelStats { pages: 0, tuples: Some(0), has_index: !indexes.is_empty() },
            indexes,
            partitions: Vec::new(),
            parent: None,
            index,
            columns,
            constraints: Vec::new(),
            triggers: Vec::new(),
            has_triggers: false,
            has_subclass: false,
            populated: false,
            row_len: 100,
            replica_identity: ReplicaIdentity::Nothing,
            grantees: Vec::new(),
            class_row,
        };
        self.replace_relation(oid, Some(relation));
    }

    /// Whether the relcache init file has a relation (`RelationIdIsInInitFile`).
    #[must_use]
    pub(crate) fn is_in_init_file(&self, rel: Oid) -> bool {
        let is_index = || SYSTEM.iter().flat_map(|system| system.indexes).any(|index| index.oid == rel.0 && index.syscache);
        is_system(rel) && (!self.syscaches.caches_on(rel).is_empty() || is_index())
    }

    /// The relation map: mapped relations with their files.
    #[must_use]
    pub(crate) fn relation_map(&self) -> Vec<(Oid, u32)> {
        MAPPED.iter().map(|oid| (Oid(*oid), self.relation(Oid(*oid)).map_or(*oid, |rel| rel.filenode))).collect()
    }
}
