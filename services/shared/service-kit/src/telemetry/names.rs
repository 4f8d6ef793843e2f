//! The names of all spans and attributes: each once, with unit and meaning. Transaction ids and LSNs are attributes of spans, never
//! labels of metrics: there are too many of them.

use opentelemetry::trace::SpanKind;

/// A family of spans.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanName {
    /// The name.
    pub name: &'static str,
    /// Its kind.
    pub kind: SpanKind,
    /// What one span of it stands for.
    pub description: &'static str,
}

/// An attribute of spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// The key.
    pub key: &'static str,
    /// UCUM unit; `1` for counts and ids, empty for text.
    pub unit: &'static str,
    /// What it says.
    pub description: &'static str,
}

macro_rules! spans {
    ($($id:ident = $name:literal, $kind:ident, $description:literal;)*) => {
        $(#[doc = $description] pub const $id: SpanName =
            SpanName { name: $name, kind: SpanKind::$kind, description: $description };)*

        /// All families of spans.
        pub const SPANS: &[SpanName] = &[$($id),*];
    };
}

macro_rules! attributes {
    ($($id:ident = $key:literal, $unit:literal, $description:literal;)*) => {
        $(#[doc = $description] pub const $id: Attribute =
            Attribute { key: $key, unit: $unit, description: $description };)*

        /// All attributes.
        pub const ATTRIBUTES: &[Attribute] = &[$($id),*];
    };
}

spans! {
    TRANSACTION = "transaction", Internal, "Primary: a transaction up to its commit, from when it was seen running; root of its trace, or child of the application's span.";
    SEND_WAL = "send wal", Producer, "Primary: one batch, from its building to its handing over to the stream; links to the transactions that commit in it.";
    PROCESS_WAL = "process wal", Consumer, "Decoder, standby: one batch, from its arrival to its end; links to the transactions that commit in it.";
    DECODE_TRANSACTION = "decode transaction", Internal, "Decoder: a committed transaction is decoded; child of the transaction.";
    PUBLISH_TRANSACTION = "publish transaction", Producer, "Decoder: a decoded transaction, until it is in the output log; child of its decoding. Its context goes to subscribers.";
    RECEIVE_TRANSACTION = "receive transaction", Consumer, "Subscriber: a transaction is received, from its begin to its commit; child of its publishing.";
    EXECUTE_INVALIDATIONS = "execute invalidations", Internal, "Decoder: the invalidation messages of a transaction are executed.";
    APPLY = "apply", Internal, "Standby: the commit record of a transaction is replayed; child of the transaction.";
    TAKE_SNAPSHOT = "take snapshot", Server, "Standby: a snapshot is taken; child of the caller's span if it sent a context.";
    ASK_FOR_SNAPSHOT = "walstorm.standby.v1.StandbyService/TakeSnapshot", Client, "Reader: a snapshot is asked for.";
}

