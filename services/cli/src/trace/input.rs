//! Where traces come from, and what is said about them.

use std::io::Write;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use trace_analysis::read::api::{Api, Query};
use trace_analysis::skew::{self, Shift};
use trace_analysis::store::Attributes;
use trace_analysis::{ReadReport, Source, Span, StoreConfig, TraceStore};

use crate::notes::note;
use crate::run::progress_bar;
use crate::run::text::{count, nanos};

/// Help on inputs, for all subcommands.
pub(super) const INPUT_HELP: &str = "\
Input: files or folders with OTLP as JSON lines (traces.jsonl of `walstorm run`, a collector's file exporter), as one JSON document, or as
protobuf (one request, or frames with their length in front), each also as .zst or .gz; answers of Jaeger's API; - for standard input.
Of a folder, *.jsonl, *.pb, *.binpb, *trace*.json and *span*.json are read.";

/// Where traces come from.
#[derive(Debug, clap::Args)]
pub(super) struct InputArgs {
    /// Files or folders with traces; - for standard input.
    #[arg(value_name = "FILE", required_unless_present_any = ["jaeger", "tempo"])]
    files: Vec<PathBuf>,
    #[command(flatten)]
    api: ApiArgs,
}

/// An API in place of files.
#[derive(Debug, clap::Args)]
pub(super) struct ApiArgs {
    /// Asks Jaeger's query API there, as http://127.0.0.1:16686, instead of reading files.
    #[arg(long, value_name = "URL", conflicts_with_all = ["files", "tempo"])]
    jaeger: Option<String>,
    /// Asks Tempo's API there, as http://127.0.0.1:3200, instead of reading files.
    #[arg(long, value_name = "URL", conflicts_with = "files")]
    tempo: Option<String>,
    /// Asks an API for traces of this service only.
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Traces to ask an API for, of each service.
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

/// What is held of them.
#[derive(Debug, clap::Args)]
pub(super) struct HoldArgs {
    /// MiB of spans that may be held: 56 bytes a span, 24 to 32 for each link and each attribute that is needed.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..1 << 20))]
    pub(super) memory_mib: u64,
    /// Keeps this share of the traces, by their ids.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = share)]
    sample: f64,
    /// Leaves times as they are. Otherwise a node whose spans begin before what led to them has its clock set forward by the least that
    /// mends this, a line for each pair of nodes.
    #[arg(long)]
    pub(super) no_skew_correction: bool,
}

/// A share above 0, at most 1.
fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "is no number".to_owned())?;
    if share > 0.0 && share <= 1.0 { Ok(share) } else { Err("must be above 0 and at most 1".to_owned()) }
}

/// A source that shows how far it was read.
#[derive(Debug)]
pub(super) struct Input {
    /// The source.
    pub(super) source: Source,
    /// The bar; hidden unless standard error is a terminal.
    bar: ProgressBar,
}

impl InputArgs {
    /// Opens what was named. `again`: it is read more than once.
    pub(super) fn open(&self, again: bool) -> anyhow::Result<Input> {
        let bar = progress_bar();
        let api = match (&self.api.jaeger, &self.api.tempo) {
            (Some(url), _) => Some((Api::Jaeger, url)),
            (None, Some(url)) => Some((Api::Tempo, url)),
            (None, None) => None,
        };
        let source = match api {
            Some((api, url)) => {
                bar.set_message(format!("asking {url}"));
                let query = Query { api, url: url.clone(), service: self.api.service.clone(), limit: self.api.limit };
                Source::api(&query, &|bytes| bar.set_message(format!("{} kB from {url}", bytes / 1000)))?
            }
            None => Source::files(&self.files, again)?,
        };
        Ok(Input { source, bar })
    }
}

impl Input {
    /// Of one file or folder.
    pub(super) fn file(path: &Path) -> anyhow::Result<Self> {
        Ok(Self { source: Source::files(&[path.to_owned()], false)?, bar: progress_bar() })
    }

