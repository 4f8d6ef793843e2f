//! The log against a model: a plain list of transactions.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use pg_types::Xid;
use proptest::prelude::*;

use super::segment::SEGMENT_HEADER_LEN;
use super::*;

const SYSTEM_ID: u64 = 7_000_000_000_000_000_001;
const BEGIN: Lsn = Lsn(1000);

fn config(dir: &Path, segment_bytes: u64, memory_bytes: usize) -> LogConfig {
    LogConfig { dir: dir.to_owned(), segment_bytes, memory_bytes, keep_bytes: 0, bytes_max: u64::MAX }
}

fn open(config: &LogConfig, synced: Lsn) -> Result<(LogWriter, Arc<OutputLog>), LogError> {
    OutputLog::open(config.clone(), SYSTEM_ID, BEGIN, synced.is_valid().then_some(synced))
}

fn buffer(payload: &[u8]) -> EntryBuffer {
    let mut buffer = EntryBuffer::with_capacity(payload.len());
    buffer.tail().extend_from_slice(payload);
    buffer
}

/// A transaction of the model: its end and the payloads of its entries.
#[derive(Clone, Debug, PartialEq)]
struct Transaction {
    end: Lsn,
    payloads: Vec<Vec<u8>>,
}

/// Transactions whose ends and payloads follow from `sizes`: one list of entry sizes each.
fn transactions(sizes: &[Vec<usize>]) -> Vec<Transaction> {
    let transaction = |(i, sizes): (usize, &Vec<usize>)| Transaction {
        end: Lsn(BEGIN.0 + 10 * (i as u64 + 1)),
        payloads: sizes.iter().enumerate().map(|(j, n)| vec![(i * 7 + j) as u8; *n]).collect(),
    };
    sizes.iter().enumerate().map(transaction).collect()
}

fn append(writer: &mut LogWriter, transaction: &Transaction) -> Result<(), LogError> {
    let (last, fragments) = transaction.payloads.split_last().unwrap();
    for payload in fragments {
        writer.append_fragment(buffer(payload))?;
    }
    writer.append(buffer(last), transaction.end, 1)
}

/// Everything after `position`, read through `seek`, `recent` and `read` as a subscriber does.
fn read_from(log: &OutputLog, position: Lsn) -> Result<Vec<Transaction>, LogError> {
    let mut cursor = log.seek(position)?;
    let mut found = Vec::new();
    let mut payloads = Vec::new();
    loop {
        let entries = match log.recent(&mut cursor, 100) {
            Recent::Entries(entries) => entries,
            Recent::OnDisk => log.read(&mut cursor, 100)?,
        };
        if entries.is_empty() {
            assert!(payloads.is_empty(), "readers see complete transactions only");
            assert_eq!(cursor.position(), log.end());
            return Ok(found);
        }
        for entry in entries {
            payloads.push(entry.payload.to_vec());
            if !entry.is_fragment() {
                found.push(Transaction { end: entry.end, payloads: std::mem::take(&mut payloads) });
            }
        }
    }
}

fn sizes() -> impl Strategy<Value = Vec<Vec<usize>>> {
    prop::collection::vec(
        prop_oneof![4 => prop::collection::vec(0usize..60, 1), 1 => prop::collection::vec(0usize..60, 2..5)],
        1..30,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn what_was_appended_is_read_from_every_position(
        sizes in sizes(), segment_bytes in 64u64..600, memory in 0usize..300, reopen in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), segment_bytes, memory);
        let all = transactions(&sizes);
        let (mut writer, mut log) = open(&config, Lsn::INVALID).unwrap();
        for transaction in &all {
            append(&mut writer, transaction).unwrap();
        }
        if reopen {
            drop(writer);
            log = open(&config, all.last().unwrap().end).unwrap().1;
        }
        for position in BEGIN.0..=log.end().0 + 3 {
            let expected: Vec<_> = all.iter().filter(|t| t.end.0 > position).cloned().collect();
            prop_assert_eq!(read_from(&log, Lsn(position)).unwrap(), expected, "from {}", position);
        }
        let too_old = matches!(read_from(&log, Lsn(BEGIN.0 - 1)), Err(LogError::Removed { oldest: BEGIN, .. }));
        prop_assert!(too_old);
        let on_disk: u64 = fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).sum();
        prop_assert_eq!(log.bytes(), on_disk);
    }
}

