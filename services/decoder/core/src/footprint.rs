//! What a transaction did beside changing rows: which catalogs it wrote, which files it made and dropped, what its messages name.
//!
//! Changes of catalogs never come into the reorder buffer, so what a transaction looks like must be seen when its records are decoded.
//! A NEW_CID record announces each catalog row that is written, and tells by its command ids what becomes of it: `cmin` alone is a
//! new row, `cmax` alone the end of one that was there before, both the end of a row of this transaction. An UPDATE has one of each
//! kind, and its own record says that they belong together. From the sums [`story`] tells which statements it was.
//!
//! ```text
//!   NEW_CID, UPDATE of a catalog, SMGR, lock, TRUNCATE, … ─► Txn::footprint ─(commit: subtransactions merged)─► DecodedTransaction
//! ```
//!
//! Invariants: I1 what changes rows of tables only has no footprint and costs nothing; I2 a footprint has at most
//! [`CATALOGS_MAX`] catalogs, [`FILES_MAX`] files and [`RELMAP_MAX`] mappings, what is more is counted only; I3 it does not depend on the profile.
//!
//! | operation | cost |
//! |---|---|
//! | NEW_CID | one search among the catalogs written so far, the last one first |
//! | row of a table | nothing; in a transaction that has a footprint, one search among the files it made |
//! | message of the commit record | one search among the caches named so far; relations are sorted once |
//!
//! Differences from PostgreSQL: it has nothing of the kind.

pub mod story;

use pg_types::record::{NewCidRecord, RelmapRecord, StandbyLock, TruncateRecord};
use pg_types::{InvalidationMessage, Oid, RecordBody, RelFileLocator};

/// Catalogs that are counted one by one; there are 64.
pub const CATALOGS_MAX: usize = 96;

/// Files made by a transaction that are known by number.
pub const FILES_MAX: usize = 64;

/// New files of mapped catalogs that are remembered, of one transaction.
pub const RELMAP_MAX: usize = 64;

/// What happened to the rows of one catalog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatalogRows {
    /// The catalog, or its file number if nothing tells whose file it is.
    pub catalog: Oid,
    /// Rows inserted.
    pub inserted: u64,
    /// Rows updated.
    pub updated: u64,
    /// Rows deleted that were there before.
    pub deleted: u64,
    /// Rows deleted that this transaction had inserted, or updated before.
    pub passing: u64,
    /// Rows overwritten in place.
    pub in_place: u64,
}

impl CatalogRows {
    /// Rows that are there afterwards and were not before.
    #[must_use]
    pub fn came(&self) -> u64 {
        self.inserted.saturating_sub(self.passing)
    }

    /// Rows that were there before and are not afterwards.
    #[must_use]
    pub fn gone(&self) -> u64 {
        self.deleted + self.passing.saturating_sub(self.inserted)
    }

    /// Rows that came and went.
    #[must_use]
    pub fn came_and_went(&self) -> u64 {
        self.passing.min(self.inserted)
    }

    /// Takes another's counts in.
    fn add(&mut self, other: &CatalogRows) {
        self.inserted += other.inserted;
        self.updated += other.updated;
        self.deleted += other.deleted;
        self.passing += other.passing;
        self.in_place += other.in_place;
    }
}

/// What a transaction did beside changing rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Rows of catalogs, in the order of their first.
    catalogs: Vec<CatalogRows>,
    /// Rows of catalogs beyond [`CATALOGS_MAX`].
    pub other_catalog_rows: u64,
    /// The last NEW_CID record with a `cmax` had a `cmin` too: which of two kinds an UPDATE takes back.
    last_passing: bool,
    /// NEW_CID records.
    pub new_cids: u64,
    /// Commands: one more than the greatest command id of a catalog row.
    pub commands: u32,
    /// Files made.
    pub files_created: u64,
    /// The first of them, by number.
    created: Vec<u32>,
    /// Files cut.
    pub files_cut: u64,
    /// Files that its commit drops.
    pub files_dropped: u64,
    /// Those of them that it had made itself, as far as known.
    pub created_and_dropped: u64,
    /// Relations locked with AccessExclusiveLock.
    pub locks: u64,
    /// Relations in TRUNCATE records.
    pub truncated: u64,
    /// One of those had CASCADE.
    pub truncate_cascade: bool,
    /// One of those had RESTART IDENTITY.
    pub truncate_restart: bool,
    /// Rows of tables written into files that it made.
    pub rows_into_created: u64,
    /// Mappings of a rewritten catalog, kept for decoding.
    pub rewrite_mappings: u64,
    /// Mapped relations to which it gave files that it had made.
    pub remapped: Vec<Oid>,
    /// It wrote a new relation map.
    pub relmap: bool,
    /// TOAST tables and sequences of this version have row types.
    pub storage_types: bool,
    /// Its catcache messages by cache id, in the order of the first of each.
    by_cache: Vec<(u8, u64)>,
    /// Different relations in its relcache messages.
    pub relations: u64,
    /// One of them means all relations.
    pub all_relations: bool,
}

