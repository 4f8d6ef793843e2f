//! Against real standbys of 13, 15, 16 and 18, stopped after records: states, array, compressions and snapshots are theirs.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a recording that cannot be read fails the test")]

#[path = "support/running.rs"]
mod running;
mod support;

use std::collections::{BTreeMap, HashSet};

use pg_types::record::{CheckpointRecord, RecordBody};
use pg_types::{FullXid, Lsn, WalRecord, Xid};
use running::running;
use serde_json::{Value, json};
use standby_core::{
    CompressCall, CompressReason, CompressionRule, KnownAssignedLayout, RecoveryReader, RecoveryWriter, ReplayedState,
    StandbyProfile, StandbyState, TakenSnapshot,
};
use support::{RUNS, Run};

/// The layout of current minors.
const COUNTED: KnownAssignedLayout = KnownAssignedLayout::Array(CompressionRule::Counted);

/// A replay of a run's WAL, record by record.
struct Replay {
    run: Run,
    writer: RecoveryWriter,
    records: Vec<WalRecord>,
    idle: BTreeMap<Lsn, Vec<(u64, u64)>>,
}

/// A call of compression, with the replay position before it.
type Calls = Vec<(Lsn, CompressCall)>;

impl Replay {
    /// Started at the backup's checkpoint, with the run's profile and a `switch` added.
    fn new(run: Run, switch: &str) -> Self {
        Self::of(run, format!("{}{switch}", run.profile).parse().unwrap())
    }

    /// Started at the backup's checkpoint, with a profile.
    fn of(run: Run, profile: StandbyProfile) -> Self {
        let records = run.records();
        let (redo, checkpoint_lsn) = run.backup_label();
        let checkpoint = records.iter().find(|r| r.lsn == checkpoint_lsn).map(|r| &r.body);
        let Some(RecordBody::Checkpoint(checkpoint)) = checkpoint else { panic!("no checkpoint at {checkpoint_lsn}") };
        let mut writer = RecoveryWriter::new(&run.settings(), profile).unwrap();
        let manifest = run.manifest();
        assert_eq!(u64::from(writer.sizes().max_known_assigned_xids), manifest["max_known_assigned_xids"]);
        assert_eq!(u64::from(writer.sizes().max_backends), manifest["MaxBackends"]);
        writer.start_at_checkpoint(checkpoint, redo).unwrap();
        let idle = run.idle_calls();
        Self { run, writer, records, idle }
    }

    /// Replays all; after the start and after each record calls `see` with the writer and the compression calls since.
    fn each(mut self, mut see: impl FnMut(&RecoveryWriter, Calls)) {
        // The time of the last compression before the idle calls is part of the recording.
        if let Some((_, last_ms)) = self.idle.values().flatten().next() {
            self.writer.set_now(*last_ms);
        }
        see(&self.writer, Vec::new());
        for record in &self.records {
            let before = self.writer.state().replay_lsn;
            let mut calls = Calls::new();
            for (now_ms, _) in self.idle.remove(&before).unwrap_or_default() {
                self.writer.idle(now_ms);
                calls.extend(self.writer.compress_calls().iter().map(|c| (before, *c)));
            }
            self.writer.apply(record).unwrap_or_else(|e| panic!("{:?}: {e}", self.run));
            calls.extend(self.writer.compress_calls().iter().map(|c| (before, *c)));
            see(&self.writer, calls);
        }
        assert!(self.idle.is_empty(), "an idle position that no record ends at: {:?}", self.idle);
    }
}

/// `transactionEndsCounter` as recorded: nothing where the server has none.
fn counter(writer: &RecoveryWriter, counter: u32) -> String {
    if writer.profile().layout == COUNTED { counter.to_string() } else { String::new() }
}

