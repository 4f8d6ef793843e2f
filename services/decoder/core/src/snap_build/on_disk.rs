//! How a snapshot builder stands in a file: `SnapBuildOnDisk` of `replication/logical/snapbuild.c` (18: `snapbuild_internal.h`).
//!
//! A server writes its structure as it is in memory, with pointers zeroed; so the layout differs between releases, and these files are
//! those of a server on a 64-bit little-endian machine, to the byte.
//!
//! ```text
//!   magic u32 │ CRC-32C of what follows u32 │ version u32 │ length of all u32 │ builder │ committed xids u32… │ catchange xids u32…
//! ```
//!
//! Invariants: I1 what was written is read back equal, or refused with the reason; I2 no count that was read sizes an allocation
//! beyond the file's own length.
//!
//! Differences from PostgreSQL: rule 0's horizon, which only the creation of a slot has, is written as 0 and not read back; `two_phase_at`
//! (14: `initial_consistent_point`, of every slot) is read, and written as 0 by decoders: they are told it.

use pg_types::{Lsn, PgVersion, Xid};

use crate::snap_build::SnapBuildState;

/// `SNAPBUILD_MAGIC`.
const MAGIC: u32 = 0x51A1_E001;

/// Offsets of what all releases have in the same place: checksum, version, length, state, xmin, xmax, `start_decoding_at`.
const CHECKSUM: usize = 4;
/// What the checksum is of begins here (`SnapBuildOnDiskNotChecksummedSize`).
const VERSION: usize = 8;
/// See [`CHECKSUM`].
const LENGTH: usize = 12;
/// See [`CHECKSUM`].
const STATE: usize = 16;
/// See [`CHECKSUM`].
const XMIN: usize = 32;
/// See [`CHECKSUM`].
const XMAX: usize = 36;
/// See [`CHECKSUM`].
const START_DECODING_AT: usize = 40;

/// `SNAPBUILD_CONSISTENT`.
const CONSISTENT: i32 = 2;

/// Where a release has the rest.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// `SNAPBUILD_VERSION`.
    version: u32,
    /// Offset of `two_phase_at` (14: `initial_consistent_point`).
    two_phase_at: Option<usize>,
    /// Offset of `last_serialized_snapshot`.
    last_serialized: usize,
    /// Offset of `committed`: count, room, `includes_all_transactions`, pointer; 8 bytes each.
    committed: usize,
    /// Offset of `catchange`: count and pointer (16 and later).
    catchange: Option<usize>,
    /// Bytes before the xids.
    len: usize,
}

/// By version, as real servers of each write them (17.10 says 6, 16.14 says 5).
const LAYOUTS: [Layout; PgVersion::ALL.len()] = {
    let v13 = Layout { version: 2, two_phase_at: None, last_serialized: 64, committed: 112, catchange: None, len: 144 };
    let v14 = Layout { version: 4, two_phase_at: Some(48), last_serialized: 72, committed: 96, catchange: None, len: 128 };
    let v16 = Layout { version: 5, catchange: Some(128), len: 144, ..v14 };
    let v17 = Layout { version: 6, ..v16 };
    [v13, v14, v14, v16, v17, v17]
};

/// What of a builder is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapBuildOnDisk {
    /// How far it was; servers write consistent ones only.
    pub(crate) state: SnapBuildState,
    /// Oldest xid whose commit might still matter.
    pub(crate) xmin: Xid,
    /// One past the newest committed catalog changer.
    pub(crate) xmax: Xid,
    /// Commits before were skipped.
    pub(crate) start_decoding_at: Lsn,
    /// What was prepared before is given out at its commit; invalid if all is, and in what decoders here write.
    pub(crate) two_phase_at: Lsn,
    /// The snapshot written before this one.
    pub(crate) last_serialized: Lsn,
    /// Room in the array of committed xids.
    pub(crate) committed_room: u64,
    /// No transaction without catalog changes has committed yet.
    pub(crate) includes_all: bool,
    /// Committed catalog changers.
    pub(crate) committed: Vec<Xid>,
    /// Running transactions that had changed catalogs, in plain numeric order (16 and later).
    pub(crate) catchange: Vec<Xid>,
}

