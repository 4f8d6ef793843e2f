//! Profiles: named rows of choices, one for each behaviour that PostgreSQL changed or that walstorm improves.
//!
//! Every choice is one enum here and one `match` in the structure it concerns; nothing else asks for versions or names. A
//! profile decides what decoding *costs*; what is decoded never depends on it (a property test holds that). `base+switch`
//! takes a row and changes one choice, so that the ladder of 2017 can be climbed a step at a time:
//! `pg96`, `pg96+direct-syscache`, `pg96+direct-syscache+small-map`, `pg96+direct-syscache+small-map+callback-chains` = `pg10`.
//! So it is from `pg18` to `indexed`: each of its ideas is a switch ([`INDEXED_SWITCHES`]), and `pg18` with all of them is `indexed`.
//!
//! If a profile's message rule and the WAL's version differ: a commit record holds all messages in every version, so the rule
//! of 13 works on any WAL; WAL of 13 has no records of single commands' messages, so under the rule of 14 the commit's
//! messages stand in for them, executed when the commit is reached and once more at the end like any others. That tells the
//! cost; no such server reads such WAL, and it would decode rows after a schema change of their own transaction with what was
//! loaded before. `indexed` drops that when the command id rises.

use std::fmt;
use std::str::FromStr;

use pg_types::{CatalogSnapshotRule, PgVersion};

/// How a message finds its catcache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatcacheSearch {
    /// Walk the list of caches (up to 9.6.3).
    List,
    /// Index an array.
    Direct,
}

/// How a message finds its syscache callbacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallbackSearch {
    /// Look at all (up to 9.6.3).
    Scan,
    /// Follow the cache's chain.
    Chain,
}

/// What callbacks of the type cache and of attribute options look at, when a message names a hash or a relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashedCallbacks {
    /// All entries (up to 17).
    Walk,
    /// Those in the bucket of the hash (18: `hash_seq_init_with_hash_value`, `RelIdToTypeIdCacheHash`).
    Bucket,
}

/// What a relcache message does to the relfilenode map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapInvalidation {
    /// Scan every bucket and entry (all releases).
    Scan,
    /// Follow the relation's chain and the list of negatives.
    ReverseIndex,
}

/// When a transaction's own messages are executed during its replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageRule {
    /// All of the commit record at each increase of the command id, and all once at the end (up to 13).
    AtEachCommand,
    /// Each record's own at its position, and all once at the end (14 and later). WAL of 13 has no such records: on it own schema changes
    /// are noticed at the end alone, but with [`EndMessages::OfLoaded`], and rows in between may be looked up in what is stale. No server
    /// reads WAL of another version.
    PerRecord,
}

/// What becomes of a message that was executed before, by the same part of the same replay: on the way, or at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepeatedMessages {
    /// It is executed again (all releases).
    Executed,
    /// It is left out, unless something that it names was loaded since (ours).
    Collapsed,
}

/// Which messages are executed at the end of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndMessages {
    /// All (all releases).
    All,
    /// Those that name something which is loaded; none at all if the replay loaded nothing and all were executed on the way (ours).
    OfLoaded,
}

/// What a catalog-changing commit hands to the transactions that are still running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// The new snapshot alone.
    SnapshotOnly,
    /// The snapshot and all messages of the committing transaction, those that it was handed itself included (April 2025:
    /// grows exponentially).
    FedBack,
    /// The snapshot and the committing transaction's own messages, kept apart and capped (June 2025).
    KeptApart,
    /// Nothing at once: a transaction catches up when its next change is decoded.
    OnDemand,
}

/// When transactions leave the memory, and how the one that must is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// A (sub)transaction is written out when it has 4096 changes, however large (up to 12).
    AtChanges,
    /// Above `logical_decoding_work_mem` the largest (sub)transaction, found by looking at all (13–16).
    LargestByScan,
    /// The same, found by a heap (17 and later).
    LargestByHeap,
}

/// What becomes of a victim that was rolled back already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortedVictims {
    /// It is written out like any other.
    WrittenOut,
    /// Its changes are dropped (18).
    Dropped,
}

/// Which transaction is given out in part when the memory is full, if the consumer takes transactions in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamVictim {
    /// None: there is no such thing (up to 13).
    Never,
    /// The largest top-level one whose changes are complete (14, 15).
    Largest,
    /// The same, if some change of it can be shown (16 and later).
    LargestWithRows,
}

/// How the committed catalog changers come into a snapshot in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommittedOrder {
    /// They are copied and sorted for each snapshot (all releases).
    SortedEachTime,
    /// Each is put into its place when it commits (proposed in 2025).
    KeptSorted,
}

