//! The end of a log where no record starts: the rules for zeroes, old pages and missing files.

use pg_types::Lsn;

use super::pages::{CheckedPage, PageFault};
use super::{PAGE, WalReader};
use crate::end::{EndReason, WalEnd};
use crate::error::WalError;
use crate::page::{PAGE_SIZE, page_start};
use crate::window::first_nonzero;

impl WalReader {
    /// The end at a page boundary whose page cannot be read.
    pub(super) fn fault_end(&mut self, fault: PageFault) -> Result<WalEnd, WalError> {
        let at = self.pos;
        let at_segment_start = at == self.segment_of(at);
        let switched = self.after_switch && at_segment_start;
        let reason = match fault {
            PageFault::Missing => return self.missing_end(at, switched),
            PageFault::Truncated(0) if switched && self.live_segment_after(at)?.is_none() => EndReason::Switch,
            PageFault::Truncated(len) => EndReason::TruncatedSegment { len, expected: u64::from(self.identity().segment_size) },
            PageFault::Zero => return self.zero_end(at, switched),
            PageFault::Recycled(address) if switched && self.second_page_is_recycled(at)? => {
                debug_assert!(address < at);
                EndReason::Switch
            }
            PageFault::Recycled(address) => EndReason::RecycledTail { page: page_start(at), address },
            PageFault::Invalid(why) => EndReason::BadPage { page: page_start(at), why },
        };
        Ok(self.end_at(at, reason))
    }

    /// The end where a segment's file is not there.
    fn missing_end(&self, at: Lsn, switched: bool) -> Result<WalEnd, WalError> {
        if let Some(last) = &self.last_end
            && last.lsn == at
            && matches!(last.reason, EndReason::Switch | EndReason::MissingSegment { .. })
        {
            return Ok(last.clone());
        }
        let missing = self.dir.expected_name(self.segment_of(at));
        let reason = match self.dir.find_after(at)? {
            Some((_, next)) => EndReason::Gap { missing, next: next.name.to_string() },
            None if switched => EndReason::Switch,
            None => EndReason::MissingSegment { name: missing },
        };
        Ok(self.end_at(at, reason))
    }

    /// What is to say of a record whose length is 0: the end if only zeroes follow.
    pub(super) fn zero_length(&mut self, lsn: Lsn, page: CheckedPage) -> Result<WalEnd, WalError> {
        let in_page = (lsn.0 - page.start.0) as usize;
        if let Some(at) = first_nonzero(self.window.bytes(page.offset + in_page, PAGE - in_page)) {
            let why = format!("its length is 0, but {at} bytes on there is something");
            return Ok(self.end_at(lsn, EndReason::BadRecord(why)));
        }
        self.zero_end(lsn, false)
    }

    /// The end where zeroes follow from `at` to the end of its page: complete only if nothing follows them.
    fn zero_end(&mut self, at: Lsn, switched: bool) -> Result<WalEnd, WalError> {
        let complete = if switched { EndReason::Switch } else { EndReason::ZeroedTail };
        let segment = self.segment_of(at);
        if self.zero_segment == Some(segment) {
            return Ok(self.end_at(at, complete));
        }
        self.page = None;
        if let Some(nonzero) = self.window.first_nonzero(&self.dir, at)? {
            let reason = self.after_zeroes(page_start(nonzero))?;
            return Ok(self.end_at(at, reason));
        }
        let (len, expected) = (self.window.file_len()?, u64::from(self.identity().segment_size));
        if len < expected {
            return Ok(self.end_at(at, EndReason::TruncatedSegment { len, expected }));
        }
        if let Some((next, name)) = self.live_segment_after(segment)? {
            return Ok(self.end_at(at, EndReason::Hole { at: next, why: format!("segment {name} goes on") }));
        }
        self.zero_segment = Some(segment);
        Ok(self.end_at(at, complete))
    }

    /// What the page that follows zeroes is.
    fn after_zeroes(&mut self, page: Lsn) -> Result<EndReason, WalError> {
        Ok(match self.probe(page)? {
            Ok(_) => EndReason::Hole { at: page, why: "a page of this WAL follows".to_owned() },
            Err(PageFault::Recycled(address)) => EndReason::RecycledTail { page, address },
            Err(fault) => EndReason::Hole { at: page, why: self.describe_fault(page, &fault)? },
        })
    }

    /// The first later segment whose first page is its own, not an older or an empty one.
    fn live_segment_after(&mut self, segment: Lsn) -> Result<Option<(Lsn, String)>, WalError> {
        let mut after = segment;
        while let Some((start, file)) = self.dir.find_after(after)? {
            if self.probe(start)?.is_ok() {
                return Ok(Some((start, file.name.to_string())));
            }
            after = start;
        }
        Ok(None)
    }

    /// Whether the page after the one at `page` is an old one too; a single one would rather be damaged.
    fn second_page_is_recycled(&mut self, page: Lsn) -> Result<bool, WalError> {
        let second = Lsn(page.0.saturating_add(u64::from(PAGE_SIZE)));
        Ok(matches!(self.probe(second)?, Err(PageFault::Recycled(_))))
    }

    /// Words for a page that cannot be read where a record should go on.
    pub(super) fn describe_fault(&self, at: Lsn, fault: &PageFault) -> Result<String, WalError> {
        let file = self.window.path().map(|p| p.display().to_string()).unwrap_or_default();
        Ok(match fault {
            PageFault::Missing => {
                let missing = self.dir.expected_name(self.segment_of(at));
                match self.dir.find_after(at)? {
                    Some((_, next)) => format!("segment {missing} is missing; the next one there is {}", next.name),
                    None => format!("segment {missing} is missing"),
                }
            }
            PageFault::Truncated(len) => {
                format!("{file} is truncated: it has {len} bytes of {}", self.identity().segment_size)
            }
            PageFault::Zero => "a page of zeroes follows".to_owned(),
            PageFault::Recycled(address) => format!("an old page of {address} follows"),
            PageFault::Invalid(why) => format!("an invalid page follows in {file}: {why}"),
        })
    }
}
