//! Stories of what real servers of 13 to 18 logged for 261 statements (the records that the simulated primary is compared with, read from their
//! text), and that every part names a statement that was executed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pg_types::record::{
    CommitRecord, HeapDelete, HeapInsert, HeapUpdate, InplaceRecord, NewCidRecord, RelmapRecord, RunningXactsRecord,
    StandbyLock, TruncateRecord,
};
use pg_types::{
    CommandId, InvalidationMessage, Lsn, Oid, PgVersion, RecordBody, RelFileLocator, SysCacheTable, WalRecord, Xid, catalog,
};

use super::*;
use crate::{DecodedTransaction, Decoder, DecoderConfig, NoCatalog, OutputSink};

/// The database of all tests.
const DATABASE: Oid = Oid(5);

/// Reads the lines of `services/primary/core/tests/support/statement_lines.rs` back into records.
struct Reader {
    version: PgVersion,
    decoder: Decoder,
    lsn: u64,
    xid: u32,
    /// Files made by the transaction.
    created: Vec<u32>,
    /// The catalog that the SQL names, if it names one.
    catalog: Option<Oid>,
}

/// Keeps stories.
#[derive(Default)]
struct Stories(Vec<Story>);

impl OutputSink for Stories {
    fn commit(&mut self, transaction: &DecodedTransaction) {
        self.0.push(transaction.story());
    }
}

impl Reader {
    fn new(version: PgVersion, sql: &str) -> Self {
        let catalog =
            catalog::NAMES.iter().find(|(name, _)| sql.starts_with("VACUUM") && sql.ends_with(name)).map(|(_, oid)| *oid);
        let config = DecoderConfig::new(version, "pg18".parse().unwrap(), DATABASE);
        let decoder = Decoder::new(config, Arc::new(NoCatalog));
        let mut reader = Self { version, decoder, lsn: 1 << 20, xid: 800, created: Vec::new(), catalog };
        let running = RunningXactsRecord { next_xid: Xid(800), oldest_running_xid: Xid(800), ..RunningXactsRecord::default() };
        reader.push(0, RecordBody::RunningXacts(Box::new(running)), &mut Stories::default());
        reader
    }

    fn push(&mut self, xid: u32, body: RecordBody, sink: &mut Stories) {
        let (lsn, end_lsn) = (Lsn(self.lsn), Lsn(self.lsn + 64));
        self.lsn += 64;
        let record = WalRecord { lsn, end_lsn, xid: Xid(xid), top_xid: Xid::INVALID, origin: 0, body };
        self.decoder.process(&record, sink).unwrap();
    }

    fn stories(&mut self, lines: &str) -> Vec<Story> {
        let mut sink = Stories::default();
        for line in lines.lines() {
            self.line(line, &mut sink);
        }
        sink.0
    }

    fn line(&mut self, line: &str, sink: &mut Stories) {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        if kind == "next" {
            self.xid += 1;
            self.created.clear();
            return;
        }
        let messages_follow = ["COMMIT", "INVALIDATIONS", "STANDBY_INVALIDATIONS", "INPLACE"].contains(&kind);
        let (rest, times) = match rest.rsplit_once(" × ") {
            Some((rest, times)) if !messages_follow || kind == "INPLACE" && rest.ends_with(':') => {
                (rest, times.parse().unwrap())
            }
            _ => (rest, 1),
        };
        let xid = if rest.ends_with("without xid") || kind == "STANDBY_INVALIDATIONS" { 0 } else { self.xid };
        for _ in 0..times {
            for body in self.bodies(kind, rest) {
                self.push(xid, body, sink);
            }
        }
    }

