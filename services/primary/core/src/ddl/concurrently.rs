//! CREATE INDEX, DROP INDEX and REINDEX with CONCURRENTLY (`commands/indexcmds.c`: `DefineIndex`, `ReindexRelationConcurrently`;
//! `catalog/index.c`: `index_concurrently_create_copy`, `index_concurrently_build`, `index_concurrently_swap`,
//! `index_concurrently_set_dead`, `index_set_state_flags`, `index_drop`).
//!
//! Each is several transactions. The first one is begun by the statement; it says what is left, one [`Stage`] a transaction.
//! The session runs those, and waits before them for whoever uses the table.

use std::collections::VecDeque;
use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::create_index::{NewIndex, Purpose};
use super::dependency::DropBehavior;
use super::object::ObjectStatement;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{CatalogTuple, Datum, Dependency, IndexInfo, ObjectAddress, RelKind, RelStats, is_system};

/// A later transaction of a statement that is several.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// A new index is filled and is kept up to date from now on (`indisready`).
    Build {
        /// The index.
        index: Oid,
        /// It is the first that is filled: before that, whoever does not know of it must be gone.
        first: bool,
    },
    /// Queries may use it (`indisvalid`).
    SetValid(Oid),
    /// New indexes take the places of old ones: (old, new).
    Swap(Vec<(Oid, Oid)>),
    /// Nobody keeps these up to date any more (`indislive`).
    SetDead(Vec<Oid>),
    /// They go.
    Drop(Vec<Oid>),
}

impl Stage {
    /// Whether it begins when everybody is gone who used the table (`WaitForLockers`).
    pub(crate) fn waits(&self) -> bool {
        !matches!(self, Stage::Build { first: false, .. })
    }
}

/// What the first transaction did, in words, and what is left.
pub(crate) type Begun = (String, VecDeque<Stage>);

