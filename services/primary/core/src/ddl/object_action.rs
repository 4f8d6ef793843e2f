//! What statements do to a table as a whole or to a part of it.

/// What happens to a part of a table that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartAction {
    /// CREATE POLICY.
    CreatePolicy,
    /// DROP POLICY.
    DropPolicy,
    /// CREATE RULE.
    CreateRule,
    /// DROP RULE.
    DropRule,
    /// ENABLE TRIGGER.
    EnableTrigger,
    /// DISABLE TRIGGER.
    DisableTrigger,
    /// VALIDATE CONSTRAINT.
    ValidateConstraint,
}

impl PartAction {
    /// Its name in SQL.
    #[must_use]
    pub fn sql(self) -> &'static str {
        match self {
            PartAction::CreatePolicy => "CREATE POLICY",
            PartAction::DropPolicy => "DROP POLICY",
            PartAction::CreateRule => "CREATE RULE",
            PartAction::DropRule => "DROP RULE",
            PartAction::EnableTrigger => "ENABLE TRIGGER",
            PartAction::DisableTrigger => "DISABLE TRIGGER",
            PartAction::ValidateConstraint => "VALIDATE CONSTRAINT",
        }
    }
}

/// What happens to a table as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableAction {
    /// LOCK TABLE.
    Lock,
    /// ENABLE or DISABLE ROW LEVEL SECURITY.
    RowLevelSecurity,
    /// OWNER TO a role.
    OwnerTo(String),
    /// SET SCHEMA.
    SetSchema(String),
    /// GRANT on a column to a role.
    GrantOnColumn(String, String),
}

impl TableAction {
    /// Its name in SQL.
    #[must_use]
    pub fn sql(&self) -> &'static str {
        match self {
            TableAction::Lock => "LOCK TABLE",
            TableAction::RowLevelSecurity => "ROW LEVEL SECURITY",
            TableAction::OwnerTo(_) => "OWNER TO",
            TableAction::SetSchema(_) => "SET SCHEMA",
            TableAction::GrantOnColumn(..) => "GRANT on a column",
        }
    }
}
