//! Fills batches from the log, in a blocking task.
//!
//! A batch is closed once it is large enough, when the log has no more for now, or after so much WAL that a consumer of few
//! records still hears of progress. A record that is large by itself goes out alone, in fragments. So no message passes 1 MiB:
//! a batch is closed at `target_bytes` ≤ [`PIECE_BYTES`], and the record that takes it there has less than [`PIECE_BYTES`].

use std::collections::VecDeque;

use pg_types::Lsn;
use pg_wal::{RawRecord, WalReader};
use service_kit::telemetry::context::to_message;
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::wal::v1 as wal;

use pb::wal_batch::Body;

use super::raw::{self, RawEncoder};
use super::typed::{Typed, TypedEncoder};
use crate::contexts::{Context, TransactionContexts};
use crate::error::Result;
use crate::wal_log::{LogEnd, end_error, read_error};

/// A record of more bytes on the wire goes out in fragments, each of at most so many.
pub(crate) const PIECE_BYTES: usize = 448 << 10;
/// Most WAL that is read for one batch, whatever of it is encoded.
const WAL_BYTES_MAX: u64 = 16 << 20;

/// Upper bound of a context without tracestate on the wire: a traceparent of 55 bytes, an xid, an LSN, headers.
const CONTEXT_BYTES: usize = 90;

/// What a look at the log gave.
#[derive(Debug)]
pub(crate) enum Filled {
    /// A batch to send.
    Batch(Box<Outgoing>),
    /// Nothing of what was read is to be sent; there is more to read.
    Progress,
    /// The log has no more for now.
    CaughtUp,
}

/// A batch on its way.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// The message.
    pub(crate) batch: pb::WalBatch,
    /// Where its last record ends; unset for a fragment that is not the last.
    pub(crate) end: Option<Lsn>,
    /// Its bytes, as credits count them.
    pub(crate) bytes: u64,
    /// Records in it.
    pub(crate) records: u64,
    /// Transactions that commit in it.
    pub(crate) commits: u64,
    /// The sampled ones among them.
    pub(crate) sampled: Vec<Context>,
}

/// How a stream wants its batches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchSettings {
    /// Encoding.
    pub(crate) encoding: pb::Encoding,
    /// Only sampled transactions have their context in the batch.
    pub(crate) sampled_only: bool,
    /// Size at which a batch is closed, at most [`PIECE_BYTES`].
    pub(crate) target_bytes: usize,
}

/// Reads one stream's WAL.
#[derive(Debug)]
pub(crate) struct BatchReader {
    /// The log.
    reader: WalReader,
    /// The batch that is being filled.
    open: OpenBatch,
    /// Fragments of a large record; they go out after the batch before them.
    fragments: VecDeque<Outgoing>,
    /// Everything before was given out or is left out.
    position: Lsn,
}

impl BatchReader {
    /// Reads from the first whole record at or after `from`, which is where the reader was opened. Blocks on the disk.
    ///
    /// # Errors
    /// The log cannot be read. Damage is told by [`BatchReader::fill`].
    pub(crate) fn open(
        reader: WalReader,
        from: Lsn,
        end: LogEnd,
        settings: BatchSettings,
        contexts: TransactionContexts,
    ) -> Result<Self> {
        let open = OpenBatch::new(settings, contexts);
        let mut this = Self { reader, open, fragments: VecDeque::new(), position: from };
        this.set_end(end);
        if this.take_record()? {
            let fragment = this.fragments.front().map(|f| Lsn(f.batch.start_lsn));
            this.position = fragment.or(this.open.start).unwrap_or(from);
        }
        Ok(this)
    }

    /// Everything before was given out or is left out.
    pub(crate) fn position(&self) -> Lsn {
        self.position
    }

    /// The log has grown or was closed.
    pub(crate) fn set_end(&mut self, end: LogEnd) {
        self.reader.set_limit(end.read_limit());
    }

    /// Fills the next batch. Blocks on the disk.
    ///
    /// # Errors
    /// The log is damaged at the present position, and everything before was given out.
    pub(crate) fn fill(&mut self) -> Result<Filled> {
        let mut more = true;
        while more && self.fragments.is_empty() && !self.open.is_large_enough() {
            more = self.take_record()?;
        }
        let read_to = self.open.end;
        if let Some(outgoing) = self.open.close().or_else(|| self.fragments.pop_front()) {
            self.position = self.position.max(outgoing.end.unwrap_or_default());
            return Ok(Filled::Batch(Box::new(outgoing)));
        }
        self.position = self.position.max(read_to);
        match self.reader.end() {
            None => Ok(Filled::Progress),
            Some(end) if end.is_complete() => {
                self.position = self.position.max(end.lsn);
                Ok(Filled::CaughtUp)
            }
            Some(end) => Err(end_error(end, &self.reader.identity())),
        }
    }

    /// Reads one record into the open batch or into fragments; false at an end.
    fn take_record(&mut self) -> Result<bool> {
        let Some(record) = self.reader.next().map_err(read_error)? else { return Ok(false) };
        self.open.push(&record, &mut self.fragments)?;
        Ok(true)
    }
}

/// The encoding in use.
#[derive(Debug)]
enum Encoder {
    /// Verbatim.
    Raw(RawEncoder),
    /// As messages.
    Typed(TypedEncoder),
}

