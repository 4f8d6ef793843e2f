//! The tables of profiles: what each costs, beside what was published.

use std::collections::BTreeMap;

use crate::run::ladder::{Counter, Ladder};
use crate::run::paint::{COLUMNS, Column, Paint, Text, Tone, bar, table};
use crate::run::report::{DecoderProfileTimings, SourceReport, SourceTimings};
use crate::run::text::{count, nanos, short_count, times, wrapped};

/// Columns of a bar.
const BAR_COLUMNS: usize = 14;
/// A function is shown if it takes at least so many per cent under some profile, or if something was published of it.
const SHARE_MIN: f64 = 8.0;
/// Reading WAL is left out of shares: it is the same under every profile, and the published ones are of other readers.
const READING: &str = "XLogReadRecord";

/// The decoder's tables.
pub(super) fn decoder(
    source: &SourceReport,
    timed: &SourceTimings,
    ladder: Option<&Ladder>,
    legend: bool,
    paint: Paint,
) -> String {
    let slowest = timed.decoder_profiles.iter().map(|t| t.cpu_ns).max().unwrap_or(0);
    let first = timed.decoder_profiles.first().map_or(0, |t| t.cpu_ns);
    let title = format!("decoder, {}", source.consumer);
    let mut head = vec![(title.as_str(), Column::Left)];
    head.extend(figures_head(ladder));
    head.extend([("CPU here", Column::Right), ("faster", Column::Right), ("", Column::Left)]);
    let shown = ladder.map_or(Counter::OF_MESSAGES, |ladder| ladder.counters);
    head.extend(shown.map(|counter| (counter.text().0, Column::Right)));
    let names = short_names(source.decoder_profiles.iter().map(|p| p.profile.as_str()));
    let rows = source.decoder_profiles.iter().zip(&timed.decoder_profiles).zip(&names).map(|((profile, measured), name)| {
        let mut row = vec![row_name(name, profile.identical_output)];
        row.extend(figures(ladder, &profile.profile));
        row.extend(cpu(measured.cpu_ns, first, slowest));
        row.extend(shown.map(|counter| Text::from(short_count(counter.of(&profile.work, &profile.snapshots)))));
        row
    });
    let rows: Vec<Vec<Text>> = rows.collect();
    let mut text = format!("{}\n", table(&head, &rows, paint));
    if legend || shown != Counter::OF_MESSAGES {
        let legend = shown.map(|counter| format!("{}: {}", counter.text().0, counter.text().1)).join("; ");
        text.push_str(&format!("{}\n", paint.dim(&wrapped(&legend, COLUMNS))));
    }
    if let Some(ladder) = ladder {
        text.push_str(&changes(ladder, source.decoder_profiles.iter().map(|p| p.profile.as_str()), &names, paint));
        text.push_str(&functions(timed, ladder, &names, paint));
    }
    text
}

/// Titles of the columns with figures of others.
fn figures_head(ladder: Option<&Ladder>) -> Vec<(&'static str, Column)> {
    match ladder {
        None => Vec::new(),
        Some(ladder) if ladder.real_servers.is_empty() => vec![("published", Column::Right)],
        Some(_) => vec![("published", Column::Right), ("real server", Column::Right)],
    }
}

/// Figures of others for a profile.
fn figures(ladder: Option<&Ladder>, profile: &str) -> Vec<Text> {
    let Some(ladder) = ladder else { return Vec::new() };
    let rung = ladder.rung(profile);
    let mut figures = vec![Text::new(rung.map_or("", |r| r.published), Tone::Strong)];
    if !ladder.real_servers.is_empty() {
        figures.push(rung.map_or("", |r| r.real_server).into());
    }
    figures
}

/// Names of profiles, each without what it shares with the one before: `pg96`, `+direct-syscache`, `+small-map`.
fn short_names<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut before = "";
    names
        .map(|name| {
            let rest = name.strip_prefix(before).filter(|rest| rest.starts_with('+') && !before.is_empty());
            before = name;
            rest.unwrap_or(name).to_owned()
        })
        .collect()
}

