//! Major versions of PostgreSQL whose WAL we read.

use std::fmt;
use std::str::FromStr;

/// A supported major version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PgVersion {
    /// PostgreSQL 13.
    V13,
    /// PostgreSQL 14.
    V14,
    /// PostgreSQL 15.
    V15,
    /// PostgreSQL 16.
    V16,
    /// PostgreSQL 17.
    V17,
    /// PostgreSQL 18.
    V18,
}

impl PgVersion {
    /// All supported versions, oldest first.
    pub const ALL: [PgVersion; 6] = [Self::V13, Self::V14, Self::V15, Self::V16, Self::V17, Self::V18];

    /// The number people use: 13 … 18.
    #[must_use]
    pub fn major(self) -> u32 {
        13 + self as u32
    }
}

impl fmt::Display for PgVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.major().fmt(f)
    }
}

/// The text was not a supported major version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a PostgreSQL version that walstorm reads: use 13, 14, 15, 16, 17 or 18")]
pub struct ParseVersionError(String);

impl FromStr for PgVersion {
    type Err = ParseVersionError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|v| v.to_string() == s).ok_or_else(|| ParseVersionError(s.to_owned()))
    }
}
