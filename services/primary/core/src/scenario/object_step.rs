//! Steps of statements on objects, as serde reads them. Names may have blanks and patterns.

use schemars::JsonSchema;
use serde::Deserialize;

/// A statement on a table.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TableNameFile {
    /// The table.
    pub(super) table: String,
}

/// DROP TABLE.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DropTableFile {
    /// The table.
    pub(super) table: String,
    /// What depends on it goes, too.
    #[serde(default)]
    pub(super) cascade: bool,
}

/// DROP INDEX and REINDEX INDEX.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct IndexFile {
    /// The index.
    pub(super) index: String,
    /// CONCURRENTLY: outside of transactions, as several of its own.
    #[serde(default)]
    pub(super) concurrently: bool,
}

/// REINDEX TABLE.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReindexTableFile {
    /// The table.
    pub(super) table: String,
    /// CONCURRENTLY: outside of transactions, as several of its own.
    #[serde(default)]
    pub(super) concurrently: bool,
}

/// A statement on a view.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ViewFile {
    /// The view.
    pub(super) view: String,
}

/// A statement on a sequence.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SequenceFile {
    /// The sequence.
    pub(super) sequence: String,
}

/// A statement on a type.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TypeFile {
    /// The type.
    pub(super) r#type: String,
}

/// A statement on a function.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FunctionFile {
    /// The function.
    pub(super) function: String,
}

/// A statement on a schema.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SchemaFile {
    /// The schema.
    pub(super) schema: String,
}

/// A statement on a publication.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PublicationFile {
    /// The publication.
    pub(super) publication: String,
}

/// ALTER TABLE RENAME.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RenameTableFile {
    /// The table.
    pub(super) table: String,
    /// The new name.
    pub(super) to: String,
}

/// ALTER INDEX RENAME.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RenameIndexFile {
    /// The index.
    pub(super) index: String,
    /// The new name.
    pub(super) to: String,
}

/// ALTER VIEW RENAME.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RenameViewFile {
    /// The view.
    pub(super) view: String,
    /// The new name.
    pub(super) to: String,
}

/// ALTER TYPE RENAME.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RenameTypeFile {
    /// The type.
    pub(super) r#type: String,
    /// The new name.
    pub(super) to: String,
}

/// ALTER SCHEMA RENAME.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RenameSchemaFile {
    /// The schema.
    pub(super) schema: String,
    /// The new name.
    pub(super) to: String,
}

/// ALTER TABLE RENAME COLUMN.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RenameColumnFile {
    /// The table.
    pub(super) table: String,
    /// The column.
    pub(super) column: String,
    /// The new name.
    pub(super) to: String,
}

/// ALTER TABLE … COLUMN.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ColumnFile {
    /// The table.
    pub(super) table: String,
    /// The column.
    pub(super) column: String,
}

/// ALTER TABLE DROP COLUMN.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DropColumnFile {
    /// The table.
    pub(super) table: String,
    /// The column.
    pub(super) column: String,
    /// What depends on it goes, too.
    #[serde(default)]
    pub(super) cascade: bool,
}

/// ALTER COLUMN TYPE.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AlterColumnTypeFile {
    /// The table.
    pub(super) table: String,
    /// The column.
    pub(super) column: String,
    /// The new type, as in a column's definition.
    pub(super) r#type: String,
}

/// ALTER TABLE ADD CONSTRAINT: one of `primary_key`, `unique`, `check`, `foreign_key` names the column.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AddConstraintFile {
    /// The table.
    pub(super) table: String,
    /// Its name; as PostgreSQL would name it if not said.
    pub(super) name: Option<String>,
    /// PRIMARY KEY of this column.
    pub(super) primary_key: Option<String>,
    /// UNIQUE column.
    pub(super) unique: Option<String>,
    /// CHECK of this column.
    pub(super) check: Option<String>,
    /// FOREIGN KEY from this column.
    pub(super) foreign_key: Option<String>,
    /// The table whose primary key a foreign key refers to.
    pub(super) references: Option<String>,
    /// NOT VALID, of a check or foreign key: rows that are there are not looked at.
    #[serde(default)]
    pub(super) not_valid: bool,
}

