//! AdminService: slots are made, listed page by page, and deleted with care; the server says what it is.

use service_kit::status::{Reason, reason_of};
use tonic::Code;
use tonic_types::StatusExt;
use walstorm_proto::admin::v1 as pb;

use crate::support::{self, Node, fixture, from_slot, start};

/// A request for a slot.
fn create(slot_id: &str, start_lsn: u64) -> pb::CreateSlotRequest {
    pb::CreateSlotRequest { slot_id: slot_id.to_owned(), start_lsn, ..Default::default() }
}

#[tokio::test]
async fn slots_are_made_within_what_is_kept() {
    let wal = fixture(18);
    let node = Node::serve(wal.path()).await;
    let mut admin = node.admin();
    let slot = admin.create_slot(create("orders", 0)).await.unwrap().into_inner().slot.unwrap();
    assert_eq!((slot.name.as_str(), slot.confirmed_flush_lsn, slot.restart_lsn), ("slots/orders", 0xA0_0000, 0xA0_0000));
    assert_eq!(slot.state(), pb::SlotState::Free);
    for (request, code, reason) in [
        (create("orders", 0), Code::AlreadyExists, Reason::SlotExists),
        (create("Orders", 0), Code::InvalidArgument, Reason::RequestInvalid),
        (create("", 0), Code::InvalidArgument, Reason::RequestInvalid),
        (create("early", 8), Code::OutOfRange, Reason::LsnRemoved),
        (create("late", u64::MAX), Code::OutOfRange, Reason::LsnAhead),
    ] {
        let status = admin.create_slot(request).await.unwrap_err();
        assert_eq!((status.code(), reason_of(&status)), (code, Some(reason)));
    }
    node.stop().await;
}

#[tokio::test]
async fn a_held_slot_shows_its_holder_and_an_ephemeral_one_its_stream() {
    let wal = fixture(18);
    let node = Node::serve(wal.path()).await;
    node.create_slot("orders", 0).await;
    let mut held = node.open(from_slot("orders")).await;
    held.started().await;
    let mut ephemeral = node.open(start()).await;
    ephemeral.started().await;
    let batch = held.batch().await;
    let hot_standby = Some(walstorm_proto::primary::v1::HotStandbyFeedback { xmin: 700, catalog_xmin: 650 });
    let feedback = walstorm_proto::primary::v1::Feedback {
        received_lsn: batch.end_lsn,
        applied_lsn: batch.start_lsn,
        reply_requested: true,
        hot_standby,
        ..Default::default()
    };
    held.feedback(feedback).await;
    loop {
        if let support::Kind::Keepalive(_) = held.next().await.unwrap() {
            break;
        }
    }
    let slot = node.slot("orders").await;
    assert_eq!((slot.state(), slot.active_client_id.as_str()), (pb::SlotState::Active, "test"));
    assert_eq!((slot.received_lsn, slot.applied_lsn), (batch.end_lsn, batch.start_lsn));
    assert_eq!((slot.xmin, slot.catalog_xmin), (700, 650));
    assert!(slot.active_since.is_some() && slot.create_time.is_some());
    let streams = node.admin().list_streams(pb::ListStreamsRequest::default()).await.unwrap().into_inner().streams;
    let shown: Vec<_> = streams.iter().map(|s| (s.id, s.slot.as_str(), s.client_id.as_str())).collect();
    assert_eq!(shown, [(1, "slots/orders", "test"), (2, "", "test")]);
    assert_eq!((streams[0].received_lsn, streams[0].applied_lsn), (batch.end_lsn, batch.start_lsn));
    assert!(streams[0].sent_lsn >= batch.end_lsn && streams[0].outstanding_bytes > 0);
    let slots = node.admin().list_slots(pb::ListSlotsRequest::default()).await.unwrap().into_inner().slots;
    assert_eq!(slots.len(), 2, "the ephemeral stream keeps WAL too, so it is shown");
    let info = node.admin().get_server_info(pb::GetServerInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.active_streams, 2);
    drop(ephemeral);
    while node.admin().list_slots(pb::ListSlotsRequest::default()).await.unwrap().into_inner().slots.len() > 1 {
        tokio::task::yield_now().await;
    }
    node.stop().await;
}

#[tokio::test]
async fn slots_are_listed_page_by_page() {
    let wal = fixture(18);
    let node = Node::serve(wal.path()).await;
    for name in ["e", "a", "c", "b", "d"] {
        node.create_slot(name, 0).await;
    }
    let mut names = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = pb::ListSlotsRequest { page_size: 2, page_token, ..Default::default() };
        let page = node.admin().list_slots(request).await.unwrap().into_inner();
        assert!(page.slots.len() <= 2);
        names.extend(page.slots.into_iter().map(|s| s.name));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(names, ["slots/a", "slots/b", "slots/c", "slots/d", "slots/e"]);
    let request = pb::ListSlotsRequest { page_size: -1, ..Default::default() };
    assert_eq!(node.admin().list_slots(request).await.unwrap_err().code(), Code::InvalidArgument);
    node.stop().await;
}

