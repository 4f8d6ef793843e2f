//! Which changes a subscriber gets: `get_rel_sync_entry` of `replication/pgoutput/pgoutput.c`, and what it reads of
//! `catalog/pg_publication.c`.
//!
//! `pgoutput` is asked for some publications by name. A change is decoded first, whatever it is of, and then thrown away if none of them
//! has its relation or its kind of change: for a subscriber of little most of a walsender's time goes there. A partition is published with
//! its partitioned table, and as that one if the publication says so.
//!
//! ```text
//!   relation ─► publications of it, of its schema, of all tables, of what it is a partition of
//!                  └► asked for? ─► actions of all of them; the topmost relation as which it is sent
//! ```
//!
//! Rows of the catalogs begin and end in the WAL, so that a change is judged with the rows of its moment: those that committed before it, and of
//! its own transaction's those that commands before its own wrote (`HeapTupleSatisfiesHistoricMVCC`, [`crate::reorder_buffer::tuple_cids`]).
//! Servers answer from an entry as long as nobody drops it, so that what a transaction did before a publication changed may be judged as after
//! it, and up to 14 a partition of a partition that was detached as before; here the answer is that of the moment, under every profile.
//!
//! Invariants: I1 the answer depends on rows and moment alone, never on caches; I2 an answer that is remembered is of the same rows.
//!
//! | operation | cost |
//! |---|---|
//! | answer, known | O(1) |
//! | answer | publications asked for + rows of the relation, of its schema and of each ancestor |
//!
//! Differences from PostgreSQL: row filters and column lists (15 and later) are not evaluated, since rows are not kept: what a filter would
//! keep back is given out.

use pg_types::catalog_row::{CatalogRowChange, RowPlace};
use pg_types::{CatalogRow, Lsn, Oid, PublicationRow, Tid, Xid};
use rustc_hash::FxHashMap;

use crate::reorder_buffer::tuple_cids::TupleCidHash;

/// Partitions within each other at most; more are a loop.
const ANCESTORS_MAX: usize = 64;

/// Answers that are remembered; when there are more, all are forgotten.
const KNOWN_MAX: usize = 1 << 20;

/// `relkind` of a partitioned table.
const PARTITIONED: char = 'p';

/// By what rows are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// All of `pg_publication`.
    Publications,
    /// Those of a relation in `pg_publication_rel`.
    Rel(Oid),
    /// Those of a schema in `pg_publication_namespace`.
    Namespace(Oid),
    /// What a relation inherits of.
    Child(Oid),
}

impl Key {
    /// That of a row.
    fn of(row: &CatalogRow) -> Self {
        match row {
            CatalogRow::Publication(_) => Self::Publications,
            CatalogRow::PublicationRel { rel, .. } => Self::Rel(*rel),
            CatalogRow::PublicationNamespace { namespace, .. } => Self::Namespace(*namespace),
            CatalogRow::Inherits { child, .. } => Self::Child(*child),
        }
    }
}

/// What a relation's catalog row says of it, as far as it is known.
pub(crate) trait RelationFacts {
    /// Its schema.
    fn namespace(&self, rel: Oid) -> Oid;
    /// Its `relkind`.
    fn kind(&self, rel: Oid) -> Option<char>;
}

/// How a relation is published (`RelationSyncEntry`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Published {
    /// What of it, in the order of [`pg_types::catalog_row::PUBLISHED_ACTIONS`].
    pub(crate) actions: [bool; 4],
    /// It is sent as this one, whose partition it is (`publish_as_relid`).
    pub(crate) root: Option<Oid>,
}

/// When a change is made, and by whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment<'a> {
    /// Where its record starts.
    pub(crate) lsn: Lsn,
    /// Its transaction's command ids of catalog rows.
    pub(crate) own: &'a TupleCidHash,
    /// Its command (`curcid`).
    pub(crate) command_id: u32,
}

/// Where a version of a row begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    /// It was there before the WAL.
    Before,
    /// With the commit at this position.
    At(Lsn),
    /// With the commit of this (sub)transaction, if it comes.
    Running(Xid),
}

/// A version of a row.
#[derive(Debug)]
struct RowVersion {
    /// Its contents.
    row: CatalogRow,
    /// Where it is, if that is known.
    place: Option<RowPlace>,
    /// Where it begins.
    from: Bound,
    /// Where it ends.
    to: Option<Bound>,
}

