//! Catalogs with all versions of their rows, and the naive model: what a cache serves must be what they say now.
//!
//! A row is a number that changes, or a file; a change belongs to a (sub)transaction and a command. Whatever a decoder loads is noted with
//! what was read. Whenever it shows what it holds, each entry is read anew with the snapshot of that moment, and must be the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use decoder_core::{AsOf, CacheContents, Catalog, CatalogRead, HistoricCatalog, RelationInfo};
use pg_types::{Lsn, Oid, PgVersion, RecordBody, RelFileLocator, SysCacheTable, WalRecord, Xid};

use super::file;

/// The schema of all relations, the types and the access method that a decoder looks up.
pub(crate) const NAMESPACE: Oid = Oid(2200);

/// A row of a catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Row {
    /// Of pg_class: its value has the file.
    Class(Oid),
    /// Those of pg_attribute of one relation.
    Attributes(Oid),
    Namespace(Oid),
    Type(Oid),
    Am(Oid),
    /// Those of pg_publication.
    Publications,
    /// Those of pg_publication_rel of one relation.
    PublicationRel(Oid),
    /// Those of pg_publication_namespace of one schema.
    PublicationNamespace(Oid),
}

/// What a row says; [`None`]: it is not there.
pub(crate) type Value = Option<Version>;

/// One version of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Version {
    /// A number of its own.
    pub(crate) number: u32,
    /// The relation's file.
    pub(crate) file: u32,
    /// It is the heap of a rewrite (`relrewrite`).
    pub(crate) transient: bool,
}

/// A change of a row.
#[derive(Clone, Copy, Debug)]
struct Change {
    row: Row,
    value: Value,
    /// Who made it; nobody: it was there from the beginning.
    xid: u32,
    top: u32,
    command: u32,
    /// Where it was written.
    lsn: Lsn,
}

/// All versions of all rows, oldest first, and what became of who made them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Versions {
    changes: Vec<Change>,
    /// Where transactions committed, with their subtransactions.
    committed: BTreeMap<u32, Lsn>,
    /// Where they were rolled back.
    aborted: BTreeMap<u32, Lsn>,
    /// Rows changed in place: where, and how often so far.
    in_place: BTreeMap<Row, Vec<Lsn>>,
    numbers: u32,
}

/// What an entry was made of: the versions of its rows, and how often they were changed in place.
pub(crate) type Read = Vec<(Value, usize)>;

impl Versions {
    /// A new version of a row.
    pub(crate) fn version(&mut self, file: u32, transient: bool) -> Version {
        self.numbers += 1;
        Version { number: self.numbers, file, transient }
    }

    /// A row is as it is from the beginning.
    pub(crate) fn begin_with(&mut self, row: Row, value: Value) {
        self.changes.push(Change { row, value, xid: 0, top: 0, command: 0, lsn: Lsn(0) });
    }

    /// A command of `xid`, whose top-level transaction is `top`, changes a row.
    pub(crate) fn change(&mut self, row: Row, value: Value, (xid, top): (u32, u32), command: u32, lsn: Lsn) {
        self.changes.push(Change { row, value, xid, top, command, lsn });
    }

    /// A row is changed in place, for all.
    pub(crate) fn change_in_place(&mut self, row: Row, lsn: Lsn) {
        self.in_place.entry(row).or_default().push(lsn);
    }

    /// Learns from a record who ended.
    pub(crate) fn learn(&mut self, record: &WalRecord) {
        let (ends, prepared, record_xid, subxids) = match &record.body {
            RecordBody::Commit(commit) => (&mut self.committed, commit.prepared_xid, record.xid, &commit.subxids),
            RecordBody::Abort(abort) => (&mut self.aborted, abort.prepared_xid, record.xid, &abort.subxids),
            _ => return,
        };
        let top = if prepared.is_valid() { prepared } else { record_xid };
        ends.extend(subxids.iter().chain([&top]).map(|xid| (xid.0, record.lsn)));
    }

    /// Whether a snapshot sees a change, for a reader at `at`.
    fn sees(&self, change: &Change, as_of: AsOf, at: Lsn) -> bool {
        let before = |ends: &BTreeMap<u32, Lsn>, lsn: Lsn| ends.get(&change.xid).is_some_and(|end| *end <= lsn);
        if change.xid == 0 || before(&self.committed, as_of.committed) {
            return true;
        }
        let own = as_of.xid.is_valid() && Xid(change.top) == as_of.xid;
        own && change.command < as_of.command_id && change.lsn <= at && !before(&self.aborted, at)
    }

    /// A row as a snapshot sees it. Who changes a row locks it, so that the last version seen is the newest.
    pub(crate) fn row(&self, row: Row, as_of: AsOf, at: Lsn) -> Value {
        let seen = self.changes.iter().rev().find(|change| change.row == row && self.sees(change, as_of, at));
        seen.and_then(|change| change.value)
    }

