//! The ladders: incidents with the figures that others published, and the sizes and profiles at which a run plays them.
//!
//! Published figures are of other machines and sizes; what compares is the order of the steps and the ratios between them. Sizes
//! are chosen so that the slowest profile fits into a run that one waits for; a scenario file may be played at any other size.

use decoder_core::SnapBuildCounts;
use pg_types::Work;
use primary_core::{Overrides, ParameterValue};

/// One profile of a ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rung {
    /// The profile.
    pub profile: &'static str,
    /// The published figure for it, empty if there is none.
    pub published: &'static str,
    /// The same on a real server of that version at this scale, empty if nobody measured it.
    pub real_server: &'static str,
    /// What this step changed, in a few words.
    pub change: &'static str,
}

/// A scenario as a ladder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ladder {
    /// The scenario.
    pub scenario: &'static str,
    /// What was published, in one line.
    pub headline: &'static str,
    /// Parameters that are set for a run, with their values.
    pub scale: &'static [(&'static str, &'static str)],
    /// The scale for people, beside the published one.
    pub scale_text: &'static str,
    /// Which servers the figures of real servers are of, empty if there are none.
    pub real_servers: &'static str,
    /// What is compared.
    pub side: Side,
    /// The two profiles that tell the story: before and after.
    pub story: (&'static str, &'static str),
    /// The profiles, slowest first.
    pub rungs: &'static [Rung],
    /// Which counters are shown.
    pub counters: [Counter; 4],
    /// The published profile of functions: per rung, shares in per cent by PostgreSQL's names.
    pub functions: &'static [&'static [(&'static str, u32)]],
}

/// A counter that tells a decoder's profiles apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Messages executed.
    Messages,
    /// Caches searched.
    Caches,
    /// Callbacks looked at.
    Callbacks,
    /// Slots of the relfilenode map.
    MapSlots,
    /// Snapshots handed out.
    Snapshots,
    /// Xids compared.
    Compared,
}

impl Counter {
    /// Those that are shown where nothing is said: the costs of messages.
    pub const OF_MESSAGES: [Counter; 4] = [Self::Messages, Self::Caches, Self::Callbacks, Self::MapSlots];
    /// Messages and snapshots.
    pub const OF_SNAPSHOTS: [Counter; 4] = [Self::Messages, Self::MapSlots, Self::Snapshots, Self::Compared];

    /// The title of its column, and what it is.
    #[must_use]
    pub fn text(self) -> (&'static str, &'static str) {
        match self {
            Self::Messages => ("messages", "executed"),
            Self::Caches => ("caches", "searched for one of a message"),
            Self::Callbacks => ("callbacks", "looked at"),
            Self::MapSlots => ("map slots", "buckets and entries of the relfilenode map that scans walked over"),
            Self::Snapshots => ("snapshots", "handed to transactions"),
            Self::Compared => ("compared", "xids, to have those of a snapshot in order"),
        }
    }

    /// Its value.
    #[must_use]
    pub fn of(self, work: &Work, snapshots: &SnapBuildCounts) -> u64 {
        match self {
            Self::Messages => work.messages_executed,
            Self::Caches => work.caches_searched,
            Self::Callbacks => work.callbacks_visited,
            Self::MapSlots => work.map_slots_visited,
            Self::Snapshots => work.snapshots_distributed,
            Self::Compared => snapshots.compared,
        }
    }
}

/// Who pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The decoder.
    Decoder,
    /// Readers on the standby.
    Standby,
}

/// A rung.
const fn rung(profile: &'static str, published: &'static str, change: &'static str) -> Rung {
    Rung { profile, published, real_server: "", change }
}

impl Rung {
    /// The same with what a real server took.
    const fn real(self, real_server: &'static str) -> Rung {
        Rung { real_server, ..self }
    }
}

