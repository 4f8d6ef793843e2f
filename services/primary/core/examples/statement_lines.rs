//! Writes the records of statements that a real server logged as lines of text: `tests/golden/record.py` runs it.
//!
//! Arguments: a folder of WAL segments, and a file with a line `name<TAB>first LSN<TAB>LSN behind the last` for each statement,
//! in the order of the log. On standard output comes `== name` and its lines for each.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs, unreachable_pub)]

#[path = "../tests/support/statement_lines.rs"]
mod statement_lines;

use std::path::Path;

use pg_types::Lsn;
use pg_wal::{WalDir, WalReader};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let ranges = std::fs::read_to_string(&args[2]).unwrap();
    let wal = WalDir::open(Path::new(&args[1]), None).unwrap();
    let mut lines = statement_lines::StatementLines::new(wal.profile().version);
    let mut reader = WalReader::open(&wal, None).unwrap();
    let mut ahead = None;
    for range in ranges.lines() {
        let fields: Vec<&str> = range.split('\t').collect();
        let (from, to): (Lsn, Lsn) = (fields[1].parse().unwrap(), fields[2].parse().unwrap());
        loop {
            let record = match ahead.take() {
                Some(record) => record,
                None => match reader.next().unwrap() {
                    Some(record) => record.decode(wal.profile()).unwrap(),
                    None => break,
                },
            };
            if record.lsn >= to {
                ahead = Some(record);
                break;
            }
            if record.lsn >= from { lines.push(&record) } else { lines.pass(&record) }
        }
        println!("== {}\n{}", fields[0], lines.take().trim_end());
    }
}
