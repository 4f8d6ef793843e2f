//! Random workloads and the records that a server writes of them.

use pg_types::record::{
    AbortRecord, AssignmentRecord, CommitRecord, HeapDelete, HeapInsert, HeapPlace, LogicalMessageRecord, OldTuple,
    PrepareRecord, TruncateRecord,
};
use pg_types::{InvalidationMessage, Oid, PgVersion, RecordBody, Xid};
use proptest::prelude::*;

use super::{DATABASE, Log, catcache, file, relcache};

/// Relations 20000 … 20007; 0 means all in a relcache message.
const RELATIONS: u32 = 8;

/// One step of a random workload; the first number chooses one of the open transactions.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Begin,
    Insert(u8, u32),
    Delete(u8, u32),
    Ddl(u8, u32),
    /// A row with values in a TOAST table.
    Toast(u8, u32),
    /// A speculative insert, confirmed or undone.
    Upsert(u8, u32, bool),
    Truncate(u8, u32),
    Message(u8),
    Savepoint(u8),
    Release(u8),
    RollbackTo(u8),
    Commit(u8),
    Abort(u8),
    Prepare(u8),
    /// COMMIT PREPARED or ROLLBACK PREPARED.
    FinishPrepared(u8, bool),
    Running,
}

/// A workload; without `tricky` there are no concurrent transactions and no rolled-back savepoints.
pub(crate) fn workload(tricky: bool) -> impl Strategy<Value = Vec<Step>> {
    let rel = 0..RELATIONS;
    let step = prop_oneof![
        2 => Just(Step::Begin),
        6 => (any::<u8>(), rel.clone()).prop_map(|(t, r)| Step::Insert(t, r)),
        1 => (any::<u8>(), rel.clone()).prop_map(|(t, r)| Step::Delete(t, r)),
        3 => (any::<u8>(), rel.clone()).prop_map(|(t, r)| Step::Ddl(t, r)),
        1 => (any::<u8>(), rel.clone()).prop_map(|(t, r)| Step::Toast(t, r)),
        1 => (any::<u8>(), rel.clone(), any::<bool>()).prop_map(|(t, r, confirmed)| Step::Upsert(t, r, confirmed)),
        1 => (any::<u8>(), rel).prop_map(|(t, r)| Step::Truncate(t, r)),
        1 => any::<u8>().prop_map(Step::Message),
        2 => any::<u8>().prop_map(Step::Savepoint),
        1 => any::<u8>().prop_map(Step::Release),
        1 => any::<u8>().prop_map(move |t| if tricky { Step::RollbackTo(t) } else { Step::Release(t) }),
        2 => any::<u8>().prop_map(Step::Commit),
        1 => any::<u8>().prop_map(Step::Abort),
        1 => any::<u8>().prop_map(Step::Prepare),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(t, commit)| Step::FinishPrepared(t, commit)),
        1 => Just(Step::Running),
    ];
    prop::collection::vec(step, 1..80)
}

/// A savepoint, or the transaction itself: what goes with it if it is rolled back.
pub(crate) struct Level {
    pub(crate) xid: u32,
    pub(crate) messages: Vec<InvalidationMessage>,
    /// Savepoints of its own that were released.
    released: Vec<u32>,
}

impl Level {
    fn of(xid: u32) -> Self {
        Self { xid, messages: vec![], released: vec![] }
    }

    /// The subtransactions that an abort record of it names.
    fn children(&self) -> impl Iterator<Item = Xid> {
        self.released.iter().copied().map(Xid)
    }
}

/// An open transaction: its levels of savepoints, the top first.
pub(crate) struct Open {
    pub(crate) levels: Vec<Level>,
    pub(crate) command: u32,
}

impl Open {
    /// What its end tells: xid, subtransactions, messages.
    fn end(&self) -> (u32, Vec<Xid>, Vec<InvalidationMessage>) {
        (self.levels[0].xid, self.subxids(), self.levels.iter().flat_map(|level| level.messages.clone()).collect())
    }

    /// All subtransactions that were not rolled back.
    fn subxids(&self) -> Vec<Xid> {
        let open = self.levels[1..].iter().map(|level| Xid(level.xid));
        open.chain(self.levels.iter().flat_map(Level::children)).collect()
    }
}

