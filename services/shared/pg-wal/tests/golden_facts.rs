//! What typed records say, against what the server's own pg_waldump said of them: transactions, messages, relations, places.

use std::collections::BTreeMap;

use crate::support::fixtures::{Line, RECORDED, parse, unpack, waldump};
use pg_types::record::{AbortRecord, CommitRecord};
use pg_types::{InvalidationMessage, Oid, RecordBody, RelFileLocator, Tid, Xid};
use pg_wal::text::Text;
use pg_wal::{WalDir, WalReader};

/// The number behind the first of the labels that the text has.
fn number(text: &str, labels: &[&str]) -> Option<u64> {
    let at = labels.iter().find_map(|label| Some(text.find(label)? + label.len()))?;
    let digits: String = text[at..].chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// All numbers of the piece of text that begins with a label and ends with the next semicolon or comma.
fn list(text: &str, label: &str) -> Vec<u64> {
    let Some(at) = text.find(label) else { return Vec::new() };
    let piece = text[at + label.len()..].split([';', ']']).next().unwrap();
    piece.split([' ', ',', '[']).filter_map(|w| w.parse().ok()).collect()
}

/// File and block of a block reference.
fn block(text: &str, id: u8) -> Option<(RelFileLocator, u32)> {
    let at = text.find(&format!("blkref #{id}: rel "))?;
    let piece = text[at..].split(" rel ").nth(1)?;
    let locator = piece.split(' ').next()?.parse().ok()?;
    Some((locator, number(piece, &["blk "])? as u32))
}

/// The messages in the words of pg_waldump.
fn message_words(messages: &[InvalidationMessage]) -> String {
    let word = |m: &InvalidationMessage| match *m {
        InvalidationMessage::Catcache { cache_id, .. } => format!(" catcache {cache_id}"),
        InvalidationMessage::Catalog { catalog, .. } => format!(" catalog {catalog}"),
        InvalidationMessage::Relcache { rel, .. } => format!(" relcache {rel}"),
        InvalidationMessage::Snapshot { rel, .. } => format!(" snapshot {rel}"),
        InvalidationMessage::Relsync { rel, .. } => format!(" relsync {rel}"),
        InvalidationMessage::Smgr { .. } | InvalidationMessage::Relmap { .. } => panic!("{m:?} is sent, not logged"),
    };
    messages.iter().map(word).collect()
}

/// The text's messages.
fn text_messages(text: &str) -> &str {
    text.split("; inval msgs:").nth(1).map_or("", |t| t.split([';', ',']).next().unwrap())
}

/// Xids as the numbers that `list` gives.
fn xids(xids: &[Xid]) -> Vec<u64> {
    xids.iter().map(|x| u64::from(x.0)).collect()
}

/// Files in the words of pg_waldump; all fixtures use the default tablespace.
fn file_words(locators: &[RelFileLocator]) -> String {
    locators.iter().map(|l| format!(" base/{}/{}", l.db, l.rel)).collect()
}

/// What a list of files in the text says.
fn text_files<'a>(text: &'a str, label: &str) -> &'a str {
    text.split(label).nth(1).map_or("", |t| t.split(';').next().unwrap())
}

/// A time in the words of pg_waldump.
fn time_words(time: pg_types::Timestamp) -> String {
    let mut text = Text::new();
    text.timestamp(time);
    text.since(0).to_owned()
}

fn check_commit(c: &CommitRecord, text: &str) {
    assert!(text.contains(&time_words(c.time)), "{text}");
    assert_eq!(xids(&c.subxids), list(text, "subxacts:"), "{text}");
    assert_eq!(message_words(&c.messages), text_messages(text));
    assert_eq!(file_words(&c.dropped_locators), text_files(text, "; rels:"));
    let stats = text.split("dropped stats:").nth(1).map_or(0, |t| t.split(';').next().unwrap().trim().split(' ').count());
    assert_eq!(c.dropped_stats as usize, stats, "{text}");
    let prepared = text.starts_with("COMMIT_PREPARED").then(|| number(text, &["COMMIT_PREPARED "])).flatten();
    assert_eq!(c.prepared_xid.0 as u64, prepared.unwrap_or(0));
    assert_eq!(c.gid.is_empty(), prepared.is_none(), "wal_level logical logs the name");
    let init_file = (number(text, &["inval dbid "]), number(text, &["tsid "]));
    if init_file.0.is_some() {
        assert_eq!(init_file, (Some(c.db.0.into()), Some(c.spc.0.into())));
    }
    assert_eq!(init_file.0.is_some(), c.xinfo & (1 << 30) != 0 && !c.messages.is_empty(), "{text}");
}

