//! A copy of `pg_class` as csv: `pg_class.csv` as it was at the end of the WAL and `pg_class_start.csv` as it was before.
//!
//! Columns, by header, in any order: `relname, oid, relfilenode, reltablespace, nsp, relkind` and, if there, `filenode_effective`
//! (`pg_relation_filenode`, which also knows the files of mapped catalogs) and `relnamespace` (the schema's oid, which publications of
//! schemas need). Either file may be missing, not both. Beside them may be copies of what is published ([`published`]).
//!
//! A file is looked for at the end, then at the start (relations dropped or rewritten since), then as the first file of a
//! relation, which carries the relation's oid as its number. Names are those at the end, for relations dropped since those at
//! the start; a relation renamed in between goes by its last name.
//!
//! Differences from PostgreSQL: a tablespace of 0 is the database's default one, which WAL does not name, so a file that is in
//! no named tablespace matches any.

mod published;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pg_types::{CatalogRow, Oid, RelFileLocator, Tid};

use crate::catalog::{Catalog, RelationInfo, quote_qualified_identifier};

/// File names looked for, the newer first.
const FILES: [&str; 2] = ["pg_class.csv", "pg_class_start.csv"];

/// What an oid is.
const NUMBER: &str = "a number below 2^32";

/// Schemas whose oid is fixed.
const PINNED_SCHEMAS: [(&str, Oid); 3] = [("pg_catalog", Oid(11)), ("pg_toast", Oid(99)), ("public", Oid(2200))];

/// A copy that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// Neither file is there.
    #[error("{dir} holds neither pg_class.csv nor pg_class_start.csv: export pg_class as csv with a header line")]
    Missing {
        /// The folder.
        dir: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no csv.
    #[error("{path} is no csv of pg_class")]
    Csv {
        /// The file.
        path: PathBuf,
        /// Why and where.
        source: csv::Error,
    },
    /// A column is missing.
    #[error("{path} has no column '{column}': its header line must name {all}")]
    Column {
        /// The file.
        path: PathBuf,
        /// The column.
        column: &'static str,
        /// All that are needed.
        all: String,
    },
    /// A value is of another type.
    #[error("{path}, line {line}: '{value}' is no value for {column}: {wanted} is wanted")]
    Value {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: u64,
        /// The column.
        column: &'static str,
        /// The text, control characters escaped.
        value: String,
        /// What it should be.
        wanted: &'static str,
    },
}

/// The copy.
#[derive(Debug, Default)]
pub struct CsvCatalog {
    /// Relations by oid, the newer copy's first.
    by_oid: BTreeMap<Oid, RelationInfo>,
    /// (tablespace, file) → oid at the end, and at the start.
    files: [BTreeMap<(Oid, u32), Oid>; 2],
    /// `relkind` of relations.
    kinds: BTreeMap<Oid, char>,
    /// What is published.
    published: Vec<(Option<Tid>, CatalogRow)>,
}

/// Reads a file, but no pipe or device, which may have no end.
fn read_regular(path: &Path) -> std::io::Result<Vec<u8>> {
    if std::fs::metadata(path)?.is_file() { std::fs::read(path) } else { Err(std::io::Error::other("it is no regular file")) }
}

impl CsvCatalog {
    /// Reads the copy in `dir`.
    ///
    /// # Errors
    /// No such file, or a file that is no such csv: file, line and column are named.
    pub fn load(dir: &Path) -> Result<CsvCatalog, CatalogError> {
        let mut catalog = CsvCatalog::default();
        let mut found = false;
        for (age, name) in FILES.iter().enumerate() {
            let path = dir.join(name);
            match read_regular(&path) {
                Ok(text) => catalog.read(age, &text, &path)?,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                Err(source) => return Err(CatalogError::Read { path, source }),
            }
            found = true;
        }
        catalog.published = published::load(dir)?;
        if found { Ok(catalog) } else { Err(CatalogError::Missing { dir: dir.to_owned() }) }
    }

