//! The catalog model: rows of system catalogs, the relations that they describe, and where both lie.
//!
//! Statements change rows ([`crate::backend`]); messages, command ids and records follow from those changes, from the version's
//! table of syscaches and from [`CatalogTraits`]. Nothing here or in the statements lists messages.
//!
//! A rolled back (sub)transaction is undone here row by row ([`Undo`]), since the model keeps one version of each row.

mod class_csv;
mod dependency;
mod heap_file;
mod published_csv;
mod relation;
mod system;
mod traits;
mod tuple;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pg_types::{CommandId, Oid, RelFileLocator, SysCacheTable, Tid, Xid, catalog};

pub use dependency::{Dependency, DependencyType, ObjectAddress};
pub use heap_file::HeapFile;
pub(crate) use heap_file::{PageScan, Pruned};
pub use relation::{
    Attribute, Constraint, IndexInfo, OnCommit, RelKind, RelStats, Relation, ReplicaIdentity, TableRows, Trigger, TupleId,
};
pub(crate) use system::{is_mapped, is_system};
pub use traits::CatalogTraits;
pub use tuple::{CatalogTuple, Datum};

/// `PG_CATALOG_NAMESPACE`.
pub const PG_CATALOG: Oid = Oid(11);
/// `PG_TOAST_NAMESPACE`.
pub const PG_TOAST: Oid = Oid(99);
/// `public`.
pub const PUBLIC: Oid = Oid(2200);
/// The database of all sessions.
pub const DATABASE: Oid = Oid(5);
/// Pages that a catalog has before the log begins.
const CATALOG_PAGES: usize = 8;

/// A row with its place and its inserter.
#[derive(Clone, Debug)]
pub struct StoredTuple {
    /// The row.
    pub tuple: CatalogTuple,
    /// Where it lies.
    pub tid: Tid,
    /// Top-level transaction that inserted this version.
    pub xmin: Xid,
    /// Command that inserted it.
    pub cmin: CommandId,
}

/// How to take one change back.
#[derive(Clone, Debug)]
pub enum Undo {
    /// The row was this before ([`None`]: not there).
    Tuple(TupleId, Option<Box<StoredTuple>>),
    /// The relation was this before.
    Relation(Oid, Option<Box<Relation>>),
    /// The name in a catalog meant this object before.
    Name(Oid, Arc<str>, Option<Oid>),
    /// This session did not use its temporary schema before.
    TempUse(usize),
}

/// Rows, relations, files.
#[derive(Debug)]
pub struct Catalog {
    /// Habits of the version.
    pub traits: &'static CatalogTraits,
    /// Its syscaches.
    pub syscaches: &'static SysCacheTable,
    /// All rows by id.
    tuples: Vec<Option<StoredTuple>>,
    /// Ids of rows by catalog and owner ([`CatalogTuple::owner`]).
    by_owner: BTreeSet<(Oid, Oid, TupleId)>,
    /// The contents of pg_depend.
    dependencies: dependency::Dependencies,
    /// Objects that are no relations by catalog and name.
    objects: BTreeMap<(Oid, Arc<str>), Oid>,
    /// All relations by oid.
    relations: BTreeMap<Oid, Relation>,
    /// Their names: those of temporary relations by schema, all others under the invalid one.
    names: BTreeMap<Oid, BTreeMap<Arc<str>, Oid>>,
    /// Heaps by file number; a catalog's number is its oid.
    heaps: BTreeMap<u32, HeapFile>,
    /// Rows of user tables by file number.
    rows: BTreeMap<u32, TableRows>,
    /// Files of temporary relations: nothing in them is logged.
    temp_files: BTreeSet<u32>,
    /// Files that were a relation's before, as it was then.
    former_files: BTreeMap<u32, class_csv::ClassRow>,
    /// Sessions that use their temporary schema (`myTempNamespace`): those that have not do not see what is in it.
    temp_users: BTreeSet<usize>,
    /// The next object id.
    pub next_oid: Oid,
}

impl Catalog {
    /// The catalog of a new cluster: the system's relations and nothing else.
    #[must_use]
    pub fn new(traits: &'static CatalogTraits) -> Catalog {
        let mut catalog = Catalog {
            traits,
            syscaches: SysCacheTable::of(traits.version),
            tuples: Vec::new(),
            by_owner: BTreeSet::new(),
            dependencies: dependency::Dependencies::default(),
            objects: BTreeMap::new(),
            relations: BTreeMap::new(),
            names: BTreeMap::new(),
            heaps: BTreeMap::new(),
            rows: BTreeMap::new(),
            temp_files: BTreeSet::new(),
            former_files: BTreeMap::new(),
            temp_users: BTreeSet::new(),
            next_oid: Oid::FIRST_NORMAL,
        };
        catalog.add_system_catalogs();
        catalog
    }

