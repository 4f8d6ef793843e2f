//! Builds a logical slot: reads WAL from its restart position on, as it comes, until a point is found from which it can be decoded.
//!
//! One task a slot under construction, which ends with the construction, with the slot, or with the node; after a restart it begins
//! again where the slot's file says. Whoever waits for a slot watches [`Slots::built`].

use std::sync::Arc;

use pg_wal::{WalProfile, WalReader};
use service_kit::Drain;
use tokio::sync::watch;

use super::creation::{BuildState, SlotCreation};
use super::{SlotFile, Slots};
use crate::error::{Error, Result};
use crate::wal_log::{LogEnd, WalLog, end_error, read_error, segment_file};

/// Most WAL that is read between two reports.
const WAL_BYTES_MAX: u64 = 16 << 20;

/// What builds one slot.
pub(crate) struct SlotBuilder {
    /// All slots.
    slots: Slots,
    /// The log.
    log: WalLog,
    /// When the node stops.
    drain: Drain,
    /// Name of the slot.
    name: String,
    /// When it was made: another one of the same name is not ours.
    created_at_ms: u64,
    /// How far it is.
    creation: SlotCreation,
    /// Open while WAL is read.
    reader: Option<WalReader>,
}

impl SlotBuilder {
    /// Starts to build `slot` from its restart position on.
    pub(crate) fn spawn(slots: &Slots, log: &WalLog, drain: &Drain, slot: &SlotFile) {
        let this = Self {
            slots: slots.clone(),
            log: log.clone(),
            drain: drain.clone(),
            name: slot.name.clone(),
            created_at_ms: slot.created_at_ms,
            creation: SlotCreation::new(slot.restart_lsn),
            reader: None,
        };
        tokio::spawn(this.run());
    }

    /// Starts to build every slot that a stop of the node left unfinished.
    pub(crate) fn resume_all(slots: &Slots, log: &WalLog, drain: &Drain) {
        let unfinished: Vec<SlotFile> = slots.table().unfinished().cloned().collect();
        unfinished.iter().for_each(|slot| Self::spawn(slots, log, drain, slot));
    }

    /// Builds.
    async fn run(self) {
        let mut end = self.log.subscribe();
        let mut slots = self.slots.built();
        let mut this = self;
        loop {
            let limit = *end.borrow_and_update();
            let joined = service_kit::blocking::spawn(move || {
                let read = this.read(limit);
                (this, read)
            });
            let Ok((back, read)) = joined.await else { return };
            this = back;
            if !this.report(&read, limit) || this.drain.is_draining() {
                return;
            }
            if matches!(read, Ok(true)) && !this.wait(&mut end, &mut slots).await {
                return;
            }
        }
    }

    /// Reads a piece of WAL; true at its end. Blocks on the disk.
    fn read(&mut self, limit: LogEnd) -> Result<bool> {
        let start = self.creation.report().read_to;
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => self.log.reader(start)?,
        };
        reader.set_limit(limit.read_limit());
        let identity = self.log.identity();
        let profile = WalProfile::of(identity.version);
        let mut caught_up = false;
        while self.creation.state() != BuildState::Consistent && !caught_up {
            let Some(record) = reader.next().map_err(read_error)? else {
                caught_up = true;
                break;
            };
            let end_lsn = record.end_lsn;
            self.creation.observe(&record, profile).map_err(|error| {
                let file = segment_file(&identity, error.lsn);
                Error::DataLoss { lsn: error.lsn, file, reason: error.to_string() }
            })?;
            if end_lsn.0.saturating_sub(start.0) >= WAL_BYTES_MAX {
                break;
            }
        }
        if caught_up && let Some(end) = reader.end() {
            if !end.is_complete() {
                return Err(end_error(end, &identity));
            }
            self.creation.skip_to(end.lsn.min(limit.lsn));
        }
        self.reader = Some(reader);
        Ok(caught_up)
    }

    /// Tells everybody how far it is; false if nothing is left to do.
    fn report(&self, read: &Result<bool>, limit: LogEnd) -> bool {
        let mut report = self.creation.report();
        let consistent = report.state == BuildState::Consistent;
        match read {
            Err(error) => report.failure = error.to_string(),
            Ok(true) if limit.closed && !consistent => {
                report.failure = format!(
                    "the WAL ends at {} before all transactions that it waits for, and no more will come: delete the slot, or \
                     begin one at an earlier LSN",
                    limit.lsn
                );
            }
            Ok(_) => {}
        }
        let failed = !report.failure.is_empty();
        if failed {
            tracing::warn!(slot = self.name, error = report.failure, "a logical slot cannot be built");
        }
        // Only a list can help then, and PostgreSQL logs one as well to make it quicker.
        if matches!(read, Ok(true)) && !consistent && report.running_count == 0 {
            self.slots.wish_running_xacts();
        }
        self.slots.report_creation(&self.name, self.created_at_ms, &Arc::new(report)) && !consistent && !failed
    }

    /// Waits for more WAL; false if the node stops or the slot is gone.
    async fn wait(&self, end: &mut watch::Receiver<LogEnd>, slots: &mut watch::Receiver<()>) -> bool {
        loop {
            tokio::select! {
                changed = end.changed() => return changed.is_ok(),
                () = self.drain.draining() => return false,
                _ = slots.changed() => {
                    slots.mark_unchanged();
                    let mine = |slot: &SlotFile| slot.name == self.name && slot.created_at_ms == self.created_at_ms;
                    if !self.slots.table().unfinished().any(mine) {
                        return false;
                    }
                }
            }
        }
    }
}