/// A profile's name; one that gives something else cannot be overlooked.
fn row_name(name: &str, identical: bool) -> Text {
    if identical { Text::new(name, Tone::Strong) } else { Text::new(format!("{name} DIFFERS"), Tone::Bad) }
}

/// CPU time, how much faster than the first row, and a bar.
fn cpu(cpu_ns: u64, first_ns: u64, slowest_ns: u64) -> [Text; 3] {
    let tone = if cpu_ns.saturating_mul(4) >= slowest_ns.saturating_mul(3) { Tone::Bad } else { Tone::Good };
    let faster = if cpu_ns == first_ns { "–".to_owned() } else { times(cpu_ns as f64, first_ns as f64) };
    [Text::new(nanos(cpu_ns), Tone::Strong), faster.into(), Text::new(bar(cpu_ns, slowest_ns, BAR_COLUMNS), tone)]
}

/// What each rung changed, in words.
fn changes<'a>(ladder: &Ladder, profiles: impl Iterator<Item = &'a str>, names: &[String], paint: Paint) -> String {
    let known = profiles.zip(names).filter_map(|(profile, name)| Some((name, ladder.rung(profile)?.change)));
    let words: Vec<String> = known.map(|(name, change)| format!("{name}: {change}")).collect();
    if words.is_empty() {
        return String::new();
    }
    let mut text = format!("{}\n", paint.dim(&wrapped(&words.join(" · "), COLUMNS)));
    if !ladder.real_servers.is_empty() {
        text.push_str(&format!("{}\n", paint.dim(&wrapped(&format!("real server: {}", ladder.real_servers), COLUMNS))));
    }
    text
}

/// A profile of functions in the manner of perf: a row a function, a column a profile, with the published share beside ours.
fn functions(timed: &SourceTimings, ladder: &Ladder, names: &[String], paint: Paint) -> String {
    if ladder.functions.is_empty() {
        return String::new();
    }
    let shares: Vec<BTreeMap<&str, f64>> = timed.decoder_profiles.iter().map(shares).collect();
    let published = |i: usize| timed.decoder_profiles.get(i).map_or(&[][..], |t| ladder.published_functions(&t.profile));
    let mut greatest: BTreeMap<&str, f64> = BTreeMap::new();
    for (i, shares) in shares.iter().enumerate() {
        for (name, share) in shares {
            let known = published(i).iter().any(|(published, _)| published == name);
            let share = if known { share.max(SHARE_MIN) } else { *share };
            let most = greatest.entry(name).or_default();
            *most = most.max(share);
        }
    }
    let mut rows: Vec<_> = greatest.into_iter().filter(|(_, most)| *most >= SHARE_MIN).collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
    let mut head = vec![("% of CPU but reading (published)", Column::Left)];
    head.extend(names.iter().map(|name| (name.as_str(), Column::Right)));
    let cell = |i: usize, shares: &BTreeMap<&str, f64>, function: &str| {
        let ours = shares.get(function).copied().unwrap_or(0.0);
        let theirs = published(i).iter().find(|(name, _)| *name == function).map(|(_, share)| format!(" ({share})"));
        let lead = shares.values().all(|other| *other <= ours) && ours > 0.0;
        let shown = if ours < 0.5 && theirs.is_none() { String::new() } else { format!("{ours:.0}") };
        Text::new(shown + &theirs.unwrap_or_default(), if lead { Tone::Strong } else { Tone::Plain })
    };
    let rows: Vec<Vec<Text>> = rows
        .into_iter()
        .map(|(function, _)| {
            let cells = shares.iter().enumerate().map(|(i, shares)| cell(i, shares, function));
            std::iter::once(Text::from(function)).chain(cells).collect()
        })
        .collect();
    format!("\n{}\n", table(&head, &rows, paint))
}

