//! Which object depends on which: the contents of pg_depend, found from both ends (`catalog/pg_depend.c`; the indexes
//! pg_depend_depender_index and pg_depend_reference_index).
//!
//! Cost: O(log n) to add and remove, O(log n + found) to look up.

use std::collections::BTreeMap;

use pg_types::{Oid, catalog};

use super::TupleId;

/// An object, or a column of a relation (`ObjectAddress`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectAddress {
    /// The catalog that has the object's row.
    pub class: Oid,
    /// The object.
    pub object: Oid,
    /// The column's number, 0 for the whole object.
    pub sub: i16,
}

impl ObjectAddress {
    /// An object of a catalog.
    #[must_use]
    pub fn new(class: Oid, object: Oid) -> ObjectAddress {
        ObjectAddress { class, object, sub: 0 }
    }

    /// A relation.
    #[must_use]
    pub fn relation(relation: Oid) -> ObjectAddress {
        ObjectAddress::new(catalog::CLASS, relation)
    }

    /// A column.
    #[must_use]
    pub fn column(relation: Oid, attnum: i16) -> ObjectAddress {
        ObjectAddress { sub: attnum, ..ObjectAddress::relation(relation) }
    }

    /// Whether dropping `self` drops `other`, too.
    #[must_use]
    pub fn covers(self, other: ObjectAddress) -> bool {
        self == other || (self.class == other.class && self.object == other.object && self.sub == 0)
    }
}

/// `deptype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DependencyType {
    /// The other cannot go as long as this is there, unless by CASCADE.
    Normal,
    /// Goes with the other.
    Auto,
    /// Part of the other: goes with it and only with it.
    Internal,
    /// A partition's part of the other, which the parent has: goes with it, and else only with what it is a part of by
    /// [`DependencyType::PartitionSecondary`].
    PartitionPrimary,
    /// A part of the partition: goes with it.
    PartitionSecondary,
}

impl DependencyType {
    /// Whether it can only go with the other.
    #[must_use]
    pub fn is_part(self) -> bool {
        matches!(self, DependencyType::Internal | DependencyType::PartitionPrimary)
    }
}

/// One row of pg_depend: `object` depends on `on`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// `classid`, `objid`, `objsubid`.
    pub object: ObjectAddress,
    /// `refclassid`, `refobjid`, `refobjsubid`.
    pub on: ObjectAddress,
    /// `deptype`.
    pub kind: DependencyType,
}

/// All rows of pg_depend.
#[derive(Debug, Default)]
pub(super) struct Dependencies {
    /// By the object that depends.
    by_object: BTreeMap<(ObjectAddress, TupleId), Dependency>,
    /// By the object that is depended on.
    by_reference: BTreeMap<(ObjectAddress, TupleId), Dependency>,
}

impl Dependencies {
    /// A row came.
    pub(super) fn add(&mut self, id: TupleId, row: Dependency) {
        self.by_object.insert((row.object, id), row);
        self.by_reference.insert((row.on, id), row);
    }

    /// A row went.
    pub(super) fn remove(&mut self, id: TupleId, row: Dependency) {
        self.by_object.remove(&(row.object, id));
        self.by_reference.remove(&(row.on, id));
    }

    /// All rows.
    pub(super) fn ids(&self) -> Vec<TupleId> {
        self.by_object.keys().map(|(_, id)| *id).collect()
    }

    /// What an object depends on; a whole relation stands for its columns, too.
    pub(super) fn of(&self, object: ObjectAddress) -> Vec<(TupleId, Dependency)> {
        found(&self.by_object, object)
    }

    /// What depends on an object.
    pub(super) fn on(&self, reference: ObjectAddress) -> Vec<(TupleId, Dependency)> {
        found(&self.by_reference, reference)
    }
}

/// Rows of one object in the order of the index.
fn found(rows: &BTreeMap<(ObjectAddress, TupleId), Dependency>, object: ObjectAddress) -> Vec<(TupleId, Dependency)> {
    let last = if object.sub == 0 { i16::MAX } else { object.sub };
    let range = (object, TupleId(0))..=(ObjectAddress { sub: last, ..object }, TupleId(u32::MAX));
    rows.range(range).map(|((_, id), row)| (*id, *row)).collect()
}