#[tokio::test]
async fn slots_are_deleted_with_care() {
    let wal = fixture(18);
    let node = Node::serve(wal.path()).await;
    node.create_slot("orders", 0).await;
    let delete = |etag: &str, force| pb::DeleteSlotRequest { name: "slots/orders".to_owned(), etag: etag.to_owned(), force };
    let mut stream = node.open(from_slot("orders")).await;
    stream.started().await;
    let mut admin = node.admin();
    let status = admin.delete_slot(delete("", false)).await.unwrap_err();
    assert_eq!((status.code(), reason_of(&status)), (Code::FailedPrecondition, Some(Reason::SlotActive)));
    assert_eq!(status.get_details_resource_info().unwrap().owner, "test");
    let status = admin.delete_slot(delete("old", true)).await.unwrap_err();
    assert_eq!((status.code(), reason_of(&status)), (Code::Aborted, Some(Reason::EtagMismatch)));
    let etag = node.slot("orders").await.etag;
    admin.delete_slot(delete(&etag, true)).await.unwrap();
    assert_eq!(reason_of(&stream.ended().await), Some(Reason::SlotNotFound), "its stream ends by name");
    let status = admin.delete_slot(delete("", true)).await.unwrap_err();
    assert_eq!(reason_of(&status), Some(Reason::SlotNotFound));
    assert_eq!(std::fs::read_dir(node.data.path().join("slots")).unwrap().count(), 0);
    node.stop().await;
}

#[tokio::test]
async fn slots_are_listed_by_a_filter() {
    let wal = fixture(18);
    let node = Node::serve(wal.path()).await;
    for name in ["orders", "order_items", "users"] {
        node.create_slot(name, 0).await;
    }
    let mut held = node.open(from_slot("orders")).await;
    held.started().await;
    let list = async |filter: &str, page_size, page_token: &str| {
        let (filter, page_token) = (filter.to_owned(), page_token.to_owned());
        let page = node.admin().list_slots(pb::ListSlotsRequest { page_size, page_token, filter }).await?.into_inner();
        Ok::<_, tonic::Status>((page.slots.into_iter().map(|s| s.name).collect::<Vec<_>>(), page.next_page_token))
    };
    assert_eq!(list("state = ACTIVE", 0, "").await.unwrap().0, ["slots/orders"]);
    assert_eq!(list("name = order* AND state = FREE", 0, "").await.unwrap().0, ["slots/order_items"]);
    let (page, token) = list("name = \"order*\"", 1, "").await.unwrap();
    assert_eq!((page, token.as_str()), (vec!["slots/order_items".to_owned()], "order_items"));
    let (page, token) = list("name = \"order*\"", 1, &token).await.unwrap();
    assert_eq!((page, token.as_str()), (vec!["slots/orders".to_owned()], ""), "the page is full and the last");
    let status = list("state = RUNNING", 0, "").await.unwrap_err();
    assert_eq!((status.code(), reason_of(&status)), (Code::InvalidArgument, Some(Reason::RequestInvalid)));
    let violation = &status.get_details_bad_request().unwrap().field_violations[0];
    assert_eq!(violation.field, "filter");
    assert!(violation.description.contains("column 9"), "{}", violation.description);
    node.stop().await;
}

#[tokio::test]
async fn a_slot_is_advanced_and_what_it_skips_is_not_sent() {
    let wal = fixture(18);
    let node = Node::serve(wal.path()).await;
    node.create_slot("orders", 0).await;
    let mut admin = node.admin();
    let info = admin.get_server_info(pb::GetServerInfoRequest {}).await.unwrap().into_inner();
    let advance =
        |target_lsn, etag: &str| pb::AdvanceSlotRequest { name: "slots/orders".to_owned(), target_lsn, etag: etag.to_owned() };
    let before = node.slot("orders").await;
    assert_eq!(before.kept_bytes, info.wal_end_lsn - before.restart_lsn);
    let target = (info.wal_start_lsn + info.wal_end_lsn) / 2;
    let slot = admin.advance_slot(advance(target, &before.etag)).await.unwrap().into_inner().slot.unwrap();
    assert_eq!((slot.restart_lsn, slot.confirmed_flush_lsn, slot.etag.as_str()), (target, target, before.etag.as_str()));
    for (request, code, reason) in [
        (advance(target - 1, ""), Code::InvalidArgument, Reason::RequestInvalid),
        (advance(0, ""), Code::InvalidArgument, Reason::RequestInvalid),
        (advance(info.wal_end_lsn + 1, ""), Code::OutOfRange, Reason::LsnAhead),
        (advance(target, "old"), Code::Aborted, Reason::EtagMismatch),
    ] {
        let status = admin.advance_slot(request).await.unwrap_err();
        assert_eq!((status.code(), reason_of(&status)), (code, Some(reason)));
    }
    let mut stream = node.open(from_slot("orders")).await;
    let started = stream.started().await;
    let (records, _) = support::records(wal.path());
    let first = records.iter().find(|r| r.lsn.0 >= target).unwrap();
    assert_eq!((started.start_lsn, started.confirmed_flush_lsn), (first.lsn.0, target));
    let status = admin.advance_slot(advance(info.wal_end_lsn, "")).await.unwrap_err();
    assert_eq!(reason_of(&status), Some(Reason::SlotActive));
    drop(stream);
    let data = node.stop().await;
    let node = Node::start(support::config(wal.path(), data.path()), data).await;
    assert_eq!(node.slot("orders").await.confirmed_flush_lsn, target, "it was on disk");
    node.stop().await;
}

