//! Records of a statement as lines of text, the same for a real server's log and for ours.
//!
//! A line is a record. What a catalog row's record says together with its NEW_CID records is one line (`UPDATE pg_class - 3 - /
//! 3 - -`: command ids of the old version, then of the new one); equal lines in a row are counted (`× 6`), and so are rows of
//! multi-inserts of one command, however they were spread over pages. Oids and files of users' objects are numbered in the order
//! of appearance, catalogs and syscaches have their names. Left out are records of indexes, row locks and hint bits, page images,
//! places of rows.

use std::collections::BTreeMap;
use std::fmt::Write;

use pg_types::record::{NewCidRecord, xinfo};
use pg_types::{
    CommandId, InvalidationMessage, Oid, PgVersion, RecordBody, RelFileLocator, SysCacheTable, WalRecord, Xid, catalog,
};

/// Makes lines.
pub(crate) struct StatementLines {
    /// The version's syscaches.
    caches: &'static SysCacheTable,
    /// Files of mapped catalogs that were rewritten.
    files: BTreeMap<u32, Oid>,
    /// Numbers of users' objects.
    numbers: BTreeMap<u32, usize>,
    /// NEW_CID records whose row is yet to come.
    pending: Vec<NewCidRecord>,
    /// What came, with its count.
    lines: Vec<(String, usize)>,
    /// Transaction of the last line.
    xid: Xid,
    /// Transactions so far.
    transactions: usize,
}

impl StatementLines {
    /// For records of `version`.
    pub(crate) fn new(version: PgVersion) -> StatementLines {
        StatementLines {
            caches: SysCacheTable::of(version),
            files: BTreeMap::new(),
            numbers: BTreeMap::new(),
            pending: Vec::new(),
            lines: Vec::new(),
            xid: Xid::INVALID,
            transactions: 0,
        }
    }

    /// Takes a record of no interest: only new files of mapped catalogs are remembered.
    pub(crate) fn pass(&mut self, record: &WalRecord) {
        if let RecordBody::Relmap(r) = &record.body {
            self.files.extend(r.mappings.iter().map(|(oid, file)| (*file, *oid)));
        }
    }

    /// Gives the lines of the records since the last call and begins anew.
    pub(crate) fn take(&mut self) -> String {
        self.flush();
        let mut text = String::new();
        for (line, count) in self.lines.drain(..) {
            let _ = if count == 1 { writeln!(text, "{line}") } else { writeln!(text, "{line} × {count}") };
        }
        (self.xid, self.transactions) = (Xid::INVALID, 0);
        self.numbers.clear();
        text
    }

    /// Takes a record.
    pub(crate) fn push(&mut self, record: &WalRecord) {
        let without_xid = !record.xid.is_valid();
        if without_xid && !matches!(record.body, RecordBody::StandbyInvalidations(_) | RecordBody::SmgrCreate { .. }) {
            return;
        }
        if let RecordBody::NewCid(r) = &record.body {
            self.begin(record.xid);
            self.pending.push(**r);
            return;
        }
        let Some(mut line) = self.line(&record.body) else { return };
        self.flush();
        if without_xid {
            line.push_str(" without xid");
        } else {
            self.begin(record.xid);
        }
        let count = match &record.body {
            RecordBody::MultiInsert(r) => usize::from(r.ntuples),
            _ => 1,
        };
        self.add(line, count);
        self.pass(record);
    }

    /// A new transaction has a line of its own, but for the first.
    fn begin(&mut self, xid: Xid) {
        if self.xid == xid {
            return;
        }
        self.xid = xid;
        self.transactions += 1;
        if self.transactions > 1 {
            self.flush();
            self.add("next transaction".to_owned(), 1);
        }
    }

    /// NEW_CID records without a row that follows.
    fn flush(&mut self) {
        for cid in std::mem::take(&mut self.pending) {
            let line = format!("NEW_CID {} {}", self.file(cid.target), cids(&cid));
            self.add(line, 1);
        }
    }

    /// Adds a line or counts it.
    fn add(&mut self, line: String, count: usize) {
        match self.lines.last_mut() {
            Some((last, n)) if *last == line => *n += count,
            _ => self.lines.push((line, count)),
        }
    }

