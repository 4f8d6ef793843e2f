//! Known-assigned xids, recovery state and snapshots of the standby; pure.