impl RowVersion {
    /// `HeapTupleSatisfiesHistoricMVCC`: a row of a running transaction is seen by that one alone, from the next command on.
    fn is_visible(&self, at: Moment<'_>) -> bool {
        let own = || self.place.and_then(|place| at.own.resolve(place));
        let reached = |bound: Bound, cid: fn((pg_types::CommandId, pg_types::CommandId)) -> pg_types::CommandId| match bound {
            Bound::Before => true,
            Bound::At(lsn) => lsn < at.lsn,
            Bound::Running(_) => own().map(cid).is_some_and(|cid| cid.is_valid() && cid.0 < at.command_id),
        };
        reached(self.from, |(cmin, _)| cmin) && !self.to.is_some_and(|to| reached(to, |(_, cmax)| cmax))
    }

    /// Whether a transaction that is not over has a part in it.
    fn is_running(&self) -> bool {
        matches!(self.from, Bound::Running(_)) || matches!(self.to, Some(Bound::Running(_)))
    }
}

/// The publications that are asked for, and the rows that say what they publish.
#[derive(Debug)]
pub(crate) struct Publications {
    /// Names asked for (`publication_names`).
    names: Vec<String>,
    /// All versions.
    rows: Vec<RowVersion>,
    /// Their places by key.
    by_key: FxHashMap<Key, Vec<usize>>,
    /// Those at the end of each place's chain, by the catalog's file and the place.
    by_place: FxHashMap<(u32, Tid), usize>,
    /// Versions in which running transactions have a part.
    running: Vec<usize>,
    /// The last commit that changed a row.
    changed_at: Lsn,
    /// Answers of the rows as they are now (I2).
    known: FxHashMap<Oid, Published>,
}

impl Publications {
    /// Those with `names`, of catalogs that have `rows`, where they are known to be, when the WAL begins.
    pub(crate) fn new(names: Vec<String>, rows: Vec<(Option<RowPlace>, CatalogRow)>) -> Self {
        let mut all = Self {
            names,
            rows: Vec::new(),
            by_key: FxHashMap::default(),
            by_place: FxHashMap::default(),
            running: Vec::new(),
            changed_at: Lsn::INVALID,
            known: FxHashMap::default(),
        };
        rows.into_iter().for_each(|(place, row)| all.add(place, row, Bound::Before));
        all
    }

    /// Adds a version.
    fn add(&mut self, place: Option<RowPlace>, row: CatalogRow, from: Bound) {
        let at = self.rows.len();
        self.by_key.entry(Key::of(&row)).or_default().push(at);
        if let Some((file, tid)) = place {
            self.by_place.insert((file.rel, tid), at);
        }
        self.rows.push(RowVersion { row, place, from, to: None });
        if from != Bound::Before {
            self.running.push(at);
        }
    }

    /// A running transaction changed a row. What an update leaves out counts as it was.
    pub(crate) fn change(&mut self, xid: Xid, change: CatalogRowChange) {
        let old = change.old.and_then(|(file, tid)| self.by_place.get(&(file.rel, tid)).copied());
        let as_it_was = old.and_then(|at| self.rows.get(at)).map(|version| version.row.clone());
        if let Some((at, version)) = old.and_then(|at| Some((at, self.rows.get_mut(at)?))) {
            version.to = Some(Bound::Running(xid));
            self.running.push(at);
        }
        if let Some((place, row)) = change.new.zip(change.row.or(as_it_was)) {
            self.add(Some(place), row, Bound::Running(xid));
        }
    }

    /// Transactions that end together with the record at `lsn`: what they did counts from there on.
    pub(crate) fn committed(&mut self, xids: impl Fn(Xid) -> bool, lsn: Lsn) {
        self.ended(xids, |bound| *bound = Some(Bound::At(lsn)), lsn);
    }

    /// The same of those that are rolled back: what they did never counts.
    pub(crate) fn aborted(&mut self, xids: impl Fn(Xid) -> bool) {
        self.ended(xids, |bound| *bound = None, Lsn::INVALID);
    }