    /// A record's line, if it is of interest.
    fn line(&mut self, body: &RecordBody) -> Option<String> {
        use RecordBody as B;
        Some(match body {
            B::StandbyLocks(locks) => {
                let locks: Vec<String> = locks.iter().map(|lock| self.oid(lock.rel.0)).collect();
                format!("LOCK {}", locks.join(" "))
            }
            B::SmgrCreate { target, fork } => {
                let fork = if *fork == 0 { String::new() } else { format!(" fork {fork}") };
                format!("CREATE {}{fork}", self.file(*target))
            }
            B::SmgrTruncate { target, blocks, .. } => format!("CUT {} to {blocks}", self.file(*target)),
            B::Insert(r) => self.row("INSERT", r.target, 1, r.logical),
            B::MultiInsert(r) => self.row("MULTI_INSERT", r.target, usize::from(r.ntuples), r.logical),
            B::Update(r) => self.row("UPDATE", r.target, 2, r.logical),
            B::Delete(r) => self.row("DELETE", r.target, 1, false),
            B::Inplace(r) => {
                let file = self.file(r.target);
                let init_file = if r.relcache_init_file_inval { " init file" } else { "" };
                format!("INPLACE {file}{init_file}: {}", self.messages(&r.messages)).trim_end().to_owned()
            }
            B::Truncate(r) => {
                let relids: Vec<String> = r.relids.iter().map(|oid| self.oid(oid.0)).collect();
                let flags = [(r.cascade, " cascade"), (r.restart_seqs, " restart_seqs")];
                let flags: String = flags.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
                format!("TRUNCATE {}{flags}", relids.join(" "))
            }
            B::Relmap(r) => format!("RELMAP {}", if r.db.is_valid() { "database" } else { "shared" }),
            B::Rewrite(r) => format!("REWRITE {}", self.oid(r.mapped_rel.0)),
            B::XactInvalidations(messages) => format!("INVALIDATIONS {}", self.messages(messages)),
            B::StandbyInvalidations(r) => format!("STANDBY_INVALIDATIONS {}", self.messages(&r.messages)),
            B::Assignment(r) => format!("ASSIGNMENT of {}", r.subxids.len()),
            B::Commit(r) => {
                let mut line = "COMMIT".to_owned();
                let dropped: Vec<String> = r.dropped_locators.iter().map(|file| self.file(*file)).collect();
                let chunks = [
                    (!dropped.is_empty(), format!(" drops {};", dropped.join(" "))),
                    (r.dropped_stats > 0, format!(" stats {};", r.dropped_stats)),
                    (!r.subxids.is_empty(), format!(" subs {};", r.subxids.len())),
                    (r.xinfo & xinfo::UPDATE_RELCACHE_FILE != 0, " init file;".to_owned()),
                    (!r.messages.is_empty(), format!(" {}", self.messages(&r.messages))),
                ];
                line.extend(chunks.into_iter().filter(|(on, _)| *on).map(|(_, text)| text));
                line
            }
            B::Abort(r) => {
                let dropped: Vec<String> = r.dropped_locators.iter().map(|file| self.file(*file)).collect();
                format!("ABORT drops {}; stats {}", dropped.join(" "), r.dropped_stats)
            }
            _ => return None,
        })
    }

    /// A changed row with the NEW_CID records that belong to it.
    fn row(&mut self, what: &str, target: RelFileLocator, cid_records: usize, logical: bool) -> String {
        let mut line = format!("{what} {}", self.file(target));
        if logical {
            line.push_str(" logical");
        }
        let from = self.pending.len().saturating_sub(cid_records);
        if self.pending.iter().skip(from).all(|cid| cid.target == target) && self.pending.len() >= cid_records {
            let own: Vec<NewCidRecord> = self.pending.drain(from..).collect();
            let mut own: Vec<String> = own.iter().map(cids).collect();
            own.dedup();
            let _ = write!(line, " {}", own.join(" / "));
        }
        line
    }

    /// Messages with commas, equal ones in a row counted.
    fn messages(&mut self, messages: &[InvalidationMessage]) -> String {
        let names: Vec<String> = messages.iter().map(|message| self.message(*message)).collect();
        let runs = names.chunk_by(|a, b| a == b).map(|run| match run {
            [one] => one.clone(),
            _ => format!("{} × {}", run[0], run.len()),
        });
        runs.collect::<Vec<_>>().join(", ")
    }

    /// A message.
    fn message(&mut self, message: InvalidationMessage) -> String {
        match message {
            InvalidationMessage::Catcache { cache_id, .. } => match self.caches.id(cache_id) {
                Some(id) => self.caches.cache(id).name.to_owned(),
                None => format!("cache {cache_id}"),
            },
            InvalidationMessage::Catalog { catalog, .. } => format!("catalog {}", self.oid(catalog.0)),
            InvalidationMessage::Relcache { rel, .. } => format!("relcache {}", self.oid(rel.0)),
            InvalidationMessage::Snapshot { rel, .. } => format!("snapshot {}", self.oid(rel.0)),
            InvalidationMessage::Relsync { rel, .. } => format!("relsync {}", self.oid(rel.0)),
            InvalidationMessage::Relmap { .. } => "relmap".to_owned(),
            InvalidationMessage::Smgr { locator, .. } => format!("smgr {}", self.file(locator)),
        }
    }

    /// A file's name.
    fn file(&mut self, file: RelFileLocator) -> String {
        match self.files.get(&file.rel) {
            Some(oid) => self.oid(oid.0),
            None => self.oid(file.rel),
        }
    }

    /// The name of an object: a catalog's, a number of the system's or one of ours.
    fn oid(&mut self, oid: u32) -> String {
        if let Some((name, _)) = catalog::NAMES.iter().find(|(_, known)| known.0 == oid) {
            return (*name).to_owned();
        }
        if oid < Oid::FIRST_NORMAL.0 {
            return oid.to_string();
        }
        let next = self.numbers.len() + 1;
        format!("r{}", self.numbers.entry(oid).or_insert(next))
    }
}

/// The command ids of a NEW_CID record.
fn cids(record: &NewCidRecord) -> String {
    format!("{} {} {}", cid(record.cmin), cid(record.cmax), cid(record.combocid))
}

/// A command id.
fn cid(cid: CommandId) -> String {
    if cid.is_valid() { cid.0.to_string() } else { "-".to_owned() }
}
