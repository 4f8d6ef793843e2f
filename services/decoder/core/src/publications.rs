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
//! Invariants: I1 the answer depends on rows alone, never on caches; I2 an answer that is remembered is of the same rows.
//!
//! | operation | cost |
//! |---|---|
//! | answer, known | O(1) |
//! | answer | publications asked for + rows of the relation, of its schema and of each ancestor |
//!
//! Differences from PostgreSQL: rows are as they were before the WAL, whatever it does to publications; row filters and column lists (15 and later) are not evaluated, since rows are not kept: what a filter would
//! keep back is given out.

use pg_types::{CatalogRow, Oid, PublicationRow};
use rustc_hash::FxHashMap;

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

/// The publications that are asked for, and the rows that say what they publish.
#[derive(Debug)]
pub(crate) struct Publications {
    /// Names asked for (`publication_names`).
    names: Vec<String>,
    /// All rows.
    rows: Vec<CatalogRow>,
    /// Their places by key.
    by_key: FxHashMap<Key, Vec<usize>>,
    /// Answers, of the rows as they are now (I2).
    known: FxHashMap<Oid, Published>,
}

impl Publications {
    /// Those with `names`, of catalogs that have `rows` when the WAL begins.
    pub(crate) fn new(names: Vec<String>, rows: Vec<CatalogRow>) -> Self {
        let mut all = Self { names, rows: Vec::new(), by_key: FxHashMap::default(), known: FxHashMap::default() };
        rows.into_iter().for_each(|row| all.add(row));
        all
    }

    /// Adds a row.
    fn add(&mut self, row: CatalogRow) {
        self.by_key.entry(Key::of(&row)).or_default().push(self.rows.len());
        self.rows.push(row);
    }

    /// Rows with a key.
    fn seen(&self, key: Key) -> impl Iterator<Item = &CatalogRow> {
        let places = self.by_key.get(&key).map_or(&[][..], Vec::as_slice);
        places.iter().filter_map(|place| self.rows.get(*place))
    }

    /// Names asked for that no publication has now (`LoadPublications` fails on them up to 17).
    pub(crate) fn missing(&self) -> Vec<String> {
        let known = |name: &&String| self.seen(Key::Publications).any(|row| is_named(row, name));
        self.names.iter().filter(|name| !known(name)).cloned().collect()
    }

    /// `get_rel_sync_entry`.
    pub(crate) fn published(&mut self, rel: Oid, facts: &dyn RelationFacts) -> Published {
        if let Some(known) = self.known.get(&rel) {
            return *known;
        }
        let published = self.look_up(rel, facts);
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(rel, published);
        published
    }

    /// The same from the rows.
    fn look_up(&self, rel: Oid, facts: &dyn RelationFacts) -> Published {
        let ancestors = self.ancestors(rel, facts);
        let partitioned = facts.kind(rel) == Some(PARTITIONED);
        let (mut published, mut level) = (Published::default(), 0);
        for publication in self.asked_for() {
            let Some(own_level) = self.level(publication, rel, &ancestors, facts) else { continue };
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
    fn asked_for(&self) -> impl Iterator<Item = &PublicationRow> {
        self.seen(Key::Publications).filter_map(|row| match row {
            CatalogRow::Publication(publication) if self.names.iter().any(|name| is_named(row, name)) => Some(publication),
            _ => None,
        })
    }

    /// If a publication has a relation with these ancestors: as the how manieth of them it is sent, from 1 on, or 0 as itself.
    fn level(&self, publication: &PublicationRow, rel: Oid, ancestors: &[Oid], facts: &dyn RelationFacts) -> Option<usize> {
        let has = |rel: Oid| self.has(publication.oid, rel, facts);
        // `GetTopMostAncestorInPublication`
        let topmost = match publication.all_tables {
            true => ancestors.len(),
            false => ancestors.iter().rposition(|ancestor| has(*ancestor)).map_or(0, |place| place + 1),
        };
        let published = publication.all_tables || topmost > 0 || has(rel);
        published.then_some(if publication.via_root { topmost } else { 0 })
    }

    /// Whether a publication names a relation or its schema.
    fn has(&self, publication: Oid, rel: Oid, facts: &dyn RelationFacts) -> bool {
        let of_it = |row: &CatalogRow| match row {
            CatalogRow::PublicationRel { publication: of, .. } | CatalogRow::PublicationNamespace { publication: of, .. } => {
                *of == publication
            }
            _ => false,
        };
        self.seen(Key::Rel(rel)).any(of_it) || self.seen(Key::Namespace(facts.namespace(rel))).any(of_it)
    }

    /// `get_partition_ancestors`: the partitioned tables that a relation is a partition of, the nearest first.
    fn ancestors(&self, rel: Oid, facts: &dyn RelationFacts) -> Vec<Oid> {
        let mut ancestors = Vec::new();
        let mut child = rel;
        while ancestors.len() < ANCESTORS_MAX {
            let parent = self.seen(Key::Child(child)).find_map(|row| match row {
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
        let mut all = Publications::new(names, rows.into_iter().chain(tree).collect());
        let first = all.published(Oid(rel), &Facts);
        assert_eq!(all.published(Oid(rel), &Facts), first, "I2");
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

    #[test]
    fn publications_that_are_not_there_are_named() {
        let all = Publications::new(vec!["p1".to_owned(), "p2".to_owned()], vec![publication(1, true, ALL, false)]);
        assert_eq!(all.missing(), ["p2"]);
    }
}