/// A batch that is being filled.
#[derive(Debug)]
struct OpenBatch {
    /// How it is wanted.
    settings: BatchSettings,
    /// Its records.
    encoder: Encoder,
    /// Knows the transactions that commit.
    transactions: TransactionContexts,
    /// Contexts for the message.
    contexts: Vec<wal::TransactionContext>,
    /// The sampled ones among them.
    sampled: Vec<Context>,
    /// Start of the first record that was looked at.
    start: Option<Lsn>,
    /// End of the last one.
    end: Lsn,
    /// Records that are in it.
    records: u64,
    /// Transactions that commit in it.
    commits: u64,
    /// Upper bound of its records' size on the wire.
    wire_bytes: usize,
    /// The size of its contexts on the wire.
    context_bytes: usize,
}

impl OpenBatch {
    /// An empty one.
    fn new(settings: BatchSettings, transactions: TransactionContexts) -> Self {
        let encoder = match settings.encoding {
            pb::Encoding::Typed => Encoder::Typed(TypedEncoder::default()),
            _ => Encoder::Raw(RawEncoder::default()),
        };
        Self {
            settings,
            encoder,
            transactions,
            contexts: Vec::new(),
            sampled: Vec::new(),
            start: None,
            end: Lsn::INVALID,
            records: 0,
            commits: 0,
            wire_bytes: 0,
            context_bytes: 0,
        }
    }

    /// Time to send it, or at least to look up.
    fn is_large_enough(&self) -> bool {
        let read = self.start.map_or(0, |start| self.end.0.saturating_sub(start.0));
        self.wire_bytes + self.context_bytes >= self.settings.target_bytes || read >= WAL_BYTES_MAX
    }

    /// Adds a record; one that is too large for a batch becomes fragments.
    fn push(&mut self, record: &RawRecord<'_>, fragments: &mut VecDeque<Outgoing>) -> Result<()> {
        let (pieces, context) = match &mut self.encoder {
            Encoder::Raw(encoder) => {
                let context = self.transactions.observe_raw(record)?;
                let cost = RawEncoder::cost(record);
                if cost > PIECE_BYTES {
                    (raw::fragments(record, PIECE_BYTES), context)
                } else {
                    encoder.push(record);
                    self.records += 1;
                    self.wire_bytes += cost;
                    (Vec::new(), context)
                }
            }
            Encoder::Typed(encoder) => {
                let decoded = record.decode(self.transactions.profile()).map_err(|e| self.transactions.decode_error(&e))?;
                let context = self.transactions.observe(&decoded);
                let typed = encoder.push(decoded, PIECE_BYTES);
                self.wire_bytes = encoder.wire_bytes();
                match typed {
                    Typed::LeftOut => (Vec::new(), context),
                    Typed::Taken => {
                        self.records += 1;
                        (Vec::new(), context)
                    }
                    Typed::Large(pieces) => (pieces, context),
                }
            }
        };
        if pieces.is_empty() {
            self.start.get_or_insert(record.lsn);
            self.end = record.end_lsn;
            self.add_context(context);
        } else {
            fragments.extend(self.fragments(record, pieces, context));
        }
        Ok(())
    }

    /// Notes the context of a transaction that commits.
    fn add_context(&mut self, context: Option<Context>) {
        let Some(context) = context else { return };
        self.commits += 1;
        let sampled = context.span.is_sampled();
        if sampled || !self.settings.sampled_only {
            let message = to_message(context.xid.0, context.commit_lsn.0, &context.span);
            self.context_bytes += CONTEXT_BYTES + message.tracestate.len();
            self.contexts.push(message);
        }
        if sampled {
            self.sampled.push(context);
        }
    }

    /// The batch, if anything is in it; what was read and left out is forgotten.
    fn close(&mut self) -> Option<Outgoing> {
        let start = self.start.take();
        let (records, commits) = (std::mem::take(&mut self.records), std::mem::take(&mut self.commits));
        let bytes = (std::mem::take(&mut self.wire_bytes) + std::mem::take(&mut self.context_bytes)) as u64;
        if records == 0 {
            return None;
        }
        let body = match &mut self.encoder {
            Encoder::Raw(encoder) => encoder.finish(),
            Encoder::Typed(encoder) => encoder.finish(),
        };
        let batch = pb::WalBatch {
            start_lsn: start?.0,
            end_lsn: self.end.0,
            body: Some(body),
            fragment: false,
            contexts: std::mem::take(&mut self.contexts),
            ..pb::WalBatch::default()
        };
        let sampled = std::mem::take(&mut self.sampled);
        Some(Outgoing { batch, end: Some(self.end), bytes, records, commits, sampled })
    }

    /// The messages of a large record; the last one has its context.
    fn fragments(&self, record: &RawRecord<'_>, pieces: Vec<Body>, context: Option<Context>) -> Vec<Outgoing> {
        let count = pieces.len();
        let mut outgoing: Vec<Outgoing> = pieces
            .into_iter()
            .enumerate()
            .map(|(index, body)| {
                let last = index + 1 == count;
                let batch = pb::WalBatch {
                    start_lsn: record.lsn.0,
                    end_lsn: record.end_lsn.0,
                    body: Some(body),
                    fragment: !last,
                    ..pb::WalBatch::default()
                };
                let bytes = prost::Message::encoded_len(&batch) as u64;
                let end = last.then_some(record.end_lsn);
                Outgoing { batch, end, bytes, records: u64::from(last), commits: 0, sampled: Vec::new() }
            })
            .collect();
        if let (Some(context), Some(last)) = (context, outgoing.last_mut()) {
            last.commits = 1;
            let sampled = context.span.is_sampled();
            if sampled || !self.settings.sampled_only {
                last.batch.contexts.push(to_message(context.xid.0, context.commit_lsn.0, &context.span));
            }
            last.sampled.extend(sampled.then_some(context));
        }
        outgoing
    }
}
