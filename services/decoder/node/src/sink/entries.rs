//! Filling entries of the output log, and cutting them: whole units, or parts of one.

use decoder_core::output::Relation;
use pg_types::{Lsn, Oid, RelFileLocator};
use rustc_hash::FxHashMap;
use walstorm_proto::EventBatch;
use walstorm_proto::decoder::v1::{Event, Relation as PbRelation, event};

use super::{EventSink, FRAGMENT_BYTES, Finished};
use crate::output_log::{EntryBuffer, Mark};
use crate::server::convert;

/// What tells relations apart.
pub(super) type RelationKey = (Oid, RelFileLocator);

/// A relation that the entry explains.
#[derive(Clone, Copy, Debug)]
pub(super) struct Explained {
    /// Its number.
    number: u32,
    /// Where in the payload the event that explains it is.
    at: usize,
    /// Bytes of that event.
    len: usize,
    /// Serial of the last unit that referred to it.
    used_by: u64,
}

impl EventSink {
    /// Moves the buffer to the finished entries and begins another.
    pub(super) fn finish_entry(&mut self, end: Option<Lsn>) {
        let capacity = self.buffer.payload_len().min(FRAGMENT_BYTES) + 4096;
        let buffer = std::mem::replace(&mut self.buffer, EntryBuffer::with_capacity(capacity));
        let items = std::mem::take(&mut self.items);
        self.finished.push(Finished { buffer, end, items });
        self.spans.entry_finished();
        self.whole_len = 0;
        self.relations.clear();
    }

    /// Appends an event.
    pub(super) fn put(&mut self, kind: event::Kind) {
        self.given = true;
        if let Some(mark) = Mark::of(&kind) {
            self.buffer.mark(mark);
            self.open.apply(mark, self.whole_end);
        }
        EventBatch::put(&Event { kind: Some(kind) }, self.buffer.tail());
    }

    /// Appends an event that others of its unit may follow, cutting the entry if it has grown too large.
    pub(super) fn put_and_cut(&mut self, kind: event::Kind) {
        self.put(kind);
        if self.buffer.payload_len() >= self.fragment_bytes {
            self.cut();
        }
    }

    /// Appends what ends no unit, since something follows.
    pub(super) fn put_pending(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.put_and_cut(pending);
        }
    }

    /// Finishes the whole units of the entry, or, if there are none, the part of the one that goes on (I1).
    pub(super) fn cut(&mut self) {
        if self.items == 0 {
            self.in_fragments = true;
            self.finish_entry(None);
            return;
        }
        // The part moves to an entry of its own, behind the relations that it needs from this one.
        let (whole_len, relations) = (self.whole_len, std::mem::take(&mut self.relations));
        let mut next = EntryBuffer::with_capacity(self.buffer.payload_len() - whole_len + 4096);
        let used = || self.used.iter().filter_map(|key| Some((*key, *relations.get(key)?)));
        let mut moved = FxHashMap::default();
        for (key, explained) in used().filter(|(_, explained)| explained.at < whole_len) {
            moved.insert(key, Explained { at: next.payload_len(), ..explained });
            next.tail().extend_from_slice(&self.buffer.payload()[explained.at..explained.at + explained.len]);
        }
        let part_at = next.payload_len();
        for (key, explained) in used().filter(|(_, explained)| explained.at >= whole_len) {
            moved.insert(key, Explained { at: part_at + explained.at - whole_len, ..explained });
        }
        self.buffer.move_tail(whole_len, &mut next);
        self.finish_entry(Some(self.whole_end));
        self.buffer = next;
        self.relations = moved;
    }

    /// The entry's number of a relation, explained if it is new.
    pub(super) fn number(&mut self, relation: &Relation) -> u32 {
        let key = (relation.oid, relation.file);
        let serial = self.serial;
        if let Some(explained) = self.relations.get_mut(&key) {
            if std::mem::replace(&mut explained.used_by, serial) != serial {
                self.used.push(key);
            }
            return explained.number;
        }
        self.next_number += 1;
        let number = self.next_number;
        let (schema, name) = match relation.logged {
            Some(_) => relation.name.split_once('.').unwrap_or(("", &relation.name)),
            None => ("", ""),
        };
        let at = self.buffer.payload_len();
        self.put(event::Kind::Relation(PbRelation {
            relation_id: number,
            locator: Some(convert::locator(relation.file)),
            oid: if relation.logged.is_some() { relation.oid.0 } else { 0 },
            schema: schema.to_owned(),
            name: name.to_owned(),
        }));
        let len = self.buffer.payload_len() - at;
        self.relations.insert(key, Explained { number, at, len, used_by: serial });
        self.used.push(key);
        number
    }

    /// Appends the collected run of changes.
    pub(super) fn flush_run(&mut self) {
        if self.run_relation.take().is_none() {
            return;
        }
        let kind = event::Kind::Change(std::mem::take(&mut self.run));
        let event = Event { kind: Some(kind) };
        EventBatch::put(&event, self.buffer.tail());
        if let Some(event::Kind::Change(run)) = event.kind {
            self.run = run;
        }
        if let Some(columns) = &mut self.run.columns {
            columns.kinds.clear();
            columns.lsn_offsets.clear();
            columns.row_counts.clear();
        }
        if self.buffer.payload_len() >= self.fragment_bytes {
            self.cut();
        }
    }

    /// A unit has ended.
    pub(super) fn unit_ended(&mut self, end: Lsn) {
        self.items += 1;
        self.whole_len = self.buffer.payload_len();
        self.whole_end = end;
        if self.in_fragments || self.whole_len >= self.entry_bytes {
            self.in_fragments = false;
            self.next_number = 0;
            self.finish_entry(Some(end));
        }
    }
}
