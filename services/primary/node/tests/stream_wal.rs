//! StreamWal over real WAL: positions, credits, keepalives, takeover, draining, and each of its errors.

use pg_types::Lsn;
use service_kit::status::{Reason, metadata_of, reason_of};
use tonic::Code;
use tonic_types::StatusExt;
use walstorm_proto::primary::v1 as pb;

use crate::support::{self, Kind, Node, fixture, from_slot, millis, raw_records, records, segments, start};

#[tokio::test]
async fn raw_batches_hold_every_record_verbatim_and_in_order() {
    for version in [13, 15, 16, 18] {
        let wal = fixture(version);
        let (expected, end) = records(wal.path());
        let node = Node::serve(wal.path()).await;
        let mut stream = node.open(start()).await;
        let started = stream.started().await;
        assert_eq!(Lsn(started.start_lsn), expected[0].lsn);
        assert_eq!((started.pg_version, Lsn(started.wal_end_lsn)), (version, end.lsn));
        let (batches, ended) = stream.drain().await;
        let keepalive = ended.unwrap();
        assert_eq!((Lsn(keepalive.progress_lsn), Lsn(keepalive.wal_end_lsn)), (end.lsn, end.lsn));
        assert_eq!(raw_records(&batches), expected);
        for pair in batches.windows(2) {
            assert!(pair[0].end_lsn <= pair[1].start_lsn);
        }
        node.stop().await;
    }
}

#[tokio::test]
async fn a_stream_begins_at_any_lsn_with_the_next_whole_record() {
    let wal = fixture(18);
    let (expected, _) = records(wal.path());
    let node = Node::serve(wal.path()).await;
    for index in [0, 1, 500, 501, expected.len() - 1] {
        let record = &expected[index];
        for inside in [1, 8, 25] {
            let mut stream = node.open(pb::StreamStart { from_lsn: record.lsn.0 + inside, ..start() }).await;
            let next = expected.get(index + 1).map_or(record.end_lsn, |r| r.lsn);
            let started = stream.started().await;
            assert!(Lsn(started.start_lsn) == next || expected.get(index + 1).is_none());
            if expected.get(index + 1).is_some() {
                assert_eq!(Lsn(stream.batch().await.start_lsn), next);
            }
        }
        let mut stream = node.open(pb::StreamStart { from_lsn: record.lsn.0, ..start() }).await;
        assert_eq!(Lsn(stream.started().await.start_lsn), record.lsn);
    }
    node.stop().await;
}

#[tokio::test]
async fn the_first_message_is_start_and_it_comes_once() {
    let wal = fixture(18);
    let node = Node::serve(wal.path()).await;
    let (requests, receiver) = tokio::sync::mpsc::channel(4);
    let feedback = pb::StreamWalRequest { kind: Some(pb::stream_wal_request::Kind::Feedback(pb::Feedback::default())) };
    requests.send(feedback).await.unwrap();
    let responses = node.primary().stream_wal(tokio_stream::wrappers::ReceiverStream::new(receiver)).await.unwrap();
    let status = responses.into_inner().message().await.unwrap_err();
    assert_eq!((status.code(), reason_of(&status)), (Code::InvalidArgument, Some(Reason::RequestInvalid)));

    let mut stream = node.open(start()).await;
    stream.started().await;
    let again = pb::StreamWalRequest { kind: Some(pb::stream_wal_request::Kind::Start(start())) };
    stream.requests.as_ref().unwrap().send(again).await.unwrap();
    let status = stream.ended().await;
    assert_eq!(status.get_details_bad_request().unwrap().field_violations[0].field, "start");
    node.stop().await;
}

