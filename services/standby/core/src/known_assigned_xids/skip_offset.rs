//! The walk of a snapshot over the array (`KnownAssignedXidsGetAndSetXmin`), with and without skip offsets.
//!
//! A skip offset belongs to a slot `p` and says: of the slots after it, `distance − 1` are known to be dead. Readers write it when
//! they have walked over such a gap, and later readers jump. The writer never touches it: a gap only grows, and slots are never
//! used twice, so no offset becomes wrong by an add, a removal or a compression.
//!
//! It can be wrong for one kind of reader: one whose view is *older* than the view of the reader that wrote it, for which a slot
//! in the gap may still run. So an offset carries the latest end inside its gap (`as_of`), packed into the same atomic, and a
//! reader uses it only if its own view is at least that far. The fact is complete in itself, so relaxed order suffices.

use pg_types::{Work, Xid};

use super::slots::CHUNK_SLOTS;
use super::view::ArrayView;
use crate::sync::{AtomicU32, Ordering};

/// How snapshots walk the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanStrategy {
    /// Every slot of the span.
    Plain,
    /// Over the gaps that earlier readers found.
    SkipOffset,
}

/// Work of walks over the array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCount {
    /// Slots looked at.
    pub visited: u64,
    /// Slots jumped over.
    pub skipped: u64,
}

impl From<SlotCount> for Work {
    fn from(count: SlotCount) -> Work {
        Work { xid_slots_visited: count.visited, xid_slots_skipped: count.skipped, ..Work::default() }
    }
}

/// A skip offset: slots `p + 1 … p + distance − 1` are dead for every view with at least `as_of` ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Skip {
    as_of: u32,
    distance: u32,
}

impl Skip {
    /// Both halves in one word, so that no reader sees one without the other.
    fn pack(self) -> u64 {
        u64::from(self.as_of) << 32 | u64::from(self.distance)
    }

    /// The halves.
    fn unpack(word: u64) -> Self {
        Self { as_of: (word >> 32) as u32, distance: word as u32 }
    }
}

/// Appends the live xids below `xmax` to `out`, oldest first, and says what the walk cost.
pub(crate) fn live_below(view: &ArrayView, xmax: Xid, scan: ScanStrategy, out: &mut Vec<Xid>) -> SlotCount {
    let mut count = SlotCount::default();
    let (mut position, head) = (view.tail_position(), view.head_position());
    let walk = match scan {
        ScanStrategy::Plain => Walk::plain,
        ScanStrategy::SkipOffset => Walk::to_gap,
    };
    while position < head {
        let (chunk, slot) = view.log.at(position);
        let end = CHUNK_SLOTS.min(slot + (head - position) as usize);
        let walked = walk(&chunk.xid[slot..end], &chunk.ended[slot..end], view.ends, xmax, out);
        let (Walk::Xmax(visited) | Walk::End(visited) | Walk::Gap(visited)) = walked;
        count.visited += visited as u64;
        position += visited as u64;
        match walked {
            Walk::Xmax(_) => break,
            Walk::End(_) => {}
            Walk::Gap(_) => {
                // I3: the tail is live, so a gap has a slot before it, and the walk has seen that it is live.
                debug_assert!(position >= view.tail_position() + 2, "the tail of a view is live");
                position = over_gap(view, position - 2, 1, &mut count);
                position = over_lone_slots(view, position, xmax, out, &mut count);
            }
        }
    }
    count
}

/// Goes on after a gap for as long as live slots stand alone: their skip offsets lead on without a look at the slot after them.
/// Returns the start of a run of live slots, or the head.
fn over_lone_slots(view: &ArrayView, mut position: u64, xmax: Xid, out: &mut Vec<Xid>, count: &mut SlotCount) -> u64 {
    let head = view.head_position();
    while position < head {
        let xid = view.log.xid(position);
        if xid.follows_or_equals(xmax) {
            count.visited += 1;
            return head;
        }
        let next = over_gap(view, position, 0, count);
        if next == position + 1 && next < head {
            return position;
        }
        count.visited += 1;
        out.push(xid);
        position = next;
    }
    head
}

/// Where a walk over the slots of one chunk stopped, with the slots visited.
enum Walk {
    /// At a live xid at or past xmax, which counts as visited.
    Xmax(usize),
    /// At the end of the slice.
    End(usize),
    /// At a dead slot, which counts as visited.
    Gap(usize),
}

