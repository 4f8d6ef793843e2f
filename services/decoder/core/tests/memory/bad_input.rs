//! What no server writes: each has one defined outcome, and the transactions around it come out whole.
//!
//! | input | outcome | test |
//! |---|---|---|
//! | message with an unknown tag | the record is refused, with its LSN | `pg-wal`: `rmgr/standby.rs` |
//! | message for a cache that the version has not | the record is refused, with its LSN and xid: what it means nobody can tell | here |
//! | commit of a transaction never seen | nothing is given out; with messages a transaction without rows, whose messages are executed, as on a server | here |
//! | subtransaction assigned twice, or to another parent | the first assignment counts; its rows come once | here |
//! | change of a file that no relation has | given out under its file's name | here |
//! | spill disk full, spill directory at its limit | an error that names file and limit; the node halts or waits for room | `memory.rs`, `decoder-node`: `spill.rs` |
//! | spill file damaged | an error that names file and place | `memory.rs` |

use decoder_core::{DecodeError, NoOutput};
use pg_types::record::AssignmentRecord;
use pg_types::{PgVersion, RecordBody, Xid};

use crate::support::{Log, catcache, decode, decoder, relcache};

/// Profiles with every rule about messages.
const PROFILES: [&str; 5] = ["pg96", "pg13", "pg14", "pg18", "indexed"];

#[test]
fn a_message_for_no_cache_is_refused_before_anything_is_executed() {
    for version in [PgVersion::V13, PgVersion::V18] {
        for profile in PROFILES {
            let mut log = Log::consistent(1000);
            log.new_cid(1001, 0, 0);
            log.commit(1001, &[], vec![relcache(20_000), catcache(127, 0)]);
            let mut decoder = decoder(version, profile);
            let mut decode = log.records.iter().map(|record| decoder.process(record, &mut NoOutput));
            let error = decode.find_map(Result::err).unwrap();
            assert!(matches!(error, DecodeError::UnknownSyscache { id: 127, xid: Xid(1001), .. }), "{profile}: {error}");
            drop(decode);
            assert_eq!(decoder.work().messages_executed, 0, "{profile} on {version}");
        }
    }
}

#[test]
fn a_commit_of_nobody_gives_out_nothing() {
    for version in [PgVersion::V13, PgVersion::V18] {
        for profile in PROFILES {
            let mut log = Log::consistent(1000);
            log.commit(1000, &[1001, 1002], vec![]);
            log.commit(1003, &[1004], vec![relcache(20_000); 3]);
            log.insert(1005, 0, 20_000);
            log.commit(1005, &[], vec![]);
            let (decoder, sink) = decode(&log, version, profile);
            assert_eq!(sink.work.iter().map(|(xid, _)| xid.0).collect::<Vec<_>>(), [1003, 1005], "{profile} on {version}");
            assert_eq!(sink.stream.len(), 2 + 3, "{profile} on {version}: one row");
            assert_eq!(decoder.sizes().transactions, 0, "{profile} on {version}: nothing is left behind");
        }
    }
}

#[test]
fn a_subtransaction_that_is_assigned_twice_is_shown_once() {
    for profile in PROFILES {
        let mut log = Log::consistent(1000);
        log.insert(1000, 0, 20_000);
        log.insert(1005, 0, 20_001);
        for parent in [1000, 1000, 1005] {
            let assigned = AssignmentRecord { top_xid: Xid(parent), subxids: vec![Xid(1001)] };
            log.push(parent, 0, RecordBody::Assignment(Box::new(assigned)));
            log.insert(1001, parent, 20_002);
        }
        log.commit(1000, &[1001, 1001], vec![]);
        log.commit(1005, &[1001], vec![]);
        let (decoder, sink) = decode(&log, PgVersion::V13, profile);
        let rows = sink.stream.iter().filter(|call| call.contains("Insert 1663/5/20002")).count();
        assert_eq!(rows, 3, "{profile}: {:#?}", sink.stream);
        assert_eq!((sink.work.len(), decoder.sizes().transactions), (2, 0), "{profile}");
    }
}

#[test]
fn a_change_of_an_unknown_file_has_the_name_of_its_file() {
    for profile in PROFILES {
        let mut log = Log::consistent(1000);
        log.insert(1000, 0, 4_000_000_000);
        log.commit(1000, &[], vec![]);
        let (_, sink) = decode(&log, PgVersion::V18, profile);
        assert!(sink.stream[1].contains("1663/5/4000000000"), "{profile}: {}", sink.stream[1]);
    }
}