#[tokio::test]
async fn wrong_fields_of_start_are_named() {
    let wal = fixture(18);
    let node = Node::serve(wal.path()).await;
    let cases = [
        ("start.max_outstanding_bytes", pb::StreamStart { max_outstanding_bytes: 0, ..start() }),
        ("start.max_outstanding_bytes", pb::StreamStart { max_outstanding_bytes: i64::MIN, ..start() }),
        ("start.max_outstanding_batches", pb::StreamStart { max_outstanding_batches: -1, ..start() }),
        ("start.keepalive_interval", pb::StreamStart { keepalive_interval: millis(0), ..start() }),
        ("start.feedback_timeout", pb::StreamStart { feedback_timeout: millis(1_000_000_000_000), ..start() }),
        ("start.feedback_timeout", pb::StreamStart { feedback_timeout: millis(99), ..start() }),
        (
            "start.feedback_timeout",
            pb::StreamStart { feedback_timeout: Some(prost_types::Duration { seconds: 0, nanos: 1 }), ..start() },
        ),
        (
            "start.feedback_timeout",
            pb::StreamStart { feedback_timeout: Some(prost_types::Duration { seconds: 0, nanos: -1 }), ..start() },
        ),
        ("start.encoding", pb::StreamStart { encoding: 77, ..start() }),
        ("start.trace_contexts", pb::StreamStart { trace_contexts: -3, ..start() }),
        ("start.client_id", pb::StreamStart { client_id: "x".repeat(257), ..start() }),
        ("start.slot", pb::StreamStart { slot: "orders".to_owned(), ..start() }),
        ("slot", pb::StreamStart { slot: "slots/../etc\u{1b}[31m".to_owned(), ..start() }),
    ];
    for (field, start) in cases {
        let status = node.refused(start).await;
        assert_eq!((status.code(), reason_of(&status)), (Code::InvalidArgument, Some(Reason::RequestInvalid)), "{field}");
        assert_eq!(status.get_details_bad_request().unwrap().field_violations[0].field, field);
    }
    node.stop().await;
}

#[tokio::test]
async fn lsns_that_are_not_kept_are_refused_with_what_is() {
    let wal = fixture(18);
    let (_, end) = records(wal.path());
    let node = Node::serve(wal.path()).await;
    let status = node.refused(pb::StreamStart { from_lsn: 0x28, ..start() }).await;
    assert_eq!((status.code(), reason_of(&status)), (Code::OutOfRange, Some(Reason::LsnRemoved)));
    assert_eq!(metadata_of(&status, "oldestLsn").as_deref(), Some("0/A00000"));
    assert_eq!(metadata_of(&status, "requestedLsn").as_deref(), Some("0/28"));

    let status = node.refused(pb::StreamStart { from_lsn: end.lsn.0 + 8, ..start() }).await;
    assert_eq!((status.code(), reason_of(&status)), (Code::OutOfRange, Some(Reason::LsnAhead)));
    assert_eq!(metadata_of(&status, "endLsn"), Some(end.lsn.to_string()));

    let mut stream = node.open(pb::StreamStart { from_lsn: end.lsn.0, ..start() }).await;
    assert_eq!(Lsn(stream.started().await.start_lsn), end.lsn, "the end itself is good");
    assert!(stream.keepalive().await.end_of_source);
    node.stop().await;
}

#[tokio::test]
async fn who_needs_a_physical_slot_is_refused_a_logical_one() {
    let wal = fixture(18);
    let node = Node::serve(wal.path()).await;
    node.create_slot("physical", 0).await;
    let logical = walstorm_proto::admin::v1::CreateSlotRequest {
        slot_id: "logical".to_owned(),
        kind: walstorm_proto::admin::v1::SlotKind::Logical.into(),
        wait_timeout: Some(prost_types::Duration { seconds: 60, nanos: 0 }),
        ..Default::default()
    };
    node.admin().create_slot(logical).await.unwrap();
    let status = node.refused(pb::StreamStart { physical_slot: true, ..from_slot("logical") }).await;
    assert_eq!(reason_of(&status), Some(Reason::RequestInvalid), "{status}");
    assert!(status.message().contains("name a physical one"), "{status}");
    for (slot, physical_slot) in [("logical", false), ("physical", true), ("physical", false)] {
        let mut stream = node.open(pb::StreamStart { physical_slot, ..from_slot(slot) }).await;
        stream.started().await;
    }
    node.stop().await;
}

