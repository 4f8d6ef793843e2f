//! The one line that tells a source's story.

use crate::run::ladder::{Ladder, Rung, Side};
use crate::run::report::{SourceReport, SourceTimings};
use crate::run::text::{nanos, percent, short_count, times};

/// The story of a source; none if there is nothing to compare.
pub(super) fn story(source: &SourceReport, timed: &SourceTimings, ladder: Option<&Ladder>) -> Option<String> {
    match ladder {
        Some(ladder) => ladder_story(source, timed, ladder),
        None => wal_story(source),
    }
}

/// The two ends of what was published, and the same two here.
fn ladder_story(source: &SourceReport, timed: &SourceTimings, ladder: &Ladder) -> Option<String> {
    let cost = |rung: &Rung| match ladder.side {
        Side::Decoder => timed.decoder_profiles.iter().find(|t| t.profile == rung.profile).map(|t| t.cpu_ns),
        Side::Standby => {
            let taken = source.standby_profiles.iter().find(|p| p.profile == rung.profile)?.snapshots;
            let measured = timed.standby_profiles.iter().find(|t| t.profile == rung.profile)?;
            measured.snapshot_cpu_ns.checked_div(taken)
        }
    };
    let (before, after) = (ladder.rung(ladder.story.0)?, ladder.rung(ladder.story.1)?);
    let (from, to) = (cost(before)?, cost(after)?);
    let what = match ladder.side {
        Side::Decoder => "of CPU",
        Side::Standby => "of CPU a snapshot",
    };
    Some(format!(
        "{} → {}: published {} → {}; here {} → {} {what}, {}",
        before.profile,
        after.profile,
        before.published,
        after.published,
        nanos(from),
        nanos(to),
        times(to as f64, from as f64),
    ))
}

/// The dearest transaction, and what other versions make of it.
fn wal_story(source: &SourceReport) -> Option<String> {
    let dearest = source.costliest.first()?;
    let of = |profile: &str| dearest.work.iter().find(|(name, _)| name == profile).map(|(_, work)| work.steps());
    let ranked = of(&source.ranked_by)?;
    let others: Vec<_> = dearest.work.iter().filter(|(name, _)| *name != source.ranked_by).collect();
    let most = others.iter().max_by_key(|(_, work)| work.steps());
    let least = others.iter().min_by_key(|(_, work)| work.steps());
    let mut beside: Vec<String> = Vec::new();
    for (name, work) in [most, least].into_iter().flatten() {
        let part = format!("{} as {name}", short_count(work.steps()));
        if !beside.contains(&part) {
            beside.push(part);
        }
    }
    Some(format!(
        "dearest: xid {} at {}, {}: {} steps as {} ({} of all){}{}",
        dearest.xid,
        dearest.commit_lsn,
        dearest.looks_like,
        short_count(ranked),
        source.ranked_by,
        percent(ranked, source.steps_all),
        if beside.is_empty() { "" } else { ", " },
        beside.join(", "),
    ))
}
