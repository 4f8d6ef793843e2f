//! The costliest spans: read once, and held is a heap of those that lead.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use crate::span::{Span, SpanId, TraceId};
use crate::store::{Record, TraceStore};
use crate::tree::each_tree;

/// Attributes of a span that are shown, at most.
const ATTRIBUTES_MAX: usize = 32;

/// A span that leads.
#[derive(Clone, Debug)]
pub struct Leader {
    /// What it is ranked by.
    pub value: f64,
    /// Its service.
    pub service: String,
    /// Its name.
    pub name: String,
    /// Its trace.
    pub trace: TraceId,
    /// Its id.
    pub span: SpanId,
    /// How long it took.
    pub duration_ns: u64,
    /// Its attributes.
    pub attributes: Vec<(String, String)>,
}

impl Leader {
    /// A span with its value.
    fn of(value: f64, span: &Span<'_>) -> Self {
        let attributes = span.attributes.iter().take(ATTRIBUTES_MAX);
        Self {
            value,
            service: span.service.to_owned(),
            name: span.name.clone().into_owned(),
            trace: span.trace,
            span: span.id,
            duration_ns: span.duration_ns(),
            attributes: attributes.map(|(key, value)| (key.clone().into_owned(), value.to_string())).collect(),
        }
    }

    /// An attribute.
    #[must_use]
    pub fn attribute(&self, key: &str) -> Option<&str> {
        self.attributes.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }
}

/// A place in the ranking: a greater value first; among equals the ids decide, so that the order of reading does not.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    /// What is ranked by.
    value: f64,
    /// Whose.
    ids: (TraceId, SpanId),
}

impl Eq for Place {}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> Ordering {
        other.value.total_cmp(&self.value).then_with(|| self.ids.cmp(&other.ids))
    }
}

/// What spans are ranked by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// End − begin.
    Duration,
    /// Duration without that of children.
    SelfTime,
    /// An attribute that is a number.
    Attribute(String),
}

impl std::str::FromStr for By {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "duration" => By::Duration,
            "self" => By::SelfTime,
            key => By::Attribute(key.to_owned()),
        })
    }
}

/// The places of the `n` costliest, each id once: the rest of them is not held.
#[derive(Debug)]
pub struct Ranking {
    /// How many are wanted.
    n: usize,
    /// Best first.
    places: BTreeSet<Place>,
    /// What was offered.
    pub offered: u64,
}

impl Ranking {
    /// Of none yet.
    #[must_use]
    pub fn new(n: usize) -> Self {
        Self { n, places: BTreeSet::new(), offered: 0 }
    }

    /// Takes a span; whether it leads now, and who does not any more.
    pub fn offer(&mut self, value: f64, ids: (TraceId, SpanId)) -> (bool, Option<(TraceId, SpanId)>) {
        self.offered += 1;
        let place = Place { value, ids };
        if self.places.len() >= self.n && self.places.last().is_none_or(|last| place >= *last) {
            return (false, None);
        }
        // The same span twice: the costlier version stays.
        let known = self.places.iter().find(|known| known.ids == ids).copied();
        if known.is_some_and(|known| known <= place) {
            return (false, None);
        }
        self.places.insert(place);
        let out = match known {
            Some(known) => self.places.take(&known),
            None if self.places.len() > self.n => self.places.pop_last(),
            None => None,
        };
        (true, out.map(|place| place.ids))
    }

    /// The leaders with what they are ranked by.
    pub fn leaders(&self) -> impl Iterator<Item = (f64, (TraceId, SpanId))> {
        self.places.iter().map(|place| (place.value, place.ids))
    }
}

/// The `n` costliest with what is shown of them.
#[derive(Debug)]
pub struct Top {
    /// Their places.
    ranking: Ranking,
    /// What leads.
    leaders: FxHashMap<(TraceId, SpanId), Leader>,
}

impl Top {
    /// Of none yet.
    #[must_use]
    pub fn new(n: usize) -> Self {
        Self { ranking: Ranking::new(n), leaders: FxHashMap::default() }
    }

    /// Takes a span with what it is ranked by.
    pub fn offer(&mut self, value: f64, span: &Span<'_>) {
        let ids = (span.trace, span.id);
        let (leads, out) = self.ranking.offer(value, ids);
        if let Some(out) = out {
            self.leaders.remove(&out);
        }
        if leads {
            self.leaders.insert(ids, Leader::of(value, span));
        }
    }

    /// Spans that were offered.
    #[must_use]
    pub fn offered(&self) -> u64 {
        self.ranking.offered
    }

    /// The leaders, costliest first.
    #[must_use]
    pub fn leaders(mut self) -> Vec<Leader> {
        self.ranking.leaders().filter_map(|(_, ids)| self.leaders.remove(&ids)).collect()
    }
}

/// Ranks the spans of a store by their own time.
#[must_use]
pub fn by_self_time(store: &TraceStore, n: usize, wanted: &dyn Fn(&Record) -> bool) -> Ranking {
    let mut ranking = Ranking::new(n);
    each_tree(store, &mut |tree| {
        for span in tree.spans() {
            let record = store.record(span);
            if wanted(record) {
                ranking.offer(tree.self_ns(store, span) as f64, (record.trace, record.id));
            }
        }
    });
    ranking
}

/// Ranks traces by the sum of an attribute over their spans; a trace stands by its first root.
#[must_use]
pub fn by_trace_sum(store: &TraceStore, n: usize, key: &str) -> Ranking {
    let mut ranking = Ranking::new(n);
    each_tree(store, &mut |tree| {
        let values: Vec<f64> = tree.spans().filter_map(|span| store.number(store.record(span), key)).collect();
        if let Some(root) = tree.first_root(store).filter(|_| !values.is_empty()) {
            let record = store.record(root);
            ranking.offer(values.iter().sum(), (record.trace, record.id));
        }
    });
    ranking
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ranking_keeps_the_best_whatever_the_order() {
        let ids = |n: u64| (TraceId { high: 0, low: n }, SpanId(n));
        let values = [5.0, 1.0, 9.0, 7.0, 3.0, 9.0];
        for turn in 0..values.len() {
            let mut ranking = Ranking::new(3);
            for at in 0..values.len() {
                let at = (at + turn) % values.len();
                ranking.offer(values[at], ids(at as u64));
            }
            let leaders: Vec<_> = ranking.leaders().collect();
            assert_eq!(leaders, [(9.0, ids(2)), (9.0, ids(5)), (7.0, ids(3))], "turn {turn}");
        }
    }

    #[test]
    fn a_span_that_comes_twice_has_one_place() {
        let ids = (TraceId { high: 0, low: 1 }, SpanId(1));
        let mut ranking = Ranking::new(3);
        assert_eq!(ranking.offer(1.0, ids), (true, None));
        assert_eq!(ranking.offer(2.0, ids), (true, Some(ids)));
        assert_eq!(ranking.offer(1.5, ids), (false, None));
        assert_eq!(ranking.leaders().collect::<Vec<_>>(), [(2.0, ids)]);
    }
}
