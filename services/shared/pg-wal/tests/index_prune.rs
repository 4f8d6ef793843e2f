//! Removal of index entries by servers of 13 to 18 (`fixtures/index_prune/record.py`), with what is known of the horizon.

use pg_types::{Lsn, PgVersion, RecordBody};
use pg_wal::profile::WalProfile;
use pg_wal::record::RawRecord;

/// A line of the recording.
struct Row<'a> {
    version: PgVersion,
    /// The oldest and the newest horizon that can be: the xid of the deletion, or what was current around it.
    horizons: [u32; 2],
    /// The server's description; empty up to 14.
    text: &'a str,
    bytes: Vec<u8>,
}

impl<'a> Row<'a> {
    fn read(line: &'a str) -> Self {
        let [version, _, _, oldest, newest, text, hex] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let bytes = hex.as_bytes().chunks(2).map(byte).collect();
        let version = PgVersion::ALL.into_iter().find(|v| v.to_string() == version).unwrap();
        Self { version, horizons: [oldest, newest].map(|xid| xid.parse().unwrap()), text, bytes }
    }

    /// The horizon in the description, with its epoch if it has one.
    fn told(&self) -> Option<(Option<u32>, u32)> {
        let label = ["latestRemovedXid ", "snapshotConflictHorizon: ", "snapshotConflictHorizon ", "newestredirectxid: "];
        let rest = label.into_iter().find_map(|label| self.text.split(label).nth(1))?;
        let number = rest.split([',', ';']).next().unwrap();
        match number.split_once(':') {
            Some((epoch, xid)) => Some((Some(epoch.parse().unwrap()), xid.parse().unwrap())),
            None => Some((None, number.parse().unwrap())),
        }
    }
}

#[test]
fn horizons_of_index_entries_are_those_of_the_servers() {
    let mut told = 0;
    let rows: Vec<Row<'_>> = include_str!("fixtures/index_prune/records.tsv").lines().map(Row::read).collect();
    assert_eq!(rows.len(), 6 * PgVersion::ALL.len());
    for row in &rows {
        let record = RawRecord::new(Lsn(8), Lsn(8 + row.bytes.len() as u64), &row.bytes).unwrap();
        let what = format!("{} {:?}: {}", row.version, record.header, row.text);
        let RecordBody::IndexPrune(prune) = record.decode(WalProfile::of(row.version)).unwrap().body else { panic!("{what}") };
        let [oldest, newest] = row.horizons;
        assert!((oldest..=newest).contains(&prune.conflict_horizon.0), "{prune:?} {what}");
        assert!(prune.target.rel > 16_384 && prune.target.db.0 != 0 && !prune.is_catalog, "{prune:?} {what}");
        assert_eq!(prune.horizon_epoch.unwrap_or(0), 0, "{what}");
        if let Some((epoch, horizon)) = row.told() {
            assert_eq!((prune.horizon_epoch, prune.conflict_horizon.0), (epoch, horizon), "{what}");
            told += 1;
        }
    }
    assert_eq!(told, 6 * 4, "15 and later describe their records");
}

/// Bytes of a record before its data.
const HEADER: usize = 24;

#[test]
fn a_page_record_that_ends_early_is_an_error_wherever_it_ends() {
    let rows: Vec<Row<'_>> = include_str!("fixtures/index_prune/records.tsv").lines().map(Row::read).collect();
    // Those that have nothing but main data: the mark of a short one, its length, the data.
    let pages = rows.iter().filter(|row| row.bytes[HEADER] == 0xFF);
    let mut cut = 0;
    for row in pages {
        let data = row.bytes.len() - HEADER - 2;
        for n in 0..data {
            let mut bytes = row.bytes[..HEADER + 2 + n].to_vec();
            bytes[HEADER + 1] = n as u8;
            let length = bytes.len() as u32;
            bytes[..4].copy_from_slice(&length.to_le_bytes());
            let raw = RawRecord::new(Lsn(8), Lsn(8 + u64::from(length)), &bytes).unwrap();
            assert!(raw.decode(WalProfile::of(row.version)).is_err(), "{n} of {data} bytes: {} {}", row.version, row.text);
            cut += 1;
        }
    }
    assert!(cut > 2 * 6 * 20, "{cut}");
}
