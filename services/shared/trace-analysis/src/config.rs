//! How much is held of spans, and which attributes.

/// Ending of attributes that say how long a span waited for something.
pub const WAIT_SUFFIX: &str = "_wait_ns";

/// Which attributes are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attributes {
    /// All, and why a span failed as [`STATUS`].
    All,
    /// These, beside those that say how long something waited.
    These(Vec<String>),
}

impl Attributes {
    /// Whether one is kept.
    pub(crate) fn has(&self, key: &str) -> bool {
        match self {
            Attributes::All => true,
            Attributes::These(keys) => key.ends_with(WAIT_SUFFIX) || keys.iter().any(|wanted| wanted == key),
        }
    }
}

/// The key under which it is kept that a span failed.
pub const STATUS: &str = "status";

/// How much is held.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Bytes of spans, links, values and names at most.
    pub bytes_max: u64,
    /// Attributes that are kept.
    pub attributes: Attributes,
    /// The share of traces that is kept, by their ids: 1 for all.
    pub share: f64,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self { bytes_max: 4 << 30, attributes: Attributes::These(Vec::new()), share: 1.0 }
    }
}