fn check_abort(a: &AbortRecord, text: &str) {
    assert!(text.contains(&time_words(a.time)), "{text}");
    assert_eq!(xids(&a.subxids), list(text, "subxacts:"), "{text}");
    assert_eq!(file_words(&a.dropped_locators), text_files(text, "; rels:"));
    let prepared = text.starts_with("ABORT_PREPARED").then(|| number(text, &["ABORT_PREPARED "])).flatten();
    assert_eq!((a.prepared_xid.0 as u64, a.gid.is_empty()), (prepared.unwrap_or(0), prepared.is_none()));
}

/// One tuple's place.
fn check_place(target: RelFileLocator, tid: Tid, text: &str, id: u8, labels: &[&str]) {
    assert_eq!(block(text, id), Some((target, tid.block)), "{text}");
    assert_eq!(number(text, labels), Some(tid.offset.into()), "{text}");
}

/// XACT and STANDBY. False if the body is of another kind.
fn check_transactions(body: &RecordBody, line: &Line<'_>) -> bool {
    let text = line.desc;
    match body {
        RecordBody::Commit(c) => check_commit(c, text),
        RecordBody::Abort(a) => check_abort(a, text),
        RecordBody::Prepare(p) => {
            assert!(text.contains(&time_words(p.time)), "{text}");
            assert_eq!(String::from_utf8(p.gid.clone()).unwrap(), text_files(text, "gid ").split(": ").next().unwrap());
            assert_eq!(message_words(&p.messages), text_messages(text));
            assert_eq!(xids(&p.subxids), list(text, "subxacts:"));
            assert_eq!(file_words(&p.commit_locators), text_files(text, "rels(commit):"));
            assert_eq!(file_words(&p.abort_locators), text_files(text, "rels(abort):"));
        }
        RecordBody::Assignment(a) => {
            assert_eq!(number(text, &["xtop "]), Some(a.top_xid.0.into()));
            assert_eq!(xids(&a.subxids), list(text, "subxacts:"));
        }
        RecordBody::XactInvalidations(m) => assert_eq!(message_words(m), text_messages(text)),
        RecordBody::StandbyInvalidations(i) => assert_eq!(message_words(&i.messages), text_messages(text)),
        RecordBody::StandbyLocks(locks) => {
            let words: String = locks.iter().map(|l| format!("xid {} db {} rel {} ", l.xid, l.db, l.rel)).collect();
            assert_eq!(format!("LOCK {words}"), text);
        }
        RecordBody::RunningXacts(r) => {
            let numbers = ["nextXid ", "oldestRunningXid ", "latestCompletedXid "].map(|l| number(text, &[l]).unwrap() as u32);
            assert_eq!(numbers.map(Xid), [r.next_xid, r.oldest_running_xid, r.latest_completed_xid]);
            assert_eq!(xids(&r.xids), list(text, " xacts:"));
            assert_eq!(r.subxid_overflow, text.contains("subxid ov"));
            assert_eq!(xids(&r.subxids), list(text, " subxacts:"));
        }
        _ => return false,
    }
    true
}