#[tokio::test]
async fn a_start_that_is_refused_takes_no_slot() {
    let wal = fixture(18);
    let node = Node::serve(wal.path()).await;
    node.create_slot("orders", 0).await;
    let temporary =
        walstorm_proto::admin::v1::CreateSlotRequest { slot_id: "short".to_owned(), temporary: true, ..Default::default() };
    node.admin().create_slot(temporary).await.unwrap();
    let mut stream = node.open(from_slot("orders")).await;
    stream.started().await;
    for slot in ["orders", "short"] {
        for (from_lsn, reason) in [(0x28, Reason::LsnRemoved), (u64::MAX, Reason::LsnAhead)] {
            let status = node.refused(pb::StreamStart { from_lsn, ..from_slot(slot) }).await;
            assert_eq!(reason_of(&status), Some(reason), "{slot}");
        }
    }
    stream.drain().await.1.expect("nobody took the slot over");
    assert!(node.slot("short").await.temporary, "it still waits for its first stream");
    node.stop().await;
}

#[tokio::test]
async fn a_slot_has_one_client_and_the_same_client_may_take_it_over() {
    let wal = fixture(18);
    let node = Node::serve(wal.path()).await;
    let status = node.refused(from_slot("orders")).await;
    assert_eq!((status.code(), reason_of(&status)), (Code::NotFound, Some(Reason::SlotNotFound)));
    assert_eq!(status.get_details_resource_info().unwrap().resource_name, "slots/orders");

    node.create_slot("orders", 0).await;
    let mut first = node.open(from_slot("orders")).await;
    first.started().await;
    let status = node.refused(pb::StreamStart { client_id: "other".to_owned(), ..from_slot("orders") }).await;
    assert_eq!((status.code(), reason_of(&status)), (Code::FailedPrecondition, Some(Reason::SlotActive)));
    assert_eq!(metadata_of(&status, "holder").as_deref(), Some("test"));
    assert!(metadata_of(&status, "since").unwrap().starts_with("20"), "a date");

    let mut second = node.open(from_slot("orders")).await;
    second.started().await;
    let status = first.ended().await;
    assert_eq!((status.code(), reason_of(&status)), (Code::Aborted, Some(Reason::StreamTakenOver)));
    let (_, end) = second.drain().await;
    end.unwrap();
    node.stop().await;
}

#[tokio::test]
async fn positions_are_believed_only_as_far_as_they_were_sent() {
    let wal = fixture(18);
    let node = Node::serve(wal.path()).await;
    node.create_slot("orders", 0).await;
    let small = || pb::StreamStart { max_outstanding_bytes: 1, ..from_slot("orders") };

    let mut stream = node.open(small()).await;
    stream.started().await;
    let batch = stream.batch().await;
    stream.flushed(batch.end_lsn + 8).await;
    let status = stream.ended().await;
    assert_eq!((status.code(), reason_of(&status)), (Code::InvalidArgument, Some(Reason::AckOutOfOrder)));
    assert_eq!(status.get_details_bad_request().unwrap().field_violations[0].field, "feedback.flushed_lsn");
    assert_eq!(metadata_of(&status, "sentLsn"), Some(Lsn(batch.end_lsn).to_string()));
    assert_eq!(node.slot("orders").await.confirmed_flush_lsn, 0xA0_0000, "the slot did not move");

    let mut stream = node.open(small()).await;
    stream.started().await;
    let batch = stream.batch().await;
    stream.flushed(batch.end_lsn).await;
    stream.flushed(batch.end_lsn).await;
    stream.flushed(batch.start_lsn).await;
    let status = stream.ended().await;
    assert_eq!(reason_of(&status), Some(Reason::AckOutOfOrder));
    assert_eq!(node.slot("orders").await.confirmed_flush_lsn, batch.end_lsn, "it moved once, and not back");
    node.stop().await;
}