    /// Calls `f` with what is to be told of progress, while the bar shows it.
    pub(super) fn with_bar<T>(&self, what: &str, f: impl FnOnce(&Source, &dyn Fn(u64)) -> T) -> T {
        self.bar.set_length(self.source.bytes().max(1));
        self.bar.set_message(what.to_owned());
        let done = f(&self.source, &|bytes| self.bar.set_position(bytes));
        self.bar.finish_and_clear();
        done
    }

    /// Reads every span.
    pub(super) fn read(
        &self,
        sink: &mut dyn FnMut(&Span<'_>) -> trace_analysis::Result<()>,
        notes: &mut dyn Write,
    ) -> anyhow::Result<ReadReport> {
        let report = self.with_bar("reading", |source, progress| source.read(progress, sink))?;
        tell_report(&report, notes);
        Ok(report)
    }

    /// Holds every span, with clocks set right unless that is not wanted.
    pub(super) fn store(&self, hold: &HoldArgs, attributes: &[&str], notes: &mut dyn Write) -> anyhow::Result<TraceStore> {
        let attributes = Attributes::These(attributes.iter().map(|key| (*key).to_owned()).collect());
        let mut store = TraceStore::new(StoreConfig { bytes_max: hold.memory_mib << 20, attributes, share: hold.sample });
        self.read(&mut |span| store.push(span), notes)?;
        store.finish();
        skew::survey(&mut store);
        tell_damage(&store, notes);
        let shifts = skew::correct(&mut store, !hold.no_skew_correction);
        tell_shifts(&shifts, hold.no_skew_correction, notes);
        if store.records().is_empty() {
            anyhow::bail!("there are no spans in the input: trace something first, as with `walstorm run --sampling 1`");
        }
        Ok(store)
    }
}

/// Says what is wrong with what was read.
pub(super) fn tell_report(report: &ReadReport, notes: &mut dyn Write) {
    report.notes.iter().for_each(|text| note(notes, text));
    if report.more_notes > 0 {
        note(notes, format!("and {} more of these", count(report.more_notes)));
    }
    if report.without_id > 0 {
        note(notes, format!("{} without a valid id of trace and span: left out", spans(report.without_id)));
    }
}

/// Says what is wrong with spans as such.
fn tell_damage(store: &TraceStore, notes: &mut dyn Write) {
    let damage = store.damage;
    let remarks = [
        (damage.duplicates, "came more than once: the version that ends last counts"),
        (damage.backwards, "ended before they began: taken as ending there"),
        (damage.orphans, "have a parent that is not in the input: taken as roots"),
        (damage.cycles, "were their own ancestors: cut loose"),
    ];
    for (n, what) in remarks.iter().filter(|(n, _)| *n > 0) {
        note(notes, format!("{} {what}", spans(*n)));
    }
    if damage.unresolved_links > 0 {
        note(notes, format!("{} links lead to spans that are not in the input", count(damage.unresolved_links)));
    }
}

/// A number of spans.
fn spans(n: u64) -> String {
    if n == 1 { "1 span".to_owned() } else { format!("{} spans", count(n)) }
}

/// Says which clocks go apart.
pub(super) fn tell_shifts(shifts: &[Shift], unwanted: bool, notes: &mut dyn Write) {
    for Shift { before, after, pairs, shift_ns, corrected } in shifts {
        let done = match (corrected, unwanted) {
            (true, _) => "set forward by that (--no-skew-correction leaves it)",
            (false, true) => "left as it is",
            (false, false) => "left as it is: other spans say the opposite",
        };
        let (by, pairs) = (nanos(*shift_ns), count(*pairs));
        note(
            notes,
            format!("the clock of {after} is {by} behind that of {before} at least, by {pairs} pairs of spans: {done}"),
        );
    }
}

/// Names of services as they are shown: without what all of ours begin with.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShortNames {
    /// What is left out.
    prefix: &'static str,
}

impl ShortNames {
    /// For the services of a store.
    pub(super) fn of(store: &TraceStore) -> Self {
        const OURS: &str = "walstorm-";
        let all = store.services().iter().all(|service| service.starts_with(OURS));
        Self { prefix: if all { OURS } else { "" } }
    }

    /// A text with its services shortened.
    pub(super) fn short(self, text: &str) -> String {
        if self.prefix.is_empty() { text.to_owned() } else { text.replace(self.prefix, "") }
    }
}
