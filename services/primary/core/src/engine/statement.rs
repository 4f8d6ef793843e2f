//! One planned statement on real tables: names become relations, relations are locked, the backend does the work.

use std::sync::Arc;

use pg_types::Oid;

use super::locks::LockMode;
use crate::backend::{Backend, Cluster, Result, StatementError};
use crate::catalog::{RelKind, Relation};
use crate::ddl::column::Column;
use crate::ddl::create_table::TableSpec;
use crate::ddl::object::ObjectStatement;
use crate::ddl::truncate::TruncateOptions;
use crate::rng::Rng;
use crate::scenario::{Blanks, FinishPrepared, StatementPlan, Target, Template, VacuumPlan};

/// A statement whose names are drawn.
#[derive(Clone, Debug)]
pub(super) struct Resolved {
    /// Relations that it works on.
    tables: Vec<Oid>,
    /// What its truth calls them.
    pub(super) name: String,
    /// The name of a new column, or of a new index if it is not made up.
    part: Option<Arc<str>>,
    /// A statement on objects with its names.
    pub(super) object: Option<Box<ObjectStatement<Arc<str>>>>,
    /// Locks that it needs before it runs.
    pub(super) locks: Vec<(Oid, LockMode)>,
}

impl Resolved {
    /// A statement that locks these.
    fn locking(locks: Vec<(Oid, LockMode)>) -> Resolved {
        Resolved { tables: Vec::new(), name: String::new(), part: None, object: None, locks }
    }
}

/// The server as one session sees it.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    /// The server.
    pub(super) cluster: &'a Cluster,
    /// The session, whose temporary relations nobody else sees.
    pub(super) session: usize,
}

impl<'a> Seen<'a> {
    /// A relation by name.
    fn relation(self, name: &str) -> Option<&'a Relation> {
        self.cluster.relation_seen(self.session, name)
    }

    /// A relation and its partitions, to be locked so that nobody else uses them.
    fn with_partitions(self, oid: Oid) -> Vec<(Oid, LockMode)> {
        std::iter::once(oid).chain(self.partitions_of(oid)).map(|rel| (rel, LockMode::Exclusive)).collect()
    }

    /// A relation's partitions.
    fn partitions_of(self, oid: Oid) -> Vec<Oid> {
        self.cluster.catalog.relation(oid).map_or(Vec::new(), |relation| relation.partitions.clone())
    }
}

/// Draws a statement's names and looks the relations up.
pub(super) fn resolve(plan: &StatementPlan, seen: Seen<'_>, blanks: Blanks, rng: &mut dyn Rng) -> Result<Resolved> {
    match plan {
        StatementPlan::Insert(target, _)
        | StatementPlan::Copy(target, _)
        | StatementPlan::Update(target, _)
        | StatementPlan::Delete(target, _) => rows_of(target, seen, blanks, rng),
        StatementPlan::Truncate(table) => {
            let (name, oid) = lookup(table, seen, blanks, rng)?;
            Ok(Resolved { tables: vec![oid], name, ..Resolved::locking(seen.with_partitions(oid)) })
        }
        StatementPlan::CreateIndex { table, name: index, .. } => {
            let (name, oid) = lookup(table, seen, blanks, rng)?;
            let part = index.as_ref().map(|index| index.fill(blanks, rng).into());
            Ok(Resolved { tables: vec![oid], name, part, ..Resolved::locking(seen.with_partitions(oid)) })
        }
        StatementPlan::AddColumn(table, _, column) => {
            let (name, oid) = lookup(table, seen, blanks, rng)?;
            let part = Some(column.fill(blanks, rng).into());
            Ok(Resolved { tables: vec![oid], name, part, ..Resolved::locking(seen.with_partitions(oid)) })
        }
        StatementPlan::Grant(table, _) => {
            let (name, oid) = lookup(table, seen, blanks, rng)?;
            Ok(Resolved { tables: vec![oid], name, ..Resolved::locking(vec![(oid, LockMode::Exclusive)]) })
        }
        StatementPlan::CreateTable { table, parent, .. } => {
            let parent = parent.as_ref().map(|parent| lookup(parent, seen, blanks, rng)).transpose()?;
            let tables: Vec<Oid> = parent.into_iter().map(|(_, oid)| oid).collect();
            let locks = tables.iter().map(|oid| (*oid, LockMode::Exclusive)).collect();
            Ok(Resolved { tables, name: table.fill(blanks, rng), ..Resolved::locking(locks) })
        }
        StatementPlan::Object(statement) => object(statement, seen, blanks, rng),
        StatementPlan::Savepoint(name)
        | StatementPlan::Release(name)
        | StatementPlan::RollbackTo(name)
        | StatementPlan::Message(name, ..) => Ok(Resolved { name: name.clone(), ..Resolved::locking(Vec::new()) }),
        StatementPlan::InsertOnConflict(table, ..)
        | StatementPlan::InsertLong(table, ..)
        | StatementPlan::UpdateLong(table, ..)
        | StatementPlan::LockRows(table, ..)
        | StatementPlan::Nextval(table, _)
        | StatementPlan::Analyze(table)
        | StatementPlan::Vacuum(VacuumPlan { table, .. }) => {
            let (name, oid) = lookup(table, seen, blanks, rng)?;
            Ok(Resolved { tables: vec![oid], name, ..Resolved::locking(vec![(oid, LockMode::Shared)]) })
        }
        StatementPlan::Prepare(gid) | StatementPlan::FinishPrepared(FinishPrepared { gid, .. }) => {
            Ok(Resolved { name: gid.fill(blanks, rng), ..Resolved::locking(Vec::new()) })
        }
        StatementPlan::Wait(_)
        | StatementPlan::Repeat { .. }
        | StatementPlan::Commit
        | StatementPlan::Rollback
        | StatementPlan::Checkpoint
        | StatementPlan::LogStandbySnapshot
        | StatementPlan::SwitchWal => Ok(Resolved::locking(Vec::new())),
    }
}