/// All ladders.
pub const LADDERS: &[Ladder] = &[
    Ladder {
        scenario: "catalog-churn",
        headline: "2017: one decoder beside a storm of schema changes, 115 s, after three fixes 13 s",
        scale: &[],
        scale_text: "700 transactions that change schemas among 10,000 tables (published: 10,000 tables known)",
        real_servers: "",
        side: Side::Decoder,
        story: ("pg96", "pg10"),
        rungs: &[
            rung("pg96", "115 s", "as it was"),
            rung("pg96+direct-syscache", "55 s", "the cache of a message by index"),
            rung("pg96+direct-syscache+small-map", "21 s", "64 buckets in the map, not 1024"),
            rung("pg10", "13 s", "callbacks in a chain per cache"),
            rung("pg14", "", "each message once, not at each command"),
            rung("indexed", "", "walstorm: nothing is searched"),
        ],
        counters: Counter::OF_MESSAGES,
        functions: &[
            &[("CatalogCacheIdInvalidate", 53), ("hash_seq_search", 31), ("CallSyscacheCallbacks", 6)],
            &[("hash_seq_search", 59)],
            &[("CallSyscacheCallbacks", 23), ("LocalExecuteInvalidationMessage", 17), ("CatCacheInvalidate", 16)],
            &[("CatCacheInvalidate", 23)],
        ],
    },
    Ladder {
        scenario: "standby-gaps",
        headline: "2021: one function took 23 % of a standby's CPU (13), 0.76 % with skip offsets",
        scale: &[("duration", "30s"), ("longest", "30s")],
        scale_text: "30 s of 16 writers beside 10 long transactions, max_connections 5000, 200 snapshots a second",
        real_servers: "13.6, 15.1, 13.23, 16.14, 18.4 with four pgbench readers: share of their CPU in KnownAssignedXidsGetAndSetXmin",
        side: Side::Standby,
        story: ("pg13.6", "pg13.6+skip-offset"),
        rungs: &[
            rung("pg13.6", "23 %", "every slot between the oldest and the newest").real("20.2 %"),
            rung("pg13.6+skip-offset", "0.76 %", "gaps are jumped over"),
            rung("pg14.5", "6.2 %", "every slot; a snapshot may be kept"),
            rung("pg14.5+skip-offset", "~0 %", "gaps are jumped over"),
            rung("pg15.1", "", "as 14.5").real("4.2 %"),
            rung("pg13", "", "13 today: compressed every 128 ends (2022)").real("0.86 %"),
            rung("pg16", "", "and a snapshot may be kept").real("0.29 %"),
            rung("pg18", "", "as 16").real("0.08 %"),
            rung("indexed", "", "walstorm: live xids alone"),
        ],
        counters: Counter::OF_MESSAGES,
        functions: &[],
    },
    Ladder {
        scenario: "truncate-partitions",
        headline: "2020: one TRUNCATE of 1,000 partitions kept a walsender busy for 222 s, from 14 on less than 1 s",
        scale: &[("partitions", "500")],
        scale_text: "500 of 1,000 partitions (published: 1,000 of 2,000; up to 13 the cost is quadratic: 4 times as much)",
        real_servers: "walsenders of 13.23 and 18.4 for 500 of 2,000 partitions, CPU",
        side: Side::Decoder,
        story: ("pg13", "pg14"),
        rungs: &[
            rung("pg13", "222 s", "all messages at each command").real("4.48 s"),
            rung("pg14", "< 1 s", "each message once, and once at the end"),
            rung("pg18", "", "as 14").real("33 ms"),
            rung("indexed", "", "walstorm: no scan, nothing twice"),
        ],
        counters: Counter::OF_MESSAGES,
        functions: &[],
    },
    Ladder {
        scenario: "schema-storm",
        headline: "each idea of walstorm's own profile on schema changes beside 10,000 decoded tables",
        scale: &[("transactions", "100")],
        scale_text: "100 transactions that make a table with two indexes (published: 500, as measured on servers)",
        real_servers: "",
        side: Side::Decoder,
        story: ("pg13", "pg14"),
        rungs: &[
            rung("pg13", "4.07 s", "all messages at each command"),
            rung("pg14", "0.86 s", "each message once, and once at the end"),
            rung("pg18", "0.93 s", "as 14"),
            rung(INDEXED_STEPS[0], "", "the map is indexed by relation"),
            rung(INDEXED_STEPS[1], "", "at the end messages of what is loaded alone"),
            rung(INDEXED_STEPS[2], "", "a message that was executed is not again"),
            rung(INDEXED_STEPS[3], "", "snapshots for those who write on"),
            rung(INDEXED_STEPS[4], "", "committed xids stay in order"),
            rung("indexed", "", "walstorm: and room for any number of callbacks"),
        ],
        counters: Counter::OF_SNAPSHOTS,
        functions: &[],
    },
];

