//! Catalog rows as statements make them: the columns that syscaches, indexes and relations are found by.

use std::sync::Arc;

use pg_types::{Oid, catalog};

use crate::catalog::{CatalogTuple, Datum, Dependency, DependencyType, ObjectAddress};

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

/// pg_depend: `object` depends on `on`.
pub(super) fn depend(object: ObjectAddress, on: ObjectAddress, kind: DependencyType) -> CatalogTuple {
    CatalogTuple::depend(Dependency { object, on, kind })
}

/// pg_shdepend: a relation depends on a role.
pub(super) fn shdepend(object: Oid, role: &Arc<str>) -> CatalogTuple {
    let columns = vec![("objid", Datum::Oid(object)), ("classid", Datum::Oid(catalog::CLASS)), ("refobjid", name(role))];
    CatalogTuple::new(catalog::SHDEPEND, columns)
}

/// pg_description: a comment on an object or a column.
pub(super) fn description(on: ObjectAddress) -> CatalogTuple {
    let columns = vec![
        ("objoid", Datum::Oid(on.object)),
        ("classoid", Datum::Oid(on.class)),
        ("objsubid", Datum::Int(i64::from(on.sub))),
    ];
    CatalogTuple::new(catalog::DESCRIPTION, columns)
}

/// pg_rewrite: the rule of a view.
pub(super) fn rewrite(oid: Oid, view: Oid, rule: &Arc<str>) -> CatalogTuple {
    let columns = vec![("oid", Datum::Oid(oid)), ("ev_class", Datum::Oid(view)), ("rulename", name(rule))];
    CatalogTuple::new(catalog::REWRITE, columns)
}

/// pg_trigger.
pub(super) fn trigger(oid: Oid, table: Oid) -> CatalogTuple {
    CatalogTuple::new(catalog::TRIGGER, vec![("oid", Datum::Oid(oid)), ("tgrelid", Datum::Oid(table))])
}

/// pg_enum; the first column is the type, for its values go with it.
pub(super) fn enum_value(oid: Oid, r#type: Oid, label: &Arc<str>) -> CatalogTuple {
    let columns = vec![("enumtypid", Datum::Oid(r#type)), ("oid", Datum::Oid(oid)), ("enumlabel", name(label))];
    CatalogTuple::new(catalog::ENUM, columns)
}

/// pg_proc of a function without arguments.
pub(super) fn proc(oid: Oid, proname: &Arc<str>, namespace: Oid) -> CatalogTuple {
    let columns = vec![
        ("oid", Datum::Oid(oid)),
        ("proname", name(proname)),
        ("proargtypes", Datum::Int(0)),
        ("pronamespace", Datum::Oid(namespace)),
    ];
    CatalogTuple::new(catalog::PROC, columns)
}

/// pg_namespace.
pub(super) fn namespace(oid: Oid, nspname: &Arc<str>) -> CatalogTuple {
    CatalogTuple::new(catalog::NAMESPACE, vec![("oid", Datum::Oid(oid)), ("nspname", name(nspname))])
}

/// pg_publication.
pub(super) fn publication(oid: Oid, pubname: &Arc<str>, all_tables: bool) -> CatalogTuple {
    let columns =
        vec![("oid", Datum::Oid(oid)), ("pubname", name(pubname)), ("puballtables", Datum::Int(i64::from(all_tables)))];
    CatalogTuple::new(catalog::PUBLICATION, columns)
}

/// pg_publication_rel.
pub(super) fn publication_rel(oid: Oid, publication: Oid, table: Oid) -> CatalogTuple {
    let columns = vec![("oid", Datum::Oid(oid)), ("prpubid", Datum::Oid(publication)), ("prrelid", Datum::Oid(table))];
    CatalogTuple::new(catalog::PUBLICATION_REL, columns)
}

/// pg_publication_namespace.
pub(super) fn publication_namespace(oid: Oid, publication: Oid, schema: Oid) -> CatalogTuple {
    let columns = vec![("oid", Datum::Oid(oid)), ("pnpubid", Datum::Oid(publication)), ("pnnspid", Datum::Oid(schema))];
    CatalogTuple::new(catalog::PUBLICATION_NAMESPACE, columns)
}

/// pg_policy.
pub(super) fn policy(oid: Oid, table: Oid, polname: &Arc<str>) -> CatalogTuple {
    let columns = vec![("oid", Datum::Oid(oid)), ("polrelid", Datum::Oid(table)), ("polname", name(polname))];
    CatalogTuple::new(catalog::POLICY, columns)
}

/// pg_statistic_ext.
pub(super) fn statistic_ext(oid: Oid, stxname: &Arc<str>, table: Oid) -> CatalogTuple {
    let columns = vec![
        ("oid", Datum::Oid(oid)),
        ("stxrelid", Datum::Oid(table)),
        ("stxname", name(stxname)),
        ("stxnamespace", Datum::Oid(crate::catalog::PUBLIC)),
    ];
    CatalogTuple::new(catalog::STATISTIC_EXT, columns)
}

/// pg_statistic_ext_data.
pub(super) fn statistic_ext_data(oid: Oid) -> CatalogTuple {
    let columns = vec![("stxoid", Datum::Oid(oid)), ("stxdinherit", Datum::Int(0))];
    CatalogTuple::new(catalog::STATISTIC_EXT_DATA, columns)
}

/// pg_authid.
pub(super) fn authid(oid: Oid, rolname: &Arc<str>) -> CatalogTuple {
    CatalogTuple::new(catalog::AUTHID, vec![("oid", Datum::Oid(oid)), ("rolname", name(rolname))])
}

/// pg_constraint of a domain.
pub(super) fn domain_constraint(oid: Oid, domain: Oid) -> CatalogTuple {
    let mut row = constraint(oid, Oid::INVALID, b'c');
    row.set("contypid", Datum::Oid(domain));
    row
}
