//! The relations as csv (`pg_class`), which decoders are given to know names by ([`Catalog::pg_class_csv`]).

use std::fmt::Write as _;
use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::{Catalog, PG_TOAST, RelKind, Relation, ReplicaIdentity};

/// The columns, of `SELECT relname, oid, relfilenode, …`.
const HEADER: &str = "relname,oid,relfilenode,reltablespace,nsp,relkind,relpersistence,relisshared,relreplident,reltoastrelid,\
                      filenode_effective\n";

/// What a row says of a relation.
#[derive(Clone, Debug)]
pub(super) struct ClassRow {
    /// Its name.
    name: Arc<str>,
    /// Its oid.
    oid: Oid,
    /// Its file, 0 if it has none.
    filenode: u32,
    /// Its schema's name.
    schema: &'static str,
    /// What it is.
    kind: RelKind,
    /// It is a session's own.
    temporary: bool,
    /// Its replica identity.
    identity: ReplicaIdentity,
    /// Its TOAST table.
    toast: Option<Oid>,
}

impl From<&Relation> for ClassRow {
    fn from(relation: &Relation) -> Self {
        let schema = match (relation.kind, relation.temporary) {
            (RelKind::Toast, true) => "pg_toast_temp",
            (_, true) => "pg_temp",
            _ if relation.namespace == PG_TOAST => "pg_toast",
            _ => "public",
        };
        Self {
            name: Arc::clone(&relation.name),
            oid: relation.oid,
            filenode: relation.filenode,
            schema,
            kind: relation.kind,
            temporary: relation.temporary,
            identity: if relation.kind.is_table() { relation.replica_identity } else { ReplicaIdentity::Nothing },
            toast: relation.toast,
        }
    }
}

impl ClassRow {
    /// A line of the csv.
    fn write(&self, csv: &mut String) {
        let ClassRow { oid, filenode, schema, .. } = self;
        let (tablespace, shared) = if catalog::is_shared(*oid) { (1664, 't') } else { (0, 'f') };
        let (kind, persistence) = (self.kind.letter(), if self.temporary { 't' } else { 'p' });
        let (identity, toast) = (self.identity.letter(), self.toast.map_or(0, |oid| oid.0));
        let effective = if *filenode == 0 { String::new() } else { filenode.to_string() };
        let name = quoted(&self.name);
        // Writing to a string cannot fail.
        let _ = writeln!(
            csv,
            "{name},{oid},{filenode},{tablespace},{schema},{kind},{persistence},{shared},{identity},{toast},{effective}"
        );
    }
}

impl Catalog {
    /// All relations as csv: system catalogs first, then everything the scenario made.
    #[must_use]
    pub fn pg_class_csv(&self) -> String {
        let mut csv = String::from(HEADER);
        for (name, oid) in catalog::NAMES {
            let row = ClassRow {
                name: name.into(),
                oid,
                filenode: self.file_of(oid),
                schema: "pg_catalog",
                kind: RelKind::Table,
                temporary: false,
                identity: ReplicaIdentity::Nothing,
                toast: None,
            };
            row.write(&mut csv);
        }
        self.relations().for_each(|relation| ClassRow::from(relation).write(&mut csv));
        csv
    }

    /// The same, and behind it a row for each file that was a relation's before, so that every file that rows were ever written to has a
    /// name: that of the relation which had it at a commit, not of the heap that a rewrite filled (`relrewrite`).
    #[must_use]
    pub fn pg_class_history_csv(&self) -> String {
        let mut csv = self.pg_class_csv();
        let has_it_now = |row: &ClassRow| self.relation(row.oid).is_some_and(|relation| relation.filenode == row.filenode);
        self.former_files.values().filter(|row| !has_it_now(row)).for_each(|row| row.write(&mut csv));
        csv
    }

    /// A relation gets another file, or goes.
    pub(super) fn note_former_file(&mut self, before: &Relation, now: Option<u32>) {
        // Where a catalog was before, no decoder can know: its map is not historic.
        if before.filenode >= Oid::FIRST_NORMAL.0
            && before.oid >= Oid::FIRST_NORMAL
            && !before.transient
            && now != Some(before.filenode)
        {
            self.former_files.insert(before.filenode, ClassRow::from(before));
        }
    }
}

/// A csv field, quoted if it must be.
pub(super) fn quoted(field: &str) -> String {
    if field.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field.to_owned() }
}