    /// Appends a row.
    pub(crate) fn add_tuple(&mut self, stored: StoredTuple) -> TupleId {
        let id = TupleId(self.tuples.len() as u32);
        self.tuples.push(None);
        self.replace_tuple(id, Some(stored));
        id
    }

    /// A row that is there.
    pub(crate) fn tuple(&self, id: TupleId) -> Option<&StoredTuple> {
        self.tuples.get(id.0 as usize).and_then(Option::as_ref)
    }

    /// Replaces a row; the one before comes back.
    pub(crate) fn replace_tuple(&mut self, id: TupleId, now: Option<StoredTuple>) -> Option<Box<StoredTuple>> {
        let slot = self.tuples.get_mut(id.0 as usize)?;
        if let Some(before) = slot {
            match before.tuple.dependency() {
                Some(row) => self.dependencies.remove(id, row),
                None => drop(self.by_owner.remove(&(before.tuple.catalog, before.tuple.owner(), id))),
            }
        }
        if let Some(stored) = &now {
            match stored.tuple.dependency() {
                Some(row) => self.dependencies.add(id, row),
                None => drop(self.by_owner.insert((stored.tuple.catalog, stored.tuple.owner(), id))),
            }
        }
        std::mem::replace(slot, now).map(Box::new)
    }

    /// Rows of a catalog that belong to an object, oldest first.
    #[must_use]
    pub fn rows_of(&self, catalog: Oid, owner: Oid) -> Vec<TupleId> {
        let range = (catalog, owner, TupleId(0))..=(catalog, owner, TupleId(u32::MAX));
        self.by_owner.range(range).map(|(_, _, id)| *id).collect()
    }

    /// Rows of pg_depend that say what an object (with its columns) depends on.
    #[must_use]
    pub fn dependencies_of(&self, object: ObjectAddress) -> Vec<(TupleId, Dependency)> {
        self.dependencies.of(object)
    }

    /// Rows of pg_depend that say what depends on an object (or its columns).
    #[must_use]
    pub fn dependents_on(&self, object: ObjectAddress) -> Vec<(TupleId, Dependency)> {
        self.dependencies.on(object)
    }

    /// An object that is no relation, by catalog and name.
    #[must_use]
    pub fn object_named(&self, class: Oid, name: &str) -> Option<Oid> {
        self.objects.get(&(class, Arc::from(name))).copied()
    }

    /// Says what a name means; what it meant before comes back.
    pub(crate) fn name_object(&mut self, class: Oid, name: &Arc<str>, now: Option<Oid>) -> Option<Oid> {
        match now {
            Some(oid) => self.objects.insert((class, Arc::clone(name)), oid),
            None => self.objects.remove(&(class, Arc::clone(name))),
        }
    }

    /// A relation by oid.
    #[must_use]
    pub fn relation(&self, oid: Oid) -> Option<&Relation> {
        self.relations.get(&oid)
    }

    /// A relation by name that is not temporary.
    #[must_use]
    pub fn relation_named(&self, name: &str) -> Option<&Relation> {
        self.relation_in(Oid::INVALID, name)
    }

    /// A relation by name in the temporary schema of a session; the invalid one for all that are not temporary.
    #[must_use]
    pub fn relation_in(&self, temp_namespace: Oid, name: &str) -> Option<&Relation> {
        self.names.get(&temp_namespace)?.get(name).and_then(|oid| self.relations.get(oid))
    }

    /// Relations in a temporary schema, by name.
    pub(crate) fn relations_in(&self, temp_namespace: Oid) -> impl Iterator<Item = &Relation> {
        let names = self.names.get(&temp_namespace).into_iter();
        names.flat_map(BTreeMap::values).filter_map(|oid| self.relations.get(oid))
    }

    /// Whether any session has temporary relations.
    pub(crate) fn has_temp_relations(&self) -> bool {
        self.names.keys().next_back().is_some_and(|namespace| namespace.is_valid())
    }

    /// All relations that are not the system's, by oid.
    pub fn relations(&self) -> impl Iterator<Item = &Relation> {
        self.relations.range(Oid::FIRST_NORMAL..).map(|(_, relation)| relation)
    }

    /// Replaces a relation; the one before comes back.
    pub(crate) fn replace_relation(&mut self, oid: Oid, now: Option<Relation>) -> Option<Box<Relation>> {
        let (name, file) = (now.as_ref().map(name_of), now.as_ref().map(|relation| relation.filenode));
        let before = match now {
            Some(relation) => self.relations.insert(oid, relation),
            None => self.relations.remove(&oid),
        };
        if let Some((namespace, old)) = before.as_ref().map(name_of).filter(|before| Some(before) != name.as_ref())
            && let Some(names) = self.names.get_mut(&namespace)
        {
            // A new owner of the name may have come already.
            if names.get(&old) == Some(&oid) {
                names.remove(&old);
            }
            if names.is_empty() {
                self.names.remove(&namespace);
            }
        }
        if let Some((namespace, name)) = name {
            self.names.entry(namespace).or_default().insert(name, oid);
        }
        if let Some(before) = &before {
            self.note_former_file(before, file);
        }
        before.map(Box::new)
    }

