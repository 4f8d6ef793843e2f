//! What the node tells of the catalog rows that decoding may still need: the primary's slot has it, VACUUM there heeds it, and a restart
//! goes on with it.

use std::path::Path;

use pg_types::RecordBody;
use primary_node::{PrimaryConfig, PrimaryNode};
use walstorm_proto::admin::v1 as admin;
use walstorm_proto::admin::v1::admin_service_client::AdminServiceClient;
use walstorm_proto::decoder::v1 as pb;
use walstorm_proto::decoder::v1::decoder_service_client::DecoderServiceClient;

use super::support::{any, config, connect, folder, primary_with};

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
