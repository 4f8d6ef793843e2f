//! Object ids (`postgres_ext.h`) and the physical names of relation files (`storage/relfilelocator.h`).

use std::fmt;
use std::str::FromStr;

/// An object id: database, relation, type …
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Oid(pub u32);

impl Oid {
    /// `InvalidOid`; in invalidation messages it means "shared" (database) or "all" (relation).
    pub const INVALID: Oid = Oid(0);
    /// `FirstNormalObjectId`: ids below belong to objects made by initdb.
    pub const FIRST_NORMAL: Oid = Oid(16384);
    /// `DEFAULTTABLESPACE_OID` (pg_default).
    pub const DEFAULT_TABLESPACE: Oid = Oid(1663);
    /// `GLOBALTABLESPACE_OID` (pg_global): shared catalogs live there.
    pub const GLOBAL_TABLESPACE: Oid = Oid(1664);

    /// True unless this is [`Oid::INVALID`].
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.0 != 0
    }
}

impl fmt::Display for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a relation's file is: tablespace, database (0 for shared catalogs), file number.
///
/// `RelFileNode` up to 15, `RelFileLocator` from 16 on. Shown as in pg_waldump: `1663/5/16396`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelFileLocator {
    /// Tablespace.
    pub spc: Oid,
    /// Database, 0 for shared relations.
    pub db: Oid,
    /// File number (`relfilenode`, from 16 on `RelFileNumber`).
    pub rel: u32,
}

impl fmt::Display for RelFileLocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.spc, self.db, self.rel)
    }
}

/// The text was not `tablespace/database/file`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a relation file locator: write tablespace/database/file, as in 1663/5/16396")]
pub struct ParseLocatorError(String);

impl FromStr for RelFileLocator {
    type Err = ParseLocatorError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let parts: Vec<u32> = s.split('/').map_while(|p| p.parse().ok()).collect();
        match parts[..] {
            [spc, db, rel] if s.split('/').count() == 3 => Ok(Self { spc: Oid(spc), db: Oid(db), rel }),
            _ => Err(ParseLocatorError(s.to_owned())),
        }
    }
}

/// A tuple's physical address: block and line pointer (`ItemPointerData`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid {
    /// Block number.
    pub block: u32,
    /// Line pointer, 1-based.
    pub offset: u16,
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.block, self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locator_text_round_trips() {
        let loc = RelFileLocator { spc: Oid(1663), db: Oid(5), rel: 16396 };
        assert_eq!(loc.to_string().parse(), Ok(loc));
        for bad in ["", "1/2", "1/2/3/4", "1/2/x", "1//3"] {
            assert!(bad.parse::<RelFileLocator>().is_err(), "{bad:?}");
        }
    }
}
