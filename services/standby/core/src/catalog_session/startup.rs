//! Which catalogs a session scans while it starts (`utils/init/postinit.c`), with how many scans that share a snapshot.

use pg_types::{Oid, catalog};

/// Before it knows its database.
pub const UNCONNECTED: [(Oid, u32); 2] = [(catalog::AUTHID, 1), (catalog::DATABASE, 1)];

/// After: the settings of role and database (`process_settings`), and what its first statement looks up. All but the first have
/// syscaches.
pub const CONNECTED: [(Oid, u32); 10] = [
    (catalog::DB_ROLE_SETTING, 4),
    (catalog::CLASS, 1),
    (catalog::ATTRIBUTE, 1),
    (catalog::INDEX, 1),
    (catalog::AM, 1),
    (catalog::OPCLASS, 1),
    (catalog::PROC, 1),
    (catalog::TYPE, 1),
    (catalog::NAMESPACE, 1),
    (catalog::CLASS, 1),
];