    /// The records of a line.
    fn bodies(&mut self, kind: &str, rest: &str) -> Vec<RecordBody> {
        let words: Vec<&str> = rest.split(' ').collect();
        let target = file(words[0].trim_end_matches(':'));
        let cids = |from: usize| -> Vec<RecordBody> {
            let cid = |word: &str| word.parse().map_or(CommandId::INVALID, CommandId);
            let groups = words[from..].chunks(4).filter(|group| group.len() >= 3);
            let of = |g: &[&str]| NewCidRecord {
                cmin: cid(g[0]),
                cmax: cid(g[1]),
                combocid: cid(g[2]),
                target,
                ..Default::default()
            };
            groups.map(|g| RecordBody::NewCid(Box::new(of(g)))).collect()
        };
        let logical = words.get(1) == Some(&"logical");
        match kind {
            "LOCK" => {
                let lock = |word: &&str| StandbyLock { xid: Xid(self.xid), db: DATABASE, rel: Oid(file(word).rel) };
                vec![RecordBody::StandbyLocks(words.iter().map(lock).collect())]
            }
            "CREATE" => {
                self.created.push(target.rel);
                vec![RecordBody::SmgrCreate { target, fork: u32::from(words.get(1) == Some(&"fork")) }]
            }
            "CUT" => vec![RecordBody::SmgrTruncate { target, blocks: 0, flags: 7 }],
            "INSERT" | "MULTI_INSERT" => {
                let row = RecordBody::Insert(HeapInsert { target, logical, ..HeapInsert::default() });
                let mut records = if logical { Vec::new() } else { cids(1) };
                records.push(row);
                records
            }
            "UPDATE" => {
                let mut records = cids(1);
                if records.len() == 1 {
                    records.push(records[0].clone());
                }
                records.push(RecordBody::Update(HeapUpdate { target, ..HeapUpdate::default() }));
                records
            }
            "DELETE" => {
                let mut records = cids(1);
                records.push(RecordBody::Delete(HeapDelete { target, ..HeapDelete::default() }));
                records
            }
            "NEW_CID" => cids(1),
            "INPLACE" => vec![RecordBody::Inplace(Box::new(InplaceRecord { target, ..InplaceRecord::default() }))],
            "TRUNCATE" => {
                let relids = words.iter().filter(|word| word.starts_with('r') && !word.starts_with("re"));
                let relids = relids.map(|word| Oid(file(word).rel)).collect();
                let (cascade, restart_seqs) = (rest.contains("cascade"), rest.contains("restart_seqs"));
                vec![RecordBody::Truncate(Box::new(TruncateRecord { db: DATABASE, cascade, restart_seqs, relids }))]
            }
            "RELMAP" => vec![RecordBody::Relmap(Box::new(self.relmap()))],
            "INVALIDATIONS" => vec![RecordBody::XactInvalidations(self.messages(rest))],
            "COMMIT" => {
                let dropped = rest.split_once("drops ").and_then(|(_, files)| files.split_once(';'));
                let dropped = dropped.map_or("", |(files, _)| files).split_whitespace().map(file).collect();
                let messages = self.messages(rest.rsplit("; ").next().unwrap());
                let commit = CommitRecord { db: DATABASE, dropped_locators: dropped, messages, ..CommitRecord::default() };
                vec![RecordBody::Commit(Box::new(commit))]
            }
            "STANDBY_INVALIDATIONS" | "ASSIGNMENT" => vec![],
            other => panic!("{other} {rest}"),
        }
    }

    /// The lines do not tell which relations got new files: it is the catalog that the SQL names, else its indexes.
    fn relmap(&self) -> RelmapRecord {
        let oids = self.catalog.into_iter().chain((1..).map(Oid));
        let mappings = oids.zip(self.created.iter().copied()).collect();
        RelmapRecord { db: DATABASE, spc: Oid::DEFAULT_TABLESPACE, mappings }
    }

    fn messages(&self, text: &str) -> Vec<InvalidationMessage> {
        let table = SysCacheTable::of(self.version);
        let mut messages = Vec::new();
        for word in text.split(", ") {
            let (name, times) = word.split_once(" × ").map_or((word, 1), |(name, n)| (name, n.parse().unwrap()));
            let message = match name.split_once(' ') {
                Some(("relcache", rel)) => InvalidationMessage::Relcache { db: DATABASE, rel: Oid(file(rel).rel) },
                Some(("snapshot", rel)) => InvalidationMessage::Snapshot { db: DATABASE, rel: Oid(file(rel).rel) },
                Some(("relsync", rel)) => InvalidationMessage::Relsync { db: DATABASE, rel: Oid(file(rel).rel) },
                _ => match table.id_of(name) {
                    Some(id) => InvalidationMessage::Catcache { cache_id: id.message_id(), db: DATABASE, hash: 7 },
                    None => continue,
                },
            };
            messages.extend(std::iter::repeat_n(message, times));
        }
        messages
    }
}

