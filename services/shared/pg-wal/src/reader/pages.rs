//! Going from page to page: each one's header is checked once, before anything on it is looked at.

use pg_types::Lsn;

use super::{PAGE, WalReader};
use crate::dir::check_header;
use crate::error::WalError;
use crate::page::PageHeader;
use crate::window::{Fetched, first_nonzero};

/// A page whose header was checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckedPage {
    /// Its position.
    pub(super) start: Lsn,
    /// Where it is in the window.
    pub(super) offset: usize,
    /// Its header.
    pub(super) header: PageHeader,
}

/// Why a page cannot be read from.
#[derive(Debug)]
pub(super) enum PageFault {
    /// No file.
    Missing,
    /// The file is too short.
    Truncated(u64),
    /// It holds only zeroes.
    Zero,
    /// It is an older page of another segment at the same place.
    Recycled(Lsn),
    /// Its header cannot be.
    Invalid(String),
}

impl WalReader {
    /// Makes sure that a page is in the window and its header is right.
    #[inline]
    pub(super) fn enter(&mut self, start: Lsn) -> Result<Result<CheckedPage, PageFault>, WalError> {
        if let Some(page) = self.page
            && page.start == start
        {
            return Ok(Ok(page));
        }
        self.enter_new(start)
    }

    /// Reads and checks a page other than the current one.
    fn enter_new(&mut self, start: Lsn) -> Result<Result<CheckedPage, PageFault>, WalError> {
        self.page = None;
        let offset = match self.window.fetch(&self.dir, start)? {
            Fetched::At(offset) => offset,
            Fetched::Missing => return Ok(Err(PageFault::Missing)),
            Fetched::Short { len } => return Ok(Err(PageFault::Truncated(len))),
        };
        let bytes = self.window.bytes(offset, PAGE);
        let header = match PageHeader::read(bytes) {
            Ok(header) => header,
            Err(e) => return Ok(Err(PageFault::Invalid(e.to_string()))),
        };
        if let Err(why) = check_header(&header, start, self.identity()).and_then(|()| self.check_timeline(&header)) {
            if header.magic == 0 && first_nonzero(bytes).is_none() {
                return Ok(Err(PageFault::Zero));
            }
            let recycled = self.is_recycled(&header, start);
            return Ok(Err(if recycled { PageFault::Recycled(header.address) } else { PageFault::Invalid(why) }));
        }
        self.timeline = header.timeline;
        let page = CheckedPage { start, offset, header };
        self.page = Some(page);
        Ok(Ok(page))
    }

    /// A page's timeline is one that may be in its file and is not older than the page's before.
    fn check_timeline(&self, header: &PageHeader) -> Result<(), String> {
        let newest = self.identity().timeline;
        if header.timeline == 0 || header.timeline > newest {
            return Err(format!("it belongs to timeline {}, which is not among those of timeline {newest}", header.timeline));
        }
        if header.timeline < self.timeline {
            return Err(format!("it belongs to timeline {} after one of timeline {}", header.timeline, self.timeline));
        }
        Ok(())
    }

    /// The header would be right at an earlier segment's same place.
    fn is_recycled(&self, header: &PageHeader, start: Lsn) -> bool {
        let in_segment = u64::from(self.identity().segment_size) - 1;
        header.address < start
            && header.address.0 & in_segment == start.0 & in_segment
            && check_header(header, header.address, self.identity()).is_ok()
    }

    /// Looks at a page elsewhere, without going there.
    pub(super) fn probe(&mut self, start: Lsn) -> Result<Result<CheckedPage, PageFault>, WalError> {
        let timeline = self.timeline;
        let page = self.enter_new(start);
        self.timeline = timeline;
        self.page = None;
        page
    }
}
