//! The primary: WAL log on disk, sources, slots and the gRPC server.
