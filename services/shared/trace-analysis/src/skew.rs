//! Clocks of nodes that go apart, and setting them right.
//!
//! **Rule.** A child begins not before its parent, and what links to a span begins not before it. For each pair of instances the least
//! shift of the later one's clock is taken that makes this true for every such pair of spans; shifts add up along the way from the
//! instance that nobody else precedes. A difference of more than a minute is no clock's: it is another time line, as of a log that is
//! replayed with its own times, and is left alone. Pairs that contradict each other are left alone too, and said to.

use std::collections::BTreeMap;

use crate::store::{Operation, TraceStore};
use crate::tree::each_tree;

/// Differences above are no clock's.
pub const TIMELINE_NS: u64 = 60_000_000_000;

/// The longest way of instances over which shifts add up.
const ROUNDS_MAX: usize = 100;

/// A clock that was set right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shift {
    /// The service that comes first.
    pub before: String,
    /// The one whose spans were moved.
    pub after: String,
    /// Pairs of spans in which the later one began too early.
    pub pairs: u64,
    /// The least shift that sets all of them right.
    pub shift_ns: u64,
    /// Whether it was done; not if pairs contradict each other, or nobody wants it.
    pub corrected: bool,
}

/// What pairs of instances say about their clocks: the greatest difference begin − begin, and how many are above 0.
type Differences = BTreeMap<(u32, u32), (i64, u64)>;

/// Measures clocks and, if `correct`, sets them right.
pub fn correct(store: &mut TraceStore, correct: bool) -> Vec<Shift> {
    let (instances, names) = instances(store);
    let differences = differences(store, &instances);
    let offsets = if correct { offsets(&differences, names.len()) } else { vec![0; names.len()] };
    let shifts = differences.iter().filter(|(_, (least, _))| *least > 0).map(|((before, after), (least, pairs))| {
        let moved = offsets[*after as usize] - offsets[*before as usize];
        let name = |number: u32| names[number as usize].clone();
        let corrected = correct && moved >= *least;
        Shift { before: name(*before), after: name(*after), pairs: *pairs, shift_ns: *least as u64, corrected }
    });
    let shifts: Vec<Shift> = shifts.collect();
    if offsets.iter().any(|offset| *offset > 0) {
        for record in store.records_mut() {
            let offset = offsets[instances[record.operation as usize] as usize] as u64;
            record.start = record.start.saturating_add(offset);
            record.end = record.end.saturating_add(offset);
        }
    }
    shifts
}

/// For each operation the number of its instance, and the instances' names: with the service's alone if it has one instance.
fn instances(store: &TraceStore) -> (Vec<u32>, Vec<String>) {
    let mut numbers = BTreeMap::new();
    for operation in store.operations() {
        numbers.entry((operation.service, operation.instance)).or_insert(0);
    }
    numbers.values_mut().zip(0..).for_each(|(number, at)| *number = at);
    let has_one = |service: u32| numbers.range((service, 0)..=(service, u32::MAX)).nth(1).is_none();
    let name = |(service, instance): &(u32, u32)| match store.text(*service) {
        name if has_one(*service) => name.to_owned(),
        name => format!("{name} ({})", store.text(*instance)),
    };
    let names = numbers.keys().map(name).collect();
    let of = |operation: &Operation| numbers.get(&(operation.service, operation.instance)).copied().unwrap_or(0);
    (store.operations().iter().map(of).collect(), names)
}

/// Compares the begins of all spans with those of their parents and of what they link to.
fn differences(store: &TraceStore, instances: &[u32]) -> Differences {
    let mut differences = Differences::new();
    let mut compare = |before: u32, after: u32| {
        let (before, after) = (store.record(before), store.record(after));
        let pair = (instances[before.operation as usize], instances[after.operation as usize]);
        let difference = before.start.abs_diff(after.start);
        if pair.0 == pair.1 || difference > TIMELINE_NS {
            return;
        }
        let difference = if before.start > after.start { difference as i64 } else { -(difference as i64) };
        let (least, pairs) = differences.entry(pair).or_insert((i64::MIN, 0));
        *least = difference.max(*least);
        *pairs += u64::from(difference > 0);
    };
    for (number, record) in store.records().iter().enumerate() {
        if !record.parent.is_zero()
            && let Some(parent) = store.find(record.trace, record.parent)
        {
            compare(parent, number as u32);
        }
    }
    for (number, to) in store.linkers() {
        if let Some(target) = store.find(to.trace, to.span) {
            compare(target, number);
        }
    }
    differences
}

/// The least offset of each clock, none below 0: longest paths over the pairs. An instance whose offset still grows when it cannot any
/// more is in a contradiction, and stays as it is.
fn offsets(differences: &Differences, instances: usize) -> Vec<i64> {
    let mut offsets = vec![0i64; instances];
    let mut relax = || {
        let mut grown = Vec::new();
        for ((before, after), (least, _)) in differences {
            let wanted = offsets[*before as usize].saturating_add(*least);
            if wanted > offsets[*after as usize] {
                offsets[*after as usize] = wanted;
                grown.push(*after);
            }
        }
        grown
    };
    let mut grown = Vec::new();
    for _ in 0..instances.min(ROUNDS_MAX) + 1 {
        grown = relax();
        if grown.is_empty() {
            return offsets;
        }
    }
    // In a contradiction: nobody is moved who still grows, nor who depends on such a one.
    let mut loose: Vec<bool> = vec![false; instances];
    grown.iter().for_each(|instance| loose[*instance as usize] = true);
    for _ in 0..instances.min(ROUNDS_MAX) {
        for (before, after) in differences.keys() {
            loose[*after as usize] |= loose[*before as usize];
        }
    }
    offsets.iter().zip(loose).map(|(offset, loose)| if loose { 0 } else { *offset }).collect()
}

/// Counts orphans and cycles of all traces, which only trees tell.
pub fn survey(store: &mut TraceStore) {
    let mut damage = store.damage;
    each_tree(store, &mut |tree| {
        damage.orphans += tree.orphans;
        damage.cycles += tree.cycles;
    });
    store.damage = damage;
}
