//! What a subscriber asks for, as flags of every command that decodes.

use decoder_core::{OriginFilter, PluginOptions};

/// The flags.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct PluginArgs {
    /// Shows only what this publication has, as pgoutput does; may be given several times. What is published must be in the catalog:
    /// pg_publication_start.csv, pg_publication_rel_start.csv, pg_publication_namespace_start.csv, pg_inherits_start.csv.
    #[arg(long = "publication", value_name = "NAME")]
    publications: Vec<String>,
    /// Changes from where are decoded: any, or none, which passes over what sessions replayed that named an origin.
    #[arg(long, value_name = "any|none", default_value_t)]
    origin: OriginFilter,
}

impl PluginArgs {
    /// As options of an output plugin.
    #[must_use]
    pub fn options(&self) -> PluginOptions {
        PluginOptions { publication_names: self.publications.clone(), origin: self.origin }
    }
}