impl Walk {
    /// The walk over every slot.
    fn plain(xids: &[AtomicU32], ended: &[AtomicU32], ends: u32, xmax: Xid, out: &mut Vec<Xid>) -> Walk {
        for (n, (xid, ended)) in xids.iter().zip(ended).enumerate() {
            if runs(ended.load(Ordering::Relaxed), ends) {
                let xid = Xid(xid.load(Ordering::Relaxed));
                if xid.follows_or_equals(xmax) {
                    return Walk::Xmax(n + 1);
                }
                out.push(xid);
            }
        }
        Walk::End(xids.len())
    }

    /// The walk over live slots up to the first dead one. Xids ascend, so one look at the last tells whether any is past xmax.
    fn to_gap(xids: &[AtomicU32], ended: &[AtomicU32], ends: u32, xmax: Xid, out: &mut Vec<Xid>) -> Walk {
        let load = |xid: &AtomicU32| Xid(xid.load(Ordering::Relaxed));
        let below = match xids.last() {
            Some(last) if load(last).precedes(xmax) => xids.len(),
            _ => xids.iter().position(|xid| load(xid).follows_or_equals(xmax)).unwrap_or(xids.len()),
        };
        let run = ended.iter().take(below).position(|ended| !runs(ended.load(Ordering::Relaxed), ends));
        out.extend(xids.iter().take(run.unwrap_or(below)).map(load));
        match run {
            Some(run) => Walk::Gap(run + 1),
            None if below < xids.len() => Walk::Xmax(below + 1),
            None => Walk::End(below),
        }
    }
}

/// True if a slot with this stamp runs in a view that has seen `ends` ends.
#[inline]
pub(crate) fn runs(ended: u32, ends: u32) -> bool {
    ended == 0 || ended > ends
}

/// Goes from the live slot `anchor`, of whose followers `seen` (0 or 1) dead ones are counted already, to the next live slot or the
/// head, which it does not count, and records the way on the anchor.
fn over_gap(view: &ArrayView, anchor: u64, seen: u64, count: &mut SlotCount) -> u64 {
    let head = view.head_position();
    let mut as_of = if seen > 0 { view.log.ended(anchor + 1) } else { 0 };
    let mut position = jump(view, anchor, anchor + 1 + seen, &mut as_of, count);
    if seen > 0 && position == anchor + 2 {
        // The anchor knows nothing: offsets were written when the gap began further left, on slots that are dead now.
        position = jump(view, anchor + 1, position, &mut as_of, count);
    }
    while position < head {
        let ended = view.log.ended(position);
        if runs(ended, view.ends) {
            break;
        }
        count.visited += 1;
        as_of = as_of.max(ended);
        position = jump(view, position, position + 1, &mut as_of, count);
    }
    record(view, anchor, Skip { as_of, distance: u32::try_from(position - anchor).unwrap_or(u32::MAX) });
    position
}

/// Where to look after slot `from`: where its skip offset leads, if that is beyond `next` and holds for this view, else `next`.
#[inline]
fn jump(view: &ArrayView, from: u64, next: u64, as_of: &mut u32, count: &mut SlotCount) -> u64 {
    let (chunk, slot) = view.log.at(from);
    let skip = Skip::unpack(chunk.skip[slot].load(Ordering::Relaxed));
    let target = from + u64::from(skip.distance);
    if target <= next || skip.as_of > view.ends {
        return next;
    }
    *as_of = (*as_of).max(skip.as_of);
    count.skipped += target - next;
    target
}

/// Notes what was learnt, unless there is something at least as good.
fn record(view: &ArrayView, anchor: u64, learnt: Skip) {
    let (chunk, slot) = view.log.at(anchor);
    let known = Skip::unpack(chunk.skip[slot].load(Ordering::Relaxed));
    if learnt.distance > known.distance.max(1) {
        chunk.skip[slot].store(learnt.pack(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_packs_into_one_word() {
        for s in [Skip { as_of: 0, distance: 0 }, Skip { as_of: u32::MAX, distance: 2 }, Skip { as_of: 7, distance: u32::MAX }]
        {
            assert_eq!(Skip::unpack(s.pack()), s);
        }
    }
}
