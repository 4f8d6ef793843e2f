//! `StreamInvalidations`: what owners of schema caches have to drop, one message a catalog-changing commit.
//!
//! Messages count when they are committed, so those of single commands (XACT INVALIDATIONS) are passed over: the commit record has
//! them all, and for a transaction that never took an xid the STANDBY INVALIDATIONS record of its commit. In-place updates and
//! relation maps count at once. Whoever falls behind the kept WAL is told to drop
//! everything, never nothing.

use std::sync::Arc;
use std::time::Duration;

use pg_types::{InvalidationMessage, Lsn, Oid, RecordBody, WalRecord};
use pg_wal::WalReader;
use service_kit::telemetry::context::to_message;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::wal::v1 as wal;

use pb::stream_invalidations_response::Kind;

use super::{State, convert};
use crate::contexts::{Context, TransactionContexts};
use crate::error::{Error, Result};
use crate::wal_log::{LogEnd, WalLog, end_error, read_error};

/// Most messages in one response: 20,000 of the largest kind are 400 kB.
const MESSAGES_MAX: usize = 20_000;
/// Messages that are read ahead, besides those of one more commit.
const MESSAGES_AHEAD: usize = MESSAGES_MAX;
/// Most WAL that is read in one go, so that a quiet stream hears of progress.
const WAL_BYTES_MAX: u64 = 64 << 20;
/// Bounds of the keepalive interval.
const KEEPALIVE_RANGE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(3600));

/// Where responses go.
type Responses = mpsc::Sender<Result<pb::StreamInvalidationsResponse, Status>>;

/// Runs one stream to its end, and tells the client how it ended.
pub(super) async fn run(state: Arc<State>, request: pb::StreamInvalidationsRequest, responses: Responses) {
    let ended = tokio::select! {
        ended = stream(&state, &request, &responses) => ended,
        () = responses.closed() => return,
        () = state.drain.stopping() => Err(Error::Draining),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "stream of invalidations ended");
        let _ = responses.send(Err(error.into())).await;
    }
}

/// Sends one response; an error only if nobody listens, which `run` notices itself.
async fn send(responses: &Responses, kind: Kind) {
    let _ = responses.send(Ok(pb::StreamInvalidationsResponse { kind: Some(kind) })).await;
}

/// The life of a stream. It ends by an error only.
async fn stream(state: &State, request: &pb::StreamInvalidationsRequest, responses: &Responses) -> Result<()> {
    let (min, max) = KEEPALIVE_RANGE;
    let default = Duration::from_secs(10);
    let interval = convert::duration_field("keepalive_interval", request.keepalive_interval, default, min, max)?;
    let mut end = state.log.subscribe();
    let mut source = Source::open(state, request, end.borrow().lsn)?;
    send(responses, Kind::Started(source.started())).await;
    let mut keepalive_at = Instant::now() + interval;
    let mut told_end = None;
    loop {
        let limit = *end.borrow_and_update();
        let (back, read) = source.read(limit).await?;
        source = back;
        for told in read.told {
            for invalidations in told.fragments() {
                send(responses, Kind::Invalidations(invalidations)).await;
                keepalive_at = Instant::now() + interval;
            }
        }
        if state.drain.is_draining() {
            let (grace, resume_lsn) = (Some(convert::duration(state.limits.grace)), source.position.0);
            send(responses, Kind::Draining(wal::Draining { grace, resume_lsn })).await;
            return Err(Error::Draining);
        }
        // One who waits for the end should not have to wait for the next keepalive as well.
        let tell_end = read.caught_up && limit.closed && told_end != Some(limit);
        if read.caught_up && !tell_end {
            tokio::select! {
                _ = end.changed() => {}
                () = tokio::time::sleep_until(keepalive_at) => {}
                () = state.drain.draining() => {}
            }
        }
        if tell_end || Instant::now() >= keepalive_at {
            let keepalive = pb::Keepalive {
                wal_end_lsn: limit.lsn.0,
                progress_lsn: source.position.0,
                reply_requested: false,
                server_time: Some(convert::timestamp_ms(state.now_ms())),
                end_of_source: tell_end,
            };
            send(responses, Kind::Keepalive(keepalive)).await;
            keepalive_at = Instant::now() + interval;
            told_end = told_end.or(tell_end.then_some(limit));
        }
    }
}

/// What one look at the log gave.
struct Read {
    /// What is to be told, in order.
    told: Vec<Told>,
    /// The log has no more for now.
    caught_up: bool,
}

/// What one record is told as.
struct Told {
    /// The response, without its messages.
    head: pb::Invalidations,
    /// Where the record ends.
    end_lsn: Lsn,
    /// The messages.
    messages: Vec<InvalidationMessage>,
}

impl Told {
    /// The responses, made one at a time: a commit may have more messages than should be in memory twice.
    fn fragments(&self) -> impl Iterator<Item = pb::Invalidations> {
        let count = self.messages.chunks(MESSAGES_MAX).len().max(1);
        (0..count).map(move |index| {
            let last = index + 1 == count;
            pb::Invalidations {
                // Whoever resumes after a fragment gets the commit again, not its rest.
                end_lsn: if last { self.end_lsn.0 } else { self.head.commit_lsn },
                messages: self.messages.chunks(MESSAGES_MAX).nth(index).and_then(convert::invalidation_columns),
                fragment: !last,
                ..self.head.clone()
            }
        })
    }
}

