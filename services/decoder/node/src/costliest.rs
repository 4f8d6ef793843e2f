//! The costliest and the latest transactions: a bounded list per node, for people who ask where the CPU goes.
//!
//! A transaction stays if it is among the first by CPU time, by counted work or by any single counter, or among the latest. Taking
//! one in costs a comparison per ranking; only those that enter one cost an allocation.
//!
//! Beside the list stands how all work is shared out ([`Ledger`]), so that who asks for both sees one moment.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::str::FromStr;
use std::sync::Arc;

use decoder_core::Summary;
use pg_types::{Lsn, Timestamp, Work, Xid};

use crate::attribution::Ledger;

/// A decoded transaction and what it cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TransactionCost {
    /// Top-level transaction id.
    pub xid: Xid,
    /// Start of its commit record.
    pub commit_lsn: Lsn,
    /// End of its commit record.
    pub end_lsn: Lsn,
    /// When it committed.
    pub commit_time: Timestamp,
    /// Its subtransactions that count.
    pub subxid_count: u32,
    /// Rows that it changed.
    pub row_count: u64,
    /// Messages in its records, by kind in the order of `InvalidationKind`.
    pub messages: [u64; 7],
    /// What is kept for its story; its catcache messages among it.
    pub summary: Arc<Summary>,
    /// What decoding it did.
    pub work: Work,
    /// CPU time of decoding it, in nanoseconds.
    pub cpu_ns: u64,
    /// Its trace id, if it is sampled.
    pub trace_id: Option<u128>,
}

/// What transactions are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    /// CPU time.
    CpuNs,
    /// All counters of steps.
    Work,
    /// Place in the WAL.
    CommitLsn,
    /// One counter, by its place in [`Work::KEYS`].
    Counter(&'static str),
}

/// An order of transactions, as a client asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// By what.
    key: Key,
    /// Greatest first.
    descending: bool,
}

/// The text is no order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be cpu_ns, work, commit_lsn or one of {}, with or without \" desc\"", Work::KEYS.join(", "))]
pub struct UnknownOrder;

impl FromStr for Order {
    type Err = UnknownOrder;

    /// Parses `KEY` or `KEY desc`; an empty text is `cpu_ns desc`.
    fn from_str(text: &str) -> Result<Self, UnknownOrder> {
        let (name, descending) = match text {
            "" => ("cpu_ns", true),
            text => text.strip_suffix(" desc").map_or((text, false), |name| (name, true)),
        };
        let key = match name {
            "cpu_ns" => Key::CpuNs,
            "work" => Key::Work,
            "commit_lsn" => Key::CommitLsn,
            name => Key::Counter(Work::KEYS.iter().find(|key| **key == name).ok_or(UnknownOrder)?),
        };
        Ok(Self { key, descending })
    }
}

impl Order {
    /// The value of `cost` in this order.
    fn value(self, cost: &TransactionCost) -> u64 {
        self.value_of(&cost.work, cost.cpu_ns, cost.commit_lsn)
    }

    /// The value of a thing with these measures.
    pub(crate) fn value_of(self, work: &Work, cpu_ns: u64, commit_lsn: Lsn) -> u64 {
        match self.key {
            Key::CpuNs => cpu_ns,
            Key::CommitLsn => commit_lsn.0,
            Key::Work => work.steps(),
            Key::Counter(key) => work.entries().find(|(k, _)| *k == key).map_or(0, |(_, n)| n),
        }
    }

    /// Whether it is one of work, which everything has that work is shared out to.
    pub(crate) fn is_of_work(self) -> bool {
        matches!(self.key, Key::Work | Key::Counter(_))
    }

    /// Compares two values in this order.
    pub(crate) fn compare_values(self, a: u64, b: u64) -> Ordering {
        if self.descending { b.cmp(&a) } else { a.cmp(&b) }
    }

    /// Compares places in this order; equal values are in WAL order.
    fn compare(self, a: Place, b: Place) -> Ordering {
        self.compare_values(a.value, b.value).then(a.end_lsn.cmp(&b.end_lsn))
    }
}

/// Where a page ended: it stays right when transactions come and go between pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Value in the page's order.
    value: u64,
    /// The transaction.
    end_lsn: Lsn,
}

/// The text is no page token of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be the next_page_token of an earlier answer")]
pub struct BadToken;

impl Place {
    /// The token that continues after this place.
    #[must_use]
    pub fn token(self) -> String {
        format!("{:x}-{:x}", self.value, self.end_lsn.0)
    }
}

impl FromStr for Place {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Self, BadToken> {
        let number = |s: &str| u64::from_str_radix(s, 16).map_err(|_| BadToken);
        let (value, end_lsn) = text.split_once('-').ok_or(BadToken)?;
        Ok(Self { value: number(value)?, end_lsn: Lsn(number(end_lsn)?) })
    }
}

/// A transaction in a ranking, by value.
#[derive(Debug)]
struct Ranked {
    /// What it is ranked by.
    value: u64,
    /// The transaction.
    cost: Arc<TransactionCost>,
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ranked {}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        // Of equal ones the older stays.
        self.value.cmp(&other.value).then(other.cost.end_lsn.cmp(&self.cost.end_lsn))
    }
}

/// The list.
#[derive(Debug)]
pub struct Costliest {
    /// Most entries of each part.
    capacity: usize,
    /// First by CPU time, by counted work, and by each counter in the order of [`Work::KEYS`]; the least on top. Zeroes are not
    /// ranked.
    rankings: [BinaryHeap<Reverse<Ranked>>; RANKINGS],
    /// The latest, oldest first.
    latest: VecDeque<TransactionCost>,
    /// How all work is shared out.
    pub(crate) ledger: Ledger,
}

/// CPU time, all steps, and each counter.
const RANKINGS: usize = 2 + Work::KEYS.len();