/// A row of `trace`.
fn trace_row(writer: &RecoveryWriter) -> String {
    let s = writer.state();
    let k = &s.known_assigned;
    let ends = counter(writer, writer.transaction_ends_counter());
    format!(
        "{},{},{},{},{},{},{},{},{},{ends}",
        s.standby_state as u32,
        k.tail,
        k.head,
        k.live,
        s.last_overflowed_xid,
        s.next_xid.0,
        s.latest_completed_xid,
        s.latest_observed_xid,
        s.replay_lsn
    )
}

#[test]
fn every_change_of_the_array_is_that_of_the_real_standby() {
    for run in RUNS {
        let mut ours = Vec::new();
        let mut last = String::new();
        Replay::new(*run, "").each(|writer, _| {
            let row = trace_row(writer);
            let (fields, rest) = row.rsplit_once(',').map(|(f, ends)| (f.to_owned(), ends.to_owned())).unwrap();
            let (fields, lsn) = fields.rsplit_once(',').unwrap();
            let changed = format!("{fields},{rest}");
            if changed != last {
                ours.push(format!("{lsn},{changed}"));
                last = changed;
            }
        });
        assert_same(run, &ours, &run.rows("trace"));
    }
}

#[test]
fn every_compression_and_its_reason_is_that_of_the_real_standby() {
    for run in RUNS {
        let mut ours = Vec::new();
        Replay::new(*run, "").each(|writer, calls| {
            let state = writer.state();
            let k = &state.known_assigned;
            let after = counter(writer, writer.transaction_ends_counter());
            for (before, call) in calls {
                let reason = recorded_reason(call.reason, writer.profile().layout);
                let CompressCall { live, tail, head, .. } = call;
                let ends = counter(writer, call.counter);
                ours.push(format!(
                    "{before},{reason},{live},{tail},{head},{ends},{},{},{},{},{after}",
                    state.replay_lsn, k.live, k.tail, k.head
                ));
            }
        });
        assert_same(run, &ours, &run.rows("compress"));
        // A recording in which nothing is compressed would prove little.
        let shrunk = ours.iter().any(|row| {
            let field: Vec<&str> = row.split(',').collect();
            field[4].parse::<u32>().unwrap() > field[9].parse::<u32>().unwrap() + 1
        });
        assert!(shrunk, "{run:?}");
    }
}

/// The number in the recording: the enum's, or the flag `force` of the old minors.
fn recorded_reason(reason: CompressReason, layout: KnownAssignedLayout) -> u32 {
    if layout != COUNTED {
        return u32::from(reason == CompressReason::NoSpace);
    }
    match reason {
        CompressReason::NoSpace => 0,
        CompressReason::Prune => 1,
        CompressReason::TransactionEnd => 2,
        CompressReason::StartupProcessIdle => 3,
    }
}

/// Compares row by row, so that the first difference is what is printed.
fn assert_same(run: &Run, ours: &[String], theirs: &[String]) {
    for (n, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        assert_eq!(ours, theirs, "row {n} of {run:?}");
    }
    assert_eq!(ours.len(), theirs.len(), "rows of {run:?}");
}

/// What a stop says of the array.
fn array_of(state: &ReplayedState, ends: Option<u32>, keeps_count: bool) -> Value {
    let k = &state.known_assigned;
    json!({
        "replay_lsn": state.replay_lsn.to_string(),
        "state": state.standby_state as u32,
        "tail": k.tail,
        "head": k.head,
        "num": k.live,
        "array_span": k.span(),
        "valid": k.live_xids().iter().map(|x| x.0).collect::<Vec<_>>(),
        "last_overflowed_xid": state.last_overflowed_xid.0,
        "next_xid": state.next_xid.0,
        "latest_completed_xid": state.latest_completed_xid.0,
        "latest_observed_xid": state.latest_observed_xid.0,
        "pending_xmin": state.pending_xmin.0,
        "xact_completion_count": keeps_count.then_some(state.xact_completion_count),
        "transaction_ends_counter": ends,
    })
}

/// What a stop says of a reader's snapshot.
fn snapshot_of(taken: &TakenSnapshot) -> Value {
    let s = &taken.snapshot;
    json!({
        "xmin": s.xmin.0,
        "xmax": s.xmax.0,
        "xip": s.xip.iter().map(|x| x.0).collect::<Vec<_>>(),
        "suboverflowed": s.suboverflowed,
    })
}

