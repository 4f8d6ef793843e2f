//! The standby's incidents, small: what must come out of each scenario that concerns it, counted. By the cores record by record, and
//! through a primary and a standby that talk gRPC, over a scenario's WAL that grows from position to position.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod connection_storm;
mod feedback;
mod overflowed_start;
mod played;
mod prepared;
mod rig;
mod sinval_lap;
mod standby_gaps;
mod subxact_cliff;