attributes! {
    XID = "walstorm.xid", "1", "Top-level transaction id.";
    SUBXIDS = "walstorm.subxids", "1", "Number of subtransactions.";
    FIRST_LSN = "walstorm.first_lsn", "", "Start of a transaction's first record, as X/Y.";
    COMMIT_LSN = "walstorm.commit_lsn", "", "Start of a transaction's commit record, as X/Y.";
    END_LSN = "walstorm.end_lsn", "", "End of the last record, as X/Y.";
    START_LSN = "walstorm.start_lsn", "", "Start of a batch's first record, as X/Y.";
    REPLAY_LSN = "walstorm.replay_lsn", "", "The position whose state a snapshot is, as X/Y.";
    SLOT = "walstorm.slot", "", "Slot of a stream, as slots/name.";
    CLIENT_ID = "walstorm.client_id", "", "Client of a stream.";
    RECORDS = "walstorm.records", "1", "Records in a batch.";
    BYTES = "walstorm.bytes", "By", "Bytes of a batch.";
    TRANSACTIONS = "walstorm.transactions", "1", "Transactions that commit in a batch.";
    COMMIT_TIME = "walstorm.commit_time", "", "When a transaction committed, as RFC 3339, if that is so long ago that its span was moved to when it was read.";
    QUEUE_TIME = "walstorm.queue_ns", "ns", "How long a batch waited between its arrival and its processing.";
    READER_WAIT = "walstorm.reader_wait_ns", "ns", "How long replay waited for readers that were in the way of a record.";
    SPILL_IO_TIME = "walstorm.spill_io_ns", "ns", "Time spent on writing and reading spill files.";
    SPILL_BYTES = "walstorm.spill_bytes", "By", "Bytes written to spill files.";
    RELATIONS_LOADED = "walstorm.relations_loaded", "1", "Relations that were built from the catalogs.";
    RELATIONS_REBUILT = "walstorm.relations_rebuilt", "1", "Of them, those that had been built before and were thrown away.";
    CATALOG_SCANS = "walstorm.catalog_scans", "1", "Scans of catalogs.";
    MESSAGING_SYSTEM = "messaging.system", "", "OpenTelemetry's name of the system that carries messages: walstorm.";
    MESSAGING_DESTINATION = "messaging.destination.name", "", "OpenTelemetry's name of where messages go: a slot or a subscription.";
    MESSAGING_OPERATION = "messaging.operation.name", "", "OpenTelemetry's name of what is done with messages: send, process or receive.";
    MESSAGING_OPERATION_TYPE = "messaging.operation.type", "", "OpenTelemetry's kind of that.";
    MESSAGING_BATCH_COUNT = "messaging.batch.message_count", "1", "OpenTelemetry's number of messages in a batch: records.";
    PEER_NAME = "service.peer.name", "", "OpenTelemetry's name of the service at the other end.";
    SERVER_ADDRESS = "server.address", "", "OpenTelemetry's address of the server that is called.";
    SERVER_PORT = "server.port", "1", "OpenTelemetry's port of that.";
    RPC_SYSTEM = "rpc.system.name", "", "OpenTelemetry's name of the system of calls: grpc.";
    RPC_METHOD = "rpc.method", "", "OpenTelemetry's name of a method, with its service.";
    RPC_STATUS = "rpc.response.status_code", "", "OpenTelemetry's name of a call's end: OK, or gRPC's name of the error.";
    CREDIT_WAIT = "walstorm.credit_wait_ns", "ns", "How long a batch waited for credit.";
    CHANGES = "walstorm.changes", "1", "Changes in a transaction.";
    MESSAGES = "walstorm.messages", "1", "Invalidation messages in a transaction.";
    MESSAGES_EXECUTED = "walstorm.messages_executed", "1", "Invalidation messages executed for a transaction.";
    PROFILE = "walstorm.profile", "", "Profile that a node models.";
    CPU_TIME = "walstorm.cpu_ns", "ns", "CPU time spent on a transaction.";
    MARKED = "walstorm.marked", "1", "The transaction is traced because of its cost, not by the ratio.";
    APPLICATION_TRACE = "walstorm.application_trace", "1", "The trace was begun by the application.";
    XMIN = "walstorm.xmin", "1", "Oldest running transaction of a snapshot.";
    XMAX = "walstorm.xmax", "1", "End of a snapshot: one past the newest completed transaction.";
    XIP = "walstorm.xip", "1", "Running transactions in a snapshot.";
    SLOTS_VISITED = "walstorm.slots_visited", "1", "Slots of the known-assigned array that a snapshot looked at.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_explained() {
        let keys: BTreeSet<_> = ATTRIBUTES.iter().map(|a| a.key).collect();
        assert_eq!(keys.len(), ATTRIBUTES.len());
        let spans: BTreeSet<_> = SPANS.iter().map(|s| s.name).collect();
        assert_eq!(spans.len(), SPANS.len());
        for attribute in ATTRIBUTES {
            // What OpenTelemetry has a name for bears it, and says so.
            let ours = attribute.key.starts_with("walstorm.") || attribute.key.starts_with("pg.");
            assert!(ours != attribute.description.starts_with("OpenTelemetry's "), "{attribute:?}");
            assert!(attribute.description.ends_with('.'), "{attribute:?}");
        }
    }
}
