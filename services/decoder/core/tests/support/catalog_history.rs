//! Random histories of catalogs that change, as a server writes them: with locks, files and messages.
//!
//! Transactions, savepoints and their ends are those of [`super::history`]. Who writes a row of a relation keeps others from dropping,
//! creating or rewriting it; nobody changes a catalog row that an unfinished transaction has changed.

use decoder_core::AsOf;
use pg_types::record::{HeapDelete, HeapInsert, HeapPlace, HeapUpdate, OldTuple, StandbyInvalidationsRecord};
use pg_types::{InvalidationMessage, Lsn, Oid, PgVersion, RecordBody, SysCacheTable, catalog};
use proptest::prelude::*;

use super::history::{Step, Writer};
use super::versioned_catalog::{KEYS, NAMESPACE, Row, Value, Version, Versions, hash_oid};
use super::{DATABASE, Log, catcache, file, relcache};

/// Relations 20000 … 20005; the last two are not there at first.
const RELATIONS: u32 = 6;

/// Files that are given to new relations and rewritten ones, again and again.
const FILES: std::ops::Range<u32> = 40_000..40_010;

/// Catalogs and indexes that a server may rewrite.
const CATALOGS: [Oid; 6] =
    [catalog::CLASS, catalog::TYPE, catalog::NAMESPACE, catalog::AM, catalog::PUBLICATION_REL, Oid(2685)];

/// A schema change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ddl {
    Create,
    Drop,
    /// A new heap is filled, and swapped for the old one.
    Rewrite,
    /// A new, empty file, and its TRUNCATE record.
    Truncate,
    /// Rows of pg_class and pg_attribute, nobody else using the relation.
    AddColumn,
    /// The same rows, whoever uses it.
    Grant,
    Statistics,
    /// A type comes, changes or goes.
    Type,
    Schema,
    Am,
    /// A relation joins a publication, or leaves it.
    Publish,
    PublishSchema,
    /// A publication is changed, or only renamed.
    Publication(bool),
    /// VACUUM FULL of a catalog.
    RewriteCatalog,
    /// A message for all relations.
    AllRelations,
    /// Messages that drop nothing of this database.
    Noise,
}

/// One step; the first number chooses one of the open transactions, the second a relation.
#[derive(Clone, Debug)]
pub(crate) enum Move {
    Control(Step),
    /// A row is written.
    Dml(u8, u32, u8),
    /// A catalog's row whose file no relation has, as after a rewrite of a mapped one.
    Orphan(u8, u32),
    Ddl(u8, u32, Ddl),
    /// A row of pg_class is changed in place by a transaction without xid.
    InPlace(u32),
}

/// Histories.
pub(crate) fn histories() -> impl Strategy<Value = Vec<Move>> {
    let ddl = prop_oneof![
        2 => Just(Ddl::Create), 1 => Just(Ddl::Drop), 2 => Just(Ddl::Rewrite), 1 => Just(Ddl::Truncate), 1 => Just(Ddl::AddColumn),
        2 => Just(Ddl::Grant), 1 => Just(Ddl::Statistics), 2 => Just(Ddl::Type), 1 => Just(Ddl::Schema), 1 => Just(Ddl::Am),
        1 => Just(Ddl::Publish), 1 => Just(Ddl::PublishSchema), 1 => any::<bool>().prop_map(Ddl::Publication),
        1 => Just(Ddl::RewriteCatalog), 1 => Just(Ddl::AllRelations), 1 => Just(Ddl::Noise),
    ];
    let control = prop_oneof![
        3 => Just(Step::Begin),
        1 => any::<u8>().prop_map(Step::Message),
        2 => any::<u8>().prop_map(Step::Savepoint),
        1 => any::<u8>().prop_map(Step::Release),
        1 => any::<u8>().prop_map(Step::RollbackTo),
        3 => any::<u8>().prop_map(Step::Commit),
        1 => any::<u8>().prop_map(Step::Abort),
        1 => any::<u8>().prop_map(Step::Prepare),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(t, commit)| Step::FinishPrepared(t, commit)),
        1 => Just(Step::Running),
    ];
    let rel = 0..RELATIONS;
    let moves = prop_oneof![
        14 => control.prop_map(Move::Control),
        12 => (any::<u8>(), rel.clone(), any::<u8>()).prop_map(|(t, rel, how)| Move::Dml(t, rel, how)),
        1 => (any::<u8>(), 0..FILES.end - FILES.start).prop_map(|(t, n)| Move::Orphan(t, n)),
        7 => (any::<u8>(), rel.clone(), ddl).prop_map(|(t, rel, ddl)| Move::Ddl(t, rel, ddl)),
        1 => rel.prop_map(Move::InPlace),
    ];
    prop::collection::vec(moves, 1..90)
}

