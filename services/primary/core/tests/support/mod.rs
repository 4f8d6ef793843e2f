//! Records as lines that two servers can be compared by: what the catalog and transaction model must say, without what depends on
//! where rows happen to lie or on the clock. Xids and oids of users' objects are numbered in the order of appearance.

pub(crate) mod pg_waldump;
pub(crate) mod statement_lines;

use std::collections::BTreeMap;
use std::path::Path;

use pg_types::record::{HeapLock, PruneReason, PruneRecord};
use pg_types::{CommandId, InvalidationMessage, Oid, PgVersion, RecordBody, RelFileLocator, WalRecord, Xid};
use pg_wal::{WalDir, WalReader};

/// Numbers things in the order in which they appear.
#[derive(Default)]
struct Numbers(BTreeMap<u32, usize>);

impl Numbers {
    fn name(&mut self, letter: char, id: u32) -> String {
        let next = self.0.len() + 1;
        format!("{letter}{}", self.0.entry(id).or_insert(next))
    }
}

/// Writes lines.
#[derive(Default)]
pub(crate) struct Lines {
    oids: Numbers,
    xids: Numbers,
}

impl Lines {
    /// All records that have a line.
    pub(crate) fn of<'a>(records: impl Iterator<Item = &'a WalRecord>) -> Vec<String> {
        let mut lines = Lines::default();
        records.filter_map(|record| lines.line(record)).collect()
    }

    /// An oid or file number: itself if it is the system's.
    fn oid(&mut self, oid: u32) -> String {
        if oid < Oid::FIRST_NORMAL.0 { oid.to_string() } else { self.oids.name('r', oid) }
    }

    fn xid(&mut self, xid: Xid) -> String {
        if xid.is_valid() { self.xids.name('x', xid.0) } else { "-".to_owned() }
    }

    fn oids(&mut self, files: &[RelFileLocator]) -> String {
        files.iter().map(|file| self.oid(file.rel)).collect::<Vec<_>>().join(" ")
    }

    fn xids(&mut self, xids: &[Xid]) -> String {
        xids.iter().map(|xid| self.xid(*xid)).collect::<Vec<_>>().join(" ")
    }

    fn messages(&mut self, messages: &[InvalidationMessage]) -> String {
        let texts = messages.iter().map(|message| match *message {
            InvalidationMessage::Catcache { cache_id, .. } => format!("catcache {cache_id}"),
            InvalidationMessage::Relcache { rel, .. } => format!("relcache {}", self.oid(rel.0)),
            InvalidationMessage::Snapshot { rel, .. } => format!("snapshot {}", self.oid(rel.0)),
            other => format!("{other:?}"),
        });
        texts.collect::<Vec<_>>().join(", ")
    }

    fn lock(&mut self, word: &str, r: &HeapLock) -> String {
        format!("{word} {} {:02x}", self.oid(r.target.rel), r.infobits)
    }

    fn prune(&mut self, word: &str, r: &PruneRecord) -> String {
        // Frozen rows have xid 2, where versions say so.
        let horizon = if r.conflict_horizon.is_normal() { self.xid(r.conflict_horizon) } else { "-".to_owned() };
        let reason = match r.reason {
            // Up to 16 records do not tell the first from the second.
            PruneReason::OnAccess | PruneReason::VacuumScan => "first pass",
            PruneReason::VacuumCleanup => "second pass",
            PruneReason::Freeze => "freeze",
            PruneReason::CleanupInfo => "info",
        };
        let counts = (r.redirected, r.dead, r.unused, r.frozen);
        format!(
            "{word} {} {reason} {counts:?} conflicts {horizon} {}",
            self.oid(r.target.rel),
            said(&[(r.is_catalog, "catalog")])
        )
    }

    /// A record's line, none for kinds that depend on where rows lie, and for pages of indexes.
    pub(crate) fn line(&mut self, record: &WalRecord) -> Option<String> {
        use RecordBody as B;
        let is_catalog = |file: &RelFileLocator| file.rel < Oid::FIRST_NORMAL.0;
        let xid = self.xid(record.xid);
        let text = match &record.body {
            B::StandbyLocks(locks) => {
                // A server lists held locks in the order of its hash table.
                let mut rels: Vec<u32> = locks.iter().map(|lock| lock.rel.0).collect();
                rels.sort_unstable();
                let rels: Vec<String> = rels.iter().map(|rel| self.oid(*rel)).collect();
                format!("STANDBY_LOCK {} {}", self.xid(locks[0].xid), rels.join(" "))
            }
            B::SmgrCreate { target, .. } => format!("SMGR_CREATE {}", self.oid(target.rel)),
            B::SmgrTruncate { target, blocks, flags } => format!("SMGR_TRUNCATE {} {blocks} {flags}", self.oid(target.rel)),
            B::NewCid(r) => {
                format!("NEW_CID {} {} {} {}", self.oid(r.target.rel), cid(r.cmin), cid(r.cmax), cid(r.combocid))
            }
            B::Insert(r) => {
                let words = [(r.logical, "logical"), (r.speculative, "speculative"), (r.toast, "toast")];
                format!("INSERT {} {}", self.oid(r.target.rel), said(&words))
            }
            B::MultiInsert(r) if !is_catalog(&r.target) => {
                format!("MULTI_INSERT {} {} {}", self.oid(r.target.rel), r.ntuples, said(&[(r.logical, "logical")]))
            }
            B::Delete(r) => {
                let words = [(r.super_deletion, "super"), (r.no_logical, "not logical")];
                format!("DELETE {} {:?} {}", self.oid(r.target.rel), r.old, said(&words))
            }
            B::Update(r) if is_catalog(&r.target) => format!("UPDATE {}", self.oid(r.target.rel)),
            B::Update(r) => {
                let words = [(r.hot, "hot"), (r.logical, "logical")];
                format!("UPDATE {} {:?} {}", self.oid(r.target.rel), r.old, said(&words))
            }
            B::Confirm(r) => format!("CONFIRM {}", self.oid(r.target.rel)),
            B::Lock(r) if !is_catalog(&r.target) => self.lock("LOCK", r),
            B::LockUpdated(r) if !is_catalog(&r.target) => self.lock("LOCK_UPDATED", r),
            B::Inplace(r) => format!("INPLACE {}: {}", self.oid(r.target.rel), self.messages(&r.messages)),
            B::Prune(r) if !is_catalog(&r.target) => self.prune("PRUNE", r),
            B::Visible(r) if !is_catalog(&r.target) => self.prune("VISIBLE", r),
            B::Truncate(r) => {
                let relids: Vec<String> = r.relids.iter().map(|oid| self.oid(oid.0)).collect();
                format!("TRUNCATE {}", relids.join(" "))
            }
            B::XactInvalidations(messages) => format!("INVALIDATIONS {}", self.messages(messages)),
            B::StandbyInvalidations(r) => format!("STANDBY_INVALIDATIONS {}", self.messages(&r.messages)),
            B::Assignment(r) => format!("ASSIGNMENT {}: {}", self.xid(r.top_xid), self.xids(&r.subxids)),
            B::Commit(_) | B::Abort(_) | B::Prepare(_) => self.end(&record.body),
            B::RunningXacts(r) => format!(
                "RUNNING {} subs {} {}",
                self.xids(&r.xids),
                self.xids(&r.subxids),
                said(&[(r.subxid_overflow, "overflowed")])
            ),
            B::LogicalMessage(r) => {
                format!("MESSAGE {} {}", said(&[(r.transactional, "transactional")]), String::from_utf8_lossy(&r.prefix))
            }
            B::CheckpointRedo => "CHECKPOINT_REDO".to_owned(),
            B::Checkpoint(r) => format!("CHECKPOINT {}", said(&[(r.shutdown, "shutdown")])),
            B::Switch => "SWITCH".to_owned(),
            _ => return None,
        };
        let top = if record.top_xid.is_valid() { format!(" of {}", self.xid(record.top_xid)) } else { String::new() };
        let origin = if record.origin > 0 { " from an origin" } else { "" };
        Some(format!("{xid} {}{top}{origin}", text.trim_end()))
    }

    /// The line of a commit, an abort or a prepare.
    fn end(&mut self, body: &RecordBody) -> String {
        let gid = |gid: &[u8]| String::from_utf8_lossy(gid).into_owned();
        match body {
            RecordBody::Commit(r) => format!(
                "COMMIT {} '{}' {:x} drops {} stats {} subs {} origin {} {}",
                self.xid(r.prepared_xid),
                gid(&r.gid),
                r.xinfo,
                self.oids(&r.dropped_locators),
                r.dropped_stats,
                self.xids(&r.subxids),
                r.origin.is_some(),
                self.messages(&r.messages)
            ),
            RecordBody::Abort(r) => format!(
                "ABORT {} '{}' {:x} drops {} stats {} subs {} origin {}",
                self.xid(r.prepared_xid),
                gid(&r.gid),
                r.xinfo,
                self.oids(&r.dropped_locators),
                r.dropped_stats,
                self.xids(&r.subxids),
                r.origin.is_some()
            ),
            RecordBody::Prepare(r) => format!(
                "PREPARE '{}' drops {} or {} stats {} or {} subs {} origin {} {}",
                gid(&r.gid),
                self.oids(&r.commit_locators),
                self.oids(&r.abort_locators),
                r.commit_stats,
                r.abort_stats,
                self.xids(&r.subxids),
                r.origin.is_some(),
                self.messages(&r.messages)
            ),
            _ => String::new(),
        }
    }
}

