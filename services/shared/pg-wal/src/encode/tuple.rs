//! Heap tuples of a given length, as a record carries them (`access/heapam_xlog.h`: `xl_heap_header`, `xl_multi_insert_tuple`).
//!
//! What is made: a row of `int4` columns that are all 0, without nulls; bytes that do not fill a column stay behind the last.

use super::EncodeError;
use super::assemble::Put;

/// `SizeOfHeapHeader`: infomask2, infomask, `t_hoff`.
const HEAP_HEADER_LEN: usize = 5;
/// `SizeOfMultiInsertTuple`: the same after a length.
const MULTI_INSERT_TUPLE_LEN: usize = 7;
/// `t_hoff` of a tuple without null bitmap: `MAXALIGN(SizeofHeapTupleHeader)`.
const HOFF: u8 = 24;
/// Bytes between the 23-byte tuple header and the first column.
const HOFF_PADDING: usize = 1;
/// `HEAP_XMAX_INVALID`.
const XMAX_INVALID: u16 = 0x0800;
/// `MaxHeapAttributeNumber`.
const ATTRIBUTES_MAX: usize = 1600;

/// The least bytes of a tuple with its `xl_heap_header`: header and padding, no column.
pub(super) const TUPLE_LEN_MIN: usize = HEAP_HEADER_LEN + HOFF_PADDING;

/// Writes `xl_heap_header` and a tuple; together `len` bytes.
pub(super) fn put_tuple(what: &'static str, len: usize, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    if len < TUPLE_LEN_MIN {
        return Err(EncodeError::TooShort { what, len, min: TUPLE_LEN_MIN });
    }
    if len > usize::from(u16::MAX) {
        return Err(EncodeError::TooLarge { what, len, max: usize::from(u16::MAX) });
    }
    put_header(len - TUPLE_LEN_MIN, out);
    out.resize(out.len() + len - HEAP_HEADER_LEN, 0);
    Ok(())
}

/// Writes `ntuples` tuples as a multi-insert carries them; together `len` bytes.
pub(super) fn put_multi_insert_tuples(ntuples: u16, len: usize, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let n = usize::from(ntuples);
    // Each tuple starts at an even offset (SHORTALIGN), so that all but the last take an even number of bytes.
    let least = MULTI_INSERT_TUPLE_LEN + HOFF_PADDING;
    if len < n * least || (n == 0 && len > 0) {
        return Err(EncodeError::TooShort { what: "the rows of a multi-insert", len, min: n * least });
    }
    let each = len.checked_div(n).unwrap_or(0) & !1;
    for i in 0..n {
        let bytes = if i + 1 == n { len - each * (n - 1) } else { each };
        let datalen = bytes - MULTI_INSERT_TUPLE_LEN;
        let datalen16 = u16::try_from(datalen).map_err(|_| EncodeError::TooLarge {
            what: "a row of a multi-insert",
            len: datalen,
            max: 65_535,
        })?;
        out.u16(datalen16);
        put_header(datalen - HOFF_PADDING, out);
        out.resize(out.len() + datalen, 0);
    }
    Ok(())
}

/// `xl_heap_header` of a tuple whose columns take `user_bytes`.
fn put_header(user_bytes: usize, out: &mut Vec<u8>) {
    let natts = (user_bytes / 4).min(ATTRIBUTES_MAX) as u16;
    out.u16(natts);
    out.u16(XMAX_INVALID);
    out.u8(HOFF);
}
