//! What is published, as csv: the columns of `pg_publication`, `pg_publication_rel`, `pg_publication_namespace` and `pg_inherits` that decide
//! which changes a subscriber gets.

use pg_types::{Oid, catalog};

use super::class_csv::quoted;
use super::{Catalog, Datum};

/// A catalog, its columns and what a publication that nobody told otherwise has in those that rows here have not.
type Columns = (&'static str, Oid, &'static [(&'static str, &'static str)]);

/// All.
const CATALOGS: [Columns; 4] = [
    (
        "pg_publication",
        catalog::PUBLICATION,
        &[
            ("oid", ""),
            ("pubname", ""),
            ("puballtables", ""),
            ("pubinsert", "t"),
            ("pubupdate", "t"),
            ("pubdelete", "t"),
            ("pubtruncate", "t"),
            ("pubviaroot", "f"),
        ],
    ),
    ("pg_publication_rel", catalog::PUBLICATION_REL, &[("prpubid", ""), ("prrelid", "")]),
    ("pg_publication_namespace", catalog::PUBLICATION_NAMESPACE, &[("pnpubid", ""), ("pnnspid", "")]),
    ("pg_inherits", catalog::INHERITS, &[("inhrelid", ""), ("inhparent", "")]),
];

impl Catalog {
    /// Names of the catalogs and their rows as csv.
    #[must_use]
    pub fn published_csv(&self) -> Vec<(&'static str, String)> {
        CATALOGS.iter().map(|(name, catalog, columns)| (*name, self.rows_csv(*catalog, columns))).collect()
    }

    /// The rows of one.
    fn rows_csv(&self, catalog: Oid, columns: &[(&'static str, &'static str)]) -> String {
        let header: Vec<&str> = columns.iter().map(|(column, _)| *column).collect();
        let mut csv = header.join(",") + "\n";
        for id in self.rows_in(catalog) {
            let Some(row) = self.tuple(id) else { continue };
            let value = |(column, default): &(&'static str, &'static str)| match row.tuple.column(column) {
                Some(Datum::Oid(oid)) => oid.to_string(),
                Some(Datum::Int(flag)) => if *flag == 0 { "f" } else { "t" }.to_owned(),
                Some(Datum::Name(name)) => quoted(name),
                None => (*default).to_owned(),
            };
            csv.push_str(&(columns.iter().map(value).collect::<Vec<_>>().join(",") + "\n"));
        }
        csv
    }
}
