//! PostgreSQL write-ahead log bytes: reader, writer and record decoding for versions 13 to 18.
//!
//! The only crate of the tree that knows byte offsets, magics and operation codes. Everything that comes from outside is
//! read with checked accesses: any byte string gives records or an error, never a panic.

#![deny(clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::indexing_slicing))]

pub mod encode;
pub mod message;
pub mod writer;
