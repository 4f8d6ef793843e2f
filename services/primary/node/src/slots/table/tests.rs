//! Positions, holds and losses of slots.

use pg_types::{PgVersion, WalIdentity};
use proptest::prelude::*;

use super::*;

const IDENTITY: WalIdentity = WalIdentity { version: PgVersion::V18, system_id: 1, timeline: 1, segment_size: 1 << 24 };

fn to(flushed: u64) -> Confirmation {
    Confirmation { flushed: Lsn(flushed), restart: Lsn::INVALID }
}

fn save(table: &mut SlotTable) {
    table.dirty().into_iter().for_each(|state| table.mark_saved(state));
}

fn table(names: &[&str]) -> SlotTable {
    let mut table = SlotTable::new(8);
    for name in names {
        table.create(SlotFile::new(name, &IDENTITY, Lsn(100), 0), Persistency::Persistent).unwrap();
        save(&mut table);
    }
    table
}

#[test]
fn names_are_postgresqls() {
    for good in ["a", "0", "_", &"x".repeat(63), "walstorm_decoder_1"] {
        validate_name(good).unwrap();
    }
    for bad in ["", "A", "a-b", "a.b", "../a", "é", "a b", "\u{1b}[31m", &"x".repeat(64)] {
        assert!(validate_name(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn only_the_same_named_client_takes_over() {
    let mut t = table(&["s"]);
    let (first, replaced) = t.acquire("s", "alice", 5).unwrap();
    assert_eq!(replaced, None);
    for other in ["bob", ""] {
        match t.acquire("s", other, 6) {
            Err(Error::SlotActive { holder, since_ms, .. }) => assert_eq!((holder.as_str(), since_ms), ("alice", 5)),
            result => panic!("{result:?}"),
        }
    }
    let (second, replaced) = t.acquire("s", "alice", 7).unwrap();
    assert_eq!(replaced, Some(first.session));
    assert!(!t.confirm(&first, to(200)), "a stream that lost the slot moves it no more (I2)");
    t.release(&first);
    assert!(t.holds(&second));
    assert!(t.confirm(&second, to(150)));
    t.release(&second);
    t.acquire("s", "bob", 8).unwrap();
}

#[test]
fn unnamed_clients_do_not_take_over_each_other() {
    let mut t = table(&["s"]);
    t.acquire("s", "", 0).unwrap();
    assert!(matches!(t.acquire("s", "", 1), Err(Error::SlotActive { .. })));
}

#[test]
fn lost_slots_hold_no_wal_and_say_why() {
    let mut t = table(&["old", "new"]);
    let (lease, _) = t.acquire("new", "c", 0).unwrap();
    assert!(t.confirm(&lease, to(500)));
    assert_eq!(t.dirty().len(), 1);
    assert_eq!(t.invalidate_before(Lsn(300), "removed"), [("old".to_owned(), None)]);
    assert_eq!(t.dirty().len(), 2, "the loss is stored too");
    save(&mut t);
    assert_eq!(t.oldest_saved(), Some(Lsn(500)));
    assert!(matches!(t.acquire("old", "c", 0), Err(Error::SlotInvalidated { .. })));
    assert!(t.invalidate_before(Lsn(300), "removed").is_empty(), "told once");
}

#[test]
fn no_slot_begins_in_wal_that_is_being_removed() {
    let mut t = table(&["s"]);
    t.raise_floor(Lsn(60));
    t.raise_floor(Lsn(50));
    let new = |lsn| SlotFile::new("n", &IDENTITY, Lsn(lsn), 0);
    assert!(matches!(t.create(new(59), Persistency::Persistent), Err(Error::LsnRemoved { oldest: Lsn(60), .. })));
    assert!(matches!(t.acquire_ephemeral(new(59), "c", 0), Err(Error::LsnRemoved { .. })));
    t.create(new(60), Persistency::Persistent).unwrap();
}

#[test]
fn ephemeral_slots_end_with_their_stream_and_are_never_stored() {
    let mut t = table(&["s"]);
    let lease = t.acquire_ephemeral(SlotFile::new("", &IDENTITY, Lsn(50), 0), "c", 0).unwrap();
    assert_eq!(t.oldest_saved(), Some(Lsn(50)), "it keeps WAL while its stream lives");
    assert!(t.confirm(&lease, to(60)));
    assert_eq!(t.oldest_saved(), Some(Lsn(60)));
    assert!(t.dirty().is_empty());
    assert!(validate_name(&lease.name).is_err(), "no permanent slot can have its name");
    t.release(&lease);
    assert!(t.get(&lease.name).is_err());
}

#[test]
fn limits_and_etags_are_kept() {
    let mut t = SlotTable::new(1);
    let new = |name| SlotFile::new(name, &IDENTITY, Lsn(1), 0);
    let slot = t.create(new("a"), Persistency::Persistent).unwrap();
    assert!(matches!(t.create(new("b"), Persistency::Persistent), Err(Error::TooManySlots { limit: 1 })));
    t.acquire_ephemeral(new(""), "c", 0).expect("streams without a slot take no other client's place");
    let (lease, _) = t.acquire("a", "c", 0).unwrap();
    assert!(matches!(t.delete("a", &slot.etag(), true), Err(Error::SlotChanged { .. })));
    let held = t.get("a").unwrap().etag();
    assert!(t.confirm(&lease, to(2)));
    assert_eq!(t.get("a").unwrap().etag(), held, "progress is no change");
    t.release(&lease);
    let now = t.get("a").unwrap().etag();
    t.delete("a", &now, false).unwrap();
}

#[test]
fn restart_and_confirmed_positions_move_apart_if_the_holder_tells_both() {
    let mut t = table(&["s"]);
    let (lease, _) = t.acquire("s", "c", 0).unwrap();
    let positions = |t: &SlotTable| t.get("s").map(|s| (s.state.restart_lsn.0, s.state.confirmed_flush_lsn.0)).unwrap();
    let told = |flushed, restart| Confirmation { flushed: Lsn(flushed), restart: Lsn(restart) };
    assert!(t.confirm(&lease, told(300, 150)));
    assert_eq!(positions(&t), (150, 300));
    save(&mut t);
    assert_eq!(t.oldest_saved(), Some(Lsn(150)), "WAL is kept from the restart position on");
    assert!(!t.confirm(&lease, told(250, 120)), "neither goes back");
    assert!(t.confirm(&lease, told(300, 200)), "the restart position alone may move");
    assert_eq!((positions(&t), t.dirty().len()), ((200, 300), 1));
    assert!(t.confirm(&lease, to(310)));
    assert_eq!(positions(&t), (310, 310), "who tells one position means both");
}

#[test]
fn xmins_stay_with_the_slot_and_never_go_back_unless_withdrawn() {
    let mut t = table(&["s"]);
    let (lease, _) = t.acquire("s", "c", 0).unwrap();
    let xmins = |t: &SlotTable| t.get("s").map(|s| (s.state.xmin, s.state.catalog_xmin)).unwrap();
    assert!(t.report_xmins(&lease, Xid(700), Xid(650)));
    assert_eq!(t.dirty().len(), 1, "they are stored");
    assert!(t.report_xmins(&lease, Xid(699), Xid(651)));
    assert_eq!(xmins(&t), (700, 651));
    assert!(!t.report_xmins(&lease, Xid(700), Xid(651)));
    t.release(&lease);
    assert_eq!(xmins(&t), (700, 651), "readers may come back");
    assert!(!t.report_xmins(&lease, Xid(900), Xid(900)), "the hold is void");
    let (lease, _) = t.acquire("s", "c", 0).unwrap();
    assert!(t.report_xmins(&lease, Xid(2), Xid::INVALID), "no normal xid withdraws");
    assert_eq!(xmins(&t), (0, 0));
    assert!(t.report_xmins(&lease, Xid(u32::MAX), Xid(5)));
    assert!(t.report_xmins(&lease, Xid(4), Xid(6)), "4 follows 4294967295");
    assert_eq!(xmins(&t), (4, 6));
}

#[test]
fn a_slot_is_advanced_forward_by_nobody_but_its_owner() {
    let mut t = table(&["s"]);
    let slot = t.advance("s", Lsn(150), "", None).unwrap();
    assert_eq!((slot.state.restart_lsn, slot.state.confirmed_flush_lsn), (Lsn(150), Lsn(150)));
    let etag = slot.etag();
    assert!(matches!(t.advance("s", Lsn(149), "", None), Err(Error::InvalidField { field: "target_lsn", .. })));
    t.advance("s", Lsn(150), &etag, None).expect("progress leaves the etag");
    assert!(matches!(t.advance("s", Lsn(160), "other", None), Err(Error::SlotChanged { .. })));
    assert!(matches!(t.advance("none", Lsn(160), "", None), Err(Error::SlotNotFound { .. })));
    let (lease, _) = t.acquire("s", "c", 0).unwrap();
    assert!(matches!(t.advance("s", Lsn(160), "", None), Err(Error::SlotActive { .. })));
    t.release(&lease);
    let logical = SlotFile { building: false, catalog_xmin: 700, ..SlotFile::new_logical("l", &IDENTITY, Lsn(100), 0) };
    t.create(logical, Persistency::Persistent).unwrap();
    let mut positions = |target, point: Option<(u64, u32)>| {
        let point = point.map(|(lsn, xid)| RestartPoint { restart_lsn: Lsn(lsn), catalog_xmin: Xid(xid) });
        let state = t.advance("l", Lsn(target), "", point).unwrap().state;
        (state.restart_lsn.0, state.confirmed_flush_lsn.0, state.catalog_xmin)
    };
    assert_eq!(positions(150, None), (100, 150, 700));
    assert_eq!(positions(160, Some((110, 690))), (110, 160, 700), "xmins do not go back");
    assert_eq!(positions(170, Some((105, 710))), (110, 170, 710), "nor do positions");
    t.invalidate_before(Lsn(120), "removed");
    assert!(matches!(t.advance("l", Lsn(180), "", None), Err(Error::SlotInvalidated { .. })));
}

#[test]
fn a_copy_keeps_positions_and_xmins_and_lives_its_own_life() {
    let mut t = table(&["s"]);
    let (lease, _) = t.acquire("s", "c", 0).unwrap();
    t.confirm(&lease, Confirmation { flushed: Lsn(300), restart: Lsn(150) });
    t.report_xmins(&lease, Xid(700), Xid(650));
    let copy = t.copy("s", "copy", Persistency::Temporary, 9).unwrap().state;
    let source = t.get("s").unwrap().state;
    assert_eq!(SlotFile { name: "s".to_owned(), created_at_ms: 0, ..copy }, source);
    save(&mut t);
    t.confirm(&lease, to(900));
    save(&mut t);
    assert_eq!(t.oldest_saved(), Some(Lsn(150)), "the copy holds its own WAL");
    assert!(t.dirty().is_empty(), "a temporary slot has no file");
    let (held, _) = t.acquire("copy", "d", 10).unwrap();
    assert!(!t.expire("copy", 9), "it is held");
    t.release(&held);
    assert!(matches!(t.get("copy"), Err(Error::SlotNotFound { .. })), "it ends with its first stream");
    t.copy("s", "copy", Persistency::Temporary, 11).unwrap();
    assert!(!t.expire("copy", 9), "another one of that name");
    assert!(!t.expire("s", 0), "a persistent one stays");
    assert!(t.expire("copy", 11));
    for (name, from) in [("s", "s"), ("Bad", "s"), ("x", "none")] {
        t.copy(from, name, Persistency::Persistent, 12).expect_err(name);
    }
    t.invalidate_before(Lsn(1000), "removed");
    assert!(matches!(t.copy("s", "x", Persistency::Persistent, 12), Err(Error::SlotInvalidated { .. })));
}

proptest! {
    /// I1, I2 and I3 against a model: the position is the greatest confirmed by the stream that held the slot.
    #[test]
    fn i1_i2_i3_positions_only_move_forward_and_only_by_the_holder(
        steps in proptest::collection::vec((0u8..5, 0usize..3, 0u64..300), 1..60)
    ) {
        let mut t = table(&["s"]);
        let mut leases: Vec<Lease> = Vec::new();
        let (mut model, mut saved) = (100u64, 100u64);
        for (op, who, lsn) in steps {
            match op {
                0 => if let Ok((lease, _)) = t.acquire("s", ["a", "b", ""][who], lsn) { leases.push(lease) },
                1 => if let Some(lease) = leases.get(who) { t.release(lease) },
                2 | 3 => if let Some(lease) = leases.iter().rev().nth(who) {
                    let holds = t.holds(lease);
                    let moved = t.confirm(lease, to(lsn));
                    prop_assert_eq!(moved, holds && lsn > model);
                    if moved { model = lsn }
                },
                _ => for state in t.dirty() {
                    saved = state.restart_lsn.0;
                    t.mark_saved(state);
                },
            }
            prop_assert_eq!(t.get("s").unwrap().state.confirmed_flush_lsn, Lsn(model));
            prop_assert_eq!(t.oldest_saved(), Some(Lsn(saved)));
            prop_assert!(saved <= model);
            prop_assert!(leases.iter().filter(|l| t.holds(l)).count() <= 1);
        }
    }
}
