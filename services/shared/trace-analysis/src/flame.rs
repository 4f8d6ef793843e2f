//! Own time by the path of names from the root down: what a flame graph shows. Batches are roots of their own.

use rustc_hash::FxHashMap;

use crate::store::{NONE, TraceStore};
use crate::tree::each_tree;

/// Paths that are told apart; spans below others count for their parents.
const PATHS_MAX: usize = 100_000;
/// Names of a path at most; deeper spans count for the last.
const DEPTH_MAX: u32 = 200;

/// A path of names.
#[derive(Debug)]
struct Node {
    /// The path without its last name.
    parent: u32,
    /// The last name.
    operation: u32,
    /// How many names it has.
    depth: u32,
    /// Own time.
    self_ns: u64,
}

/// Own time by path.
#[derive(Debug, Default)]
pub struct Flame {
    /// By number; parents come before children.
    nodes: Vec<Node>,
    /// Numbers of paths, by parent and last name.
    numbers: FxHashMap<(u32, u32), u32>,
}

impl Flame {
    /// Of all spans.
    #[must_use]
    pub fn of(store: &TraceStore) -> Self {
        let mut flame = Self::default();
        let (mut of_spans, mut way) = (Vec::new(), Vec::new());
        each_tree(store, &mut |tree| {
            let first = tree.spans().start;
            of_spans.clear();
            of_spans.resize(tree.spans().len(), NONE);
            for span in tree.spans() {
                // Up to an ancestor that has its path, then down again.
                let mut at = Some(span);
                while let Some(up) = at.filter(|up| of_spans[(up - first) as usize] == NONE) {
                    way.push(up);
                    at = tree.parent(up);
                }
                let mut path = at.map_or(NONE, |known| of_spans[(known - first) as usize]);
                while let Some(down) = way.pop() {
                    path = flame.child(path, store.canonical(store.record(down).operation));
                    of_spans[(down - first) as usize] = path;
                }
                if let Some(node) = flame.nodes.get_mut(path as usize) {
                    node.self_ns = node.self_ns.saturating_add(tree.self_ns(store, span));
                }
            }
        });
        flame
    }

    /// The path below another.
    fn child(&mut self, parent: u32, operation: u32) -> u32 {
        if let Some(number) = self.numbers.get(&(parent, operation)) {
            return *number;
        }
        let depth = self.nodes.get(parent as usize).map_or(0, |node| node.depth) + 1;
        if parent != NONE && (self.nodes.len() >= PATHS_MAX || depth > DEPTH_MAX) {
            return parent;
        }
        let number = self.nodes.len() as u32;
        self.nodes.push(Node { parent, operation, depth, self_ns: 0 });
        self.numbers.insert((parent, operation), number);
        number
    }

    /// The paths in the folded form that flame graphs are drawn from, `service: name;service: name 123`, sorted.
    #[must_use]
    pub fn folded(&self, store: &TraceStore) -> Vec<String> {
        let mut lines: Vec<String> =
            self.nodes.iter().filter(|node| node.self_ns > 0).map(|node| self.line(store, node)).collect();
        lines.sort_unstable();
        lines
    }

    /// One of them.
    fn line(&self, store: &TraceStore, node: &Node) -> String {
        let up = std::iter::successors(Some(node), |node| self.nodes.get(node.parent as usize));
        // A semicolon parts names.
        let mut names: Vec<String> = up.map(|node| store.label(node.operation).replace([';', '\n', '\r'], ",")).collect();
        names.reverse();
        format!("{} {}", names.join(";"), node.self_ns)
    }
}
