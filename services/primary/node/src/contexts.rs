//! Trace contexts of the transactions that commit in a stream, decided at their commit records.
//!
//! The ids follow from system id, timeline and commit LSN. What follows from the records before the commit (how many commands
//! changed catalogs, whether the application put its own context into the WAL) is remembered per xid until the transaction ends;
//! both maps are bounded. A stream that begins in the middle of a transaction has not seen all of it, so it may count fewer
//! commands; messages are counted in the commit record itself.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry::trace::SpanContext;
use pg_types::record::{LogicalMessageRecord, NewCidRecord};
use pg_types::{CommandId, Lsn, RecordBody, Timestamp, WalIdentity, WalRecord, Xid};
use pg_wal::{DecodeError, RawRecord, RecordClass, WalProfile};
use service_kit::Clock;
use service_kit::telemetry::context::{TRACESTATE_BYTES_MAX, parse_context};
use service_kit::telemetry::sampling::CommitCost;
use service_kit::telemetry::{Sampler, WalId};

use crate::error::Error;
use crate::wal_log::segment_file;

/// Prefix of the logical message in which an application hands over its context.
const TRACEPARENT_PREFIX: &[u8] = b"traceparent";
/// Bytes of a traceparent that are looked at; a longer one is of a later version and has parts we do not use.
const TRACEPARENT_BYTES_MAX: usize = 256;
/// Most open transactions of which something is remembered; more are not traced by cost or wish.
const REMEMBERED_MAX: usize = 65_536;
/// Most decisions about wishes that are remembered, so that every stream decides alike.
const DECISIONS_MAX: usize = 16_384;

/// Decides which transactions are traced; one for all streams of a log.
#[derive(Debug)]
pub struct ContextDecider {
    /// Where the ids follow from.
    wal: WalId,
    /// Ratio, thresholds, cap on wishes.
    sampler: Sampler,
    /// For the cap.
    clock: Arc<dyn Clock>,
    /// Granted and refused wishes by commit LSN.
    wishes: Mutex<BTreeMap<Lsn, bool>>,
}

impl ContextDecider {
    /// For WAL of `identity`.
    #[must_use]
    pub fn new(identity: &WalIdentity, sampler: Sampler, clock: Arc<dyn Clock>) -> Self {
        let wal = WalId { system_id: identity.system_id, timeline: identity.timeline };
        Self { wal, sampler, clock, wishes: Mutex::default() }
    }

    /// The context of the transaction that commits at `lsn`. `application`: what its application handed over.
    fn decide(&self, lsn: Lsn, cost: CommitCost, application: Option<&SpanContext>) -> SpanContext {
        let Some(application) = application else {
            let context = self.wal.transaction_context(lsn.0, false);
            let sampled = self.sampler.in_ratio(context.trace_id()) || self.sampler.is_marked(cost);
            return if sampled { self.wal.transaction_context(lsn.0, true) } else { context };
        };
        let by_rule = self.sampler.in_ratio(application.trace_id()) || self.sampler.is_marked(cost);
        let sampled = by_rule || application.is_sampled() && self.grants_wish(lsn);
        self.wal.continued_context(lsn.0, application, sampled)
    }

    /// Whether the wish of the transaction that commits at `lsn` is granted; the answer stays.
    fn grants_wish(&self, lsn: Lsn) -> bool {
        let mut wishes = self.wishes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(granted) = wishes.get(&lsn) {
            return *granted;
        }
        if wishes.len() >= DECISIONS_MAX {
            wishes.pop_first();
        }
        let granted = self.sampler.grants_hint(self.clock.monotonic());
        wishes.insert(lsn, granted);
        granted
    }
}

/// A transaction that commits.
#[derive(Clone, Debug)]
pub struct Context {
    /// Top-level xid; for COMMIT PREPARED the one that was prepared.
    pub xid: Xid,
    /// Start of the commit record.
    pub commit_lsn: Lsn,
    /// Since when it was seen running at the latest, by the times of others' commits; WAL tells no begin.
    pub running_since: Timestamp,
    /// When it committed.
    pub commit_time: Timestamp,
    /// Its context: trace id, id of the span `transaction`, sampled or not.
    pub span: SpanContext,
    /// What its application handed over, the parent of that span.
    pub application: Option<SpanContext>,
    /// Its messages and commands.
    pub cost: CommitCost,
    /// Committed subtransactions.
    pub subxids: u64,
}

