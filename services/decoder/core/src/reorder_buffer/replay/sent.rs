//! Which changes are sent if a subscriber asks for publications: `pgoutput_change` and `pgoutput_truncate` of
//! `replication/pgoutput/pgoutput.c`.

use pg_types::Lsn;

use super::Replay;
use super::rows::TRUNCATE;
use crate::publications::{Moment, RelationFacts};

impl Replay<'_> {
    /// The subscriber asked for publications.
    pub(super) fn filters(&self) -> bool {
        self.with.publications.is_some()
    }

    /// As which relation an open one's changes are sent, if they are: all are if nobody asks for publications. `action` is the place of
    /// [`Action`](crate::output::Action), or behind them of TRUNCATE.
    pub(super) fn sent_as(&mut self, number: u32, lsn: Lsn, action: usize) -> Option<u32> {
        let Some(publications) = &mut self.with.publications else { return Some(number) };
        let relation = self.with.relations.get(number);
        let (oid, namespace) = (relation.oid, relation.namespace);
        if !self.with.relations.is_publishable(oid) {
            return None;
        }
        self.with.caches.publish(oid, namespace);
        let hash = &mut self.with.buffers.tuple_cids;
        let moment = Moment { lsn, own: hash, command_id: self.command_id };
        let published = publications.published(oid, moment, &self.with.relations);
        self.with.caches.tuple_cids.resolved += hash.take_resolved();
        if !published.actions.get(action).copied().unwrap_or(false) {
            return None;
        }
        let Some(root) = published.root else { return Some(number) };
        self.with.caches.open_relation(root, self.with.relations.namespace(root));
        Some(self.with.relations.of_oid(root))
    }

    /// `pgoutput_truncate`: leaves those relations that are sent, and counts them; a partition that is sent as its partitioned table is not.
    pub(super) fn wanted_truncates(&mut self, lsn: Lsn, relations: &mut Vec<u32>) {
        relations.retain(|number| {
            let sent = self.sent_as(*number, lsn, TRUNCATE) == Some(*number);
            match sent {
                true => self.count(lsn, *number, TRUNCATE, 1),
                false => self.with.caches.work.rows_filtered += 1,
            }
            sent
        });
    }
}
