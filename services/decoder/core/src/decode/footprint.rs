//! Footprints of transactions: taken while their records are decoded, given out when they end.

use pg_types::{Oid, RecordBody};

use crate::decode::Decoder;
use crate::decode::xact::Ending;
use crate::reorder_buffer::txn::Txn;

/// Footprints that are kept to be used again.
const SPARE_MAX: usize = 16;

/// Files of mapped catalogs that are known at most; when more come, those from before are forgotten.
const MAPPED_FILES_MAX: usize = 1024;

impl Decoder {
    /// Neither shares messages out by cache and relation nor takes footprints: for measuring what that costs.
    #[must_use]
    pub fn without_attribution(mut self) -> Self {
        self.attributes = false;
        self.replayer.caches.without_attribution();
        self
    }

    /// Takes a record into the footprint of the transaction in slot `at`.
    pub(super) fn note_footprint(&mut self, at: u32, body: &RecordBody) {
        let spare = &mut self.spare_footprints;
        let footprint = &mut self.reorder_buffer.get_mut(at).footprint;
        footprint.get_or_insert_with(|| spare.pop().unwrap_or_default()).note(body);
        if let RecordBody::Relmap(map) = body {
            if self.mapped_files.len() + map.mappings.len() > MAPPED_FILES_MAX {
                self.mapped_files.clear();
            }
            self.mapped_files.extend(map.mappings.iter().map(|(oid, file)| (*file, *oid)));
        }
    }

    /// Rows of a table were written into `file` by the transaction in slot `at`.
    pub(super) fn note_rows(&mut self, at: u32, file: u32, rows: u16) {
        if let Some(footprint) = &mut self.reorder_buffer.get_mut(at).footprint {
            footprint.rows_written(file, rows.into());
        }
    }

    /// Moves the footprint of `tree`, which ends, to what is given out.
    pub(super) fn give_footprint(&mut self, ending: Ending<'_>, tree: &mut [Txn]) {
        let buffers = &mut self.replayer.buffers;
        let given = &mut buffers.out.footprint;
        let mut first = true;
        for mut taken in tree.iter_mut().filter_map(|txn| txn.footprint.take()) {
            match std::mem::take(&mut first) {
                true => std::mem::swap(given, &mut taken),
                false => given.merge(&taken),
            }
            taken.clear();
            if self.spare_footprints.len() < SPARE_MAX {
                self.spare_footprints.push(taken);
            }
        }
        if !self.attributes {
            return;
        }
        if !first || !ending.dropped.is_empty() {
            let (mapped, relations) = (&self.mapped_files, &self.replayer.relations);
            let catalog_of = |file: u32| -> Option<Oid> { mapped.get(&file).copied().or_else(|| relations.catalog_of(file)) };
            given.storage_types = self.rules.storage_types;
            given.finish(ending.dropped, catalog_of);
        }
        given.messages(ending.messages, &mut buffers.named);
    }
}