/// HEAP and HEAP2. False if the body is of another kind.
fn check_heap(body: &RecordBody, line: &Line<'_>) -> bool {
    let text = line.desc;
    let off = ["off: ", "off "];
    match *body {
        RecordBody::Insert(ref i) => {
            check_place(i.target, i.tid, text, 0, &off);
            let flags = u32::from_str_radix(text.split("0x").nth(1).unwrap().get(..2).unwrap(), 16).unwrap();
            assert_eq!((i.speculative, i.logical, i.toast), (flags & 4 != 0, flags & 8 != 0, flags & 16 != 0), "{text}");
            assert_eq!(i.init_page, text.starts_with("INSERT+INIT"));
            assert!(i.tuple_len > 0 || text.contains("FPW"));
        }
        RecordBody::Delete(ref d) => check_place(d.target, d.tid, text, 0, &off),
        RecordBody::Update(ref u) => {
            check_place(u.target, u.new_tid, text, 0, &["new_off: ", "new off "]);
            let old = if block(text, 1).is_some() { 1 } else { 0 };
            check_place(u.target, u.old_tid, text, old, &["old_off: ", "off "]);
            assert_eq!(number(text, &["old_xmax: ", " xmax "]), Some(u.old_xmax.0.into()));
            assert_eq!((u.hot, u.init_page), (text.starts_with("HOT"), text.contains("+INIT")));
        }
        RecordBody::Confirm(p) => check_place(p.target, p.tid, text, 0, &off),
        RecordBody::Lock(l) | RecordBody::LockUpdated(l) => {
            check_place(l.target, l.tid, text, 0, &off);
            assert_eq!(number(text, &["xmax: ", "xid "]), Some(l.xmax.0.into()), "{text}");
        }
        RecordBody::Truncate(ref t) => {
            let relids = list(text, "relids");
            let relids = if relids.is_empty() { list(text, " relids:") } else { relids };
            let expected: Vec<u64> = t.relids.iter().map(|r| r.0.into()).collect();
            assert!(
                relids.ends_with(&expected) && expected.len() as u64 == number(text, &["nrelids: ", "nrelids "]).unwrap(),
                "{text}"
            );
        }
        RecordBody::Inplace(ref i) => {
            check_place(i.target, i.tid, text, 0, &off);
            assert_eq!(message_words(&i.messages), text_messages(text));
        }
        RecordBody::MultiInsert(ref m) => {
            assert_eq!(block(text, 0), Some((m.target, m.block)));
            assert_eq!(number(text, &["ntuples: ", "INSERT ", "INIT "]), Some(m.ntuples.into()), "{text}");
        }
        RecordBody::NewCid(ref n) => {
            let tid = format!("{}/{}", n.tid.block, n.tid.offset);
            assert!(text.contains(&n.target.to_string()) && text.contains(&tid), "{text}");
            let numbers = ["cmin: ", "cmax: ", "combo: "].map(|l| number(text, &[l]).unwrap() as u32);
            assert_eq!(numbers, [n.cmin.0, n.cmax.0, n.combocid.0]);
            assert!(n.top_xid.is_valid());
        }
        RecordBody::Prune(ref p) => {
            assert_eq!(block(text, 0), Some((p.target, p.block)));
            let horizon = number(text, &["snapshotConflictHorizon: ", "latestRemovedXid ", "remxid "]);
            let frozen = number(text, &["cutoff xid "]).map(|x| x - 1);
            assert_eq!(horizon.or(frozen).unwrap_or(0), u64::from(p.conflict_horizon.0), "{text}");
            let told = |labels: &[&str], ours: u16| {
                if let Some(theirs) = number(text, labels) {
                    assert_eq!(theirs, u64::from(ours), "{text}");
                }
            };
            told(&["nredirected: ", "nredirected "], p.redirected);
            told(&["ndead: ", "ndead "], p.dead);
            told(&["nunused: ", "nunused "], p.unused);
            told(&["ntuples "], p.frozen);
        }
        RecordBody::Visible(ref p) => {
            assert_eq!(block(text, 1), Some((p.target, p.block)));
            let horizon = number(text, &["snapshotConflictHorizon: ", "cutoff xid "]);
            assert_eq!(horizon, Some(p.conflict_horizon.0.into()));
        }
        RecordBody::Rewrite(ref r) => assert!(r.mapped_xid.is_valid() && r.num_mappings > 0 && r.mapped_rel != Oid(0)),
        _ => return false,
    }
    true
}

#[test]
fn typed_records_say_what_pg_waldump_says() {
    for version in RECORDED {
        let folder = unpack(version);
        let dir = WalDir::open(folder.path(), None).unwrap();
        let mut reader = WalReader::open(&dir, None).unwrap();
        let text = waldump(version);
        let mut lines = text.lines().map(parse);
        let mut checked: BTreeMap<&str, u32> = BTreeMap::new();
        while let Some(record) = reader.next().unwrap() {
            let line = lines.next().unwrap();
            let decoded = record.decode(dir.profile()).unwrap();
            assert_eq!((decoded.lsn, decoded.xid.0), (line.lsn, line.xid));
            let facts = match line.rmgr {
                "Transaction" | "Standby" => check_transactions(&decoded.body, &line),
                "Heap" | "Heap2" => check_heap(&decoded.body, &line),
                _ => continue,
            };
            assert!(facts, "{:?} is not typed: {}", decoded.body, line.desc);
            *checked.entry(line.rmgr).or_default() += 1;
        }
        let [(_, heap), (_, heap2), (_, standby), (_, xact)] = checked.into_iter().collect::<Vec<_>>().try_into().unwrap();
        assert!(heap > 2_000 && heap2 > 2_200 && standby > 260 && xact > 300, "{version}: {heap} {heap2} {standby} {xact}");
    }
}
