//! Temporary relations (`catalog/namespace.c`: `AccessTempTableNamespace`, `InitTempTableNamespace`, `RemoveTempRelations`;
//! `commands/tablecmds.c`: `PreCommit_on_commit_actions`).
//!
//! A session's temporary relations are in two schemas of its backend's number, which the first backend of that number makes and
//! all later ones find. Their catalog rows are logged as any others, and so are their locks; what is in their files is not, nor
//! that there are files. They go when the session leaves, in one transaction.
//!
//! ON COMMIT DELETE ROWS is a TRUNCATE at the end of each transaction that looked at temporary relations, of all of the session's
//! tables that want it. Its locks, and messages about indexes that are built anew, are logged: such a transaction has an xid.
//!
//! A crash leaves their catalog rows behind: *orphans*, which nobody sees. They go with the next backend of that number, in the
//! transaction in which it first makes a temporary table of its own.
//!
//! Differences from PostgreSQL: temporary views are not modelled, nor that autovacuum drops orphans.

use std::cmp::Reverse;

use pg_types::{Oid, RecordBody, RelFileLocator, catalog};

use super::end::newest_first;
use super::{Backend, Cluster, Result, StatementError};
use crate::catalog::{ObjectAddress, OnCommit, PG_TOAST, RelKind, Relation, Undo};

/// A backend's temporary schema by its number.
fn temp_schema(number: u32) -> String {
    format!("pg_temp_{number}")
}

/// The schema of its temporary relations' TOAST tables.
fn toast_temp_schema(number: u32) -> String {
    format!("pg_toast_temp_{number}")
}

impl Cluster {
    /// A session's temporary schema, if the session uses it.
    fn temp_namespace(&self, session: usize) -> Option<Oid> {
        if self.catalog.uses_temp(session) { self.temp_namespace_of(self.backends.of(session)?) } else { None }
    }

    /// The temporary schema of a backend's number, if it has been made.
    fn temp_namespace_of(&self, number: u32) -> Option<Oid> {
        self.catalog.object_named(catalog::NAMESPACE, &temp_schema(number))
    }

    /// A relation by name as a session sees it: its own temporary ones hide others (`RangeVarGetRelid`).
    pub(crate) fn relation_seen(&self, session: usize, name: &str) -> Option<&Relation> {
        let own = if self.catalog.has_temp_relations() { self.temp_namespace(session) } else { None };
        own.and_then(|own| self.catalog.relation_in(own, name)).or_else(|| self.catalog.relation_named(name))
    }

    /// Whether a record would be about a temporary relation's file (`RelationNeedsWAL`).
    pub(super) fn is_about_temp_file(&self, body: &RecordBody) -> bool {
        use RecordBody as B;
        let target = match body {
            B::Insert(r) => &r.target,
            B::MultiInsert(r) => &r.target,
            B::Update(r) => &r.target,
            B::Delete(r) => &r.target,
            B::Confirm(r) => &r.target,
            B::Lock(r) | B::LockUpdated(r) => &r.target,
            B::Prune(r) | B::Visible(r) => &r.target,
            B::IndexInsert(r) => &r.target,
            B::SequenceLog(target) | B::SmgrCreate { target, .. } | B::SmgrTruncate { target, .. } => target,
            _ => return false,
        };
        self.catalog.is_temp_file(target.rel)
    }

    /// Files that go at the end of a transaction, as its record lists them: newest first, without temporary ones.
    pub(super) fn logged_newest_first(&self, files: &[RelFileLocator]) -> Vec<RelFileLocator> {
        let mut files = newest_first(files);
        files.retain(|file| !self.catalog.is_temp_file(file.rel));
        files
    }
}

