//! Checked little-endian reading: every byte of WAL is looked at through a [`Cursor`].

use crate::error::Malformed;

/// A position in a byte string. Reading past the end is an error, never a panic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    /// What is left.
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of `bytes`.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// How many bytes have not been read yet.
    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    /// The next `n` bytes.
    #[inline]
    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let Some((head, tail)) = self.rest.split_at_checked(n) else {
            return Err(Malformed::Short { needed: n, left: self.rest.len() });
        };
        self.rest = tail;
        Ok(head)
    }

    /// The next `N` bytes as an array.
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], Malformed> {
        let Some((head, tail)) = self.rest.split_first_chunk::<N>() else {
            return Err(Malformed::Short { needed: N, left: self.rest.len() });
        };
        self.rest = tail;
        Ok(head)
    }

    /// An unsigned byte.
    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[b]| *b)
    }

    /// A C `bool`: anything but 0 is true.
    #[inline]
    pub(crate) fn bool(&mut self) -> Result<bool, Malformed> {
        Ok(self.u8()? != 0)
    }

    /// A 16-bit number.
    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(|b| u16::from_le_bytes(*b))
    }

    /// A 32-bit number.
    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(|b| u32::from_le_bytes(*b))
    }

    /// A signed 32-bit number.
    #[inline]
    pub(crate) fn i32(&mut self) -> Result<i32, Malformed> {
        self.array().map(|b| i32::from_le_bytes(*b))
    }

    /// A 64-bit number.
    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(|b| u64::from_le_bytes(*b))
    }

    /// A signed 64-bit number.
    #[inline]
    pub(crate) fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(|b| i64::from_le_bytes(*b))
    }

    /// `count` items of `N` bytes each, as one slice of arrays; nothing is allocated, so a lying count costs nothing.
    pub(crate) fn items<const N: usize>(&mut self, count: i64) -> Result<&'a [[u8; N]], Malformed> {
        let wrong = Malformed::Count { count, size: N, left: self.rest.len() };
        let Some(len) = usize::try_from(count).ok().and_then(|n| n.checked_mul(N)) else { return Err(wrong) };
        let (items, _) = self.take(len).map_err(|_| wrong)?.as_chunks::<N>();
        Ok(items)
    }

    /// Skips what pads the `read` bytes before it to a multiple of eight (`MAXALIGN`), as far as it is there.
    pub(crate) fn align8(&mut self, read: usize) {
        let pad = read.wrapping_neg() & 7;
        self.rest = self.rest.get(pad..).unwrap_or_default();
    }

    /// The bytes before the next NUL, which is skipped.
    pub(crate) fn c_string(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.rest.iter().position(|&b| b == 0).ok_or(Malformed::NoNul)?;
        let text = self.take(end)?;
        self.take(1)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_lie_are_errors() {
        let mut c = Cursor::new(&[0; 40]);
        assert!(c.items::<16>(i64::MAX).is_err());
        assert!(c.items::<16>(-1).is_err());
        assert!(c.items::<16>(3).is_err());
        assert_eq!(c.items::<16>(2).map(<[_]>::len), Ok(2));
        assert_eq!(c.left(), 8);
    }
}
