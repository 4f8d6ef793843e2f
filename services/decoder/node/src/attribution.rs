//! For what the node's work was done: by cache, relation, callback or transaction, in pages.
//!
//! The decoder shares out its own work. After an error that the node recovers from, another decoder takes its place; the ledger adds
//! up what all of them did, so that rows and rest add up to the work in the node's state.

use std::cmp::Ordering;
use std::str::FromStr;
use std::sync::Arc;

use decoder_core::Attribution;
use pg_types::{Lsn, Oid, Work, Xid};

use crate::costliest::{BadToken, Costliest, Order};

/// What all decoders of the node did.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Those before the one at hand.
    before: Attribution,
    /// The one at hand.
    now: Attribution,
}

impl Ledger {
    /// Another decoder begins.
    pub(crate) fn begin_run(&mut self) {
        let ended = std::mem::take(&mut self.now);
        self.before.add(&ended);
    }

    /// What the decoder at hand did so far.
    pub(crate) fn set(&mut self, now: Attribution) {
        self.now = now;
    }

    /// The sum.
    fn sum(&self) -> Attribution {
        let mut sum = self.now.clone();
        if self.before != Attribution::default() {
            sum.add(&self.before);
        }
        sum
    }
}

/// By what work is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupBy {
    /// Syscaches, relcache, relfilenode map.
    Cache,
    /// Relations.
    Relation,
    /// Callbacks.
    Callback,
    /// The transactions that are kept.
    Transaction,
}

/// Work done for one thing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Its name, different from those of all rows with the same oid.
    pub name: Arc<str>,
    /// A relation's oid.
    pub oid: Oid,
    /// A transaction's id.
    pub xid: Xid,
    /// Start of its commit record.
    pub commit_lsn: Lsn,
    /// The work.
    pub work: Work,
    /// CPU time of a transaction, in nanoseconds.
    pub cpu_ns: u64,
}

/// Where a page ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Value in the page's order.
    value: u64,
    /// Oid of the row.
    oid: Oid,
    /// Its name.
    name: Arc<str>,
}

impl Mark {
    /// The token that continues after this row.
    #[must_use]
    pub fn token(&self) -> String {
        format!("{:x}-{:x}-{}", self.value, self.oid.0, self.name)
    }
}

impl FromStr for Mark {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Self, BadToken> {
        let mut parts = text.splitn(3, '-');
        let mut next = || parts.next().ok_or(BadToken);
        let value = u64::from_str_radix(next()?, 16).map_err(|_| BadToken)?;
        let oid = u32::from_str_radix(next()?, 16).map_err(|_| BadToken)?;
        Ok(Self { value, oid: Oid(oid), name: next()?.into() })
    }
}

/// A page of rows. With the rows of all pages, the rest adds up to the total.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The rows.
    pub rows: Vec<Row>,
    /// What no row has, on this page or another.
    pub rest: Work,
    /// All work.
    pub total: Work,
    /// Where the page ends, if more rows follow.
    pub end: Option<Mark>,
}

/// The order is none for these rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cpu_ns and commit_lsn are known of transactions only: take work or a counter, or group by transaction")]
pub struct NotOfRows;

/// Up to `size` rows in `order` after the mark `after`.
///
/// # Errors
///
/// The order needs what only transactions have.
pub fn page(from: &Costliest, by: GroupBy, order: Order, after: Option<&Mark>, size: usize) -> Result<Page, NotOfRows> {
    if by != GroupBy::Transaction && !order.is_of_work() {
        return Err(NotOfRows);
    }
    let sum = from.ledger.sum();
    let rows = rows(from, &sum, by);
    let mut given = Work::default();
    rows.iter().for_each(|row| given += row.work);
    let mark = |row: Row| {
        let value = order.value_of(&row.work, row.cpu_ns, row.commit_lsn);
        (Mark { value, oid: row.oid, name: Arc::clone(&row.name) }, row)
    };
    let mut marked: Vec<(Mark, Row)> = rows.into_iter().map(mark).collect();
    let compare = |a: &Mark, b: &Mark| compare(order, a, b);
    marked.retain(|(mark, _)| after.is_none_or(|after| compare(mark, after).is_gt()));
    marked.sort_by(|(a, _), (b, _)| compare(a, b));
    let more = marked.len() > size;
    marked.truncate(size);
    let end = marked.last().map(|(mark, _)| mark.clone()).filter(|_| more);
    Ok(Page { rows: marked.into_iter().map(|(_, row)| row).collect(), rest: sum.total - given, total: sum.total, end })
}

