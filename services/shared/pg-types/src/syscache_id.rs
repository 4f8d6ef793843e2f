//! The system catalogs and the syscaches on them (`utils/cache/syscache.c`, from 17 on `catalog/syscache_info.h`).
//!
//! A catcache invalidation message names its syscache by an enum ordinal. The enum is sorted by name, so every cache that a
//! release adds shifts the ordinals after it. Here is one list with the release that added each cache; the table of a version
//! is that list filtered, and a cache's id is its index in it. A minor release may not shift ordinals, so a cache that one
//! added stands behind all others ([`APPENDED`]); older minors of that version never name it.
//!
//! Differences from PostgreSQL: only what the paths we model need: the catalog that a cache is on, its key's columns (as in 18;
//! AUTHMEM… and STATEXTDATASTXOID had one less before) and its first bucket count.

use std::sync::OnceLock;

use crate::oid::Oid;
use crate::version::PgVersion;
use crate::version::PgVersion::{V13, V14, V15, V18};

/// Oids of the system catalogs, the same in all supported versions that have the catalog (`catalog/pg_*_d.h`).
pub mod catalog {
    use crate::oid::Oid;

    /// `pg_aggregate`.
    pub const AGGREGATE: Oid = Oid(2600);
    /// `pg_am`.
    pub const AM: Oid = Oid(2601);
    /// `pg_amop`.
    pub const AMOP: Oid = Oid(2602);
    /// `pg_amproc`.
    pub const AMPROC: Oid = Oid(2603);
    /// `pg_attrdef`.
    pub const ATTRDEF: Oid = Oid(2604);
    /// `pg_attribute`.
    pub const ATTRIBUTE: Oid = Oid(1249);
    /// `pg_auth_members`.
    pub const AUTH_MEMBERS: Oid = Oid(1261);
    /// `pg_authid`.
    pub const AUTHID: Oid = Oid(1260);
    /// `pg_cast`.
    pub const CAST: Oid = Oid(2605);
    /// `pg_class`.
    pub const CLASS: Oid = Oid(1259);
    /// `pg_collation`.
    pub const COLLATION: Oid = Oid(3456);
    /// `pg_constraint`.
    pub const CONSTRAINT: Oid = Oid(2606);
    /// `pg_conversion`.
    pub const CONVERSION: Oid = Oid(2607);
    /// `pg_database`.
    pub const DATABASE: Oid = Oid(1262);
    /// `pg_db_role_setting`.
    pub const DB_ROLE_SETTING: Oid = Oid(2964);
    /// `pg_default_acl`.
    pub const DEFAULT_ACL: Oid = Oid(826);
    /// `pg_depend`.
    pub const DEPEND: Oid = Oid(2608);
    /// `pg_description`.
    pub const DESCRIPTION: Oid = Oid(2609);
    /// `pg_enum`.
    pub const ENUM: Oid = Oid(3501);
    /// `pg_event_trigger`.
    pub const EVENT_TRIGGER: Oid = Oid(3466);
    /// `pg_extension`.
    pub const EXTENSION: Oid = Oid(3079);
    /// `pg_foreign_data_wrapper`.
    pub const FOREIGN_DATA_WRAPPER: Oid = Oid(2328);
    /// `pg_foreign_server`.
    pub const FOREIGN_SERVER: Oid = Oid(1417);
    /// `pg_foreign_table`.
    pub const FOREIGN_TABLE: Oid = Oid(3118);
    /// `pg_index`.
    pub const INDEX: Oid = Oid(2610);
    /// `pg_inherits`.
    pub const INHERITS: Oid = Oid(2611);
    /// `pg_init_privs`.
    pub const INIT_PRIVS: Oid = Oid(3394);
    /// `pg_language`.
    pub const LANGUAGE: Oid = Oid(2612);
    /// `pg_largeobject`.
    pub const LARGEOBJECT: Oid = Oid(2613);
    /// `pg_largeobject_metadata`.
    pub const LARGEOBJECT_METADATA: Oid = Oid(2995);
    /// `pg_namespace`.
    pub const NAMESPACE: Oid = Oid(2615);
    /// `pg_opclass`.
    pub const OPCLASS: Oid = Oid(2616);
    /// `pg_operator`.
    pub const OPERATOR: Oid = Oid(2617);
    /// `pg_opfamily`.
    pub const OPFAMILY: Oid = Oid(2753);
    /// `pg_parameter_acl`.
    pub const PARAMETER_ACL: Oid = Oid(6243);
    /// `pg_partitioned_table`.
    pub const PARTITIONED_TABLE: Oid = Oid(3350);
    /// `pg_policy`.
    pub const POLICY: Oid = Oid(3256);
    /// `pg_proc`.
    pub const PROC: Oid = Oid(1255);
    /// `pg_publication`.
    pub const PUBLICATION: Oid = Oid(6104);
    /// `pg_publication_namespace`.
    pub const PUBLICATION_NAMESPACE: Oid = Oid(6237);
    /// `pg_publication_rel`.
    pub const PUBLICATION_REL: Oid = Oid(6106);
    /// `pg_range`.
    pub const RANGE: Oid = Oid(3541);
    /// `pg_replication_origin`.
    pub const REPLICATION_ORIGIN: Oid = Oid(6000);
    /// `pg_rewrite`.
    pub const REWRITE: Oid = Oid(2618);
    /// `pg_seclabel`.
    pub const SECLABEL: Oid = Oid(3596);
    /// `pg_sequence`.
    pub const SEQUENCE: Oid = Oid(2224);
    /// `pg_shdepend`.
    pub const SHDEPEND: Oid = Oid(1214);
    /// `pg_shdescription`.
    pub const SHDESCRIPTION: Oid = Oid(2396);
    /// `pg_shseclabel`.
    pub const SHSECLABEL: Oid = Oid(3592);
    /// `pg_statistic`.
    pub const STATISTIC: Oid = Oid(2619);
    /// `pg_statistic_ext`.
    pub const STATISTIC_EXT: Oid = Oid(3381);
    /// `pg_statistic_ext_data`.
    pub const STATISTIC_EXT_DATA: Oid = Oid(3429);
    /// `pg_subscription`.
    pub const SUBSCRIPTION: Oid = Oid(6100);
    /// `pg_subscription_rel`.
    pub const SUBSCRIPTION_REL: Oid = Oid(6102);
    /// `pg_tablespace`.
    pub const TABLESPACE: Oid = Oid(1213);
    /// `pg_transform`.
    pub const TRANSFORM: Oid = Oid(3576);
    /// `pg_trigger`.
    pub const TRIGGER: Oid = Oid(2620);
    /// `pg_ts_config`.
    pub const TS_CONFIG: Oid = Oid(3602);
    /// `pg_ts_config_map`.
    pub const TS_CONFIG_MAP: Oid = Oid(3603);
    /// `pg_ts_dict`.
    pub const TS_DICT: Oid = Oid(3600);
    /// `pg_ts_parser`.
    pub const TS_PARSER: Oid = Oid(3601);
    /// `pg_ts_template`.
    pub const TS_TEMPLATE: Oid = Oid(3764);
    /// `pg_type`.
    pub const TYPE: Oid = Oid(1247);
    /// `pg_user_mapping`.
    pub const USER_MAPPING: Oid = Oid(1418);

