//! What a transaction looks like, in a few words: from the rows it changed and the caches its messages name.

use decoder_core::DecodedTransaction;
use pg_types::InvalidationKind;

use super::report::CacheCount;
use super::text::count;

/// What messages of a cache tell, as PostgreSQL's cache names begin; the first that fits names the object.
const OBJECTS: &[(&str, &str)] = &[
    ("PUBLICATION", "publication"),
    ("SUBSCRIPTION", "subscription"),
    ("TYPE", "type"),
    ("ENUM", "enum"),
    ("PROC", "function"),
    ("CONSTR", "constraint"),
    ("INDEX", "index"),
    ("SEQ", "sequence"),
    ("NAMESPACE", "schema"),
    ("AUTH", "role"),
    ("STAT", "statistics"),
];

/// Words for a transaction with these catcache messages in its commit record.
#[must_use]
pub fn looks_like(transaction: &DecodedTransaction, caches: &[CacheCount]) -> String {
    let mut parts = Vec::new();
    let truncated: u64 = transaction.relations.iter().map(|r| r.truncate).sum();
    if truncated > 0 {
        parts.push(format!("TRUNCATE of {}", several(truncated, "relation")));
    }
    if let Some(ddl) = ddl(transaction, caches, truncated > 0) {
        parts.push(ddl);
    }
    parts.extend(rows(transaction));
    if transaction.messages.logical > 0 {
        parts.push(several(transaction.messages.logical, "logical message"));
    }
    if !transaction.gid.is_empty() {
        parts.push("prepared".to_owned());
    }
    if transaction.subxids.len() > 1 {
        parts.push(several(transaction.subxids.len() as u64, "savepoint"));
    }
    if parts.is_empty() { "nothing that is decoded".to_owned() } else { parts.join(", ") }
}

/// The schema changes that the messages tell of.
fn ddl(transaction: &DecodedTransaction, caches: &[CacheCount], truncates: bool) -> Option<String> {
    let of = |cache: &str| caches.iter().find(|c| c.cache == cache).map_or(0, |c| c.messages);
    let (relations, columns) = (of("RELOID"), of("ATTNUM"));
    if transaction.messages.invalidations() == 0 || truncates {
        return None;
    }
    let mut touched = Vec::new();
    if columns > 0 {
        touched.push(several(columns, "column"));
    }
    let named = |prefix: &str| caches.iter().filter(|c| c.cache.starts_with(prefix)).map(|c| c.messages).max();
    for (prefix, object) in OBJECTS {
        if let Some(n) = named(prefix) {
            touched.push(several(n, object));
        }
    }
    touched.truncate(3);
    let what = match (relations, touched.is_empty()) {
        (0, true) => match transaction.messages.of(InvalidationKind::Relcache) {
            0 => "catalog rows".to_owned(),
            n => several(n, "relation"),
        },
        (0, false) => touched.join(", "),
        (n, true) => several(n, "relation"),
        (n, false) => format!("{}: {}", several(n, "relation"), touched.join(", ")),
    };
    Some(format!("DDL on {what}"))
}

/// The rows that it changed.
fn rows(transaction: &DecodedTransaction) -> Option<String> {
    let sum = |rows: fn(&decoder_core::RelationChanges) -> u64| transaction.relations.iter().map(rows).sum::<u64>();
    let kinds = [("insert", sum(|r| r.insert)), ("update", sum(|r| r.update)), ("delete", sum(|r| r.delete))];
    let kinds: Vec<_> = kinds.iter().filter(|(_, n)| *n > 0).map(|(kind, n)| several(*n, kind)).collect();
    if kinds.is_empty() {
        return None;
    }
    let mut changed = transaction.relations.iter().filter(|r| r.insert + r.update + r.delete > 0);
    let place = match (changed.next(), changed.count()) {
        (Some(only), 0) => format!("in {}", only.name),
        (_, others) => format!("in {}", several(others as u64 + 1, "relation")),
    };
    Some(format!("{} {place}", kinds.join(", ")))
}

/// `1 row`, `2 rows`, `2 indexes`.
fn several(n: u64, what: &str) -> String {
    let ending = match what {
        _ if n == 1 => "",
        "index" => "es",
        "statistics" => "",
        _ => "s",
    };
    format!("{} {what}{ending}", count(n))
}

#[cfg(test)]
mod tests {
    use pg_types::{InvalidationMessage, Oid};

    use super::*;

    fn with_messages(n: usize) -> DecodedTransaction {
        let mut transaction = DecodedTransaction::default();
        transaction.messages.add(&vec![InvalidationMessage::Relcache { db: Oid(5), rel: Oid(1) }; n]);
        transaction
    }

    fn caches(counts: &[(&str, u64)]) -> Vec<CacheCount> {
        counts.iter().map(|(cache, messages)| CacheCount { cache: (*cache).to_owned(), messages: *messages }).collect()
    }

    #[test]
    fn words_follow_from_messages() {
        let t = with_messages(3);
        assert_eq!(
            looks_like(&t, &caches(&[("RELOID", 3), ("ATTNUM", 18), ("TYPEOID", 2)])),
            "DDL on 3 relations: 18 columns, 2 types"
        );
        assert_eq!(looks_like(&t, &caches(&[("INDEXRELID", 2)])), "DDL on 2 indexes");
        assert_eq!(looks_like(&t, &[]), "DDL on 3 relations");
        assert_eq!(looks_like(&DecodedTransaction::default(), &[]), "nothing that is decoded");
    }
}