/// Whom rows are given to, which decides what is kept of their relations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputPlugin {
    /// `test_decoding`, which keeps nothing.
    TestDecoding,
    /// `pgoutput`, which remembers how each relation is published.
    PgOutput,
}

/// What of that a changed publication flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublicationFlush {
    /// All; a schema that changes flushes nothing (up to 15).
    WholeButSchemas,
    /// All, as a schema that changes does (16, 17).
    Whole,
    /// The relations that its relcache and relsync messages name (18).
    PerRelation,
}

/// Whether the decoder hears of commits beside the WAL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consumer {
    /// No: it reads WAL whose messages everybody has read long ago.
    #[default]
    CatchUp,
    /// As a walsender that keeps up: each commit's messages also wait for it in the shared queue, from which it is reset when
    /// it lags.
    Live,
}

/// One row of choices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// As asked for, switches included.
    pub name: String,
    /// Version of the WAL that a server of this profile writes: that of a scenario which is played for it alone. It decodes any.
    pub wal_version: PgVersion,
    /// How a message finds its catcache.
    pub catcache_search: CatcacheSearch,
    /// How a message finds its callbacks.
    pub callback_search: CallbackSearch,
    /// What those look at that are given a hash.
    pub hashed_callbacks: HashedCallbacks,
    /// Syscache callbacks that there is room for (`MAX_SYSCACHE_CALLBACKS`): 20 (2008), 32 (2012), 64 (May 2017); ours grows.
    pub syscache_callbacks_max: Option<u8>,
    /// Relcache callbacks that there is room for (`MAX_RELCACHE_CALLBACKS`): 10 in all releases; ours grows.
    pub relcache_callbacks_max: Option<u8>,
    /// Buckets of the empty relfilenode map: 1024, then 64 (May 2017).
    pub map_initial_size: u32,
    /// What a relcache message does to that map.
    pub map_invalidation: MapInvalidation,
    /// When own messages are executed.
    pub message_rule: MessageRule,
    /// Whether one is executed that was executed before.
    pub repeated_messages: RepeatedMessages,
    /// Which are executed at the end.
    pub end_messages: EndMessages,
    /// What running transactions get.
    pub distribution: Distribution,
    /// Bytes of a historic snapshot without its xids in a spill file: 192 up to 13 and in 18, 208 in 14–17.
    pub snapshot_header_bytes: u64,
    /// When transactions leave the memory.
    pub eviction: Eviction,
    /// What becomes of rolled-back ones then.
    pub aborted_victims: AbortedVictims,
    /// Which transaction in progress is given out then.
    pub stream_victim: StreamVictim,
    /// How committed catalog changers are ordered.
    pub committed_order: CommittedOrder,
    /// Whom rows are given to.
    pub output_plugin: OutputPlugin,
    /// What a changed publication flushes there.
    pub publication_flush: PublicationFlush,
    /// All caches are dropped whenever messages might come (`debug_discard_caches`): nothing decoded may change.
    pub discard_caches: bool,
    /// When the catalog snapshot is kept, with which catalogs are read that no historic snapshot can tell.
    pub catalog_snapshot: CatalogSnapshotRule,
    /// Whether the shared queue is read.
    pub consumer: Consumer,
}

