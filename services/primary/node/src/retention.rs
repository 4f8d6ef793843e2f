//! Which WAL may be removed (`KeepLogSeg`, `InvalidateObsoleteReplicationSlots` in `access/transam/xlog.c`): a plain function.
//!
//! WAL is kept for slots, and beside them at least `keep_bytes` for consumers that have none. A slot whose consumer never
//! comes back would keep WAL until the disk is full, so past `slot_keep_bytes_max` it loses its right, and says so.

use pg_types::Lsn;

/// How much WAL is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Kept in any case (`wal_keep_size`).
    pub keep_bytes: u64,
    /// Most that slots may keep (`max_slot_wal_keep_size`); unset: no limit.
    pub slot_keep_bytes_max: Option<u64>,
}

/// What may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Segments that end at or before this may be removed.
    pub remove_before: Lsn,
    /// Slots that need WAL before this have lost.
    pub slots_lost_before: Lsn,
}

impl Retention {
    /// What may go when WAL ends at `end` and the oldest WAL that a slot needs is `slots_need`.
    #[must_use]
    pub fn removal(&self, end: Lsn, slots_need: Option<Lsn>) -> Removal {
        let slots_lost_before = Lsn(self.slot_keep_bytes_max.map_or(0, |max| end.0.saturating_sub(max)));
        let unslotted = Lsn(end.0.saturating_sub(self.keep_bytes));
        let slotted = slots_need.map_or(unslotted, |need| need.max(slots_lost_before));
        Removal { remove_before: unslotted.min(slotted), slots_lost_before: slots_lost_before.min(unslotted) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_keep_wal_up_to_their_limit() {
        let r = Retention { keep_bytes: 100, slot_keep_bytes_max: Some(500) };
        let end = Lsn(1000);
        assert_eq!(r.removal(end, None).remove_before, Lsn(900));
        assert_eq!(r.removal(end, Some(Lsn(950))).remove_before, Lsn(900));
        assert_eq!(r.removal(end, Some(Lsn(700))).remove_before, Lsn(700));
        let past = r.removal(end, Some(Lsn(300)));
        assert_eq!(past, Removal { remove_before: Lsn(500), slots_lost_before: Lsn(500) });
        let unlimited = Retention { slot_keep_bytes_max: None, ..r };
        assert_eq!(unlimited.removal(end, Some(Lsn(300))), Removal { remove_before: Lsn(300), slots_lost_before: Lsn(0) });
    }

    #[test]
    fn no_slot_is_lost_while_its_wal_is_kept_anyway() {
        let r = Retention { keep_bytes: 600, slot_keep_bytes_max: Some(500) };
        assert_eq!(r.removal(Lsn(1000), Some(Lsn(450))), Removal { remove_before: Lsn(400), slots_lost_before: Lsn(400) });
        assert_eq!(r.removal(Lsn(50), Some(Lsn(10))), Removal { remove_before: Lsn(0), slots_lost_before: Lsn(0) });
    }
}
