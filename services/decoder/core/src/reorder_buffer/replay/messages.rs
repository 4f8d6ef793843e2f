//! When a replay executes which invalidation messages: at command ids, on catching up with what others committed, and at its end.
//!
//! | rule | messages executed, m own ones of which d differ, c command-id increases |
//! |---|---|
//! | at each command | (c + 1)·m |
//! | per record | 2·m |
//! | … executed once ([`EndMessages::OfLoaded`]) | at each command c·m, per record m; and those of what is loaded again |
//! | … collapsed ([`RepeatedMessages::Collapsed`]) | on the way and at the end d each, and those loaded again in between |

use pg_types::InvalidationMessage;

use super::Replay;
use crate::invalidation::TOUCHED_AHEAD;
use crate::profile::{EndMessages, MessageRule, RepeatedMessages};
use crate::reorder_buffer::streaming::{Dropped, Replayer};
use crate::reorder_buffer::txn::Txn;

impl Replay<'_> {
    /// The command id rises; up to 13 all messages are executed again. Where they stand in for those of single commands, `indexed`
    /// drops what was loaded since the last one.
    pub(super) fn command_id(&mut self, id: u32) {
        if id <= self.command_id {
            return;
        }
        (self.command_id, self.with.caches.as_of.command_id) = (id, id);
        if self.with.rule == MessageRule::AtEachCommand {
            self.own_executed = self.messages.len();
            self.execute(self.messages);
        } else if self.stands_in && self.with.at_end == EndMessages::OfLoaded && self.stood_in != Some(self.with.caches.loads) {
            for message in self.messages {
                if self.with.caches.concerned(message) {
                    self.execute(std::slice::from_ref(message));
                }
            }
            self.stood_in = Some(self.with.caches.loads);
        }
    }

    /// On demand: commits that its snapshot does not see yet may have been given out already, and what they changed be loaded as they
    /// left it. PostgreSQL decodes with that.
    pub(super) fn go_back(&mut self, top: &Txn) {
        let dropped = &top.streaming.dropped;
        let since = if dropped.loads == self.with.caches.loads { dropped.commits } else { 0 };
        for messages in self.with.commits.between(top.base_commit.max(since), self.newest) {
            match messages {
                Some(messages) => self.with.caches.execute_concerned(messages),
                None => self.with.caches.reset(),
            }
        }
    }

    /// What others have loaded since the last block lacks what earlier blocks changed. PostgreSQL decodes with that too.
    pub(super) fn go_on(&mut self, top: &Txn) {
        let Dropped { own, loads, .. } = top.streaming.dropped;
        if self.with.at_end == EndMessages::OfLoaded && loads != self.with.caches.loads {
            self.with.caches.execute_concerned(top.messages.get(..own).unwrap_or_default());
        }
    }

    /// On demand: executes the messages of the commits up to number `to`.
    pub(super) fn catch_up(&mut self, to: u32) {
        let to = to.max(self.caught_up);
        let from = std::mem::replace(&mut self.caught_up, to);
        let commits = std::mem::take(&mut self.with.commits);
        for messages in commits.between(from, to) {
            match messages {
                Some(messages) => self.execute(messages),
                None => self.with.caches.reset(),
            }
        }
        self.with.commits = commits;
    }

    /// `ReorderBufferExecuteInvalidations`, but for those left out that were executed before.
    pub(super) fn execute(&mut self, messages: &[InvalidationMessage]) {
        let Replayer { caches, buffers, repeated, .. } = &mut *self.with;
        if *repeated == RepeatedMessages::Executed {
            caches.execute_all(messages);
            return;
        }
        for ahead in messages.chunks(TOUCHED_AHEAD) {
            if caches.interrupt.is_raised() {
                return;
            }
            caches.touch(ahead);
            for message in ahead {
                let loads = caches.loads;
                let before = buffers.executed.insert(*message, loads);
                if before.is_none_or(|before| before != loads && caches.concerned(message)) {
                    caches.execute(message);
                }
            }
        }
    }

    /// Messages at the end (I2).
    pub(super) fn finish(&mut self, top: &Txn) {
        self.with.caches.end_transaction();
        let own = match self.with.rule {
            MessageRule::AtEachCommand => self.messages,
            MessageRule::PerRecord if top.messages.is_empty() => {
                self.own_executed = self.messages.len();
                self.execute(self.messages);
                self.messages
            }
            MessageRule::PerRecord => &top.messages,
        };
        if self.with.at_end == EndMessages::OfLoaded && self.is_done(own, top) {
            return;
        }
        let commits = std::mem::take(&mut self.with.commits);
        let newest = self.newest;
        let to_catch_up = || commits.between(top.base_commit, newest);
        if top.inherited_overflowed || to_catch_up().any(|messages| messages.is_none()) {
            self.with.caches.reset();
        } else {
            self.with.buffers.executed.clear();
            self.execute_at_end(own);
            for inherited in &top.inherited {
                inherited.for_each(&mut |message| self.execute_at_end(std::slice::from_ref(message)));
            }
            to_catch_up().flatten().for_each(|messages| self.execute_at_end(messages));
        }
        self.with.commits = commits;
    }

    /// Nothing is left to be executed: all messages were, and nothing was loaded by this replay. What other transactions loaded is not
    /// made stale by a block of one in progress.
    fn is_done(&self, own: &[InvalidationMessage], top: &Txn) -> bool {
        let executed = self.own_executed >= own.len() && self.caught_up >= self.newest && !top.inherited_overflowed;
        let in_progress = self.block && self.messages.is_empty();
        (executed || in_progress) && self.loads_before == self.with.caches.loads
    }

    /// Executes messages at the end: all, or those of what is loaded.
    fn execute_at_end(&mut self, messages: &[InvalidationMessage]) {
        if self.with.at_end == EndMessages::All {
            return self.execute(messages);
        }
        self.with.caches.execute_concerned(messages);
    }
}