    /// Name and oid of every catalog, sorted by name.
    pub const NAMES: [(&str, Oid); 64] = [
        ("pg_aggregate", AGGREGATE),
        ("pg_am", AM),
        ("pg_amop", AMOP),
        ("pg_amproc", AMPROC),
        ("pg_attrdef", ATTRDEF),
        ("pg_attribute", ATTRIBUTE),
        ("pg_auth_members", AUTH_MEMBERS),
        ("pg_authid", AUTHID),
        ("pg_cast", CAST),
        ("pg_class", CLASS),
        ("pg_collation", COLLATION),
        ("pg_constraint", CONSTRAINT),
        ("pg_conversion", CONVERSION),
        ("pg_database", DATABASE),
        ("pg_db_role_setting", DB_ROLE_SETTING),
        ("pg_default_acl", DEFAULT_ACL),
        ("pg_depend", DEPEND),
        ("pg_description", DESCRIPTION),
        ("pg_enum", ENUM),
        ("pg_event_trigger", EVENT_TRIGGER),
        ("pg_extension", EXTENSION),
        ("pg_foreign_data_wrapper", FOREIGN_DATA_WRAPPER),
        ("pg_foreign_server", FOREIGN_SERVER),
        ("pg_foreign_table", FOREIGN_TABLE),
        ("pg_index", INDEX),
        ("pg_inherits", INHERITS),
        ("pg_init_privs", INIT_PRIVS),
        ("pg_language", LANGUAGE),
        ("pg_largeobject", LARGEOBJECT),
        ("pg_largeobject_metadata", LARGEOBJECT_METADATA),
        ("pg_namespace", NAMESPACE),
        ("pg_opclass", OPCLASS),
        ("pg_operator", OPERATOR),
        ("pg_opfamily", OPFAMILY),
        ("pg_parameter_acl", PARAMETER_ACL),
        ("pg_partitioned_table", PARTITIONED_TABLE),
        ("pg_policy", POLICY),
        ("pg_proc", PROC),
        ("pg_publication", PUBLICATION),
        ("pg_publication_namespace", PUBLICATION_NAMESPACE),
        ("pg_publication_rel", PUBLICATION_REL),
        ("pg_range", RANGE),
        ("pg_replication_origin", REPLICATION_ORIGIN),
        ("pg_rewrite", REWRITE),
        ("pg_seclabel", SECLABEL),
        ("pg_sequence", SEQUENCE),
        ("pg_shdepend", SHDEPEND),
        ("pg_shdescription", SHDESCRIPTION),
        ("pg_shseclabel", SHSECLABEL),
        ("pg_statistic", STATISTIC),
        ("pg_statistic_ext", STATISTIC_EXT),
        ("pg_statistic_ext_data", STATISTIC_EXT_DATA),
        ("pg_subscription", SUBSCRIPTION),
        ("pg_subscription_rel", SUBSCRIPTION_REL),
        ("pg_tablespace", TABLESPACE),
        ("pg_transform", TRANSFORM),
        ("pg_trigger", TRIGGER),
        ("pg_ts_config", TS_CONFIG),
        ("pg_ts_config_map", TS_CONFIG_MAP),
        ("pg_ts_dict", TS_DICT),
        ("pg_ts_parser", TS_PARSER),
        ("pg_ts_template", TS_TEMPLATE),
        ("pg_type", TYPE),
        ("pg_user_mapping", USER_MAPPING),
    ];

