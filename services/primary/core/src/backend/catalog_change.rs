//! Catalog rows change: the records, and the messages that follow (`catalog/indexing.c`: `CatalogTupleInsert` and the like;
//! `access/heap/heapam.c`: `log_heap_new_cid`; `utils/cache/inval.c`).

use std::sync::Arc;

use pg_types::record::{HeapDelete, HeapInsert, HeapLock, HeapMultiInsert, HeapUpdate, InplaceRecord, NewCidRecord};
use pg_types::{CommandId, Oid, RecordBody, Tid, Xid, catalog};

use super::{Backend, Result, StatementError};
use crate::catalog::{CatalogTuple, DATABASE, Relation, StoredTuple, TupleId, Undo};
use crate::invalidation_queue::InvalidationQueue;
use crate::xact::{RowChange, Told};

/// `XLHL_XMAX_LOCK_ONLY | XLHL_XMAX_EXCL_LOCK`.
const LOCKED_FOR_UPDATE: u8 = 0x02 | 0x04;
/// Bytes of a new version that a record keeps when the old one lies on the same page and most columns stay.
const SAME_PAGE_LEN: u32 = 19;

impl Backend<'_> {
    /// `CommandCounterIncrement`: if the command changed something, its messages are logged and the next command sees it.
    pub(crate) fn command_counter_increment(&mut self) -> Result<()> {
        if !self.xact.command_id_used {
            return Ok(());
        }
        self.xact.command_id.0 += 1;
        self.log_logical_invalidations()?;
        self.xact.level().queue.command_end();
        Ok(())
    }

    /// `LogLogicalInvalidations`: the messages of the command that runs. A transaction's last command ends with this alone.
    pub(super) fn log_logical_invalidations(&mut self) -> Result<()> {
        self.xact.command_id_used = false;
        let traits = self.cluster.catalog.traits;
        let messages = self.xact.level().queue.command_messages(traits.message_order);
        if !messages.is_empty() && traits.logs_command_messages {
            self.insert(&RecordBody::XactInvalidations(messages))?;
        }
        Ok(())
    }

    /// `CatalogTupleInsert`.
    pub(crate) fn catalog_insert(&mut self, tuple: CatalogTuple) -> Result<TupleId> {
        self.xid()?;
        self.xact.command_id_used = true;
        let (tid, init_page) = self.cluster.catalog.catalog_heap(tuple.catalog).place(tuple.record_len());
        let target = self.cluster.catalog.catalog_locator(tuple.catalog);
        self.log_new_cid(&tuple, tid, (self.xact.command_id, CommandId::INVALID, CommandId::INVALID))?;
        let insert = HeapInsert { target, tid, init_page, tuple_len: tuple.record_len(), ..HeapInsert::default() };
        self.log(&RecordBody::Insert(insert))?;
        self.invalidate_heap_tuple(&tuple, None);
        self.note_catalog_row(&tuple, Some(tid), None, false);
        Ok(self.store(tuple, tid))
    }

    /// `CatalogTuplesMultiInsertWithInfo` of rows of one catalog; row by row in versions without it.
    pub(crate) fn catalog_multi_insert(&mut self, tuples: Vec<CatalogTuple>) -> Result<Vec<TupleId>> {
        if !self.cluster.catalog.traits.catalog_multi_insert {
            return tuples.into_iter().map(|tuple| self.catalog_insert(tuple)).collect();
        }
        self.xid()?;
        self.xact.command_id_used = true;
        let cid = self.xact.command_id;
        let placed: Vec<(CatalogTuple, Tid, bool)> = tuples
            .into_iter()
            .map(|tuple| {
                let (tid, init) = self.cluster.catalog.catalog_heap(tuple.catalog).place(tuple.record_len());
                (tuple, tid, init)
            })
            .collect();
        let last_block = placed.last().map(|(_, tid, _)| tid.block);
        for page in placed.chunk_by(|a, b| a.1.block == b.1.block) {
            let Some((first, tid, init_page)) = page.first() else { continue };
            for (tuple, tid, _) in page {
                self.log_new_cid(tuple, *tid, (cid, CommandId::INVALID, CommandId::INVALID))?;
            }
            // A row has 7 bytes of header here where xl_heap_header has 5, and starts at an even offset.
            let each = (first.record_len() + 2).next_multiple_of(2);
            let multi = HeapMultiInsert {
                target: self.cluster.catalog.catalog_locator(first.catalog),
                block: tid.block,
                ntuples: page.len() as u16,
                last_in_multi: Some(tid.block) == last_block,
                init_page: *init_page,
                tuples_len: each * page.len() as u32,
                ..HeapMultiInsert::default()
            };
            self.log(&RecordBody::MultiInsert(multi))?;
        }
        placed.iter().for_each(|(tuple, tid, _)| {
            self.invalidate_heap_tuple(tuple, None);
            self.note_catalog_row(tuple, Some(*tid), None, false);
        });
        Ok(placed.into_iter().map(|(tuple, tid, _)| self.store(tuple, tid)).collect())
    }

    /// `CatalogTupleUpdate`: `change` makes the new version. It is heap-only if it fits beside the old one and no column that
    /// an index has (those are the columns that a row keeps) changes.
    pub(crate) fn catalog_update(&mut self, id: TupleId, change: impl FnOnce(&mut CatalogTuple)) -> Result<()> {
        let old = self.stored(id)?;
        let mut tuple = old.tuple.clone();
        change(&mut tuple);
        let xid = self.xid()?;
        self.xact.command_id_used = true;
        let (cid, target, len) =
            (self.xact.command_id, self.cluster.catalog.catalog_locator(tuple.catalog), tuple.record_len());
        let heap = self.cluster.catalog.catalog_heap(tuple.catalog);
        let beside = heap.place_beside(old.tid, len);
        let (new_tid, init_page) = beside.map_or_else(|| heap.place(len), |tid| (tid, false));
        if beside.is_none() {
            // The old row is locked while the new one's page is sought.
            let lock = HeapLock { target, tid: old.tid, xmax: xid, infobits: LOCKED_FOR_UPDATE };
            self.log(&RecordBody::Lock(lock))?;
        }
        let deleted = self.deleting_cids(&old);
        self.log_new_cid(&old.tuple, old.tid, deleted)?;
        self.log_new_cid(&tuple, new_tid, (cid, CommandId::INVALID, CommandId::INVALID))?;
        let hot = beside.is_some() && tuple == old.tuple;
        let update = HeapUpdate {
            target,
            old_tid: old.tid,
            new_tid,
            old_xmax: xid,
            hot,
            init_page,
            tuple_len: if beside.is_some() { SAME_PAGE_LEN } else { len },
            ..HeapUpdate::default()
        };
        self.log(&RecordBody::Update(update))?;
        self.invalidate_heap_tuple(&old.tuple, Some(&tuple));
        self.note_catalog_row(&tuple, Some(new_tid), Some(old.tid), hot);
        let now = StoredTuple { tuple, tid: new_tid, xmin: self.xact.top_xid(), cmin: cid };
        self.replace(id, now);
        Ok(())
    }

    /// `CatalogTupleDelete`.
    pub(crate) fn catalog_delete(&mut self, id: TupleId) -> Result<()> {
        let old = self.stored(id)?;
        let xmax = self.xid()?;
        self.xact.command_id_used = true;
        let deleted = self.deleting_cids(&old);
        self.log_new_cid(&old.tuple, old.tid, deleted)?;
        let delete = HeapDelete {
            target: self.cluster.catalog.catalog_locator(old.tuple.catalog),
            tid: old.tid,
            xmax,
            ..HeapDelete::default()
        };
        self.log(&RecordBody::Delete(delete))?;
        self.invalidate_heap_tuple(&old.tuple, None);
        self.note_catalog_row(&old.tuple, None, Some(old.tid), false);
        let before = self.cluster.catalog.replace_tuple(id, None);
        self.xact.level().undo.push(Undo::Tuple(id, before));
        Ok(())
    }

    /// Deletes all rows of a catalog that belong to an object, oldest first.
    pub(crate) fn catalog_delete_rows_of(&mut self, catalog: Oid, owner: Oid) -> Result<()> {
        self.cluster.catalog.rows_of(catalog, owner).into_iter().try_for_each(|id| self.catalog_delete(id))
    }

    /// The one row of a catalog that belongs to an object.
    pub(crate) fn row_of(&self, catalog: Oid, owner: Oid) -> Result<TupleId> {
        let refused = || StatementError::Refused(format!("catalog {catalog} has no row of object {owner}"));
        self.cluster.catalog.rows_of(catalog, owner).first().copied().ok_or_else(refused)
    }

    /// The pg_attribute row of a column.
    pub(crate) fn attribute_row(&self, rel: Oid, attnum: i16) -> Result<TupleId> {
        let catalog = &self.cluster.catalog;
        let is_it =
            |id: &TupleId| catalog.tuple(*id).is_some_and(|row| row.tuple.int_column("attnum") == Some(i64::from(attnum)));
        let found = catalog.rows_of(catalog::ATTRIBUTE, rel).into_iter().find(is_it);
        found.ok_or_else(|| StatementError::Refused(format!("relation {rel} has no column {attnum}")))
    }

    /// `heap_inplace_update`: the row is overwritten, with messages at once (18 and later) and at the end of the transaction.
    pub(crate) fn catalog_inplace_update(&mut self, id: TupleId) -> Result<()> {
        let old = self.stored(id)?;
        let mut at_once = InvalidationQueue::default();
        self.register(&mut at_once, &old.tuple, None);
        let record = InplaceRecord {
            target: self.cluster.catalog.catalog_locator(old.tuple.catalog),
            tid: old.tid,
            ..InplaceRecord::default()
        };
        let traits = self.cluster.catalog.traits;
        let record = if traits.inplace_messages {
            let messages = at_once.command_messages(traits.message_order);
            InplaceRecord {
                db: DATABASE,
                spc: Oid::DEFAULT_TABLESPACE,
                relcache_init_file_inval: at_once.init_file(),
                messages,
                ..record
            }
        } else {
            record
        };
        self.insert(&RecordBody::Inplace(Box::new(record)))?;
        self.invalidate_heap_tuple(&old.tuple, None);
        Ok(())
    }

    /// `CacheInvalidateHeapTuple` of a row that did not change.
    pub(crate) fn invalidate_row(&mut self, id: TupleId) -> Result<()> {
        let row = self.stored(id)?;
        self.invalidate_heap_tuple(&row.tuple, None);
        Ok(())
    }

    /// `CacheInvalidateRelcache`: a relcache entry must go although no row of its changed. The command id counts as used, so
    /// that the command's end logs the message.
    pub(crate) fn invalidate_relcache(&mut self, rel: Oid) {
        self.xact.command_id_used = true;
        self.xact.level().queue.register_relcache(DATABASE, rel);
        if self.cluster.catalog.is_in_init_file(rel) {
            self.xact.level().queue.touch_init_file();
        }
    }

    /// `CacheInvalidateCatalog`: all that is cached of a catalog that was written anew.
    pub(crate) fn invalidate_catalog(&mut self, catalog: Oid) {
        self.xact.level().queue.register_catalog(DATABASE, catalog);
    }

    /// The rows of a catalog that was written anew lie elsewhere.
    pub(crate) fn move_catalog_rows(&mut self, catalog: Oid) {
        for id in self.cluster.catalog.rows_in(catalog) {
            let Some(stored) = self.cluster.catalog.tuple(id).cloned() else { continue };
            let (tid, _) = self.cluster.catalog.catalog_heap(catalog).place(stored.tuple.record_len());
            self.replace(id, StoredTuple { tid, ..stored });
        }
    }

    /// `CacheInvalidateRelcacheAll`.
    pub(crate) fn invalidate_relcache_all(&mut self) {
        self.invalidate_relcache(Oid::INVALID);
    }

    /// `CacheInvalidateRelSync` (18 and later); of all relations if invalid.
    pub(crate) fn invalidate_relsync(&mut self, rel: Oid) {
        self.xact.command_id_used = true;
        self.xact.level().queue.register_relsync(DATABASE, rel);
    }

    /// Changes what the model knows of a relation; taken back at abort.
    pub(crate) fn change_relation(&mut self, oid: Oid, change: impl FnOnce(&mut Relation)) -> Result<()> {
        let mut relation = self.relation(oid)?.clone();
        change(&mut relation);
        self.put_relation(relation);
        Ok(())
    }

    /// Adds or replaces a relation; taken back at abort.
    pub(crate) fn put_relation(&mut self, relation: Relation) {
        let oid = relation.oid;
        let before = self.cluster.catalog.replace_relation(oid, Some(relation));
        self.xact.level().undo.push(Undo::Relation(oid, before));
    }

    /// Takes a relation away; taken back at abort.
    pub(crate) fn remove_relation(&mut self, oid: Oid) {
        let before = self.cluster.catalog.replace_relation(oid, None);
        self.xact.level().undo.push(Undo::Relation(oid, before));
    }

    /// Says what a name means in a catalog other than pg_class; taken back at abort.
    pub(crate) fn name_object(&mut self, class: Oid, name: &Arc<str>, now: Option<Oid>) {
        let before = self.cluster.catalog.name_object(class, name, now);
        self.xact.level().undo.push(Undo::Name(class, Arc::clone(name), before));
    }

    /// `CacheInvalidateHeapTuple`, for the transaction.
    fn invalidate_heap_tuple(&mut self, tuple: &CatalogTuple, new: Option<&CatalogTuple>) {
        let mut queue = std::mem::take(&mut self.xact.level().queue);
        self.register(&mut queue, tuple, new);
        self.xact.level().queue = queue;
        // Registering a relcache message marks the command id as used; so did changing the row, but for in-place updates.
        self.xact.command_id_used |= tuple.relcache_target().is_some();
    }

    /// The messages of a changed row: one of a snapshots-only catalog gives a snapshot message; any other one catcache message
    /// per syscache on its catalog (newest cache id first, the order of the server's list), a second where an update changes
    /// the key; then the relcache entry, if the row is part of one. A catalog with neither gives nothing.
    fn register(&self, queue: &mut InvalidationQueue, tuple: &CatalogTuple, new: Option<&CatalogTuple>) {
        let db = if catalog::is_shared(tuple.catalog) { Oid::INVALID } else { DATABASE };
        if catalog::invalidates_snapshots_only(tuple.catalog) {
            queue.register_snapshot(db, tuple.catalog);
            return;
        }
        let table = self.cluster.catalog.syscaches;
        for id in table.caches_on(tuple.catalog).iter().rev() {
            let hash = tuple.cache_hash(table.cache(*id));
            queue.register_catcache(id.message_id(), db, hash);
            let new_hash = new.map_or(hash, |new| new.cache_hash(table.cache(*id)));
            if new_hash != hash {
                queue.register_catcache(id.message_id(), db, new_hash);
            }
        }
        if let Some(rel) = tuple.relcache_target() {
            queue.register_relcache(DATABASE, rel);
            if self.cluster.catalog.is_in_init_file(rel) {
                queue.touch_init_file();
            }
        }
    }

    /// `log_heap_new_cid`: (cmin, cmax, combo).
    fn log_new_cid(&mut self, tuple: &CatalogTuple, tid: Tid, cids: (CommandId, CommandId, CommandId)) -> Result<()> {
        self.xid()?;
        let (cmin, cmax, combocid) = cids;
        let top_xid = self.xact.top_xid();
        let record =
            NewCidRecord { top_xid, cmin, cmax, combocid, target: self.cluster.catalog.catalog_locator(tuple.catalog), tid };
        self.log(&RecordBody::NewCid(Box::new(record)))?;
        Ok(())
    }

    /// Command ids of a row that this command deletes: a row of our own needs a combo to keep both.
    fn deleting_cids(&mut self, old: &StoredTuple) -> (CommandId, CommandId, CommandId) {
        let cid = self.xact.command_id;
        if old.xmin == self.xact.top_xid() && old.xmin != Xid::INVALID {
            (old.cmin, cid, self.xact.combo(old.cmin, cid))
        } else {
            (CommandId::INVALID, cid, CommandId::INVALID)
        }
    }

    /// A changed row: its pages are touched, and what becomes of it is known at the end.
    fn note_catalog_row(&mut self, tuple: &CatalogTuple, at_commit: Option<Tid>, at_abort: Option<Tid>, hot: bool) {
        let (filenode, xid) = (self.cluster.catalog.file_of(tuple.catalog), self.xact.current_xid());
        let change = RowChange { filenode, len: tuple.record_len(), xid, hot, at_commit, at_abort, told: Told::Everybody };
        self.cluster.catalog.heap(filenode).touch_row(&change);
        self.xact.level().catalog_rows.push(change);
    }

    /// A stored row, which must be there.
    fn stored(&self, id: TupleId) -> Result<StoredTuple> {
        let refused = || StatementError::Refused("a catalog row that it needs was deleted".to_owned());
        self.cluster.catalog.tuple(id).cloned().ok_or_else(refused)
    }

    /// Keeps a new row; taken back at abort.
    fn store(&mut self, tuple: CatalogTuple, tid: Tid) -> TupleId {
        let stored = StoredTuple { tuple, tid, xmin: self.xact.top_xid(), cmin: self.xact.command_id };
        let id = self.cluster.catalog.add_tuple(stored);
        self.xact.level().undo.push(Undo::Tuple(id, None));
        id
    }

    /// Replaces a row; taken back at abort.
    fn replace(&mut self, id: TupleId, now: StoredTuple) {
        let before = self.cluster.catalog.replace_tuple(id, Some(now));
        self.xact.level().undo.push(Undo::Tuple(id, before));
    }
}
