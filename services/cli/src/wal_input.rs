//! What `decode` and `compare` read: a directory of WAL, record by record, and the choice of a database in it.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use decoder_core::{
    Catalog, CsvCatalog, CurrentFunction, Decoder, DecoderConfig, Function, NoCatalog, OutputSink, PluginOptions, Profile,
    RegisteredCallbacks, TransactionStatus, TwoPhase, WorkMem,
};
use pg_types::catalog_row::CatalogRowChange;
use pg_types::{Lsn, Oid, RecordBody, WalRecord, Xid};
use pg_wal::catalog_rows::CatalogRows;
use pg_wal::{RawRecord, WalDir, WalEnd, WalReader};

use crate::notes::left_out;

/// How it is decoded.
#[derive(Clone, Debug)]
pub struct Decoding {
    /// What it costs.
    pub profile: Profile,
    /// The memory limit.
    pub work_mem: WorkMem,
    /// Transactions in progress are given out when the memory is full.
    pub streaming: bool,
    /// Prepared transactions are given out when they are prepared.
    pub two_phase: Option<TwoPhase>,
}

impl Decoding {
    /// Everything at its commit.
    #[must_use]
    pub fn at_commit(profile: &Profile, work_mem: WorkMem) -> Self {
        Self { profile: profile.clone(), work_mem, streaming: false, two_phase: None }
    }
}

/// A directory of WAL and what is needed to decode it.
#[derive(Debug)]
pub struct WalInput {
    /// The directory.
    dir: WalDir,
    /// Whose rows are decoded.
    pub database: Oid,
    /// Names.
    catalog: Arc<dyn Catalog>,
    /// Callbacks that decoders have registered; a walsender's if nobody says otherwise.
    pub callbacks: RegisteredCallbacks,
    /// What the output plugin is asked for; everything if nobody says otherwise.
    pub options: PluginOptions,
    /// Something to tell the user, if a choice was made for him.
    pub notes: Vec<String>,
}

impl WalInput {
    /// Opens `dir`; without a `database`, the one with the most decodable row changes is taken; names come from the csv files
    /// in `catalog`.
    ///
    /// # Errors
    /// No readable WAL, or no readable catalog, each with place and remedy.
    pub fn open(dir: &Path, catalog: Option<&Path>, database: Option<Oid>) -> anyhow::Result<WalInput> {
        let dir = WalDir::open(dir, None)?;
        let catalog: Arc<dyn Catalog> = match catalog {
            Some(folder) => Arc::new(CsvCatalog::load(folder).context("read the catalog")?),
            None => Arc::new(NoCatalog),
        };
        let mut notes: Vec<String> = left_out(&dir).into_iter().collect();
        let database = match database {
            Some(oid) => oid,
            None => {
                let (oid, note) = choose_database(&dir)?;
                notes.push(note);
                oid
            }
        };
        Ok(WalInput {
            dir,
            database,
            catalog,
            callbacks: RegisteredCallbacks::default(),
            options: PluginOptions::default(),
            notes,
        })
    }