/// What is locked until a transaction's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lock {
    Relation(Oid),
    Row(Row),
    File(u32),
}

/// Turns moves into records and versions of catalog rows.
struct Historian {
    writer: Writer,
    versions: Versions,
    /// Who holds what, alone or shared.
    locks: Vec<(u32, Lock, bool)>,
    /// Records from which is known who ended.
    learned: usize,
    table: &'static SysCacheTable,
}

impl Historian {
    fn new(version: PgVersion) -> Self {
        let mut versions = Versions::default();
        for oid in (20_000..20_000 + RELATIONS - 2).map(Oid) {
            for row in [Row::Class(oid), Row::Attributes(oid)] {
                let value = versions.version(oid.0, false);
                versions.begin_with(row, Some(value));
            }
        }
        for row in KEYS.into_iter().flat_map(|oid| [Row::Namespace(oid), Row::Type(oid), Row::Am(oid)]) {
            let value = versions.version(0, false);
            versions.begin_with(row, Some(value));
        }
        let table = SysCacheTable::of(version);
        Self { writer: Writer::new(version, 4), versions, locks: vec![], learned: 0, table }
    }

    /// A relation's file as an open transaction sees it.
    fn file_of(&self, at: usize, oid: Oid) -> Option<u32> {
        self.seen(at, Row::Class(oid)).filter(|class| !class.transient).map(|class| class.file)
    }

    /// A row as an open transaction sees it.
    fn seen(&self, at: usize, row: Row) -> Value {
        let open = &self.writer.open[at];
        let as_of = AsOf { committed: Lsn(u64::MAX), xid: pg_types::Xid(open.levels[0].xid), command_id: open.command };
        self.versions.row(row, as_of, Lsn(u64::MAX))
    }

    /// Takes all of some locks, if nobody else stands in the way.
    fn lock(&mut self, at: usize, wanted: &[(Lock, bool)]) -> bool {
        let top = self.writer.open[at].levels[0].xid;
        let hinders = |lock: &Lock, alone: bool| {
            self.locks.iter().any(|(who, held, by_one)| *who != top && held == lock && (alone || *by_one))
        };
        let free = !wanted.iter().any(|(lock, alone)| hinders(lock, *alone));
        if free {
            self.locks.extend(wanted.iter().map(|(lock, alone)| (top, *lock, *alone)));
        }
        free
    }

    /// A file that no relation has and no unfinished transaction gives away, first of all one that this transaction found without.
    fn free_file(&self, at: usize) -> Option<u32> {
        let (committed, top) = (AsOf { committed: Lsn(u64::MAX), ..AsOf::default() }, self.writer.open[at].levels[0].xid);
        let held = |number: u32| self.locks.iter().filter(move |(_, lock, _)| *lock == Lock::File(number));
        let free = FILES.filter(|number| {
            let owner = self.versions.owner(*number, committed, Lsn(u64::MAX));
            owner.is_none() && held(*number).all(|(who, _, alone)| *who == top && !alone)
        });
        free.max_by_key(|number| (held(*number).count(), std::cmp::Reverse(*number)))
    }