/// Turns steps into records as the version writes them.
pub(crate) struct Writer {
    pub(crate) log: Log,
    pub(crate) version: PgVersion,
    pub(crate) open: Vec<Open>,
    pub(crate) prepared: Vec<Open>,
    next_xid: u32,
    open_max: usize,
}

impl Writer {
    /// Nothing runs, and so many transactions may at once.
    pub(crate) fn new(version: PgVersion, open_max: usize) -> Self {
        Self { log: Log::consistent(1000), version, open: vec![], prepared: vec![], next_xid: 1000, open_max }
    }

    fn xid(&mut self) -> u32 {
        self.next_xid += 1;
        self.next_xid - 1
    }

    /// The chosen open transaction: its place, innermost xid, and what a record says of its top-level one.
    pub(crate) fn choose(&self, n: u8) -> Option<(usize, u32, u32)> {
        let at = usize::from(n).checked_rem(self.open.len())?;
        let levels = &self.open[at].levels;
        let (xid, top) = (levels.last()?.xid, levels[0].xid);
        Some((at, xid, if xid != top && self.version != PgVersion::V13 { top } else { 0 }))
    }

    /// Messages of a schema change of relation `rel`, a few of them twice.
    fn messages(rel: u32) -> Vec<InvalidationMessage> {
        let all = if rel == 7 { relcache(0) } else { relcache(20_000 + rel) };
        vec![catcache(57, rel * 17), catcache(38, rel % 3), catcache(57, rel * 17), all, relcache(20_000 + rel)]
    }

