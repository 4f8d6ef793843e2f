//! Sequences (`commands/sequence.c`: `DefineSequence`, `AlterSequence`, `process_owned_by`).

use std::sync::Arc;

use pg_types::{Oid, RecordBody, catalog};

use super::heap::{NewRelation, plain_attribute};
use super::rows;
use crate::backend::{Backend, Result};
use crate::catalog::{DependencyType, ObjectAddress, RelKind, user_locator};

/// Columns of a sequence.
const SEQUENCE_COLUMNS: [&str; 3] = ["last_value", "log_cnt", "is_called"];
/// Bytes of its row in a record.
const SEQUENCE_ROW_LEN: u32 = 30;

impl Backend<'_> {
    /// CREATE SEQUENCE in a schema. Gives its oid.
    pub(crate) fn create_sequence(&mut self, namespace: Oid, name: &Arc<str>) -> Result<Oid> {
        self.check_new_name(namespace, name)?;
        let oid = self.new_oid()?;
        let columns = SEQUENCE_COLUMNS.map(plain_attribute);
        let name = Arc::clone(name);
        let kind = RelKind::Sequence;
        self.create_relation(&NewRelation { oid, name, namespace, kind, columns: &columns, row_len: SEQUENCE_ROW_LEN })?;
        self.command_counter_increment()?;
        self.catalog_insert(rows::sequence(oid))?;
        self.command_counter_increment()?;
        Ok(oid)
    }

    /// OWNED BY: a sequence goes with its column.
    pub(super) fn own_sequence(&mut self, sequence: Oid, table: Oid, attnum: i16) -> Result<()> {
        self.depend(ObjectAddress::relation(sequence), ObjectAddress::column(table, attnum), DependencyType::Auto)?;
        let row = self.row_of(catalog::SEQUENCE, sequence)?;
        self.catalog_update(row, |_| ())?;
        self.command_counter_increment()
    }

    /// ALTER SEQUENCE OWNED BY another column, or by none.
    pub(crate) fn change_sequence_owner(&mut self, sequence: Oid, owner: Option<(Oid, i16)>) -> Result<()> {
        self.check_kind(sequence, RelKind::Sequence, "sequence")?;
        for (id, row) in self.cluster.catalog.dependencies_of(ObjectAddress::relation(sequence)) {
            if row.kind == DependencyType::Auto && row.on.class == catalog::CLASS {
                self.catalog_delete(id)?;
            }
        }
        match owner {
            Some((table, attnum)) => self.own_sequence(sequence, table, attnum),
            None => {
                let row = self.row_of(catalog::SEQUENCE, sequence)?;
                self.catalog_update(row, |_| ())?;
                self.command_counter_increment()
            }
        }
    }

    /// `setval`: the value is logged, and the next `nextval` logs again.
    pub(crate) fn setval(&mut self, sequence: Oid) -> Result<()> {
        self.check_kind(sequence, RelKind::Sequence, "sequence")?;
        let relation = self.relation(sequence)?;
        let (target, temporary) = (user_locator(relation.filenode), relation.temporary);
        self.cluster.sequence_values.remove(&sequence);
        if temporary { Ok(()) } else { self.log(&RecordBody::SequenceLog(target)).map(drop) }
    }

    /// ALTER SEQUENCE: it is written anew into a file of its own.
    pub(crate) fn alter_sequence(&mut self, sequence: Oid) -> Result<()> {
        // The new file's record has an xid already (`AlterSequence`).
        self.xid()?;
        self.set_new_relfilenumber(sequence)?;
        let row = self.row_of(catalog::SEQUENCE, sequence)?;
        self.catalog_update(row, |_| ())?;
        self.command_counter_increment()
    }
}
