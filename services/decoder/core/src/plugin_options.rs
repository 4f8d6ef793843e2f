//! What a subscriber asks an output plugin for (`parse_output_parameters` of `pgoutput.c`, `pg_decode_startup` of `test_decoding.c`).

use std::fmt;
use std::str::FromStr;

/// Options of the output plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginOptions {
    /// Changes that none of these publications has are thrown away once they are decoded (`publication_names`). Empty: everything is wanted.
    pub publication_names: Vec<String>,
    /// Changes from where are wanted.
    pub origin: OriginFilter,
}

/// Which changes are wanted, by the origin that a replaying session named (`origin` of `pgoutput`, 16 and later; `only-local` of
/// `test_decoding`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OriginFilter {
    /// All.
    #[default]
    Any,
    /// Those without origin, which were made here.
    None,
}

impl OriginFilter {
    /// `filter_by_origin_cb`: whether changes of this origin, 0 for none, are passed over.
    #[must_use]
    pub fn passes_over(self, origin: u16) -> bool {
        self == Self::None && origin != 0
    }
}

impl fmt::Display for OriginFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "any",
            Self::None => "none",
        })
    }
}

/// The text names no choice of origins.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{asked}' is no choice of origins: any (all changes) or none (those that were made here)")]
pub struct UnknownOrigin {
    /// The text, control characters escaped.
    pub asked: String,
}

impl FromStr for OriginFilter {
    type Err = UnknownOrigin;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "any" => Ok(Self::Any),
            "none" => Ok(Self::None),
            _ => Err(UnknownOrigin { asked: text.escape_debug().to_string() }),
        }
    }
}
