//! Steps of statements on parts of tables and on objects of few statements, as serde reads them.

use schemars::JsonSchema;
use serde::Deserialize;

/// A policy of a table.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyFile {
    /// The table.
    pub(super) table: String,
    /// The policy.
    pub(super) policy: String,
}

/// A rule of a table.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleFile {
    /// The table.
    pub(super) table: String,
    /// The rule.
    pub(super) rule: String,
}

/// A constraint of a table.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ConstraintFile {
    /// The table.
    pub(super) table: String,
    /// The constraint.
    pub(super) constraint: String,
}

/// ALTER TABLE RENAME CONSTRAINT.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RenameConstraintFile {
    /// The table.
    pub(super) table: String,
    /// The constraint.
    pub(super) constraint: String,
    /// The new name.
    pub(super) to: String,
}

/// ALTER TRIGGER RENAME.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RenameTriggerFile {
    /// The table.
    pub(super) table: String,
    /// The trigger.
    pub(super) trigger: String,
    /// The new name.
    pub(super) to: String,
}

/// ALTER SEQUENCE RENAME.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RenameSequenceFile {
    /// The sequence.
    pub(super) sequence: String,
    /// The new name.
    pub(super) to: String,
}

/// ALTER TABLE OWNER TO.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OwnerFile {
    /// The table.
    pub(super) table: String,
    /// The role.
    pub(super) role: String,
}

/// CREATE DOMAIN.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateDomainFile {
    /// The domain.
    pub(super) domain: String,
    /// Its base type, as in a column's definition.
    pub(super) r#type: String,
    /// CHECK of its value.
    #[serde(default)]
    pub(super) check: bool,
}

/// A statement on a domain.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DomainFile {
    /// The domain.
    pub(super) domain: String,
}

/// CREATE STATISTICS.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateStatisticsFile {
    /// The statistics object.
    pub(super) statistics: String,
    /// The table.
    pub(super) table: String,
    /// Two columns or more.
    pub(super) columns: Vec<String>,
}

/// A statement on a statistics object.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StatisticsFile {
    /// The statistics object.
    pub(super) statistics: String,
}

/// ALTER SEQUENCE OWNED BY.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OwnSequenceFile {
    /// The sequence.
    pub(super) sequence: String,
    /// The table whose column owns it. NONE if not said.
    pub(super) table: Option<String>,
    /// That column.
    pub(super) column: Option<String>,
}

/// CREATE TABLE AS.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateTableAsFile {
    /// The new table.
    pub(super) table: String,
    /// The table whose rows it gets.
    pub(super) from: String,
}

/// A statement on a role.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RoleFile {
    /// The role.
    pub(super) role: String,
}

/// GRANT on a schema.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GrantOnSchemaFile {
    /// The schema.
    pub(super) schema: String,
    /// The role.
    pub(super) role: String,
}

/// GRANT on a function.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GrantOnFunctionFile {
    /// The function.
    pub(super) function: String,
    /// The role.
    pub(super) role: String,
}

/// GRANT on a table.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GrantOnTableFile {
    /// The table.
    pub(super) table: String,
    /// The role.
    pub(super) role: String,
    /// This column alone.
    pub(super) column: Option<String>,
}

/// ALTER TABLE SET SCHEMA.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SetSchemaFile {
    /// The table.
    pub(super) table: String,
    /// The schema.
    pub(super) schema: String,
}

/// ALTER TABLE INHERIT and NO INHERIT.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct InheritFile {
    /// The child.
    pub(super) table: String,
    /// The table that it inherits from.
    pub(super) parent: String,
}
