//! What survives a crash in a simulation, what all hosts are judged by, and the random numbers of a seed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use pg_types::record::LogicalMessageRecord;
use pg_types::{Lsn, RecordBody, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use pg_wal::{WalDir, WalReader};
use primary_node::slots::SlotFile;
use service_kit::Drain;
use service_kit::status::{Reason, reason_of};
use tempfile::TempDir;
use tonic::{Code, Status};

/// Bytes of a segment: the smallest that there is, so that logs have several.
const SEGMENT_BYTES: u32 = 1 << 20;
/// A message of this size makes a record that goes out in fragments.
const LARGE_MESSAGE_BYTES: u64 = 480 << 10;

/// Random numbers of a seed (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The numbers of `seed` for one purpose.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        let mut rng = Self(seed ^ purpose.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        rng.next();
        rng
    }

    /// The next number.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// A number from `low` to `high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// True once in `n` times.
    pub(crate) fn once_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }

    /// A time from `low` to `high` milliseconds.
    pub(crate) fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.between(low, high))
    }
}

/// A record of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Its start.
    pub(crate) lsn: u64,
    /// Its end.
    pub(crate) end: u64,
    /// Checksum of its bytes.
    pub(crate) crc: u32,
}

/// What a consumer has on its disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    /// The records, in order.
    pub(crate) records: Vec<Record>,
    /// Everything before is stored, or holds nothing to be stored.
    pub(crate) position: u64,
    /// Its slot exists.
    pub(crate) has_slot: bool,
    /// How often it was started.
    pub(crate) starts: u64,
    /// The greatest position of its slot that was seen on the primary's disk.
    slot_seen: u64,
}

/// One simulation. Hosts share it; it survives their crashes.
pub(crate) struct World {
    /// The seed.
    pub(crate) seed: u64,
    /// Consumers acknowledge before they store: a defect that must be found.
    pub(crate) acknowledge_early: bool,
    /// The primary's WAL and its data directory.
    pub(crate) wal: TempDir,
    /// Its slots.
    pub(crate) data: TempDir,
    /// Writes the log.
    writer: RefCell<WalWriter>,
    /// Reads it back.
    reader: RefCell<WalReader>,
    /// What is in it.
    pub(crate) log: RefCell<Vec<Record>>,
    /// The consumers' disks.
    pub(crate) disks: Vec<RefCell<Disk>>,
    /// Stops the primary that runs.
    pub(crate) drain: RefCell<Drain>,
    /// The time between the moments of hosts.
    pub(crate) now: Cell<Duration>,
    /// No more faults: consumers behave.
    pub(crate) calm: Cell<bool>,
    /// What happened, in order.
    pub(crate) history: RefCell<Vec<String>>,
    /// How streams ended, by reason.
    pub(crate) ends: RefCell<BTreeMap<String, u64>>,
    /// The first invariant that was broken.
    violation: RefCell<Option<String>>,
}

impl World {
    /// A world with a short log and `consumers` empty disks.
    pub(crate) fn new(seed: u64, consumers: usize, acknowledge_early: bool) -> Self {
        // In memory if possible: what is tested is order, not the disk.
        let memory = PathBuf::from("/dev/shm");
        let folder = || if memory.is_dir() { tempfile::tempdir_in(&memory) } else { tempfile::tempdir() }.unwrap();
        let (wal, data) = (folder(), folder());
        let mut writer = WalWriter::create(wal.path(), WriterConfig::new(7).with_segment_size(SEGMENT_BYTES)).unwrap();
        let mut rng = Rng::new(seed, 1);
        write(&mut writer, &mut rng, 10);
        let reader = WalReader::open(&WalDir::open(wal.path(), None).unwrap(), None).unwrap();
        let world = Self {
            seed,
            acknowledge_early,
            wal,
            data,
            writer: RefCell::new(writer),
            reader: RefCell::new(reader),
            log: RefCell::default(),
            disks: (0..consumers).map(|_| RefCell::default()).collect(),
            drain: RefCell::new(Drain::new()),
            now: Cell::default(),
            calm: Cell::new(false),
            history: RefCell::default(),
            ends: RefCell::default(),
            violation: RefCell::default(),
        };
        world.read_back();
        world
    }