/// A statement on objects: the relations that it names are locked with their partitions.
fn object(plan: &ObjectStatement<Template>, seen: Seen<'_>, blanks: Blanks, rng: &mut dyn Rng) -> Result<Resolved> {
    let statement: ObjectStatement<Arc<str>> =
        plan.try_map(&mut |name| Ok::<_, StatementError>(Arc::from(name.fill(blanks, rng))))?;
    let mut locks = Vec::new();
    for name in statement.locked() {
        let Some(relation) = seen.relation(name) else {
            return Err(StatementError::Refused(format!("there is no relation named '{name}'")));
        };
        let table = relation.index.as_ref().map(|index| index.table);
        locks.extend(std::iter::once(relation.oid).chain(relation.partitions.iter().copied()).chain(table));
    }
    let mode = if statement.is_concurrent() { LockMode::ShareUpdateExclusive } else { LockMode::Exclusive };
    let locks = locks.into_iter().map(|rel| (rel, mode)).collect();
    Ok(Resolved { object: Some(Box::new(statement)), ..Resolved::locking(locks) })
}

/// Tables whose rows a statement changes.
fn rows_of(target: &Target, seen: Seen<'_>, blanks: Blanks, rng: &mut dyn Rng) -> Result<Resolved> {
    let (name, tables) = match target {
        Target::Table(table) => {
            let (name, oid) = lookup(table, seen, blanks, rng)?;
            (name, vec![oid])
        }
        Target::PartitionsOf(parent) => {
            let (name, oid) = lookup(parent, seen, blanks, rng)?;
            let partitions = seen.partitions_of(oid);
            (format!("each of {} partitions of {name}", partitions.len()), partitions)
        }
    };
    let locks = tables.iter().map(|oid| (*oid, LockMode::Shared)).collect();
    Ok(Resolved { tables, name, ..Resolved::locking(locks) })
}

/// A relation by a drawn name.
fn lookup(table: &Template, seen: Seen<'_>, blanks: Blanks, rng: &mut dyn Rng) -> Result<(String, Oid)> {
    let name = table.fill(blanks, rng);
    let found = seen.relation(&name).map(|relation| relation.oid);
    found.map(|oid| (name.clone(), oid)).ok_or_else(|| StatementError::Refused(format!("there is no relation named '{name}'")))
}

