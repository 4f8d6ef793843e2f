//! What all slots need together (`ReplicationSlotsComputeRequiredXmin` in `replication/slot.c`).

use pg_types::Xid;
use primary_core::consumer::oldest;

use super::table::SlotTable;

/// The oldest xids that clients' slots need, invalid for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Horizon {
    /// Of all rows (`xmin`).
    pub(crate) xmin: Xid,
    /// Of rows of catalogs (`catalog_xmin`).
    pub(crate) catalog_xmin: Xid,
}

impl Horizon {
    /// Nobody needs anything.
    pub(crate) const NONE: Self = Self { xmin: Xid::INVALID, catalog_xmin: Xid::INVALID };
}

impl SlotTable {
    /// What clients' slots need, held or not; those that are lost need nothing more, and a scenario's consumers are known to its
    /// engine.
    pub(crate) fn horizon(&self) -> Horizon {
        let needed = self.list().filter(|slot| !slot.is_of_scenario() && slot.state.invalidated.is_none());
        needed.fold(Horizon::NONE, |all, slot| Horizon {
            xmin: oldest(all.xmin, Xid(slot.state.xmin)),
            catalog_xmin: oldest(all.catalog_xmin, Xid(slot.state.catalog_xmin)),
        })
    }
}
