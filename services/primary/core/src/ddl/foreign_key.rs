//! Foreign keys (`commands/tablecmds.c`: `ATAddForeignKeyConstraint`, `addFkRecurseReferenced`, `addFkRecurseReferencing`,
//! `CloneFkReferencing`).
//!
//! ```text
//!  constraint ─► on the other table: two triggers, in each of its partitions a constraint and two triggers
//!             └► on the table: two triggers, in each of its partitions a constraint and two triggers
//! ```
//!
//! Partitioned tables have triggers of their own from 15 on. Nobody is locked out of reading.

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::rows;
use crate::backend::{Backend, Result};
use crate::catalog::{DependencyType, ObjectAddress, RelKind};

/// One foreign key: from a column to another table's primary key.
struct ForeignKey<'a> {
    /// Its name.
    name: &'a Arc<str>,
    /// The table.
    table: Oid,
    /// Its column.
    attnum: i16,
    /// The other table.
    references: Oid,
}

impl Backend<'_> {
    /// ADD FOREIGN KEY.
    pub(crate) fn add_foreign_key(&mut self, table: Oid, name: &Arc<str>, column: &str, references: Oid) -> Result<()> {
        self.refuse_temporary(table, "foreign keys of temporary tables are not modelled")?;
        self.refuse_temporary(references, "a permanent table cannot refer to it")?;
        self.check_new_constraint(table, name)?;
        let key = ForeignKey { name, table, attnum: self.attnum(table, column)?, references };
        let constraint = self.store_foreign_key(&key)?;
        self.keep_constraint(table, constraint, name, b'f', key.attnum)?;
        self.command_counter_increment()?;
        self.recurse_referenced(&key, constraint)?;
        self.recurse_referencing(&key, constraint)
    }

    /// `addFkConstraint`: the constraint.
    fn store_foreign_key(&mut self, key: &ForeignKey<'_>) -> Result<Oid> {
        let (index, attnum) = self.primary_key_of(key.references)?;
        let oid = self.new_oid()?;
        self.catalog_insert(rows::constraint(oid, key.table, b'f'))?;
        let constraint = ObjectAddress::new(catalog::CONSTRAINT, oid);
        self.depend(constraint, ObjectAddress::column(key.table, key.attnum), DependencyType::Auto)?;
        let on = [ObjectAddress::column(key.references, attnum), ObjectAddress::relation(index)];
        self.depend_all(&on.map(|on| (constraint, on, DependencyType::Normal)))?;
        Ok(oid)
    }

    /// `addFkRecurseReferenced`: RI_FKey_noaction_del, …_upd on the other table, then what its partitions need.
    fn recurse_referenced(&mut self, key: &ForeignKey<'_>, constraint: Oid) -> Result<()> {
        let on = [(ObjectAddress::new(catalog::CONSTRAINT, constraint), DependencyType::Internal)];
        if self.has_foreign_key_triggers(key.references)? {
            self.insert_trigger(key.references, &on)?;
            self.command_counter_increment()?;
            self.insert_trigger(key.references, &on)?;
        }
        for partition in self.relation(key.references)?.partitions.clone() {
            let part = ForeignKey { references: partition, ..*key };
            let oid = self.store_foreign_key(&part)?;
            let (of, parent) = (|oid| ObjectAddress::new(catalog::CONSTRAINT, oid), constraint);
            self.depend(of(oid), of(parent), DependencyType::Internal)?;
            self.command_counter_increment()?;
            self.recurse_referenced(&part, oid)?;
        }
        Ok(())
    }

    /// `addFkRecurseReferencing`: RI_FKey_check_ins, …_upd on the table, then its partitions' constraints.
    fn recurse_referencing(&mut self, key: &ForeignKey<'_>, constraint: Oid) -> Result<()> {
        let on = [(ObjectAddress::new(catalog::CONSTRAINT, constraint), DependencyType::Internal)];
        if self.has_foreign_key_triggers(key.table)? {
            for _ in 0..2 {
                self.insert_trigger(key.table, &on)?;
                self.command_counter_increment()?;
            }
        }
        for partition in self.relation(key.table)?.partitions.clone() {
            self.add_partition_foreign_key(key, constraint, partition)?;
        }
        Ok(())
    }

    /// A partition's part of a foreign key.
    fn add_partition_foreign_key(&mut self, key: &ForeignKey<'_>, parent: Oid, partition: Oid) -> Result<()> {
        let part = ForeignKey { table: partition, attnum: self.attnum_as_in(partition, key.table, key.attnum)?, ..*key };
        let oid = self.store_foreign_key(&part)?;
        let of = |oid| ObjectAddress::new(catalog::CONSTRAINT, oid);
        self.depend_as_partition(of(oid), of(parent), partition)?;
        self.keep_constraint(partition, oid, key.name, b'f', part.attnum)?;
        self.command_counter_increment()?;
        self.recurse_referencing(&part, oid)
    }

    /// A new partition gets its part of each foreign key of its parent (`CloneForeignKeyConstraints`).
    pub(super) fn clone_foreign_keys(&mut self, parent: Oid, partition: Oid) -> Result<()> {
        for known in self.relation(parent)?.constraints.clone().into_iter().filter(|known| known.kind == b'f') {
            let on = self.cluster.catalog.dependencies_of(ObjectAddress::new(catalog::CONSTRAINT, known.oid));
            let other = on.iter().find(|(_, row)| row.kind == DependencyType::Normal && row.on.sub != 0);
            if let Some((_, row)) = other {
                let key = ForeignKey { name: &known.name, table: parent, attnum: known.attnum, references: row.on.object };
                self.add_partition_foreign_key(&key, known.oid, partition)?;
            }
        }
        Ok(())
    }

    /// Whether a table has triggers for its foreign keys.
    fn has_foreign_key_triggers(&self, table: Oid) -> Result<bool> {
        let of_parents = self.cluster.catalog.traits.foreign_key_triggers_of_parents;
        Ok(of_parents || self.relation(table)?.kind != RelKind::Partitioned)
    }
}