    /// Gives the bounds of some transactions what `end` makes of them; rows that never were are emptied of their key.
    fn ended(&mut self, xids: impl Fn(Xid) -> bool, end: impl Fn(&mut Option<Bound>), lsn: Lsn) {
        if self.running.is_empty() {
            return;
        }
        let is_theirs = |bound: Option<Bound>| matches!(bound, Some(Bound::Running(xid)) if xids(xid));
        let mut changed = false;
        for at in std::mem::take(&mut self.running) {
            let Some(version) = self.rows.get_mut(at) else { continue };
            if is_theirs(version.to) {
                end(&mut version.to);
                changed = true;
            }
            if is_theirs(Some(version.from)) {
                let mut from = Some(version.from);
                end(&mut from);
                // What was rolled back ends before anything.
                (version.from, version.to) = from.map_or((Bound::Before, Some(Bound::Before)), |from| (from, version.to));
                changed = true;
            }
            if version.is_running() && !self.running.contains(&at) {
                self.running.push(at);
            }
        }
        if changed {
            self.changed_at = self.changed_at.max(lsn);
            self.known.clear();
        }
    }

    /// Rows with a key that are seen.
    fn seen<'a>(&'a self, key: Key, at: Moment<'a>) -> impl Iterator<Item = &'a CatalogRow> {
        let places = self.by_key.get(&key).map_or(&[][..], Vec::as_slice);
        places.iter().filter_map(|place| self.rows.get(*place)).filter(move |row| row.is_visible(at)).map(|row| &row.row)
    }

    /// Names asked for that no publication has now (`LoadPublications` fails on them up to 17).
    pub(crate) fn missing(&self, at: Moment<'_>) -> Vec<String> {
        let known = |name: &&String| self.seen(Key::Publications, at).any(|row| is_named(row, name));
        self.names.iter().filter(|name| !known(name)).cloned().collect()
    }

    /// `get_rel_sync_entry`.
    pub(crate) fn published(&mut self, rel: Oid, at: Moment<'_>, facts: &dyn RelationFacts) -> Published {
        // Who is older than the last change, or has a part in one, sees other rows.
        let as_now = self.running.is_empty() && self.changed_at < at.lsn;
        if let Some(known) = self.known.get(&rel).filter(|_| as_now) {
            return *known;
        }
        let published = self.look_up(rel, at, facts);
        if !as_now {
            return published;
        }
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(rel, published);
        published
    }

    /// The same from the rows.
    fn look_up(&self, rel: Oid, at: Moment<'_>, facts: &dyn RelationFacts) -> Published {
        let ancestors = self.ancestors(rel, at, facts);
        let partitioned = facts.kind(rel) == Some(PARTITIONED);
        let (mut published, mut level) = (Published::default(), 0);
        for publication in self.asked_for(at) {
            let Some(own_level) = self.level(publication, rel, &ancestors, at, facts) else { continue };
            if partitioned && !publication.via_root {
                continue;
            }
            published.actions.iter_mut().zip(publication.actions).for_each(|(any, one)| *any |= one);
            level = level.max(own_level);
        }
        published.root = level.checked_sub(1).and_then(|place| ancestors.get(place)).copied();
        published
    }

    /// The publications asked for.
    fn asked_for<'a>(&'a self, at: Moment<'a>) -> impl Iterator<Item = &'a PublicationRow> {
        self.seen(Key::Publications, at).filter_map(move |row| match row {
            CatalogRow::Publication(publication) if self.names.iter().any(|name| is_named(row, name)) => Some(publication),
            _ => None,
        })
    }

    /// If a publication has a relation with these ancestors: as the how manieth of them it is sent, from 1 on, or 0 as itself.
    fn level(
        &self,
        publication: &PublicationRow,
        rel: Oid,
        ancestors: &[Oid],
        at: Moment<'_>,
        facts: &dyn RelationFacts,
    ) -> Option<usize> {
        let has = |rel: Oid| self.has(publication.oid, rel, at, facts);
        // `GetTopMostAncestorInPublication`
        let topmost = match publication.all_tables {
            true => ancestors.len(),
            false => ancestors.iter().rposition(|ancestor| has(*ancestor)).map_or(0, |place| place + 1),
        };
        let published = publication.all_tables || topmost > 0 || has(rel);
        published.then_some(if publication.via_root { topmost } else { 0 })
    }

