//! The buffers of an SLRU (`access/transam/slru.c`), as far as their cost goes: which page lookups find their page in memory.
//!
//! `pg_subtrans` is read through 32 buffers of 2,048 parents each, so that lookups that spread over more than 65,536 xids read
//! pages again and again: the cliff that subtransactions lead to. Contents are elsewhere ([`crate::subtrans`]); this counts.
//!
//! The page used longest ago is replaced; never the newest page, which the server keeps to write to. From 17 on the buffers form
//! banks of 16, a page's number says which.
//!
//! | operation (B buffers of a bank) | cost |
//! |---|---|
//! | read | O(B), as in PostgreSQL |
//!
//! **Differences from PostgreSQL.** Replay's own uses of the buffers are not counted. Counters do not wrap.

/// `NUM_SUBTRANS_BUFFERS` up to 16; later what `subtransaction_buffers = 0` makes of 128 MB of shared buffers.
pub const SUBTRANS_BUFFERS: u32 = 32;
/// `SLRU_BANK_SIZE` (17 and later).
pub const SLRU_BANK_SIZE: u32 = 16;
/// `SLRU_MAX_ALLOWED_BUFFERS`: a gigabyte of pages.
pub const SLRU_MAX_ALLOWED_BUFFERS: u32 = 131_072;

/// How a version buffers `pg_subtrans`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubtransBuffers {
    /// `subtransaction_buffers` says how many (17 and later); else there are [`SUBTRANS_BUFFERS`].
    pub configurable: bool,
    /// They form banks (17 and later).
    pub banked: bool,
}

impl SubtransBuffers {
    /// Buffers of a server with this `subtransaction_buffers`, 0 for what follows from 128 MB of shared buffers.
    #[must_use]
    pub fn with_setting(self, subtransaction_buffers: u32) -> SlruBuffers {
        let set = self.configurable && subtransaction_buffers > 0;
        SlruBuffers::new(if set { subtransaction_buffers } else { SUBTRANS_BUFFERS }, self.banked)
    }
}

/// What reading through the buffers came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlruCounts {
    /// Pages found in a buffer.
    pub hits: u64,
    /// Pages that had to be read into one.
    pub misses: u64,
}

impl SlruCounts {
    /// Counts a read, a hit or a miss.
    pub fn count(&mut self, hit: bool) {
        *if hit { &mut self.hits } else { &mut self.misses } += 1;
    }

    /// Lookups, all of them.
    #[must_use]
    pub fn lookups(self) -> u64 {
        self.hits + self.misses
    }
}

/// A buffer in use.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    /// Its page.
    page: u32,
    /// `page_lru_count`: its bank's count when it was last used.
    used: u64,
}

/// Buffers that share a count.
#[derive(Clone, Debug, Default)]
struct Bank {
    buffers: Vec<Buffer>,
    /// `cur_lru_count`.
    count: u64,
}

/// The buffers of one SLRU, shared by all who read.
#[derive(Clone, Debug)]
pub struct SlruBuffers {
    banks: Vec<Bank>,
    /// Buffers of a bank.
    bank_size: usize,
    /// `latest_page_number`: not replaced.
    latest: Option<u32>,
    /// What happened so far.
    counts: SlruCounts,
}

impl SlruBuffers {
    /// Empty buffers, in banks if `banked`; at least 16, at most [`SLRU_MAX_ALLOWED_BUFFERS`], whole banks.
    #[must_use]
    pub fn new(buffers: u32, banked: bool) -> Self {
        let buffers = buffers.clamp(SLRU_BANK_SIZE, SLRU_MAX_ALLOWED_BUFFERS) as usize;
        let bank_size = if banked { SLRU_BANK_SIZE as usize } else { buffers };
        Self { banks: vec![Bank::default(); buffers / bank_size], bank_size, latest: None, counts: SlruCounts::default() }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.banks.len() * self.bank_size
    }

    /// There is always one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.banks.is_empty()
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> SlruCounts {
        self.counts
    }

    /// Says which page is the newest (`ExtendSUBTRANS`).
    pub fn set_latest(&mut self, page: u32) {
        self.latest = Some(page);
    }

    /// `SimpleLruReadPage_ReadOnly`: counts a hit, or replaces a page. True if it was a hit.
    pub fn read(&mut self, page: u32) -> bool {
        let hit = self.find_or_replace(page);
        self.counts.count(hit);
        hit
    }

    /// Whether a buffer has the page; if not, one has it now.
    fn find_or_replace(&mut self, page: u32) -> bool {
        let banks = self.banks.len();
        let bank = &mut self.banks[page as usize % banks];
        if let Some(buffer) = bank.buffers.iter_mut().find(|buffer| buffer.page == page) {
            if buffer.used != bank.count {
                bank.count += 1;
                buffer.used = bank.count;
            }
            return true;
        }
        bank.count += 1;
        let new = Buffer { page, used: bank.count };
        if bank.buffers.len() < self.bank_size {
            bank.buffers.push(new);
        } else {
            let replaceable = bank.buffers.iter_mut().filter(|buffer| Some(buffer.page) != self.latest);
            if let Some(victim) = replaceable.min_by_key(|buffer| buffer.used) {
                *victim = new;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_page_more_than_there_are_buffers_and_a_round_finds_none() {
        for (pages, misses_of_second_round) in [(32, 0), (33, 33)] {
            let mut slru = SlruBuffers::new(SUBTRANS_BUFFERS, false);
            (0..pages).for_each(|page| assert!(!slru.read(page)));
            let before = slru.counts().misses;
            for page in 0..pages {
                slru.read(page);
            }
            assert_eq!(slru.counts().misses - before, misses_of_second_round, "{pages}");
        }
    }

    #[test]
    fn the_newest_page_stays_and_banks_are_replaced_each_for_itself() {
        let mut slru = SlruBuffers::new(SUBTRANS_BUFFERS, false);
        slru.set_latest(7);
        slru.read(7);
        (100..200).for_each(|page| assert!(!slru.read(page)));
        assert!(slru.read(7), "the newest");
        let mut banked = SlruBuffers::new(SUBTRANS_BUFFERS, true);
        banked.read(1);
        (0..34).step_by(2).for_each(|page| assert!(!banked.read(page)));
        assert!(banked.read(1) && !banked.read(0), "17 even pages have 16 buffers, the odd one has others");
    }

    #[test]
    fn versions_differ_in_number_and_banks() {
        for (profile, setting, buffers, banked) in [
            ("pg13", 256, 32, false),
            ("pg16", 0, 32, false),
            ("pg17", 0, 32, true),
            ("pg18", 256, 256, true),
            ("indexed", 64, 64, true),
        ] {
            let profile: crate::StandbyProfile = profile.parse().unwrap();
            let slru = profile.subtrans.with_setting(setting);
            assert_eq!((slru.len(), slru.banks.len() > 1), (buffers, banked), "{profile}");
        }
    }

    proptest! {
        /// Against a list ordered by use.
        #[test]
        fn the_page_used_longest_ago_is_replaced(pages in prop::collection::vec(0u32..40, 1..400), latest in 0u32..40) {
            let mut slru = SlruBuffers::new(SLRU_BANK_SIZE, false);
            slru.set_latest(latest);
            let mut model: Vec<u32> = Vec::new();
            for page in pages {
                let at = model.iter().position(|&p| p == page);
                prop_assert_eq!(slru.read(page), at.is_some());
                if let Some(at) = at {
                    model.remove(at);
                } else if model.len() == SLRU_BANK_SIZE as usize {
                    model.remove(usize::from(model[0] == latest));
                }
                model.push(page);
            }
        }
    }
}
