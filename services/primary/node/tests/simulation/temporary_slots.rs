//! Temporary slots wait five minutes for their first stream: of simulated time.

use std::rc::Rc;
use std::time::Duration;

use service_kit::status::{Reason, reason_of};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use turmoil::Builder;
use walstorm_proto::admin::v1 as admin;
use walstorm_proto::admin::v1::admin_service_client::AdminServiceClient;
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::primary::v1::primary_service_client::PrimaryServiceClient;

use super::consumer::channel;
use super::world::World;
use super::{TICK, primary};

/// How long they wait.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Makes a slot.
async fn create(slot_id: &str, temporary: bool) -> Result<(), Status> {
    let request = admin::CreateSlotRequest { slot_id: slot_id.to_owned(), temporary, ..Default::default() };
    AdminServiceClient::new(channel()).create_slot(request).await.map(drop)
}

/// Which of some slots there are.
async fn there(names: &[&'static str]) -> Vec<&'static str> {
    let mut there = Vec::new();
    for name in names {
        let got = AdminServiceClient::new(channel()).get_slot(admin::GetSlotRequest { name: format!("slots/{name}") }).await;
        match got {
            Ok(_) => there.push(*name),
            Err(status) => assert_eq!(reason_of(&status), Some(Reason::SlotNotFound), "{status}"),
        }
    }
    there
}

/// A client's five minutes.
async fn client() -> turmoil::Result {
    let all = ["persistent", "unused", "copied", "held"];
    create("persistent", false).await?;
    create("unused", true).await?;
    create("held", true).await?;
    let start = pb::StreamStart {
        slot: "slots/held".to_owned(),
        max_outstanding_bytes: 1 << 20,
        max_outstanding_batches: 8,
        feedback_timeout: Some(prost_types::Duration::default()),
        ..pb::StreamStart::default()
    };
    let (requests, receiver) = mpsc::channel(1);
    let _ = requests.send(pb::StreamWalRequest { kind: Some(pb::stream_wal_request::Kind::Start(start)) }).await;
    let mut responses = PrimaryServiceClient::new(channel()).stream_wal(ReceiverStream::new(receiver)).await?.into_inner();
    responses.message().await?;
    tokio::time::sleep(TIMEOUT / 2).await;
    let copy = admin::CopySlotRequest { name: "slots/persistent".to_owned(), slot_id: "copied".to_owned(), temporary: true };
    AdminServiceClient::new(channel()).copy_slot(copy).await?;

    tokio::time::sleep(TIMEOUT / 2 - Duration::from_secs(2)).await;
    assert_eq!(there(&all).await, all);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(there(&all).await, ["persistent", "copied", "held"], "five minutes after it was made");
    tokio::time::sleep(TIMEOUT / 2).await;
    assert_eq!(there(&all).await, ["persistent", "held"], "a stream holds the one");
    drop((requests, responses));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(there(&all).await, ["persistent"]);
    Ok(())
}

#[test]
fn temporary_slots_wait_five_minutes_for_their_stream() {
    service_kit::blocking::inline_on_this_thread();
    let world = Rc::new(World::new(1, 0, false));
    let mut sim = Builder::new().tick_duration(TICK).simulation_duration(TIMEOUT * 2).tcp_capacity(4096).build();
    sim.host("primary", move || primary(Rc::clone(&world)));
    sim.client("client", client());
    sim.run().unwrap();
}
