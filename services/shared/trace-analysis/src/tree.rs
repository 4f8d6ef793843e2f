//! The spans of one trace as trees: parents found, cycles cut, children in the order in which they end.

use std::ops::Range;

use crate::span::TraceId;
use crate::store::{NONE, TraceStore};

/// The trees of one trace. It is filled anew for each trace, so that its memory is that of the largest.
#[derive(Debug, Default)]
pub struct Tree {
    /// Numbers of its spans in the store.
    range: Range<u32>,
    /// Parents, by position in the range; [`NONE`] for roots.
    parents: Vec<u32>,
    /// Children of all, by parent and end.
    children: Vec<u32>,
    /// Where the children of each begin in `children`.
    firsts: Vec<u32>,
    /// Which walk came by, to find cycles.
    marks: Vec<u32>,
    /// Spans whose parent is not there.
    pub orphans: u64,
    /// Spans that were cut loose because they are their own ancestors.
    pub cycles: u64,
}

impl Tree {
    /// Fills it with a trace.
    pub fn fill(&mut self, store: &TraceStore, trace: TraceId) {
        self.range = store.trace_range(trace);
        (self.orphans, self.cycles) = (0, 0);
        let first = self.range.start;
        self.parents.clear();
        let records = &store.records()[self.range.start as usize..self.range.end as usize];
        for record in records {
            let parent = match records.binary_search_by_key(&record.parent, |other| other.id) {
                _ if record.parent.is_zero() => NONE,
                Ok(at) => at as u32 + first,
                Err(_) => {
                    self.orphans += 1;
                    NONE
                }
            };
            self.parents.push(parent);
        }
        self.cut_cycles();
        self.sort_children(store);
    }

    /// Cuts one edge of each cycle: that of the span at which a walk up comes back to itself.
    fn cut_cycles(&mut self) {
        let first = self.range.start;
        self.marks.clear();
        self.marks.resize(self.parents.len(), NONE);
        for begin in 0..self.parents.len() {
            let mut at = begin;
            while self.marks[at] == NONE {
                self.marks[at] = begin as u32;
                let parent = self.parents[at];
                if parent == NONE {
                    break;
                }
                let next = (parent - first) as usize;
                if self.marks[next] == begin as u32 {
                    self.parents[at] = NONE;
                    self.cycles += 1;
                    break;
                }
                at = next;
            }
        }
    }

    /// Lists children by parent, those that end first in front.
    fn sort_children(&mut self, store: &TraceStore) {
        let first = self.range.start;
        self.children.clear();
        self.children.extend(self.range.clone().filter(|child| self.parents[(child - first) as usize] != NONE));
        let parents = &self.parents;
        self.children.sort_unstable_by_key(|child| {
            let record = store.record(*child);
            (parents[(child - first) as usize], record.end, record.start, *child)
        });
        self.firsts.clear();
        let mut at = 0;
        for parent in self.range.clone() {
            self.firsts.push(at as u32);
            while self.children.get(at).is_some_and(|child| parents[(child - first) as usize] == parent) {
                at += 1;
            }
        }
        self.firsts.push(at as u32);
    }

    /// Numbers of its spans.
    #[must_use]
    pub fn spans(&self) -> Range<u32> {
        self.range.clone()
    }

    /// Whether a span is in it.
    #[must_use]
    pub fn has(&self, span: u32) -> bool {
        self.range.contains(&span)
    }

    /// A span's parent.
    #[must_use]
    pub fn parent(&self, span: u32) -> Option<u32> {
        let parent = self.parents.get(span.checked_sub(self.range.start)? as usize)?;
        Some(*parent).filter(|parent| *parent != NONE)
    }

    /// Its children, those that end first in front.
    #[must_use]
    pub fn children(&self, span: u32) -> &[u32] {
        let Some(at) = span.checked_sub(self.range.start).map(|at| at as usize) else { return &[] };
        match (self.firsts.get(at), self.firsts.get(at + 1)) {
            (Some(first), Some(end)) => self.children.get(*first as usize..*end as usize).unwrap_or_default(),
            _ => &[],
        }
    }

    /// Spans without a parent.
    pub fn roots(&self) -> impl Iterator<Item = u32> {
        self.range.clone().filter(|span| self.parent(*span).is_none())
    }

    /// The root that begins first.
    #[must_use]
    pub fn first_root(&self, store: &TraceStore) -> Option<u32> {
        self.roots().min_by_key(|root| (store.record(*root).start, *root))
    }

    /// Nanoseconds of a span in which none of its children ran.
    #[must_use]
    pub fn self_ns(&self, store: &TraceStore, span: u32) -> u64 {
        let record = store.record(span);
        let mut busy = 0;
        let mut spans: Vec<(u64, u64)> = self
            .children(span)
            .iter()
            .map(|child| store.record(*child))
            .map(|child| (child.start.max(record.start), child.end.min(record.end)))
            .filter(|(start, end)| start < end)
            .collect();
        spans.sort_unstable();
        let mut until = record.start;
        for (start, end) in spans {
            busy += end.max(until) - start.max(until);
            until = until.max(end);
        }
        record.duration_ns() - busy
    }
}

/// Calls `f` for the tree of each trace.
pub(crate) fn each_tree(store: &TraceStore, f: &mut dyn FnMut(&Tree)) {
    let mut tree = Tree::default();
    let mut at = 0;
    while let Some(record) = store.records().get(at) {
        tree.fill(store, record.trace);
        at = tree.spans().end as usize;
        f(&tree);
    }
}