    /// Catalogs that all databases share (`IsSharedRelation`): their messages carry database 0.
    pub const SHARED: [Oid; 11] = [
        DATABASE,
        DB_ROLE_SETTING,
        TABLESPACE,
        AUTHID,
        AUTH_MEMBERS,
        SHDEPEND,
        SHDESCRIPTION,
        REPLICATION_ORIGIN,
        PARAMETER_ACL,
        SHSECLABEL,
        SUBSCRIPTION,
    ];

    /// Catalogs without syscache on which a change drops catalog snapshots only (`RelationInvalidatesSnapshotsOnly`).
    pub const SNAPSHOTS_ONLY: [Oid; 7] = [DB_ROLE_SETTING, DEPEND, SHDEPEND, DESCRIPTION, SHDESCRIPTION, SECLABEL, SHSECLABEL];

    /// Whether all databases share `catalog`.
    #[must_use]
    pub fn is_shared(catalog: Oid) -> bool {
        SHARED.contains(&catalog)
    }

    /// Whether a change of `catalog` gives a snapshot message instead of catcache messages.
    #[must_use]
    pub fn invalidates_snapshots_only(catalog: Oid) -> bool {
        SNAPSHOTS_ONLY.contains(&catalog)
    }
}

/// One syscache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SysCache {
    /// PostgreSQL's enum name, as `RELOID`.
    pub name: &'static str,
    /// The catalog it is on.
    pub catalog: Oid,
    /// All databases share that catalog.
    pub shared: bool,
    /// Columns of its key, which a catalog tuple's hash is made of.
    pub key: &'static [&'static str],
    /// Hash buckets when the cache is first used, a power of two.
    pub initial_buckets: u32,
    /// The first supported version that has it (13: this or an older one).
    pub since: PgVersion,
}

