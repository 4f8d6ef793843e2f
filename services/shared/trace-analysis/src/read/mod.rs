//! Reading spans from files, folders, standard input and the APIs of Jaeger and Tempo, one span at a time.
//!
//! ```text
//!  file, folder ──┐                      ┌─ json: OTLP lines, one document, Jaeger's or Tempo's answer
//!  stdin ─────────┼─► .zst, .gz undone ──┤
//!  Jaeger, Tempo ─┘   (api: spooled)     └─ protobuf: one request, or the collector's length-delimited form
//! ```
//!
//! Nothing is held but one line, one frame or one group of spans of a resource, each of at most [`PART_BYTES_MAX`]. What is cut off is
//! read up to the cut, and a note says where that is.

pub mod api;
mod jaeger;
mod json;
mod protobuf;
mod raw;

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::error::{Result, TraceError};
use crate::span::Span;

/// The most bytes of a line, a frame or a group of spans of one resource.
pub const PART_BYTES_MAX: usize = 256 << 20;
/// Notes of one kind that are kept; more are counted only.
const NOTES_MAX: usize = 3;
/// How often progress is told, in bytes.
const PROGRESS_BYTES: u64 = 1 << 20;

/// What was read, and what was not as it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadReport {
    /// Spans.
    pub spans: u64,
    /// Spans with an all-zero or malformed id: left out.
    pub without_id: u64,
    /// Remarks, each with its place.
    pub notes: Vec<String>,
    /// Remarks that are not in `notes`.
    pub more_notes: u64,
}

impl ReadReport {
    /// Adds a remark.
    fn note(&mut self, text: String) {
        if self.notes.len() < NOTES_MAX { self.notes.push(text) } else { self.more_notes += 1 }
    }
}

/// Hands spans on and remembers why it stopped: parsers have errors of their own.
struct Emitter<'f> {
    /// Who takes them.
    sink: &'f mut dyn FnMut(&Span<'_>) -> Result<()>,
    /// Spans that were handed on already, when a part is parsed anew.
    skip: u64,
    /// What the taker complained about.
    failed: Option<TraceError>,
    /// What was read.
    report: ReadReport,
    /// Bytes of a document since its last span: what its parser may hold.
    unspent: Rc<Cell<u64>>,
}

impl Emitter<'_> {
    /// Hands on a span; false if no more are wanted.
    fn emit(&mut self, span: &Span<'_>) -> bool {
        self.unspent.set(0);
        if self.skip > 0 {
            self.skip -= 1;
            return true;
        }
        self.report.spans += 1;
        if span.trace == crate::TraceId::ZERO || span.id.is_zero() {
            self.report.without_id += 1;
            return true;
        }
        self.failed = (self.sink)(span).err();
        self.failed.is_none()
    }
}

/// Where spans come from.
#[derive(Debug)]
enum Input {
    /// A file.
    File(PathBuf),
    /// Standard input, which can be read once.
    Stdin,
    /// What was received, kept in a file without a name.
    Spooled {
        /// Where it came from.
        place: String,
        /// The file.
        file: File,
    },
}

/// Everything that one command reads.
#[derive(Debug)]
pub struct Source {
    /// The inputs, in the order in which they were named.
    inputs: Vec<Input>,
}

impl Source {
    /// Files, folders, and `-` for standard input. `again`: it is read more than once, so standard input goes through a temporary file.
    ///
    /// # Errors
    /// Something is not there, or a folder has no file of traces.
    pub fn files(paths: &[PathBuf], again: bool) -> Result<Self> {
        let mut inputs = Vec::new();
        for path in paths {
            if path.as_os_str() == "-" {
                inputs.push(if again { spool_stdin()? } else { Input::Stdin });
                continue;
            }
            let found = std::fs::metadata(path).map_err(|source| read_error(&path.display().to_string(), source))?;
            if found.is_dir() { inputs.extend(folder(path)?) } else { inputs.push(Input::File(path.clone())) }
        }
        Ok(Self { inputs })
    }

    /// What an API answered.
    pub(crate) fn spooled(place: String, file: File) -> Self {
        Self { inputs: vec![Input::Spooled { place, file }] }
    }

    /// Bytes of all files together, as they lie there.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let of = |input: &Input| match input {
            Input::File(path) => std::fs::metadata(path).map_or(0, |found| found.len()),
            Input::Spooled { file, .. } => file.metadata().map_or(0, |found| found.len()),
            Input::Stdin => 0,
        };
        self.inputs.iter().map(of).sum()
    }

    /// Hands every span to `sink`; `progress` is told how many bytes were read, now and then.
    ///
    /// # Errors
    /// An input cannot be read or holds no traces at all, or `sink` fails.
    pub fn read(&self, progress: &dyn Fn(u64), sink: &mut dyn FnMut(&Span<'_>) -> Result<()>) -> Result<ReadReport> {
        let mut emitter = Emitter { sink, skip: 0, failed: None, report: ReadReport::default(), unspent: Rc::default() };
        let mut before = 0;
        for input in &self.inputs {
            let (place, reader): (String, Box<dyn Read + '_>) = match input {
                Input::File(path) => {
                    let place = path.display().to_string();
                    let file = File::open(path).map_err(|source| read_error(&place, source))?;
                    (place, Box::new(file))
                }
                Input::Stdin => ("standard input".to_owned(), Box::new(io::stdin().lock())),
                Input::Spooled { place, file } => {
                    let mut file = file;
                    file.seek(SeekFrom::Start(0)).map_err(|source| read_error(place, source))?;
                    (place.clone(), Box::new(file))
                }
            };
            let mut counted = Counted { reader, bytes: before, told: before, progress };
            read_any(&mut counted, &place, &mut emitter)?;
            before = counted.bytes;
        }
        Ok(emitter.report)
    }
}