    fn go(&mut self, a_move: &Move) {
        match *a_move {
            Move::Control(ref step) => self.writer.step(step),
            Move::Dml(n, rel, how) => self.dml(n, Oid(20_000 + rel), how),
            Move::Orphan(n, number) => self.orphan(n, FILES.start + number),
            Move::Ddl(n, rel, ddl) => self.ddl(n, Oid(20_000 + rel), ddl),
            Move::InPlace(rel) => self.in_place(Oid(20_000 + rel)),
        }
        self.writer.log.records[self.learned..].iter().for_each(|record| self.versions.learn(record));
        self.learned = self.writer.log.records.len();
        let live: Vec<u32> = self.writer.open.iter().chain(&self.writer.prepared).map(|open| open.levels[0].xid).collect();
        self.locks.retain(|(top, ..)| live.contains(top));
    }

    fn dml(&mut self, n: u8, rel: Oid, how: u8) {
        let Some((at, xid, top)) = self.writer.choose(n) else { return };
        let Some(number) = self.file_of(at, rel) else { return };
        if !self.lock(at, &[(Lock::Relation(rel), false)]) {
            return;
        }
        let (log, target) = (&mut self.writer.log, file(number));
        let insert = HeapInsert { target, logical: true, ..HeapInsert::default() };
        match how % 4 {
            0 | 1 => log.insert(xid, top, number),
            2 => {
                let delete = HeapDelete { target, old: OldTuple::Key, ..HeapDelete::default() };
                log.push(xid, top, RecordBody::Delete(delete));
            }
            _ => {
                log.push(xid, top, RecordBody::Insert(HeapInsert { speculative: true, ..insert }));
                log.push(xid, top, RecordBody::Confirm(HeapPlace { target, ..HeapPlace::default() }));
            }
        }
    }

    fn orphan(&mut self, n: u8, number: u32) {
        let Some((at, xid, top)) = self.writer.choose(n) else { return };
        let open = &self.writer.open[at];
        let now = AsOf { committed: Lsn(u64::MAX), xid: pg_types::Xid(open.levels[0].xid), command_id: open.command };
        if self.versions.owner(number, now, Lsn(u64::MAX)).is_none() && self.lock(at, &[(Lock::File(number), false)]) {
            let update = HeapUpdate { target: file(number), ..HeapUpdate::default() };
            self.writer.log.push(xid, top, RecordBody::Update(update));
        }
    }

    fn in_place(&mut self, rel: Oid) {
        let (messages, log) = (self.messages(Row::Class(rel)), &mut self.writer.log);
        let invalidations = StandbyInvalidationsRecord { db: DATABASE, messages, ..StandbyInvalidationsRecord::default() };
        if self.writer.version != PgVersion::V13 {
            log.invalidations(0, 0, &invalidations.messages);
            self.versions.change_in_place(Row::Class(rel), log.last_lsn());
        }
        log.push(0, 0, RecordBody::StandbyInvalidations(Box::new(invalidations)));
        if self.writer.version == PgVersion::V13 {
            self.versions.change_in_place(Row::Class(rel), log.last_lsn());
        }
    }

    /// A message for a row of a syscache, if the version has it.
    fn catcache(&self, name: &str, hash: u32) -> Option<InvalidationMessage> {
        self.table.id_of(name).map(|id| catcache(id.message_id(), hash))
    }

    /// `CacheInvalidateHeapTuple`: the messages of a changed row.
    fn messages(&self, row: Row) -> Vec<InvalidationMessage> {
        let (caches, oid, relcache_of) = match row {
            Row::Class(oid) => (["RELNAMENSP", "RELOID"], oid, Some(oid)),
            Row::Attributes(oid) => (["ATTNAME", "ATTNUM"], oid, Some(oid)),
            Row::Namespace(oid) => (["NAMESPACENAME", "NAMESPACEOID"], oid, None),
            Row::Type(oid) => (["TYPENAMENSP", "TYPEOID"], oid, None),
            Row::Am(oid) => (["AMNAME", "AMOID"], oid, None),
            Row::Publications => (["PUBLICATIONNAME", "PUBLICATIONOID"], Oid(1), None),
            Row::PublicationRel(oid) => (["PUBLICATIONREL", "PUBLICATIONRELMAP"], oid, Some(oid)),
            Row::PublicationNamespace(oid) => (["PUBLICATIONNAMESPACE", "PUBLICATIONNAMESPACEMAP"], oid, Some(Oid::INVALID)),
        };
        let hashes = [hash_oid(oid).rotate_left(7), hash_oid(oid)];
        let mut messages: Vec<_> = caches.iter().zip(hashes).filter_map(|(name, hash)| self.catcache(name, hash)).collect();
        messages.extend(relcache_of.map(|rel| relcache(rel.0)));
        messages
    }