/// The keys of `ours` in a stop; a missing one is null.
fn pick(stop: &Value, ours: &Value) -> Value {
    let keys = ours.as_object().unwrap().keys();
    Value::Object(keys.map(|k| (k.clone(), stop.get(k).cloned().unwrap_or(Value::Null))).collect())
}

/// Compares a stop's snapshots: the long-lived reader's, which may be reused, and a new reader's.
fn check_snapshots(stop: &Value, reader: &RecoveryReader, session: &mut Option<TakenSnapshot>, what: &str) {
    if stop.get("xip").is_none() {
        return;
    }
    let fresh = reader.snapshot().unwrap_or_else(|e| panic!("{what}: {e}"));
    let kept = reader.snapshot_or_reuse(session.take()).unwrap();
    let (ours, theirs) = (snapshot_of(&kept), pick(stop, &snapshot_of(&kept)));
    assert_eq!(ours, theirs, "the session's snapshot, {what}");
    match &stop["fresh_backend"] {
        Value::Null => {}
        Value::String(same) => {
            assert_eq!(same, "same");
            assert_eq!(snapshot_of(&fresh), theirs, "a new reader's, {what}");
        }
        differing => {
            let seen = snapshot_of(&fresh);
            for (key, value) in differing.as_object().unwrap() {
                assert_eq!(&seen[key], value, "a new reader's {key}, {what}");
            }
        }
    }
    *session = Some(kept);
}

#[test]
fn every_snapshot_is_that_of_the_real_standby() {
    let mut snapshots = 0;
    for run in RUNS {
        for switch in ["", "+skip-offset"] {
            let mut stops = run.stops(&format!("snapshots{}", run.suffix)).into_iter().peekable();
            let mut session = None;
            Replay::new(*run, switch).each(|writer, _| {
                let state = writer.state();
                let Some(stop) = stops.next_if(|s| s["replay_lsn"] == state.replay_lsn.to_string()) else { return };
                let what = format!("{run:?}{switch} at {}", state.replay_lsn);
                let counted = writer.profile().layout == COUNTED;
                let ends = counted.then(|| writer.transaction_ends_counter());
                let ours = array_of(&state, ends, writer.profile().reuse_snapshot);
                assert_eq!(ours, pick(&stop, &ours), "{what}");
                check_snapshots(&stop, &writer.reader(), &mut session, &what);
                snapshots += usize::from(stop.get("xip").is_some());
            });
            assert_eq!(stops.next(), None, "a stop that no record ends at: {run:?}");
        }
    }
    assert!(snapshots > 10_000, "{snapshots}");
}

#[test]
fn segments_give_every_snapshot_of_the_real_standby() {
    for run in RUNS {
        let mut profile: StandbyProfile = run.profile.parse().unwrap();
        profile.layout = KnownAssignedLayout::Segments;
        let mut stops = run.stops(&format!("snapshots{}", run.suffix)).into_iter().peekable();
        let mut session = None;
        Replay::of(*run, profile).each(|writer, _| {
            let state = writer.state();
            let Some(stop) = stops.next_if(|s| s["replay_lsn"] == state.replay_lsn.to_string()) else { return };
            let what = format!("{run:?} in segments at {}", state.replay_lsn);
            let live: Vec<u32> = state.known_assigned.live_xids().iter().map(|x| x.0).collect();
            assert_eq!(json!(live), stop["valid"], "{what}");
            check_snapshots(&stop, &writer.reader(), &mut session, &what);
        });
        assert_eq!(stops.next(), None, "a stop that no record ends at: {run:?}");
    }
}