/// The ordinal of a syscache within one version. Never mix the ids of two versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SysCacheId(u8);

impl SysCacheId {
    /// Index into arrays of one slot per cache.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The number that a message carries ([`crate::InvalidationMessage::Catcache`]).
    #[must_use]
    pub fn message_id(self) -> i8 {
        self.0 as i8
    }
}

/// The syscaches of one version, in the order of their ids.
#[derive(Debug)]
pub struct SysCacheTable {
    /// All caches; the index is the id.
    caches: Vec<SysCache>,
    /// Catalog → ids of the caches on it, sorted by catalog.
    by_catalog: Vec<(Oid, Vec<SysCacheId>)>,
    /// Whose table this is.
    version: PgVersion,
}

impl SysCacheTable {
    /// The table of `version`; built once, O(1) afterwards.
    #[must_use]
    pub fn of(version: PgVersion) -> &'static SysCacheTable {
        static TABLES: OnceLock<Vec<SysCacheTable>> = OnceLock::new();
        let tables = TABLES.get_or_init(|| PgVersion::ALL.into_iter().map(SysCacheTable::build).collect());
        &tables[version as usize]
    }

    /// Filters [`ALL`], appends what minor releases added and groups the caches by catalog.
    fn build(version: PgVersion) -> SysCacheTable {
        let mut caches: Vec<SysCache> = ALL.iter().copied().filter(|c| c.since <= version).collect();
        for appended in APPENDED.iter().filter(|c| c.since <= version) {
            if caches.iter().all(|c| c.name != appended.name) {
                caches.push(*appended);
            }
        }
        let mut by_catalog: Vec<(Oid, Vec<SysCacheId>)> = Vec::new();
        for (index, cache) in caches.iter().enumerate() {
            let id = SysCacheId(index as u8);
            match by_catalog.binary_search_by_key(&cache.catalog, |(oid, _)| *oid) {
                Ok(at) => by_catalog[at].1.push(id),
                Err(at) => by_catalog.insert(at, (cache.catalog, vec![id])),
            }
        }
        SysCacheTable { caches, by_catalog, version }
    }

    /// The version whose ids these are.
    #[must_use]
    pub fn version(&self) -> PgVersion {
        self.version
    }

    /// How many caches there are (`SysCacheSize`).
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // No version has none.
    pub fn len(&self) -> usize {
        self.caches.len()
    }

    /// All caches in the order of ids.
    pub fn iter(&self) -> impl Iterator<Item = (SysCacheId, &SysCache)> {
        self.caches.iter().enumerate().map(|(index, cache)| (SysCacheId(index as u8), cache))
    }

    /// The id of a message, checked: [`None`] for a number that no cache of this version has. O(1).
    #[must_use]
    pub fn id(&self, message_id: i8) -> Option<SysCacheId> {
        u8::try_from(message_id).ok().filter(|id| usize::from(*id) < self.caches.len()).map(SysCacheId)
    }

    /// The cache with this PostgreSQL name, [`None`] if this version has none. O(n).
    #[must_use]
    pub fn id_of(&self, name: &str) -> Option<SysCacheId> {
        self.caches.iter().position(|c| c.name == name).map(|index| SysCacheId(index as u8))
    }

    /// The cache with this id, which must come from this table. O(1).
    #[must_use]
    pub fn cache(&self, id: SysCacheId) -> &SysCache {
        &self.caches[id.index()]
    }

    /// The caches on one catalog, in the order of ids; empty for a catalog without (`RelationHasSysCache`). O(log n).
    #[must_use]
    pub fn caches_on(&self, catalog: Oid) -> &[SysCacheId] {
        self.by_catalog.binary_search_by_key(&catalog, |(oid, _)| *oid).map_or(&[], |at| self.by_catalog[at].1.as_slice())
    }

    /// The catalogs that have caches, sorted by oid (`SysCacheRelationOid`).
    pub fn catalogs(&self) -> impl Iterator<Item = Oid> {
        self.by_catalog.iter().map(|(oid, _)| *oid)
    }
}