impl Backend<'_> {
    /// Runs a statement whose locks are held. The oid of a relation that it made comes back, which is to be locked.
    pub(super) fn run(&mut self, plan: &StatementPlan, at: &Resolved, rng: &mut dyn Rng) -> Result<Option<Oid>> {
        let is_temporary = |oid: &Oid| self.cluster.catalog.relation(*oid).is_some_and(|relation| relation.temporary);
        self.xact.used_temp |= at.tables.iter().any(is_temporary);
        let mut made = None;
        let did = match plan {
            StatementPlan::Insert(..) | StatementPlan::Copy(..) | StatementPlan::Update(..) | StatementPlan::Delete(..) => {
                self.change_rows(plan, at, rng)?
            }
            StatementPlan::Truncate(_) => self.run_truncate(at)?,
            StatementPlan::CreateTable { columns, partitioned, temporary, .. } => {
                let spec = TableSpec {
                    name: at.name.as_str().into(),
                    columns: columns.clone(),
                    parent: at.tables.first().copied(),
                    partitioned: *partitioned,
                    row_len: None,
                    temporary: *temporary,
                };
                made = Some(self.create_table(&spec)?);
                format!("CREATE TABLE {}", at.name)
            }
            StatementPlan::CreateIndex { columns, unique, .. } => {
                let made_up = || format!("{}_{}_idx", at.name, columns.join("_")).into();
                let name: Arc<str> = at.part.clone().unwrap_or_else(made_up);
                made = Some(self.create_index(only(at)?, &name, columns, *unique)?);
                format!("CREATE INDEX {name}")
            }
            StatementPlan::Object(_) => {
                let refused = || StatementError::Refused("its names were not drawn".to_owned());
                let (did, relation) = self.run_object(at.object.as_ref().ok_or_else(refused)?)?;
                made = relation;
                did
            }
            StatementPlan::AddColumn(_, column, _) => {
                let name = at.part.clone().unwrap_or_else(|| Arc::clone(&column.name));
                let column = Column { name, ..column.clone() };
                self.add_column(only(at)?, &column)?;
                format!("ALTER TABLE {} ADD COLUMN {}", at.name, column.name)
            }
            StatementPlan::Grant(_, role) => {
                self.grant(only(at)?, &role.as_str().into())?;
                format!("GRANT on {} to {role}", at.name)
            }
            StatementPlan::Savepoint(name) => {
                self.xact.push_savepoint(name);
                format!("SAVEPOINT {name}")
            }
            StatementPlan::Release(name) => {
                self.release_savepoint(name)?;
                format!("RELEASE SAVEPOINT {name}")
            }
            StatementPlan::RollbackTo(name) => {
                self.rollback_to_savepoint(name)?;
                format!("ROLLBACK TO SAVEPOINT {name}")
            }
            StatementPlan::InsertOnConflict(..)
            | StatementPlan::InsertLong(..)
            | StatementPlan::UpdateLong(..)
            | StatementPlan::LockRows(..)
            | StatementPlan::Nextval(..)
            | StatementPlan::Analyze(_)
            | StatementPlan::Message(..) => self.run_on_rows(plan, at, rng)?,
            // The session does these itself.
            StatementPlan::Wait(_)
            | StatementPlan::Repeat { .. }
            | StatementPlan::Commit
            | StatementPlan::Rollback
            | StatementPlan::Prepare(_)
            | StatementPlan::FinishPrepared(_)
            | StatementPlan::Vacuum(_)
            | StatementPlan::Checkpoint
            | StatementPlan::LogStandbySnapshot
            | StatementPlan::SwitchWal => return Ok(None),
        };
        self.command_counter_increment()?;
        self.xact.did.push(did);
        Ok(made)
    }

    /// INSERT, COPY, UPDATE, DELETE in one table or in all partitions of one.
    fn change_rows(&mut self, plan: &StatementPlan, at: &Resolved, rng: &mut dyn Rng) -> Result<String> {
        let mut done = 0;
        for table in &at.tables {
            match plan {
                StatementPlan::Insert(_, rows) => self.insert_rows(*table, *rows)?,
                StatementPlan::Copy(_, rows) => self.copy_rows(*table, *rows)?,
                StatementPlan::Update(_, rows) => done += self.update_rows(*table, *rows, rng)?,
                StatementPlan::Delete(_, rows) => done += self.delete_rows(*table, *rows, rng)?,
                _ => {}
            }
        }
        let (rows, preposition) = match plan {
            StatementPlan::Insert(_, rows) | StatementPlan::Copy(_, rows) => (*rows, "into"),
            StatementPlan::Delete(..) => (done, "from"),
            _ => (done, "in"),
        };
        Ok(format!("{} of {} {preposition} {}", plan.name(), counted(rows, "row"), at.name))
    }

    /// TRUNCATE of a plain table or of a parent with its partitions.
    fn run_truncate(&mut self, at: &Resolved) -> Result<String> {
        let table = only(at)?;
        let partitioned = self.relation(table)?.kind == RelKind::Partitioned;
        let emptied = counted(self.truncate(&[table], TruncateOptions::default())? as u64, "partition");
        Ok(if partitioned { format!("TRUNCATE of {emptied} of {}", at.name) } else { format!("TRUNCATE of {}", at.name) })
    }
}

/// The one relation of a statement that has one.
pub(super) fn only(at: &Resolved) -> Result<Oid> {
    at.tables.first().copied().ok_or_else(|| StatementError::Refused("it names no relation".to_owned()))
}

/// A number with its noun.
pub(super) fn counted(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}
