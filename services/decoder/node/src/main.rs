//! The `walstorm-decoder` program.

fn main() {}