    /// A command: rows of catalogs with their new-cid records, then its messages, now (14 and later) or at the commit.
    fn command(&mut self, at: usize, rows: &[(Row, Value)], more: &[InvalidationMessage]) {
        let Some((_, xid, top)) = self.writer.choose(at as u8) else { return };
        let top_xid = self.writer.open[at].levels[0].xid;
        let command = self.writer.open[at].command;
        for (row, value) in rows {
            self.writer.log.catalog_row(xid, top);
            self.writer.log.new_cid(xid, top, command);
            self.versions.change(*row, *value, (xid, top_xid), command, self.writer.log.last_lsn());
        }
        self.writer.open[at].command += 1;
        let mut messages: Vec<_> = rows.iter().flat_map(|(row, _)| self.messages(*row)).collect();
        messages.extend(more);
        if self.writer.version != PgVersion::V13 {
            self.writer.log.invalidations(xid, top, &messages);
        }
        self.writer.open[at].levels.last_mut().unwrap().messages.extend(messages);
    }

    /// A new version of a row, where it has one or not.
    fn value(&mut self, file: u32) -> Value {
        Some(self.versions.version(file, false))
    }

    fn ddl(&mut self, n: u8, rel: Oid, ddl: Ddl) {
        let Some((at, ..)) = self.writer.choose(n) else { return };
        let (class, number) = (Row::Class(rel), self.file_of(at, rel));
        let (alone, row) = ((Lock::Relation(rel), true), (Lock::Row(class), true));
        match (ddl, number) {
            (Ddl::Create, None) => {
                let Some(new) = self.free_file(at) else { return };
                if self.lock(at, &[alone, row, (Lock::File(new), true)]) {
                    let (value, attributes) = (self.value(new), self.value(0));
                    self.command(at, &[(class, value), (Row::Attributes(rel), attributes)], &[]);
                }
            }
            (Ddl::Drop, Some(old)) if self.lock(at, &[alone, row, (Lock::File(old), true)]) => {
                self.command(at, &[(class, None), (Row::Attributes(rel), None)], &[]);
            }
            (Ddl::Rewrite, Some(old)) => self.rewrite(at, rel, old),
            (Ddl::Truncate, Some(old)) => {
                let Some(new) = self.free_file(at) else { return };
                if self.lock(at, &[alone, row, (Lock::File(new), true), (Lock::File(old), true)]) {
                    let value = self.value(new);
                    self.command(at, &[(class, value)], &[]);
                    let Some((_, xid, top)) = self.writer.choose(at as u8) else { return };
                    self.writer.log.truncate_in(xid, top, [rel.0]);
                }
            }
            (Ddl::AddColumn, Some(old)) if self.lock(at, &[alone, row, (Lock::Row(Row::Attributes(rel)), true)]) => {
                let (value, attributes) = (self.value(old), self.value(0));
                self.command(at, &[(Row::Attributes(rel), attributes), (class, value)], &[]);
            }
            (Ddl::Grant, Some(old)) => self.change_row(at, Some(rel), class, Some(old), &[]),
            (Ddl::Statistics, Some(_)) => self.change_row(at, Some(rel), Row::Attributes(rel), Some(0), &[]),
            (Ddl::Publish, Some(_)) => self.toggle(at, Some(rel), Row::PublicationRel(rel)),
            (Ddl::PublishSchema, _) => self.toggle(at, None, Row::PublicationNamespace(NAMESPACE)),
            (Ddl::Type, _) => self.toggle(at, None, Row::Type(KEYS[1 + rel.0 as usize % 2])),
            (Ddl::Schema, _) => self.change_row(at, None, Row::Namespace(NAMESPACE), Some(0), &[]),
            (Ddl::Am, _) => self.change_row(at, None, Row::Am(KEYS[3]), Some(0), &[]),
            (Ddl::Publication(renamed), _) => {
                let relsync = |rel| InvalidationMessage::Relsync { db: DATABASE, rel };
                let more = match (renamed, self.writer.version) {
                    // Of all tables, or of those that it names.
                    (true, PgVersion::V18) if rel.0.is_multiple_of(2) => vec![relsync(Oid::INVALID)],
                    (true, PgVersion::V18) => (20_000..20_000 + RELATIONS).map(|rel| relsync(Oid(rel))).collect(),
                    (true, _) => vec![],
                    (false, _) => vec![relcache(0)],
                };
                self.change_row(at, None, Row::Publications, Some(0), &more);
            }
            (Ddl::RewriteCatalog, _) => {
                let catalog = CATALOGS[rel.0 as usize % CATALOGS.len()];
                let (db, relmap) = (DATABASE, InvalidationMessage::Relmap { db: DATABASE });
                let more = [InvalidationMessage::Catalog { db, catalog }, relmap];
                self.change_row(at, None, Row::Class(catalog), Some(0), &more);
            }
            (Ddl::AllRelations, _) => self.command(at, &[], &[relcache(0), relcache(rel.0)]),
            (Ddl::Noise, _) => self.command(at, &[], &Self::noise(rel)),
            _ => {}
        }
    }

