//! Counts and sizes by operation, as `pg_waldump --stats=record` shows them (`XLogRecStoreStats`, `XLogDumpDisplayStats`).

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::ops::AddAssign;

use pg_types::Lsn;

use crate::blocks::RecordParts;
use crate::error::Malformed;
use crate::profile::WalProfile;
use crate::record::RawRecord;
use crate::rmgr::{self, RM_XACT};

/// Resource managers that the id's byte can name.
const RMGRS: usize = 256;
/// Operations that the high half of `xl_info` can name.
const OPERATIONS: usize = 16;

/// Records of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// How many.
    pub count: u64,
    /// Bytes without page images.
    pub record_len: u64,
    /// Bytes of page images.
    pub image_len: u64,
}

impl Sizes {
    /// All bytes.
    #[must_use]
    pub fn total_len(&self) -> u64 {
        self.record_len + self.image_len
    }
}

impl AddAssign for Sizes {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.record_len += other.record_len;
        self.image_len += other.image_len;
    }
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Resource manager.
    pub rmgr: Cow<'static, str>,
    /// Operation.
    pub operation: Cow<'static, str>,
    /// Its records.
    pub sizes: Sizes,
}

/// Statistics over records.
#[derive(Debug)]
pub struct WalStats {
    /// Whose operations.
    profile: &'static WalProfile,
    /// By resource manager and operation.
    table: Vec<[Sizes; OPERATIONS]>,
    /// First position counted.
    start: Option<Lsn>,
    /// First position after what was counted.
    end: Lsn,
}

impl WalStats {
    /// Nothing counted.
    #[must_use]
    pub fn new(profile: &'static WalProfile) -> Self {
        Self { profile, table: vec![[Sizes::default(); OPERATIONS]; RMGRS], start: None, end: Lsn::INVALID }
    }

    /// Counts a record.
    ///
    /// # Errors
    /// If its inner headers contradict each other.
    #[inline]
    pub fn add(&mut self, record: &RawRecord<'_>) -> Result<(), Malformed> {
        let image_len = RecordParts::images_len_of(record.bytes, self.profile)?;
        let header = &record.header;
        let mut operation = usize::from(header.info >> 4);
        if header.rmid == RM_XACT {
            // The top bit only says that more follows.
            operation &= usize::from(rmgr::xact::OPMASK >> 4);
        }
        let row = self.table.get_mut(usize::from(header.rmid)).and_then(|r| r.get_mut(operation));
        if let Some(row) = row {
            row.count += 1;
            row.record_len += u64::from(header.total_len.saturating_sub(image_len));
            row.image_len += u64::from(image_len);
        }
        self.start.get_or_insert(record.lsn);
        self.end = record.end_lsn;
        Ok(())
    }

    /// First position counted and first position after.
    #[must_use]
    pub fn range(&self) -> (Lsn, Lsn) {
        (self.start.unwrap_or(self.end), self.end)
    }

    /// The kinds that occurred, by resource manager and operation.
    pub fn rows(&self) -> impl Iterator<Item = Row> {
        self.table.iter().zip(0u8..=255).flat_map(move |(operations, rmid)| {
            operations.iter().zip(0u8..16).filter(|(sizes, _)| sizes.count > 0).map(move |(sizes, operation)| Row {
                rmgr: rmgr::name(rmid),
                operation: rmgr::operation_name(self.profile, rmid, operation << 4),
                sizes: *sizes,
            })
        })
    }

    /// All together.
    #[must_use]
    pub fn total(&self) -> Sizes {
        let mut total = Sizes::default();
        self.table.iter().flatten().for_each(|sizes| total += *sizes);
        total
    }

    /// The table in pg_waldump's layout.
    ///
    /// # Errors
    /// Only those of `out`.
    pub fn write_table(&self, out: &mut String) -> fmt::Result {
        let (start, end) = self.range();
        let total = self.total();
        writeln!(out, "WAL statistics between {start} and {end}:")?;
        let titles = ["Type", "N", "(%)", "Record size", "(%)", "FPI size", "(%)", "Combined size", "(%)"];
        let rules = ["----", "-", "---", "-----------", "---", "--------", "---", "-------------", "---"];
        for [a, b, c, d, e, f, g, h, i] in [titles, rules] {
            writeln!(out, "{a:<27} {b:>20} {c:>8} {d:>20} {e:>8} {f:>20} {g:>8} {h:>20} {i:>8}")?;
        }
        for row in self.rows() {
            let name = format!("{}/{}", row.rmgr, row.operation);
            let s = row.sizes;
            write!(out, "{name:<27} {:>20} ({:>6.2}) ", s.count, percent(s.count, total.count))?;
            write!(out, "{:>20} ({:>6.2}) ", s.record_len, percent(s.record_len, total.record_len))?;
            write!(out, "{:>20} ({:>6.2}) ", s.image_len, percent(s.image_len, total.image_len))?;
            writeln!(out, "{:>20} ({:>6.2})", s.total_len(), percent(s.total_len(), total.total_len()))?;
        }
        let dashes = "--------";
        writeln!(out, "{:<27} {dashes:>20} {:>8} {dashes:>20} {:>8} {dashes:>20} {:>8} {dashes:>20}", "", "", "", "")?;
        let records = format!("[{:.2}%]", percent(total.record_len, total.total_len()));
        let images = format!("[{:.2}%]", percent(total.image_len, total.total_len()));
        write!(out, "{:<27} {:>20} {:<9}", "Total", total.count, "")?;
        write!(out, "{:>20} {records:<9}{:>20} {images:<9}", total.record_len, total.image_len)?;
        writeln!(out, "{:>20} {:<6}", total.total_len(), "[100%]")
    }
}

/// How many hundredths of `whole` a part is.
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}
