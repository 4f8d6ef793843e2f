//! The `walstorm-standby` program.

fn main() {}