#[tokio::test]
async fn a_client_that_never_acknowledges_gets_its_credit_and_then_its_end() {
    let wal = fixture(18);
    let node = Node::serve(wal.path()).await;
    let credit = 100_000;
    let start = pb::StreamStart {
        max_outstanding_bytes: credit,
        keepalive_interval: millis(50),
        feedback_timeout: millis(1000),
        ..start()
    };
    let mut stream = node.open(start).await;
    stream.started().await;
    let (mut bytes, mut sent, mut asked) = (0, 0, false);
    let status = loop {
        match stream.next().await {
            Ok(Kind::Batch(batch)) => {
                assert!(bytes < credit, "the credit was used up");
                let Some(pb::wal_batch::Body::Raw(raw)) = &batch.body else { panic!("not raw") };
                bytes += raw.records.len() as i64;
                sent = batch.end_lsn;
            }
            Ok(Kind::Keepalive(keepalive)) => {
                assert_eq!(keepalive.progress_lsn, sent, "no progress beyond what was sent");
                asked |= keepalive.reply_requested;
            }
            Ok(other) => panic!("{other:?}"),
            Err(status) => break status,
        }
    };
    assert!(asked, "a reply is asked for before the end");
    assert_eq!((status.code(), reason_of(&status)), (Code::DeadlineExceeded, Some(Reason::FeedbackTimeout)));
    assert_eq!(metadata_of(&status, "lastFlushedLsn").as_deref(), Some("0/0"));
    node.stop().await;
}

#[tokio::test]
async fn a_small_credit_is_given_back_by_flushing() {
    let wal = fixture(18);
    let (expected, _) = records(wal.path());
    let node = Node::serve(wal.path()).await;
    let start = pb::StreamStart { max_outstanding_bytes: 1, max_outstanding_batches: 1, ..start() };
    let mut stream = node.open(start).await;
    stream.started().await;
    let mut batches = Vec::new();
    loop {
        let batch = match stream.next().await.unwrap() {
            Kind::Batch(batch) => batch,
            Kind::Keepalive(keepalive) if keepalive.end_of_source => break,
            other => panic!("{other:?}"),
        };
        // Nothing but an answer comes before the batch is flushed.
        stream.feedback(pb::Feedback { received_lsn: batch.end_lsn, reply_requested: true, ..Default::default() }).await;
        assert_eq!(stream.keepalive().await.progress_lsn, batch.end_lsn);
        stream.flushed(batch.end_lsn).await;
        batches.push(batch);
    }
    assert_eq!(raw_records(&batches), expected);
    node.stop().await;
}

#[tokio::test]
async fn a_half_closed_stream_ends_well_after_what_may_be_sent() {
    let wal = fixture(18);
    let (expected, _) = records(wal.path());
    let node = Node::serve(wal.path()).await;
    let mut stream = node.open(start()).await;
    stream.half_close();
    stream.started().await;
    let mut batches = Vec::new();
    while let Some(message) = stream.responses.message().await.unwrap() {
        if let Some(Kind::Batch(batch)) = message.kind {
            batches.push(batch);
        }
    }
    assert_eq!(raw_records(&batches), expected);
    node.stop().await;
}