    /// Whether a publication names a relation or its schema.
    fn has(&self, publication: Oid, rel: Oid, at: Moment<'_>, facts: &dyn RelationFacts) -> bool {
        let of_it = |row: &CatalogRow| match row {
            CatalogRow::PublicationRel { publication: of, .. } | CatalogRow::PublicationNamespace { publication: of, .. } => {
                *of == publication
            }
            _ => false,
        };
        self.seen(Key::Rel(rel), at).any(of_it) || self.seen(Key::Namespace(facts.namespace(rel)), at).any(of_it)
    }

    /// `get_partition_ancestors`: the partitioned tables that a relation is a partition of, the nearest first.
    fn ancestors(&self, rel: Oid, at: Moment<'_>, facts: &dyn RelationFacts) -> Vec<Oid> {
        let mut ancestors = Vec::new();
        let mut child = rel;
        while ancestors.len() < ANCESTORS_MAX {
            let parent = self.seen(Key::Child(child), at).find_map(|row| match row {
                CatalogRow::Inherits { parent, .. } if facts.kind(*parent) == Some(PARTITIONED) => Some(*parent),
                _ => None,
            });
            let Some(parent) = parent else { break };
            ancestors.push(parent);
            child = parent;
        }
        ancestors
    }
}

/// Whether a row is the publication of this name.
fn is_named(row: &CatalogRow, name: &str) -> bool {
    matches!(row, CatalogRow::Publication(publication) if &*publication.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Schema 1 holds all; 100 is partitioned into 110 and 120, and 110 into 111.
    struct Facts;

    impl RelationFacts for Facts {
        fn namespace(&self, rel: Oid) -> Oid {
            if rel.0 >= 300 { Oid(2) } else { Oid(1) }
        }

        fn kind(&self, rel: Oid) -> Option<char> {
            Some(if matches!(rel.0, 100 | 110) { PARTITIONED } else { 'r' })
        }
    }

    const ALL: [bool; 4] = [true; 4];
    const INSERT: [bool; 4] = [true, false, false, false];

    fn now(own: &TupleCidHash) -> Moment<'_> {
        Moment { lsn: Lsn(u64::MAX), own, command_id: 0 }
    }

    fn publication(oid: u32, all_tables: bool, actions: [bool; 4], via_root: bool) -> CatalogRow {
        CatalogRow::Publication(PublicationRow { oid: Oid(oid), name: format!("p{oid}").into(), all_tables, actions, via_root })
    }

    fn table(publication: u32, rel: u32) -> CatalogRow {
        CatalogRow::PublicationRel { publication: Oid(publication), rel: Oid(rel) }
    }

    fn published(names: &[&str], rows: Vec<CatalogRow>, rel: u32) -> ([bool; 4], u32) {
        let tree = [(110, 100), (120, 100), (111, 110), (200, 201)];
        let tree = tree.map(|(child, parent)| CatalogRow::Inherits { child: Oid(child), parent: Oid(parent) });
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let mut all = Publications::new(names, rows.into_iter().chain(tree).map(|row| (None, row)).collect());
        let first = all.published(Oid(rel), now(&TupleCidHash::default()), &Facts);
        assert_eq!(all.published(Oid(rel), now(&TupleCidHash::default()), &Facts), first, "I2");
        (first.actions, first.root.map_or(rel, |root| root.0))
    }

    #[test]
    fn tables_schemas_and_all_tables_are_published_if_asked_for() {
        let rows = || {
            let schema = CatalogRow::PublicationNamespace { publication: Oid(2), namespace: Oid(2) };
            vec![publication(1, false, ALL, false), table(1, 200), publication(2, false, INSERT, false), schema]
        };
        assert_eq!(published(&["p1"], rows(), 200), (ALL, 200));
        assert_eq!(published(&["p1"], rows(), 201), ([false; 4], 201), "what inherits of it is no partition");
        assert_eq!(published(&["p2", "p9"], rows(), 300), (INSERT, 300));
        assert_eq!(published(&["p1"], rows(), 300), ([false; 4], 300), "its publication is not asked for");
        assert_eq!(published(&["p3"], vec![publication(3, true, INSERT, false)], 300), (INSERT, 300));
        let both = vec![publication(1, true, INSERT, false), publication(2, true, [false, true, false, false], false)];
        assert_eq!(published(&["p1", "p2"], both, 200), ([true, true, false, false], 200));
    }

    #[test]
    fn partitions_are_published_with_their_tables_and_as_the_topmost_if_told_so() {
        let of = |rel, via_root| vec![publication(1, false, ALL, via_root), table(1, rel)];
        assert_eq!(published(&["p1"], of(100, false), 111), (ALL, 111));
        assert_eq!(published(&["p1"], of(100, true), 111), (ALL, 100));
        assert_eq!(published(&["p1"], of(110, true), 111), (ALL, 110));
        assert_eq!(published(&["p1"], of(110, true), 120), ([false; 4], 120));
        assert_eq!(published(&["p1"], of(100, false), 100), ([false; 4], 100), "its partitions suffice");
        assert_eq!(published(&["p1"], of(100, true), 100), (ALL, 100));
        let all = vec![publication(1, true, ALL, true), publication(2, false, ALL, true), table(2, 110)];
        assert_eq!(published(&["p1", "p2"], all, 111), (ALL, 100), "the topmost of several");
        assert_eq!(published(&["p1"], vec![publication(1, false, ALL, true), table(1, 111), table(1, 100)], 111), (ALL, 100));
    }

    /// A table joins a publication and leaves it again: who began before sees it as it was, its own transaction from the next command on.
    #[test]
    fn rows_count_from_their_commit_on_and_at_once_for_their_own_transaction() {
        let place = |offset| (pg_types::RelFileLocator { spc: Oid(1663), db: Oid(5), rel: 6106 }, Tid { block: 0, offset });
        let names = || vec!["p1".to_owned()];
        let mut all = Publications::new(names(), vec![(None, publication(1, false, ALL, false))]);
        let cids = |cmin: u32, cmax: u32| {
            let mut hash = TupleCidHash::default();
            let cid = |n: u32| if n == 9 { pg_types::CommandId::INVALID } else { pg_types::CommandId(n) };
            hash.add(place(1), cid(cmin), cid(cmax));
            hash
        };
        let (nothing, made, made_and_gone) = (TupleCidHash::default(), cids(2, 9), cids(2, 4));
        let sees = |all: &mut Publications, lsn, own, command_id| {
            all.published(Oid(200), Moment { lsn: Lsn(lsn), own, command_id }, &Facts).actions == ALL
        };
        all.change(Xid(7), CatalogRowChange { old: None, new: Some(place(1)), row: Some(table(1, 200)) });
        assert!(!sees(&mut all, 50, &nothing, 9), "another one runs");
        assert_eq!([2, 3].map(|command| sees(&mut all, 50, &made, command)), [false, true]);
        assert_eq!([3, 4, 5].map(|command| sees(&mut all, 50, &made_and_gone, command)), [true, true, true], "not deleted yet");
        all.committed(|xid| xid == Xid(7), Lsn(100));
        assert_eq!([100, 101].map(|lsn| sees(&mut all, lsn, &nothing, 0)), [false, true]);
        all.change(Xid(8), CatalogRowChange { old: Some(place(1)), new: None, row: None });
        assert!(sees(&mut all, 150, &nothing, 0));
        assert_eq!([4, 5].map(|command| sees(&mut all, 150, &made_and_gone, command)), [true, false]);
        all.aborted(|xid| xid == Xid(8));
        assert!(sees(&mut all, 150, &made_and_gone, 9), "rolled back");
        all.change(Xid(9), CatalogRowChange { old: Some(place(1)), new: None, row: None });
        all.committed(|xid| xid == Xid(9), Lsn(200));
        assert_eq!([200, 201].map(|lsn| sees(&mut all, lsn, &nothing, 0)), [true, false]);
        all.change(Xid(10), CatalogRowChange { old: None, new: Some(place(2)), row: Some(table(1, 200)) });
        all.aborted(|_| true);
        assert!(!sees(&mut all, 300, &nothing, 0) && all.running.is_empty());
    }

    #[test]
    fn publications_that_are_not_there_are_named() {
        let all = Publications::new(vec!["p1".to_owned(), "p2".to_owned()], vec![(None, publication(1, true, ALL, false))]);
        assert_eq!(all.missing(now(&TupleCidHash::default())), ["p2"]);
    }
}
