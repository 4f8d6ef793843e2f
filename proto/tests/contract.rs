//! The contract against what the rest of the tree calls the same things.

use std::collections::BTreeSet;

use pg_types::{InvalidationKind, Work};
use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorSet};
use walstorm_proto::{FILE_DESCRIPTOR_SET, decoder, primary, service_names};

/// The descriptor set, decoded.
fn descriptors() -> FileDescriptorSet {
    FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("the build wrote a descriptor set")
}

/// The message `package.name`.
fn message(package: &str, name: &str) -> DescriptorProto {
    descriptors()
        .file
        .into_iter()
        .filter(|f| f.package() == package)
        .flat_map(|f| f.message_type)
        .find(|m| m.name() == name)
        .expect("the message is in the descriptor set")
}

/// Its fields' names in the order of their numbers.
fn fields(message: &DescriptorProto) -> Vec<String> {
    let mut fields: Vec<_> = message.field.iter().map(|f| (f.number(), f.name().to_owned())).collect();
    fields.sort();
    fields.into_iter().map(|(_, name)| name).collect()
}

#[test]
fn work_has_exactly_the_keys_of_pg_types() {
    assert_eq!(fields(&message("walstorm.wal.v1", "Work")), Work::KEYS);
}

#[test]
fn invalidation_messages_have_exactly_the_kinds_of_pg_types() {
    let kinds = InvalidationKind::ALL.map(InvalidationKind::name);
    assert_eq!(fields(&message("walstorm.wal.v1", "InvalidationCounts")), kinds);
    assert_eq!(fields(&message("walstorm.wal.v1", "InvalidationColumns")), kinds);
}

#[test]
fn the_descriptor_set_holds_every_service_and_every_import() {
    let set = descriptors();
    let services: BTreeSet<String> =
        set.file.iter().flat_map(|f| f.service.iter().map(move |s| format!("{}.{}", f.package(), s.name()))).collect();
    let ours = [service_names::PRIMARY, service_names::ADMIN, service_names::DECODER, service_names::STANDBY];
    assert_eq!(services, ours.map(str::to_owned).into_iter().collect());

    let files: BTreeSet<&str> = set.file.iter().map(|f| f.name()).collect();
    for import in set.file.iter().flat_map(|f| &f.dependency) {
        assert!(files.contains(import.as_str()), "{import} is imported but not in the set");
    }
}

#[test]
fn wal_bytes_are_taken_from_the_receive_buffer_without_copy() {
    let raw = primary::v1::RawRecords {
        records: bytes::Bytes::from(vec![7; 4096]),
        offsets: vec![0],
        lsn_offsets: vec![0],
        end_lsn_offsets: vec![4096],
    };
    let wire = bytes::Bytes::from(raw.encode_to_vec());
    let decoded = primary::v1::RawRecords::decode(wire.clone()).expect("what was encoded decodes");
    assert_eq!(decoded, raw);
    let within = wire.as_ptr_range();
    assert!(within.contains(&decoded.records.as_ptr()), "the bytes were copied");
}

#[test]
fn events_stay_small_in_memory() {
    assert!(size_of::<decoder::v1::Event>() <= 144, "{} bytes", size_of::<decoder::v1::Event>());
}

#[test]
fn a_run_can_be_asked_for_without_naming_a_file_or_an_address() {
    let request = message("walstorm.primary.v1", "RunScenarioRequest");
    let expected = [
        "request_id",
        "scenario_name",
        "scenario_text",
        "parameters",
        "seed",
        "time_mode",
        "max_txn_rate",
        "pg_version",
        "validate_only",
        "progress_interval",
    ];
    assert_eq!(fields(&request), expected);
    let service = descriptors().file.into_iter().flat_map(|f| f.service).find(|s| s.name() == "PrimaryService");
    let methods: Vec<String> = service.expect("it is there").method.iter().map(|m| m.name().to_owned()).collect();
    for method in ["RunScenario", "GetRun", "ListRuns", "CancelRun", "DeleteRun", "ValidateScenario"] {
        assert!(methods.iter().any(|m| m == method), "{method}");
    }
}