/// A name and what it chooses.
type Named = (&'static str, fn(&mut Profile));

/// A bare name, the version of the WAL that its servers write, and what it chooses.
type Row = (&'static str, PgVersion, fn(&mut Profile));

/// The bare names, oldest first. Of servers before 13 walstorm writes no WAL; theirs is taken to be that of 13.
const ROWS: &[Row] = &[
    ("pg96", PgVersion::V13, |_| ()),
    ("pg10", PgVersion::V13, pg10),
    ("pg13.6", PgVersion::V13, pg13_6),
    ("pg13", PgVersion::V13, pg13),
    ("pg14.5", PgVersion::V14, pg14_5),
    ("pg14", PgVersion::V14, pg14),
    ("pg15.1", PgVersion::V15, pg14_5),
    ("pg15", PgVersion::V15, pg14),
    ("pg16", PgVersion::V16, pg16),
    ("pg17.5", PgVersion::V17, pg17_5),
    ("pg17", PgVersion::V17, pg17),
    ("pg17.6", PgVersion::V17, pg17),
    ("pg18", PgVersion::V18, pg18),
    ("indexed", PgVersion::V18, indexed),
];

/// How a name says that the consumer is live.
const LIVE_SUFFIX: &str = "+live";

/// What may follow a name after a `+`.
const SWITCHES: &[Named] = &[
    ("direct-syscache", |p| p.catcache_search = CatcacheSearch::Direct),
    ("callback-chains", callback_chains),
    ("hashed-callbacks", |p| p.hashed_callbacks = HashedCallbacks::Bucket),
    ("callbacks-of-2008", |p| p.syscache_callbacks_max = Some(20)),
    ("any-callbacks", |p| (p.syscache_callbacks_max, p.relcache_callbacks_max) = (None, None)),
    ("small-map", |p| p.map_initial_size = 64),
    ("reverse-index", |p| p.map_invalidation = MapInvalidation::ReverseIndex),
    ("per-record-messages", |p| p.message_rule = MessageRule::PerRecord),
    ("execute-once", |p| p.end_messages = EndMessages::OfLoaded),
    ("collapse-messages", |p| p.repeated_messages = RepeatedMessages::Collapsed),
    ("distribute-messages", |p| p.distribution = Distribution::KeptApart),
    ("on-demand-snapshots", |p| p.distribution = Distribution::OnDemand),
    ("work-mem", |p| p.eviction = Eviction::LargestByScan),
    ("victim-heap", |p| p.eviction = Eviction::LargestByHeap),
    ("drop-aborted", |p| p.aborted_victims = AbortedVictims::Dropped),
    ("sorted-committed", |p| p.committed_order = CommittedOrder::KeptSorted),
    ("pgoutput", |p| p.output_plugin = OutputPlugin::PgOutput),
    ("relsync", |p| p.publication_flush = PublicationFlush::PerRelation),
    ("discard-caches", |p| p.discard_caches = true),
    ("always-new-snapshots", |p| p.catalog_snapshot = CatalogSnapshotRule::ALWAYS_NEW),
    ("live", |p| p.consumer = Consumer::Live),
];

/// What makes `indexed` of `pg18`, in the order in which the ladder climbs; `victim-heap`, which 17 has already, is one more idea.
pub const INDEXED_SWITCHES: [&str; 6] =
    ["reverse-index", "execute-once", "collapse-messages", "on-demand-snapshots", "sorted-committed", "any-callbacks"];

/// The change of May 2017: chains, and room for more.
fn callback_chains(p: &mut Profile) {
    p.callback_search = CallbackSearch::Chain;
    p.syscache_callbacks_max = Some(64);
}

/// 9.6.4 and 10–12.
fn pg10(p: &mut Profile) {
    p.catcache_search = CatcacheSearch::Direct;
    callback_chains(p);
    p.map_initial_size = 64;
}

/// 13 before messages were distributed.
fn pg13_6(p: &mut Profile) {
    pg10(p);
    p.eviction = Eviction::LargestByScan;
}

/// The last 13.
fn pg13(p: &mut Profile) {
    pg13_6(p);
    p.distribution = Distribution::KeptApart;
}

/// 14–16 before messages were distributed; the snapshot's size is that of 14–17.
fn pg14_5(p: &mut Profile) {
    pg13_6(p);
    p.message_rule = MessageRule::PerRecord;
    p.snapshot_header_bytes = 208;
    p.stream_victim = StreamVictim::Largest;
}

/// The last 14–16.
fn pg14(p: &mut Profile) {
    pg14_5(p);
    p.distribution = Distribution::KeptApart;
}

/// The last 16.
fn pg16(p: &mut Profile) {
    pg14(p);
    p.stream_victim = StreamVictim::LargestWithRows;
    p.publication_flush = PublicationFlush::Whole;
}

/// 17.5: messages are distributed and fed back.
fn pg17_5(p: &mut Profile) {
    pg17(p);
    p.distribution = Distribution::FedBack;
}

/// 17.6 and later.
fn pg17(p: &mut Profile) {
    pg16(p);
    p.eviction = Eviction::LargestByHeap;
}

/// 18.
fn pg18(p: &mut Profile) {
    pg17(p);
    p.snapshot_header_bytes = 192;
    p.publication_flush = PublicationFlush::PerRelation;
    p.hashed_callbacks = HashedCallbacks::Bucket;
    p.aborted_victims = AbortedVictims::Dropped;
}

/// walstorm's own.
fn indexed(p: &mut Profile) {
    pg18(p);
    p.map_invalidation = MapInvalidation::ReverseIndex;
    (p.syscache_callbacks_max, p.relcache_callbacks_max) = (None, None);
    p.end_messages = EndMessages::OfLoaded;
    p.repeated_messages = RepeatedMessages::Collapsed;
    p.distribution = Distribution::OnDemand;
    p.committed_order = CommittedOrder::KeptSorted;
}

impl Profile {
    /// The bare names, oldest first.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ROWS.iter().map(|(name, ..)| *name)
    }

    /// The switches that may follow a name after a `+`.
    pub fn switches() -> impl Iterator<Item = &'static str> {
        SWITCHES.iter().map(|(name, _)| *name)
    }

    /// Whether it is the one with this name, whoever consumes.
    #[must_use]
    pub fn is_named(&self, name: &str) -> bool {
        self.name.replace(LIVE_SUFFIX, "") == name
    }

    /// A server of this profile can give out transactions in progress.
    #[must_use]
    pub fn streams(&self) -> bool {
        self.stream_victim != StreamVictim::Never
    }

    /// Some messages are executed only if what they name was loaded.
    #[must_use]
    pub fn leaves_out_messages(&self) -> bool {
        self.end_messages == EndMessages::OfLoaded || self.repeated_messages == RepeatedMessages::Collapsed
    }

    /// walstorm's own profile.
    #[must_use]
    pub fn indexed() -> Profile {
        let mut profile = Profile { wal_version: PgVersion::V18, ..Self::oldest("indexed") };
        indexed(&mut profile);
        profile
    }

    /// The same for a `consumer`, if one is named; its name says so.
    #[must_use]
    pub fn consumed_by(self, consumer: Option<Consumer>) -> Profile {
        let consumer = consumer.unwrap_or(self.consumer);
        let name = match consumer {
            _ if consumer == self.consumer => self.name,
            Consumer::CatchUp => self.name.replace(LIVE_SUFFIX, ""),
            Consumer::Live => self.name + LIVE_SUFFIX,
        };
        Profile { name, consumer, ..self }
    }

    /// The same for a subscriber of publications, who gets rows from `pgoutput`; its name says so.
    #[must_use]
    pub fn with_pgoutput(self) -> Profile {
        match self.output_plugin {
            OutputPlugin::PgOutput => self,
            OutputPlugin::TestDecoding => {
                Profile { name: self.name + "+pgoutput", output_plugin: OutputPlugin::PgOutput, ..self }
            }
        }
    }

    /// 9.6.3 and older; the other rows change it.
    fn oldest(name: &str) -> Profile {
        Profile {
            name: name.to_owned(),
            wal_version: PgVersion::V13,
            catcache_search: CatcacheSearch::List,
            callback_search: CallbackSearch::Scan,
            hashed_callbacks: HashedCallbacks::Walk,
            syscache_callbacks_max: Some(32),
            relcache_callbacks_max: Some(10),
            map_initial_size: 1024,
            map_invalidation: MapInvalidation::Scan,
            message_rule: MessageRule::AtEachCommand,
            repeated_messages: RepeatedMessages::Executed,
            end_messages: EndMessages::All,
            distribution: Distribution::SnapshotOnly,
            snapshot_header_bytes: 192,
            eviction: Eviction::AtChanges,
            aborted_victims: AbortedVictims::WrittenOut,
            stream_victim: StreamVictim::Never,
            committed_order: CommittedOrder::SortedEachTime,
            output_plugin: OutputPlugin::TestDecoding,
            publication_flush: PublicationFlush::WholeButSchemas,
            discard_caches: false,
            catalog_snapshot: CatalogSnapshotRule::TODAY,
            consumer: Consumer::CatchUp,
        }
    }
}

