//! Statements with CONCURRENTLY: several transactions of one session, between which it keeps its lock and waits for whoever used the
//! table (`storage/lmgr/lmgr.c`: `WaitForLockers`).
//!
//! Differences from PostgreSQL: row locks count as a use of the table; old snapshots are not waited for, since a statement takes no
//! simulated time and a transaction between statements has none (READ COMMITTED).

use std::collections::{BTreeSet, VecDeque};

use super::session::{Context, Progress, Running};
use super::statement::Resolved;
use super::tally::CountingSink;
use super::truth::TransactionEnd;
use crate::backend::{Backend, StatementError};
use crate::ddl::concurrently::Stage;

/// What a statement has before it.
#[derive(Debug, Default)]
pub(super) struct Stages {
    /// Transactions that are left.
    rest: VecDeque<Stage>,
    /// Whoever used the table when the next one was to begin and still does.
    waits_for: Option<BTreeSet<usize>>,
}

impl Stages {
    /// Whether a statement began and is not done.
    pub(super) fn is_begun(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Whether the next transaction must wait, if `users` have the table now. Those who come later are not waited for.
    fn must_wait(&mut self, users: &BTreeSet<usize>) -> bool {
        if !self.rest.front().is_some_and(Stage::waits) {
            return false;
        }
        let waits_for = self.waits_for.get_or_insert_with(|| users.clone());
        waits_for.retain(|user| users.contains(user));
        let must_wait = !waits_for.is_empty();
        self.waits_for.take_if(|_| !must_wait);
        must_wait
    }
}

impl Running {
    /// The next transaction of such a statement.
    pub(super) fn concurrently(
        &mut self,
        resolved: Resolved,
        context: &mut Context<'_>,
        sink: &mut CountingSink<'_>,
    ) -> Result<Progress, StatementError> {
        if self.stages.must_wait(&context.locks.others_on(context.index, &resolved.locks)) {
            self.resolved = Some(resolved);
            return Ok(Progress::Blocked);
        }
        let mut backend = Backend { cluster: context.cluster, xact: &mut self.xact, sink, now: context.now };
        let did = match self.stages.rest.pop_front() {
            Some(stage) => backend.run_stage(&stage)?,
            None => {
                let refused = || StatementError::Refused("its names were not drawn".to_owned());
                let (did, stages) = backend.begin_concurrently(resolved.object.as_ref().ok_or_else(refused)?)?;
                self.stages.rest = stages;
                did
            }
        };
        self.xact.did.push(did);
        if self.stages.is_begun() {
            self.resolved = Some(resolved);
        } else {
            self.next += 1;
        }
        let truth = self.end(TransactionEnd::Commit, context, sink)?;
        self.xact = context.transaction(self.number, self.next);
        Ok(Progress::Ended(truth, context.elapsed_us))
    }
}
