//! The decoder: follows a primary, decodes like a walsender, serves subscribers.

pub mod durable_file;
pub mod output_log;