/// Tells since when transactions run. A transaction whose xid was there when another committed was running then; nothing in WAL says more.
#[derive(Debug, Default)]
struct RunningSince {
    /// The newest xid of any record.
    newest: Xid,
    /// The newest xid at a commit, and the time of that commit, in order; none twice for an xid.
    seen: VecDeque<(Xid, Timestamp)>,
}

impl RunningSince {
    /// A record of a transaction was read.
    fn record(&mut self, xid: Xid) {
        if xid.follows(self.newest) {
            self.newest = xid;
        }
    }

    /// A transaction has committed; since when it was running at the latest.
    fn commit(&mut self, xid: Xid, time: Timestamp) -> Timestamp {
        if self.seen.back().is_none_or(|(newest, _)| self.newest.follows(*newest)) {
            if self.seen.len() >= REMEMBERED_MAX {
                self.seen.pop_front();
            }
            self.seen.push_back((self.newest, time));
        }
        let first = self.seen.partition_point(|(newest, _)| newest.precedes(xid));
        self.seen.get(first).map_or(time, |(_, seen)| time.min(*seen))
    }
}

/// Follows the transactions of one stream.
#[derive(Debug)]
pub struct TransactionContexts {
    /// Shared by all streams.
    decider: Arc<ContextDecider>,
    /// Of the log.
    identity: WalIdentity,
    /// What the log's version writes.
    profile: &'static WalProfile,
    /// The last command that changed catalogs and how many did, by top-level transaction.
    commands: HashMap<Xid, (CommandId, u64)>,
    /// Contexts that applications handed over, by the xid of the message.
    applications: HashMap<Xid, SpanContext>,
    /// Since when they run.
    running: RunningSince,
}

impl TransactionContexts {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(decider: Arc<ContextDecider>, identity: WalIdentity) -> Self {
        let profile = WalProfile::of(identity.version);
        let running = RunningSince::default();
        Self { decider, identity, profile, commands: HashMap::new(), applications: HashMap::new(), running }
    }