    /// Relations known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_oid.len()
    }

    /// No relation is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_oid.is_empty()
    }

    /// Adds one file, the newer (`age` 0) before the older.
    fn read(&mut self, age: usize, text: &[u8], path: &Path) -> Result<(), CatalogError> {
        let csv_error = |source| CatalogError::Csv { path: path.to_owned(), source };
        let mut reader = csv::Reader::from_reader(text);
        let columns = Columns::find(reader.byte_headers().map_err(csv_error)?, path)?;
        for row in reader.byte_records() {
            let row = row.map_err(csv_error)?;
            self.add(age, &columns, &row, path)?;
        }
        Ok(())
    }

    /// Adds one row.
    fn add(&mut self, age: usize, columns: &Columns, row: &csv::ByteRecord, path: &Path) -> Result<(), CatalogError> {
        let text = |at: usize| String::from_utf8_lossy(row.get(at).unwrap_or_default());
        let number = |at: usize, column: &'static str| {
            let value = text(at);
            if value.is_empty() {
                return Ok(0);
            }
            value.parse::<u32>().map_err(|_| CatalogError::Value {
                path: path.to_owned(),
                line: row.position().map_or(0, csv::Position::line),
                column,
                value: value.escape_debug().to_string(),
                wanted: NUMBER,
            })
        };
        let oid = Oid(number(columns.oid, "oid")?);
        let tablespace = Oid(number(columns.reltablespace, "reltablespace")?);
        let own = number(columns.relfilenode, "relfilenode")?;
        let effective = columns.effective.map_or(Ok(0), |at| number(at, "filenode_effective"))?;
        let file = if effective == 0 { own } else { effective };
        let (schema, kind) = (text(columns.nsp), text(columns.relkind));
        let catalog = schema == "pg_catalog" && oid.0 < Oid::FIRST_NORMAL.0;
        let named = columns.relnamespace.map_or(Ok(0), |at| number(at, "relnamespace"))?;
        let pinned = || PINNED_SCHEMAS.iter().find(|(name, _)| *name == schema).map_or(Oid::INVALID, |(_, oid)| *oid);
        self.kinds.entry(oid).or_insert(kind.chars().next().unwrap_or_default());
        self.by_oid.entry(oid).or_insert_with(|| RelationInfo {
            oid,
            namespace: if named == 0 { pinned() } else { Oid(named) },
            name: Arc::from(quote_qualified_identifier(&schema, &text(columns.relname))),
            logged: matches!(&*kind, "r" | "p" | "m") && !catalog && schema != "pg_toast",
        });
        if file != 0 {
            self.files[age].insert((tablespace, file), oid);
        }
        Ok(())
    }
}

impl Catalog for CsvCatalog {
    fn by_file(&self, file: RelFileLocator) -> Option<RelationInfo> {
        let places = [(file.spc, file.rel), (Oid::INVALID, file.rel)];
        let oid = self.files.iter().find_map(|files| places.iter().find_map(|place| files.get(place)));
        self.by_oid.get(oid.unwrap_or(&Oid(file.rel))).cloned()
    }

    fn by_oid(&self, oid: Oid) -> Option<RelationInfo> {
        self.by_oid.get(&oid).cloned()
    }

    fn kind(&self, oid: Oid) -> Option<char> {
        self.kinds.get(&oid).copied()
    }

    fn publication_rows(&self) -> Vec<(Option<Tid>, CatalogRow)> {
        self.published.clone()
    }
}

/// Where the columns are.
#[derive(Debug)]
struct Columns {
    /// `relname`.
    relname: usize,
    /// `oid`.
    oid: usize,
    /// `relfilenode`.
    relfilenode: usize,
    /// `reltablespace`.
    reltablespace: usize,
    /// `nsp`.
    nsp: usize,
    /// `relkind`.
    relkind: usize,
    /// `filenode_effective`, if there.
    effective: Option<usize>,
    /// `relnamespace`, if there.
    relnamespace: Option<usize>,
}