impl Footprint {
    /// Nothing happened beside rows, and no message was sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.catalogs.is_empty() && self.by_cache.is_empty() && *self == Self::default()
    }

    /// Rows of catalogs, in the order of their first.
    #[must_use]
    pub fn catalogs(&self) -> &[CatalogRows] {
        &self.catalogs
    }

    /// What happened to one catalog.
    #[must_use]
    pub fn of(&self, catalog: Oid) -> CatalogRows {
        let known = self.catalogs.iter().find(|rows| rows.catalog == catalog);
        known.copied().unwrap_or(CatalogRows { catalog, ..CatalogRows::default() })
    }

    /// Catcache messages by cache id, those of caches without any left out.
    pub fn caches(&self) -> impl Iterator<Item = (u8, u64)> {
        self.by_cache.iter().copied()
    }

    /// Counts that are no catalog's and no cache's, under the names of their fields.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("new_cids", self.new_cids),
            ("commands", self.commands.into()),
            ("files_created", self.files_created),
            ("files_cut", self.files_cut),
            ("files_dropped", self.files_dropped),
            ("created_and_dropped", self.created_and_dropped),
            ("locks", self.locks),
            ("truncated", self.truncated),
            ("rows_into_created", self.rows_into_created),
            ("rewrite_mappings", self.rewrite_mappings),
            ("relations", self.relations),
            ("other_catalog_rows", self.other_catalog_rows),
        ]
        .into_iter()
    }

    /// Takes a record of a transaction in.
    pub(crate) fn note(&mut self, body: &RecordBody) {
        match body {
            RecordBody::NewCid(new_cid) => self.new_cid(new_cid),
            RecordBody::Update(update) => self.update(update.target),
            RecordBody::Inplace(inplace) => self.rows(inplace.target, |rows| rows.in_place += 1),
            RecordBody::SmgrCreate { target, fork: 0 } => self.file_created(target.rel),
            RecordBody::SmgrTruncate { .. } => self.files_cut += 1,
            RecordBody::StandbyLocks(locks) => self.locked(locks),
            RecordBody::Truncate(truncate) => self.truncate(truncate),
            RecordBody::Rewrite(rewrite) => self.rewrite_mappings += u64::from(rewrite.num_mappings),
            RecordBody::Relmap(map) => self.relmap(map),
            _ => {}
        }
    }

    /// Whether a record tells anything here; cheap, since it is asked of every record that has a transaction.
    pub(crate) fn concerns(body: &RecordBody) -> bool {
        match body {
            RecordBody::Update(update) => !update.logical,
            RecordBody::NewCid(_)
            | RecordBody::Inplace(_)
            | RecordBody::SmgrCreate { .. }
            | RecordBody::SmgrTruncate { .. }
            | RecordBody::StandbyLocks(_)
            | RecordBody::Truncate(_)
            | RecordBody::Rewrite(_)
            | RecordBody::Relmap(_) => true,
            _ => false,
        }
    }

    /// Rows of a table were written into `file`.
    pub(crate) fn rows_written(&mut self, file: u32, rows: u64) {
        if self.created.contains(&file) {
            self.rows_into_created += rows;
        }
    }

    /// A catalog row begins, ends, or both.
    fn new_cid(&mut self, new_cid: &NewCidRecord) {
        self.new_cids += 1;
        let valid = [new_cid.cmin, new_cid.cmax].into_iter().filter(|cid| cid.is_valid());
        self.commands = valid.map(|cid| cid.0.saturating_add(1)).fold(self.commands, u32::max);
        let (begun_here, ends) = (new_cid.cmin.is_valid(), new_cid.cmax.is_valid());
        if ends {
            self.last_passing = begun_here;
        }
        self.rows(new_cid.target, |rows| match (begun_here, ends) {
            (true, true) => rows.passing += 1,
            (false, true) => rows.deleted += 1,
            _ => rows.inserted += 1,
        });
    }

    /// The last two rows were one that was updated.
    fn update(&mut self, file: RelFileLocator) {
        let passing = self.last_passing;
        let Some(rows) = self.known(file) else { return };
        let ended = if passing { &mut rows.passing } else { &mut rows.deleted };
        if *ended > 0 && rows.inserted > 0 {
            *ended -= 1;
            rows.inserted -= 1;
            rows.updated += 1;
        }
    }

    /// The counts of a catalog's file, if it has any.
    fn known(&mut self, file: RelFileLocator) -> Option<&mut CatalogRows> {
        self.catalogs.iter_mut().rev().find(|rows| rows.catalog.0 == file.rel)
    }

    /// Counts a row of a catalog's file (I2).
    fn rows(&mut self, file: RelFileLocator, count: impl FnOnce(&mut CatalogRows)) {
        match self.catalogs.iter().rposition(|rows| rows.catalog.0 == file.rel) {
            Some(at) => count(&mut self.catalogs[at]),
            None if self.catalogs.len() < CATALOGS_MAX => {
                let mut rows = CatalogRows { catalog: Oid(file.rel), ..CatalogRows::default() };
                count(&mut rows);
                self.catalogs.push(rows);
            }
            None => self.other_catalog_rows += 1,
        }
    }

    /// A file was made.
    fn file_created(&mut self, file: u32) {
        self.files_created += 1;
        if self.created.len() < FILES_MAX {
            self.created.push(file);
        }
    }

    /// Relations were locked.
    fn locked(&mut self, locks: &[StandbyLock]) {
        self.locks += locks.len() as u64;
    }

    /// TRUNCATE.
    fn truncate(&mut self, truncate: &TruncateRecord) {
        self.truncated += truncate.relids.len() as u64;
        self.truncate_cascade |= truncate.cascade;
        self.truncate_restart |= truncate.restart_seqs;
    }

    /// A new relation map: which of its files were made here.
    fn relmap(&mut self, map: &RelmapRecord) {
        self.relmap = true;
        for (oid, file) in &map.mappings {
            if self.created.contains(file) && !self.remapped.contains(oid) && self.remapped.len() < RELMAP_MAX {
                self.remapped.push(*oid);
            }
        }
    }

    /// Takes a subtransaction's in.
    pub(crate) fn merge(&mut self, sub: &Footprint) {
        for rows in &sub.catalogs {
            let file = RelFileLocator { rel: rows.catalog.0, ..RelFileLocator::default() };
            self.rows(file, |own| own.add(rows));
        }
        self.other_catalog_rows += sub.other_catalog_rows;
        self.new_cids += sub.new_cids;
        self.commands = self.commands.max(sub.commands);
        self.files_created += sub.files_created;
        let room = FILES_MAX - self.created.len();
        self.created.extend(sub.created.iter().take(room));
        self.files_cut += sub.files_cut;
        self.locks += sub.locks;
        self.truncated += sub.truncated;
        self.truncate_cascade |= sub.truncate_cascade;
        self.truncate_restart |= sub.truncate_restart;
        self.rows_into_created += sub.rows_into_created;
        self.rewrite_mappings += sub.rewrite_mappings;
        let room = RELMAP_MAX - self.remapped.len();
        self.remapped.extend(sub.remapped.iter().take(room));
        self.relmap |= sub.relmap;
    }

    /// The transaction commits: files that it drops, and whose files the catalogs' are. `catalog_of` gives a catalog by its file number.
    pub(crate) fn finish(&mut self, dropped: &[RelFileLocator], catalog_of: impl Fn(u32) -> Option<Oid>) {
        self.files_dropped = dropped.len() as u64;
        self.created_and_dropped = dropped.iter().filter(|file| self.created.contains(&file.rel)).count() as u64;
        let unknown = |rows: &CatalogRows| rows.catalog.0 >= Oid::FIRST_NORMAL.0;
        if !self.catalogs.iter().any(unknown) {
            return;
        }
        let mut named: Vec<CatalogRows> = Vec::new();
        for rows in &self.catalogs {
            let catalog = if unknown(rows) { catalog_of(rows.catalog.0).unwrap_or(rows.catalog) } else { rows.catalog };
            match named.iter_mut().find(|known| known.catalog == catalog) {
                Some(known) => known.add(rows),
                None => named.push(CatalogRows { catalog, ..*rows }),
            }
        }
        self.catalogs = named;
    }

    /// Counts the commit record's messages. `seen` is memory to be used again.
    pub(crate) fn messages(&mut self, messages: &[InvalidationMessage], seen: &mut Vec<Oid>) {
        seen.clear();
        for message in messages {
            match message {
                InvalidationMessage::Catcache { cache_id, .. } => {
                    let id = *cache_id as u8;
                    match self.by_cache.iter_mut().find(|(known, _)| *known == id) {
                        Some((_, n)) => *n += 1,
                        None => self.by_cache.push((id, 1)),
                    }
                }
                InvalidationMessage::Relcache { rel, .. } if !rel.is_valid() => self.all_relations = true,
                InvalidationMessage::Relcache { rel, .. } if seen.last() != Some(rel) => seen.push(*rel),
                _ => {}
            }
        }
        seen.sort_unstable();
        seen.dedup();
        self.relations = seen.len() as u64;
    }

    /// Empties it and keeps its buffers.
    pub(crate) fn clear(&mut self) {
        if self.is_empty() {
            return;
        }
        let (mut catalogs, mut created) = (std::mem::take(&mut self.catalogs), std::mem::take(&mut self.created));
        let mut by_cache = std::mem::take(&mut self.by_cache);
        catalogs.clear();
        created.clear();
        by_cache.clear();
        *self = Self { catalogs, created, by_cache, ..Self::default() };
    }
}