/// By value, then by oid and name.
fn compare(order: Order, a: &Mark, b: &Mark) -> Ordering {
    order.compare_values(a.value, b.value).then_with(|| (a.oid, &a.name).cmp(&(b.oid, &b.name)))
}

/// All rows.
fn rows(from: &Costliest, sum: &Attribution, by: GroupBy) -> Vec<Row> {
    let shares = match by {
        GroupBy::Cache => &sum.caches,
        GroupBy::Relation => &sum.relations,
        GroupBy::Callback => &sum.callbacks,
        GroupBy::Transaction => {
            let row = |cost: &crate::costliest::TransactionCost| Row {
                name: format!("{} {}", cost.xid, cost.end_lsn).into(),
                oid: Oid::INVALID,
                xid: cost.xid,
                commit_lsn: cost.commit_lsn,
                work: cost.work,
                cpu_ns: cost.cpu_ns,
            };
            return from.all().map(row).collect();
        }
    };
    shares.iter().map(|s| Row { name: Arc::clone(&s.name), oid: s.oid, work: s.work, ..Row::default() }).collect()
}

#[cfg(test)]
mod tests {
    use decoder_core::Share;

    use super::*;

    /// A list whose decoder executed `rows` by relation, and one message more.
    fn executed(rows: &[(&str, u32, u64)]) -> Attribution {
        let work = |n| Work { messages_executed: n, ..Work::default() };
        let shares = rows.iter().map(|(name, oid, n)| Share { name: (*name).into(), oid: Oid(*oid), work: work(*n) });
        let total = work(rows.iter().map(|(_, _, n)| n).sum::<u64>() + 1);
        Attribution { total, relations: shares.collect(), ..Attribution::default() }
    }

    #[test]
    fn pages_join_to_all_rows_and_the_rest_is_what_no_page_has() {
        let mut list = Costliest::new(1);
        list.ledger.set(executed(&[("a-b", 1, 5), ("c", 2, 5), ("d", 3, 9)]));
        list.ledger.begin_run();
        list.ledger.set(executed(&[("c", 2, 1), ("e", 4, 5)]));
        let order: Order = "work desc".parse().unwrap();
        let (mut names, mut after, mut sum) = (Vec::new(), None, Work::default());
        loop {
            let page = page(&list, GroupBy::Relation, order, after.as_ref(), 1).unwrap();
            assert_eq!((page.rest.messages_executed, page.total.messages_executed), (2, 27));
            page.rows.iter().for_each(|row| sum += row.work);
            names.extend(page.rows.iter().map(|row| (row.name.to_string(), row.work.messages_executed)));
            let Some(end) = page.end else { break };
            after = Some(end.token().parse().unwrap());
        }
        let names: Vec<_> = names.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        assert_eq!(names, [("d", 9), ("c", 6), ("a-b", 5), ("e", 5)]);
        assert_eq!(sum.messages_executed, 25);
        assert_eq!(page(&list, GroupBy::Cache, "cpu_ns".parse().unwrap(), None, 1), Err(NotOfRows));
        for bad in ["", "x-1-a", "1-x-a", "1-1"] {
            assert_eq!(bad.parse::<Mark>(), Err(BadToken), "{bad}");
        }
    }
}