/// Opens the last segment cut or changed by `damage`, checks that a prefix of `all` is left, and that the log goes on from there.
fn check_recovery(config: &LogConfig, all: &[Transaction], bytes: &[u8], path: &Path) {
    fs::write(path, bytes).unwrap();
    let (mut writer, log) = open(config, Lsn::INVALID).unwrap();
    let left = read_from(&log, BEGIN).unwrap();
    assert_eq!(left, all[..left.len()], "a prefix of what was written");
    if let Some(lost) = all.get(left.len()) {
        assert!(log.end() < lost.end);
        append(&mut writer, lost).unwrap();
        drop(writer);
        let (_, log) = open(config, lost.end).unwrap();
        assert_eq!(read_from(&log, BEGIN).unwrap(), all[..=left.len()]);
    }
}

#[test]
fn a_tail_torn_at_any_byte_or_with_any_bit_flipped_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), 1 << 20, 1 << 20);
    let all = transactions(&[vec![3], vec![0], vec![5, 4, 2], vec![9]]);
    let (mut writer, _) = open(&config, Lsn::INVALID).unwrap();
    for transaction in &all {
        append(&mut writer, transaction).unwrap();
    }
    let path = Segment::path_of(dir.path(), 0);
    let good = fs::read(&path).unwrap();
    for cut in 0..=good.len() {
        check_recovery(&config, &all, &good[..cut], &path);
    }
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        check_recovery(&config, &all, &bytes, &path);
    }
    check_recovery(&config, &all, &[&good[..], &[0; 100]].concat(), &path);
}

#[test]
fn a_log_that_lost_what_was_durable_is_refused_by_name_and_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), 1 << 20, 0);
    let all = transactions(&[vec![3], vec![5]]);
    let (mut writer, _) = open(&config, Lsn::INVALID).unwrap();
    for transaction in &all {
        append(&mut writer, transaction).unwrap();
    }
    let point = writer.sync_point();
    point.sync().unwrap();
    let path = Segment::path_of(dir.path(), 0);
    let good = fs::read(&path).unwrap();
    fs::write(&path, &good[..good.len() - 1]).unwrap();
    let error = open(&config, point.end).unwrap_err();
    assert!(matches!(error, LogError::Short { end: Lsn(1010), synced: Lsn(1020), .. }), "{error}");
    assert!(error.to_string().contains("data_dir"), "{error}");
}

#[test]
fn damage_before_the_tail_is_found_by_its_reader() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), 64, 0);
    let all = transactions(&[vec![30], vec![30], vec![30]]);
    let (mut writer, _) = open(&config, Lsn::INVALID).unwrap();
    for transaction in &all {
        append(&mut writer, transaction).unwrap();
    }
    drop(writer);
    let path = Segment::path_of(dir.path(), 0);
    let mut bytes = fs::read(&path).unwrap();
    bytes[SEGMENT_PAYLOAD] ^= 1;
    fs::write(&path, bytes).unwrap();
    let (_, log) = open(&config, Lsn(1030)).unwrap();
    let error = read_from(&log, BEGIN).unwrap_err();
    assert!(matches!(error, LogError::Damaged { offset: 40, .. }), "{error}");
    assert_eq!(read_from(&log, Lsn(1010)).unwrap(), all[1..]);
}

/// Offset of the first entry's payload in a segment.
const SEGMENT_PAYLOAD: usize = segment::SEGMENT_HEADER_LEN + ENTRY_HEADER_LEN;

#[test]
fn fragments_stay_invisible_and_can_be_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), 1 << 20, 1 << 20);
    let all = transactions(&[vec![1], vec![2, 3]]);
    let (mut writer, log) = open(&config, Lsn::INVALID).unwrap();
    append(&mut writer, &all[0]).unwrap();
    writer.append_fragment(buffer(b"never completed")).unwrap();
    assert_eq!(read_from(&log, BEGIN).unwrap(), all[..1]);
    writer.discard_fragments();
    append(&mut writer, &all[1]).unwrap();
    assert_eq!(read_from(&log, BEGIN).unwrap(), all);
    drop(writer);
    let (mut writer, _) = open(&config, all[1].end).unwrap();
    writer.append_fragment(buffer(b"lost in a crash")).unwrap();
    drop(writer);
    let (_, log) = open(&config, all[1].end).unwrap();
    assert_eq!(read_from(&log, BEGIN).unwrap(), all);
}

