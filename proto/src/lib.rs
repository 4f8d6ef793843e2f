//! The gRPC contract: .proto files, generated code and descriptor set.
