//! AdminService: slots are made, listed page by page, and deleted with care; the server says what it is.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod support;

use service_kit::status::{Reason, reason_of};
use tonic::Code;
use tonic_types::StatusExt;
use walstorm_proto::admin::v1 as pb;

use support::{Node, fixture, from_slot, start};

/// A request for a slot.
fn create(slot_id: &str, start_lsn: u64) -> pb::CreateSlotRequest {
    pb::CreateSlotRequest { slot_id: slot_id.to_owned(), start_lsn }
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
    let mut ephemeral = node.open(start()).await;
    held.started().await;
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
        let request = pb::ListSlotsRequest { page_size: 2, page_token };
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
