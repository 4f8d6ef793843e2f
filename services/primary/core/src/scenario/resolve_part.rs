//! From the file's steps on parts of tables, and on objects of few statements, to statements.

use super::Template;
use super::part_step::{InheritFile, OwnSequenceFile};
use super::resolve::{Resolver, Said, name};
use super::step::StepFile;
use crate::ddl::object::{ObjectKind, ObjectStatement, PartAction, RoleAction, TableAction};

/// A statement of the plan.
type Statement = ObjectStatement<Template>;

impl Resolver<'_> {
    /// What a step says.
    pub(super) fn part_statement(&self, step: &StepFile) -> Said<Statement> {
        use StepFile as F;
        Ok(match step {
            F::CreatePolicy(f) => self.part(PartAction::CreatePolicy, &f.table, self.template(&f.policy)?)?,
            F::DropPolicy(f) => self.part(PartAction::DropPolicy, &f.table, self.relation(&f.policy)?)?,
            F::CreateRule(f) => self.part(PartAction::CreateRule, &f.table, self.template(&f.rule)?)?,
            F::DropRule(f) => self.part(PartAction::DropRule, &f.table, self.relation(&f.rule)?)?,
            F::EnableTrigger(f) => self.part(PartAction::EnableTrigger, &f.table, self.relation(&f.trigger)?)?,
            F::DisableTrigger(f) => self.part(PartAction::DisableTrigger, &f.table, self.relation(&f.trigger)?)?,
            F::ValidateConstraint(f) => self.part(PartAction::ValidateConstraint, &f.table, self.template(&f.constraint)?)?,
            F::RenameTrigger(f) => Statement::RenamePart {
                trigger: true,
                table: self.relation(&f.table)?,
                name: self.relation(&f.trigger)?,
                to: self.template(&f.to)?,
            },
            F::RenameConstraint(f) => Statement::RenamePart {
                trigger: false,
                table: self.relation(&f.table)?,
                name: self.template(&f.constraint)?,
                to: self.template(&f.to)?,
            },
            F::RowLevelSecurity(f) => self.whole(TableAction::RowLevelSecurity, &f.table)?,
            F::LockTable(f) => self.whole(TableAction::Lock, &f.table)?,
            F::OwnerTo(f) => self.whole(TableAction::OwnerTo(name(&f.role)?), &f.table)?,
            F::SetSchema(f) => self.whole(TableAction::SetSchema(name(&f.schema)?), &f.table)?,
            F::Grant(f) => {
                let column = f.column.as_ref().ok_or("it names no column")?;
                self.whole(TableAction::GrantOnColumn(name(column)?, name(&f.role)?), &f.table)?
            }
            F::Inherit(f) => self.inherit(f, true)?,
            F::NoInherit(f) => self.inherit(f, false)?,
            F::CreateDomain(f) => Statement::CreateDomain {
                base: self.column(&format!("value {}", f.r#type))?,
                name: self.template(&f.domain)?,
                check: f.check,
            },
            F::AddDomainCheck(f) => Statement::AddDomainCheck { name: self.relation(&f.domain)? },
            F::CreateStatistics(f) if f.columns.len() < 2 => return Err("statistics need two columns or more".to_owned()),
            F::CreateStatistics(f) => Statement::CreateStatistics {
                table: self.relation(&f.table)?,
                columns: f.columns.iter().map(|column| name(column)).collect::<Said<_>>()?,
                name: self.template(&f.statistics)?,
            },
            F::OwnSequence(f) => self.sequence_owner(f)?,
            F::Setval(f) => Statement::Setval { sequence: self.relation(&f.sequence)? },
            F::CreateTableAs(f) => Statement::CreateTableAs { table: self.relation(&f.from)?, name: self.template(&f.table)? },
            F::CreateRole(f) => Statement::Role { action: RoleAction::Create, name: self.template(&f.role)? },
            F::AlterRole(f) => Statement::Role { action: RoleAction::Alter, name: self.relation(&f.role)? },
            F::DropRole(f) => Statement::Role { action: RoleAction::Drop, name: self.relation(&f.role)? },
            F::GrantOnSchema(f) => self.grant_on(ObjectKind::Schema, &f.schema, &f.role)?,
            F::GrantOnFunction(f) => self.grant_on(ObjectKind::Function, &f.function, &f.role)?,
            _ => return Err("this step is no statement on an object".to_owned()),
        })
    }

    /// A part of a table.
    fn part(&self, action: PartAction, table: &str, name: Template) -> Said<Statement> {
        Ok(Statement::Part { action, table: self.relation(table)?, name })
    }

    /// A table as a whole.
    fn whole(&self, action: TableAction, table: &str) -> Said<Statement> {
        Ok(Statement::Table { action, table: self.relation(table)? })
    }

    /// INHERIT and NO INHERIT.
    fn inherit(&self, f: &InheritFile, add: bool) -> Said<Statement> {
        Ok(Statement::Inherit { table: self.relation(&f.table)?, parent: self.relation(&f.parent)?, add })
    }

    /// GRANT.
    fn grant_on(&self, what: ObjectKind, object: &str, role: &str) -> Said<Statement> {
        Ok(Statement::GrantOn { what, name: self.relation(object)?, role: name(role)? })
    }

    /// OWNED BY.
    fn sequence_owner(&self, f: &OwnSequenceFile) -> Said<Statement> {
        let owner = match (&f.table, &f.column) {
            (Some(table), Some(column)) => Some((self.relation(table)?, name(column)?)),
            (None, None) => None,
            _ => return Err("say both 'table' and 'column', or neither for NONE".to_owned()),
        };
        Ok(Statement::OwnSequence { sequence: self.relation(&f.sequence)?, owner })
    }
}
