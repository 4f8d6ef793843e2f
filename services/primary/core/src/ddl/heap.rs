//! New relations (`catalog/heap.c`: `heap_create_with_catalog`; `catalog/toasting.c`; `catalog/storage.c`).
//!
//! The order of object ids is the server's: relation, array type, row type. DROP goes by it.

use std::sync::Arc;

use pg_types::{Oid, RecordBody, catalog};

use super::rows;
use crate::backend::{Backend, Result};
use crate::catalog::{
    Attribute, DependencyType, ObjectAddress, OnCommit, PG_CATALOG, RelKind, RelStats, Relation, ReplicaIdentity, user_locator,
};

/// What one new relation is made of.
pub(super) struct NewRelation<'a> {
    /// Its oid.
    pub(super) oid: Oid,
    /// Its name.
    pub(super) name: Arc<str>,
    /// Its schema.
    pub(super) namespace: Oid,
    /// What it is.
    pub(super) kind: RelKind,
    /// Its columns.
    pub(super) columns: &'a [Attribute],
    /// Bytes of a row in a record.
    pub(super) row_len: u32,
}

/// System columns, in the order of their rows.
const SYSTEM_COLUMNS: [(&str, i16); 6] =
    [("ctid", -1), ("xmin", -2), ("cmin", -3), ("xmax", -4), ("cmax", -5), ("tableoid", -6)];
/// Columns of a TOAST table.
const TOAST_COLUMNS: [&str; 3] = ["chunk_id", "chunk_seq", "chunk_data"];
/// Bytes of a TOAST chunk in a record (`TOAST_MAX_CHUNK_SIZE` and its keys).
const TOAST_ROW_LEN: u32 = 2019;

