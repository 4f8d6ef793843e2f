//! The standby: replays a primary's WAL like a hot standby and serves snapshots.
