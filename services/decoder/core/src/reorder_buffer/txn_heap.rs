//! The largest (sub)transaction at hand: a max-heap by size, kept as a pairing heap like PostgreSQL's (`lib/pairingheap.c`).
//!
//! To find a victim, 13–16 look at every transaction; with many small subtransactions that made each eviction cost all of them.
//! Since 17 transactions with changes in memory stand in this heap and are moved whenever their size changes.
//!
//! Invariants: I1 the heap holds exactly the slots whose size is not 0; I2 no node is larger than its parent.
//!
//! | operation | cost |
//! |---|---|
//! | largest | O(1) |
//! | change of a size | O(log n) amortised; O(1) for one that is alone |

/// No node.
const NONE: u32 = u32::MAX;

/// A slot's place in the heap.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// Its size; 0 if it is not in the heap.
    size: u64,
    /// First child.
    first_child: u32,
    /// Next child of the same parent.
    next_sibling: u32,
    /// The child before it, or the parent of a first child (`prev_or_parent`).
    previous: u32,
}

/// A node that is not in the heap.
const OUTSIDE: Node = Node { size: 0, first_child: NONE, next_sibling: NONE, previous: NONE };

/// The heap, over slots of the reorder buffer.
#[derive(Debug)]
pub(crate) struct TxnHeap {
    /// By slot.
    nodes: Vec<Node>,
    /// The largest.
    root: u32,
}

impl Default for TxnHeap {
    fn default() -> Self {
        Self { nodes: Vec::new(), root: NONE }
    }
}

impl TxnHeap {
    /// The largest.
    pub(crate) fn largest(&self) -> Option<u32> {
        (self.root != NONE).then_some(self.root)
    }

    /// The size of a slot changes; gives how many nodes were compared.
    pub(crate) fn set(&mut self, at: u32, size: u64) -> u64 {
        if self.nodes.len() <= at as usize {
            self.nodes.resize(at as usize + 1, OUTSIDE);
        }
        let mut compared = 0;
        if self.node(at).size > 0 {
            self.remove(at, &mut compared);
        }
        *self.node(at) = Node { size, ..OUTSIDE };
        if size > 0 {
            self.root = self.merge(self.root, at, &mut compared);
        }
        compared
    }

    /// A node.
    fn node(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }

    /// `pairingheap_remove`.
    fn remove(&mut self, at: u32, compared: &mut u64) {
        let Node { first_child, next_sibling, previous, .. } = *self.node(at);
        let children = self.merge_children(first_child, compared);
        if at == self.root {
            self.root = children;
            return;
        }
        let replacement = if children == NONE { next_sibling } else { children };
        if self.node(previous).first_child == at {
            self.node(previous).first_child = replacement;
        } else {
            self.node(previous).next_sibling = replacement;
        }
        if children != NONE {
            self.node(children).previous = previous;
            self.node(children).next_sibling = next_sibling;
        }
        if next_sibling != NONE {
            self.node(next_sibling).previous = if children == NONE { previous } else { children };
        }
    }

    /// `merge`: the smaller of two roots becomes the first child of the larger, which is given back.
    fn merge(&mut self, a: u32, b: u32, compared: &mut u64) -> u32 {
        if a == NONE || b == NONE {
            return if a == NONE { b } else { a };
        }
        *compared += 1;
        let (a, b) = if self.node(a).size < self.node(b).size { (b, a) } else { (a, b) };
        let first = std::mem::replace(&mut self.node(a).first_child, b);
        if first != NONE {
            self.node(first).previous = b;
        }
        (self.node(b).previous, self.node(b).next_sibling) = (a, first);
        a
    }

    /// `merge_children`: pairs from left to right, then all pairs from right to left; gives the root of them.
    fn merge_children(&mut self, first: u32, compared: &mut u64) -> u32 {
        let (mut pairs, mut next) = (NONE, first);
        while next != NONE {
            let a = next;
            let b = self.node(a).next_sibling;
            next = if b == NONE { NONE } else { self.node(b).next_sibling };
            (self.node(a).previous, self.node(a).next_sibling) = (NONE, NONE);
            if b != NONE {
                (self.node(b).previous, self.node(b).next_sibling) = (NONE, NONE);
            }
            let pair = self.merge(a, b, compared);
            self.node(pair).next_sibling = pairs;
            pairs = pair;
        }
        let mut root = NONE;
        while pairs != NONE {
            let pair = pairs;
            pairs = std::mem::replace(&mut self.node(pair).next_sibling, NONE);
            root = self.merge(root, pair, compared);
        }
        root
    }

    /// The size of a slot as the heap knows it.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn size_of(&self, at: u32) -> u64 {
        self.nodes.get(at as usize).map_or(0, |node| node.size)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Checks I2 and the links, and gives how many nodes there are.
    fn check(heap: &TxnHeap, at: u32) -> usize {
        let node = heap.nodes[at as usize];
        let (mut n, mut before, mut child) = (1, at, node.first_child);
        while child != NONE {
            let inner = heap.nodes[child as usize];
            assert!(inner.size <= node.size, "I2");
            assert_eq!(inner.previous, before);
            n += check(heap, child);
            (before, child) = (child, inner.next_sibling);
        }
        n
    }

    proptest! {
        #[test]
        fn i1_i2_the_largest_is_that_of_a_plain_list(steps in prop::collection::vec((0..40u32, 0..50u64), 1..300)) {
            let (mut heap, mut sizes) = (TxnHeap::default(), [0u64; 40]);
            for (at, size) in steps {
                heap.set(at, size);
                sizes[at as usize] = size;
                let largest = heap.largest().map_or(0, |at| sizes[at as usize]);
                prop_assert_eq!(largest, sizes.iter().copied().max().unwrap_or(0));
                let live = sizes.iter().filter(|size| **size > 0).count();
                prop_assert_eq!(heap.largest().map_or(0, |root| check(&heap, root)), live, "I1");
            }
        }
    }

    #[test]
    fn emptying_it_costs_n_log_n() {
        for n in [1000u64, 10_000] {
            let mut heap = TxnHeap::default();
            let mut compared: u64 = (0..n).map(|i| heap.set(i as u32, 100 + i * 7919 % n)).sum();
            assert!(compared < n);
            while let Some(largest) = heap.largest() {
                compared += heap.set(largest, 0);
            }
            assert!(compared <= 2 * n * u64::from(n.ilog2()), "{compared}");
        }
    }
}