/// Copies standard input to a file that can be read again.
fn spool_stdin() -> Result<Input> {
    let place = "standard input".to_owned();
    let spooled = tempfile::tempfile().and_then(|mut file| {
        io::copy(&mut io::stdin().lock(), &mut file)?;
        Ok(file)
    });
    match spooled {
        Ok(file) => Ok(Input::Spooled { place, file }),
        Err(source) => Err(read_error(&place, source)),
    }
}

/// The files of traces in a folder, by name.
fn folder(path: &Path) -> Result<Vec<Input>> {
    let place = path.display().to_string();
    let entries = std::fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let mut files: Vec<PathBuf> =
        entries.map_err(|source| read_error(&place, source))?.into_iter().map(|entry| entry.path()).collect();
    files.retain(|file| file.is_file() && file.file_name().and_then(|name| name.to_str()).is_some_and(is_trace_file));
    files.sort();
    if files.is_empty() {
        return Err(TraceError::EmptyFolder(place));
    }
    Ok(files.into_iter().map(Input::File).collect())
}

/// Whether a file in a folder is taken by its name: a report folder has other JSON beside its traces.
fn is_trace_file(name: &str) -> bool {
    let name = name.strip_suffix(".zst").or_else(|| name.strip_suffix(".gz")).unwrap_or(name);
    let ends = |ending: &str| name.ends_with(ending);
    ends(".jsonl") || ends(".pb") || ends(".binpb") || (ends(".json") && (name.contains("trace") || name.contains("span")))
}

/// A reader that tells how far it is.
struct Counted<'p> {
    /// What is read.
    reader: Box<dyn Read + 'p>,
    /// Bytes so far.
    bytes: u64,
    /// Bytes when it was told last.
    told: u64,
    /// Who is told.
    progress: &'p dyn Fn(u64),
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.reader.read(buffer)?;
        self.bytes += n as u64;
        if self.bytes - self.told >= PROGRESS_BYTES || n == 0 {
            self.told = self.bytes;
            (self.progress)(self.bytes);
        }
        Ok(n)
    }
}

/// Reads one input, whatever form it has.
fn read_any(reader: &mut dyn Read, place: &str, out: &mut Emitter<'_>) -> Result<()> {
    let mut reader = BufReader::with_capacity(1 << 18, reader);
    let head = reader.fill_buf().map_err(|source| read_error(place, source))?;
    if head.starts_with(&[0x28, 0xB5, 0x2F, 0xFD]) {
        let decoder = zstd::Decoder::with_buffer(&mut reader).map_err(|source| read_error(place, source))?;
        return read_plain(&mut BufReader::with_capacity(1 << 18, decoder), place, out);
    }
    if head.starts_with(&[0x1F, 0x8B]) {
        let decoder = flate2::bufread::MultiGzDecoder::new(&mut reader);
        return read_plain(&mut BufReader::with_capacity(1 << 18, decoder), place, out);
    }
    read_plain(&mut reader, place, out)
}

/// Reads one input that is not compressed.
fn read_plain(reader: &mut dyn BufRead, place: &str, out: &mut Emitter<'_>) -> Result<()> {
    let head = match reader.fill_buf() {
        Ok(head) => head,
        Err(source) => return Err(read_error(place, source)),
    };
    match form(head) {
        Form::Empty => {
            out.report.note(format!("{place} is empty"));
            Ok(())
        }
        Form::Json => json::read(reader, place, out),
        Form::Protobuf => protobuf::read_request(reader, place, out),
        Form::Frames => protobuf::read_frames(reader, place, out),
        Form::Unknown => {
            let shown: Vec<String> = head.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            Err(TraceError::NoTraces {
                place: place.to_owned(),
                what: format!("no traces: it begins with bytes {}", shown.join(" ")),
            })
        }
    }
}

/// The forms of an input.
enum Form {
    /// Nothing.
    Empty,
    /// Text.
    Json,
    /// One request.
    Protobuf,
    /// Frames of four bytes of length and a request.
    Frames,
    /// Anything else.
    Unknown,
}

/// Tells the form by the first bytes. A request begins with the tag of `resource_spans`, which is a line feed; text may begin with one too.
fn form(head: &[u8]) -> Form {
    let text = head.strip_prefix(&[0xEF, 0xBB, 0xBF]).unwrap_or(head).trim_ascii_start();
    let opens = matches!(text.first(), Some(b'{' | b'['));
    match head.first() {
        None => Form::Empty,
        Some(0x0A) if !(opens && valid_text(text)) => Form::Protobuf,
        Some(_) if opens => Form::Json,
        Some(0..=9) => Form::Frames,
        Some(_) => Form::Unknown,
    }
}

/// Whether bytes are text without control characters other than those between words; a character may be cut off at the end.
fn valid_text(bytes: &[u8]) -> bool {
    let whole = match std::str::from_utf8(bytes) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    };
    whole && !bytes.iter().any(|byte| byte.is_ascii_control() && !byte.is_ascii_whitespace())
}

/// An error of the operating system, or of a decompressor.
fn read_error(place: &str, source: io::Error) -> TraceError {
    TraceError::Read { place: place.to_owned(), source }
}
