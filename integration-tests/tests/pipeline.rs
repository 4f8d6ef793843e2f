//! Real WAL of four versions through primary, decoder and standby over gRPC.
#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

use integration_tests::wal_fixture::{VERSIONS, WalFixture, ends};
use integration_tests::{Cluster, ClusterConfig, Subscriber};
use primary_node::config::SourceConfig;
use service_kit::telemetry::{Export, SamplingConfig};
use standby_node::config::SizeSettings;
use tonic::transport::Endpoint;
use walstorm_proto::decoder::v1::ListTransactionsRequest;
use walstorm_proto::decoder::v1::decoder_service_client::DecoderServiceClient;
use walstorm_proto::standby::v1::TakeSnapshotRequest;
use walstorm_proto::standby::v1::standby_service_client::StandbyServiceClient;

/// A cluster over a fixture, without traces.
fn config(fixture: &WalFixture, decoder_profile: &str) -> ClusterConfig {
    ClusterConfig {
        options: decoder_core::PluginOptions::default(),
        source: SourceConfig { wal_dir: Some(fixture.wal()), ..SourceConfig::default() },
        data_dir: fixture.scratch(),
        decoder_profile: decoder_profile.to_owned(),
        standby_profile: None,
        standby_settings: SizeSettings { max_prepared_transactions: 10, ..SizeSettings::default() },
        catalog: Some(fixture.catalog()),
        sampling: SamplingConfig::default(),
        export: Export::Off,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_transaction_of_a_real_server_goes_through_the_three_nodes() {
    for (version, profile) in VERSIONS.into_iter().zip(["pg13", "pg14", "pg96", "indexed"]) {
        let fixture = WalFixture::unpack(version).unwrap();
        let cluster = Cluster::start(config(&fixture, profile)).await.unwrap();
        let subscriber = Subscriber::start(cluster.decoder.addr(), cluster.subscriber.clone()).await.unwrap();
        let reached = cluster.finished().await.unwrap();
        assert_eq!(reached.stopped, Vec::<String>::new(), "{version}");

        // What the server's own logical decoding gave: FIGURES of the fixtures, the same in every version.
        let counts = subscriber.finished(reached.end).await.unwrap();
        assert_eq!(counts.transactions, 279, "{version}");
        assert_eq!((counts.updates, counts.deletes, counts.messages), (604, 13, 3), "{version}");
        assert!(counts.inserts >= 441 && counts.truncates >= 3, "{version}: {counts:?}");

        let ends = ends(&fixture.wal()).unwrap();
        let progress = cluster.standby.progress().borrow().clone();
        assert_eq!(progress.transactions_ended as usize, ends.len(), "{version}");
        assert_eq!(progress.profile, version, "the standby takes the profile of the WAL's version");
        assert!(progress.is_ready(), "{version}");
        cluster.shutdown().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_sees_what_a_subscriber_was_told_was_committed() {
    let fixture = WalFixture::unpack("pg16").unwrap();
    let cluster = Cluster::start(config(&fixture, "pg16")).await.unwrap();
    let reached = cluster.finished().await.unwrap();
    let connect = |address| async move { Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap() };
    let mut decoder = DecoderServiceClient::new(connect(cluster.decoder.addr()).await);
    let request = ListTransactionsRequest { page_size: 1000, order_by: "commit_lsn".to_owned(), ..Default::default() };
    let committed = decoder.list_transactions(request).await.unwrap().into_inner().transactions;
    assert_eq!(committed.len(), 279);

    let mut standby = StandbyServiceClient::new(connect(cluster.standby.addr()).await);
    let last = committed.last().unwrap();
    let request = TakeSnapshotRequest { min_lsn: last.end_lsn, include_xip: true, max_xip: 0 };
    let snapshot = standby.take_snapshot(request).await.unwrap().into_inner();
    assert!(snapshot.replay_lsn >= last.end_lsn && snapshot.replay_lsn <= reached.end.0);
    for transaction in &committed {
        assert!(transaction.xid < snapshot.xmax, "{} is not seen", transaction.xid);
        assert!(!snapshot.xip.contains(&transaction.xid), "{} counts as running", transaction.xid);
    }
    cluster.shutdown().await.unwrap();
}
