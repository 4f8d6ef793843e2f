//! Rows and truncations of a replay: their relations are opened, and what the plugin shows is handed out and counted.

use std::sync::Arc;

use pg_types::record::TruncateRecord;
use pg_types::{Lsn, Oid, RelFileLocator};

use super::Replay;
use crate::output::{DecodedChange, Relation, RelationChanges};
use crate::reorder_buffer::change::RowKind;
use crate::reorder_buffer::streaming::Shown;
use crate::reorder_buffer::txn::Txn;
use crate::sampling::Function;

/// Place of TRUNCATE among the counts of a relation, behind the actions.
pub(super) const TRUNCATE: usize = 3;

/// Relations of one transaction that are searched one by one; with more, an index is used.
const LINEAR_RELATIONS_MAX: usize = 12;

impl Replay<'_> {
    /// A row change of a transaction of `tree`: opens its relation and shows it.
    pub(super) fn rows(&mut self, lsn: Lsn, kind: RowKind, rows: u16, file: RelFileLocator, tree: &[Txn]) {
        let known = self.with.relations.of_file(file);
        // A mapped catalog's old file has no relation any more: its map is not historic.
        let unknown = self.with.relations.get(known).logged.is_none();
        let absent = unknown && kind.of_catalog() && file.rel >= Oid::FIRST_NORMAL.0;
        if self.status.is_some() && self.with.caches.must_load_file(file) && self.aborted_meanwhile(lsn) {
            return;
        }
        let Some(number) = self.with.caches.open_file(file, absent, &mut self.with.relations) else { return };
        self.with.caches.look_up_again(u64::from(rows.saturating_sub(1)));
        let relation = self.with.relations.get(number);
        if !relation.logged.unwrap_or(kind.looks_logged() && file.rel >= Oid::FIRST_NORMAL.0) {
            return;
        }
        let (oid, namespace) = (relation.oid, relation.namespace);
        let names = (number, oid, namespace);
        let told = self.with.caches.historic.is_some();
        if !told && relation.logged.is_some() && oid.0 != file.rel && self.is_transient(file, oid, tree) {
            return;
        }
        if self.status.is_some() && self.with.caches.must_load_names(names) && self.aborted_meanwhile(lsn) {
            return;
        }
        let action = kind.action();
        let outer = self.with.caches.marker.enter(Function::OutputPlugin);
        self.with.caches.hold(oid);
        let sent_as = self.sent_as(number, lsn, action as usize).filter(|_| !self.filters() || kind.has_row());
        match sent_as {
            Some(sent_as) => {
                self.count(lsn, sent_as, action as usize, rows.into());
                self.with.caches.show_rows(number, oid, namespace, rows.into());
                let relation = self.with.relations.get(sent_as);
                self.sink.change(&DecodedChange { lsn, xid: self.current.0, relation, action, rows });
            }
            None => self.with.caches.work.rows_filtered += u64::from(rows),
        }
        self.with.caches.release(oid);
        self.with.caches.marker.leave(outer);
    }

    /// A TRUNCATE.
    pub(super) fn truncate(&mut self, lsn: Lsn, record: &TruncateRecord) {
        let mut shown = Vec::with_capacity(record.relids.len());
        for (open, oid) in record.relids.iter().enumerate() {
            let number = self.with.relations.of_oid(*oid);
            let relation = self.with.relations.get(number);
            let (namespace, logged) = (relation.namespace, relation.logged);
            if self.status.is_some() && !self.with.caches.has_relation(*oid) && self.aborted_meanwhile(lsn) {
                record.relids[..open].iter().for_each(|oid| self.with.caches.release(*oid));
                return;
            }
            self.with.caches.open_relation(*oid, namespace);
            self.with.caches.hold(*oid);
            if logged.unwrap_or(true) {
                shown.push(number);
            }
        }
        let outer = self.with.caches.marker.enter(Function::OutputPlugin);
        self.wanted_truncates(lsn, &mut shown);
        if shown.is_empty() && self.filters() {
            record.relids.iter().for_each(|oid| self.with.caches.release(*oid));
            self.with.caches.marker.leave(outer);
            return;
        }
        let shown: Vec<&Relation> = shown.into_iter().map(|number| self.with.relations.get(number)).collect();
        shown.iter().for_each(|relation| self.with.caches.show_truncate(relation.oid, relation.namespace));
        self.sink.truncate(lsn, self.current.0, &shown, record);
        record.relids.iter().for_each(|oid| self.with.caches.release(*oid));
        self.with.caches.marker.leave(outer);
    }

    /// Counts `n` rows, or a TRUNCATE, of a relation.
    pub(super) fn count(&mut self, lsn: Lsn, number: u32, column: usize, n: u64) {
        if !self.block {
            *self.counts(number).column(column) += n;
            return;
        }
        let shown = &mut self.with.buffers.shown;
        let first = (lsn, shown.len());
        let sum = shown.entry((self.current.1, number)).or_insert(Shown { first, ..Shown::default() });
        sum.counts[column] += n;
    }

    /// The sums of one relation, at their end.
    pub(super) fn counts(&mut self, number: u32) -> &mut RelationChanges {
        let buffers = &mut self.with.buffers;
        let list = &mut buffers.out.relations;
        let known = if list.last().is_some_and(|last| last.number == number) {
            Some(list.len() - 1)
        } else if list.len() <= LINEAR_RELATIONS_MAX {
            list.iter().position(|r| r.number == number)
        } else {
            buffers.positions.get(&number).map(|at| *at as usize)
        };
        let at = known.unwrap_or_else(|| {
            let relation = self.with.relations.get(number);
            let name = Arc::clone(&relation.name);
            list.push(RelationChanges { name, oid: relation.oid, insert: 0, update: 0, delete: 0, truncate: 0, number });
            buffers.positions.insert(number, (list.len() - 1) as u32);
            list.len() - 1
        });
        &mut list[at]
    }
}