/// ALTER TABLE DROP CONSTRAINT.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DropConstraintFile {
    /// The table.
    pub(super) table: String,
    /// The constraint.
    pub(super) constraint: String,
    /// What depends on it goes, too.
    #[serde(default)]
    pub(super) cascade: bool,
}

/// ALTER TABLE REPLICA IDENTITY.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplicaIdentityFile {
    /// The table.
    pub(super) table: String,
    /// `default`, `full` or `nothing`.
    pub(super) identity: Option<IdentityFile>,
    /// Or the columns of this index.
    pub(super) index: Option<String>,
}

/// A replica identity without index.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum IdentityFile {
    /// The primary key.
    Default,
    /// The whole row.
    Full,
    /// Nothing.
    Nothing,
}

/// ATTACH and DETACH PARTITION.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PartitionFile {
    /// The partitioned table.
    pub(super) table: String,
    /// The partition.
    pub(super) partition: String,
}

/// COMMENT.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CommentFile {
    /// The table.
    pub(super) table: String,
    /// Or this column of it.
    pub(super) column: Option<String>,
    /// IS NULL: the comment goes.
    #[serde(default)]
    pub(super) remove: bool,
}

/// CREATE VIEW.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateViewFile {
    /// The view.
    pub(super) view: String,
    /// The table.
    pub(super) table: String,
    /// OR REPLACE.
    #[serde(default)]
    pub(super) replace: bool,
}

/// CREATE MATERIALIZED VIEW.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateMaterializedViewFile {
    /// The view.
    pub(super) view: String,
    /// The table.
    pub(super) table: String,
}

/// CREATE TYPE.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateTypeFile {
    /// The type.
    pub(super) r#type: String,
    /// Labels of an enum.
    #[serde(default)]
    pub(super) r#enum: Vec<String>,
    /// Or columns of a composite type.
    #[serde(default)]
    pub(super) columns: Vec<String>,
}

/// ALTER TYPE ADD VALUE.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AddEnumValueFile {
    /// The type.
    pub(super) r#type: String,
    /// The label.
    pub(super) value: String,
}

/// CREATE FUNCTION.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateFunctionFile {
    /// The function.
    pub(super) function: String,
    /// OR REPLACE.
    #[serde(default)]
    pub(super) replace: bool,
}

/// CREATE PUBLICATION.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreatePublicationFile {
    /// The publication.
    pub(super) publication: String,
    /// FOR TABLE.
    #[serde(default)]
    pub(super) tables: Vec<String>,
    /// FOR ALL TABLES.
    #[serde(default)]
    pub(super) all_tables: bool,
    /// FOR TABLES IN SCHEMA (15 and later).
    pub(super) schema: Option<String>,
    /// The column list of each table (15 and later).
    #[serde(default)]
    pub(super) columns: Vec<String>,
    /// Columns that the row filter of each table reads (15 and later).
    #[serde(default)]
    pub(super) filter: Vec<String>,
}

/// ALTER PUBLICATION: one of its changes.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AlterPublicationFile {
    /// The publication.
    pub(super) publication: String,
    /// ADD TABLE.
    #[serde(default)]
    pub(super) add: Vec<String>,
    /// DROP TABLE.
    #[serde(default)]
    pub(super) drop: Vec<String>,
    /// SET TABLE.
    #[serde(default)]
    pub(super) set: Vec<String>,
    /// SET (publish = …).
    #[serde(default)]
    pub(super) options: bool,
    /// RENAME TO.
    pub(super) to: Option<String>,
    /// OWNER TO this role.
    pub(super) owner: Option<String>,
}

/// CREATE TRIGGER.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateTriggerFile {
    /// The table.
    pub(super) table: String,
    /// The trigger.
    pub(super) trigger: String,
    /// The function that it calls.
    pub(super) function: String,
}

/// DROP TRIGGER.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DropTriggerFile {
    /// The table.
    pub(super) table: String,
    /// The trigger.
    pub(super) trigger: String,
}

/// CLUSTER.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ClusterFile {
    /// The table.
    pub(super) table: String,
    /// The index that says the order.
    pub(super) index: String,
}