impl Backend<'_> {
    /// `heap_create_with_catalog`: the file, row types, pg_class, pg_attribute, the dependency on the schema.
    pub(super) fn create_relation(&mut self, new: &NewRelation<'_>) -> Result<()> {
        self.log_access_exclusive_lock(new.oid)?;
        let filenode = if new.kind.has_storage() { new.oid.0 } else { 0 };
        let temporary = self.is_temp_namespace(new.namespace);
        if new.kind.has_storage() {
            self.create_storage(filenode, temporary)?;
        }
        self.create_row_types(new)?;
        let class_row = self.catalog_insert(rows::class(new.oid, &new.name, new.namespace, filenode))?;
        self.insert_attributes(new.oid, new.columns, new.kind)?;
        // The system's schemas are pinned: nothing need say that they are depended on.
        if new.namespace != PG_CATALOG && !matches!(new.kind, RelKind::CompositeType | RelKind::Toast) {
            let schema = ObjectAddress::new(catalog::NAMESPACE, new.namespace);
            self.depend(ObjectAddress::relation(new.oid), schema, DependencyType::Normal)?;
        }
        self.put_relation(Relation {
            oid: new.oid,
            name: Arc::clone(&new.name),
            namespace: new.namespace,
            temporary,
            transient: false,
            on_commit: OnCommit::default(),
            kind: new.kind,
            filenode,
            toast: None,
            indexes: Vec::new(),
            partitions: Vec::new(),
            parent: None,
            index: None,
            columns: new.columns.to_vec(),
            constraints: Vec::new(),
            triggers: Vec::new(),
            has_triggers: false,
            has_subclass: false,
            populated: false,
            row_len: new.row_len,
            stats: self.stats_of_new_table(),
            replica_identity: ReplicaIdentity::default(),
            grantees: Vec::new(),
            class_row,
        });
        Ok(())
    }

    /// The row type, and an array type for those that have one. A composite type's relation depends on the type; any other
    /// relation's type on the relation.
    fn create_row_types(&mut self, new: &NewRelation<'_>) -> Result<()> {
        if !self.has_rowtype(new.kind) {
            return Ok(());
        }
        let with_array = !matches!(new.kind, RelKind::Toast | RelKind::Sequence);
        let array = if with_array { Some(self.new_oid()?) } else { None };
        let rowtype = self.new_oid()?;
        self.catalog_insert(rows::r#type(rowtype, &new.name, new.namespace))?;
        let (relation, r#type) = (ObjectAddress::relation(new.oid), ObjectAddress::new(catalog::TYPE, rowtype));
        if new.kind == RelKind::CompositeType {
            let schema = ObjectAddress::new(catalog::NAMESPACE, new.namespace);
            let rows = [(r#type, schema, DependencyType::Normal), (relation, r#type, DependencyType::Internal)];
            self.depend_all(&rows)?;
            self.name_object(catalog::TYPE, &new.name, Some(rowtype));
        } else {
            self.depend(r#type, relation, DependencyType::Internal)?;
        }
        if let Some(array) = array {
            self.create_array_type(array, rowtype, &new.name, new.namespace)?;
        }
        Ok(())
    }

    /// The array type of a type.
    pub(super) fn create_array_type(&mut self, array: Oid, element: Oid, name: &Arc<str>, namespace: Oid) -> Result<()> {
        self.catalog_insert(rows::r#type(array, &format!("_{name}").into(), namespace))?;
        let element = ObjectAddress::new(catalog::TYPE, element);
        self.depend(ObjectAddress::new(catalog::TYPE, array), element, DependencyType::Internal)
    }

    /// `AddNewAttributeTuples`.
    fn insert_attributes(&mut self, rel: Oid, columns: &[Attribute], kind: RelKind) -> Result<()> {
        let at_once = self.cluster.catalog.traits.catalog_multi_insert;
        let row = |(attnum, column): (i16, &Attribute)| rows::attribute(rel, &column.name, attnum);
        if at_once {
            self.catalog_multi_insert((1..).zip(columns).map(row).collect())?;
        }
        for (attnum, column) in (1..).zip(columns) {
            if !at_once {
                self.catalog_insert(row((attnum, column)))?;
            }
            self.depend_on_type(rel, attnum, column)?;
        }
        if kind.has_system_columns() {
            let system = SYSTEM_COLUMNS.map(|(name, attnum)| rows::attribute(rel, &name.into(), attnum));
            self.catalog_multi_insert(system.into())?;
        }
        Ok(())
    }

    /// A column depends on its type; those that the system made are pinned.
    pub(super) fn depend_on_type(&mut self, rel: Oid, attnum: i16, column: &Attribute) -> Result<()> {
        let none = column.dropped.then_some(Oid::INVALID).filter(|_| self.cluster.catalog.traits.dropped_columns_depend);
        let Some(oid) = none.or(column.type_oid.filter(|_| !column.dropped)) else { return Ok(()) };
        let r#type = ObjectAddress::new(catalog::TYPE, oid);
        self.depend(ObjectAddress::column(rel, attnum), r#type, DependencyType::Normal)
    }

    /// `create_toast_table`: a table and its index, then the owner's pg_class row.
    pub(super) fn create_toast_table(&mut self, owner: Oid) -> Result<()> {
        let toast = self.new_oid()?;
        let columns = TOAST_COLUMNS.map(plain_attribute);
        let new = NewRelation {
            oid: toast,
            name: format!("pg_toast_{owner}").into(),
            namespace: self.toast_namespace_of(owner)?,
            kind: RelKind::Toast,
            columns: &columns,
            row_len: TOAST_ROW_LEN,
        };
        self.create_relation(&new)?;
        self.command_counter_increment()?;
        self.create_toast_index(toast, &format!("pg_toast_{owner}_index").into())?;
        let class_row = self.relation(owner)?.class_row;
        self.catalog_update(class_row, |_| ())?;
        self.depend(ObjectAddress::relation(toast), ObjectAddress::relation(owner), DependencyType::Internal)?;
        self.change_relation(owner, |table| table.toast = Some(toast))?;
        self.command_counter_increment()
    }

    /// Whether a new relation has a row type.
    fn has_rowtype(&self, kind: RelKind) -> bool {
        match kind {
            RelKind::Toast | RelKind::Sequence => self.cluster.catalog.traits.rowtype_for_toast_and_sequence,
            RelKind::Index | RelKind::PartitionedIndex => false,
            _ => true,
        }
    }

    /// Size of a table that was never counted.
    pub(super) fn stats_of_new_table(&self) -> RelStats {
        let tuples = if self.cluster.catalog.traits.unknown_tuple_count { None } else { Some(0) };
        RelStats { pages: 0, tuples, has_index: false }
    }

    /// `RelationCreateStorage`: a new file, which goes if the transaction aborts. It needs no xid.
    /// That of a temporary relation is not logged.
    pub(super) fn create_storage(&mut self, filenode: u32, temporary: bool) -> Result<()> {
        let target = user_locator(filenode);
        if temporary {
            self.cluster.catalog.note_temp_file(filenode);
        }
        self.insert(&RecordBody::SmgrCreate { target, fork: 0 })?;
        self.xact.level().drop_at_abort.push(target);
        Ok(())
    }

    /// `recordDependencyOn`: one row of pg_depend.
    pub(super) fn depend(&mut self, object: ObjectAddress, on: ObjectAddress, kind: DependencyType) -> Result<()> {
        self.depend_all(&[(object, on, kind)])
    }

    /// `recordMultipleDependencies`: several rows of pg_depend.
    pub(super) fn depend_all(&mut self, rows: &[(ObjectAddress, ObjectAddress, DependencyType)]) -> Result<()> {
        let rows = rows.iter().map(|(object, on, kind)| rows::depend(*object, *on, *kind)).collect();
        self.catalog_multi_insert(rows).map(drop)
    }
}

/// A column of a relation that the system makes.
pub(super) fn plain_attribute(name: &str) -> Attribute {
    Attribute {
        name: name.into(),
        type_name: "".into(),
        type_oid: None,
        width: 4,
        toastable: false,
        not_null: false,
        missing: false,
        dropped: false,
    }
}