/// A file by its name in the lines.
fn file(name: &str) -> RelFileLocator {
    let known = catalog::NAMES.iter().find(|(known, _)| *known == name).map(|(_, oid)| oid.0);
    let number = || name.strip_prefix('r').map_or(name, |n| n).parse::<u32>().unwrap_or(0);
    let rel = known.unwrap_or_else(|| if name.starts_with('r') { 20_000 + number() } else { number() });
    RelFileLocator { spc: Oid::DEFAULT_TABLESPACE, db: DATABASE, rel }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../primary/core/tests/golden")
}

/// Names and SQL of the recorded statements.
fn statements() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(folder().join("statements.toml")).unwrap();
    let of = |line: &str, key: &str| line.strip_prefix(key).map(|rest| rest.trim_matches('"').to_owned());
    let names = text.lines().filter_map(|line| of(line, "name = "));
    names.zip(text.lines().filter_map(|line| of(line, "sql = "))).collect()
}

/// Lines by version.
fn recorded(name: &str) -> BTreeMap<PgVersion, String> {
    let text = std::fs::read_to_string(folder().join(format!("statements/{name}.txt"))).unwrap();
    let mut by_version = BTreeMap::new();
    for part in text.split("== ").skip(1) {
        let (versions, lines) = part.split_once('\n').unwrap();
        versions.split_whitespace().for_each(|version| drop(by_version.insert(version.parse().unwrap(), lines.to_owned())));
    }
    by_version
}

/// Command tags of SQL.
fn tags(sql: &str) -> Vec<String> {
    let statements = sql.split(';').map(str::trim).filter(|s| !["BEGIN", "COMMIT", ""].contains(s));
    let tag = |statement: &str| {
        let words =
            statement.replace("UNIQUE ", "").replace("OR REPLACE ", "").replace("MATERIALIZED VIEW", "MATERIALIZED_VIEW");
        let words: Vec<&str> = words.split(' ').collect();
        match (words[0], words[1]) {
            ("CREATE", "TABLE") if statement.contains(" AS SELECT") => "CREATE TABLE AS".to_owned(),
            ("CREATE" | "ALTER" | "DROP" | "REFRESH" | "LOCK", what) => format!("{} {}", words[0], what.replace('_', " ")),
            ("TRUNCATE", _) => "TRUNCATE TABLE".to_owned(),
            (verb, _) => verb.to_owned(),
        }
    };
    statements.map(tag).collect()
}

/// Statements and stories by version, as a table to be read.
fn table() -> String {
    let mut text = String::new();
    for (name, sql) in statements() {
        let mut groups: Vec<(Vec<String>, String)> = Vec::new();
        for (version, lines) in recorded(&name) {
            let told: Vec<String> = Reader::new(version, &sql).stories(&lines).iter().map(ToString::to_string).collect();
            let told = told.join("\n\t| ");
            match groups.iter_mut().find(|(_, known)| *known == told) {
                Some((versions, _)) => versions.push(version.to_string()),
                None => groups.push((vec![version.to_string()], told)),
            }
        }
        text.push_str(&format!("{sql}\n"));
        groups.iter().for_each(|(versions, told)| text.push_str(&format!("\t{}: {told}\n", versions.join(" "))));
    }
    text
}

