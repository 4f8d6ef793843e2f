//! The gRPC contract: messages, clients and servers generated from the `.proto` files of this folder.
//!
//! The comments in those files are the documentation: life of each stream, order, resumption, errors. Modules mirror the
//! packages: `walstorm.primary.v1` is [`primary::v1`]. Generated types stop at the edge of a node; the cores know none of them.

#[allow(missing_docs, unreachable_pub, rustdoc::all, clippy::all, clippy::pedantic, clippy::restriction)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/walstorm.rs"));
}

mod event_batch;

pub use event_batch::EventBatch;
pub use generated::walstorm::{admin, decoder, primary, standby, wal};

/// All files of the contract and what they import, as an encoded `google.protobuf.FileDescriptorSet`: for server reflection and for
/// clients in other languages.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/walstorm.binpb"));

/// Full names of our services, as health checks and reflection use them.
pub mod service_names {
    /// `PrimaryService`.
    pub const PRIMARY: &str = crate::primary::v1::primary_service_server::SERVICE_NAME;
    /// `AdminService`.
    pub const ADMIN: &str = crate::admin::v1::admin_service_server::SERVICE_NAME;
    /// `DecoderService`.
    pub const DECODER: &str = crate::decoder::v1::decoder_service_server::SERVICE_NAME;
    /// `StandbyService`.
    pub const STANDBY: &str = crate::standby::v1::standby_service_server::SERVICE_NAME;
}
