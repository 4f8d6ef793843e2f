//! Catalog rows as statements make them: the columns that syscaches, indexes and relations are found by.

use std::sync::Arc;

use pg_types::{Oid, catalog};

use crate::catalog::{CatalogTuple, Datum};

/// A name as a value.
fn name(text: &Arc<str>) -> Datum {
    Datum::Name(Arc::clone(text))
}

/// pg_class. The file number has an index, so that a row with a new one is never heap-only.
pub(super) fn class(oid: Oid, relname: &Arc<str>, namespace: Oid, filenode: u32) -> CatalogTuple {
    let columns = vec![
        ("oid", Datum::Oid(oid)),
        ("relname", name(relname)),
        ("relnamespace", Datum::Oid(namespace)),
        ("relfilenode", Datum::Int(i64::from(filenode))),
    ];
    CatalogTuple::new(catalog::CLASS, columns)
}

/// pg_attribute.
pub(super) fn attribute(rel: Oid, attname: &Arc<str>, attnum: i16) -> CatalogTuple {
    let columns = vec![("attrelid", Datum::Oid(rel)), ("attname", name(attname)), ("attnum", Datum::Int(i64::from(attnum)))];
    CatalogTuple::new(catalog::ATTRIBUTE, columns)
}

/// pg_type.
pub(super) fn r#type(oid: Oid, typname: &Arc<str>, namespace: Oid) -> CatalogTuple {
    let columns = vec![("oid", Datum::Oid(oid)), ("typname", name(typname)), ("typnamespace", Datum::Oid(namespace))];
    CatalogTuple::new(catalog::TYPE, columns)
}

/// pg_index.
pub(super) fn index(index: Oid, table: Oid) -> CatalogTuple {
    CatalogTuple::new(catalog::INDEX, vec![("indexrelid", Datum::Oid(index)), ("indrelid", Datum::Oid(table))])
}

/// pg_constraint; `kind` is `contype`.
pub(super) fn constraint(oid: Oid, table: Oid, kind: u8) -> CatalogTuple {
    let columns = vec![("oid", Datum::Oid(oid)), ("conrelid", Datum::Oid(table)), ("contype", Datum::Int(i64::from(kind)))];
    CatalogTuple::new(catalog::CONSTRAINT, columns)
}

/// pg_attrdef.
pub(super) fn attrdef(oid: Oid, table: Oid, attnum: i16) -> CatalogTuple {
    let columns = vec![("oid", Datum::Oid(oid)), ("adrelid", Datum::Oid(table)), ("adnum", Datum::Int(i64::from(attnum)))];
    CatalogTuple::new(catalog::ATTRDEF, columns)
}

/// pg_sequence.
pub(super) fn sequence(rel: Oid) -> CatalogTuple {
    CatalogTuple::new(catalog::SEQUENCE, vec![("seqrelid", Datum::Oid(rel))])
}

/// pg_inherits.
pub(super) fn inherits(child: Oid, parent: Oid) -> CatalogTuple {
    CatalogTuple::new(catalog::INHERITS, vec![("inhrelid", Datum::Oid(child)), ("inhparent", Datum::Oid(parent))])
}

/// pg_partitioned_table.
pub(super) fn partitioned_table(rel: Oid) -> CatalogTuple {
    CatalogTuple::new(catalog::PARTITIONED_TABLE, vec![("partrelid", Datum::Oid(rel))])
}

/// pg_depend: `object` depends on `referenced`; both are told with their catalogs.
pub(super) fn depend((class, object): (Oid, Oid), (ref_class, referenced): (Oid, Oid)) -> CatalogTuple {
    let columns = vec![
        ("classid", Datum::Oid(class)),
        ("objid", Datum::Oid(object)),
        ("refclassid", Datum::Oid(ref_class)),
        ("refobjid", Datum::Oid(referenced)),
    ];
    CatalogTuple::new(catalog::DEPEND, columns)
}

/// pg_shdepend: a relation depends on a role.
pub(super) fn shdepend(object: Oid, role: &Arc<str>) -> CatalogTuple {
    let columns = vec![("classid", Datum::Oid(catalog::CLASS)), ("objid", Datum::Oid(object)), ("refobjid", name(role))];
    CatalogTuple::new(catalog::SHDEPEND, columns)
}