    /// What the log's version writes.
    #[must_use]
    pub fn profile(&self) -> &'static WalProfile {
        self.profile
    }

    /// A record whose bytes are right and whose contents are not.
    #[must_use]
    pub fn decode_error(&self, error: &DecodeError) -> Error {
        let file = segment_file(&self.identity, error.lsn);
        Error::DataLoss { lsn: error.lsn, file, reason: error.to_string() }
    }

    /// Looks at a record; a context if a transaction commits with it. Only records that matter are decoded.
    ///
    /// # Errors
    /// A record of a transaction's end contradicts its layout.
    pub fn observe_raw(&mut self, record: &RawRecord<'_>) -> Result<Option<Context>, Error> {
        self.running.record(record.header.xid);
        match record.class() {
            RecordClass::Other | RecordClass::Invalidations | RecordClass::RunningXacts => Ok(None),
            RecordClass::Abort if self.commands.is_empty() && self.applications.is_empty() => Ok(None),
            RecordClass::Commit | RecordClass::Abort | RecordClass::NewCid | RecordClass::LogicalMessage => {
                let decoded = record.decode(self.profile).map_err(|e| self.decode_error(&e))?;
                Ok(self.observe(&decoded))
            }
        }
    }

    /// The same for a decoded record.
    pub fn observe(&mut self, record: &WalRecord) -> Option<Context> {
        self.running.record(record.xid);
        match &record.body {
            RecordBody::NewCid(new_cid) => self.count_command(new_cid),
            RecordBody::LogicalMessage(message) if message.transactional => self.take_application(record.xid, message),
            RecordBody::Abort(abort) => {
                self.take_all(record.xid, abort.prepared_xid, &abort.subxids);
            }
            RecordBody::Commit(commit) => {
                let (commands, application) = self.take_all(record.xid, commit.prepared_xid, &commit.subxids);
                let cost = CommitCost { messages: commit.messages.len() as u64, commands };
                let xid = if commit.prepared_xid.is_valid() { commit.prepared_xid } else { record.xid };
                return Some(Context {
                    xid,
                    commit_lsn: record.lsn,
                    running_since: self.running.commit(xid, commit.time),
                    commit_time: commit.time,
                    span: self.decider.decide(record.lsn, cost, application.as_ref()),
                    application,
                    cost,
                    subxids: commit.subxids.len() as u64,
                });
            }
            _ => {}
        }
        None
    }

    /// Counts a command when the first of the catalog rows that it changed comes by (`ReorderBufferAddNewTupleCids`).
    fn count_command(&mut self, new_cid: &NewCidRecord) {
        let command = match (new_cid.cmin.is_valid(), new_cid.cmax.is_valid()) {
            (true, true) => new_cid.cmin.max(new_cid.cmax),
            (true, false) => new_cid.cmin,
            _ => new_cid.cmax,
        };
        let room = self.commands.len() < REMEMBERED_MAX || self.commands.contains_key(&new_cid.top_xid);
        if room {
            let (last, count) = self.commands.entry(new_cid.top_xid).or_insert((CommandId::INVALID, 0));
            *count += u64::from(*last != command);
            *last = command;
        }
    }

    /// Takes the context that an application handed over; the last one counts. What is malformed is left alone.
    fn take_application(&mut self, xid: Xid, message: &LogicalMessageRecord) {
        if message.prefix != TRACEPARENT_PREFIX || message.message.len() > TRACEPARENT_BYTES_MAX + TRACESTATE_BYTES_MAX + 1 {
            return;
        }
        let Ok(text) = std::str::from_utf8(&message.message) else { return };
        // A tracestate may follow the traceparent, on a line of its own.
        let (traceparent, tracestate) = text.split_once('\n').unwrap_or((text, ""));
        let room = self.applications.len() < REMEMBERED_MAX || self.applications.contains_key(&xid);
        if let (Ok(context), true) = (parse_context(traceparent.trim(), tracestate.trim()), room) {
            self.applications.insert(xid, context);
        }
    }

    /// Forgets a transaction with its subtransactions, and returns what was known.
    fn take_all(&mut self, xid: Xid, prepared_xid: Xid, subxids: &[Xid]) -> (u64, Option<SpanContext>) {
        if self.commands.is_empty() && self.applications.is_empty() {
            return (0, None);
        }
        let (mut commands, mut application) = (0, None);
        for xid in [xid, prepared_xid].iter().chain(subxids) {
            commands += self.commands.remove(xid).map_or(0, |(_, count)| count);
            application = application.or(self.applications.remove(xid));
        }
        (commands, application)
    }
}

#[cfg(test)]
mod tests {
    use pg_types::PgVersion;
    use pg_types::record::CommitRecord;
    use service_kit::ManualClock;
    use service_kit::telemetry::SamplingConfig;
    use service_kit::telemetry::context::format_traceparent;

    use super::*;

    const IDENTITY: WalIdentity = WalIdentity { version: PgVersion::V18, system_id: 7, timeline: 1, segment_size: 1 << 24 };
    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn contexts(config: &SamplingConfig) -> [TransactionContexts; 2] {
        let clock = Arc::new(ManualClock::new(std::time::SystemTime::UNIX_EPOCH));
        let decider = Arc::new(ContextDecider::new(&IDENTITY, Sampler::new(config).unwrap(), clock));
        [0, 1].map(|_| TransactionContexts::new(Arc::clone(&decider), IDENTITY))
    }

    fn record(lsn: u64, xid: u32, body: RecordBody) -> WalRecord {
        WalRecord { lsn: Lsn(lsn), end_lsn: Lsn(lsn + 8), xid: Xid(xid), top_xid: Xid(0), origin: 0, body }
    }

    fn commit(lsn: u64, xid: u32, subxids: &[u32]) -> WalRecord {
        let subxids = subxids.iter().map(|x| Xid(*x)).collect();
        record(lsn, xid, RecordBody::Commit(Box::new(CommitRecord { subxids, ..CommitRecord::default() })))
    }

    fn traceparent(lsn: u64, xid: u32, text: &str) -> WalRecord {
        let message = text.as_bytes().to_vec();
        let body = LogicalMessageRecord { transactional: true, prefix: b"traceparent".to_vec(), message, ..Default::default() };
        record(lsn, xid, RecordBody::LogicalMessage(Box::new(body)))
    }

