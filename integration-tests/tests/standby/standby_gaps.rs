//! `standby-gaps`: slots that a snapshot looks at, by how the array is walked.

use pg_types::{WalRecord, Xid};
use walstorm_proto::standby::v1::TakeSnapshotResponse;

use crate::played::{Played, ended, text};
use crate::rig::Rig;

/// Snapshots of a run.
const SNAPSHOTS: usize = 40;

/// Snapshots over gRPC at some ends of transactions, and how many xids ended before each since the one before.
async fn snapshots(played: &Played, profile: &str) -> Vec<(TakeSnapshotResponse, u64)> {
    let mut rig = Rig::start(played, |config| config.profile = Some(profile.to_owned())).await;
    let ends: Vec<&WalRecord> = played.records.iter().filter(|record| !ended(record).is_empty()).collect();
    let mut snapshots = Vec::new();
    for group in ends.chunks(ends.len() / SNAPSHOTS) {
        rig.grow(group.last().unwrap().end_lsn).await;
        let gone: usize = group.iter().map(|record| ended(record).len()).sum();
        snapshots.push((rig.snapshot().await.unwrap(), gone as u64));
    }
    rig.stop().await;
    snapshots
}

/// Runs of xids that have ended between those that run: the runs of dead slots are no more.
fn gaps(snapshot: &TakeSnapshotResponse) -> u64 {
    let after = snapshot.xip.last().is_some_and(|&last| Xid(last).next() != Xid(snapshot.xmax));
    let between = snapshot.xip.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count();
    between as u64 + u64::from(after)
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_walks_pay_the_span_skip_offsets_what_runs_and_segments_that_alone() {
    let played = Played::small("standby-gaps", &[]);
    let plain = snapshots(&played, "pg13.6").await;
    let skip = snapshots(&played, "pg13.6+skip-offset").await;
    let indexed = snapshots(&played, "indexed").await;
    let (mut spans, mut sums) = (0, [0; 3]);
    for (n, (((plain, gone), (skip, _)), (indexed, _))) in plain.iter().zip(&skip).zip(&indexed).enumerate() {
        let list = |s: &TakeSnapshotResponse| (s.replay_lsn, s.xmin, s.xmax, s.xip.clone());
        assert_eq!((list(plain), list(plain)), (list(skip), list(indexed)), "the same snapshot under each, {n}");
        let live = u64::from(plain.array_live);
        let span = u64::from(plain.array_head - plain.array_tail);
        // A walk ends at the first xid past xmax, if one runs there.
        let to_the_head = plain.array_live == plain.xip_count;
        assert!(if to_the_head { plain.slots_visited == span } else { plain.slots_visited <= span }, "{plain:?}");
        spans += usize::from(to_the_head);
        assert_eq!(skip.slots_visited + skip.slots_skipped, plain.slots_visited, "{n}");
        if n == 0 {
            assert_eq!(skip.slots_visited, plain.slots_visited, "the first scan finds the gaps");
        } else {
            assert!(skip.slots_visited <= live + gaps(plain) + gone, "{n}: {skip:?} after {gone} ends");
        }
        assert!(indexed.slots_visited <= live, "{n}: {indexed:?}");
        sums[0] += plain.slots_visited;
        sums[1] += skip.slots_visited;
        sums[2] += indexed.slots_visited;
    }
    assert!(spans > SNAPSHOTS / 4, "{spans} walks went to the head");
    assert!(sums[0] > 3 * sums[1] && sums[1] > 3 * sums[2], "{sums:?}");
}

/// The most slots between tail and head after a record.
fn span_max(played: &Played, profile: &str) -> u32 {
    let mut writer = played.standby(profile);
    let spans = played.records.iter().map(|record| {
        writer.apply(record).unwrap();
        writer.state().known_assigned.span()
    });
    spans.max().unwrap()
}

/// Measured on servers with `max_connections = 5000`: 13.6 1,029 to 18,447 and 15.1 3,049 to 18,708, in a sawtooth whose top is
/// short of four times the process slots; 13.23 29 to 101, 16.14 69 to 119, 18.4 82 to 137.
#[test]
fn spans_are_those_of_servers_by_the_rule_of_compression() {
    let played = Played::small("standby-gaps", &[("duration", text("12s")), ("longest", text("30s"))]);
    for profile in ["pg13.6", "pg14.5", "pg15.1"] {
        let slots = played.settings().sizes(&profile.parse().unwrap()).unwrap().max_procs;
        let most = span_max(&played, profile);
        assert!(most < 4 * slots + 20 && most > 4 * slots - 200, "{profile}: {most} of {slots}");
    }
    for profile in ["pg13", "pg14", "pg15", "pg16", "pg17", "pg18"] {
        let most = span_max(&played, profile);
        assert!((100..=160).contains(&most), "{profile}: {most}");
    }
    // Without long transactions the tail goes with the head: both rules have a short array.
    let short = Played::small("standby-gaps", &[("duration", text("2s")), ("longest", text("0s"))]);
    for profile in ["pg13.6", "pg13", "pg18"] {
        let most = span_max(&short, profile);
        assert!(most < 160, "{profile}: {most}");
    }
}
