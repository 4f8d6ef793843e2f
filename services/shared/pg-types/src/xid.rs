//! Transaction ids (`access/transam.h`): 32 bits on disk and in WAL, compared modulo 2^32; 64 bits where an epoch is known.

use std::fmt;

/// A 32-bit transaction id.
///
/// It has no `Ord`: ids wrap around, so "older" is a question for [`Xid::precedes`]. PostgreSQL sorts xid arrays of
/// snapshots by plain number; for that there is [`Xid::numeric`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Xid(pub u32);

impl Xid {
    /// `InvalidTransactionId`.
    pub const INVALID: Xid = Xid(0);
    /// `FirstNormalTransactionId`; 1 and 2 are the bootstrap and the frozen id.
    pub const FIRST_NORMAL: Xid = Xid(3);

    /// True unless this is [`Xid::INVALID`].
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.0 != 0
    }

    /// True for ids that a transaction can have (`TransactionIdIsNormal`).
    #[must_use]
    pub fn is_normal(self) -> bool {
        self.0 >= 3
    }

    /// `TransactionIdPrecedes`: older than `other` in the circular order; special ids are older than all normal ones.
    #[must_use]
    pub fn precedes(self, other: Xid) -> bool {
        if self.is_normal() && other.is_normal() { (self.0.wrapping_sub(other.0) as i32) < 0 } else { self.0 < other.0 }
    }

    /// `TransactionIdPrecedesOrEquals`.
    #[must_use]
    pub fn precedes_or_equals(self, other: Xid) -> bool {
        self == other || self.precedes(other)
    }

    /// `TransactionIdFollows`.
    #[must_use]
    pub fn follows(self, other: Xid) -> bool {
        other.precedes(self)
    }

    /// `TransactionIdFollowsOrEquals`.
    #[must_use]
    pub fn follows_or_equals(self, other: Xid) -> bool {
        !self.precedes(other)
    }

    /// `TransactionIdAdvance`: the next id, skipping the special ones at wraparound.
    #[must_use]
    pub fn next(self) -> Xid {
        let next = self.0.wrapping_add(1);
        Xid(if next < 3 { 3 } else { next })
    }

    /// `TransactionIdRetreat`: the id before, skipping the special ones at wraparound.
    #[must_use]
    pub fn prev(self) -> Xid {
        let prev = self.0.wrapping_sub(1);
        Xid(if prev < 3 { u32::MAX } else { prev })
    }

    /// The plain number, for the places where PostgreSQL sorts xids with `xidComparator`.
    #[must_use]
    pub fn numeric(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Xid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A 64-bit transaction id (`FullTransactionId`): epoch in the high half. It does not wrap and has an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FullXid(pub u64);

impl FullXid {
    /// The low half.
    #[must_use]
    pub fn xid(self) -> Xid {
        Xid(self.0 as u32)
    }

    /// The high half.
    #[must_use]
    pub fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// `FullTransactionIdAdvance`: the next id, skipping the special low halves.
    #[must_use]
    pub fn next(self) -> FullXid {
        let next = self.0.wrapping_add(1);
        if (next as u32) < 3 { FullXid((next & !0xFFFF_FFFF) | 3) } else { FullXid(next) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_circular_and_special_ids_are_oldest() {
        assert!(Xid(u32::MAX).precedes(Xid(3)));
        assert!(Xid(3).follows(Xid(u32::MAX)));
        assert!(Xid(2).precedes(Xid(u32::MAX)));
        assert!(!Xid(7).precedes(Xid(7)) && Xid(7).precedes_or_equals(Xid(7)) && Xid(7).follows_or_equals(Xid(7)));
    }

    #[test]
    fn steps_skip_special_ids() {
        assert_eq!(Xid(u32::MAX).next(), Xid(3));
        assert_eq!(Xid(3).prev(), Xid(u32::MAX));
        assert_eq!(FullXid(0xFFFF_FFFF).next(), FullXid(0x1_0000_0003));
    }
}