    /// A decoder of this input that costs what `profile` says. It knows which transactions the WAL rolls back, as a server that
    /// catches up would.
    ///
    /// # Errors
    /// A server of that profile has no room for the callbacks that are registered.
    pub fn decoder(&self, decoding: Decoding) -> anyhow::Result<Decoder> {
        let (version, database) = (self.dir.identity().version, self.database);
        let Decoding { profile, work_mem, streaming, two_phase } = decoding;
        let (confirmed_lsn, options) = (Lsn::INVALID, self.options.clone());
        let profile = if options.publication_names.is_empty() { profile } else { profile.with_pgoutput() };
        let config = DecoderConfig { version, profile, database, confirmed_lsn, work_mem, streaming, two_phase, options };
        let status = ScannedStatus { dir: self.dir.clone(), ends: None };
        let mut decoder = Decoder::new(config, Arc::clone(&self.catalog)).know_status(Box::new(status));
        let profile = decoder.config().profile.name.clone();
        decoder.register_callbacks(self.callbacks).with_context(|| format!("decode under profile {profile}"))?;
        Ok(decoder)
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &WalDir {
        &self.dir
    }

    /// Decodes everything into `sink` and gives how the WAL ended.
    ///
    /// # Errors
    /// A file that cannot be read, a record that contradicts its layout, or one that cannot be decoded.
    pub fn decode(&self, decoder: &mut Decoder, sink: &mut dyn OutputSink) -> anyhow::Result<WalEnd> {
        let marker = decoder.current_function();
        self.each_record(&marker, |record, change| {
            if let Some(change) = change {
                decoder.catalog_row(record.xid, change);
            }
            Ok(decoder.process(record, sink)?)
        })
    }

    /// Calls `f` for every record, reading under the name of PostgreSQL's function, and gives how the WAL ended. If publications are asked for,
    /// it is told what the record does to a row that says what is published.
    ///
    /// # Errors
    /// As [`WalInput::decode`].
    pub fn each_record(
        &self,
        marker: &CurrentFunction,
        mut f: impl FnMut(&WalRecord, Option<CatalogRowChange>) -> anyhow::Result<()>,
    ) -> anyhow::Result<WalEnd> {
        let outer = marker.enter(Function::XLogReadRecord);
        let mut rows = (!self.options.publication_names.is_empty()).then(|| self.catalog_rows());
        let end = for_each_raw(&self.dir, |raw, record| {
            marker.leave(outer);
            let change = rows.as_mut().map(|rows| rows.read(raw, self.dir.profile())).transpose()?.flatten();
            f(record, change)?;
            let _ = marker.enter(Function::XLogReadRecord);
            Ok(())
        });
        marker.leave(outer);
        end
    }

    /// A reader of rows that say what is published, which knows those of the catalog copy.
    fn catalog_rows(&self) -> CatalogRows {
        let mut rows = CatalogRows::new();
        Decoder::published_before(&*self.catalog, self.database).iter().for_each(|(place, row)| rows.seed(*place, row));
        rows
    }

    /// Calls `f` for every record from the one at or after `from` on, or from the first, until it breaks.
    ///
    /// # Errors
    /// As [`WalInput::decode`].
    pub fn records_until(
        &self,
        from: Option<Lsn>,
        mut f: impl FnMut(&WalRecord) -> anyhow::Result<ControlFlow<()>>,
    ) -> anyhow::Result<()> {
        let mut reader = WalReader::open(&self.dir, from)?;
        while let Some(raw) = reader.next()? {
            if f(&raw.decode(self.dir.profile())?)?.is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// The ends of all transactions of a directory, read when the first is asked for.
#[derive(Debug)]
struct ScannedStatus {
    /// The directory.
    dir: WalDir,
    /// By xid: where it ended, and whether it was rolled back; in the order of the WAL.
    ends: Option<HashMap<u32, Vec<(Lsn, bool)>>>,
}

impl ScannedStatus {
    /// Reads them. What comes behind a place that cannot be read counts as running.
    fn scan(dir: &WalDir) -> HashMap<u32, Vec<(Lsn, bool)>> {
        let mut ends = HashMap::<u32, Vec<(Lsn, bool)>>::new();
        let scanned = for_each_record(dir, |record| {
            let (subxids, prepared, aborted) = match &record.body {
                RecordBody::Commit(commit) => (&commit.subxids, commit.prepared_xid, false),
                RecordBody::Abort(abort) => (&abort.subxids, abort.prepared_xid, true),
                _ => return Ok(()),
            };
            let own = if prepared.is_valid() { prepared } else { record.xid };
            for xid in subxids.iter().chain([&own]) {
                ends.entry(xid.0).or_default().push((record.lsn, aborted));
            }
            Ok(())
        });
        drop(scanned);
        ends
    }
}

impl TransactionStatus for ScannedStatus {
    fn is_aborted(&mut self, xid: Xid, lsn: Lsn) -> bool {
        let ends = self.ends.get_or_insert_with(|| Self::scan(&self.dir)).get(&xid.0);
        ends.and_then(|ends| ends.iter().find(|(end, _)| *end > lsn)).is_some_and(|(_, aborted)| *aborted)
    }
}

/// Calls `f` for every record of `dir` and gives how the WAL ended.
fn for_each_record(dir: &WalDir, mut f: impl FnMut(&WalRecord) -> anyhow::Result<()>) -> anyhow::Result<WalEnd> {
    for_each_raw(dir, |_, record| f(record))
}

/// The same with the record's bytes.
fn for_each_raw(dir: &WalDir, mut f: impl FnMut(&RawRecord<'_>, &WalRecord) -> anyhow::Result<()>) -> anyhow::Result<WalEnd> {
    let profile = dir.profile();
    let mut reader = WalReader::open(dir, None)?;
    while let Some(raw) = reader.next()? {
        f(&raw, &raw.decode(profile)?)?;
    }
    reader.end().cloned().context("the reader stopped without saying why")
}

/// The database with the most row changes that carry their row (the lowest oid among equals); failing that, the one that most
/// commits name.
fn choose_database(dir: &WalDir) -> anyhow::Result<(Oid, String)> {
    let (mut rows, mut commits) = (BTreeMap::<Oid, u64>::new(), BTreeMap::<Oid, u64>::new());
    for_each_record(dir, |record| {
        let (database, n) = match &record.body {
            RecordBody::Insert(insert) if insert.logical => (insert.target.db, 1),
            RecordBody::MultiInsert(insert) if insert.logical => (insert.target.db, u64::from(insert.ntuples)),
            RecordBody::Update(update) if update.logical => (update.target.db, 1),
            RecordBody::Delete(delete) if delete.old != pg_types::record::OldTuple::None => (delete.target.db, 1),
            RecordBody::Commit(commit) => {
                *commits.entry(commit.db).or_default() += 1;
                return Ok(());
            }
            _ => return Ok(()),
        };
        *rows.entry(database).or_default() += n;
        Ok(())
    })?;
    commits.remove(&Oid::INVALID);
    let most = |counts: &BTreeMap<Oid, u64>| counts.iter().rev().max_by_key(|(_, n)| **n).map(|(oid, n)| (*oid, *n));
    Ok(match (most(&rows), most(&commits)) {
        (Some((oid, n)), _) => {
            (oid, format!("decodes database {oid}, which has {n} of the row changes; --database OID for another"))
        }
        (None, Some((oid, _))) => {
            (oid, format!("no row change here can be decoded (wal_level below logical?); takes database {oid} of the commits"))
        }
        (None, None) => (Oid::INVALID, "no row change here can be decoded (wal_level below logical?)".to_owned()),
    })
}
