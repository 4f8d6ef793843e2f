//! Rows that say what is published: from when to when they count.
//!
//! Whoever gives records tells what they do to such rows ([`Decoder::catalog_row`]), since records here hold no rows; ends of transactions
//! make it count.

use pg_types::catalog_row::{CatalogRowChange, RowPlace};
use pg_types::{CatalogRow, Oid, RecordBody, RelFileLocator, WalRecord, Xid, catalog};

use crate::catalog::Catalog;
use crate::decode::Decoder;
use crate::reorder_buffer::replay::ended_xid;

/// The rows of a catalog copy, each with its place.
pub(super) fn rows(of: &dyn Catalog, database: Oid) -> Vec<(Option<RowPlace>, CatalogRow)> {
    let place = |row: &CatalogRow, tid| {
        let catalog = match row {
            CatalogRow::Publication(_) => catalog::PUBLICATION,
            CatalogRow::PublicationRel { .. } => catalog::PUBLICATION_REL,
            CatalogRow::PublicationNamespace { .. } => catalog::PUBLICATION_NAMESPACE,
            CatalogRow::Inherits { .. } => catalog::INHERITS,
        };
        (RelFileLocator { spc: Oid::DEFAULT_TABLESPACE, db: database, rel: catalog.0 }, tid)
    };
    of.publication_rows().into_iter().map(|(tid, row)| (tid.map(|tid| place(&row, tid)), row)).collect()
}

impl Decoder {
    /// Rows that say what is published, as they were before the WAL, where they are known to be: for who reads rows in records.
    #[must_use]
    pub fn published_before(of: &dyn Catalog, database: Oid) -> Vec<(RowPlace, CatalogRow)> {
        rows(of, database).into_iter().filter_map(|(place, row)| Some((place?, row))).collect()
    }

    /// It has a use for [`Decoder::catalog_row`].
    #[must_use]
    pub fn reads_catalog_rows(&self) -> bool {
        self.replayer.publications.is_some()
    }

    /// What the record that is processed next does to a row that says what is published; `xid` is the record's.
    pub fn catalog_row(&mut self, xid: Xid, change: CatalogRowChange) {
        let places = [change.old, change.new].into_iter().flatten();
        if places.into_iter().any(|(file, _)| file.db != self.config.database) {
            return;
        }
        if let Some(publications) = &mut self.replayer.publications {
            publications.change(xid, change);
        }
    }

    /// After a record: what transactions that ended with it did counts from there on, or never.
    pub(super) fn note_published(&mut self, record: &WalRecord) {
        let Some(publications) = &mut self.replayer.publications else { return };
        match &record.body {
            RecordBody::Commit(commit) => {
                let xid = ended_xid(commit.prepared_xid, record.xid);
                publications.committed(|of| of == xid || commit.subxids.contains(&of), record.lsn);
            }
            RecordBody::Abort(abort) => {
                let xid = ended_xid(abort.prepared_xid, record.xid);
                publications.aborted(|of| of == xid || abort.subxids.contains(&of));
            }
            _ => {}
        }
    }
}
