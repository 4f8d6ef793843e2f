//! A consumer that counts and flushes.

use std::net::SocketAddr;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::primary::v1::primary_service_client::PrimaryServiceClient;

use pb::stream_wal_request::Kind as RequestKind;
use pb::stream_wal_response::Kind;

/// A connection of its own.
pub(crate) async fn channel(addr: SocketAddr) -> Channel {
    Channel::from_shared(format!("http://{addr}")).unwrap().connect().await.unwrap()
}

/// A consumer.
pub(crate) struct Consumer {
    /// Upstream.
    requests: mpsc::Sender<pb::StreamWalRequest>,
    /// Downstream.
    responses: Streaming<pb::StreamWalResponse>,
}

impl Consumer {
    /// Opens a stream from the oldest WAL on.
    pub(crate) async fn open(channel: Channel, encoding: pb::Encoding, contexts: pb::TraceContexts) -> Self {
        let (requests, receiver) = mpsc::channel(16);
        let start = pb::StreamStart {
            encoding: encoding.into(),
            trace_contexts: contexts.into(),
            max_outstanding_bytes: 8 << 20,
            max_outstanding_batches: 64,
            ..pb::StreamStart::default()
        };
        requests.send(pb::StreamWalRequest { kind: Some(RequestKind::Start(start)) }).await.unwrap();
        let responses =
            PrimaryServiceClient::new(channel).stream_wal(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        Self { requests, responses }
    }

    /// The next message.
    pub(crate) async fn next(&mut self) -> Kind {
        self.responses.message().await.unwrap().unwrap().kind.unwrap()
    }

    /// Reports everything before `lsn` as flushed.
    pub(crate) async fn flushed(&self, lsn: u64) {
        let feedback = pb::Feedback { flushed_lsn: lsn, ..pb::Feedback::default() };
        self.requests.send(pb::StreamWalRequest { kind: Some(RequestKind::Feedback(feedback)) }).await.unwrap();
    }

    /// Reads to the end of the source; records and bytes of batches.
    pub(crate) async fn drain(mut self) -> (u64, u64) {
        let (mut records, mut bytes) = (0, 0);
        loop {
            match self.next().await {
                Kind::Batch(batch) => {
                    bytes += prost::Message::encoded_len(&batch) as u64;
                    records += match &batch.body {
                        Some(pb::wal_batch::Body::Raw(raw)) => raw.offsets.len() as u64,
                        Some(pb::wal_batch::Body::Typed(typed)) => typed.records.len() as u64,
                        None => 0,
                    };
                    self.flushed(batch.end_lsn).await;
                }
                Kind::Keepalive(keepalive) if keepalive.end_of_source => return (records, bytes),
                _ => {}
            }
        }
    }
}
