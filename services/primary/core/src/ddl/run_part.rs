//! Runs statements on parts of tables and on objects of few statements.

use std::sync::Arc;

use pg_types::catalog;

use super::object::{ObjectKind, ObjectStatement, PartAction, RoleAction, TableAction};
use super::run::{Done, done};
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::PUBLIC;

impl Backend<'_> {
    /// Runs a statement.
    pub(super) fn run_part(&mut self, statement: &ObjectStatement<Arc<str>>) -> Result<Done> {
        use ObjectStatement as S;
        match statement {
            S::Part { action, table, name } => {
                self.run_table_part(*action, table, name)?;
                done(format!("{} {name} on {table}", action.sql()))
            }
            S::Table { action, table } => {
                let rel = self.named(table)?;
                match action {
                    TableAction::Lock => self.lock_with_partitions(rel).map(drop)?,
                    TableAction::RowLevelSecurity => self.set_row_level_security(rel)?,
                    TableAction::SetSchema(schema) => self.set_schema(rel, schema)?,
                    TableAction::GrantOnColumn(column, role) => self.grant_on_column(rel, column, &role.as_str().into())?,
                    TableAction::OwnerTo(role) => self.change_owner(rel, &role.as_str().into())?,
                }
                done(format!("{} of {table}", action.sql()))
            }
            S::RenamePart { trigger, table, name, to } => {
                let rel = self.named(table)?;
                if *trigger {
                    self.rename_trigger(rel, name, to)?;
                } else {
                    self.rename_constraint(rel, name, to)?;
                }
                done(format!("ALTER TABLE {table} RENAME {name} TO {to}"))
            }
            S::CreateDomain { name, base, check } => {
                self.create_domain(name, base, *check)?;
                done(format!("CREATE DOMAIN {name}"))
            }
            S::AddDomainCheck { name } => {
                self.add_domain_check(name)?;
                done(format!("ALTER DOMAIN {name} ADD CONSTRAINT"))
            }
            S::CreateStatistics { name, table, columns } => {
                self.create_statistics(name, self.named(table)?, columns)?;
                done(format!("CREATE STATISTICS {name}"))
            }
            S::OwnSequence { sequence, owner } => {
                let owner = match owner {
                    Some((table, column)) => {
                        let table = self.named(table)?;
                        Some((table, self.attnum(table, column)?))
                    }
                    None => None,
                };
                self.change_sequence_owner(self.named(sequence)?, owner)?;
                done(format!("ALTER SEQUENCE {sequence} OWNED BY"))
            }
            S::Setval { sequence } => {
                self.setval(self.named(sequence)?)?;
                done(format!("setval of {sequence}"))
            }
            S::CreateTableAs { name, table } => {
                let made = self.create_table_as(PUBLIC, name, self.named(table)?)?;
                Ok((format!("CREATE TABLE {name} AS"), Some(made)))
            }
            S::Role { action, name } => {
                match action {
                    RoleAction::Create => self.create_role(name)?,
                    RoleAction::Alter => self.alter_role(name)?,
                    RoleAction::Drop => self.drop_role(name)?,
                }
                done(format!("ROLE {name}"))
            }
            S::PublicationOwner { name, role } => {
                self.publication_owner(name, &role.as_str().into())?;
                done(format!("ALTER PUBLICATION {name} OWNER TO {role}"))
            }
            S::Inherit { table, parent, add } => {
                let (child, of) = (self.named(table)?, self.named(parent)?);
                if *add {
                    self.add_inheritance(child, of)?;
                } else {
                    self.remove_inheritance(child, of)?;
                }
                done(format!("ALTER TABLE {table} {} {parent}", statement.name()))
            }
            S::GrantOn { what, name, role } => {
                let role = role.as_str().into();
                match what {
                    ObjectKind::Schema => self.grant_on_object(catalog::NAMESPACE, "schema", name, &role)?,
                    _ => self.grant_on_object(catalog::PROC, "function", name, &role)?,
                }
                done(format!("GRANT on {name} to {role}"))
            }
            other => Err(StatementError::Refused(format!("{} cannot be run here", other.name()))),
        }
    }

    /// A policy, rule, trigger or constraint of a table.
    fn run_table_part(&mut self, action: PartAction, table: &str, name: &Arc<str>) -> Result<()> {
        let rel = self.named(table)?;
        match action {
            PartAction::CreatePolicy => self.create_policy(rel, name),
            PartAction::DropPolicy => self.drop_table_part(rel, catalog::POLICY, "policy", name),
            PartAction::CreateRule => self.create_rule(rel, name),
            PartAction::DropRule => self.drop_table_part(rel, catalog::REWRITE, "rule", name),
            PartAction::EnableTrigger => self.set_trigger(rel, name, true),
            PartAction::DisableTrigger => self.set_trigger(rel, name, false),
            PartAction::ValidateConstraint => self.validate_constraint(rel, name),
        }
    }
}
