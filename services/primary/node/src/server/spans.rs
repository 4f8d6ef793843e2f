//! The primary's spans: `transaction` for each sampled transaction, `send wal` for each batch in which one commits.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pg_types::{Lsn, Timestamp};
use service_kit::telemetry::context::format_traceparent;
use service_kit::telemetry::{ActiveSpan, names};

use super::State;
use super::batch_reader::Outgoing;
use super::convert;
use crate::contexts::Context;

/// The parts of the log whose transactions have their span: several streams read the same commits, and one span each is wanted.
#[derive(Debug, Default)]
pub(crate) struct SpanClaims {
    /// Disjoint ranges, start → end. Streams read in order, so there are about as many as there were streams.
    ranges: Mutex<BTreeMap<Lsn, Lsn>>,
}

impl SpanClaims {
    /// Claims `from..to`; returns the parts of it that nobody had.
    fn claim(&self, from: Lsn, to: Lsn) -> Vec<(Lsn, Lsn)> {
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut start, mut end) = (from, to);
        let mut free = Vec::new();
        let mut at = from;
        // Ranges that touch ours, from the last that begins at or before it.
        let first = ranges.range(..=from).next_back().map_or(from, |(s, _)| *s);
        let touching: Vec<(Lsn, Lsn)> = ranges.range(first..=to).map(|(s, e)| (*s, *e)).filter(|(_, e)| *e >= from).collect();
        for (s, e) in touching {
            if s > at {
                free.push((at, s));
            }
            at = at.max(e);
            (start, end) = (start.min(s), end.max(e));
            ranges.remove(&s);
        }
        if at < to {
            free.push((at, to));
        }
        ranges.insert(start, end);
        free
    }
}

/// Ends the spans of a batch that goes out now, and puts the batch's context into it. `ready`: since when it waited.
pub(super) fn trace_batch(state: &State, slot: &str, outgoing: &mut Outgoing, ready: SystemTime) {
    if outgoing.sampled.is_empty() || !state.tracer.is_on() {
        return;
    }
    let now = state.clock.now();
    let (start, end) = (Lsn(outgoing.batch.start_lsn), Lsn(outgoing.batch.end_lsn));
    let free = state.claims.claim(start, end);
    for context in &outgoing.sampled {
        if free.iter().any(|(from, to)| (*from..*to).contains(&context.commit_lsn)) {
            end_transaction(state, context, ready);
        }
    }
    let contexts = outgoing.sampled.iter().map(|c| &c.span);
    if let Some(mut span) = state.tracer.send_wal(contexts, ready) {
        outgoing.batch.traceparent = format_traceparent(span.context());
        span.lsn(names::START_LSN, start.0)
            .lsn(names::END_LSN, end.0)
            .number(names::RECORDS, outgoing.records)
            .number(names::BYTES, outgoing.bytes)
            .number(names::TRANSACTIONS, outgoing.commits)
            .text(names::SLOT, slot)
            .text(names::MESSAGING_DESTINATION, slot)
            .number(names::MESSAGING_BATCH_COUNT, outgoing.records);
        if let Ok(waited) = now.duration_since(ready) {
            span.number(names::CREDIT_WAIT, waited.as_nanos() as u64);
        }
        span.end(now);
    }
}

/// A commit that is further than this from when it is read is of a log that is played again.
const REPLAYED_AFTER: Duration = Duration::from_secs(3600);

/// The span of one transaction, whose commit was read at `read`. That of an old log, or of simulated times, is moved to end there: beside what is
/// done with it now, its own times would make a trace of months.
fn end_transaction(state: &State, context: &Context, read: SystemTime) {
    let (start, end) = (system_time(context.running_since), system_time(context.commit_time));
    let apart = read.duration_since(end).unwrap_or_else(|early| early.duration());
    let moved = apart > REPLAYED_AFTER;
    let (start, end) = if moved {
        (read.checked_sub(end.duration_since(start).unwrap_or_default()).unwrap_or(read), read)
    } else {
        (start, end)
    };
    let span: Option<ActiveSpan> = state.tracer.transaction(&context.span, context.application.as_ref(), start);
    if let Some(mut span) = span {
        span.number(names::XID, u64::from(context.xid.0))
            .number(names::SUBXIDS, context.subxids)
            .number(names::MESSAGES, context.cost.messages)
            .lsn(names::COMMIT_LSN, context.commit_lsn.0);
        if moved {
            span.text(names::COMMIT_TIME, &humantime::format_rfc3339_micros(system_time(context.commit_time)).to_string());
        }
        span.end(end);
    }
}

/// PostgreSQL's time as the system's; times before 1970 become 1970, which spans cannot pass.
fn system_time(time: Timestamp) -> SystemTime {
    let stamp = convert::timestamp(time);
    UNIX_EPOCH + Duration::new(u64::try_from(stamp.seconds).unwrap_or(0), u32::try_from(stamp.nanos).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a model with a flag for each position.
        #[test]
        fn every_position_is_claimed_exactly_once(claims in proptest::collection::vec((0u64..200, 1u64..60), 1..40)) {
            let all = SpanClaims::default();
            let mut model = vec![false; 300];
            for (from, len) in claims {
                let free = all.claim(Lsn(from), Lsn(from + len));
                for at in from..from + len {
                    let given = free.iter().filter(|(s, e)| (s.0..e.0).contains(&at)).count();
                    prop_assert_eq!(given, usize::from(!model[at as usize]), "at {}", at);
                    model[at as usize] = true;
                }
            }
            let ranges = all.ranges.lock().unwrap();
            let sum: u64 = ranges.iter().map(|(s, e)| e.0 - s.0).sum();
            prop_assert_eq!(sum, model.iter().filter(|m| **m).count() as u64);
        }
    }
}