impl fmt::Display for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CatchUp => "catch-up",
            Self::Live => "live",
        })
    }
}

/// The text names no consumer mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{asked}' is no consumer mode: live (reads the shared invalidation queue, and is reset when it lags) or catch-up (does not)"
)]
pub struct UnknownConsumer {
    /// The text, control characters escaped.
    pub asked: String,
}

impl FromStr for Consumer {
    type Err = UnknownConsumer;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "catch-up" => Ok(Self::CatchUp),
            "live" => Ok(Self::Live),
            _ => Err(UnknownConsumer { asked: text.escape_debug().to_string() }),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The name or switch that is nearest to a wrong one, if one is near: at most a third of its letters differ.
fn nearest(wrong: &str) -> Option<&'static str> {
    let far = wrong.chars().count().div_ceil(3);
    let measured = Profile::names().chain(Profile::switches()).map(|word| (strsim::damerau_levenshtein(wrong, word), word));
    measured.filter(|(distance, _)| *distance <= far).min_by_key(|(distance, _)| *distance).map(|(_, word)| word)
}

/// The text names no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{asked}' is no profile: '{part}' is not known{} Profiles: {}; each may be followed by +switch with the switches {}",
    nearest(part).map_or_else(|| ".".to_owned(), |word| format!("; did you mean '{word}'?")),
    Profile::names().collect::<Vec<_>>().join(", "),
    Profile::switches().collect::<Vec<_>>().join(", ")
)]
pub struct UnknownProfile {
    /// The whole text, control characters escaped.
    pub asked: String,
    /// The part that is not known.
    pub part: String,
}

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut profile = Profile::oldest(text);
        for (i, part) in text.split('+').enumerate() {
            let choose = match i {
                0 => ROWS.iter().find(|(name, ..)| *name == part).map(|(_, version, choose)| {
                    profile.wal_version = *version;
                    choose
                }),
                _ => SWITCHES.iter().find(|(name, _)| *name == part).map(|(_, choose)| choose),
            };
            let Some(choose) = choose else {
                let plain = |s: &str| s.escape_debug().to_string();
                return Err(UnknownProfile { asked: plain(text), part: plain(part) });
            };
            choose(&mut profile);
        }
        Ok(profile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(text: &str) -> Profile {
        Profile { name: String::new(), ..text.parse().unwrap() }
    }

    #[test]
    fn a_profile_writes_its_own_wal_or_the_oldest_that_is_written() {
        for name in Profile::names() {
            let digits: String = name.chars().filter(char::is_ascii_digit).take(2).collect();
            let own = PgVersion::ALL.into_iter().find(|version| version.major().to_string() == digits);
            let expected = own.unwrap_or(if name == "indexed" { PgVersion::V18 } else { PgVersion::V13 });
            assert_eq!(choices(name).wal_version, expected, "{name}");
        }
        assert_eq!(choices("pg16+live").wal_version, PgVersion::V16);
    }

    #[test]
    fn the_ladder_of_2017_ends_at_pg10() {
        assert_eq!(choices("pg96+direct-syscache+small-map+callback-chains"), choices("pg10"));
        assert_ne!(choices("pg96+direct-syscache+small-map"), choices("pg10"));
    }

    #[test]
    fn pg18_with_all_ideas_of_indexed_is_indexed_and_without_one_is_not() {
        let with =
            |switches: &[&str]| choices(&["pg18"].into_iter().chain(switches.iter().copied()).collect::<Vec<_>>().join("+"));
        assert_eq!(with(&INDEXED_SWITCHES), choices("indexed"));
        for left_out in INDEXED_SWITCHES {
            let rest: Vec<&str> = INDEXED_SWITCHES.into_iter().filter(|switch| *switch != left_out).collect();
            assert_ne!(with(&rest), choices("indexed"), "{left_out}");
        }
    }

    #[test]
    fn every_name_and_switch_parses_and_indexed_is_itself() {
        for name in Profile::names() {
            assert_eq!(name.parse::<Profile>().unwrap().to_string(), name);
            for switch in Profile::switches() {
                assert!(format!("{name}+{switch}").parse::<Profile>().is_ok());
            }
        }
        assert_eq!(choices("indexed"), Profile { name: String::new(), ..Profile::indexed() });
    }

    #[test]
    fn a_consumer_mode_is_a_switch_and_can_be_named_apart() {
        for mode in [Consumer::Live, Consumer::CatchUp] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            for asked in ["pg13+small-map", "pg13+live+small-map"] {
                let profile = asked.parse::<Profile>().unwrap().consumed_by(Some(mode));
                assert_eq!(profile.consumer, mode);
                assert_eq!(profile.name.parse(), Ok(profile.clone()), "the name says everything");
                assert_eq!(profile.clone().consumed_by(None), profile);
            }
        }
        assert!("slow\u{7}".parse::<Consumer>().unwrap_err().to_string().starts_with("'slow\\u{7}' is no consumer mode: live"));
    }

    #[test]
    fn unknown_names_are_answered_with_the_known_ones() {
        let error = "pg96+turbo\u{1b}[2J".parse::<Profile>().unwrap_err().to_string();
        assert!(error.contains("'turbo\\u{1b}[2J' is not known"), "{error}");
        let near = |asked: &str| asked.parse::<Profile>().unwrap_err().to_string();
        assert!(near("pg81").contains("'pg81' is not known; did you mean 'pg18'?"), "{}", near("pg81"));
        assert!(near("pg96+smal-map").contains("did you mean 'small-map'?") && !near("x").contains("mean"));
        assert!(error.contains("pg17.6") && error.contains("reverse-index"), "{error}");
        for bad in ["", "+", "pg96+", "small-map", "PG96", "pg18 "] {
            assert!(bad.parse::<Profile>().is_err(), "{bad:?}");
        }
    }
}
