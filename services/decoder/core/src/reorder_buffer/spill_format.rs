//! How a change stands in a spill file (`ReorderBufferSerializeChange`, `ReorderBufferRestoreChange`).
//!
//! ```text
//!   payload length u32 │ CRC-32C of the payload u32 │ LSN u64 │ bytes counted u32 │ tag u8 │ fields of that kind     (little-endian)
//! ```
//!
//! What a transaction keeps anyway, its invalidation messages, is not written; TRUNCATEs and logical messages are, since their
//! lists empty with the changes. Invariant: I1 what was written is read back equal, or refused.

use pg_types::record::{LogicalMessageRecord, TruncateRecord};
use pg_types::{Lsn, Oid};

use crate::reorder_buffer::change::{Change, ChangeKind, RowKind};
use crate::reorder_buffer::txn::Txn;

/// Length and checksum.
pub(crate) const FRAME_HEADER_LEN: usize = 8;

/// LSN, bytes and tag.
const FIXED_LEN: usize = 13;

/// Appends `change` of `txn` to `out`.
pub(crate) fn write(txn: &Txn, change: &Change, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_HEADER_LEN]);
    out.extend_from_slice(&change.lsn.0.to_le_bytes());
    put(out, change.bytes);
    match change.kind {
        ChangeKind::Rows { kind, rows, spc, rel } => {
            out.extend_from_slice(&[0, kind as u8]);
            out.extend_from_slice(&rows.to_le_bytes());
            put(out, spc.0);
            put(out, rel);
        }
        ChangeKind::SpeculativeConfirm => out.push(1),
        ChangeKind::SpeculativeAbort => out.push(2),
        ChangeKind::Truncate(index) => put_truncate(&txn.truncates[index as usize], out),
        ChangeKind::CommandId(id) => put_numbered(4, id, out),
        ChangeKind::Invalidations { start, len } => {
            put_numbered(5, start, out);
            put(out, len);
        }
        ChangeKind::Inherited(index) => put_numbered(6, index, out),
        ChangeKind::CatchUp(to) => put_numbered(7, to, out),
        ChangeKind::Message(index) => put_message(&txn.logical[index as usize], out),
        ChangeKind::Snapshot => out.push(9),
        ChangeKind::RowsBefore(rows) => put_numbered(10, rows.into(), out),
    }
    let payload = start + FRAME_HEADER_LEN;
    let (len, crc) = ((out.len() - payload) as u32, crc32c::crc32c(&out[payload..]));
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    out[start + 4..payload].copy_from_slice(&crc.to_le_bytes());
}

/// A number.
fn put(out: &mut Vec<u8>, n: u32) {
    out.extend_from_slice(&n.to_le_bytes());
}

/// A tag and a number.
fn put_numbered(tag: u8, n: u32, out: &mut Vec<u8>) {
    out.push(tag);
    put(out, n);
}

/// A TRUNCATE.
fn put_truncate(record: &TruncateRecord, out: &mut Vec<u8>) {
    put_numbered(3, record.db.0, out);
    out.extend_from_slice(&[u8::from(record.cascade), u8::from(record.restart_seqs)]);
    record.relids.iter().for_each(|oid| put(out, oid.0));
}

/// A logical message.
fn put_message(record: &LogicalMessageRecord, out: &mut Vec<u8>) {
    put_numbered(8, record.db.0, out);
    out.push(u8::from(record.transactional));
    put(out, record.prefix.len() as u32);
    out.extend_from_slice(&record.prefix);
    out.extend_from_slice(&record.message);
}

/// The length of the frame that starts `bytes`, header included; [`None`] if there is not even a header.
pub(crate) fn frame_len(bytes: &[u8]) -> Option<usize> {
    let len = bytes.first_chunk::<4>()?;
    (bytes.len() >= FRAME_HEADER_LEN).then(|| FRAME_HEADER_LEN + u32::from_le_bytes(*len) as usize)
}

/// Appends the change of one whole frame to `txn`; gives what is wrong with it instead.
pub(crate) fn read(frame: &[u8], txn: &mut Txn) -> Result<Change, &'static str> {
    let (header, payload) = frame.split_at_checked(FRAME_HEADER_LEN).ok_or("it is shorter than its header")?;
    if header.get(4..) != Some(&crc32c::crc32c(payload).to_le_bytes()) {
        return Err("its checksum is wrong");
    }
    let unknown = "it holds no change that this build writes";
    let (lsn, bytes, kind) = parse(payload, txn).ok_or(unknown)?;
    let change = Change { lsn, bytes, kind };
    txn.changes.push(change);
    Ok(change)
}

