//! CREATE TABLE (`commands/tablecmds.c`: `DefineRelation`; `catalog/heap.c`: `heap_create_with_catalog`;
//! `catalog/toasting.c`; `commands/sequence.c`: `DefineSequence`).
//!
//! A statement is cut into commands where the server raises the command id; each block below ends with one.

use std::sync::Arc;

use pg_types::{Oid, RecordBody, catalog};

use super::column::Column;
use super::rows;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{PG_TOAST, PUBLIC, RelKind, RelStats, Relation, TupleId, user_locator};

/// What CREATE TABLE is told.
#[derive(Clone, Debug)]
pub(crate) struct TableSpec {
    /// Its name.
    pub(crate) name: Arc<str>,
    /// Its columns.
    pub(crate) columns: Vec<Column>,
    /// It is a partition of this table.
    pub(crate) parent: Option<Oid>,
    /// It is partitioned itself.
    pub(crate) partitioned: bool,
    /// Bytes of a row in a record, if not what its columns take.
    pub(crate) row_len: Option<u32>,
}

/// What one new relation is made of.
struct NewRelation<'a> {
    /// Its oid.
    oid: Oid,
    /// Its name.
    name: Arc<str>,
    /// Its schema.
    namespace: Oid,
    /// What it is.
    kind: RelKind,
    /// Its columns.
    columns: &'a [Arc<str>],
    /// Bytes of a row in a record.
    row_len: u32,
}

/// System columns of tables and sequences, in the order of their rows.
const SYSTEM_COLUMNS: [(&str, i16); 6] =
    [("ctid", -1), ("xmin", -2), ("cmin", -3), ("xmax", -4), ("cmax", -5), ("tableoid", -6)];
/// Columns of a sequence.
const SEQUENCE_COLUMNS: [&str; 3] = ["last_value", "log_cnt", "is_called"];
/// Columns of a TOAST table.
const TOAST_COLUMNS: [&str; 3] = ["chunk_id", "chunk_seq", "chunk_data"];
/// Bytes of a TOAST chunk in a record (`TOAST_MAX_CHUNK_SIZE` and its keys).
const TOAST_ROW_LEN: u32 = 2019;

