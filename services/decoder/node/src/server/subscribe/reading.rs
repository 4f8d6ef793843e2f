//! What a stream reads from the log, and what of it becomes the next batch.

use std::collections::VecDeque;
use std::sync::Arc;

use pg_types::Lsn;
use service_kit::status::{Reason, failure};
use tonic::Status;
use walstorm_proto::EventBatch;

use super::super::assemble::{Piece, ReadBack};
use super::super::filter::Wanted;
use super::super::in_progress::InProgress;
use super::super::{internal, status};
use super::{Delivery, READ_BYTES, Stream};
use crate::output_log::{Cursor, Entry, LogError, OutputLog, Recent};

/// A transaction that is read back.
#[derive(Debug)]
pub(super) struct Back {
    /// What of it is wanted.
    read: Box<ReadBack>,
    /// The next entry to be read; absent while a task reads, and before the first is found.
    cursor: Option<Cursor>,
    /// Entries that were read.
    queue: VecDeque<Entry>,
}

/// Where a stream of transactions in progress begins: at the first block of those that are open at `position`. Blocks.
///
/// `is_new`: the client has nothing from before `position`, and gets nothing of transactions whose first blocks came before.
pub(super) fn begin_in_progress(
    log: &OutputLog,
    position: Lsn,
    is_new: bool,
    wanted: Wanted,
) -> Result<(Cursor, Delivery), LogError> {
    let live = log.seek(position)?;
    let open = log.open_at(position)?.streamed;
    let is_gone = |start: Lsn| is_new && start < position;
    let gone = open.iter().filter(|(_, streamed)| is_gone(streamed.start)).map(|(xid, _)| *xid).collect();
    let kept = || open.iter().filter(|(_, streamed)| !is_gone(streamed.start));
    let first = kept().map(|(_, streamed)| streamed.start).min();
    let wishes = InProgress::new(position, live.next(), kept().map(|(xid, _)| *xid).collect(), gone, wanted);
    let cursor = first.map_or(Ok(live), |first| log.seek(first))?;
    Ok((cursor, Delivery::InProgress(Box::new(wishes))))
}