    /// The relation of a file as a snapshot sees it.
    pub(crate) fn owner(&self, number: u32, as_of: AsOf, at: Lsn) -> Option<Oid> {
        let had = self.changes.iter().filter(|change| change.value.is_some_and(|value| value.file == number));
        let mut classes = had.filter_map(|change| if let Row::Class(oid) = change.row { Some(oid) } else { None });
        classes.find(|oid| self.row(Row::Class(*oid), as_of, at).is_some_and(|value| value.file == number))
    }

    /// All relations that ever were.
    fn relations(&self) -> BTreeSet<Oid> {
        self.changes.iter().filter_map(|change| if let Row::Class(oid) = change.row { Some(oid) } else { None }).collect()
    }

    /// Whether a relation is the heap of a rewrite.
    fn is_transient(&self, oid: Oid) -> bool {
        self.changes.iter().any(|change| change.row == Row::Class(oid) && change.value.is_some_and(|value| value.transient))
    }
}

/// What is wrong with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stale {
    /// It was loaded by an earlier replay with a later snapshot.
    FromTheFuture,
    /// It was loaded by another transaction, and lacks what this one has changed.
    WithoutOwn,
    /// What it was made of has changed since.
    FromThePast,
}

/// A stale entry.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) stale: Stale,
    /// What changed it had committed before it was loaded, by a transaction that did not see it then.
    pub(crate) loaded_after_the_change: bool,
    /// A transaction is replayed.
    pub(crate) in_replay: bool,
    pub(crate) text: String,
}

/// What was read, and when.
#[derive(Clone, Debug)]
struct Loaded {
    read: Read,
    as_of: AsOf,
    at: Lsn,
}

/// What happens while a log is decoded.
#[derive(Debug, Default)]
struct State {
    /// The record at hand.
    at: Lsn,
    /// What each entry was made of when it was loaded last.
    loaded: BTreeMap<CatalogRead, Loaded>,
    reads: u64,
    /// With what it was looked at last.
    looked: Option<(Lsn, AsOf, u64)>,
    faults: Vec<Fault>,
    /// Entries compared.
    compared: u64,
}

/// The catalogs of one decoder.
#[derive(Debug)]
pub(crate) struct VersionedCatalog {
    versions: Versions,
    table: &'static SysCacheTable,
    /// What pgoutput keeps of a relation has its schema's name.
    schema_published: bool,
    state: Mutex<State>,
}

/// `hash_uint32` of an oid (`murmurhash32`), with which syscaches with one oid as key name their rows.
pub(crate) fn hash_oid(oid: Oid) -> u32 {
    let mut h = oid.0;
    h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
    h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}

impl VersionedCatalog {
    pub(crate) fn new(versions: Versions, version: PgVersion, schema_published: bool) -> Self {
        Self { versions, table: SysCacheTable::of(version), schema_published, state: Mutex::default() }
    }

    /// A decoder comes to a record.
    pub(crate) fn arrive(&self, lsn: Lsn) {
        self.state.lock().unwrap().at = lsn;
    }

    /// All faults found, and how many entries were compared.
    pub(crate) fn found(&self) -> (Vec<Fault>, u64) {
        let state = self.state.lock().unwrap();
        (state.faults.clone(), state.compared)
    }

    /// The rows that an entry is made of.
    fn rows(&self, what: CatalogRead) -> Vec<Row> {
        match what {
            CatalogRead::File(_) => vec![],
            CatalogRead::Relation(rel) => vec![Row::Class(rel), Row::Attributes(rel)],
            CatalogRead::Row(cache, key) | CatalogRead::List(cache, key) => vec![match self.table.cache(cache).name {
                "RELOID" => Row::Class(key),
                "NAMESPACEOID" => Row::Namespace(key),
                "TYPEOID" => Row::Type(key),
                "AMOID" => Row::Am(key),
                "PUBLICATIONRELMAP" => Row::PublicationRel(key),
                "PUBLICATIONNAMESPACEMAP" => Row::PublicationNamespace(key),
                other => panic!("nobody looks up {other}"),
            }],
            CatalogRead::Publications => vec![Row::Publications],
            CatalogRead::Published(rel) => {
                let mut rows =
                    vec![Row::Class(rel), Row::Publications, Row::PublicationRel(rel), Row::PublicationNamespace(NAMESPACE)];
                rows.extend(self.schema_published.then_some(Row::Namespace(NAMESPACE)));
                rows
            }
        }
    }

    /// Reads an entry afresh.
    fn fresh(&self, what: CatalogRead, as_of: AsOf, at: Lsn) -> Read {
        if let CatalogRead::File(file) = what {
            let owner = self.versions.owner(file.rel, as_of, at);
            return vec![(owner.map(|oid| Version { number: oid.0, file: file.rel, transient: false }), 0)];
        }
        let in_place = |row: &Row| {
            let changed = self.versions.in_place.get(row).into_iter().flatten();
            changed.filter(|lsn| **lsn <= at).count()
        };
        self.rows(what).iter().map(|row| (self.versions.row(*row, as_of, at), in_place(row))).collect()
    }