/// `pg18` and one idea of `indexed` after another, in the order of [`decoder_core::profile::INDEXED_SWITCHES`] but for the last.
pub const INDEXED_STEPS: [&str; 5] = [
    "pg18+reverse-index",
    "pg18+reverse-index+execute-once",
    "pg18+reverse-index+execute-once+collapse-messages",
    "pg18+reverse-index+execute-once+collapse-messages+on-demand-snapshots",
    "pg18+reverse-index+execute-once+collapse-messages+on-demand-snapshots+sorted-committed",
];

impl Ladder {
    /// The ladder of a scenario that ships.
    #[must_use]
    pub fn of(scenario: &str) -> Option<&'static Ladder> {
        LADDERS.iter().find(|ladder| ladder.scenario == scenario)
    }

    /// The sizes as overrides of the scenario's parameters.
    #[must_use]
    pub fn overrides(&self) -> Overrides {
        self.scale.iter().map(|(name, value)| ((*name).to_owned(), ParameterValue::from(*value))).collect()
    }

    /// The rung of a profile, if it is on the ladder, whoever consumes.
    #[must_use]
    pub fn rung(&self, profile: &str) -> Option<&'static Rung> {
        self.rungs.iter().find(|rung| rung.profile == profile.trim_end_matches("+live"))
    }

    /// The published shares of functions for a profile; empty if there are none.
    #[must_use]
    pub fn published_functions(&self, profile: &str) -> &'static [(&'static str, u32)] {
        let index = self.rungs.iter().position(|rung| rung.profile == profile.trim_end_matches("+live"));
        index.and_then(|i| self.functions.get(i)).copied().unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ladder_is_a_scenario_that_ships_with_parameters_and_profiles_that_exist() {
        for ladder in LADDERS {
            let scenario = primary_core::Scenario::load(ladder.scenario).unwrap();
            scenario.plan(&ladder.overrides()).unwrap();
            for rung in ladder.rungs {
                match ladder.side {
                    Side::Decoder => drop(rung.profile.parse::<decoder_core::Profile>().unwrap()),
                    Side::Standby => drop(rung.profile.parse::<standby_core::StandbyProfile>().unwrap()),
                }
            }
            assert!(ladder.functions.len() <= ladder.rungs.len());
            for profile in [ladder.story.0, ladder.story.1] {
                assert!(!ladder.rung(profile).unwrap().published.is_empty(), "{profile}");
            }
        }
    }

    #[test]
    fn the_steps_to_indexed_are_its_switches_one_after_another() {
        let mut profile = "pg18".to_owned();
        for (switch, step) in decoder_core::profile::INDEXED_SWITCHES.iter().zip(INDEXED_STEPS) {
            profile = format!("{profile}+{switch}");
            assert_eq!(profile, step);
        }
    }

    #[test]
    fn published_functions_are_functions_that_the_decoder_names() {
        for (name, share) in LADDERS.iter().flat_map(|l| l.functions.iter().copied().flatten()) {
            assert!(decoder_core::Function::ALL.iter().any(|f| f.name() == *name), "{name}");
            assert!((1..100).contains(share));
        }
    }
}
