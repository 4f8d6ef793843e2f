//! The settings that size a standby's shared memory (`utils/init/postinit.c`, `InitializeMaxBackends`).

use crate::error::RecoveryError;
use crate::profile::StandbyProfile;
use crate::slru::SLRU_MAX_ALLOWED_BUFFERS;

/// `PGPROC_MAX_CACHED_SUBXIDS` (`storage/proc.h`): subtransactions that a backend shows before it overflows.
pub const PGPROC_MAX_CACHED_SUBXIDS: u32 = 64;

/// `MAX_BACKENDS` (`postmaster/postmaster.h`): PostgreSQL's limit on `MaxBackends`, and ours on prepared transactions.
pub const MAX_BACKENDS: u32 = 0x3FFFF;

/// The standby's settings, with PostgreSQL's names and defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandbySettings {
    /// `max_connections`.
    pub max_connections: u32,
    /// `autovacuum_max_workers`: counts up to 17.
    pub autovacuum_max_workers: u32,
    /// `autovacuum_worker_slots`: counts instead from 18 on.
    pub autovacuum_worker_slots: u32,
    /// `max_worker_processes`.
    pub max_worker_processes: u32,
    /// `max_wal_senders`: counts beside the connections from 12 on.
    pub max_wal_senders: u32,
    /// `max_prepared_transactions`.
    pub max_prepared_transactions: u32,
    /// `subtransaction_buffers`, pages of 8 kB: counts from 17 on; 0 for what the server chooses.
    pub subtransaction_buffers: u32,
}

impl Default for StandbySettings {
    fn default() -> Self {
        Self {
            max_connections: 100,
            autovacuum_max_workers: 3,
            autovacuum_worker_slots: 16,
            max_worker_processes: 8,
            max_wal_senders: 10,
            max_prepared_transactions: 0,
            subtransaction_buffers: 0,
        }
    }
}

/// How a version of PostgreSQL adds its settings up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendSizing {
    /// `autovacuum_worker_slots` counts (18), not `autovacuum_max_workers`.
    pub autovacuum_by_slots: bool,
    /// `max_wal_senders` counts (12 and later); before, walsenders were taken from the connections.
    pub wal_senders: bool,
    /// Backends of which there is one: the autovacuum launcher; from 17.3 on the slot synchroniser too.
    pub special_workers: u32,
}

/// What the settings come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArraySizes {
    /// `MaxBackends`.
    pub max_backends: u32,
    /// `PROCARRAY_MAXPROCS`: backends and prepared transactions.
    pub max_procs: u32,
    /// `TOTAL_MAX_CACHED_SUBXIDS`: slots of the known-assigned array.
    pub max_known_assigned_xids: u32,
}

impl StandbySettings {
    /// The sizes that PostgreSQL would compute at start.
    ///
    /// # Errors
    /// [`RecoveryError::InvalidSettings`] above PostgreSQL's own limits.
    pub fn sizes(&self, profile: &StandbyProfile) -> Result<ArraySizes, RecoveryError> {
        let sizing = profile.sizing;
        let autovacuum = if sizing.autovacuum_by_slots { self.autovacuum_worker_slots } else { self.autovacuum_max_workers };
        let wal_senders = if sizing.wal_senders { self.max_wal_senders } else { 0 };
        let parts = [self.max_connections, autovacuum, sizing.special_workers, self.max_worker_processes, wal_senders];
        let total: u64 = parts.into_iter().map(u64::from).sum();
        let too_big = |what, value| RecoveryError::InvalidSettings { what, value, max: MAX_BACKENDS };
        let max_backends = u32::try_from(total).ok().filter(|&n| n <= MAX_BACKENDS);
        let max_backends = max_backends.ok_or(too_big(
            "the sum of max_connections, autovacuum workers, max_worker_processes and max_wal_senders",
            total,
        ))?;
        let prepared = self.max_prepared_transactions;
        if prepared > MAX_BACKENDS {
            return Err(too_big("max_prepared_transactions", u64::from(prepared)));
        }
        if self.subtransaction_buffers > SLRU_MAX_ALLOWED_BUFFERS {
            let (what, value) = ("subtransaction_buffers", u64::from(self.subtransaction_buffers));
            return Err(RecoveryError::InvalidSettings { what, value, max: SLRU_MAX_ALLOWED_BUFFERS });
        }
        let max_procs = max_backends + prepared;
        Ok(ArraySizes { max_backends, max_procs, max_known_assigned_xids: (PGPROC_MAX_CACHED_SUBXIDS + 1) * max_procs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(profile: &str, settings: StandbySettings) -> Result<ArraySizes, RecoveryError> {
        settings.sizes(&profile.parse().unwrap())
    }

    #[test]
    fn sizes_are_those_of_real_servers() {
        let s = StandbySettings { max_connections: 40, max_prepared_transactions: 10, ..StandbySettings::default() };
        for (profile, want) in [("pg13", (62, 72, 4680)), ("pg16", (62, 72, 4680)), ("pg18", (76, 86, 5590))] {
            let got = sizes(profile, s).unwrap();
            assert_eq!((got.max_backends, got.max_procs, got.max_known_assigned_xids), want, "{profile}");
        }
        // max_connections 5000 on 13.6: the sawtooth of the old rule tops out at 4 × 5022.
        let s = StandbySettings { max_connections: 5000, ..StandbySettings::default() };
        assert_eq!(sizes("pg13.6", s).unwrap().max_procs, 5022);
    }

    #[test]
    fn settings_above_postgresqls_limits_are_refused() {
        for s in [
            StandbySettings { max_connections: u32::MAX, ..StandbySettings::default() },
            StandbySettings { max_connections: MAX_BACKENDS, ..StandbySettings::default() },
            StandbySettings { max_prepared_transactions: MAX_BACKENDS + 1, ..StandbySettings::default() },
            StandbySettings { subtransaction_buffers: SLRU_MAX_ALLOWED_BUFFERS + 1, ..StandbySettings::default() },
        ] {
            assert!(matches!(sizes("pg18", s), Err(RecoveryError::InvalidSettings { .. })));
        }
    }
}