/// One row of [`ALL`].
const fn row(
    name: &'static str,
    catalog: Oid,
    key: &'static [&'static str],
    initial_buckets: u32,
    since: PgVersion,
) -> SysCache {
    let mut shared = false;
    let mut i = 0;
    while i < catalog::SHARED.len() {
        shared |= catalog::SHARED[i].0 == catalog.0;
        i += 1;
    }
    SysCache { name, catalog, shared, key, initial_buckets, since }
}

/// Caches that minor releases added behind the sorted ones, with the first version in which one did so. Seen in 14.23, 15.18,
/// 16.14 and 17.10; 13.23 has none.
const APPENDED: [SysCache; 1] = [row("EXTENSIONOID", catalog::EXTENSION, &["oid"], 2, V14)];

/// Every syscache of 13 to 18, sorted by name as PostgreSQL's enum is. No supported version dropped one.
#[rustfmt::skip]
const ALL: [SysCache; 85] = [
    row("AGGFNOID", catalog::AGGREGATE, &["aggfnoid"], 16, V13),
    row("AMNAME", catalog::AM, &["amname"], 4, V13),
    row("AMOID", catalog::AM, &["oid"], 4, V13),
    row("AMOPOPID", catalog::AMOP, &["amopopr", "amoppurpose", "amopfamily"], 64, V13),
    row("AMOPSTRATEGY", catalog::AMOP, &["amopfamily", "amoplefttype", "amoprighttype", "amopstrategy"], 64, V13),
    row("AMPROCNUM", catalog::AMPROC, &["amprocfamily", "amproclefttype", "amprocrighttype", "amprocnum"], 16, V13),
    row("ATTNAME", catalog::ATTRIBUTE, &["attrelid", "attname"], 32, V13),
    row("ATTNUM", catalog::ATTRIBUTE, &["attrelid", "attnum"], 128, V13),
    row("AUTHMEMMEMROLE", catalog::AUTH_MEMBERS, &["member", "roleid", "grantor"], 8, V13),
    row("AUTHMEMROLEMEM", catalog::AUTH_MEMBERS, &["roleid", "member", "grantor"], 8, V13),
    row("AUTHNAME", catalog::AUTHID, &["rolname"], 8, V13),
    row("AUTHOID", catalog::AUTHID, &["oid"], 8, V13),
    row("CASTSOURCETARGET", catalog::CAST, &["castsource", "casttarget"], 256, V13),
    row("CLAAMNAMENSP", catalog::OPCLASS, &["opcmethod", "opcname", "opcnamespace"], 8, V13),
    row("CLAOID", catalog::OPCLASS, &["oid"], 8, V13),
    row("COLLNAMEENCNSP", catalog::COLLATION, &["collname", "collencoding", "collnamespace"], 8, V13),
    row("COLLOID", catalog::COLLATION, &["oid"], 8, V13),
    row("CONDEFAULT", catalog::CONVERSION, &["connamespace", "conforencoding", "contoencoding", "oid"], 8, V13),
    row("CONNAMENSP", catalog::CONVERSION, &["conname", "connamespace"], 8, V13),
    row("CONSTROID", catalog::CONSTRAINT, &["oid"], 16, V13),
    row("CONVOID", catalog::CONVERSION, &["oid"], 8, V13),
    row("DATABASEOID", catalog::DATABASE, &["oid"], 4, V13),
    row("DEFACLROLENSPOBJ", catalog::DEFAULT_ACL, &["defaclrole", "defaclnamespace", "defaclobjtype"], 8, V13),
    row("ENUMOID", catalog::ENUM, &["oid"], 8, V13),
    row("ENUMTYPOIDNAME", catalog::ENUM, &["enumtypid", "enumlabel"], 8, V13),
    row("EVENTTRIGGERNAME", catalog::EVENT_TRIGGER, &["evtname"], 8, V13),
    row("EVENTTRIGGEROID", catalog::EVENT_TRIGGER, &["oid"], 8, V13),
    row("EXTENSIONNAME", catalog::EXTENSION, &["extname"], 2, V18),
    row("EXTENSIONOID", catalog::EXTENSION, &["oid"], 2, V18),
    row("FOREIGNDATAWRAPPERNAME", catalog::FOREIGN_DATA_WRAPPER, &["fdwname"], 2, V13),
    row("FOREIGNDATAWRAPPEROID", catalog::FOREIGN_DATA_WRAPPER, &["oid"], 2, V13),
    row("FOREIGNSERVERNAME", catalog::FOREIGN_SERVER, &["srvname"], 2, V13),
    row("FOREIGNSERVEROID", catalog::FOREIGN_SERVER, &["oid"], 2, V13),
    row("FOREIGNTABLEREL", catalog::FOREIGN_TABLE, &["ftrelid"], 4, V13),
    row("INDEXRELID", catalog::INDEX, &["indexrelid"], 64, V13),
    row("LANGNAME", catalog::LANGUAGE, &["lanname"], 4, V13),
    row("LANGOID", catalog::LANGUAGE, &["oid"], 4, V13),
    row("NAMESPACENAME", catalog::NAMESPACE, &["nspname"], 4, V13),
    row("NAMESPACEOID", catalog::NAMESPACE, &["oid"], 16, V13),
    row("OPERNAMENSP", catalog::OPERATOR, &["oprname", "oprleft", "oprright", "oprnamespace"], 256, V13),
    row("OPEROID", catalog::OPERATOR, &["oid"], 32, V13),
    row("OPFAMILYAMNAMENSP", catalog::OPFAMILY, &["opfmethod", "opfname", "opfnamespace"], 8, V13),
    row("OPFAMILYOID", catalog::OPFAMILY, &["oid"], 8, V13),
    row("PARAMETERACLNAME", catalog::PARAMETER_ACL, &["parname"], 4, V15),
    row("PARAMETERACLOID", catalog::PARAMETER_ACL, &["oid"], 4, V15),
    row("PARTRELID", catalog::PARTITIONED_TABLE, &["partrelid"], 32, V13),
    row("PROCNAMEARGSNSP", catalog::PROC, &["proname", "proargtypes", "pronamespace"], 128, V13),
    row("PROCOID", catalog::PROC, &["oid"], 128, V13),
    row("PUBLICATIONNAME", catalog::PUBLICATION, &["pubname"], 8, V13),
    row("PUBLICATIONNAMESPACE", catalog::PUBLICATION_NAMESPACE, &["oid"], 64, V15),
    row("PUBLICATIONNAMESPACEMAP", catalog::PUBLICATION_NAMESPACE, &["pnnspid", "pnpubid"], 64, V15),
    row("PUBLICATIONOID", catalog::PUBLICATION, &["oid"], 8, V13),
    row("PUBLICATIONREL", catalog::PUBLICATION_REL, &["oid"], 64, V13),
    row("PUBLICATIONRELMAP", catalog::PUBLICATION_REL, &["prrelid", "prpubid"], 64, V13),
    row("RANGEMULTIRANGE", catalog::RANGE, &["rngmultitypid"], 4, V14),
    row("RANGETYPE", catalog::RANGE, &["rngtypid"], 4, V13),
    row("RELNAMENSP", catalog::CLASS, &["relname", "relnamespace"], 128, V13),
    row("RELOID", catalog::CLASS, &["oid"], 128, V13),
    row("REPLORIGIDENT", catalog::REPLICATION_ORIGIN, &["roident"], 16, V13),
    row("REPLORIGNAME", catalog::REPLICATION_ORIGIN, &["roname"], 16, V13),
    row("RULERELNAME", catalog::REWRITE, &["ev_class", "rulename"], 8, V13),
    row("SEQRELID", catalog::SEQUENCE, &["seqrelid"], 32, V13),
    row("STATEXTDATASTXOID", catalog::STATISTIC_EXT_DATA, &["stxoid", "stxdinherit"], 4, V13),
    row("STATEXTNAMENSP", catalog::STATISTIC_EXT, &["stxname", "stxnamespace"], 4, V13),
    row("STATEXTOID", catalog::STATISTIC_EXT, &["oid"], 4, V13),
    row("STATRELATTINH", catalog::STATISTIC, &["starelid", "staattnum", "stainherit"], 128, V13),
    row("SUBSCRIPTIONNAME", catalog::SUBSCRIPTION, &["subdbid", "subname"], 4, V13),
    row("SUBSCRIPTIONOID", catalog::SUBSCRIPTION, &["oid"], 4, V13),
    row("SUBSCRIPTIONRELMAP", catalog::SUBSCRIPTION_REL, &["srrelid", "srsubid"], 64, V13),
    row("TABLESPACEOID", catalog::TABLESPACE, &["oid"], 4, V13),
    row("TRFOID", catalog::TRANSFORM, &["oid"], 16, V13),
    row("TRFTYPELANG", catalog::TRANSFORM, &["trftype", "trflang"], 16, V13),
    row("TSCONFIGMAP", catalog::TS_CONFIG_MAP, &["mapcfg", "maptokentype", "mapseqno"], 2, V13),
    row("TSCONFIGNAMENSP", catalog::TS_CONFIG, &["cfgname", "cfgnamespace"], 2, V13),
    row("TSCONFIGOID", catalog::TS_CONFIG, &["oid"], 2, V13),
    row("TSDICTNAMENSP", catalog::TS_DICT, &["dictname", "dictnamespace"], 2, V13),
    row("TSDICTOID", catalog::TS_DICT, &["oid"], 2, V13),
    row("TSPARSERNAMENSP", catalog::TS_PARSER, &["prsname", "prsnamespace"], 2, V13),
    row("TSPARSEROID", catalog::TS_PARSER, &["oid"], 2, V13),
    row("TSTEMPLATENAMENSP", catalog::TS_TEMPLATE, &["tmplname", "tmplnamespace"], 2, V13),
    row("TSTEMPLATEOID", catalog::TS_TEMPLATE, &["oid"], 2, V13),
    row("TYPENAMENSP", catalog::TYPE, &["typname", "typnamespace"], 64, V13),
    row("TYPEOID", catalog::TYPE, &["oid"], 64, V13),
    row("USERMAPPINGOID", catalog::USER_MAPPING, &["oid"], 2, V13),
    row("USERMAPPINGUSERSERVER", catalog::USER_MAPPING, &["umuser", "umserver"], 2, V13),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::PgVersion::{V16, V17};

    /// Ordinals and counts read from the servers' headers.
    #[test]
    fn ordinals_are_those_of_the_servers() {
        let names = ["RELNAMENSP", "RELOID", "NAMESPACEOID", "PROCOID", "PUBLICATIONOID", "PUBLICATIONRELMAP", "TYPEOID"];
        let expected = [
            (V13, [49, 50, 36, 43, 45, 47, 75], 78),
            (V14, [50, 51, 36, 43, 45, 47, 76], 80),
            (V15, [54, 55, 36, 45, 49, 51, 80], 84),
            (V16, [54, 55, 36, 45, 49, 51, 80], 84),
            (V17, [54, 55, 36, 45, 49, 51, 80], 84),
            (V18, [56, 57, 38, 47, 51, 53, 82], 85),
        ];
        for (version, ids, count) in expected {
            let table = SysCacheTable::of(version);
            assert_eq!((table.version(), table.len()), (version, count));
            let got = names.map(|n| table.id_of(n).map(SysCacheId::message_id));
            assert_eq!(got, ids.map(|id| Some(id as i8)), "PostgreSQL {version}");
            let stable = ["ATTNAME", "ATTNUM", "CLAOID", "CONSTROID"].map(|n| table.id_of(n).map(SysCacheId::index));
            assert_eq!(stable, [Some(6), Some(7), Some(14), Some(19)]);
        }
    }

    /// CREATE EXTENSION on these minors sends exactly these ids, hashed by the extension's oid.
    #[test]
    fn a_cache_of_a_minor_release_stands_last() {
        for (version, id) in [(V13, None), (V14, Some(79)), (V15, Some(83)), (V16, Some(83)), (V17, Some(83)), (V18, Some(28))]
        {
            let table = SysCacheTable::of(version);
            assert_eq!(table.id_of("EXTENSIONOID").map(SysCacheId::index), id, "PostgreSQL {version}");
            assert_eq!(table.caches_on(catalog::EXTENSION).len(), [0, 1, 1, 1, 1, 2][version as usize]);
        }
    }

    #[test]
    fn names_are_sorted_and_buckets_are_powers_of_two() {
        assert!(ALL.windows(2).all(|w| w[0].name < w[1].name));
        assert!(ALL.iter().all(|c| c.initial_buckets.is_power_of_two()));
    }

    #[test]
    fn catalogs_know_their_caches() {
        let table = SysCacheTable::of(V18);
        let names = |oid| table.caches_on(oid).iter().map(|id| table.cache(*id).name).collect::<Vec<_>>();
        assert_eq!(names(catalog::CLASS), ["RELNAMENSP", "RELOID"]);
        assert_eq!(names(catalog::CONSTRAINT), ["CONSTROID"]);
        assert_eq!(names(catalog::ATTRDEF), [""; 0]);
        assert_eq!(
            table.iter().filter(|(_, c)| c.shared).map(|(_, c)| c.name).collect::<Vec<_>>(),
            [
                "AUTHMEMMEMROLE",
                "AUTHMEMROLEMEM",
                "AUTHNAME",
                "AUTHOID",
                "DATABASEOID",
                "PARAMETERACLNAME",
                "PARAMETERACLOID",
                "REPLORIGIDENT",
                "REPLORIGNAME",
                "SUBSCRIPTIONNAME",
                "SUBSCRIPTIONOID",
                "TABLESPACEOID",
            ]
        );
        assert!(catalog::SNAPSHOTS_ONLY.iter().all(|oid| table.caches_on(*oid).is_empty()));
    }

    #[test]
    fn ids_outside_the_table_are_refused() {
        let table = SysCacheTable::of(V13);
        assert_eq!(table.id(77).map(SysCacheId::index), Some(77));
        assert_eq!((table.id(78), table.id(-1)), (None, None));
        assert_eq!(table.id_of("EXTENSIONOID"), None);
    }
}