fn cid(cid: CommandId) -> String {
    if cid.is_valid() { cid.0.to_string() } else { "-".to_owned() }
}

/// The words whose condition holds.
fn said(words: &[(bool, &str)]) -> String {
    words.iter().filter(|(on, _)| *on).map(|(_, word)| *word).collect::<Vec<_>>().join(" ")
}

/// What a real server wrote, by step: each begins with a message that is no part of a transaction, prefix `step`.
pub(crate) struct Recorded(Vec<(String, Vec<WalRecord>)>);

impl Recorded {
    /// The log with transactions of every kind that a server of this version wrote.
    pub(crate) fn read(version: PgVersion) -> Recorded {
        Recorded::read_from("golden_xact", version)
    }

    /// A log that a server of this version wrote, from a folder of such logs.
    pub(crate) fn read_from(folder: &str, version: PgVersion) -> Recorded {
        let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{folder}/pg{version}.tar.zst"));
        let dir = tempfile::tempdir().expect("make a folder");
        let file = std::fs::File::open(archive).expect("open the archive");
        let unpacked = zstd::Decoder::new(file).and_then(|tar| tar::Archive::new(tar).unpack(dir.path()));
        unpacked.expect("unpack the archive");
        let wal = WalDir::open(dir.path(), None).expect("open the log");
        let mut reader = WalReader::open(&wal, None).expect("open the reader");
        let mut steps: Vec<(String, Vec<WalRecord>)> = Vec::new();
        while let Some(record) = reader.next().expect("read a record") {
            let record = record.decode(wal.profile()).expect("decode a record");
            match (&record.body, steps.last_mut()) {
                (RecordBody::LogicalMessage(message), _) if message.prefix == b"step" => {
                    steps.push((String::from_utf8_lossy(&message.message).into_owned(), Vec::new()));
                }
                (_, Some((_, records))) => records.push(record),
                (_, None) => {}
            }
        }
        Recorded(steps)
    }

    /// The records of some steps, one after the other.
    pub(crate) fn steps(&self, names: &[&str]) -> Vec<WalRecord> {
        let of = |name: &&str| self.0.iter().find(|(step, _)| step == name).unwrap_or_else(|| panic!("no step '{name}'"));
        names.iter().flat_map(|name| of(name).1.clone()).collect()
    }
}

/// Compares line by line, naming the first that differs.
pub(crate) fn compare(what: &str, ours: &[String], real: &[String]) {
    for (number, (our, their)) in (1..).zip(ours.iter().zip(real)) {
        assert_eq!(our, their, "{what}, line {number} of\n{}\nreal:\n{}", ours.join("\n"), real.join("\n"));
    }
    assert_eq!(ours.len(), real.len(), "{what}:\n{}\nreal:\n{}", ours.join("\n"), real.join("\n"));
}
