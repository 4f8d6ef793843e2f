//! DROP: an object goes with everything that depends on it (`catalog/dependency.c`: `performDeletion`,
//! `findDependentObjects`, `deleteOneObject`).
//!
//! First the dependents are found, from pg_depend, depth first, newest first, each locked on the way; an object comes after all
//! that depends on it. Then each object goes in a command of its own: its rows, its rows of pg_depend, pg_shdepend and
//! pg_description.
//!
//! **Invariants**
//! - I1: an object is in the list once, after everything that depends on it.
//! - I2: without CASCADE nothing goes that depends on something else only normally.
//!
//! Cost: O(d log n) for d rows of pg_depend on the way, and O(d) comparisons for each object on the stack (at most a handful).
//! Difference from PostgreSQL: the finding recurses at most as deep as objects nest, which the statements here bound (a table's
//! partitions' partitions).

use std::collections::BTreeSet;

use pg_types::{Oid, catalog};

use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{DependencyType, ObjectAddress};

/// `DropBehavior`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropBehavior {
    /// Refused if something else depends on it.
    Restrict,
    /// That goes, too.
    Cascade,
}

/// What is found on the way.
#[derive(Default)]
struct Found {
    /// `targetObjects`: in the order in which they will go.
    targets: Vec<ObjectAddress>,
    /// The same for looking up.
    known: BTreeSet<ObjectAddress>,
    /// Objects whose dependents are sought, outermost first.
    stack: Vec<ObjectAddress>,
    /// Something that is reached by normal dependencies only, with what it depends on.
    normal: Vec<(ObjectAddress, ObjectAddress)>,
}

impl Found {
    /// Whether an object is found already, or on the way.
    fn has(&self, object: ObjectAddress) -> bool {
        self.known.contains(&object)
            || self.known.contains(&ObjectAddress { sub: 0, ..object })
            || self.stack.iter().any(|known| known.covers(object))
    }
}

