//! The harness that starts real nodes for tests, and the tests that need more than one crate.