impl Costliest {
    /// An empty list of at most `capacity` transactions by each measure, and the latest `capacity`.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let rankings = std::array::from_fn(|_| BinaryHeap::new());
        Self { capacity, rankings, latest: VecDeque::new(), ledger: Ledger::default() }
    }

    /// Takes a transaction in.
    pub fn add(&mut self, cost: TransactionCost) {
        if self.capacity == 0 {
            return;
        }
        let counters = cost.work.entries().map(|(_, n)| n);
        let values = [cost.cpu_ns, cost.work.steps()].into_iter().chain(counters);
        let mut shared = None;
        for (ranking, value) in self.rankings.iter_mut().zip(values).filter(|(_, value)| *value > 0) {
            let full = ranking.len() >= self.capacity;
            if full && ranking.peek().is_none_or(|Reverse(least)| value <= least.value) {
                continue;
            }
            if full {
                ranking.pop();
            }
            let cost = Arc::clone(shared.get_or_insert_with(|| Arc::new(cost.clone())));
            ranking.push(Reverse(Ranked { value, cost }));
        }
        if self.latest.len() >= self.capacity {
            self.latest.pop_front();
        }
        self.latest.push_back(cost);
    }

    /// All transactions that are kept, in the order of the WAL.
    pub(crate) fn all(&self) -> impl Iterator<Item = &TransactionCost> {
        let ranked = self.rankings.iter().flatten().map(|Reverse(ranked)| &*ranked.cost);
        let unique: BTreeMap<Lsn, &TransactionCost> = ranked.chain(&self.latest).map(|cost| (cost.end_lsn, cost)).collect();
        unique.into_values()
    }

    /// Up to `size` transactions in `order` after the place `after`, and where the page ends if more follow.
    #[must_use]
    pub fn page(&self, order: Order, after: Option<Place>, size: usize) -> (Vec<TransactionCost>, Option<Place>) {
        let place = |cost: &TransactionCost| Place { value: order.value(cost), end_lsn: cost.end_lsn };
        let mut rest: Vec<(Place, &TransactionCost)> = self
            .all()
            .map(|cost| (place(cost), cost))
            .filter(|(place, _)| after.is_none_or(|after| order.compare(*place, after).is_gt()))
            .collect();
        rest.sort_by(|(a, _), (b, _)| order.compare(*a, *b));
        let more = rest.len() > size;
        rest.truncate(size);
        let end = rest.last().map(|(place, _)| *place).filter(|_| more);
        (rest.into_iter().map(|(_, cost)| cost.clone()).collect(), end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(end: u64, messages: u64, cpu_ns: u64) -> TransactionCost {
        let work = Work { messages_executed: messages, snapshot_bytes: u64::MAX - messages, ..Work::default() };
        TransactionCost { end_lsn: Lsn(end), commit_lsn: Lsn(end - 1), work, cpu_ns, ..TransactionCost::default() }
    }

    fn ends(list: &Costliest, order: &str) -> Vec<u64> {
        list.page(order.parse().unwrap(), None, 100).0.iter().map(|c| c.end_lsn.0).collect()
    }

    #[test]
    fn the_costliest_by_work_by_cpu_and_by_each_counter_and_the_latest_stay() {
        let mut list = Costliest::new(2);
        for (end, messages, cpu) in [(10, 9, 0), (20, 1, 1), (30, 8, 0), (40, 0, 7), (50, 0, 9), (60, 0, 0), (70, 2, 0)] {
            list.add(cost(end, messages, cpu));
        }
        // 10 and 30 by work, 40 and 50 by CPU time and by bytes, 60 and 70 are the latest; 20 is nowhere among the first two.
        assert_eq!(ends(&list, "commit_lsn"), [10, 30, 40, 50, 60, 70]);
        list.add(TransactionCost { work: Work { evictions: 1, ..Work::default() }, ..cost(80, 0, 0) });
        (90..100).for_each(|end| list.add(cost(end, 1, 0)));
        assert_eq!(
            ends(&list, "evictions desc")[0],
            80,
            "small by work and not among the latest, but the first by this counter"
        );
        assert_eq!(ends(&list, "work desc")[..3], [10, 30, 80], "bytes do not count as work");
        assert_eq!(
            ends(&list, "messages_executed desc")[..3],
            [10, 30, 98],
            "70 is neither among the latest nor a first any more"
        );
        assert_eq!(ends(&list, "")[..2], [50, 40]);
        assert_eq!(Costliest::new(0).page("".parse().unwrap(), None, 5), (vec![], None));
    }

    #[test]
    fn pages_join_to_the_whole_even_when_transactions_come_between() {
        let mut list = Costliest::new(10);
        for end in [10, 20, 30, 40, 50] {
            list.add(cost(end, 5, end));
        }
        let order: Order = "work".parse().unwrap();
        let (first, place) = list.page(order, None, 2);
        list.add(cost(5, 5, 0));
        let token = place.unwrap().token();
        let (second, place) = list.page(order, Some(token.parse().unwrap()), 2);
        let (third, none) = list.page(order, place, 2);
        let ends: Vec<_> = [first, second, third].concat().iter().map(|c| c.end_lsn.0).collect();
        assert_eq!((ends, none), (vec![10, 20, 30, 40, 50], None));
    }

    #[test]
    fn unknown_orders_and_tokens_are_refused() {
        for bad in ["cpu", "desc", "cpu_ns asc", "cpu_ns  desc", "work desc desc"] {
            assert_eq!(bad.parse::<Order>(), Err(UnknownOrder), "{bad}");
        }
        for bad in ["", "1", "x-1", "1-", "-1"] {
            assert_eq!(bad.parse::<Place>(), Err(BadToken), "{bad}");
        }
    }
}