    pub(crate) fn step(&mut self, step: &Step) {
        match *step {
            Step::Begin if self.open.len() + self.prepared.len() < self.open_max => {
                let xid = self.xid();
                self.open.push(Open { levels: vec![Level::of(xid)], command: 0 });
            }
            Step::Begin => {}
            Step::Running => {
                let running: Vec<&Open> = self.open.iter().chain(&self.prepared).collect();
                let xids = running.iter().map(|open| Xid(open.levels[0].xid)).collect();
                let subxids = running.iter().flat_map(|open| open.subxids()).collect();
                self.log.running_list(xids, subxids, self.next_xid);
            }
            Step::Insert(n, rel) => {
                let Some((_, xid, top)) = self.choose(n) else { return };
                self.log.insert(xid, top, 20_000 + rel);
            }
            Step::Delete(n, rel) => {
                let Some((_, xid, top)) = self.choose(n) else { return };
                let delete = HeapDelete { target: file(20_000 + rel), old: OldTuple::Key, ..HeapDelete::default() };
                self.log.push(xid, top, RecordBody::Delete(delete));
            }
            Step::Ddl(n, rel) => self.ddl(n, rel),
            Step::Toast(n, rel) => {
                let Some((_, xid, top)) = self.choose(n) else { return };
                let chunk = HeapInsert { target: file(30_000 + rel), logical: true, toast: true, ..HeapInsert::default() };
                (0..3).for_each(|_| self.log.push(xid, top, RecordBody::Insert(chunk)));
                self.log.insert(xid, top, 20_000 + rel);
            }
            Step::Upsert(n, rel, confirmed) => {
                let Some((_, xid, top)) = self.choose(n) else { return };
                let target = file(20_000 + rel);
                let insert = HeapInsert { target, logical: true, speculative: true, ..HeapInsert::default() };
                self.log.push(xid, top, RecordBody::Insert(insert));
                let end = match confirmed {
                    true => RecordBody::Confirm(HeapPlace { target, ..HeapPlace::default() }),
                    false => RecordBody::Delete(HeapDelete { target, super_deletion: true, ..HeapDelete::default() }),
                };
                self.log.push(xid, top, end);
            }
            Step::Truncate(n, rel) => {
                let Some((_, xid, top)) = self.choose(n) else { return };
                let relids = vec![Oid(20_000 + rel), Oid(20_000 + (rel + 3) % RELATIONS)];
                let truncate = TruncateRecord { db: DATABASE, relids, ..TruncateRecord::default() };
                self.log.push(xid, top, RecordBody::Truncate(Box::new(truncate)));
            }
            Step::Message(n) => {
                let Some((_, xid, top)) = self.choose(n) else { return };
                let (prefix, message) = (b"p".to_vec(), vec![7; usize::from(n)]);
                let message = LogicalMessageRecord { db: DATABASE, transactional: true, prefix, message };
                self.log.push(xid, top, RecordBody::LogicalMessage(Box::new(message)));
            }
            Step::Savepoint(n) => {
                let Some((at, ..)) = self.choose(n) else { return };
                let (xid, top) = (self.xid(), self.open[at].levels[0].xid);
                self.open[at].levels.push(Level::of(xid));
                if self.version == PgVersion::V13 && xid % 2 == 0 {
                    let assignment = AssignmentRecord { top_xid: Xid(top), subxids: vec![Xid(xid)] };
                    self.log.push(xid, 0, RecordBody::Assignment(Box::new(assignment)));
                }
            }
            Step::Release(n) => {
                let Some((at, ..)) = self.choose(n).filter(|(at, ..)| self.open[*at].levels.len() > 1) else { return };
                let Some(Level { xid, messages, released }) = self.open[at].levels.pop() else { return };
                let parent = self.open[at].levels.last_mut().unwrap();
                parent.messages.extend(messages);
                parent.released.push(xid);
                parent.released.extend(released);
            }
            Step::RollbackTo(n) => {
                let Some((at, ..)) = self.choose(n).filter(|(at, ..)| self.open[*at].levels.len() > 1) else { return };
                let Some(level) = self.open[at].levels.pop() else { return };
                let abort = AbortRecord { subxids: level.children().collect(), ..AbortRecord::default() };
                self.log.push(level.xid, 0, RecordBody::Abort(Box::new(abort)));
            }
            Step::Commit(n) => self.commit(n),
            Step::Prepare(n) => {
                let Some((at, ..)) = self.choose(n) else { return };
                let open = self.open.swap_remove(at);
                let (xid, subxids, messages) = open.end();
                let gid = format!("g{xid}").into_bytes();
                let prepare = PrepareRecord { db: DATABASE, gid, subxids, messages, ..PrepareRecord::default() };
                self.log.push(xid, 0, RecordBody::Prepare(Box::new(prepare)));
                self.prepared.push(open);
            }
            Step::FinishPrepared(n, commit) => {
                let Some(at) = usize::from(n).checked_rem(self.prepared.len()) else { return };
                let (xid, subxids, messages) = self.prepared.swap_remove(at).end();
                let (prepared_xid, gid, db) = (Xid(xid), format!("g{xid}").into_bytes(), DATABASE);
                let body = match commit {
                    true => {
                        let record = CommitRecord { prepared_xid, gid, db, subxids, messages, ..CommitRecord::default() };
                        RecordBody::Commit(Box::new(record))
                    }
                    false => {
                        RecordBody::Abort(Box::new(AbortRecord { prepared_xid, gid, db, subxids, ..AbortRecord::default() }))
                    }
                };
                self.log.push(0, 0, body);
            }
            Step::Abort(n) => {
                let Some((at, ..)) = self.choose(n) else { return };
                let open = self.open.swap_remove(at);
                let abort = AbortRecord { subxids: open.subxids(), ..AbortRecord::default() };
                self.log.push(open.levels[0].xid, 0, RecordBody::Abort(Box::new(abort)));
            }
        }
    }

    /// A command that changes a catalog: its new-cid record, then its messages, now (14) or at the commit (13).
    fn ddl(&mut self, n: u8, rel: u32) {
        let Some((at, xid, top)) = self.choose(n) else { return };
        // The catalog's own row: nothing to decode, but it gives the transaction its base snapshot.
        self.log.catalog_row(xid, top);
        self.log.new_cid(xid, top, self.open[at].command);
        self.open[at].command += 1;
        let messages = Self::messages(rel);
        if self.version != PgVersion::V13 {
            self.log.invalidations(xid, top, &messages);
        }
        self.open[at].levels.last_mut().unwrap().messages.extend(messages);
    }

    fn commit(&mut self, n: u8) {
        let Some((at, ..)) = self.choose(n) else { return };
        let open = self.open.swap_remove(at);
        let (top, subxids, messages) = open.end();
        let subxids: Vec<u32> = subxids.iter().map(|xid| xid.0).collect();
        self.log.commit(top, &subxids, messages);
    }
}

/// The records of a workload.
pub(crate) fn write(steps: &[Step], version: PgVersion, open_max: usize) -> Log {
    let mut writer = Writer::new(version, open_max);
    steps.iter().for_each(|step| writer.step(step));
    writer.log
}
