//! Prepared transactions and their ends, as `walstorm decode --two-phase` shows them.

use std::io::{self, Write};

use decoder_core::{Consumer, DecodedTransaction, PreparedEnd, TimestampText};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{printable, serialize_contents};

/// A name, which is bytes from outside.
fn name(gid: &[u8]) -> String {
    String::from_utf8_lossy(gid).into_owned()
}

/// A prepared transaction as the documented JSON object, and whose figures its work is.
pub(super) struct JsonPrepare<'a>(pub(super) &'a DecodedTransaction, pub(super) Consumer);

impl Serialize for JsonPrepare<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let t = self.0;
        let mut map = serializer.serialize_map(Some(10))?;
        map.serialize_entry("prepare", &t.xid.0)?;
        map.serialize_entry("gid", &name(&t.gid))?;
        map.serialize_entry("prepare_lsn", &t.commit_lsn.to_string())?;
        map.serialize_entry("end_lsn", &t.end_lsn.to_string())?;
        map.serialize_entry("prepare_time", &TimestampText(t.commit_time).to_string())?;
        serialize_contents(&mut map, t, self.1)?;
        map.end()
    }
}

/// The end of a prepared transaction.
#[derive(Clone, Copy)]
pub(super) struct PreparedLine<'a> {
    /// It committed; else it is rolled back.
    pub(super) committed: bool,
    /// What is told of it.
    pub(super) end: &'a PreparedEnd,
}

impl PreparedLine<'_> {
    /// A line for people.
    pub(super) fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let PreparedEnd { xid, gid, lsn, end_lsn, time, .. } = self.end;
        let what = if self.committed { "commit prepared" } else { "rollback prepared" };
        writeln!(out, "{what} xid {xid} '{}' at {lsn} end {end_lsn} at {}", printable(&name(gid)), TimestampText(*time))
    }
}

impl Serialize for &PreparedLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let PreparedEnd { xid, gid, lsn, end_lsn, time, .. } = self.end;
        let mut map = serializer.serialize_map(Some(5))?;
        map.serialize_entry(if self.committed { "commit_prepared" } else { "rollback_prepared" }, &xid.0)?;
        map.serialize_entry("gid", &name(gid))?;
        map.serialize_entry("lsn", &lsn.to_string())?;
        map.serialize_entry("end_lsn", &end_lsn.to_string())?;
        map.serialize_entry("time", &TimestampText(*time).to_string())?;
        map.end()
    }
}