#[tokio::test]
async fn a_slot_is_copied_with_its_positions_even_while_it_is_held() {
    let wal = fixture(18);
    let node = Node::serve(wal.path()).await;
    node.create_slot("orders", 0).await;
    let mut stream = node.open(from_slot("orders")).await;
    stream.started().await;
    let batch = stream.batch().await;
    let hot_standby = Some(walstorm_proto::primary::v1::HotStandbyFeedback { xmin: 700, catalog_xmin: 650 });
    let feedback = walstorm_proto::primary::v1::Feedback {
        flushed_lsn: batch.end_lsn,
        restart_lsn: batch.start_lsn + 8,
        reply_requested: true,
        hot_standby,
        ..Default::default()
    };
    stream.feedback(feedback).await;
    stream.answered().await;
    let source = node.slot("orders").await;
    assert_eq!((source.restart_lsn, source.confirmed_flush_lsn), (batch.start_lsn + 8, batch.end_lsn));
    let copy = |slot_id: &str, temporary| pb::CopySlotRequest {
        name: "slots/orders".to_owned(),
        slot_id: slot_id.to_owned(),
        temporary,
    };
    let mut admin = node.admin();
    for (name, temporary) in [("copy", false), ("short", true)] {
        let slot = admin.copy_slot(copy(name, temporary)).await.unwrap().into_inner().slot.unwrap();
        assert_eq!((slot.restart_lsn, slot.confirmed_flush_lsn), (source.restart_lsn, source.confirmed_flush_lsn));
        assert_eq!((slot.xmin, slot.catalog_xmin, slot.kind()), (700, 650, pb::SlotKind::Physical));
        assert_eq!((slot.state(), slot.temporary), (pb::SlotState::Free, temporary));
    }
    for (request, reason) in [
        (copy("copy", false), Reason::SlotExists),
        (copy("Copy", false), Reason::RequestInvalid),
        (
            pb::CopySlotRequest { name: "slots/none".to_owned(), slot_id: "x".to_owned(), temporary: false },
            Reason::SlotNotFound,
        ),
        (pb::CopySlotRequest { name: "orders".to_owned(), slot_id: "x".to_owned(), temporary: false }, Reason::RequestInvalid),
    ] {
        assert_eq!(reason_of(&admin.copy_slot(request).await.unwrap_err()), Some(reason));
    }
    let mut short = node.open(from_slot("short")).await;
    assert_eq!(
        short.started().await.start_lsn,
        support::first_at(wal.path(), source.restart_lsn),
        "it begins at the restart position"
    );
    short.half_close();
    drop(short);
    while node.admin().list_slots(pb::ListSlotsRequest::default()).await.unwrap().into_inner().slots.len() > 2 {
        tokio::task::yield_now().await;
    }
    assert!(!node.data.path().join("slots/short.slot").exists());
    drop(stream);
    let data = node.stop().await;
    let node = Node::start(support::config(wal.path(), data.path()), data).await;
    let slot = node.slot("copy").await;
    assert_eq!((slot.restart_lsn, slot.confirmed_flush_lsn), (source.restart_lsn, source.confirmed_flush_lsn));
    assert_eq!((slot.xmin, slot.catalog_xmin), (700, 650), "xmins outlive holder and process");
    node.stop().await;
}

#[tokio::test]
async fn the_server_says_what_it_is() {
    let wal = fixture(13);
    let node = Node::serve(wal.path()).await;
    let info = node.admin().get_server_info(pb::GetServerInfoRequest {}).await.unwrap().into_inner();
    let identity = pg_wal::WalDir::open(wal.path(), None).unwrap().identity();
    assert_eq!((info.system_id, info.timeline, info.pg_version), (identity.system_id, 1, 13));
    assert_eq!(info.segment_size, identity.segment_size);
    assert_eq!(info.source(), pb::SourceKind::Segments);
    assert_eq!(info.readable_pg_versions, [13, 14, 15, 16, 17, 18]);
    assert!(info.wal_start_lsn < info.wal_end_lsn);
    node.stop().await;
}
