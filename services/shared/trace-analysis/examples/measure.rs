//! How long critical paths of many transactions take, and how much memory: writes traces as walstorm's nodes make them to a file of JSON
//! lines, and reads them back as `walstorm trace critical-path` does.
//!
//!     cargo run --release -p trace-analysis --example measure -- 2500000 /tmp/traces.jsonl
//!
//! A transaction has four spans: two of its own, two of the batch that carries it. The file is left there for other commands.

use std::error::Error;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::Instant;

use trace_analysis::stages::{PathOptions, Stages};
use trace_analysis::{Source, StoreConfig, TraceStore, skew};

/// Transactions of one line.
const PER_LINE: u64 = 128;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let transactions: u64 = arguments.next().ok_or("give a number of transactions and a file")?.parse()?;
    let path = PathBuf::from(arguments.next().ok_or("give a file to write")?);
    let begun = Instant::now();
    write(transactions, &mut BufWriter::new(File::create(&path)?))?;
    let bytes = std::fs::metadata(&path)?.len();
    println!("wrote {} MB in {:.1?}", bytes / 1_000_000, begun.elapsed());

    let begun = Instant::now();
    let source = Source::files(&[path], false)?;
    let mut store = TraceStore::new(StoreConfig::default());
    let report = source.read(&|_| (), &mut |span| store.push(span))?;
    println!("read {} spans in {:.1?}", report.spans, begun.elapsed());
    let begun = Instant::now();
    store.finish();
    skew::survey(&mut store);
    skew::correct(&mut store, true);
    println!("sorted, checked and corrected in {:.1?}; {} MiB held", begun.elapsed(), store.bytes() >> 20);
    let begun = Instant::now();
    let stages = Stages::of(&store, &PathOptions::default(), &mut |_, _| ());
    println!("walked {} paths in {:.1?}", stages.counts.transactions, begun.elapsed());
    let status = std::fs::read_to_string("/proc/self/status")?;
    println!("peak: {}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("not told by this system"));
    Ok(())
}

/// Writes the traces of so many transactions.
fn write(transactions: u64, file: &mut impl Write) -> std::io::Result<()> {
    for first in (0..transactions).step_by(PER_LINE as usize) {
        let (mut primary, mut decoder) = (Vec::new(), Vec::new());
        for n in first..transactions.min(first + PER_LINE) {
            // Ids without an order, as real ones are.
            let own = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let batch = own.rotate_left(17);
            let at = |us: u64| 1_700_000_000_000_000_000 + n * 50_000 + us * 1000;
            let link = format!(r#"[{{"traceId":"{:032x}","spanId":"{:016x}","attributes":[]}}]"#, u128::from(own), 1);
            let xid = format!(r#"[{{"key":"walstorm.xid","value":{{"intValue":"{n}"}}}}]"#);
            let wait = r#"[{"key":"walstorm.credit_wait_ns","value":{"intValue":"2000"}}]"#;
            primary.push(span(own, 1, 0, "transaction", at(0), at(0), &xid, "[]"));
            primary.push(span(batch, 1, 0, "send wal", at(10), at(12), wait, &link));
            decoder.push(span(batch, 2, 1, "process wal", at(15 + n % 7), at(35), "[]", &link));
            decoder.push(span(own, 2, 1, "decode transaction", at(23), at(25 + n % 5), &xid, "[]"));
        }
        for (service, spans) in [("walstorm-primary", primary), ("walstorm-decoder", decoder)] {
            writeln!(
                file,
                r#"{{"resourceSpans":[{{"resource":{{"attributes":[{{"key":"service.name","value":{{"stringValue":"{service}"}}}}]}},"scopeSpans":[{{"spans":[{}]}}]}}]}}"#,
                spans.join(",")
            )?;
        }
    }
    file.flush()
}

/// A span as JSON.
#[allow(clippy::too_many_arguments, reason = "they are the fields of a span")]
fn span(trace: u64, id: u64, parent: u64, name: &str, start: u64, end: u64, attributes: &str, links: &str) -> String {
    let mut text = String::with_capacity(600);
    let parent = if parent == 0 { String::new() } else { format!("{parent:016x}") };
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        r#"{{"traceId":"{:032x}","spanId":"{id:016x}","traceState":"","parentSpanId":"{parent}","flags":769,"name":"{name}","kind":1,"startTimeUnixNano":"{start}","endTimeUnixNano":"{end}","attributes":{attributes},"droppedAttributesCount":0,"events":[],"droppedEventsCount":0,"links":{links},"droppedLinksCount":0,"status":{{"message":"","code":0}}}}"#,
        u128::from(trace),
    );
    text
}
