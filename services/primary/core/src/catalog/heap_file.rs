//! Where rows lie: pages and line pointers of one heap (`access/heap/hio.c`, `storage/page/bufpage.c`).
//!
//! Only free space is kept, not rows: enough to say which block and line pointer a new row gets, whether it starts a page, and
//! whether a new version fits beside the old one. Space of dead rows never comes back (no vacuum yet).

use pg_types::Tid;

/// `BLCKSZ` − `SizeOfPageHeaderData`.
const PAGE_ROOM: u32 = 8192 - 24;
/// `sizeof(ItemIdData)`.
const LINE_POINTER: u32 = 4;
/// `MaxHeapTuplesPerPage`.
const LINES_MAX: u16 = 291;
/// `SizeofHeapTupleHeader` − `SizeOfHeapHeader`: what a row on a page has more than in a record.
const HEADER_MORE: u32 = 23 - 5;

/// One page.
#[derive(Clone, Copy, Debug)]
struct Page {
    /// Free bytes.
    free: u32,
    /// Line pointers in use.
    lines: u16,
}

/// The pages of one heap.
#[derive(Clone, Debug, Default)]
pub struct HeapFile {
    /// All pages.
    pages: Vec<Page>,
}

impl HeapFile {
    /// A heap whose first `full` pages have no room: what was there before the log began.
    #[must_use]
    pub fn with_full_pages(full: usize) -> HeapFile {
        HeapFile { pages: vec![Page { free: 0, lines: 0 }; full] }
    }

    /// Places a row of which a record has `record_len` bytes into the last page or a new one. The second value says that it is
    /// the first of its page.
    pub fn place(&mut self, record_len: u32) -> (Tid, bool) {
        let need = on_page(record_len);
        match self.pages.last() {
            Some(page) if fits(page, need) => {}
            _ => self.pages.push(Page { free: PAGE_ROOM, lines: 0 }),
        }
        self.take(self.pages.len() - 1, need)
    }

    /// Places a new version beside the old one, if its page has room.
    pub fn place_beside(&mut self, old: Tid, record_len: u32) -> Option<Tid> {
        let (index, need) = (old.block as usize, on_page(record_len));
        let page = self.pages.get(index)?;
        fits(page, need).then(|| self.take(index, need).0)
    }

    /// Number of pages.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Takes room on a page that has it.
    fn take(&mut self, index: usize, need: u32) -> (Tid, bool) {
        let page = &mut self.pages[index];
        page.free = page.free.saturating_sub(need);
        page.lines += 1;
        (Tid { block: index as u32, offset: page.lines }, page.lines == 1)
    }
}

/// Bytes of a row on its page, with its line pointer.
fn on_page(record_len: u32) -> u32 {
    (record_len + HEADER_MORE).next_multiple_of(8) + LINE_POINTER
}

/// Whether a page takes `need` more bytes.
fn fits(page: &Page, need: u32) -> bool {
    page.free >= need && page.lines < LINES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fill_page_after_page() {
        let mut heap = HeapFile::with_full_pages(3);
        assert_eq!(heap.place(158), (Tid { block: 3, offset: 1 }, true));
        assert_eq!(heap.place(158), (Tid { block: 3, offset: 2 }, false));
        let beside = heap.place_beside(Tid { block: 3, offset: 1 }, 158);
        assert_eq!(beside, Some(Tid { block: 3, offset: 3 }));
        assert_eq!(heap.place_beside(Tid { block: 1, offset: 1 }, 158), None, "that page is full");
        let next = std::iter::repeat_with(|| heap.place(158)).find(|(_, first)| *first);
        assert_eq!(next, Some((Tid { block: 4, offset: 1 }, true)));
        // 8168 bytes take 45 rows of 176 bytes and a line pointer.
        assert_eq!(heap.pages(), 5);
    }

    #[test]
    fn a_page_has_at_most_291_rows() {
        let mut heap = HeapFile::default();
        let blocks: Vec<u32> = (0..292).map(|_| heap.place(6).0.block).collect();
        assert_eq!((blocks[290], blocks[291]), (0, 1));
    }
}