impl SnapBuildOnDisk {
    /// The file's bytes as `version` writes them.
    pub(crate) fn encode(&self, version: PgVersion) -> Vec<u8> {
        let layout = LAYOUTS[version as usize];
        let catchange: &[Xid] = if layout.catchange.is_some() { &self.catchange } else { &[] };
        let mut file = vec![0; layout.len];
        self.committed.iter().chain(catchange).for_each(|xid| file.extend_from_slice(&xid.0.to_le_bytes()));
        let len = file.len() as u32;
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC.to_le_bytes());
        put(VERSION, &layout.version.to_le_bytes());
        put(LENGTH, &len.to_le_bytes());
        put(STATE, &(self.state as i32 - 1).to_le_bytes());
        put(XMIN, &self.xmin.0.to_le_bytes());
        put(XMAX, &self.xmax.0.to_le_bytes());
        put(START_DECODING_AT, &self.start_decoding_at.0.to_le_bytes());
        if let Some(at) = layout.two_phase_at {
            put(at, &self.two_phase_at.0.to_le_bytes());
        }
        put(layout.last_serialized, &self.last_serialized.0.to_le_bytes());
        put(layout.committed, &(self.committed.len() as u64).to_le_bytes());
        put(layout.committed + 8, &self.committed_room.to_le_bytes());
        put(layout.committed + 16, &[u8::from(self.includes_all)]);
        if let Some(at) = layout.catchange {
            put(at, &(catchange.len() as u64).to_le_bytes());
        }
        let checksum = crc32c::crc32c(&file[VERSION..]);
        file[CHECKSUM..VERSION].copy_from_slice(&checksum.to_le_bytes());
        file
    }

    /// Reads a file that `version` wrote.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn decode(file: &[u8], version: PgVersion) -> Result<Self, String> {
        let layout = LAYOUTS[version as usize];
        let short = || format!("it has {} bytes, too few for what it must hold", file.len());
        let number = |at: usize| u32_at(file, at).ok_or_else(short);
        let long = |at: usize| u64_at(file, at).ok_or_else(short);
        match number(0)? {
            MAGIC => {}
            found => return Err(format!("its magic number is {found:08X} instead of {MAGIC:08X}")),
        }
        match number(VERSION)? {
            found if found == layout.version => {}
            found => {
                let expected = layout.version;
                return Err(format!("its format is version {found}, and PostgreSQL {version} reads version {expected}"));
            }
        }
        let (committed, catchange) = (long(layout.committed)?, layout.catchange.map_or(Ok(0), long)?);
        let told = committed.checked_add(catchange).and_then(|n| n.checked_mul(4)?.checked_add(layout.len as u64));
        if told != Some(file.len() as u64) || u64::from(number(LENGTH)?) != file.len() as u64 {
            return Err(format!("it has {} bytes, which is not what it says", file.len()));
        }
        if number(CHECKSUM)? != crc32c::crc32c(file.get(VERSION..).unwrap_or_default()) {
            return Err("its checksum is wrong".to_owned());
        }
        let mut xids = file.get(layout.len..).unwrap_or_default().chunks_exact(4).filter_map(|b| u32_at(b, 0)).map(Xid);
        Ok(Self {
            state: state_of(number(STATE)?.cast_signed()),
            xmin: Xid(number(XMIN)?),
            xmax: Xid(number(XMAX)?),
            start_decoding_at: Lsn(long(START_DECODING_AT)?),
            two_phase_at: Lsn(layout.two_phase_at.map_or(Ok(0), long)?),
            last_serialized: Lsn(long(layout.last_serialized)?),
            committed_room: long(layout.committed + 8)?,
            includes_all: file.get(layout.committed + 16).is_some_and(|flag| *flag != 0),
            committed: xids.by_ref().take(committed as usize).collect(),
            catchange: xids.collect(),
        })
    }
}

/// The state with PostgreSQL's number.
fn state_of(number: i32) -> SnapBuildState {
    match number {
        i32::MIN..=-1 => SnapBuildState::Start,
        0 => SnapBuildState::Building,
        1 => SnapBuildState::FullSnapshot,
        CONSISTENT.. => SnapBuildState::Consistent,
    }
}

/// Four bytes as a number.
fn u32_at(file: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*file.get(at..)?.first_chunk()?))
}

