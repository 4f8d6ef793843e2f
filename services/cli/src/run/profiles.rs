//! What a WAL costs a decoder, profile by profile, and which transactions cost most. Each profile decodes the WAL once, through the
//! engine of `walstorm compare`, so that a slow one holds up nobody else.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::path::Path;

use decoder_core::{DecodedTransaction, PluginOptions, Profile};
use decoder_node::ScenarioDecoder;
use pg_types::record::ParameterChangeRecord;
use pg_types::{InvalidationKind, Lsn, PgVersion, RecordBody, SysCacheTable, Work};
use pg_wal::{WalDir, WalReader};
use standby_node::config::SizeSettings;

use super::report::{CacheCount, TransactionReport, WalReport};
use crate::compare::{Row, measure};
use crate::wal_input::{Decoding, WalInput};

/// How many of the costliest transactions are shown.
pub const COSTLIEST: usize = 10;

/// CPU time that is sampled under each profile, in nanoseconds; a WAL that takes less is decoded several times.
const SAMPLED_CPU_NS: u64 = 400_000_000;
/// How often, at most.
const REPEAT_MAX: u32 = 25;

/// What the profiles of one WAL came to.
#[derive(Debug)]
pub struct Profiles {
    /// A row a profile, in the order asked for.
    pub rows: Vec<Row>,
    /// The costliest transactions, dearest first.
    pub costliest: Vec<TransactionReport>,
    /// Steps of all transactions under the profile that ranks them.
    pub steps_all: u64,
    /// Publications that were asked for and are not there.
    pub missing_publications: Vec<String>,
}

/// Decodes the WAL in `dir` under each of `profiles`, with callbacks and memory limit of `decoder`, for who asks for `options`; `rank_by` decides which transactions are
/// costly, and must be one of them. All is given out at its commit, so that profiles can be compared.
/// `progress` is told each profile before it runs.
///
/// # Errors
/// The WAL cannot be read or decoded.
pub fn run(
    dir: &Path,
    catalog: Option<&Path>,
    (decoder, options): (ScenarioDecoder, &PluginOptions),
    profiles: &[Profile],
    rank_by: &Profile,
    progress: &mut dyn FnMut(&str),
) -> anyhow::Result<Profiles> {
    let mut input = WalInput::open(dir, catalog, None)?;
    (input.callbacks, input.options) = (decoder.callbacks, options.clone());
    let decoding = |profile: &Profile| Decoding::at_commit(profile, decoder.work_mem.unwrap_or_default());
    progress(&rank_by.name);
    let mut ranking = Ranking::default();
    let (mut ranked, digest, _) = measure(&input, &decoding(rank_by), None, &mut |t| ranking.add(t))?;
    repeat(&input, &decoding(rank_by), &mut ranked)?;
    let (transactions, steps_all) = ranking.finish();
    let missing_publications = std::mem::take(&mut ranked.missing_publications);
    let mut works: HashMap<Lsn, Vec<(String, Work)>> = transactions.iter().map(|t| (t.commit_lsn, Vec::new())).collect();
    let mut rows = Vec::new();
    let mut ranked = Some(ranked);
    let mut reference = digest;
    for profile in profiles {
        let row = if profile == rank_by && ranked.is_some() {
            transactions.iter().for_each(|t| note(&mut works, profile, t));
            ranked.take()
        } else {
            progress(&profile.name);
            let (mut row, digest, _) =
                measure(&input, &decoding(profile), Some(reference), &mut |t| note(&mut works, profile, t))?;
            repeat(&input, &decoding(profile), &mut row)?;
            if rows.is_empty() && !row.identical_output {
                // The first row is what the others are compared with.
                reference = digest;
            }
            Some(row)
        };
        rows.extend(row);
    }
    let costliest = reports(input.dir().identity().version, &transactions, works);
    Ok(Profiles { rows, costliest, steps_all, missing_publications })
}

/// Decodes again until there was enough CPU time to look at: functions are sampled, and a short run gives few looks.
fn repeat(input: &WalInput, decoding: &Decoding, row: &mut Row) -> anyhow::Result<()> {
    let mut looked_at = row.cpu.total_ns();
    for _ in 1..REPEAT_MAX {
        if looked_at >= SAMPLED_CPU_NS {
            break;
        }
        let (again, _, _) = measure(input, decoding, None, &mut |_| ())?;
        looked_at += again.cpu.total_ns();
        row.cpu.merge(&again.cpu);
        row.wall_ns = row.wall_ns.min(again.wall_ns);
    }
    Ok(())
}

/// Notes what a transaction cost under a profile, if it is one of those that are shown.
fn note(works: &mut HashMap<Lsn, Vec<(String, Work)>>, profile: &Profile, transaction: &DecodedTransaction) {
    if let Some(works) = works.get_mut(&transaction.commit_lsn) {
        works.push((profile.name.clone(), transaction.work));
    }
}

/// Keeps the costliest transactions.
#[derive(Default)]
struct Ranking {
    /// Steps, and among equals the earlier first; the least on top.
    heap: BinaryHeap<Reverse<(u64, Reverse<Lsn>)>>,
    /// Those on the heap, by commit LSN.
    kept: BTreeMap<Lsn, DecodedTransaction>,
    /// Steps of all transactions.
    steps_all: u64,
}

impl Ranking {
    /// Looks at the next transaction.
    fn add(&mut self, transaction: &DecodedTransaction) {
        let steps = transaction.work.steps();
        self.steps_all = self.steps_all.saturating_add(steps);
        let key = Reverse((steps, Reverse(transaction.commit_lsn)));
        if self.heap.len() == COSTLIEST {
            if self.heap.peek().is_some_and(|least| key >= *least) {
                return;
            }
            if let Some(Reverse((_, Reverse(least)))) = self.heap.pop() {
                self.kept.remove(&least);
            }
        }
        self.heap.push(key);
        self.kept.insert(transaction.commit_lsn, transaction.clone());
    }

