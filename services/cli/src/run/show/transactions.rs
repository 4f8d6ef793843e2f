//! The table of the costliest transactions.

use pg_types::Work;

use crate::run::paint::{COLUMNS, Column, Paint, Text, Tone, table};
use crate::run::report::{SourceReport, TransactionReport};
use crate::run::text::{count, harmless_cut, percent, short_count};

/// Most columns of what a transaction looks like.
const LOOKS_COLUMNS_MAX: usize = 60;
/// Fewest of them, where nothing fits.
const LOOKS_COLUMNS_MIN: usize = 16;
/// Caches that are named.
const CACHES: usize = 1;
/// Profiles whose steps are shown beside each other, so that all fits into the width.
const PROFILES: usize = 3;

/// The table with its title.
pub(super) fn costliest(source: &SourceReport, paint: Paint) -> String {
    let shown: u64 = source.costliest.iter().map(|t| ranked(source, t)).sum();
    let title = format!(
        "  {} of {} transactions: {} of all steps of decoding as {}, {}",
        paint.strong(&format!("The {} costliest", source.costliest.len())),
        count(source.pipeline.transactions_decoded),
        percent(shown, source.steps_all),
        source.ranked_by,
        source.consumer,
    );
    let profiles = profiles(source);
    let title_of = |(i, profile): (usize, &String)| if i == 0 { format!("steps: {profile}") } else { profile.clone() };
    let titles: Vec<String> = profiles.iter().enumerate().map(title_of).collect();
    let mut head = vec![
        ("xid", Column::Right),
        ("commit LSN", Column::Left),
        ("looks like", Column::Left),
        ("messages", Column::Right),
        ("most of them", Column::Left),
    ];
    head.extend(titles.iter().map(|title| (title.as_str(), Column::Right)));
    let with = |looks_columns: usize| -> Vec<Vec<Text>> {
        source.costliest.iter().map(|t| row(t, &profiles, looks_columns)).collect()
    };
    let fits = |columns: &usize| {
        let plain = table(&head, &with(*columns), Paint::plain());
        plain.lines().all(|line| line.chars().count() <= COLUMNS)
    };
    let columns = (LOOKS_COLUMNS_MIN..=LOOKS_COLUMNS_MAX).rev().find(fits).unwrap_or(LOOKS_COLUMNS_MIN);
    format!("{title}\n{}\n", table(&head, &with(columns), paint))
}

/// Which profiles are shown: the dearest of those before the one that ranks, that one, and the cheapest.
fn profiles(source: &SourceReport) -> Vec<String> {
    let total = |profile: &str| -> u64 {
        source.costliest.iter().filter_map(|t| work(t, profile)).map(Work::steps).fold(0, u64::saturating_add)
    };
    let mut names: Vec<String> = source.decoder_profiles.iter().map(|p| p.profile.clone()).collect();
    names.sort_by_key(|name| (std::cmp::Reverse(total(name)), name.clone()));
    while names.len() > PROFILES {
        // The dearest, the one that ranks and the cheapest stay.
        let last = names.len() - 1;
        match (1..last).find(|i| names.get(*i).is_some_and(|name| *name != source.ranked_by)) {
            Some(index) => names.remove(index),
            None => names.remove(1),
        };
    }
    names
}

/// A transaction's work under a profile.
fn work<'a>(transaction: &'a TransactionReport, profile: &str) -> Option<&'a Work> {
    transaction.work.iter().find(|(name, _)| name == profile).map(|(_, work)| work)
}

/// Its steps under the profile that ranks.
fn ranked(source: &SourceReport, transaction: &TransactionReport) -> u64 {
    work(transaction, &source.ranked_by).map_or(0, Work::steps)
}

/// One transaction.
fn row(transaction: &TransactionReport, profiles: &[String], looks_columns: usize) -> Vec<Text> {
    let messages: u64 = transaction.messages.values().sum();
    let mut row: Vec<Text> = vec![
        transaction.xid.to_string().into(),
        transaction.commit_lsn.to_string().into(),
        Text::new(harmless_cut(&transaction.looks_like, looks_columns), Tone::Strong),
        count(messages).into(),
        Text::new(leading(transaction), Tone::Dim),
    ];
    row.extend(profiles.iter().map(|profile| Text::from(short_count(work(transaction, profile).map_or(0, Work::steps)))));
    row
}

/// The kinds and caches with the most messages.
fn leading(transaction: &TransactionReport) -> String {
    let mut parts: Vec<String> =
        transaction.caches.iter().take(CACHES).map(|c| format!("{} {}", count(c.messages), c.cache)).collect();
    if let Some(relcache) = transaction.messages.get("relcache") {
        parts.push(format!("{} relcache", count(*relcache)));
    }
    parts.join(", ")
}
