//! What others than the scenario did to the simulated server, noted beside its log so that a run which is played again does the
//! same: lists of running transactions for slots that are built, and how far back slots hold VACUUM.
//!
//! A note has the position of the next record and the number of the step before which it came. The position alone would not do:
//! steps that write nothing may yet give a transaction its xid, and a list before them is another one than a list behind them.
//!
//! Invariant: a note is on the disk before the record that follows from it.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use pg_types::{Lsn, Xid};

use crate::error::{Error, Result};
use crate::slots::Horizon;
use crate::state_file;

/// When something came: position of the next record, number of the next step.
pub(super) type Moment = (Lsn, u64);

/// What others did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// A slot asked for a list of the running transactions: the next record.
    RunningXacts,
    /// From here on slots hold VACUUM back so far.
    Horizon(Horizon),
}

/// All that others did, by its moment.
#[derive(Debug, Default)]
pub(super) struct Notes(BTreeMap<Moment, Vec<Note>>);

impl Notes {
    /// Begins the file of the log in `wal` anew: notes of a log that was removed are about other records.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn clear(wal: &Path) -> Result<()> {
        state_file::store(&path(wal), &[])
    }

    /// Notes one more thing on the disk.
    ///
    /// # Errors
    /// It cannot be stored; what it tells must not be done then.
    pub(super) fn append(wal: &Path, moment: Moment, note: Note) -> Result<()> {
        let path = path(wal);
        // The file was made with the log, or when the log was opened.
        let mut file = OpenOptions::new().append(true).open(&path).map_err(Error::io("open", &path))?;
        file.write_all(line(moment, note).as_bytes()).and_then(|()| file.sync_data()).map_err(Error::io("write", &path))
    }

    /// The notes on what is played again, from `begin` on. Those at or behind `end` are forgotten, for their records are lost and
    /// others will be there.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub(super) fn load(wal: &Path, begin: Lsn, end: Lsn) -> Result<Self> {
        let path = path(wal);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Error::io("read", &path)(error)),
        };
        let (mut notes, mut kept) = (BTreeMap::<Moment, Vec<Note>>::new(), String::new());
        let all = text.split_inclusive('\n').filter_map(from_line);
        for (moment, note) in all.filter(|((lsn, _), _)| (begin..end).contains(lsn)) {
            notes.entry(moment).or_default().push(note);
            kept.push_str(&line(moment, note));
        }
        state_file::store(&path, kept.as_bytes())?;
        Ok(Self(notes))
    }

    /// Takes the next thing that others did at this moment.
    pub(super) fn take(&mut self, moment: Moment) -> Option<Note> {
        let notes = self.0.get_mut(&moment)?;
        let note = (!notes.is_empty()).then(|| notes.remove(0));
        if notes.is_empty() {
            self.0.remove(&moment);
        }
        note
    }
}

/// The file.
fn path(wal: &Path) -> PathBuf {
    wal.with_file_name("wal_asked")
}

/// A line of it: position, step, and for a horizon its xids.
fn line((lsn, step): Moment, note: Note) -> String {
    match note {
        Note::RunningXacts => format!("{lsn} {step}\n"),
        Note::Horizon(Horizon { xmin, catalog_xmin }) => format!("{lsn} {step} {} {}\n", xmin.0, catalog_xmin.0),
    }
}

/// The inverse of [`line()`]; none for a line that a crash cut.
fn from_line(line: &str) -> Option<(Moment, Note)> {
    let words: Vec<&str> = line.strip_suffix('\n')?.split(' ').collect();
    let (lsn, step, note) = match words[..] {
        [lsn, step] => (lsn, step, Note::RunningXacts),
        [lsn, step, xmin, catalog_xmin] => {
            let horizon = Horizon { xmin: Xid(xmin.parse().ok()?), catalog_xmin: Xid(catalog_xmin.parse().ok()?) };
            (lsn, step, Note::Horizon(horizon))
        }
        _ => return None,
    };
    Some(((lsn.parse().ok()?, step.parse().ok()?), note))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_come_back_in_order_up_to_the_end_of_the_log_and_a_torn_line_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let wal = dir.path().join("wal");
        Notes::clear(&wal).unwrap();
        let horizon = |xmin, catalog_xmin| Note::Horizon(Horizon { xmin: Xid(xmin), catalog_xmin: Xid(catalog_xmin) });
        let all = [
            ((Lsn(10), 1), Note::RunningXacts),
            ((Lsn(20), 2), horizon(700, 0)),
            ((Lsn(20), 2), Note::RunningXacts),
            ((Lsn(20), 3), horizon(0, 0)),
            ((Lsn(90), 4), horizon(701, 700)),
        ];
        all.iter().for_each(|(moment, note)| Notes::append(&wal, *moment, *note).unwrap());
        let file = path(&wal);
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{text}0/20 5 7")).unwrap();
        let mut notes = Notes::load(&wal, Lsn(20), Lsn(90)).unwrap();
        assert_eq!(notes.take((Lsn(10), 1)), None, "before the run");
        assert_eq!(notes.take((Lsn(20), 2)), Some(horizon(700, 0)));
        assert_eq!(notes.take((Lsn(20), 2)), Some(Note::RunningXacts));
        assert_eq!(notes.take((Lsn(20), 2)), None);
        assert_eq!(notes.take((Lsn(20), 3)), Some(horizon(0, 0)));
        assert_eq!(notes.take((Lsn(20), 5)), None, "cut");
        assert_eq!(notes.take((Lsn(90), 4)), None, "its record is lost");
        assert_eq!(fs::read_to_string(&file).unwrap(), "0/14 2 700 0\n0/14 2\n0/14 3 0 0\n", "the lost are forgotten");
    }
}