    /// Compares one entry that is served.
    fn compare(&self, state: &mut State, what: CatalogRead, negative: bool, as_of: AsOf) {
        state.compared += 1;
        let fresh = self.fresh(what, as_of, state.at);
        let loaded = state.loaded.entry(what).or_insert_with(|| {
            // Loaded before the decoder began: catalogs that a server always has.
            Loaded { read: self.fresh(what, AsOf::default(), Lsn(0)), as_of: AsOf::default(), at: Lsn(0) }
        });
        let gone = |read: &Read| read.iter().all(|(value, _)| value.is_none());
        assert!(matches!(what, CatalogRead::Relation(_)) || !negative || gone(&loaded.read), "{what:?} is negative");
        if loaded.read == fresh {
            return;
        }
        let without_own = AsOf { xid: Xid::INVALID, ..as_of };
        let stale = if loaded.as_of.xid != as_of.xid && loaded.read == self.fresh(what, without_own, state.at) {
            Stale::WithoutOwn
        } else if loaded.as_of.committed > as_of.committed {
            Stale::FromTheFuture
        } else {
            Stale::FromThePast
        };
        let newest = AsOf { committed: Lsn(loaded.at.0.saturating_sub(1)), ..loaded.as_of };
        let changed_before = self.fresh(what, newest, loaded.at) != loaded.read;
        let text = format!("at {} as of {as_of:?}: {what:?} is served as {loaded:?}, and is {fresh:?}", state.at);
        let in_replay = as_of.xid.is_valid();
        state.faults.push(Fault { stale, loaded_after_the_change: changed_before, in_replay, text });
    }

    /// All entries that are served, and whether each is negative.
    fn served(&self, contents: &CacheContents) -> Vec<(CatalogRead, bool)> {
        let of_hash = |keys: &[Oid], hash: u32| *keys.iter().find(|key| hash_oid(**key) == hash).unwrap();
        let relations: Vec<Oid> = self.versions.relations().into_iter().collect();
        let keys = [&relations[..], &KEYS].concat();
        let id = |cache: i8| self.table.id(cache).unwrap();
        let files = contents.map.iter().map(|(_, number, oid)| (CatalogRead::File(file(*number)), !oid.is_valid()));
        let relations = contents.relcache.iter().chain(&contents.catalogs).map(|rel| (CatalogRead::Relation(*rel), false));
        let rows = contents
            .catcaches
            .iter()
            .map(|(cache, hash, negative)| (CatalogRead::Row(id(*cache), of_hash(&keys, *hash)), *negative));
        let lists = contents.lists.iter().map(|(cache, hash)| (CatalogRead::List(id(*cache), of_hash(&keys, *hash)), false));
        let published = contents.published.iter().map(|rel| (CatalogRead::Published(*rel), false));
        let publications = contents.publications.then_some((CatalogRead::Publications, false));
        files.chain(relations).chain(rows).chain(lists).chain(published).chain(publications).collect()
    }
}

/// Keys of rows that are not relations'.
pub(crate) const KEYS: [Oid; 4] = [NAMESPACE, Oid(23), Oid(25), Oid(2)];

impl HistoricCatalog for VersionedCatalog {
    fn read(&self, what: CatalogRead, as_of: AsOf) -> Option<Oid> {
        let mut state = self.state.lock().unwrap();
        let read = self.fresh(what, as_of, state.at);
        let found = match (what, read[0].0) {
            (_, None) => None,
            (CatalogRead::File(_), Some(version)) => Some(Oid(version.number)),
            (CatalogRead::Relation(oid) | CatalogRead::Row(_, oid) | CatalogRead::List(_, oid), _) => Some(oid),
            (CatalogRead::Publications | CatalogRead::Published(_), _) => Some(Oid(1)),
        };
        state.reads += 1;
        let at = state.at;
        state.loaded.insert(what, Loaded { read, as_of, at });
        found
    }

    fn look(&self, as_of: AsOf, contents: &dyn Fn() -> CacheContents) {
        let mut state = self.state.lock().unwrap();
        let now = Some((state.at, as_of, state.reads));
        if std::mem::replace(&mut state.looked, now) == now {
            return;
        }
        for (what, negative) in self.served(&contents()) {
            self.compare(&mut state, what, negative, as_of);
        }
    }
}

impl Catalog for VersionedCatalog {
    fn by_file(&self, _: RelFileLocator) -> Option<RelationInfo> {
        None
    }

    fn by_oid(&self, oid: Oid) -> Option<RelationInfo> {
        let logged = !self.versions.is_transient(oid);
        self.versions.relations().contains(&oid).then(|| RelationInfo {
            oid,
            namespace: NAMESPACE,
            name: format!("r{oid}").into(),
            logged,
        })
    }
}
