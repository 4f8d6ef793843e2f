//! What a subscriber does not want: transactions that it has, relations that it did not name, events beside commits.
//!
//! Without any of these, batches go out as they are stored. With them, a batch is decoded and encoded again, for this subscriber
//! alone and on its own task.

use std::collections::{HashMap, HashSet};

use pg_types::Lsn;
use prost::DecodeError;
use walstorm_proto::EventBatch;
use walstorm_proto::decoder::v1::{Event, Relation, event::Kind};

/// Relations that a subscriber wants, as `schema.name` or locator; all if none are named.
#[derive(Debug)]
pub(crate) struct Wanted(HashSet<String>);

impl Wanted {
    /// These, or all.
    pub(crate) fn new(relations: Vec<String>) -> Self {
        Self(relations.into_iter().collect())
    }

    /// Whether all are.
    pub(crate) fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a relation is.
    pub(crate) fn wants(&self, relation: &Relation) -> bool {
        let locator = relation.locator.unwrap_or_default();
        let file = || format!("{}/{}/{}", locator.tablespace_oid, locator.database_oid, locator.file_number);
        let named = || !relation.name.is_empty() && self.0.contains(&format!("{}.{}", relation.schema, relation.name));
        self.is_all() || named() || self.0.contains(&file())
    }
}

/// The wishes of one subscriber, and where its stream is.
#[derive(Debug)]
pub(crate) struct Filter {
    /// Transactions that end at or before it are the subscriber's already.
    start: Lsn,
    /// Relations wanted.
    relations: Wanted,
    /// Commits only.
    commits_only: bool,
    /// Numbers in the batch at hand, and whether they are wanted.
    wanted: HashMap<u32, bool>,
    /// Where the stream is.
    place: Place,
}

/// Where a stream is.
#[derive(Debug, PartialEq)]
enum Place {
    /// Between transactions.
    Between,
    /// In a transaction that the subscriber has.
    Passed,
    /// In a transaction of which nothing was sent so far: its `begin`.
    Held(Box<Event>),
    /// In a transaction that is being sent.
    Sent,
}

impl Filter {
    /// A filter for a stream that begins after `start`.
    pub(crate) fn new(start: Lsn, relations: Wanted, commits_only: bool) -> Self {
        Self { start, relations, commits_only, wanted: HashMap::new(), place: Place::Between }
    }

    /// Whether an entry that begins after `prev_end` goes out as it is stored.
    pub(crate) fn passes_whole(&self, prev_end: Lsn) -> bool {
        self.relations.is_all() && !self.commits_only && prev_end >= self.start && self.place == Place::Between
    }

    /// Whether a transaction is the subscriber's already.
    pub(crate) fn has(&self, commit_lsn: Lsn) -> bool {
        commit_lsn < self.start
    }

    /// Whether commits are wanted whatever they did, and nothing else.
    pub(crate) fn wants_all_commits_only(&self) -> bool {
        self.commits_only && self.relations.is_all()
    }

    /// What is left of a batch; `None` if nothing is.
    pub(crate) fn apply(&mut self, batch: &EventBatch) -> Result<Option<EventBatch>, DecodeError> {
        self.wanted.clear();
        let mut left = EventBatch::default();
        let mut any = false;
        for event in batch.events() {
            any |= self.event(event?, &mut left);
        }
        Ok(any.then_some(left))
    }

    /// Takes one event; true if more than an explanation was appended.
    fn event(&mut self, event: Event, left: &mut EventBatch) -> bool {
        let wanted = match &event.kind {
            Some(Kind::Relation(relation)) => {
                let wanted = self.relations.wants(relation);
                self.wanted.insert(relation.relation_id, wanted);
                if wanted && !self.commits_only {
                    left.push(&event);
                }
                return false;
            }
            Some(Kind::Begin(begin)) => {
                let passed = begin.commit_lsn < self.start.0;
                self.place = if passed { Place::Passed } else { Place::Held(Box::new(event)) };
                return self.relations.is_all() && self.send_begin(left);
            }
            Some(Kind::Commit(_)) => {
                let sent = matches!(self.place, Place::Sent);
                self.place = Place::Between;
                if sent {
                    left.push(&event);
                }
                return sent;
            }
            Some(Kind::Message(message)) if !message.transactional => {
                let wanted = message.end_lsn > self.start.0 && self.relations.is_all() && !self.commits_only;
                if wanted {
                    left.push(&event);
                }
                return wanted;
            }
            Some(Kind::Change(change)) => self.is_wanted(change.relation_id),
            Some(Kind::Truncate(truncate)) => truncate.relation_ids.iter().any(|number| self.is_wanted(*number)),
            Some(Kind::Message(_)) => self.relations.is_all(),
            // Who wants whole transactions gets them put together before.
            _ => false,
        };
        if !wanted {
            return false;
        }
        let began = self.send_begin(left);
        let sent = matches!(self.place, Place::Sent) && !self.commits_only;
        if sent {
            left.push(&event);
        }
        began || sent
    }