/// Takes a payload apart.
fn parse(payload: &[u8], txn: &mut Txn) -> Option<(Lsn, u32, ChangeKind)> {
    let (fixed, mut rest) = payload.split_at_checked(FIXED_LEN)?;
    let (lsn, bytes) = (u64::from_le_bytes(*fixed.first_chunk()?), u32::from_le_bytes(*fixed.get(8..)?.first_chunk()?));
    let mut number = || take(&mut rest).map(|bytes: [u8; 4]| u32::from_le_bytes(bytes));
    let kind = match fixed[12] {
        0 => {
            let [kind, low, high] = take(&mut rest)?;
            let mut number = || take(&mut rest).map(u32::from_le_bytes);
            let (spc, rel) = (Oid(number()?), number()?);
            ChangeKind::Rows { kind: *RowKind::ALL.get(usize::from(kind))?, rows: u16::from_le_bytes([low, high]), spc, rel }
        }
        1 => ChangeKind::SpeculativeConfirm,
        2 => ChangeKind::SpeculativeAbort,
        3 => {
            let db = Oid(number()?);
            let [cascade, restart_seqs] = take(&mut rest)?.map(|flag| flag != 0);
            let relids =
                std::mem::take(&mut rest).chunks_exact(4).filter_map(|b| Some(Oid(u32::from_le_bytes(*b.first_chunk()?))));
            txn.truncates.push(TruncateRecord { db, cascade, restart_seqs, relids: relids.collect() });
            ChangeKind::Truncate(txn.truncates.len() as u32 - 1)
        }
        4 => ChangeKind::CommandId(number()?),
        5 => ChangeKind::Invalidations { start: number()?, len: number()? },
        6 => ChangeKind::Inherited(number()?),
        7 => ChangeKind::CatchUp(number()?),
        8 => {
            let db = Oid(number()?);
            let [transactional] = take(&mut rest)?.map(|flag| flag != 0);
            let len = u32::from_le_bytes(take(&mut rest)?);
            let (prefix, message) = std::mem::take(&mut rest).split_at_checked(len as usize)?;
            let (prefix, message) = (prefix.to_vec(), message.to_vec());
            txn.logical.push(LogicalMessageRecord { db, transactional, prefix, message });
            ChangeKind::Message(txn.logical.len() as u32 - 1)
        }
        9 => ChangeKind::Snapshot,
        10 => ChangeKind::RowsBefore(u16::try_from(number()?).ok()?),
        _ => return None,
    };
    rest.is_empty().then_some((Lsn(lsn), bytes, kind))
}

/// The first bytes of `rest`, which is shortened by them.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One change of each kind, with its lists.
    fn txn() -> Txn {
        let mut txn = Txn::default();
        txn.truncates.push(TruncateRecord { db: Oid(5), cascade: true, restart_seqs: false, relids: vec![Oid(16384), Oid(7)] });
        txn.logical.push(LogicalMessageRecord {
            db: Oid(5),
            transactional: true,
            prefix: b"prefix".to_vec(),
            message: vec![0, 255, 8],
        });
        let rows = RowKind::ALL.iter().map(|kind| ChangeKind::Rows { kind: *kind, rows: 700, spc: Oid(1663), rel: 16_385 });
        let others = [
            ChangeKind::SpeculativeConfirm,
            ChangeKind::SpeculativeAbort,
            ChangeKind::Truncate(0),
            ChangeKind::CommandId(9),
            ChangeKind::Invalidations { start: 3, len: 4 },
            ChangeKind::Inherited(5),
            ChangeKind::CatchUp(6),
            ChangeKind::Message(0),
            ChangeKind::Snapshot,
            ChangeKind::RowsBefore(65_535),
        ];
        for (i, kind) in rows.chain(others).enumerate() {
            txn.push(Lsn(1 << 40 | i as u64), kind, 80 + i as u64);
        }
        txn
    }

    fn frames(txn: &Txn) -> Vec<Vec<u8>> {
        let written = |change| {
            let mut out = Vec::new();
            write(txn, change, &mut out);
            out
        };
        txn.changes.iter().map(written).collect()
    }

    #[test]
    fn i1_every_kind_comes_back() {
        let (txn, mut restored) = (txn(), Txn::default());
        for frame in frames(&txn) {
            assert_eq!(frame_len(&frame), Some(frame.len()));
            read(&frame, &mut restored).unwrap();
        }
        assert_eq!(restored.changes, txn.changes);
        assert_eq!((restored.truncates, restored.logical), (txn.truncates, txn.logical));
    }

    #[test]
    fn i1_every_cut_and_every_flipped_bit_is_refused() {
        for frame in frames(&txn()) {
            for cut in 0..frame.len() {
                assert!(read(&frame[..cut], &mut Txn::default()).is_err());
            }
            for bit in 32..frame.len() * 8 {
                let mut bytes = frame.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(read(&bytes, &mut Txn::default()).is_err(), "bit {bit}");
            }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_payloads_never_panic(payload: Vec<u8>) {
            let mut frame = vec![0; 4];
            frame.extend_from_slice(&crc32c::crc32c(&payload).to_le_bytes());
            frame.extend_from_slice(&payload);
            let _ = read(&frame, &mut Txn::default());
        }
    }
}