#[test]
fn segments_go_when_read_by_all_or_beyond_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path(), 64, 0);
    config.bytes_max = 1000;
    let sizes: Vec<_> = (0..20).map(|_| vec![30]).collect();
    let all = transactions(&sizes);
    let (mut writer, log) = open(&config, Lsn::INVALID).unwrap();
    for transaction in &all[..6] {
        append(&mut writer, transaction).unwrap();
    }
    assert_eq!(log.trim(Some(Lsn(1025))).unwrap(), 2, "1010 and 1020 were read");
    assert_eq!(log.oldest(), Lsn(1020));
    assert_eq!(log.trim(Some(BEGIN)).unwrap(), 0);
    let mut behind = log.seek(Lsn(1020)).unwrap();
    for transaction in &all[6..] {
        append(&mut writer, transaction).unwrap();
    }
    assert!(log.bytes() > 1000);
    log.trim(Some(BEGIN)).unwrap();
    assert!(log.bytes() <= 1000 && log.oldest() > Lsn(1020));
    assert!(matches!(log.read(&mut behind, 100), Err(LogError::Removed { requested: Lsn(1020), .. })));
    log.trim(None).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nobody needs anything: the last segment stays");
}

#[test]
fn files_are_private_and_belong_to_one_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), 64, 0);
    drop(open(&config, Lsn::INVALID).unwrap());
    let mode = fs::metadata(Segment::path_of(dir.path(), 0)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let error = OutputLog::open(config, SYSTEM_ID + 1, BEGIN, None).unwrap_err();
    assert!(matches!(error, LogError::OtherCluster { .. }), "{error}");
}

#[test]
fn an_entry_that_cannot_be_served_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, log) = open(&config(dir.path(), 64, 0), Lsn::INVALID).unwrap();
    let error = writer.append(buffer(&vec![0; PAYLOAD_LEN_MAX + 1]), Lsn(1010), 1).unwrap_err();
    assert!(matches!(error, LogError::TooLarge(_)), "{error}");
    assert_eq!(log.end(), BEGIN);
}

#[test]
fn a_full_disk_is_an_error_and_the_entry_can_be_appended_again() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), 64, 0);
    let all = transactions(&[vec![30], vec![30]]);
    let (mut writer, log) = open(&config, Lsn::INVALID).unwrap();
    append(&mut writer, &all[0]).unwrap();
    // The next segment would be this file; /dev/full takes nothing.
    let next = Segment::path_of(dir.path(), 1);
    std::os::unix::fs::symlink("/dev/full", &next).unwrap();
    let error = append(&mut writer, &all[1]).unwrap_err();
    assert!(matches!(error, LogError::Full { .. }), "{error}");
    assert!(error.to_string().contains("free space"), "{error}");
    assert_eq!(log.end(), all[0].end);
    fs::remove_file(&next).unwrap();
    append(&mut writer, &all[1]).unwrap();
    assert_eq!(read_from(&log, BEGIN).unwrap(), all);
}

#[test]
fn a_log_that_lost_all_its_output_is_not_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), 1 << 20, 0);
    let written = transactions(&[vec![100], vec![200]]);
    let (mut writer, _) = open(&config, Lsn::INVALID).unwrap();
    written.iter().for_each(|transaction| append(&mut writer, transaction).unwrap());
    writer.sync_point().sync().unwrap();
    drop(writer);
    let path = Segment::path_of(dir.path(), 0);
    let good = fs::read(&path).unwrap();

    // Damage in the only header: the file stays, for it holds output.
    let mut bytes = good.clone();
    bytes[9] ^= 1;
    for damaged in [bytes, vec![7; good.len()]] {
        fs::write(&path, &damaged).unwrap();
        let error = open(&config, BEGIN).unwrap_err();
        assert!(matches!(error, LogError::Damaged { offset: 0, .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), damaged);
    }
    // The file is empty, or gone: even where the checkpoint begins at the end of what it tells of.
    fs::write(&path, []).unwrap();
    for _ in 0..2 {
        let error = open(&config, BEGIN).unwrap_err();
        assert!(matches!(error, LogError::Gone { .. }) && error.to_string().contains("move its data_dir away"), "{error}");
    }
    // Without a checkpoint nothing was promised yet.
    fs::write(&path, []).unwrap();
    assert_eq!(open(&config, Lsn::INVALID).unwrap().0.end(), BEGIN);
}

/// A log of five segments with a transaction each, and the first one's list of open transactions.
fn five_segments(dir: &Path) -> (LogConfig, Vec<Transaction>) {
    let config = config(dir, 64, 0);
    let all = transactions(&[vec![60], vec![60], vec![60], vec![60], vec![60]]);
    let (mut writer, _) = open(&config, Lsn::INVALID).unwrap();
    all.iter().for_each(|transaction| append(&mut writer, transaction).unwrap());
    writer.sync_point().sync().unwrap();
    assert_eq!(fs::read_dir(dir).unwrap().count(), 5);
    (config, all)
}