impl Backend<'_> {
    /// The first transaction of such a statement.
    pub(crate) fn begin_concurrently(&mut self, statement: &ObjectStatement<Arc<str>>) -> Result<Begun> {
        use ObjectStatement as S;
        match statement {
            S::CreateIndexConcurrently { table, name, columns, unique } => {
                let table = self.named(table)?;
                let stages = self.create_index_concurrently(table, name, columns, *unique)?;
                Ok((format!("CREATE INDEX CONCURRENTLY {name}"), stages))
            }
            S::DropIndexConcurrently { index } => {
                let stages = self.drop_index_concurrently(self.named(index)?)?;
                Ok((format!("DROP INDEX CONCURRENTLY {index}"), stages))
            }
            S::ReindexConcurrently { name } => {
                let stages = self.reindex_concurrently(self.named(name)?)?;
                Ok((format!("REINDEX CONCURRENTLY {name}"), stages))
            }
            other => Err(StatementError::Refused(format!("{} cannot be run here", other.name()))),
        }
    }

    /// A later transaction. Gives what it did, in words.
    pub(crate) fn run_stage(&mut self, stage: &Stage) -> Result<String> {
        match stage {
            Stage::Build { index, .. } => {
                let table = self.table_of(*index)?;
                self.index_build(table, *index)?;
                self.set_state_flags(*index, |info| info.unready = false)?;
                Ok("the new index is filled".to_owned())
            }
            Stage::SetValid(index) => {
                self.set_state_flags(*index, |_| ())?;
                self.invalidate_relcache(self.table_of(*index)?);
                self.command_counter_increment()?;
                Ok("the new index is valid".to_owned())
            }
            Stage::Swap(pairs) => {
                pairs.iter().try_for_each(|(old, new)| self.index_concurrently_swap(*old, *new))?;
                Ok("the new indexes take the places of the old ones".to_owned())
            }
            Stage::SetDead(indexes) => {
                for index in indexes {
                    self.set_state_flags(*index, |info| info.unready = true)?;
                    self.invalidate_relcache(self.table_of(*index)?);
                }
                self.command_counter_increment()?;
                Ok("the old indexes are dead".to_owned())
            }
            Stage::Drop(indexes) => {
                let objects: Vec<_> = indexes.iter().map(|index| ObjectAddress::relation(*index)).collect();
                self.perform_multiple_deletions(&objects, DropBehavior::Restrict)?;
                Ok("the old indexes are dropped".to_owned())
            }
        }
    }

    /// CREATE INDEX CONCURRENTLY: the index is there, but nobody uses it.
    fn create_index_concurrently(
        &mut self,
        table: Oid,
        name: &Arc<str>,
        columns: &[String],
        unique: bool,
    ) -> Result<VecDeque<Stage>> {
        self.check_concurrent(table)?;
        self.check_new_name(self.relation(table)?.namespace, name)?;
        let key = columns.iter().map(|column| self.attnum(table, column)).collect::<Result<Vec<_>>>()?;
        let info = IndexInfo { table, key, unique, unready: true, ..IndexInfo::default() };
        let index = self.create_unready_index(Arc::clone(name), info, Purpose::Plain)?;
        Ok([Stage::Build { index, first: true }, Stage::SetValid(index)].into())
    }

    /// DROP INDEX CONCURRENTLY: no new query uses it (`INDEX_DROP_CLEAR_VALID`).
    fn drop_index_concurrently(&mut self, index: Oid) -> Result<VecDeque<Stage>> {
        self.check_kind(index, RelKind::Index, "plain index")?;
        let table = self.table_of(index)?;
        self.check_concurrent(table)?;
        self.check_not_owned(ObjectAddress::relation(index))?;
        self.set_state_flags(index, |_| ())?;
        self.invalidate_relcache(table);
        self.command_counter_increment()?;
        Ok([Stage::SetDead(vec![index]), Stage::Drop(vec![index])].into())
    }

    /// REINDEX CONCURRENTLY of an index, or of all of a table and its TOAST table: each gets a copy without contents.
    fn reindex_concurrently(&mut self, rel: Oid) -> Result<VecDeque<Stage>> {
        let relation = self.relation(rel)?;
        let old = match &relation.index {
            Some(_) => vec![rel],
            None => {
                let toast = relation.toast.map(|toast| self.relation(toast)).transpose()?;
                relation.indexes.iter().chain(toast.iter().flat_map(|toast| &toast.indexes)).copied().collect()
            }
        };
        self.check_concurrent(self.table_of(rel).unwrap_or(rel))?;
        let mut pairs = Vec::new();
        for index in &old {
            if !self.cluster.catalog.dependents_on(ObjectAddress::relation(*index)).is_empty() {
                let name = &self.relation(*index)?.name;
                return Err(StatementError::Refused(format!(
                    "foreign keys refer to '{name}': reindex it without 'concurrently'"
                )));
            }
            pairs.push((*index, self.create_index_copy(*index)?));
        }
        let builds = pairs.iter().enumerate().map(|(n, (_, index))| Stage::Build { index: *index, first: n == 0 });
        let rest = [Stage::Swap(pairs.clone()), Stage::SetDead(old.clone()), Stage::Drop(old)];
        Ok(if pairs.is_empty() { VecDeque::new() } else { builds.chain(rest).collect() })
    }

    /// `index_concurrently_create_copy`.
    fn create_index_copy(&mut self, old: Oid) -> Result<Oid> {
        let name = self.choose_relation_name(old, "ccnew")?;
        let info = IndexInfo { unready: true, ..self.index_info(old)?.clone() };
        // Whatever the old one is for, the new one depends on the columns: the swap gives it the old one's dependencies.
        self.create_unready_index(name, info, Purpose::Plain)
    }

    /// `index_create` without the build. The table has an index now, whoever looks.
    fn create_unready_index(&mut self, name: Arc<str>, info: IndexInfo, purpose: Purpose) -> Result<Oid> {
        let table = info.table;
        let (index, _) = self.store_index(&NewIndex { name, info, purpose, parent: None, build: false })?;
        let known = self.relation(table)?.stats;
        self.index_update_stats(table, RelStats { has_index: true, ..known })?;
        self.command_counter_increment()?;
        Ok(index)
    }

    /// `index_set_state_flags`.
    fn set_state_flags(&mut self, index: Oid, change: impl FnOnce(&mut IndexInfo)) -> Result<()> {
        let row = self.row_of(catalog::INDEX, index)?;
        self.catalog_update(row, |_| ())?;
        self.change_relation(index, |relation| {
            if let Some(info) = &mut relation.index {
                change(info);
            }
        })
    }

    /// `index_concurrently_swap`: names, flags, the constraint, comments and dependencies, in one command.
    fn index_concurrently_swap(&mut self, old: Oid, new: Oid) -> Result<()> {
        let (name, old_name) = (Arc::clone(&self.relation(old)?.name), self.choose_relation_name(old, "ccold")?);
        for (index, name) in [(old, old_name), (new, name)] {
            let class_row = self.relation(index)?.class_row;
            self.catalog_update(class_row, |tuple| tuple.set("relname", Datum::Name(Arc::clone(&name))))?;
            self.change_relation(index, |index| index.name = name)?;
        }
        self.set_state_flags(old, |info| {
            *info = IndexInfo { table: info.table, key: std::mem::take(&mut info.key), ..IndexInfo::default() };
        })?;
        self.set_state_flags(new, |_| ())?;
        if let Some(constraint) = self.constraint_of_index(old) {
            let row = self.row_of(catalog::CONSTRAINT, constraint)?;
            self.catalog_update(row, |_| ())?;
        }
        for comment in self.cluster.catalog.rows_of(catalog::DESCRIPTION, old) {
            self.catalog_update(comment, |row| row.set("objoid", Datum::Oid(new)))?;
        }
        self.swap_dependencies(old, new)?;
        self.invalidate_relcache(self.table_of(old)?);
        self.command_counter_increment()
    }

    /// `changeDependenciesOf` both ways: neither sees what the other did.
    fn swap_dependencies(&mut self, old: Oid, new: Oid) -> Result<()> {
        let rows_of = |backend: &Self, index| backend.cluster.catalog.dependencies_of(ObjectAddress::relation(index));
        let (of_new, of_old) = (rows_of(self, new), rows_of(self, old));
        for (rows, to) in [(of_new, old), (of_old, new)] {
            for (id, row) in rows {
                let object = ObjectAddress { object: to, ..row.object };
                self.catalog_update(id, |tuple| *tuple = CatalogTuple::depend(Dependency { object, ..row }))?;
            }
        }
        Ok(())
    }

    /// `ChooseRelationName`: a name with an ending, and a number if that is taken.
    fn choose_relation_name(&self, rel: Oid, ending: &str) -> Result<Arc<str>> {
        let relation = self.relation(rel)?;
        let numbered = (0u64..).map(|n| if n == 0 { String::new() } else { n.to_string() });
        let mut names = numbered.map(|n| Arc::from(format!("{}_{ending}{n}", relation.name)));
        let free = names.find(|name| self.check_new_name(relation.namespace, name).is_ok());
        free.ok_or_else(|| StatementError::Refused(format!("all names like '{}_{ending}' are taken", relation.name)))
    }

    /// What such a statement can work on: a table with storage that all sessions see and that no catalog is.
    fn check_concurrent(&self, table: Oid) -> Result<()> {
        let relation = self.relation(table)?;
        let why = match relation.kind {
            _ if relation.temporary => "is temporary",
            _ if is_system(table) => "is a catalog",
            RelKind::Partitioned => "is partitioned",
            RelKind::Table | RelKind::MaterializedView => return Ok(()),
            _ => "is no table",
        };
        Err(StatementError::Refused(format!("'{}' {why}: leave 'concurrently' out", relation.name)))
    }

    /// What an index is over.
    fn index_info(&self, index: Oid) -> Result<&IndexInfo> {
        let relation = self.relation(index)?;
        relation.index.as_ref().ok_or_else(|| StatementError::Refused(format!("'{}' is no index", relation.name)))
    }

    /// An index's table.
    fn table_of(&self, index: Oid) -> Result<Oid> {
        self.index_info(index).map(|info| info.table)
    }
}