    /// The number of a catalog's file: its oid until it is written anew.
    #[must_use]
    pub fn file_of(&self, catalog: Oid) -> u32 {
        self.relations.get(&catalog).map_or(catalog.0, |relation| relation.filenode)
    }

    /// The file of a catalog.
    #[must_use]
    pub fn catalog_locator(&self, catalog: Oid) -> RelFileLocator {
        let shared = catalog::is_shared(catalog);
        let (spc, db) = if shared { (Oid::GLOBAL_TABLESPACE, Oid::INVALID) } else { (Oid::DEFAULT_TABLESPACE, DATABASE) };
        RelFileLocator { spc, db, rel: self.file_of(catalog) }
    }

    /// All rows of a catalog.
    pub(crate) fn rows_in(&self, catalog: Oid) -> Vec<TupleId> {
        if catalog == catalog::DEPEND {
            return self.dependencies.ids();
        }
        let range = (catalog, Oid::INVALID, TupleId(0))..=(catalog, Oid(u32::MAX), TupleId(u32::MAX));
        self.by_owner.range(range).map(|(_, _, id)| *id).collect()
    }

    /// The pages of a file.
    pub(crate) fn heap(&mut self, filenode: u32) -> &mut HeapFile {
        let old = filenode < Oid::FIRST_NORMAL.0;
        self.heaps
            .entry(filenode)
            .or_insert_with(|| if old { HeapFile::with_full_pages(CATALOG_PAGES) } else { HeapFile::default() })
    }

    /// The pages of a catalog.
    pub(crate) fn catalog_heap(&mut self, catalog: Oid) -> &mut HeapFile {
        let file = self.file_of(catalog);
        self.heap(file)
    }

    /// The remembered rows of a table's file.
    pub(crate) fn rows(&mut self, filenode: u32) -> &mut TableRows {
        self.rows.entry(filenode).or_default()
    }

    /// Takes one change back.
    pub(crate) fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Tuple(id, before) => {
                self.replace_tuple(id, before.map(|b| *b));
            }
            Undo::Relation(oid, before) => {
                self.replace_relation(oid, before.map(|b| *b));
            }
            Undo::Name(class, name, before) => {
                self.name_object(class, &name, before);
            }
            Undo::TempUse(session) => self.forget_temp_use(session),
        }
    }

    /// Forgets a dropped file.
    pub(crate) fn drop_file(&mut self, filenode: u32) {
        self.empty_file(filenode);
        self.temp_files.remove(&filenode);
    }

    /// Forgets what is in a file.
    pub(crate) fn empty_file(&mut self, filenode: u32) {
        self.heaps.remove(&filenode);
        self.rows.remove(&filenode);
    }

    /// A new file is a temporary relation's.
    pub(crate) fn note_temp_file(&mut self, filenode: u32) {
        self.temp_files.insert(filenode);
    }

    /// Whether a file is a temporary relation's.
    #[must_use]
    pub fn is_temp_file(&self, filenode: u32) -> bool {
        self.temp_files.contains(&filenode)
    }

    /// A session uses its temporary schema from now on.
    pub(crate) fn note_temp_use(&mut self, session: usize) {
        self.temp_users.insert(session);
    }

    /// A session uses its temporary schema no more, or its first use was taken back.
    pub(crate) fn forget_temp_use(&mut self, session: usize) {
        self.temp_users.remove(&session);
    }

    /// Whether a session uses its temporary schema.
    pub(crate) fn uses_temp(&self, session: usize) -> bool {
        self.temp_users.contains(&session)
    }

    /// Takes the next object id, skipping the reserved ones at wraparound.
    pub(crate) fn take_oid(&mut self) -> Oid {
        let oid = self.next_oid;
        self.next_oid = Oid(oid.0.checked_add(1).unwrap_or(Oid::FIRST_NORMAL.0));
        oid
    }
}

/// What a relation is found by: its name among those of its temporary schema, or among all that are not temporary.
fn name_of(relation: &Relation) -> (Oid, Arc<str>) {
    (if relation.temporary { relation.namespace } else { Oid::INVALID }, Arc::clone(&relation.name))
}

/// The file of a user relation.
#[must_use]
pub fn user_locator(filenode: u32) -> RelFileLocator {
    RelFileLocator { spc: Oid::DEFAULT_TABLESPACE, db: DATABASE, rel: filenode }
}
