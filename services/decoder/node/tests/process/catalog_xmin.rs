//! What the node tells of the catalog rows that decoding may still need: the primary's slot has it, VACUUM there heeds it, and a restart
//! goes on with it. And what it confirms of a log of which its consumer wants next to nothing.

use std::collections::BTreeSet;
use std::path::Path;

use pg_types::RecordBody;
use primary_node::{PrimaryConfig, PrimaryNode};
use walstorm_proto::admin::v1 as admin;
use walstorm_proto::admin::v1::admin_service_client::AdminServiceClient;
use walstorm_proto::decoder::v1 as pb;
use walstorm_proto::decoder::v1::decoder_service_client::DecoderServiceClient;

use super::support::{Item, Subscription, any, config, connect, folder, primary_with, start};

/// Temporary tables come and go, and the dead rows that they leave in four catalogs are vacuumed at once and a minute later: before
/// and after the next lists of running transactions.
const CHURN: &str = r#"
name = "churn"
story = "A decoder holds back VACUUM of catalogs."
seed = 3

[server]
barrier_every = "5s"

[[tables]]
name = "t"
columns = ["id int"]
rows = 1

[[actors]]
name = "churn"
start = "20s"
transactions = 10
every = "100ms"
steps = [
    { create_table = { table = "work", columns = ["id int", "n int"], temporary = true } },
    { commit = {} },
    { drop_table = { table = "work" } },
]

[[actors]]
name = "at_once"
after = ["churn"]
transactions = 1
steps = [VACUUMS]

[[actors]]
name = "later"
start = "80s"
transactions = 1
steps = [VACUUMS]

[[actors]]
name = "end"
start = "120s"
transactions = 1
steps = [{ insert = { table = "t" } }]
"#;

/// Dead rows that a pair of CREATE and DROP leaves: the table's, eight columns', two types', three dependencies.
const DEAD_ROWS: usize = 14 * 10;

/// A primary that plays [`CHURN`] when the decoder's slot is there; it waits for what that applies at each barrier.
async fn churning(folder: &Path, heed: bool) -> PrimaryNode {
    let vacuums =
        ["pg_class", "pg_attribute", "pg_type", "pg_depend"].map(|name| format!("{{ vacuum = {{ table = '{name}' }} }}"));
    let scenario = folder.join("churn.toml");
    std::fs::write(&scenario, CHURN.replace("VACUUMS", &vacuums.join(", "))).unwrap();
    let change = |config: &mut PrimaryConfig| {
        config.source.wal_dir = None;
        config.source.scenario = Some(scenario.display().to_string());
        config.source.segment_bytes = 1 << 20;
        config.source.fsync = false;
        config.source.wait_for_slots = vec!["decoder".to_owned()];
        config.source.heed_slots = Some(heed);
    };
    primary_with(folder, folder, any(), change).await
}

