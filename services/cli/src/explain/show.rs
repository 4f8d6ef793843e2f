//! An explained transaction as text and as JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use decoder_core::footprint::story::catalog_name;
use decoder_core::{CatalogRows, DecodedTransaction, Footprint, TimestampText};
use pg_types::{PgVersion, SysCacheTable};
use serde::Serialize;
use service_kit::printable;

use super::Explained;
use crate::decode::{Counts, Relations};

/// Relations and caches that are named in text.
const NAMED_MAX: usize = 8;

/// Writes it for people.
pub(super) fn text(out: &mut dyn Write, explained: &Explained, version: PgVersion) -> io::Result<()> {
    let t = &explained.transaction;
    let time = TimestampText(t.commit_time);
    writeln!(out, "xid {}, committed at {} (end {}) on {time}", t.xid, t.commit_lsn, t.end_lsn)?;
    for part in t.story().parts {
        writeln!(out, "  {}", printable(&part.text))?;
    }
    writeln!(out)?;
    for (name, value) in facts(t, version) {
        if !value.is_empty() {
            writeln!(out, "  {name:<12} {}", printable(&value))?;
        }
    }
    writeln!(out, "\n{}", table(explained))?;
    writeln!(out, "  exact for a decoder that began at {}, the first record here", explained.decoded_from)
}

/// What is told beside the story.
fn facts(t: &DecodedTransaction, version: PgVersion) -> Vec<(&'static str, String)> {
    let footprint = &t.footprint;
    let gid = String::from_utf8_lossy(&t.gid).into_owned();
    vec![
        ("prepared", gid),
        (
            "rows",
            listed(t.relations.iter().map(|r| {
                let counts = [("+", r.insert), ("~", r.update), ("-", r.delete), ("truncated ", r.truncate)];
                format!("{} {}", r.name, signs(&counts))
            })),
        ),
        (
            "catalogs",
            listed(footprint.catalogs().iter().map(|rows| {
                let counts =
                    [("+", rows.inserted), ("~", rows.updated), ("-", rows.deleted), ("±", rows.passing), ("!", rows.in_place)];
                format!("{} {}", catalog_name(rows.catalog), signs(&counts))
            })),
        ),
        (
            "files",
            worded(&[("made", footprint.files_created), ("cut", footprint.files_cut), ("dropped", footprint.files_dropped)]),
        ),
        ("locks", worded(&[("relations", footprint.locks)])),
        ("commands", worded(&[("that wrote catalogs", footprint.commands.into()), ("NEW_CID records", footprint.new_cids)])),
        ("messages", worded(&t.messages.entries().collect::<Vec<_>>())),
        ("caches", listed(by_cache(footprint, version).into_iter().map(|(name, n)| format!("{name} {n}")))),
        ("relations", worded(&[("named by relcache messages", footprint.relations)])),
        ("began", format!("{}; WAL from {} on is needed to decode it", t.first_lsn, t.restart_lsn)),
    ]
}

/// The first of a list, and how many more there are.
fn listed(items: impl ExactSizeIterator<Item = String>) -> String {
    let more = items.len().saturating_sub(NAMED_MAX);
    let mut words: Vec<String> = items.take(NAMED_MAX).collect();
    if more > 0 {
        words.push(format!("{more} more"));
    }
    words.join(", ")
}

/// Counts behind signs, zeroes left out.
fn signs(counts: &[(&str, u64)]) -> String {
    counts.iter().filter(|(_, n)| *n > 0).map(|(sign, n)| format!("{sign}{n}")).collect::<Vec<_>>().join(" ")
}

/// Counts before words, zeroes left out.
fn worded(counts: &[(&str, u64)]) -> String {
    counts.iter().filter(|(_, n)| *n > 0).map(|(word, n)| format!("{n} {word}")).collect::<Vec<_>>().join(", ")
}

/// Catcache messages by the cache's name, most first.
fn by_cache(footprint: &Footprint, version: PgVersion) -> Vec<(String, u64)> {
    let table = SysCacheTable::of(version);
    let name = |id: u8| i8::try_from(id).ok().and_then(|id| table.id(id)).map(|id| table.cache(id).name.to_owned());
    let named = footprint.caches().map(|(id, n)| (name(id).unwrap_or_else(|| id.to_string()), n));
    let mut named: Vec<(String, u64)> = named.collect();
    named.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    named
}