impl Backend<'_> {
    /// `AccessTempTableNamespace`: the session's temporary schema. With its first use (`InitTempTableNamespace`) it is made if it
    /// is not there; if it is, what a crash left in it goes first.
    pub(crate) fn access_temp_namespace(&mut self) -> Result<Oid> {
        self.xact.used_temp = true;
        let session = self.xact.session;
        let unconnected = || StatementError::Refused("it is not connected, so it has no temporary tables".to_owned());
        let number = self.cluster.backends.of(session).ok_or_else(unconnected)?;
        if !self.cluster.catalog.uses_temp(session) {
            match self.cluster.temp_namespace_of(number) {
                Some(namespace) => self.delete_contents(ObjectAddress::new(catalog::NAMESPACE, namespace))?,
                None => {
                    self.create_schema(&temp_schema(number).into())?;
                    self.create_schema(&toast_temp_schema(number).into())?;
                }
            }
            self.cluster.catalog.note_temp_use(session);
            self.xact.level().undo.push(Undo::TempUse(session));
        }
        self.cluster.temp_namespace(session).ok_or_else(unconnected)
    }

    /// Whether a schema is one of the session's two temporary ones.
    pub(crate) fn is_temp_namespace(&self, namespace: Oid) -> bool {
        if namespace < Oid::FIRST_NORMAL {
            return false;
        }
        let Some(number) = self.cluster.backends.of(self.xact.session) else { return false };
        let named = |name: String| self.cluster.catalog.object_named(catalog::NAMESPACE, &name);
        named(temp_schema(number)) == Some(namespace) || named(toast_temp_schema(number)) == Some(namespace)
    }

    /// The schema of a table's TOAST table (`GetTempToastNamespace`).
    pub(crate) fn toast_namespace_of(&self, owner: Oid) -> Result<Oid> {
        if !self.relation(owner)?.temporary {
            return Ok(PG_TOAST);
        }
        let number = self.cluster.backends.of(self.xact.session).unwrap_or_default();
        let found = self.cluster.catalog.object_named(catalog::NAMESPACE, &toast_temp_schema(number));
        found.ok_or_else(|| StatementError::Refused("its temporary schema is not there".to_owned()))
    }

    /// Refuses what PostgreSQL does not let a temporary table take part in, or what is not modelled.
    pub(crate) fn refuse_temporary(&self, rel: Oid, what: &str) -> Result<()> {
        let relation = self.relation(rel)?;
        if relation.temporary {
            return Err(StatementError::Refused(format!("'{}' is temporary: {what}", relation.name)));
        }
        Ok(())
    }

    /// `PreCommit_on_commit_actions`: tables are emptied, then tables are dropped, newest first.
    pub(super) fn on_commit_actions(&mut self) -> Result<()> {
        if !self.xact.used_temp {
            return Ok(());
        }
        let Some(namespace) = self.cluster.temp_namespace(self.xact.session) else { return Ok(()) };
        let newest_first = |wanted: OnCommit| {
            let relations = self.cluster.catalog.relations_in(namespace);
            let mut found: Vec<Oid> = relations.filter(|known| known.on_commit == wanted).map(|known| known.oid).collect();
            found.sort_by_key(|oid| Reverse(*oid));
            found
        };
        let (emptied, going) = (newest_first(OnCommit::DeleteRows), newest_first(OnCommit::Drop));
        self.heap_truncate(&emptied)?;
        let objects: Vec<ObjectAddress> = going.into_iter().map(ObjectAddress::relation).collect();
        self.perform_cascading_deletions(&objects)
    }

    /// `RemoveTempRelations`: everything in the session's temporary schema goes, the schema stays. Gives how many tables went.
    pub(crate) fn remove_temp_relations(&mut self) -> Result<usize> {
        let Some(namespace) = self.cluster.temp_namespace(self.xact.session) else { return Ok(0) };
        self.cluster.catalog.forget_temp_use(self.xact.session);
        let relations = self.cluster.catalog.relations_in(namespace);
        let tables = relations.filter(|relation| relation.kind == RelKind::Table).count();
        self.delete_contents(ObjectAddress::new(catalog::NAMESPACE, namespace))?;
        Ok(tables)
    }
}
