//! The `walstorm-primary` program.

fn main() {}