/// A row per profile.
fn table(explained: &Explained) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "profile",
        "consumer",
        "messages",
        "caches searched",
        "entries visited",
        "callbacks visited",
        "map slots",
        "loads",
        "misses",
        "catalog scans",
        "snapshots",
        "spilled kB",
        "decoder ms",
    ]);
    for forecast in &explained.profiles {
        let w = &forecast.work;
        table.add_row([
            forecast.profile.name.clone(),
            forecast.profile.consumer.to_string(),
            w.messages_executed.to_string(),
            w.caches_searched.to_string(),
            w.catcache_entries_visited.to_string(),
            w.callbacks_visited.to_string(),
            w.map_slots_visited.to_string(),
            w.relations_loaded.to_string(),
            w.cache_misses().to_string(),
            w.catalog_scans.to_string(),
            w.snapshots_distributed.to_string(),
            w.spill_bytes.div_ceil(1024).to_string(),
            format!("{:.3}", forecast.cpu_ns as f64 / 1e6),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A part of the story.
#[derive(Serialize)]
struct JsonPart {
    text: String,
    statements: Vec<&'static str>,
}

/// A profile's row.
#[derive(Serialize)]
struct JsonProfile<'a> {
    profile: &'a str,
    consumer: String,
    work: Counts,
    cpu_ns: u64,
}

/// The documented object.
#[derive(Serialize)]
struct JsonExplained<'a> {
    xid: u32,
    commit_lsn: String,
    end_lsn: String,
    first_lsn: String,
    restart_lsn: String,
    commit_time: String,
    gid: String,
    subxids: usize,
    story: Vec<JsonPart>,
    relations: Relations<'a>,
    catalogs: BTreeMap<String, Counts>,
    footprint: Counts,
    messages: Counts,
    caches: BTreeMap<String, u64>,
    decoded_from: String,
    profiles: Vec<JsonProfile<'a>>,
}

/// Writes it as a line of JSON.
pub(super) fn json(out: &mut dyn Write, explained: &Explained, version: PgVersion) -> io::Result<()> {
    let t = &explained.transaction;
    let profile = |f: &'_ super::Forecast| (f.profile.consumer.to_string(), Counts(f.work.entries().collect()), f.cpu_ns);
    let profiles = explained.profiles.iter().map(|f| {
        let (consumer, work, cpu_ns) = profile(f);
        JsonProfile { profile: &f.profile.name, consumer, work, cpu_ns }
    });
    let object = JsonExplained {
        xid: t.xid.0,
        commit_lsn: t.commit_lsn.to_string(),
        end_lsn: t.end_lsn.to_string(),
        first_lsn: t.first_lsn.to_string(),
        restart_lsn: t.restart_lsn.to_string(),
        commit_time: TimestampText(t.commit_time).to_string(),
        gid: String::from_utf8_lossy(&t.gid).into_owned(),
        subxids: t.subxids.len(),
        story: t.story().parts.into_iter().map(|part| JsonPart { text: part.text, statements: part.statements }).collect(),
        relations: Relations(&t.relations),
        catalogs: t.footprint.catalogs().iter().map(|rows| (catalog_name(rows.catalog), catalog_counts(rows))).collect(),
        footprint: Counts(t.footprint.counts().collect()),
        messages: Counts(t.messages.entries().collect()),
        caches: by_cache(&t.footprint, version).into_iter().collect(),
        decoded_from: explained.decoded_from.to_string(),
        profiles: profiles.collect(),
    };
    serde_json::to_writer(&mut *out, &object)?;
    writeln!(out)
}

/// What happened to a catalog's rows.
fn catalog_counts(rows: &CatalogRows) -> Counts {
    Counts(vec![
        ("inserted", rows.inserted),
        ("updated", rows.updated),
        ("deleted", rows.deleted),
        ("came_and_went", rows.passing),
        ("in_place", rows.in_place),
    ])
}
