//! What is published, as csv: copies of the catalogs from before the WAL, each of which may be missing.
//!
//! | file | columns, by header |
//! |---|---|
//! | `pg_publication_start.csv` | `oid, pubname, puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot` |
//! | `pg_publication_rel_start.csv` | `prpubid, prrelid` |
//! | `pg_publication_namespace_start.csv` | `pnpubid, pnnspid` |
//! | `pg_inherits_start.csv` | `inhrelid, inhparent` |
//!
//! Each may have a column `ctid`: with it, WAL tells when a row is deleted or changed.

use std::path::Path;

use pg_types::{CatalogRow, Oid, PublicationRow, Tid};

use super::{CatalogError, read_regular};

/// A catalog's file, its columns, and what a row of it is.
struct Kind {
    /// The file's name.
    file: &'static str,
    /// Columns that it must have.
    columns: &'static [&'static str],
    /// Makes a row of the values of those.
    row: fn(&Values<'_>) -> Result<CatalogRow, CatalogError>,
}

/// All.
const KINDS: [Kind; 4] = [
    Kind {
        file: "pg_publication_start.csv",
        columns: &["oid", "pubname", "puballtables", "pubinsert", "pubupdate", "pubdelete", "pubtruncate", "pubviaroot"],
        row: |values| {
            Ok(CatalogRow::Publication(PublicationRow {
                oid: values.oid(0)?,
                name: values.text(1).into(),
                all_tables: values.flag(2)?,
                actions: [values.flag(3)?, values.flag(4)?, values.flag(5)?, values.flag(6)?],
                via_root: values.flag(7)?,
            }))
        },
    },
    Kind {
        file: "pg_publication_rel_start.csv",
        columns: &["prpubid", "prrelid"],
        row: |values| Ok(CatalogRow::PublicationRel { publication: values.oid(0)?, rel: values.oid(1)? }),
    },
    Kind {
        file: "pg_publication_namespace_start.csv",
        columns: &["pnpubid", "pnnspid"],
        row: |values| Ok(CatalogRow::PublicationNamespace { publication: values.oid(0)?, namespace: values.oid(1)? }),
    },
    Kind {
        file: "pg_inherits_start.csv",
        columns: &["inhrelid", "inhparent"],
        row: |values| Ok(CatalogRow::Inherits { child: values.oid(0)?, parent: values.oid(1)? }),
    },
];

/// The values of a row.
struct Values<'a> {
    /// The row.
    row: &'a csv::ByteRecord,
    /// Where the columns are.
    at: Vec<usize>,
    /// Their names.
    columns: &'static [&'static str],
    /// The file.
    path: &'a Path,
}

impl Values<'_> {
    /// A column's text.
    fn text(&self, column: usize) -> String {
        let value = self.at.get(column).and_then(|at| self.row.get(*at)).unwrap_or_default();
        String::from_utf8_lossy(value).into_owned()
    }

    /// A column that is no `wanted`.
    fn wrong(&self, column: usize, wanted: &'static str) -> CatalogError {
        CatalogError::Value {
            path: self.path.to_owned(),
            line: self.row.position().map_or(0, csv::Position::line),
            column: self.columns.get(column).copied().unwrap_or_default(),
            value: self.text(column).escape_debug().to_string(),
            wanted,
        }
    }

    /// An oid.
    fn oid(&self, column: usize) -> Result<Oid, CatalogError> {
        self.text(column).parse().map(Oid).map_err(|_| self.wrong(column, super::NUMBER))
    }

    /// A boolean, as COPY writes it.
    fn flag(&self, column: usize) -> Result<bool, CatalogError> {
        match &*self.text(column) {
            "t" | "true" => Ok(true),
            "f" | "false" => Ok(false),
            _ => Err(self.wrong(column, "t or f")),
        }
    }
}

/// All rows of the files that are in `dir`.
///
/// # Errors
/// A file is no such csv: file, line and column are named.
pub(super) fn load(dir: &Path) -> Result<Vec<(Option<Tid>, CatalogRow)>, CatalogError> {
    let mut rows = Vec::new();
    for kind in &KINDS {
        let path = dir.join(kind.file);
        match read_regular(&path) {
            Ok(text) => read(kind, &text, &path, &mut rows)?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(CatalogError::Read { path, source }),
        }
    }
    Ok(rows)
}

/// The rows of one.
fn read(kind: &Kind, text: &[u8], path: &Path, rows: &mut Vec<(Option<Tid>, CatalogRow)>) -> Result<(), CatalogError> {
    let csv_error = |source| CatalogError::Csv { path: path.to_owned(), source };
    let mut reader = csv::Reader::from_reader(text);
    let header = reader.byte_headers().map_err(csv_error)?;
    let place = |column: &&'static str| {
        let at = header.iter().position(|name| name == column.as_bytes());
        at.ok_or(CatalogError::Column { path: path.to_owned(), column, all: kind.columns.join(", ") })
    };
    let at = kind.columns.iter().map(place).collect::<Result<Vec<_>, _>>()?;
    let ctid = header.iter().position(|name| name == b"ctid");
    for row in reader.byte_records() {
        let row = row.map_err(csv_error)?;
        let values = Values { row: &row, at: at.clone(), columns: kind.columns, path };
        let place = ctid.map(|at| tid(&values, row.get(at).unwrap_or_default())).transpose()?;
        rows.push((place, (kind.row)(&values)?));
    }
    Ok(())
}

/// A row's place, as `(block,offset)`.
fn tid(values: &Values<'_>, text: &[u8]) -> Result<Tid, CatalogError> {
    let text = String::from_utf8_lossy(text);
    let parts = text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).and_then(|inner| inner.split_once(','));
    let tid = parts.and_then(|(block, offset)| Some(Tid { block: block.parse().ok()?, offset: offset.parse().ok()? }));
    tid.ok_or_else(|| CatalogError::Value {
        path: values.path.to_owned(),
        line: values.row.position().map_or(0, csv::Position::line),
        column: "ctid",
        value: text.escape_debug().to_string(),
        wanted: "(block,offset)",
    })
}