/// Eight bytes as a number.
fn u64_at(file: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*file.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example(version: PgVersion) -> SnapBuildOnDisk {
        let catchange = if LAYOUTS[version as usize].catchange.is_some() { vec![Xid(731), Xid(732)] } else { vec![] };
        SnapBuildOnDisk {
            state: SnapBuildState::Consistent,
            xmin: Xid(731),
            xmax: Xid(739),
            start_decoding_at: Lsn(0x014F_62D0),
            two_phase_at: Lsn::INVALID,
            last_serialized: Lsn(0x0150_59A8),
            committed_room: 128,
            includes_all: true,
            committed: [734, 735, 736, 738, 737].map(Xid).to_vec(),
            catchange,
        }
    }

    /// What a real server's file holds, in the order of [`REAL`]'s columns.
    type Fields = (PgVersion, &'static str, u32, u32, u64, u64, u64, &'static [u32], &'static [u32]);

    /// `tests/fixtures/snapshots`: version, file, xmin, xmax, `start_decoding_at`, `two_phase_at`, `last_serialized_snapshot`, committed, catchange.
    /// The transaction that `xmin` names runs on at the first file of a version, and has changed catalogs with its subtransaction.
    const REAL: [Fields; 12] = [
        (PgVersion::V13, "0-15F9570", 486, 494, 0x15D_6880, 0, 0x15E_1AE8, &[489, 490, 491, 493, 492], &[]),
        (PgVersion::V13, "0-160E0B0", 495, 496, 0x15F_9628, 0, 0x15F_97D0, &[495], &[]),
        (PgVersion::V14, "0-172CA38", 734, 742, 0x170_8E30, 0x170_8E30, 0x171_5F98, &[737, 738, 739, 741, 740], &[]),
        (PgVersion::V14, "0-1743320", 743, 744, 0x172_CAF0, 0x170_8E30, 0x172_CC98, &[743], &[]),
        (PgVersion::V15, "0-1527700", 725, 733, 0x150_1BF0, 0, 0x150_FA50, &[728, 729, 730, 732, 731], &[]),
        (PgVersion::V15, "0-153F220", 734, 735, 0x152_77B8, 0, 0x152_7960, &[734], &[]),
        (PgVersion::V16, "0-151E400", 731, 739, 0x14F_62D0, 0, 0x150_59A8, &[734, 735, 736, 738, 737], &[731, 732]),
        (PgVersion::V16, "0-1537280", 740, 741, 0x151_E528, 0, 0x151_E6D0, &[740], &[]),
        (PgVersion::V17, "0-1516A30", 739, 747, 0x14F_0A08, 0, 0x14F_F250, &[742, 743, 744, 746, 745], &[739, 740]),
        (PgVersion::V17, "0-152E380", 748, 749, 0x151_6B58, 0, 0x151_6D20, &[748], &[]),
        (PgVersion::V18, "0-1741970", 753, 761, 0x171_0048, 0, 0x172_70C0, &[756, 757, 758, 760, 759], &[753, 754]),
        (PgVersion::V18, "0-175BCF8", 762, 763, 0x174_1A28, 0, 0x174_1C60, &[762], &[]),
    ];

    #[test]
    fn files_of_real_servers_are_read_and_written_to_the_byte() {
        for (version, name, xmin, xmax, start, two_phase_at, last, committed, catchange) in REAL {
            let path = format!("{}/tests/fixtures/snapshots/pg{version}/{name}.snap", env!("CARGO_MANIFEST_DIR"));
            let file = std::fs::read(&path).unwrap();
            let xids = |xids: &[u32]| xids.iter().copied().map(Xid).collect::<Vec<_>>();
            let expected = SnapBuildOnDisk {
                state: SnapBuildState::Consistent,
                xmin: Xid(xmin),
                xmax: Xid(xmax),
                start_decoding_at: Lsn(start),
                two_phase_at: Lsn(two_phase_at),
                last_serialized: Lsn(last),
                committed_room: 128,
                includes_all: true,
                committed: xids(committed),
                catchange: xids(catchange),
            };
            assert_eq!(SnapBuildOnDisk::decode(&file, version), Ok(expected.clone()), "{path}");
            assert!(expected.encode(version) == file, "{path}");
        }
    }

    #[test]
    fn i1_every_version_reads_its_own_and_refuses_every_cut_and_flipped_bit() {
        for version in PgVersion::ALL {
            let (example, file) = (example(version), example(version).encode(version));
            assert_eq!(SnapBuildOnDisk::decode(&file, version), Ok(example));
            for cut in 0..file.len() {
                assert!(SnapBuildOnDisk::decode(&file[..cut], version).is_err(), "{version} cut to {cut}");
            }
            for bit in 0..file.len() * 8 {
                let mut bytes = file.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(SnapBuildOnDisk::decode(&bytes, version).is_err(), "{version} bit {bit}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let file = example(PgVersion::V16).encode(PgVersion::V16);
        let why = |bytes: &[u8], version| SnapBuildOnDisk::decode(bytes, version).unwrap_err();
        let flipped = |at: usize| {
            let mut bytes = file.clone();
            bytes[at] ^= 1;
            why(&bytes, PgVersion::V16)
        };
        assert_eq!(flipped(0), "its magic number is 51A1E000 instead of 51A1E001");
        assert_eq!(why(&file, PgVersion::V18), "its format is version 5, and PostgreSQL 18 reads version 6");
        assert_eq!(flipped(150), "its checksum is wrong");
        assert_eq!(flipped(96), "it has 172 bytes, which is not what it says");
        assert_eq!(why(&[], PgVersion::V16), "it has 0 bytes, too few for what it must hold");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(tail: Vec<u8>, version in 0usize..PgVersion::ALL.len()) {
            let mut file = MAGIC.to_le_bytes().to_vec();
            file.extend_from_slice(&[0; 4]);
            file.extend_from_slice(&LAYOUTS[version].version.to_le_bytes());
            file.extend_from_slice(&tail);
            let checksum = crc32c::crc32c(&file[VERSION..]).to_le_bytes();
            file[CHECKSUM..VERSION].copy_from_slice(&checksum);
            let _ = SnapBuildOnDisk::decode(&file, PgVersion::ALL[version]);
        }
    }
}
