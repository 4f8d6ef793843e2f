//! What a transaction looks like, in words: which statements leave such a footprint.
//!
//! WAL does not hold statements. What it holds is the same for some of them: a GRANT and an ALTER TABLE SET both write a row of pg_class
//! and nothing else. So each part of a story names all the statements that it may have been; it never names fewer than it must.
//!
//! The parts are looked for in this order, and what one has explained is no part of another: relations ([`relations`]) that were
//! truncated, rewritten, created or dropped; other objects ([`objects`]); changes of relations ([`altered`]); rows. Catalog rows that
//! nothing explains are told by their numbers.

mod altered;
mod objects;
mod relations;

use std::fmt::{self, Display};

use pg_types::{Oid, catalog};

use crate::footprint::{CatalogRows, Footprint};
use crate::summary::{RowSums, Summary};

/// A part of a story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// In words.
    pub text: String,
    /// Command tags (`utils/cmdtaglist.h`): at least one of these statements was executed. Empty: nothing is said of statements.
    pub statements: Vec<&'static str>,
}

/// What a transaction looks like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Story {
    /// Its parts, the greatest change first.
    pub parts: Vec<Part>,
}

impl Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.parts.is_empty() {
            return f.write_str("nothing that is decoded");
        }
        for (i, part) in self.parts.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { "; " }, part.text)?;
        }
        Ok(())
    }
}

/// What became of a catalog's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// They are new.
    New,
    /// They were updated.
    Changed,
    /// They are gone.
    Gone,
}

impl Fate {
    /// All of them.
    const ALL: [Fate; 3] = [Fate::New, Fate::Changed, Fate::Gone];

    /// How many rows had it.
    fn count(self, rows: &CatalogRows) -> u64 {
        match self {
            Fate::New => rows.came(),
            Fate::Changed => rows.updated,
            Fate::Gone => rows.gone(),
        }
    }
}

/// Catalogs whose rows only accompany others': they are told if nothing else is.
const COMPANIONS: &[Oid] = &[catalog::DEPEND, catalog::SHDEPEND, catalog::ATTRIBUTE, catalog::ATTRDEF, catalog::TYPE];

/// Looks for parts.
struct Teller<'a> {
    /// The transaction's footprint.
    footprint: &'a Footprint,
    /// Rows that are explained.
    told: Vec<(Oid, Fate)>,
    /// What was found.
    parts: Vec<Part>,
}

impl Summary {
    /// What it looks like, from its rows, its messages and its footprint. O(catalogs²), at most 96 of them.
    #[must_use]
    pub fn story(&self) -> Story {
        let none = Footprint::default();
        let footprint = self.footprint.as_deref().unwrap_or(&none);
        let mut teller = Teller { footprint, told: Vec::new(), parts: Vec::new() };
        teller.relations();
        teller.objects();
        teller.altered();
        teller.leftover();
        let mut parts = teller.parts;
        parts.extend(rows(self, footprint.rows_into_created));
        if self.messages.logical > 0 {
            parts.push(plain(several(self.messages.logical, "logical message")));
        }
        if parts.is_empty() && footprint.locks > 0 {
            parts.push(plain(format!("a lock of {} and nothing else", several(footprint.locks, "relation"))));
        }
        if parts.is_empty() && self.messages.invalidations() > 0 {
            parts.push(plain(several(self.messages.invalidations(), "invalidation message")));
        }
        if self.prepared {
            parts.push(plain("prepared".to_owned()));
        }
        if self.subxids > 0 {
            parts.push(plain(several(self.subxids, "subtransaction")));
        }
        Story { parts }
    }
}

impl Teller<'_> {
    /// Rows of a catalog with a fate, explained or not.
    fn all(&self, fate: Fate, catalog: Oid) -> u64 {
        fate.count(&self.footprint.of(catalog))
    }

    /// The same if they are not explained yet.
    fn left(&self, fate: Fate, catalog: Oid) -> u64 {
        if self.told.contains(&(catalog, fate)) { 0 } else { self.all(fate, catalog) }
    }

    /// Rows of a catalog with any fate that are not explained.
    fn any_left(&self, catalog: Oid) -> u64 {
        Fate::ALL.iter().map(|fate| self.left(*fate, catalog)).sum()
    }

    /// These are explained.
    fn explain(&mut self, fate: Fate, catalogs: &[Oid]) {
        self.told.extend(catalogs.iter().map(|catalog| (*catalog, fate)));
    }

    /// Adds a part.
    fn tell(&mut self, text: impl Into<String>, statements: &[&'static str]) {
        let part = Part { text: text.into(), statements: statements.to_vec() };
        if !self.parts.contains(&part) {
            self.parts.push(part);
        }
    }

    /// Catalog rows that nothing explains.
    fn leftover(&mut self) {
        let nothing = self.parts.is_empty();
        let mut words = Vec::new();
        for rows in self.footprint.catalogs() {
            if COMPANIONS.contains(&rows.catalog) && !nothing {
                continue;
            }
            let signs = [(Fate::New, '+'), (Fate::Changed, '~'), (Fate::Gone, '-')];
            let counts = signs.map(|(fate, sign)| (self.left(fate, rows.catalog), sign));
            let counts: Vec<String> = counts.iter().filter(|(n, _)| *n > 0).map(|(n, sign)| format!("{sign}{n}")).collect();
            if !counts.is_empty() {
                words.push(format!("{} {}", catalog_name(rows.catalog), counts.join(" ")));
            }
        }
        let in_place = self.footprint.of(catalog::CLASS).in_place;
        if !words.is_empty() {
            self.tell(format!("catalog rows: {}", words.join(", ")), &[]);
        } else if nothing && in_place > 0 {
            self.tell(format!("{} of pg_class overwritten in place, as VACUUM and ANALYZE do", several(in_place, "row")), &[]);
        }
    }
}

/// The name of a catalog, or what is known of it.
#[must_use]
pub fn catalog_name(oid: Oid) -> String {
    let known = catalog::NAMES.iter().find(|(_, known)| *known == oid);
    known.map_or_else(|| format!("catalog file {oid}"), |(name, _)| (*name).to_owned())
}

/// Rows of tables, unless all of them are the `filling` of relations whose part tells of it.
fn rows(summary: &Summary, filling: u64) -> Option<Part> {
    let RowSums { insert, update, delete, relations } = summary.rows;
    if filling > 0 && insert + update + delete == filling {
        return None;
    }
    let kinds = [("insert", insert), ("update", update), ("delete", delete)];
    let kinds: Vec<String> = kinds.iter().filter(|(_, n)| *n > 0).map(|(kind, n)| several(*n, kind)).collect();
    if kinds.is_empty() {
        return None;
    }
    let place = summary.only_relation().map_or_else(|| several(relations, "relation"), ToString::to_string);
    Some(plain(format!("{} in {place}", kinds.join(", "))))
}

/// A part that says nothing of statements.
fn plain(text: String) -> Part {
    Part { text, statements: Vec::new() }
}

/// `1 row`, `2 rows`, `2 indexes`, `18,523 tables`.
fn several(n: u64, what: &str) -> String {
    let what = match what {
        _ if n == 1 => what.to_owned(),
        "index" => "indexes".to_owned(),
        "policy" => "policies".to_owned(),
        _ => format!("{what}s"),
    };
    format!("{} {what}", grouped(n))
}

/// A number with its thousands apart.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests;