    /// Sends the `begin` that was held back.
    fn send_begin(&mut self, left: &mut EventBatch) -> bool {
        match std::mem::replace(&mut self.place, Place::Sent) {
            Place::Held(begin) if !self.commits_only => {
                left.push(&begin);
                true
            }
            Place::Held(_) => false,
            place => {
                self.place = place;
                false
            }
        }
    }

    /// Whether a number stands for a wanted relation.
    fn is_wanted(&self, number: u32) -> bool {
        self.wanted.get(&number).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use walstorm_proto::decoder::v1::{Begin, Change, Commit, Message, Truncate};
    use walstorm_proto::wal::v1::RelFileLocator;

    use super::*;

    fn event(kind: Kind) -> Event {
        Event { kind: Some(kind) }
    }

    fn relation(number: u32, name: &str) -> Event {
        let locator = Some(RelFileLocator { tablespace_oid: 1663, database_oid: 5, file_number: number });
        let (schema, name) = ("public".to_owned(), name.to_owned());
        event(Kind::Relation(Relation { relation_id: number, locator, schema, name, oid: number }))
    }

    fn begin(xid: u32, commit_lsn: u64) -> Event {
        event(Kind::Begin(Begin { xid, first_lsn: 1, commit_lsn, ..Begin::default() }))
    }

    fn change(number: u32) -> Event {
        event(Kind::Change(Change { relation_id: number, ..Change::default() }))
    }

    fn commit(xid: u32, end_lsn: u64) -> Event {
        event(Kind::Commit(Commit { xid, end_lsn, ..Commit::default() }))
    }

    fn message(end_lsn: u64) -> Event {
        event(Kind::Message(Message { end_lsn, transactional: end_lsn == 0, ..Message::default() }))
    }

    /// Two transactions in three batches; the second is cut.
    fn batches() -> [Vec<Event>; 3] {
        [
            vec![relation(1, "a"), begin(7, 100), change(1), commit(7, 110), message(120)],
            vec![relation(1, "b"), begin(8, 200), change(1)],
            vec![
                relation(2, "a"),
                message(0),
                event(Kind::Truncate(Truncate { relation_ids: vec![2], ..Truncate::default() })),
                commit(8, 210),
            ],
        ]
    }

    fn left(mut filter: Filter) -> Vec<Vec<Event>> {
        let apply = |events: Vec<Event>| {
            let left = filter.apply(&events.iter().collect()).unwrap();
            left.map(|batch| batch.events().map(Result::unwrap).collect()).unwrap_or_default()
        };
        batches().map(apply).into()
    }

    #[test]
    fn without_wishes_everything_is_left() {
        assert_eq!(left(Filter::new(Lsn(1), Wanted::new(vec![]), false)), batches());
        assert!(Filter::new(Lsn(100), Wanted::new(vec![]), false).passes_whole(Lsn(100)));
        assert!(!Filter::new(Lsn(101), Wanted::new(vec![]), false).passes_whole(Lsn(100)));
    }

    #[test]
    fn what_the_subscriber_has_is_left_out() {
        let [first, second, third] = batches();
        let expected = vec![vec![first[0].clone(), first[4].clone()], second.clone(), third.clone()];
        assert_eq!(left(Filter::new(Lsn(110), Wanted::new(vec![]), false)), expected);
        assert_eq!(left(Filter::new(Lsn(120), Wanted::new(vec![]), false)), [vec![], second, third]);
        assert_eq!(left(Filter::new(Lsn(210), Wanted::new(vec![]), false)), [vec![], vec![], Vec::<Event>::new()]);
    }

    #[test]
    fn only_transactions_with_a_wanted_relation_are_left() {
        let [first, second, third] = batches();
        let b = left(Filter::new(Lsn(1), Wanted::new(vec!["public.b".to_owned()]), false));
        assert_eq!(b, [vec![], second.clone(), vec![third[3].clone()]]);
        for a in ["public.a", "1663/5/2"] {
            let found = left(Filter::new(Lsn(1), Wanted::new(vec![a.to_owned()]), false));
            let late = vec![third[0].clone(), second[1].clone(), third[2].clone(), third[3].clone()];
            assert_eq!(found[1..], [vec![], late], "{a}: its begin comes with its first wanted event");
            assert_eq!(found[0].len(), if a == "public.a" { 4 } else { 0 });
        }
        let none = left(Filter::new(Lsn(1), Wanted::new(vec!["public.c".to_owned()]), false));
        assert_eq!(none, [vec![], vec![], Vec::<Event>::new()]);
        drop(first);
    }

    #[test]
    fn commits_alone() {
        let [first, _, third] = batches();
        assert_eq!(
            left(Filter::new(Lsn(1), Wanted::new(vec![]), true)),
            [vec![first[3].clone()], vec![], vec![third[3].clone()]]
        );
    }
}