    /// The log grows by `count` records.
    pub(crate) fn append(&self, rng: &mut Rng, count: u64) {
        write(&mut self.writer.borrow_mut(), rng, count);
        self.read_back();
    }

    /// Learns what was written.
    fn read_back(&self) {
        let (mut reader, mut log) = (self.reader.borrow_mut(), self.log.borrow_mut());
        while let Some(record) = reader.next().unwrap() {
            log.push(Record { lsn: record.lsn.0, end: record.end_lsn.0, crc: crc32c::crc32c(record.bytes) });
        }
    }

    /// Notes what happened.
    pub(crate) fn note(&self, what: &str) {
        let at = turmoil::sim_elapsed().unwrap_or(self.now.get()).as_millis();
        self.history.borrow_mut().push(format!("{at} {what}"));
    }

    /// An invariant is broken.
    pub(crate) fn violated(&self, what: &str) {
        self.note(what);
        self.violation.borrow_mut().get_or_insert_with(|| what.to_owned());
    }

    /// The first invariant that was broken, if any.
    pub(crate) fn violation(&self) -> Option<String> {
        self.violation.borrow().clone()
    }

    /// Judges how a stream or call ended: the network, or a reason that the contract names for what happens here.
    pub(crate) fn judge(&self, consumer: usize, status: &Status) {
        let reason = reason_of(status);
        let end = match reason {
            Some(Reason::StreamTakenOver | Reason::FeedbackTimeout | Reason::Draining) => reason.map(|r| r.to_string()),
            None if [Code::Unavailable, Code::Unknown, Code::Internal, Code::Cancelled].contains(&status.code()) => {
                Some("network".to_owned())
            }
            _ => None,
        };
        match end {
            Some(end) => {
                self.note(&format!("consumer {consumer}: {end}"));
                *self.ends.borrow_mut().entry(end).or_default() += 1;
            }
            None => self.violated(&format!("consumer {consumer}: its stream ended with {status:?}")),
        }
    }

    /// A slot's position on the primary's disk never goes back, and never beyond what its consumer has stored.
    pub(crate) fn check_slots(&self) {
        for (i, disk) in self.disks.iter().enumerate() {
            let path = self.data.path().join(format!("slots/consumer_{i}.slot"));
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            let json = text.lines().next().unwrap_or_default();
            let Ok(slot) = serde_json::from_str::<SlotFile>(json) else {
                return self.violated(&format!("{} is torn: {text:?}", path.display()));
            };
            let (confirmed, mut disk) = (slot.confirmed_flush_lsn.0, disk.borrow_mut());
            let (first, stored) = (self.log.borrow()[0].lsn, disk.position);
            if confirmed < disk.slot_seen {
                self.violated(&format!("slot {i} went back from {} to {}", Lsn(disk.slot_seen), Lsn(confirmed)));
            }
            if confirmed > stored.max(first) {
                self.violated(&format!("slot {i} is at {}, its consumer has stored up to {}", Lsn(confirmed), Lsn(stored)));
            }
            disk.slot_seen = disk.slot_seen.max(confirmed);
        }
    }

    /// Every consumer has stored the whole log.
    pub(crate) fn is_complete(&self) -> bool {
        let log = self.log.borrow();
        self.disks.iter().all(|disk| disk.borrow().records.len() >= log.len())
    }
}

/// Writes records: mostly small, some of many pages, a few so large that they go out in fragments.
fn write(writer: &mut WalWriter, rng: &mut Rng, count: u64) {
    for _ in 0..count {
        let bytes = if rng.once_in(150) {
            LARGE_MESSAGE_BYTES
        } else if rng.once_in(10) {
            rng.between(2_000, 30_000)
        } else {
            rng.between(1, 500)
        };
        let message = vec![rng.between(0, 255) as u8; bytes as usize];
        let body = RecordBody::LogicalMessage(Box::new(LogicalMessageRecord { message, ..LogicalMessageRecord::default() }));
        writer.append(Xid(700), Xid::INVALID, 0, &body).unwrap();
    }
    writer.flush().unwrap();
}