    /// The costliest, dearest first, and the steps of all.
    fn finish(mut self) -> (Vec<DecodedTransaction>, u64) {
        let order = self.heap.into_sorted_vec();
        let transactions = order.iter().filter_map(|Reverse((_, Reverse(lsn)))| self.kept.remove(lsn)).collect();
        (transactions, self.steps_all)
    }
}

/// The costliest transactions with what their commit records say.
fn reports(
    version: PgVersion,
    transactions: &[DecodedTransaction],
    mut works: HashMap<Lsn, Vec<(String, Work)>>,
) -> Vec<TransactionReport> {
    let table = SysCacheTable::of(version);
    let report = |t: &DecodedTransaction| {
        let kinds = InvalidationKind::ALL.iter().map(|kind| (kind.name(), t.messages.of(*kind)));
        TransactionReport {
            xid: t.xid.numeric(),
            commit_lsn: t.commit_lsn,
            looks_like: t.story().to_string(),
            rows: t.relations.iter().map(|r| r.insert + r.update + r.delete).sum(),
            messages: kinds.filter(|(_, n)| *n > 0).collect(),
            caches: count_caches(t, table),
            work: works.remove(&t.commit_lsn).unwrap_or_default(),
        }
    };
    transactions.iter().map(report).collect()
}

/// A transaction's catcache messages by cache, most first, names of the WAL's version.
fn count_caches(transaction: &DecodedTransaction, table: &SysCacheTable) -> Vec<CacheCount> {
    let name = |id: u8| {
        i8::try_from(id).ok().and_then(|id| table.id(id)).map_or_else(|| id.to_string(), |id| table.cache(id).name.to_owned())
    };
    let counts = transaction.footprint.caches().map(|(id, messages)| CacheCount { cache: name(id), messages });
    let mut counts: Vec<CacheCount> = counts.collect();
    counts.sort_by(|a, b| b.messages.cmp(&a.messages).then_with(|| a.cache.cmp(&b.cache)));
    counts
}

/// What a WAL is: its identity, its size and what ends in it. Raises `settings` to what the server that wrote it had, as far as
/// the WAL tells: a standby with less must not replay it.
///
/// # Errors
/// The WAL cannot be read.
pub fn survey(dir: &Path, settings: &mut SizeSettings) -> anyhow::Result<WalReport> {
    let dir = WalDir::open(dir, None)?;
    let identity = dir.identity();
    let mut reader = WalReader::open(&dir, None)?;
    let mut report = WalReport {
        version: identity.version.major(),
        system_id: identity.system_id.to_string(),
        timeline: identity.timeline,
        ..WalReport::default()
    };
    while let Some(raw) = reader.next()? {
        if !report.start_lsn.is_valid() {
            report.start_lsn = raw.lsn;
        }
        report.records += 1;
        report.end_lsn = raw.end_lsn;
        match raw.decode(dir.profile())?.body {
            RecordBody::Commit(commit) => {
                report.commits += 1;
                report.messages += commit.messages.len() as u64;
            }
            RecordBody::Abort(_) => report.aborts += 1,
            RecordBody::ParameterChange(change) => {
                report.below_logical |= change.wal_level < WAL_LEVEL_LOGICAL;
                raise(settings, &change);
            }
            _ => {}
        }
    }
    report.bytes = report.end_lsn.0 - report.start_lsn.0;
    Ok(report)
}

/// `WAL_LEVEL_LOGICAL`.
const WAL_LEVEL_LOGICAL: i32 = 2;

/// Raises each setting to the server's.
fn raise(settings: &mut SizeSettings, change: &ParameterChangeRecord) {
    let pairs = [
        (&mut settings.max_connections, change.max_connections),
        (&mut settings.max_worker_processes, change.max_worker_processes),
        (&mut settings.max_wal_senders, change.max_wal_senders),
        (&mut settings.max_prepared_transactions, change.max_prepared_xacts),
    ];
    for (setting, servers) in pairs {
        *setting = (*setting).max(u32::try_from(servers).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use pg_types::Xid;

    use super::*;

    fn transaction(commit_lsn: u64, messages_executed: u64) -> DecodedTransaction {
        DecodedTransaction {
            xid: Xid(commit_lsn as u32),
            commit_lsn: Lsn(commit_lsn),
            work: Work { messages_executed, spill_bytes: 1 << 40, ..Work::default() },
            ..DecodedTransaction::default()
        }
    }

    #[test]
    fn settings_are_raised_to_the_servers_and_never_lowered() {
        let mut settings = SizeSettings::default();
        let change = ParameterChangeRecord { max_connections: 5000, max_worker_processes: -1, ..Default::default() };
        raise(&mut settings, &change);
        assert_eq!(settings, SizeSettings { max_connections: 5000, ..SizeSettings::default() });
    }

    #[test]
    fn the_costliest_are_kept_and_among_equals_the_earlier() {
        let mut ranking = Ranking::default();
        for i in 0..100 {
            ranking.add(&transaction(i, i % 20));
        }
        let (kept, all) = ranking.finish();
        let found: Vec<_> = kept.iter().map(|t| (t.work.messages_executed, t.commit_lsn.0)).collect();
        let expected: Vec<_> = [19, 18].iter().flat_map(|n| (0..5).map(move |i| (*n, i * 20 + n))).collect();
        assert_eq!(found, expected);
        assert_eq!(all, 5 * (0..20).sum::<u64>(), "bytes are no steps");
    }
}