/// A standby that begins at this record, as the first checkpoint or list that it sees.
fn started_at(run: &Run, record: &WalRecord) -> Option<RecoveryWriter> {
    let checkpoint = match &record.body {
        RecordBody::Checkpoint(checkpoint) => (**checkpoint).clone(),
        RecordBody::RunningXacts(running) => {
            CheckpointRecord { next_xid: FullXid(u64::from(running.next_xid.0)), ..CheckpointRecord::default() }
        }
        _ => return None,
    };
    let mut writer = RecoveryWriter::new(&run.settings(), run.profile.parse().unwrap()).unwrap();
    writer.start_at_checkpoint(&checkpoint, record.lsn).unwrap();
    Some(writer)
}

#[test]
fn a_standby_started_anywhere_comes_to_the_same_state() {
    let (mut starts, mut pending, mut compared, mut overflowed) = (0, 0, 0, 0);
    for run in RUNS.iter().filter(|r| r.suffix.is_empty()) {
        let (mut late, mut aborted): (Vec<RecoveryWriter>, HashSet<Xid>) = Default::default();
        let Replay { mut writer, records, .. } = Replay::new(*run, "");
        for (n, record) in records.iter().enumerate() {
            late.extend(started_at(run, record));
            if let RecordBody::Abort(abort) = &record.body {
                aborted.extend(abort.subxids.iter().chain([&record.xid]));
            }
            for one in late.iter_mut().chain([&mut writer]) {
                one.apply(record).unwrap_or_else(|e| panic!("{run:?}: {e}"));
            }
            let Ok(whole) = writer.reader().snapshot() else { continue };
            for one in &late {
                let Ok(taken) = one.reader().snapshot() else { continue };
                let (a, b) = (&whole.snapshot, &taken.snapshot);
                assert_eq!((a.replay_lsn, a.xmin, a.xmax), (b.replay_lsn, b.xmin, b.xmax), "{run:?}");
                // Who started at a list with subtransactions has some that an assignment took from the other, and knows all.
                if !a.suboverflowed && !b.suboverflowed {
                    assert_eq!(a.xip, b.xip, "{run:?} at {}", a.replay_lsn);
                    compared += 1;
                } else if n % 16 == 0 {
                    assert_eq!(running(&writer, a, &aborted), running(one, b, &aborted), "{run:?} at {}", a.replay_lsn);
                    overflowed += 1;
                }
            }
            pending += usize::from(late.last().is_some_and(|w| w.state().standby_state == StandbyState::SnapshotPending));
        }
        starts += late.len();
        for one in &late {
            let (a, b) = (writer.state(), one.state());
            assert_eq!(a.known_assigned.live_xids(), b.known_assigned.live_xids(), "{run:?}");
            assert_eq!((a.next_xid.xid(), a.latest_completed_xid), (b.next_xid.xid(), b.latest_completed_xid), "{run:?}");
        }
    }
    let what = format!("{starts} {pending} {compared} {overflowed}");
    assert!(starts > 8 && pending > 0 && compared > 10_000 && overflowed > 100, "{what}");
}

#[test]
fn snapshots_of_a_standby_that_was_paused_without_a_debugger_are_the_same() {
    for run in RUNS.iter().filter(|r| r.suffix.is_empty()) {
        let mut stops = run.stops("pause_snapshots").into_iter().peekable();
        Replay::new(*run, "").each(|writer, _| {
            let state = writer.state();
            // Stops at one position follow each other; the array's place may differ by an idle compression, its contents not.
            while let Some(stop) = stops.next_if(|s| s["replay_lsn"] == state.replay_lsn.to_string()) {
                let what = format!("{run:?} at {}", state.replay_lsn);
                let valid: Vec<u32> = state.known_assigned.live_xids().iter().map(|x| x.0).collect();
                assert_eq!(json!(valid), stop["valid"], "{what}");
                assert_eq!(json!(state.last_overflowed_xid.0), stop["last_overflowed_xid"], "{what}");
                if stop["xip_equals_valid_below_xmax"] == json!(true) {
                    check_snapshots(&stop, &writer.reader(), &mut None, &what);
                }
            }
        });
        assert_eq!(stops.next(), None, "a stop that no record ends at: {run:?}");
    }
}