#[test]
fn stories_of_all_statements() {
    let (ours, path) = (table(), Path::new(env!("CARGO_MANIFEST_DIR")).join("src/footprint/story/tests/stories.txt"));
    if std::env::var_os("UPDATE_STORIES").is_some() {
        std::fs::write(&path, &ours).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    if let Some((ours, golden)) = ours.lines().zip(golden.lines()).find(|(a, b)| a != b) {
        panic!("UPDATE_STORIES=1 writes the file anew, to be read\n ours {ours}\n file {golden}");
    }
    assert_eq!(ours.len(), golden.len());
}

#[test]
fn every_part_names_a_statement_that_was_executed_and_every_statement_is_named() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for (name, sql) in statements() {
        let executed = tags(&sql);
        for (version, lines) in recorded(&name) {
            let stories = Reader::new(version, &sql).stories(&lines);
            let parts: Vec<&Part> = stories.iter().flat_map(|story| &story.parts).collect();
            let claims: Vec<&Part> = parts.iter().copied().filter(|part| !part.statements.is_empty()).collect();
            let seen = !["SELECT", "LOCK TABLE", "INSERT"].contains(&executed[0].as_str());
            let named = claims.iter().any(|part| part.statements.iter().any(|tag| executed.iter().any(|e| e == tag)));
            let foreign = claims.iter().find(|part| !part.statements.iter().any(|tag| executed.iter().any(|e| e == tag)));
            if seen && !named || foreign.is_some() {
                wrong.push(format!(
                    "{name} {version}: {}",
                    stories.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | ")
                ));
            }
            checked += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 1500, "{checked} statements of six versions");
}

/// The story of one transaction with these lines.
fn story(version: PgVersion, lines: &str) -> String {
    let stories = Reader::new(version, "").stories(lines);
    assert_eq!(stories.len(), 1, "{lines}");
    stories[0].to_string()
}

#[test]
fn many_grants_temporary_tables_and_statistics() {
    let grants = "UPDATE pg_class - 0 - / 0 - - × 1852\nINSERT pg_shdepend 0 - - × 1852\nCOMMIT RELOID × 1852";
    assert_eq!(story(PgVersion::V18, grants), "GRANT or REVOKE on 1,852 relations");
    let table = |cids: &str, verb: &str| {
        format!(
            "{verb} pg_type {cids} × 2\n{verb} pg_depend {cids} × 3\n{verb} pg_class {cids}\n{verb} pg_attribute {cids} × 8\n"
        )
    };
    let created = format!("LOCK r1\n{}", table("0 - -", "INSERT"));
    let temporary = format!("{created}{}COMMIT RELOID × 2", table("0 1 0", "DELETE"));
    assert_eq!(story(PgVersion::V17, &temporary), "1 relation created and dropped, temporary or without storage");
    let kept = story(PgVersion::V17, &format!("{created}COMMIT RELOID"));
    assert_eq!(kept, "CREATE TABLE, 1 table without storage: temporary, or a composite type");
    let analyze =
        "INSERT pg_statistic 0 - - × 3\nUPDATE pg_statistic - 0 - / 0 - -\nINPLACE pg_class:\nCOMMIT STATRELATTINH × 5";
    assert_eq!(story(PgVersion::V16, analyze), "ANALYZE, by hand or by autovacuum, 4 columns");
    let unknown = "INSERT 2999 0 - -\nDELETE 2999 - 0 -\nCOMMIT RELOID";
    assert_eq!(story(PgVersion::V16, unknown), "catalog rows: catalog file 2999 +1 -1");
    assert_eq!(story(PgVersion::V16, "INSERT r1 logical × 3\nCOMMIT"), "3 inserts in 1663/5/20001");
}

#[test]
fn i2_a_footprint_is_bounded_and_forgets_nothing() {
    let lines: String = (0..200).map(|i| format!("CREATE r{i}\nINSERT r{i} 0 - -\n")).collect();
    let mut seen = Footprint::default();
    struct Keep<'a>(&'a mut Footprint);
    impl OutputSink for Keep<'_> {
        fn commit(&mut self, transaction: &DecodedTransaction) {
            self.0.clone_from(&transaction.footprint);
        }
    }
    let mut reader = Reader::new(PgVersion::V18, "");
    for line in lines.lines() {
        reader.line(line, &mut Stories::default());
    }
    let [commit] = &reader.bodies("COMMIT", "RELOID")[..] else { panic!() };
    let record = |lsn| WalRecord {
        lsn: Lsn(lsn),
        end_lsn: Lsn(lsn + 64),
        xid: Xid(800),
        top_xid: Xid(0),
        origin: 0,
        body: commit.clone(),
    };
    reader.decoder.process(&record(reader.lsn), &mut Keep(&mut seen)).unwrap();
    assert_eq!((seen.catalogs().len(), seen.other_catalog_rows), (super::super::CATALOGS_MAX, 200 - 96));
    assert_eq!((seen.files_created, seen.new_cids, seen.relations), (200, 200, 0));
}