#[tokio::test]
async fn draining_is_announced_takes_the_last_feedback_and_then_ends() {
    let wal = fixture(18);
    let node = Node::serve(wal.path()).await;
    node.create_slot("orders", 0).await;
    let mut stream = node.open(pb::StreamStart { max_outstanding_bytes: 50_000, ..from_slot("orders") }).await;
    stream.started().await;
    let first = stream.batch().await;
    node.node.drain().start();
    let mut last = first.end_lsn;
    let resume = loop {
        match stream.next().await.unwrap() {
            Kind::Batch(batch) => last = batch.end_lsn,
            Kind::Draining(draining) => break draining.resume_lsn,
            Kind::Keepalive(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(resume, last, "what was sent is not to be sent again");
    stream.flushed(last).await;
    let status = stream.next().await.unwrap_err();
    assert_eq!((status.code(), reason_of(&status)), (Code::Unavailable, Some(Reason::Draining)));
    assert!(status.get_details_retry_info().is_some());
    let data = node.stop().await;

    let config = support::config(wal.path(), data.path());
    let node = Node::start(config, data).await;
    assert_eq!(node.slot("orders").await.confirmed_flush_lsn, last, "the last feedback was stored");
    let mut stream = node.open(from_slot("orders")).await;
    stream.started().await;
    assert_eq!(stream.batch().await.start_lsn, next_record(wal.path(), last));
    node.stop().await;
}

/// Start of the first record at or after `lsn`.
fn next_record(wal: &std::path::Path, lsn: u64) -> u64 {
    records(wal).0.iter().map(|r| r.lsn.0).find(|l| *l >= lsn).unwrap()
}

#[tokio::test]
async fn a_silent_client_does_not_keep_the_node_from_stopping() {
    let wal = fixture(18);
    let node = Node::serve(wal.path()).await;
    let mut stream = node.open(start()).await;
    stream.started().await;
    stream.batch().await;
    let channel = node.channel.clone();
    let outcome = node.node.shutdown().await.unwrap();
    assert_eq!(outcome, service_kit::server::Drained::Cut);
    let refused = walstorm_proto::primary::v1::primary_service_client::PrimaryServiceClient::new(channel);
    let mut refused = refused;
    assert!(refused.stream_invalidations(pb::StreamInvalidationsRequest::default()).await.is_err());
}

#[tokio::test]
async fn an_idle_stream_hears_of_progress() {
    let wal = fixture(16);
    let node = Node::serve(wal.path()).await;
    let mut stream = node.open(pb::StreamStart { keepalive_interval: millis(20), ..start() }).await;
    let (batches, ended) = stream.drain().await;
    let end = ended.unwrap().progress_lsn;
    assert!(end >= batches.last().unwrap().end_lsn);
    for _ in 0..3 {
        let keepalive = stream.keepalive().await;
        assert_eq!((keepalive.progress_lsn, keepalive.wal_end_lsn), (end, end));
        assert!(keepalive.server_time.is_some());
    }
    stream.flushed(end).await;
    stream.feedback(pb::Feedback { reply_requested: true, ..Default::default() }).await;
    stream.keepalive().await;
    node.stop().await;
}

#[tokio::test]
async fn streams_have_a_limit() {
    let wal = fixture(18);
    let data = tempfile::tempdir().unwrap();
    let mut config = support::config(wal.path(), data.path());
    config.streams.max = 1;
    let node = Node::start(config, data).await;
    let mut stream = node.open(start()).await;
    stream.started().await;
    let (_keep, receiver) = tokio::sync::mpsc::channel(1);
    let status = node.primary().stream_wal(tokio_stream::wrappers::ReceiverStream::new(receiver)).await.unwrap_err();
    assert_eq!((status.code(), reason_of(&status)), (Code::ResourceExhausted, Some(Reason::StreamLimit)));
    node.stop().await;
}

#[tokio::test]
async fn damage_ends_the_stream_after_what_is_before_it() {
    let wal = fixture(18);
    let (expected, _) = records(wal.path());
    let victim = &segments(wal.path())[1];
    let mut bytes = std::fs::read(victim).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(victim, &bytes).unwrap();
    let (good, end) = records(wal.path());
    assert!(!good.is_empty() && good.len() < expected.len() && !end.is_complete());

    let node = Node::serve(wal.path()).await;
    let mut stream = node.open(start()).await;
    let (batches, ended) = stream.drain().await;
    assert_eq!(raw_records(&batches), good);
    let status = ended.unwrap_err();
    assert_eq!((status.code(), reason_of(&status)), (Code::DataLoss, Some(Reason::WalCorrupt)));
    assert_eq!(metadata_of(&status, "lsn"), Some(end.lsn.to_string()));
    assert_eq!(metadata_of(&status, "file"), Some(victim.display().to_string()));
    assert!(!metadata_of(&status, "cause").unwrap().is_empty());

    // Whoever begins behind the damage can.
    let behind = expected.iter().find(|r| r.lsn.0 >= 0xC0_0000).unwrap();
    let mut stream = node.open(pb::StreamStart { from_lsn: behind.lsn.0, ..start() }).await;
    stream.started().await;
    assert_eq!(Lsn(stream.batch().await.start_lsn), behind.lsn);
    node.stop().await;
}

#[tokio::test]
async fn a_flipped_bit_anywhere_never_gives_a_wrong_record() {
    let wal = fixture(15);
    let (expected, _) = records(wal.path());
    let (mut told, mut unnoticed) = (0, 0);
    for step in 0..48u64 {
        let files = segments(wal.path());
        let victim = &files[(step % files.len() as u64) as usize];
        let good = std::fs::read(victim).unwrap();
        let mut bad = good.clone();
        let at = (step * 0x9E37_79B9 % bad.len() as u64) as usize;
        bad[at] ^= 1 << (step % 8);
        std::fs::write(victim, &bad).unwrap();
        let data = tempfile::tempdir().unwrap();
        // Without its first segment the directory would say itself another cluster; that is refused at the start.
        if let Ok(node) = primary_node::PrimaryNode::start(support::config(wal.path(), data.path())).await {
            let channel = tonic::transport::Channel::from_shared(format!("http://{}", node.addr())).unwrap();
            let node = Node { channel: channel.connect().await.unwrap(), node, data };
            let (batches, ended) = node.open(start()).await.drain().await;
            let got = raw_records(&batches);
            assert_eq!(got, expected[..got.len()], "bit {} of byte {at} in {}", step % 8, victim.display());
            match ended {
                Ok(_) => {
                    assert_eq!(got.len(), expected.len());
                    unnoticed += 1;
                }
                Err(status) => {
                    assert_eq!(reason_of(&status), Some(Reason::WalCorrupt));
                    told += 1;
                }
            }
            node.stop().await;
        }
        std::fs::write(victim, &good).unwrap();
    }
    // Some bits lie in what a switch left unused.
    assert!(told > 20 && told > unnoticed, "{told} told, {unnoticed} in unused space");
}

#[tokio::test]
async fn a_torn_tail_is_told_and_a_missing_segment_too() {
    let wal = fixture(15);
    let last = segments(wal.path()).pop().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&last).unwrap();
    let torn = records(wal.path()).0.last().unwrap().lsn;
    file.set_len((torn.0 & 0xF_FFFF) + 10).unwrap();
    let (good, end) = records(wal.path());
    let node = Node::serve(wal.path()).await;
    let (batches, ended) = node.open(start()).await.drain().await;
    assert_eq!(raw_records(&batches), good);
    let status = ended.unwrap_err();
    assert_eq!(reason_of(&status), Some(Reason::WalCorrupt));
    assert_eq!(metadata_of(&status, "lsn"), Some(end.lsn.to_string()));
    node.stop().await;

    std::fs::remove_file(&segments(wal.path())[1]).unwrap();
    let node = Node::serve(wal.path()).await;
    let status = node.open(start()).await.drain().await.1.unwrap_err();
    assert_eq!(reason_of(&status), Some(Reason::WalCorrupt));
    assert!(metadata_of(&status, "cause").unwrap().contains("missing"), "{status:?}");
    node.stop().await;
}

#[tokio::test]
async fn a_segment_of_another_cluster_ends_the_stream_by_name() {
    let wal = fixture(16);
    let last = segments(wal.path()).pop().unwrap();
    let mut bytes = std::fs::read(&last).unwrap();
    bytes[24] ^= 1;
    std::fs::write(&last, &bytes).unwrap();
    let node = Node::serve(wal.path()).await;
    let status = node.open(start()).await.drain().await.1.unwrap_err();
    assert_eq!((status.code(), reason_of(&status)), (Code::DataLoss, Some(Reason::WalCorrupt)));
    assert!(metadata_of(&status, "cause").unwrap().contains("another cluster"), "{status:?}");
    assert_eq!(metadata_of(&status, "file"), Some(last.display().to_string()));
    node.stop().await;
}

#[tokio::test]
async fn a_segment_of_a_version_that_is_not_read_is_refused_by_name() {
    let wal = fixture(18);
    let node = Node::serve(wal.path()).await;
    let last = segments(wal.path()).pop().unwrap();
    let mut bytes = std::fs::read(&last).unwrap();
    bytes[..2].copy_from_slice(&0xD120u16.to_le_bytes());
    bytes[24] ^= 1;
    std::fs::write(&last, &bytes).unwrap();
    let status = node.open(start()).await.drain().await.1.unwrap_err();
    assert_eq!((status.code(), reason_of(&status)), (Code::Unimplemented, Some(Reason::WalMagicUnknown)));
    assert_eq!(metadata_of(&status, "magic").as_deref(), Some("D120"));
    assert!(metadata_of(&status, "known").unwrap().contains("D118 (18)"));
    node.stop().await;
}