impl Backend<'_> {
    /// CREATE TABLE, with everything that it brings along. Gives the table's oid.
    pub(crate) fn create_table(&mut self, spec: &TableSpec) -> Result<Oid> {
        if self.cluster.catalog.relation_named(&spec.name).is_some() {
            return Err(StatementError::Refused(format!("relation '{}' is there already", spec.name)));
        }
        let sequences = self.create_sequences(spec)?;
        let table = self.create_heap(spec)?;
        if let Some(parent) = spec.parent {
            self.attach_to_parent(table, parent)?;
        }
        self.add_defaults(table, spec, &sequences)?;
        self.add_not_null_constraints(table, spec)?;
        if !spec.partitioned && spec.columns.iter().any(|column| column.toastable) {
            self.create_toast_table(table)?;
        }
        for column in spec.columns.iter().filter(|column| column.primary_key) {
            self.create_primary_key(table, &spec.name, column)?;
        }
        for (sequence, _) in sequences {
            self.own_sequence(sequence, table)?;
        }
        Ok(table)
    }

    /// A sequence for each serial column, made before the table.
    fn create_sequences(&mut self, spec: &TableSpec) -> Result<Vec<(Oid, i16)>> {
        let mut sequences = Vec::new();
        for (attnum, column) in attnums(spec).filter(|(_, column)| column.serial) {
            let oid = self.new_oid()?;
            let name: Arc<str> = format!("{}_{}_seq", spec.name, column.name).into();
            let columns = SEQUENCE_COLUMNS.map(Arc::from);
            let new = NewRelation { oid, name, namespace: PUBLIC, kind: RelKind::Sequence, columns: &columns, row_len: 30 };
            self.create_relation(&new)?;
            self.command_counter_increment()?;
            let row = self.catalog_insert(rows::sequence(oid))?;
            self.change_relation(oid, |sequence| sequence.other_rows.push(row))?;
            self.command_counter_increment()?;
            sequences.push((oid, attnum));
        }
        Ok(sequences)
    }

    /// The table itself: types, pg_class, pg_attribute, its dependency on the schema.
    fn create_heap(&mut self, spec: &TableSpec) -> Result<Oid> {
        if let Some(parent) = spec.parent {
            self.log_access_exclusive_lock(parent)?;
        }
        let oid = self.new_oid()?;
        let columns: Vec<Arc<str>> = spec.columns.iter().map(|column| Arc::clone(&column.name)).collect();
        let kind = if spec.partitioned { RelKind::Partitioned } else { RelKind::Table };
        let row_len = spec.row_len.unwrap_or_else(|| Column::row_len(&spec.columns));
        let new = NewRelation { oid, name: Arc::clone(&spec.name), namespace: PUBLIC, kind, columns: &columns, row_len };
        self.create_relation(&new)?;
        if spec.partitioned {
            let row = self.catalog_insert(rows::partitioned_table(oid))?;
            self.change_relation(oid, |table| table.other_rows.push(row))?;
        }
        self.command_counter_increment()?;
        Ok(oid)
    }

    /// PARTITION OF: the bound, then the inheritance; the parent's relcache entry lists its partitions, so it must go.
    fn attach_to_parent(&mut self, child: Oid, parent: Oid) -> Result<()> {
        let class_row = self.relation(child)?.class_row;
        self.catalog_update(class_row, |_| ())?;
        self.command_counter_increment()?;
        let inherits = self.catalog_insert(rows::inherits(child, parent))?;
        self.invalidate_relcache(parent);
        let depend = self.depend((catalog::CLASS, child), (catalog::CLASS, parent))?;
        self.change_relation(child, |table| table.other_rows.extend([inherits, depend]))?;
        self.change_relation(parent, |table| table.partitions.push(child))?;
        self.command_counter_increment()
    }

    /// `AddRelationNewConstraints`: defaults, in one command.
    fn add_defaults(&mut self, table: Oid, spec: &TableSpec, sequences: &[(Oid, i16)]) -> Result<()> {
        for (attnum, _) in attnums(spec).filter(|(_, column)| column.default) {
            let default = self.new_oid()?;
            let mut made = vec![self.catalog_insert(rows::attrdef(default, table, attnum))?];
            let attribute = self.attribute_row(table, attnum)?;
            self.catalog_update(attribute, |_| ())?;
            made.push(self.depend((catalog::ATTRDEF, default), (catalog::CLASS, table))?);
            for (sequence, _) in sequences.iter().filter(|(_, owner)| *owner == attnum) {
                made.push(self.depend((catalog::ATTRDEF, default), (catalog::CLASS, *sequence))?);
            }
            self.change_relation(table, |relation| relation.other_rows.extend(made))?;
        }
        self.command_counter_increment()
    }

    /// NOT NULL constraints as objects of their own; the count of check constraints is then set anew, which always asks the
    /// relcache entry to go (`SetRelationNumChecks`).
    fn add_not_null_constraints(&mut self, table: Oid, spec: &TableSpec) -> Result<()> {
        if !self.cluster.catalog.traits.not_null_constraints || !spec.columns.iter().any(|column| column.not_null) {
            return Ok(());
        }
        for _ in spec.columns.iter().filter(|column| column.not_null) {
            let oid = self.new_oid()?;
            let row = self.catalog_insert(rows::constraint(oid, table, b'n'))?;
            let depend = self.depend((catalog::CONSTRAINT, oid), (catalog::CLASS, table))?;
            self.change_relation(table, |relation| relation.other_rows.extend([row, depend]))?;
        }
        self.invalidate_relcache(table);
        self.command_counter_increment()
    }

    /// `create_toast_table`: a table and its index, then the owner's pg_class row.
    fn create_toast_table(&mut self, owner: Oid) -> Result<()> {
        let toast = self.new_oid()?;
        let index = self.new_oid()?;
        let columns = TOAST_COLUMNS.map(Arc::from);
        let new = NewRelation {
            oid: toast,
            name: format!("pg_toast_{owner}").into(),
            namespace: PG_TOAST,
            kind: RelKind::Toast,
            columns: &columns,
            row_len: TOAST_ROW_LEN,
        };
        self.create_relation(&new)?;
        self.command_counter_increment()?;
        self.create_toast_index(
            index,
            toast,
            &format!("pg_toast_{owner}_index").into(),
            &[Arc::clone(&columns[0]), Arc::clone(&columns[1])],
        )?;
        let class_row = self.relation(owner)?.class_row;
        self.catalog_update(class_row, |_| ())?;
        let depend = self.depend((catalog::CLASS, toast), (catalog::CLASS, owner))?;
        self.change_relation(owner, |table| {
            table.toast = Some(toast);
            table.other_rows.push(depend);
        })?;
        self.command_counter_increment()
    }

    /// OWNED BY: the sequence goes when the column goes.
    fn own_sequence(&mut self, sequence: Oid, table: Oid) -> Result<()> {
        let depend = self.depend((catalog::CLASS, sequence), (catalog::CLASS, table))?;
        let row = self.relation(sequence)?.other_rows.iter().copied().find(|id| self.is_in(*id, catalog::SEQUENCE));
        if let Some(row) = row {
            self.catalog_update(row, |_| ())?;
        }
        self.change_relation(sequence, |relation| relation.other_rows.push(depend))?;
        self.command_counter_increment()
    }

    /// `heap_create_with_catalog`: the file, row types, pg_class, pg_attribute, the dependency on the schema.
    fn create_relation(&mut self, new: &NewRelation<'_>) -> Result<()> {
        let mut other_rows = Vec::new();
        let has_storage = new.kind != RelKind::Partitioned;
        self.log_access_exclusive_lock(new.oid)?;
        let filenode = if has_storage { new.oid.0 } else { 0 };
        if has_storage {
            self.create_storage(filenode)?;
        }
        if self.has_rowtype(new.kind) {
            let with_array = matches!(new.kind, RelKind::Table | RelKind::Partitioned);
            let array = if with_array { Some(self.new_oid()?) } else { None };
            let rowtype = self.new_oid()?;
            other_rows.push(self.catalog_insert(rows::r#type(rowtype, &new.name, new.namespace))?);
            other_rows.push(self.depend((catalog::TYPE, rowtype), (catalog::CLASS, new.oid))?);
            if let Some(array) = array {
                let name = format!("_{}", new.name).into();
                other_rows.push(self.catalog_insert(rows::r#type(array, &name, new.namespace))?);
                other_rows.push(self.depend((catalog::TYPE, array), (catalog::TYPE, rowtype))?);
            }
        }
        let class_row = self.catalog_insert(rows::class(new.oid, &new.name, new.namespace, filenode))?;
        let user = (1..).zip(new.columns).map(|(attnum, name)| rows::attribute(new.oid, name, attnum)).collect();
        let mut attribute_rows = self.catalog_multi_insert(user)?;
        let system = SYSTEM_COLUMNS.map(|(name, attnum)| rows::attribute(new.oid, &name.into(), attnum));
        attribute_rows.extend(self.catalog_multi_insert(system.into())?);
        // Schema pg_toast is pinned: nothing need say that it is depended on.
        if new.namespace == PUBLIC {
            other_rows.push(self.depend((catalog::CLASS, new.oid), (catalog::NAMESPACE, new.namespace))?);
        }
        let relation = Relation {
            oid: new.oid,
            name: Arc::clone(&new.name),
            namespace: new.namespace,
            kind: new.kind,
            filenode,
            toast: None,
            indexes: Vec::new(),
            partitions: Vec::new(),
            natts: new.columns.len() as u16,
            row_len: new.row_len,
            stats: self.stats_of_new_table(),
            grantees: Vec::new(),
            class_row,
            attribute_rows,
            other_rows,
        };
        self.put_relation(relation);
        Ok(())
    }

    /// Whether a new relation has a row type.
    fn has_rowtype(&self, kind: RelKind) -> bool {
        match kind {
            RelKind::Table | RelKind::Partitioned => true,
            RelKind::Toast | RelKind::Sequence => self.cluster.catalog.traits.rowtype_for_toast_and_sequence,
            RelKind::Index => false,
        }
    }

    /// Size of a table that was never counted.
    pub(super) fn stats_of_new_table(&self) -> RelStats {
        let tuples = if self.cluster.catalog.traits.unknown_tuple_count { None } else { Some(0) };
        RelStats { pages: 0, tuples, has_index: false }
    }

    /// `RelationCreateStorage`: a new file, which goes if the transaction aborts.
    pub(super) fn create_storage(&mut self, filenode: u32) -> Result<()> {
        let target = user_locator(filenode);
        self.log(&RecordBody::SmgrCreate { target, fork: 0 })?;
        self.xact.level().drop_at_abort.push(target);
        Ok(())
    }

    /// `recordDependencyOn`: one row of pg_depend.
    pub(super) fn depend(&mut self, object: (Oid, Oid), on: (Oid, Oid)) -> Result<TupleId> {
        let made = self.catalog_multi_insert(vec![rows::depend(object, on)])?;
        made.first().copied().ok_or_else(|| StatementError::Refused("a dependency was not stored".to_owned()))
    }

    /// The pg_attribute row of a user column.
    fn attribute_row(&self, table: Oid, attnum: i16) -> Result<TupleId> {
        let row =
            usize::try_from(attnum - 1).ok().and_then(|index| self.relation(table).ok()?.attribute_rows.get(index).copied());
        row.ok_or_else(|| StatementError::Refused(format!("relation {table} has no column {attnum}")))
    }

    /// Whether a stored row is of this catalog.
    fn is_in(&self, id: TupleId, catalog: Oid) -> bool {
        self.cluster.catalog.tuple(id).is_some_and(|stored| stored.tuple.catalog == catalog)
    }
}

/// Columns with their numbers.
fn attnums(spec: &TableSpec) -> impl Iterator<Item = (i16, &Column)> {
    (1..).zip(&spec.columns)
}