/// Rows of catalogs that VACUUM removed: before the second list of running transactions, and later.
fn removed(wal: &Path) -> (usize, usize) {
    let mut reader = pg_wal::WalReader::open(&pg_wal::WalDir::open(wal, None).unwrap(), None).unwrap();
    let profile = reader.profile();
    let (mut first, mut later, mut lists) = (0, 0, 0);
    while let Some(record) = reader.next().unwrap() {
        match record.decode(profile).unwrap().body {
            RecordBody::RunningXacts(_) => lists += 1,
            RecordBody::Prune(prune) if lists < 2 => first += usize::from(prune.unused),
            RecordBody::Prune(prune) => later += usize::from(prune.unused),
            _ => {}
        }
    }
    assert!(lists >= 2, "there were {lists} lists");
    (first, later)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn catalog_rows_are_held_until_the_decoder_has_come_past_them() {
    for (heed, expected) in [(false, (DEAD_ROWS, 0)), (true, (0, DEAD_ROWS))] {
        let ((_a, primary_data), (_b, data)) = (folder(), folder());
        let primary = churning(&primary_data, heed).await;
        let config = config(primary.addr(), &data);
        let node = decoder_node::DecoderNode::start(config.clone()).await.unwrap();
        let end = *primary.log().subscribe().wait_for(|log| log.closed).await.unwrap();
        node.decoded_to(end.lsn).await.unwrap();
        assert_eq!(removed(&primary_data.join("wal")), expected, "heeded: {heed}");

        // The last list came when nothing ran: what it tells is in the node's state, in the slot, and told again after a restart.
        let mut client = DecoderServiceClient::new(connect(node.addr()).await);
        let state = client.get_decoder_state(pb::GetDecoderStateRequest {}).await.unwrap().into_inner();
        let slot = || async {
            let request = admin::GetSlotRequest { name: "slots/decoder".to_owned() };
            AdminServiceClient::new(connect(primary.addr()).await).get_slot(request).await.unwrap().into_inner().slot.unwrap()
        };
        assert!(state.catalog_xmin > 730, "{state:?}");
        while slot().await.catalog_xmin != state.catalog_xmin {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        node.shutdown().await.unwrap();
        let node = decoder_node::DecoderNode::start(config).await.unwrap();
        node.state().wait_for(|state| state.connected).await.unwrap();
        assert_eq!(node.state().borrow().catalog_xmin.0, state.catalog_xmin, "before it has decoded anything");
        node.shutdown().await.unwrap();
        assert_eq!(slot().await.catalog_xmin, state.catalog_xmin);
        primary.shutdown().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_filtered_is_confirmed_by_heartbeats() {
    let ((_a, primary_data), (_b, data)) = (folder(), folder());
    let primary = primary_with(&primary_data, &primary_data, any(), |config| {
        config.source.wal_dir = None;
        config.source.scenario = Some("unpublished-flood".to_owned());
        config.source.parameters = [("rate".to_owned(), "500/s".into()), ("length".to_owned(), "4s".into())].into();
        config.source.segment_bytes = 1 << 20;
        config.source.fsync = false;
        config.source.wait_for_slots = vec!["decoder".to_owned()];
    });
    let primary = primary.await;
    // Tables have their file numbers for names: the published one is the first that the scenario makes.
    let mut config = config(primary.addr(), &data);
    config.database = 5;
    let node = decoder_node::DecoderNode::start(config.clone()).await.unwrap();
    let end = primary.log().subscribe().wait_for(|log| log.closed).await.unwrap().lsn;
    node.decoded_to(end).await.unwrap();
    let (mut all, _) = Subscription::open_when_ready(node.addr(), start()).await;
    all.read_to(end).await;
    let rows_of = |items: &[Item], relation: &str| items.iter().filter(|item| item.what.starts_with(relation)).count();
    let files: BTreeSet<&str> =
        all.items.iter().filter_map(|i| i.what.split(' ').next().filter(|word| word.contains('/'))).collect();
    assert_eq!(files.len(), 51, "{files:?}");
    let published = *files.first().unwrap();
    let (wanted, rows) = (rows_of(&all.items, published), all.items.len() / 3);
    assert!(rows == 2000 && wanted < rows / 50 && wanted > 0, "{wanted} of {rows}");

    let named = || pb::SubscribeStart { subscription: "few".to_owned(), relations: vec![published.to_owned()], ..start() };
    let (mut few, started) = Subscription::open_when_ready(node.addr(), named()).await;
    few.read_to(end).await;
    assert_eq!((rows_of(&few.items, published), few.items.len()), (wanted, 3 * wanted), "begin, row and commit of each");
    assert!(few.items.last().unwrap().end_lsn < end, "the last that it got lies before the end");
    few.flush(end, false).await;
    // Positions are saved a moment after they are acknowledged.
    let saved = || decoder_node::subscriptions::SavedPositions::load(&data.join("positions"), started.system_id).unwrap();
    while saved().confirmed.get("few") != Some(&end.0) {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    drop(few);
    node.shutdown().await.unwrap();
    // All of it is confirmed, at the node and at the primary: nothing is kept for it.
    let node = decoder_node::DecoderNode::start(config).await.unwrap();
    let (_, started) = Subscription::open_when_ready(node.addr(), named()).await;
    assert_eq!(started.start_lsn, end.0);
    let slot = || async {
        let request = admin::GetSlotRequest { name: "slots/decoder".to_owned() };
        AdminServiceClient::new(connect(primary.addr()).await).get_slot(request).await.unwrap().into_inner().slot.unwrap()
    };
    while slot().await.confirmed_flush_lsn < end.0 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    node.shutdown().await.unwrap();
    primary.shutdown().await.unwrap();
}