impl Columns {
    /// Finds them in the header line.
    fn find(header: &csv::ByteRecord, path: &Path) -> Result<Columns, CatalogError> {
        let at = |name: &str| header.iter().position(|h| h == name.as_bytes());
        let need = |column: &'static str| {
            let all = || "relname, oid, relfilenode, reltablespace, nsp, relkind".to_owned();
            at(column).ok_or_else(|| CatalogError::Column { path: path.to_owned(), column, all: all() })
        };
        Ok(Columns {
            relname: need("relname")?,
            oid: need("oid")?,
            relfilenode: need("relfilenode")?,
            reltablespace: need("reltablespace")?,
            nsp: need("nsp")?,
            relkind: need("relkind")?,
            effective: at("filenode_effective"),
            relnamespace: at("relnamespace"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "relname,oid,relfilenode,reltablespace,nsp,relkind,filenode_effective\n";

    fn folder(end: Option<&str>, start: Option<&str>) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, rows) in FILES.iter().zip([end, start]) {
            if let Some(rows) = rows {
                std::fs::write(dir.path().join(name), format!("{HEADER}{rows}")).unwrap();
            }
        }
        dir
    }

    fn name_of(catalog: &CsvCatalog, spc: u32, rel: u32) -> Option<String> {
        catalog.by_file(RelFileLocator { spc: Oid(spc), db: Oid(5), rel }).map(|r| r.name.to_string())
    }

    #[test]
    fn files_are_found_at_the_end_at_the_start_and_as_first_files() {
        let dir = folder(
            Some("t,100,300,0,public,r,300\npg_class,1259,0,0,pg_catalog,r,99\nspaced,7,8,9,s p,r,8\n"),
            Some("t_old,100,200,0,public,r,200\ngone,50,50,0,public,r,50\n"),
        );
        let catalog = CsvCatalog::load(dir.path()).unwrap();
        assert_eq!(catalog.len(), 4);
        for (file, name) in
            [(300, "public.t"), (200, "public.t"), (100, "public.t"), (50, "public.gone"), (99, "pg_catalog.pg_class")]
        {
            assert_eq!(name_of(&catalog, 1663, file).as_deref(), Some(name), "{file}");
        }
        assert_eq!(name_of(&catalog, 9, 8).as_deref(), Some("\"s p\".spaced"));
        assert_eq!((name_of(&catalog, 10, 8), name_of(&catalog, 1663, 4)), (None, None));
        assert_eq!(catalog.by_oid(Oid(1259)).map(|r| r.logged), Some(false));
    }

    #[test]
    fn errors_name_file_line_and_column() {
        let error = |end: &str| CsvCatalog::load(folder(Some(end), None).path()).unwrap_err().to_string();
        assert!(
            error("t,1,1,0,public,r,\nu,x\u{7},1,0,public,r,\n")
                .contains("pg_class.csv, line 3: 'x\\u{7}' is no value for oid")
        );
        assert!(error("t,1\n").contains("is no csv of pg_class"));
        let dir = tempfile::tempdir().unwrap();
        assert!(CsvCatalog::load(dir.path()).unwrap_err().to_string().contains("holds neither"));
        std::fs::write(dir.path().join("pg_class.csv"), "relname,oid\n").unwrap();
        assert!(CsvCatalog::load(dir.path()).unwrap_err().to_string().contains("no column 'relfilenode'"));
        let dir = folder(Some("t,1,1,0,public,r,\n"), None);
        let publication = |text: &str| {
            std::fs::write(dir.path().join("pg_publication_rel_start.csv"), text).unwrap();
            CsvCatalog::load(dir.path()).map(|catalog| catalog.publication_rows()).map_err(|e| e.to_string())
        };
        assert!(
            publication("prpubid\n1\n")
                .unwrap_err()
                .contains("no column 'prrelid': its header line must name prpubid, prrelid")
        );
        assert!(publication("prrelid,prpubid\n1,x\n").unwrap_err().contains("line 2: 'x' is no value for prpubid: a number"));
        assert_eq!(
            publication("prrelid,prpubid\n1,7\n"),
            Ok(vec![(None, CatalogRow::PublicationRel { publication: Oid(7), rel: Oid(1) })])
        );
        let (text, place) = ("prrelid,prpubid,ctid\n1,7,\"(2,3)\"\n", Some(Tid { block: 2, offset: 3 }));
        assert_eq!(publication(text).unwrap()[0].0, place);
        assert!(publication("prrelid,prpubid,ctid\n1,7,5\n").unwrap_err().contains("'5' is no value for ctid: (block,offset)"));
    }
}