/// Each function's share in per cent, reading left out.
fn shares<'a>(measured: &'a DecoderProfileTimings) -> BTreeMap<&'a str, f64> {
    let decoding = || measured.functions_cpu_ns.iter().filter(|(name, _)| **name != READING);
    let total = decoding().map(|(_, ns)| ns).sum::<u64>().max(1) as f64;
    decoding().map(|(name, ns)| (*name as &'a str, 100.0 * *ns as f64 / total)).collect()
}

/// The table of a standby's readers.
pub(super) fn standby(source: &SourceReport, timed: &SourceTimings, ladder: Option<&Ladder>, paint: Paint) -> String {
    let profiles = &source.standby_profiles;
    let each = |n: u64, snapshots: u64| n.checked_div(snapshots).unwrap_or(0);
    let measured = |i: usize| timed.standby_profiles.get(i).map_or(0, |t| t.snapshot_cpu_ns);
    let costs: Vec<u64> = profiles.iter().enumerate().map(|(i, p)| each(measured(i), p.snapshots)).collect();
    let slowest = costs.iter().copied().max().unwrap_or(0);
    let first = costs.first().copied().unwrap_or(0);
    let mut head = vec![("standby as", Column::Left)];
    head.extend(figures_head(ladder));
    head.extend([
        ("CPU a snapshot", Column::Right),
        ("faster", Column::Right),
        ("", Column::Left),
        ("slots seen", Column::Right),
        ("jumped", Column::Right),
        ("span", Column::Right),
        ("live", Column::Right),
        ("compressions", Column::Right),
    ]);
    let names: Vec<String> = profiles.iter().map(|p| p.profile.clone()).collect();
    let rows = profiles.iter().zip(&costs).map(|(profile, &cost)| {
        let mut row = vec![row_name(&profile.profile, profile.identical_snapshots)];
        row.extend(figures(ladder, &profile.profile));
        row.extend(cpu(cost, first, slowest));
        let seen = each(profile.work.xid_slots_visited, profile.snapshots);
        let jumped = each(profile.work.xid_slots_skipped, profile.snapshots);
        let counts = [seen, jumped, u64::from(profile.span_max), u64::from(profile.live_max), profile.compressions];
        row.extend(counts.map(|n| Text::from(count(n))));
        row
    });
    let rows: Vec<Vec<Text>> = rows.collect();
    let snapshots = profiles.first().map_or(0, |p| p.snapshots);
    let legend = format!(
        "{} snapshots under each, by the WAL's own time; slots seen and jumped are means of a snapshot, span and live the most",
        count(snapshots)
    );
    let mut text = format!("{}\n{}\n", table(&head, &rows, paint), paint.dim(&wrapped(&legend, COLUMNS)));
    if let Some(ladder) = ladder {
        text.push_str(&changes(ladder, profiles.iter().map(|p| p.profile.as_str()), &names, paint));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rung_that_adds_a_switch_is_called_by_it() {
        let names = ["pg96", "pg96+direct-syscache", "pg96+direct-syscache+small-map", "pg10", "pg14"];
        assert_eq!(short_names(names.into_iter()), ["pg96", "+direct-syscache", "+small-map", "pg10", "pg14"]);
        assert_eq!(short_names(["pg1", "pg18"].into_iter()), ["pg1", "pg18"]);
    }

    #[test]
    fn shares_leave_reading_out() {
        let functions_cpu_ns = [("hash_seq_search", 30), (READING, 60), ("CatCacheInvalidate", 10)].into();
        let measured = DecoderProfileTimings { functions_cpu_ns, cpu_ns: 100, ..DecoderProfileTimings::default() };
        let shares = shares(&measured);
        assert_eq!(shares.get("hash_seq_search"), Some(&75.0));
        assert_eq!(shares.len(), 2);
    }
}