    #[test]
    fn ids_follow_from_the_place_and_are_the_same_in_every_stream() {
        let [mut a, mut b] = contexts(&SamplingConfig { ratio: 0.5, ..SamplingConfig::default() });
        let mut sampled = 0;
        for lsn in (8..8000).step_by(8) {
            let (a, b) = (a.observe(&commit(lsn, 9, &[])).unwrap(), b.observe(&commit(lsn, 9, &[])).unwrap());
            assert_eq!(a.span, b.span);
            assert_eq!(a.span.trace_id(), WalId { system_id: 7, timeline: 1 }.transaction_ids(lsn).0);
            sampled += usize::from(a.span.is_sampled());
        }
        assert!((400..600).contains(&sampled), "{sampled}");
    }

    #[test]
    fn a_transaction_runs_since_the_first_commit_beside_it() {
        let [mut c, _] = contexts(&SamplingConfig::default());
        let mut at = |lsn: u64, xid: u32, time: Option<i64>| {
            let body = time.map_or(RecordBody::Other { rmid: 10, info: 0 }, |time| {
                RecordBody::Commit(Box::new(CommitRecord { time: Timestamp(time), ..CommitRecord::default() }))
            });
            c.observe(&record(lsn, xid, body)).map(|context| context.running_since.0)
        };
        assert_eq!(at(8, 10, None), None);
        assert_eq!(at(16, 11, Some(100)), Some(100), "nobody committed beside it");
        assert_eq!(at(24, 12, None), None);
        assert_eq!(at(32, 13, Some(200)), Some(200));
        assert_eq!(at(40, 10, Some(300)), Some(100), "it was there when 11 committed");
        assert_eq!(at(48, 12, Some(400)), Some(200));
        assert_eq!(at(56, 14, Some(350)), Some(350), "and clocks that go back make no end before its begin");
    }

    #[test]
    fn commands_count_once_and_end_with_their_transaction() {
        let [mut c, _] = contexts(&SamplingConfig { ratio: 0.0, mark_commands: 3, ..SamplingConfig::default() });
        let new_cid = |top: u32, cmin, cmax| {
            let (cmin, cmax) = (CommandId(cmin), CommandId(cmax));
            record(
                8,
                top + 5,
                RecordBody::NewCid(Box::new(NewCidRecord { top_xid: Xid(top), cmin, cmax, ..Default::default() })),
            )
        };
        let none = u32::MAX;
        for (top, cmin, cmax) in
            [(10, 0, none), (10, 0, none), (10, none, 1), (10, 1, none), (10, 0, 2), (20, 0, none), (20, 1, none)]
        {
            c.observe(&new_cid(top, cmin, cmax));
        }
        c.observe(&record(16, 20, RecordBody::Abort(Box::default())));
        let first = c.observe(&commit(24, 10, &[15])).unwrap();
        assert!(first.span.is_sampled());
        assert_eq!(first.cost.commands, 3, "rows of one command count once");
        for xid in [10, 20] {
            assert!(!c.observe(&commit(32, xid, &[11])).unwrap().span.is_sampled(), "xids come back without their past");
        }
        assert!(c.commands.is_empty());
    }

    #[test]
    fn an_applications_trace_goes_on_and_its_wish_has_a_cap_alike_in_all_streams() {
        let [mut a, mut b] = contexts(&SamplingConfig { ratio: 0.0, hints_per_second: 1, ..SamplingConfig::default() });
        let mut decide = |lsn, xid| {
            let [a, b] = [&mut a, &mut b].map(|c| {
                c.observe(&traceparent(lsn, xid, PARENT));
                c.observe(&commit(lsn + 8, 1, &[xid])).unwrap()
            });
            assert_eq!(a.span, b.span);
            assert_eq!(format_traceparent(&a.span).get(..36), PARENT.get(..36));
            assert_eq!(a.application.map(|p| format_traceparent(&p)).as_deref(), Some(PARENT));
            a.span.is_sampled()
        };
        assert!(decide(8, 5));
        assert!(!decide(24, 6), "the cap of one a second");
    }

    #[test]
    fn malformed_contexts_from_outside_are_left_alone() {
        let [mut c, _] = contexts(&SamplingConfig { ratio: 0.0, ..SamplingConfig::default() });
        for text in ["", "00", "\u{1b}[2J", &PARENT.to_uppercase(), &format!("{PARENT}\n{}", "x".repeat(100_000))] {
            c.observe(&traceparent(8, 5, text));
        }
        assert!(c.observe(&commit(16, 5, &[])).unwrap().application.is_none());
    }
}