impl Stream<'_> {
    /// Makes the next batch ready if there is one. True if everything that can be read was.
    pub(super) fn prepare(&mut self) -> Result<bool, Status> {
        while self.next.is_none() {
            if self.back.is_some() {
                if !self.read_back()? {
                    return Ok(false);
                }
                continue;
            }
            if let Some((piece, all)) = self.pieces.pop_front() {
                self.take_piece(piece, all)?;
                continue;
            }
            if let Some(entry) = self.queue.pop_front() {
                self.take(entry)?;
                continue;
            }
            if self.reading.is_some() || self.draining || self.half_closed && !self.subscriber.may_send() {
                return Ok(false);
            }
            let Some(mut cursor) = self.cursor.take() else { return Ok(false) };
            let progress = *self.output.borrow_and_update();
            let log = &self.registered.serving.log;
            match log.recent(&mut cursor, READ_BYTES) {
                Recent::Entries(entries) if entries.is_empty() => {
                    // What `progress` promises was readable before it was promised, so nothing up to there is left out.
                    if cursor.position() >= progress.end {
                        self.subscriber.on_passed(progress.decoded);
                    }
                    self.cursor = Some(cursor);
                    return Ok(true);
                }
                Recent::Entries(entries) => {
                    self.queue.extend(entries);
                    self.cursor = Some(cursor);
                }
                Recent::OnDisk => {
                    let log = Arc::clone(log);
                    self.reading = Some(tokio::task::spawn_blocking(move || {
                        let entries = log.read(&mut cursor, READ_BYTES)?;
                        Ok((cursor, entries))
                    }));
                    return Ok(false);
                }
            }
        }
        Ok(false)
    }

    /// Makes a batch of an entry, or passes it over, or takes it apart.
    fn take(&mut self, entry: Entry) -> Result<(), Status> {
        let end = (!entry.is_fragment()).then_some(entry.end);
        let stored = |entry: Entry| EventBatch::from_encoded(entry.payload);
        match &mut self.delivery {
            Delivery::InProgress(wishes) if wishes.passes_whole(&entry) => self.next = Some((stored(entry), end)),
            Delivery::InProgress(wishes) => {
                let left = wishes.apply(&entry).map_err(|error| internal(&error))?;
                let end = end.filter(|_| !wishes.is_again(&entry));
                self.put(left, end);
            }
            Delivery::OnCommit(splitter, filter) => {
                let all = filter.passes_whole(entry.prev_end);
                if !splitter.passes_whole(&entry) {
                    let pieces = splitter.split(&stored(entry), end).map_err(|error| internal(&error))?;
                    self.pieces.extend(pieces.into_iter().map(|piece| (piece, all)));
                } else if all {
                    self.next = Some((stored(entry), end));
                } else {
                    let left = filter.apply(&stored(entry)).map_err(|error| internal(&error))?;
                    self.put(left, end);
                }
            }
        }
        Ok(())
    }

    /// A batch goes out, if there is one; with it everything up to `end` is complete.
    fn put(&mut self, batch: Option<EventBatch>, end: Option<Lsn>) {
        match (batch, end) {
            (Some(batch), end) => self.next = Some((batch, end)),
            (None, Some(end)) => self.subscriber.on_passed(end),
            (None, None) => {}
        }
    }

    /// The same of whole transactions or a part of one, less what the client does not want.
    fn put_filtered(&mut self, batch: Option<EventBatch>, end: Option<Lsn>, all: bool) -> Result<(), Status> {
        let left = match (&mut self.delivery, batch) {
            (Delivery::OnCommit(_, filter), Some(batch)) if !all => filter.apply(&batch).map_err(|error| internal(&error))?,
            (_, batch) => batch,
        };
        self.put(left, end);
        Ok(())
    }

    /// Takes a part of an entry.
    fn take_piece(&mut self, piece: Piece, all: bool) -> Result<(), Status> {
        let read = match piece {
            Piece::Batch(batch, end) => return self.put_filtered(batch, end, all),
            Piece::Back(read) => read,
        };
        let Delivery::OnCommit(_, filter) = &self.delivery else { return Ok(()) };
        if filter.has(read.commit_lsn()) || read.start < self.whole_from {
            return Ok(());
        }
        if filter.wants_all_commits_only()
            && let Some(commit) = read.commit_alone()
        {
            self.put(Some(commit), Some(read.end_lsn()));
            return Ok(());
        }
        self.back = Some((Back { read, cursor: None, queue: VecDeque::new() }, all));
        Ok(())
    }

    /// Goes on with the transaction that is read back. False if that has to wait.
    fn read_back(&mut self) -> Result<bool, Status> {
        let Some((back, all)) = &mut self.back else { return Ok(true) };
        if let Some(entry) = back.queue.pop_front() {
            let taken = back.read.take(&EventBatch::from_encoded(entry.payload));
            let (batch, done) = taken.map_err(|error| internal(&error))?;
            let (end, all) = (done.then(|| back.read.end_lsn()), *all);
            if done {
                self.back = None;
            }
            self.put_filtered(batch, end, all)?;
            return Ok(true);
        }
        if self.reading.is_none() && !self.draining {
            let (log, cursor, start) = (Arc::clone(&self.registered.serving.log), back.cursor.take(), back.read.start);
            self.reading = Some(tokio::task::spawn_blocking(move || {
                let mut cursor = cursor.map_or_else(|| log.seek(start), Ok)?;
                let entries = log.read(&mut cursor, READ_BYTES)?;
                Ok((cursor, entries))
            }));
        }
        Ok(false)
    }

    /// Takes what was read from files.
    pub(super) fn on_read(&mut self, read: Result<(Cursor, Vec<Entry>), LogError>) -> Result<(), Status> {
        let (cursor, entries) = read.map_err(|error| status::log(&error))?;
        match &mut self.back {
            Some(_) if entries.is_empty() => {
                return Err(failure(Reason::Internal, "a part of a transaction is not in the output log").into());
            }
            Some((back, _)) => {
                back.queue.extend(entries);
                back.cursor = Some(cursor);
            }
            None => {
                self.queue.extend(entries);
                self.cursor = Some(cursor);
            }
        }
        Ok(())
    }
}
