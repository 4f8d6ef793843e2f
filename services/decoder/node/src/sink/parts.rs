//! Transactions that are given out before their commit: blocks, what of them the log has already, and what ends give.

use decoder_core::output::DecodedTransaction;
use opentelemetry::trace::SpanContext;
use pg_types::{Lsn, Work, Xid};
use walstorm_proto::decoder::v1::{Commit, Prepare, StreamStart, event};

use super::EventSink;
use crate::server::convert;

/// The block that is being given out.
#[derive(Debug)]
pub(super) struct Block {
    /// The top-level transaction.
    pub(super) xid: Xid,
    /// Its start was given out; of one that goes on for another decoder's it waits for the first change.
    pub(super) started: bool,
    /// Changes before this one are in the log (I2), and so many rows of its record.
    pub(super) skipped: Option<(Lsn, u32)>,
    /// The last record that was shown, and rows of it.
    pub(super) last: (Lsn, u32),
}

impl EventSink {
    /// Begins to give out a transaction or a block.
    pub(super) fn begin_part(&mut self) {
        self.put_pending();
        self.row_count = 0;
        self.meter.begin();
    }

    /// The (sub)transaction that events of a block tell; 0 outside of one.
    pub(super) fn block_xid(&self, xid: Xid) -> u32 {
        if self.block.is_some() { xid.0 } else { 0 }
    }

    /// Whether one event of the record at `lsn` is in the log already (I2), or, of several rows, how many are not.
    pub(super) fn left_of(&mut self, lsn: Lsn, rows: u32) -> u32 {
        let Some(Block { skipped: Some((to, seen)), .. }) = &mut self.block else { return rows };
        match lsn.cmp(to) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Equal => {
                let known = rows.min(*seen);
                *seen -= known;
                rows - known
            }
            std::cmp::Ordering::Greater => rows,
        }
    }

    /// An event of the record at `lsn` follows: begins the block if that waits, and notes how far it is.
    pub(super) fn in_block(&mut self, lsn: Lsn, rows: u32) {
        let Some(block) = &mut self.block else { return };
        match &mut block.last {
            (last, sum) if *last == lsn => *sum += rows,
            last => *last = (lsn, rows),
        }
        if !std::mem::replace(&mut block.started, true) {
            let xid = block.xid.0;
            self.put(event::Kind::StreamStart(StreamStart { xid, first: false, lsn: lsn.0 }));
        }
    }

    /// The commit event of a transaction, which is noted as decoded: given out whole here, or in blocks before.
    pub(super) fn finish_transaction(
        &mut self,
        transaction: &DecodedTransaction,
        context: Option<SpanContext>,
        cpu_ns: u64,
    ) -> Commit {
        let trace_id = context.as_ref().map(|c| u128::from_be_bytes(c.trace_id().to_bytes()));
        let nonzero = |work: Work| (work != Work::default()).then(|| Box::new(convert::work(&work)));
        self.totals.transactions += 1;
        self.totals.rows += self.row_count;
        self.totals.work += transaction.work;
        self.costs.push(convert::transaction_cost(transaction, self.row_count, cpu_ns, trace_id));
        Commit {
            xid: transaction.xid.0,
            commit_lsn: transaction.commit_lsn.0,
            end_lsn: transaction.end_lsn.0,
            commit_time: Some(convert::timestamp(transaction.commit_time)),
            subxids: transaction.subxids.iter().map(|xid| xid.0).collect(),
            event_count: transaction.changes() + transaction.messages.logical,
            messages: convert::invalidation_counts(transaction).map(Box::new),
            work: nonzero(transaction.work),
            cpu_ns,
            context: context
                .map(|context| Box::new(convert::transaction_context(transaction.xid, transaction.commit_lsn, &context))),
            origin: convert::origin(transaction.origin),
        }
    }

    /// The same of one that came in blocks.
    pub(super) fn finish_streamed(&mut self, transaction: &DecodedTransaction, context: Option<SpanContext>) -> Commit {
        self.row_count = transaction.relations.iter().map(|r| r.insert + r.update + r.delete).sum();
        let cpu_ns = self.block_cpu_ns.remove(&transaction.xid).unwrap_or(0);
        Commit { event_count: 0, ..self.finish_transaction(transaction, context, cpu_ns) }
    }

    /// A prepared transaction is complete, whole or in blocks.
    pub(super) fn prepared(&mut self, transaction: &DecodedTransaction, sums: Commit, streamed: bool) {
        self.pending = Some(event::Kind::Prepare(Prepare {
            gid: transaction.gid.clone().into(),
            transaction: Some(Box::new(sums)),
            first_lsn: transaction.first_lsn.0,
            streamed,
            end_lsn: 0,
        }));
    }
}