#[test]
fn a_segment_missing_or_cut_in_the_middle_is_told_to_who_reads_it_and_what_lies_behind_is_served() {
    for (cut, missing) in [(true, false), (false, true)] {
        let dir = tempfile::tempdir().unwrap();
        let (config, all) = five_segments(dir.path());
        let path = Segment::path_of(dir.path(), 2);
        let len = fs::metadata(&path).unwrap().len();
        if cut {
            fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len - 1).unwrap();
        }
        if missing {
            fs::remove_file(&path).unwrap();
        }
        let (mut writer, log) = open(&config, all[4].end).unwrap();
        assert_eq!(read_from(&log, all[2].end).unwrap(), all[3..], "nothing of it is needed");
        let mut cursor = log.seek(BEGIN).unwrap();
        assert_eq!(log.read(&mut cursor, 1).unwrap().len() + log.read(&mut cursor, 1).unwrap().len(), 2, "what lies before it");
        for position in [BEGIN, all[0].end, all[1].end] {
            let error = read_from(&log, position).unwrap_err();
            assert!(matches!(error, LogError::Damaged { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(".outlog") && text.contains("move its data_dir away"), "{text}");
        }
        // It goes on, and forgets the segment when nobody needs it.
        let more = Transaction { end: Lsn(2000), payloads: vec![vec![1; 60]] };
        append(&mut writer, &more).unwrap();
        log.trim(Some(all[2].end)).unwrap();
        assert_eq!(read_from(&log, all[2].end).unwrap(), [&all[3..], &[more]].concat());
    }
}

#[test]
fn a_first_segment_whose_list_of_open_transactions_is_torn_or_changed_is_refused_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (config, all) = five_segments(dir.path());
    // As retention leaves it: the oldest segment begins with transactions of which those before held a part.
    let mut list = OpenTransactions::default();
    list.apply(Mark::Block(Xid(7), Lsn(1001), 3), Lsn(1000));
    list.apply(Mark::Prepared(Xid(9)), Lsn(1000));
    for ordinal in 0..2 {
        fs::remove_file(Segment::path_of(dir.path(), ordinal)).unwrap();
    }
    let path = Segment::path_of(dir.path(), 2);
    let old = fs::read(&path).unwrap();
    drop(Segment::create(dir.path(), SYSTEM_ID, 2, all[1].end, list).unwrap());
    let with_list = fs::read(&path).unwrap();
    let good = [&with_list[..], &old[SEGMENT_HEADER_LEN..]].concat();
    fs::write(&path, &good).unwrap();
    assert_eq!(read_from(&open(&config, all[4].end).unwrap().1, all[1].end).unwrap(), all[2..]);
    let mut damaged: Vec<Vec<u8>> = (SEGMENT_HEADER_LEN..with_list.len()).map(|cut| good[..cut].to_vec()).collect();
    damaged.extend((12..with_list.len()).map(|at| {
        let mut bytes = good.clone();
        bytes[at] ^= 4;
        bytes
    }));
    for bytes in damaged {
        fs::write(&path, &bytes).unwrap();
        // Where blocks began is not known any more, so what is put together from them would lack changes.
        let error = open(&config, all[4].end).unwrap_err();
        assert!(matches!(error, LogError::Damaged { offset: 0, .. } | LogError::OtherCluster { .. }), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        assert_eq!(fs::read(&path).unwrap(), bytes, "nothing is removed");
    }
}

/// Output of the format before this one is read and goes on in a segment of its own; of one that is not known, it is refused.
#[test]
fn an_older_format_is_read_and_an_unknown_one_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let (config, all) = (config(dir.path(), 1 << 20, 0), transactions(&[vec![5], vec![7, 3], vec![4]]));
    let (mut writer, _) = open(&config, Lsn::INVALID).unwrap();
    all[..2].iter().for_each(|t| append(&mut writer, t).unwrap());
    drop(writer);
    let segments = || {
        let mut paths: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    };
    let as_format = |path: &Path, format: u8| {
        let mut bytes = fs::read(path).unwrap();
        bytes[7] = format;
        let covered = if format == b'1' { Vec::new() } else { vec![format] };
        let crc = crc32c::crc32c(&[&covered[..], &bytes[12..SEGMENT_HEADER_LEN]].concat());
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        fs::write(path, bytes).unwrap();
    };
    as_format(&segments()[0], b'1');
    let (mut writer, log) = open(&config, all[1].end).unwrap();
    append(&mut writer, &all[2]).unwrap();
    assert_eq!(read_from(&log, BEGIN).unwrap(), all);
    drop(writer);
    let formats: Vec<u8> = segments().iter().map(|path| fs::read(path).unwrap()[7]).collect();
    assert_eq!(formats, *b"12");
    as_format(&segments()[1], b'3');
    let error = open(&config, all[2].end).unwrap_err().to_string();
    assert!(error.contains("is of format '3'") && error.contains("start that one, or stop the decoder"), "{error}");
}
