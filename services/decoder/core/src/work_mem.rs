//! The setting `logical_decoding_work_mem`.

use std::fmt;
use std::str::FromStr;

/// How many bytes changes of unfinished transactions may count for before some are written out (`logical_decoding_work_mem`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkMem(u64);

impl WorkMem {
    /// The least that the setting may be: 64 kB.
    pub const MIN: WorkMem = WorkMem(64 << 10);

    /// The most: what a setting in kB can hold.
    pub const MAX: WorkMem = WorkMem((i32::MAX as u64) << 10);

    /// So many bytes, even if the setting could not say so.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl Default for WorkMem {
    /// 64 MB, as in PostgreSQL.
    fn default() -> Self {
        Self(64 << 20)
    }
}

impl fmt::Display for WorkMem {
    /// As PostgreSQL shows it: in the largest unit that divides it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1u64 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"), (1, "B")];
        let (unit, name) = units.into_iter().find(|(unit, _)| self.0.is_multiple_of(*unit) && self.0 > 0).unwrap_or((1, "B"));
        write!(f, "{}{name}", self.0 / unit)
    }
}

/// The text is no such setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{}' must be a number with B, kB (if none is given), MB, GB or TB, from {} to {}", asked.escape_debug(), WorkMem::MIN, WorkMem::MAX)]
pub struct BadWorkMem {
    /// The text.
    pub asked: String,
}

impl FromStr for WorkMem {
    type Err = BadWorkMem;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let unit = match unit.trim_start() {
            "B" => Some(1),
            "" | "kB" => Some(1 << 10),
            "MB" => Some(1 << 20),
            "GB" => Some(1 << 30),
            "TB" => Some(1 << 40),
            _ => None,
        };
        let bytes = number.parse::<u64>().ok().zip(unit).and_then(|(n, unit)| n.checked_mul(unit)).map(WorkMem);
        bytes.filter(|bytes| (Self::MIN..=Self::MAX).contains(bytes)).ok_or_else(|| BadWorkMem { asked: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_as_in_postgresql() {
        for (text, bytes, shown) in [
            ("64", 64 << 10, "64kB"),
            ("64kB", 64 << 10, "64kB"),
            ("64MB", 64 << 20, "64MB"),
            ("1024 kB", 1 << 20, "1MB"),
            ("2GB", 2 << 30, "2GB"),
            ("65537B", 65_537, "65537B"),
        ] {
            let setting: WorkMem = text.parse().unwrap();
            assert_eq!((setting.bytes(), setting.to_string()), (bytes, shown.to_owned()));
            assert_eq!(setting.to_string().parse(), Ok(setting));
        }
        for bad in ["", "kB", "63kB", "0", "-1", "64KB", "64 mb", "9999999999999TB", "64kB ", "1e3", "2TB\u{1b}"] {
            let error = bad.parse::<WorkMem>().unwrap_err().to_string();
            assert!(error.contains("from 64kB to"), "{error}");
        }
        assert_eq!(WorkMem::default().to_string(), "64MB");
    }
}
