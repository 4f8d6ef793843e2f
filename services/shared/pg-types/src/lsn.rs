//! Log sequence numbers: byte positions in the WAL stream (`access/xlogdefs.h`).

use std::fmt;
use std::str::FromStr;

/// A position in the WAL, in bytes from the start of the cluster's history.
///
/// Shown and parsed as PostgreSQL does: two hexadecimal halves, `0/A05390`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// `InvalidXLogRecPtr`: no position.
    pub const INVALID: Lsn = Lsn(0);

    /// True unless this is [`Lsn::INVALID`].
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.0 != 0
    }

    /// The position rounded up to the 8-byte boundary at which the next record may start (`MAXALIGN`); saturates at the end.
    #[must_use]
    pub fn align(self) -> Lsn {
        Lsn(self.0.saturating_add(7) & !7)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// The text was not an LSN.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an LSN: write two hexadecimal numbers with a slash between, as in 0/16B3748")]
pub struct ParseLsnError(String);

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let half = |t: &str| {
            let hex = (1..=8).contains(&t.len()) && t.bytes().all(|b| b.is_ascii_hexdigit());
            if hex { u64::from_str_radix(t, 16).ok() } else { None }
        };
        let (hi, lo) = s.split_once('/').ok_or_else(|| ParseLsnError(s.to_owned()))?;
        match (half(hi), half(lo)) {
            (Some(hi), Some(lo)) => Ok(Lsn(hi << 32 | lo)),
            _ => Err(ParseLsnError(s.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_is_postgresqls() {
        assert_eq!("0/A05390".parse(), Ok(Lsn(0xA0_5390)));
        assert_eq!("16/B374D848".parse::<Lsn>().map(|l| l.to_string()), Ok("16/B374D848".to_owned()));
        for bad in ["", "0", "/", "0/", "G/0", "0/123456789", "+1/0", "0/ 1", "0/1/2"] {
            assert!(bad.parse::<Lsn>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn alignment_is_to_eight_bytes_and_saturates() {
        assert_eq!(Lsn(1).align(), Lsn(8));
        assert_eq!(Lsn(8).align(), Lsn(8));
        assert_eq!(Lsn(u64::MAX).align(), Lsn(!7));
    }
}