/// Reads one stream's messages.
struct Source {
    /// The log.
    log: WalLog,
    /// The reader, once the first look was taken; a new one after WAL was removed under it.
    reader: Option<WalReader>,
    /// Everything before was told.
    position: Lsn,
    /// History before `position` was lost and the client does not know.
    lost: bool,
    /// Trace contexts.
    contexts: TransactionContexts,
    /// Only messages for this database; invalid: all.
    db: Oid,
}

impl Source {
    /// At the position asked for, or at the oldest WAL if that is gone.
    fn open(state: &State, request: &pb::StreamInvalidationsRequest, end: Lsn) -> Result<Self> {
        let asked = convert::optional_lsn(request.from_lsn).unwrap_or(end);
        let (position, lost) = match state.log.check_start(asked) {
            Ok(()) => (asked, false),
            Err(Error::LsnRemoved { oldest, .. }) => (oldest, true),
            Err(error) => return Err(error),
        };
        let contexts = TransactionContexts::new(Arc::clone(&state.decider), state.log.identity());
        Ok(Self { log: state.log.clone(), reader: None, position, lost, contexts, db: Oid(request.database_oid) })
    }

    /// The first response.
    fn started(&self) -> pb::InvalidationsStarted {
        let identity = self.log.identity();
        pb::InvalidationsStarted {
            system_id: identity.system_id,
            timeline: identity.timeline,
            pg_version: identity.version.major(),
            start_lsn: self.position.0,
        }
    }

    /// Takes a look at the log, in a blocking task.
    async fn read(self, limit: LogEnd) -> Result<(Self, Read)> {
        let mut this = self;
        let work = move || {
            let read = this.read_blocking(limit);
            read.map(|read| (this, read))
        };
        service_kit::blocking::spawn(work).await.map_err(|e| Error::Internal(format!("the reader of WAL failed: {e}")))?
    }

    /// Reads until something is to be told, or nothing more is there. Blocks on the disk.
    fn read_blocking(&mut self, limit: LogEnd) -> Result<Read> {
        let (mut told, mut messages) = (Vec::new(), 0);
        if self.position < self.log.oldest() {
            // Retention was faster than this stream.
            (self.position, self.lost, self.reader) = (self.log.oldest(), true, None);
        }
        if std::mem::take(&mut self.lost) {
            let head = pb::Invalidations { everything: true, ..Default::default() };
            told.push(Told { head, end_lsn: self.position, messages: Vec::new() });
        }
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => self.log.reader(self.position)?,
        };
        reader.set_limit(limit.read_limit());
        let start = self.position;
        let mut caught_up = false;
        while messages < MESSAGES_AHEAD && self.position.0 - start.0 < WAL_BYTES_MAX {
            let Some(record) = reader.next().map_err(read_error)? else {
                caught_up = true;
                break;
            };
            let (lsn, end_lsn) = (record.lsn, record.end_lsn);
            debug_assert!(self.position <= lsn, "a reader gives whole records from where it was opened on");
            if record.class().concerns_caches() {
                let decoded = record.decode(self.contexts.profile()).map_err(|e| self.contexts.decode_error(&e))?;
                let context = self.contexts.observe(&decoded);
                if let Some(one) = self.tell(decoded, context) {
                    messages += one.messages.len();
                    told.push(one);
                }
            }
            self.position = end_lsn;
        }
        if caught_up && let Some(end) = reader.end() {
            if !end.is_complete() {
                if told.is_empty() && self.position >= self.log.oldest() {
                    return Err(end_error(end, &self.log.identity()));
                }
                // Tell what was read; the next look finds the same end, or that WAL was removed.
                caught_up = false;
            } else {
                self.position = self.position.max(end.lsn.min(limit.lsn));
            }
        }
        self.reader = Some(reader);
        Ok(Read { told, caught_up })
    }

    /// What one record is told as, if it tells anything.
    fn tell(&self, record: WalRecord, context: Option<Context>) -> Option<Told> {
        let WalRecord { lsn, end_lsn, xid, body, .. } = record;
        let (xid, db, commit_time, mut messages) = match body {
            RecordBody::Commit(r) => {
                let xid = if r.prepared_xid.is_valid() { r.prepared_xid } else { xid };
                (xid.0, r.db, Some(convert::timestamp(r.time)), r.messages)
            }
            RecordBody::StandbyInvalidations(r) => (0, r.db, None, r.messages),
            RecordBody::Inplace(r) => (0, r.db, None, r.messages),
            RecordBody::Relmap(r) => (0, r.db, None, vec![InvalidationMessage::Relmap { db: r.db }]),
            _ => return None,
        };
        messages.retain(|m| !self.db.is_valid() || m.concerns(self.db));
        if messages.is_empty() {
            return None;
        }
        let context = context.map(|c| to_message(c.xid.0, c.commit_lsn.0, &c.span));
        let head = pb::Invalidations { xid, commit_lsn: lsn.0, database_oid: db.0, commit_time, context, ..Default::default() };
        Some(Told { head, end_lsn, messages })
    }
}