impl Backend<'_> {
    /// `performDeletion`.
    pub(super) fn perform_deletion(&mut self, object: ObjectAddress, behavior: DropBehavior) -> Result<()> {
        self.perform_multiple_deletions(&[object], behavior)
    }

    /// `performMultipleDeletions`.
    pub(super) fn perform_multiple_deletions(&mut self, objects: &[ObjectAddress], behavior: DropBehavior) -> Result<()> {
        let mut found = Found::default();
        for object in objects {
            self.acquire_deletion_lock(*object)?;
            self.check_not_owned(*object)?;
            self.find_dependent_objects(*object, &mut found)?;
        }
        let in_the_way =
            found.normal.iter().find(|(object, _)| !objects.contains(object) && self.is_normal_only(*object, &found));
        if let (DropBehavior::Restrict, Some((object, on))) = (behavior, in_the_way) {
            return Err(StatementError::Refused(format!(
                "{} depends on {}: drop it first, or say cascade",
                self.describe(*object),
                self.describe(*on)
            )));
        }
        found.targets.iter().try_for_each(|object| self.delete_one_object(*object))
    }

    /// `performMultipleDeletions` of what the server itself wants to go, with everything that depends on it.
    pub(crate) fn perform_cascading_deletions(&mut self, objects: &[ObjectAddress]) -> Result<()> {
        self.perform_multiple_deletions(objects, DropBehavior::Cascade)
    }

    /// `performDeletion` of everything that depends on an object, which stays (`PERFORM_DELETION_SKIP_ORIGINAL`).
    pub(crate) fn delete_contents(&mut self, object: ObjectAddress) -> Result<()> {
        let mut found = Found::default();
        self.find_dependent_objects(object, &mut found)?;
        found.targets.iter().filter(|target| **target != object).try_for_each(|target| self.delete_one_object(*target))
    }

    /// An object that is part of another can only go with it.
    pub(super) fn check_not_owned(&self, object: ObjectAddress) -> Result<()> {
        let owner = self
            .cluster
            .catalog
            .dependencies_of(object)
            .into_iter()
            .find(|(_, row)| row.kind.is_part() && row.object == object && !row.on.covers(object));
        match owner {
            Some((_, row)) => {
                let (object, owner) = (self.describe(object), self.describe(row.on));
                Err(StatementError::Refused(format!("{object} is part of {owner}: drop that instead")))
            }
            None => Ok(()),
        }
    }

    /// `findDependentObjects`.
    fn find_dependent_objects(&mut self, object: ObjectAddress, found: &mut Found) -> Result<()> {
        if found.has(object) {
            return Ok(());
        }
        // What is part of something else takes that along; its turn comes from there.
        if !found.stack.is_empty() {
            let owner = self.cluster.catalog.dependencies_of(object).into_iter().map(|(_, row)| row).find(|row| {
                row.kind == DependencyType::Internal && row.object == object && !row.on.covers(object) && !found.has(row.on)
            });
            if let Some(row) = owner {
                self.acquire_deletion_lock(row.on)?;
                // Nobody asked for it to go, unless something else takes it along (`DEPFLAG_REVERSE`).
                found.normal.push((row.on, object));
                return self.find_dependent_objects(row.on, found);
            }
        }
        let mut dependents = Vec::new();
        for (_, row) in self.cluster.catalog.dependents_on(object) {
            if object.covers(row.object) {
                continue;
            }
            self.acquire_deletion_lock(row.object)?;
            if row.kind == DependencyType::Normal {
                found.normal.push((row.object, row.on));
            }
            dependents.push(row.object);
        }
        dependents.sort_by_key(|dependent| (std::cmp::Reverse(dependent.object), dependent.class, dependent.sub));
        found.stack.push(object);
        for dependent in dependents {
            self.find_dependent_objects(dependent, found)?;
        }
        found.stack.pop();
        if found.known.insert(object) {
            found.targets.push(object);
        }
        Ok(())
    }

    /// Whether nothing that goes takes this along as a part or automatically.
    fn is_normal_only(&self, object: ObjectAddress, found: &Found) -> bool {
        let rows = self.cluster.catalog.dependencies_of(object);
        !rows.iter().any(|(_, row)| row.kind != DependencyType::Normal && found.has(row.on))
    }

    /// `AcquireDeletionLock`: only locks of relations are logged.
    fn acquire_deletion_lock(&mut self, object: ObjectAddress) -> Result<()> {
        if object.class == catalog::CLASS { self.log_access_exclusive_lock(object.object) } else { Ok(()) }
    }

    /// `deleteOneObject`.
    fn delete_one_object(&mut self, object: ObjectAddress) -> Result<()> {
        self.do_deletion(object)?;
        self.delete_dependency_rows_of(object)?;
        self.delete_shared_dependency_rows_of(object)?;
        self.delete_comments(object)?;
        self.command_counter_increment()
    }

    /// `deleteDependencyRecordsFor`.
    pub(super) fn delete_dependency_rows_of(&mut self, object: ObjectAddress) -> Result<()> {
        let rows = self.cluster.catalog.dependencies_of(object);
        rows.into_iter().try_for_each(|(id, _)| self.catalog_delete(id))
    }

    /// `deleteSharedDependencyRecordsFor`: of a whole object with those of its columns, or of one column.
    fn delete_shared_dependency_rows_of(&mut self, object: ObjectAddress) -> Result<()> {
        for id in self.cluster.catalog.rows_of(catalog::SHDEPEND, object.object) {
            let sub = self.cluster.catalog.tuple(id).and_then(|row| row.tuple.int_column("objsubid"));
            if object.sub == 0 || sub == Some(i64::from(object.sub)) {
                self.catalog_delete(id)?;
            }
        }
        Ok(())
    }

    /// `DeleteComments`.
    fn delete_comments(&mut self, object: ObjectAddress) -> Result<()> {
        for id in self.cluster.catalog.rows_of(catalog::DESCRIPTION, object.object) {
            let is_it = self.cluster.catalog.tuple(id).is_some_and(|row| {
                row.tuple.oid_column("classoid") == Some(object.class)
                    && (object.sub == 0 || row.tuple.int_column("objsubid") == Some(i64::from(object.sub)))
            });
            if is_it {
                self.catalog_delete(id)?;
            }
        }
        Ok(())
    }

    /// `doDeletion`.
    fn do_deletion(&mut self, object: ObjectAddress) -> Result<()> {
        let oid = object.object;
        match object.class {
            catalog::CLASS if object.sub != 0 => self.remove_attribute(oid, object.sub),
            catalog::CLASS => self.drop_relation(oid),
            catalog::TYPE => self.remove_type(oid),
            catalog::CONSTRAINT => self.remove_constraint(oid),
            catalog::ATTRDEF => self.remove_attribute_default(oid),
            catalog::REWRITE => self.remove_rule(oid),
            catalog::TRIGGER => self.remove_trigger(oid),
            catalog::PROC => self.remove_named(catalog::PROC, "proname", oid),
            catalog::NAMESPACE => self.remove_named(catalog::NAMESPACE, "nspname", oid),
            catalog::PUBLICATION => self.remove_publication(oid),
            catalog::POLICY => self.remove_policy(oid),
            catalog::STATISTIC_EXT => self.remove_statistics(oid),
            catalog::PUBLICATION_REL => self.remove_publication_rel(oid),
            catalog::PUBLICATION_NAMESPACE => self.remove_publication_namespace(oid),
            class => Err(StatementError::Refused(format!("objects of catalog {class} cannot be dropped here"))),
        }
    }

    /// An object in an error.
    fn describe(&self, object: ObjectAddress) -> String {
        let kind = catalog::NAMES.iter().find(|(_, oid)| *oid == object.class).map_or("an object", |(name, _)| *name);
        match self.cluster.catalog.relation(object.object).filter(|_| object.class == catalog::CLASS) {
            Some(relation) if object.sub == 0 => format!("relation '{}'", relation.name),
            Some(relation) => format!("column {} of '{}'", object.sub, relation.name),
            None => format!("object {} of {kind}", object.object),
        }
    }

    /// The object's oid, for those that are not found.
    pub(super) fn object_named(&self, class: Oid, what: &str, name: &str) -> Result<Oid> {
        let found = self.cluster.catalog.object_named(class, name);
        found.ok_or_else(|| StatementError::Refused(format!("there is no {what} named '{name}'")))
    }
}