    /// Messages that concern nothing that is cached.
    fn noise(rel: Oid) -> [InvalidationMessage; 4] {
        let db = DATABASE;
        [
            InvalidationMessage::Snapshot { db, rel: catalog::DEPEND },
            InvalidationMessage::Relmap { db },
            InvalidationMessage::Smgr { backend: -1, locator: file(rel.0) },
            InvalidationMessage::Relcache { db: Oid(6), rel },
        ]
    }

    /// A row changes while others use its relation.
    fn change_row(&mut self, at: usize, of: Option<Oid>, row: Row, number: Option<u32>, more: &[InvalidationMessage]) {
        let shared = of.map(|rel| (Lock::Relation(rel), false));
        let wanted: Vec<_> = shared.into_iter().chain([(Lock::Row(row), true)]).collect();
        if self.lock(at, &wanted) {
            let value: Option<Version> = number.map(|number| self.versions.version(number, false));
            self.command(at, &[(row, value)], more);
        }
    }

    /// A row goes if it is there, and comes if not.
    fn toggle(&mut self, at: usize, of: Option<Oid>, row: Row) {
        let number = if self.seen(at, row).is_some() { None } else { Some(0) };
        self.change_row(at, of, row, number, &[]);
    }

    /// ALTER TABLE that writes a new heap: it is created, filled, swapped for the old one and dropped.
    fn rewrite(&mut self, at: usize, rel: Oid, old: u32) {
        let Some(new) = self.free_file(at) else { return };
        let (class, transient) = (Row::Class(rel), Row::Class(Oid(new)));
        let locks = [Lock::Relation(rel), Lock::Row(class), Lock::Row(transient), Lock::File(new), Lock::File(old)];
        if !self.lock(at, &locks.map(|lock| (lock, true))) {
            return;
        }
        let heap = |versions: &mut Versions, number| Some(versions.version(number, true));
        let created = heap(&mut self.versions, new);
        self.command(at, &[(transient, created)], &[]);
        let Some((_, xid, top)) = self.writer.choose(at as u8) else { return };
        self.writer.log.insert(xid, top, new);
        let (swapped, left) = (self.value(new), heap(&mut self.versions, old));
        self.command(at, &[(class, swapped), (transient, left)], &[]);
        self.command(at, &[(transient, None)], &[]);
    }
}

/// The records of a history, and the versions of the catalogs' rows.
pub(crate) fn write(moves: &[Move], version: PgVersion) -> (Log, Versions) {
    let mut historian = Historian::new(version);
    moves.iter().for_each(|a_move| historian.go(a_move));
    (historian.writer.log, historian.versions)
}
