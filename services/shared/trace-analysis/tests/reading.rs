//! Every form of input gives the same spans, and every way in which it can be broken an answer.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod support;

use std::io::Write;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;
use support::{json_line, source, transaction};
use trace_analysis::{ReadReport, Source, Span};

/// What is read of a source: each span in words, sorted, and the report.
fn read(source: &Source) -> Result<(Vec<String>, ReadReport), String> {
    let mut spans = Vec::new();
    let mut sink = |span: &Span<'_>| {
        spans.push(format!("{span:?}"));
        Ok(())
    };
    let report = source.read(&|_| (), &mut sink).map_err(|error| error.to_string())?;
    Ok((spans, report))
}

/// The same of bytes.
fn read_bytes(bytes: &[u8]) -> Result<(Vec<String>, ReadReport), String> {
    read(&source(bytes).1)
}

/// Two lines of three transactions.
fn lines() -> (String, String) {
    (json_line(&transaction(1)), json_line(&[transaction(2), transaction(3)].concat()))
}

/// A line as the request that it is.
fn request(line: &str) -> ExportTraceServiceRequest {
    serde_json::from_str(line).unwrap()
}

#[test]
fn all_forms_give_the_same_spans() {
    let (one, two) = lines();
    let text = format!("{one}{two}");
    let (expected, report) = read_bytes(text.as_bytes()).unwrap();
    assert_eq!((expected.len(), report), (12, ReadReport { spans: 12, ..ReadReport::default() }));

    let pretty = [&one, &two]
        .map(|line| serde_json::to_string_pretty(&serde_json::from_str::<serde_json::Value>(line).unwrap()).unwrap());
    let mut whole = request(&one);
    whole.resource_spans.extend(request(&two).resource_spans);
    let frames = [&one, &two].map(|line| request(line).encode_to_vec());
    let framed = |frame: &Vec<u8>| [&(frame.len() as u32).to_be_bytes()[..], frame].concat();
    let packed = |frame: &Vec<u8>| framed(&zstd::encode_all(frame.as_slice(), 1).unwrap());
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(text.as_bytes()).unwrap();
    let forms: [(&str, Vec<u8>); 9] = [
        ("with a byte order mark", [b"\xEF\xBB\xBF", text.as_bytes()].concat()),
        ("with empty lines", format!("\n\n{one}\n{two}").into_bytes()),
        ("documents over lines", pretty.concat().into_bytes()),
        ("one request", whole.encode_to_vec()),
        ("frames", frames.each_ref().map(framed).concat()),
        ("frames, each packed", frames.each_ref().map(packed).concat()),
        ("frames of text", [one.clone().into_bytes(), two.clone().into_bytes()].each_ref().map(framed).concat()),
        ("zstd", zstd::encode_all(text.as_bytes(), 1).unwrap()),
        ("gzip", gz.finish().unwrap()),
    ];
    for (form, bytes) in forms {
        let (spans, report) = read_bytes(&bytes).unwrap_or_else(|error| panic!("{form}: {error}"));
        assert_eq!(spans.len(), expected.len(), "{form}: {report:?}");
        assert!(spans == expected, "{form}");
        assert!(report.notes.is_empty(), "{form}: {report:?}");
    }
}

#[test]
fn ids_of_tempo_and_a_resource_that_comes_last_are_understood() {
    let text = r#"{"batches":[{"scopeSpans":[{"spans":[{"traceId":"HN6cR7anh0oagO2azFg6hg==","spanId":"/2dtTDOaWyM=",
        "name":"x","startTimeUnixNano":5,"endTimeUnixNano":"7","status":{"code":"STATUS_CODE_ERROR","message":"no"},
        "attributes":[{"key":"a","value":{"doubleValue":1.5}},{"key":"b","value":{"arrayValue":{"values":[]}}}]}]}],
        "resource":{"attributes":[{"key":"service.name","value":{"stringValue":"s"}}]}}]}"#;
    let (spans, _) = read_bytes(text.replace('\n', " ").as_bytes()).unwrap();
    let [span] = spans.as_slice() else { panic!("{spans:?}") };
    for part in [r#"service: "s""#, "Float(1.5)", "Other", r#"error: Some("no")"#, "start: 5, end: 7"] {
        assert!(span.contains(part), "{part}: {span}");
    }
    assert!(span.contains(&format!("high: {}", 0x1cde_9c47_b6a7_874a_u64)), "{span}");
}

#[test]
fn an_answer_of_jaeger_has_parents_and_links() {
    let text = r#"{"data":[{"traceID":"0a","spans":[{"traceID":"0a","spanID":"02","operationName":"op","startTime":10,"duration":3,
        "references":[{"refType":"FOLLOWS_FROM","traceID":"0b","spanID":"07"},{"refType":"CHILD_OF","traceID":"0a","spanID":"01"}],
        "tags":[{"key":"walstorm.xid","type":"int64","value":7},{"key":"error","type":"bool","value":true}],"processID":"p1"}],
        "processes":{"p1":{"serviceName":"decoder","tags":[]}}}],"total":0,"errors":null}"#;
    let (spans, _) = read_bytes(text.as_bytes()).unwrap();
    let [span] = spans.as_slice() else { panic!("{spans:?}") };
    for part in
        [r#"service: "decoder""#, "parent: SpanId(1)", "span: SpanId(7)", "start: 10000, end: 13000", "Int(7)", "error: Some"]
    {
        assert!(span.contains(part), "{part}: {span}");
    }
}

#[test]
fn nulls_of_a_store_are_lists_without_elements() {
    let text = r#"{"data":[{"traceID":"0a","spans":[
        {"traceID":"0a","spanID":"02","operationName":"op","startTime":10,"duration":3,"references":null,"warnings":null,"tags":null,"processID":"p1"},
        {"traceID":"0a","spanID":"03","operationName":"op","startTime":10,"duration":3,"references":[],"tags":[{"key":"a","value":null}],"processID":"p1"}],
        "processes":{"p1":{"serviceName":"decoder","tags":[]}}}],"total":0}"#;
    let (spans, report) = read_bytes(text.replace('\n', " ").as_bytes()).unwrap();
    assert!(spans.len() == 2 && report.notes.is_empty(), "{spans:?} {report:?}");
}

#[test]
fn a_file_that_is_cut_anywhere_is_read_up_to_there() {
    let (one, two) = lines();
    let text = format!("{one}{two}");
    let (whole, _) = read_bytes(text.as_bytes()).unwrap();
    for cut in (1..text.len() - 2).step_by(7) {
        let read = read_bytes(&text.as_bytes()[..cut]);
        let (spans, report) = read.unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        assert!(whole.starts_with(&spans), "cut at {cut}");
        let line = if cut < one.len() { ":1:" } else { ":2:" };
        let at_end_of_line = cut == one.len() || cut == one.len() - 1;
        let told = report.notes.first().is_some_and(|note| note.contains(line) && note.contains("cut off"));
        assert!(told != at_end_of_line, "cut at {cut}: {report:?}");
    }
    let frame = request(&two).encode_to_vec();
    let good = request(&one).encode_to_vec();
    let framed = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat();
    for (form, bytes) in [("frames", [framed(&good), framed(&frame)].concat()), ("one", [good.clone(), frame.clone()].concat())]
    {
        for cut in good.len() + 5..bytes.len() - 1 {
            let (spans, report) = read_bytes(&bytes[..cut]).unwrap();
            assert!(spans.len() >= 4 && whole.starts_with(&spans), "{form} cut at {cut}");
            assert!(report.notes.len() <= 1, "{form} cut at {cut}: {report:?}");
            let at = format!("behind byte {}", good.len() + 4);
            assert!(form != "frames" || report.notes[0].contains(&at), "{form} cut at {cut}: {report:?}");
        }
    }
    let packed = zstd::encode_all(text.as_bytes(), 1).unwrap();
    for cut in 5..packed.len() {
        // Whatever comes of it, it ends.
        let _ = read_bytes(&packed[..cut]);
    }
}

#[test]
fn what_is_no_trace_is_refused_with_a_remedy() {
    let cases: [(&str, &[u8], &str); 7] = [
        ("an image", b"\x89PNG\r\n\x1a\n0000000000", "begins with bytes 89 50 4e 47"),
        ("text", b"hello world\n", "begins with bytes 68 65"),
        ("a web page", b"<!DOCTYPE html><html></html>", "no traces"),
        ("other JSON", b"{\"kind\":\"report\",\"rows\":[1,2,3]}\n", "neither resourceSpans nor data"),
        ("a list", b"[1,2,3]", "expected an object with resourceSpans"),
        ("frames of nothing", b"\x00\x00\x00\x03abcdefgh", "key"),
        ("zeroes in a request", b"\x0a\x05\x00\x00\x00\x00\x00\x00\x00", "give OTLP"),
    ];
    for (what, bytes, expected) in cases {
        let error = read_bytes(bytes).expect_err(what);
        assert!(error.contains(expected) && error.contains("give OTLP"), "{what}: {error}");
    }
    let (spans, report) = read_bytes(b"").unwrap();
    assert!(spans.is_empty() && report.notes[0].contains("is empty"), "{report:?}");
    let error = read_bytes(&[&[9u8][..], &[0xFF; 64]].concat()).unwrap_err();
    assert!(error.contains("cut") || error.contains("MiB") || error.contains("ends in the middle"), "{error}");
}

#[test]
fn a_broken_line_costs_itself_only() {
    let (one, two) = lines();
    let deep = format!("{{\"resourceSpans\":{}", "[".repeat(100_000));
    for broken in ["{\"resourceSpans\":[{]}", "no json at all", deep.as_str()] {
        let (spans, report) = read_bytes(format!("{one}{broken}\n{two}").as_bytes()).unwrap();
        assert_eq!(spans.len(), 12, "{broken:.40}: {report:?}");
        assert!(report.notes[0].contains(":2:"), "{report:?}");
    }
}

#[test]
fn spans_without_ids_are_counted_and_left_out() {
    let mut spans = transaction(1);
    spans[0].trace = trace_analysis::TraceId::ZERO;
    spans[3].id = trace_analysis::SpanId(0);
    let (read, report) = read_bytes(json_line(&spans).as_bytes()).unwrap();
    assert_eq!((read.len(), report.spans, report.without_id), (2, 4, 2));
}

#[test]
fn of_a_folder_files_of_traces_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let error = Source::files(&[dir.path().to_owned()], false).unwrap_err().to_string();
    assert!(error.contains("no file of traces"), "{error}");
    let (one, two) = lines();
    std::fs::write(dir.path().join("a.jsonl"), one).unwrap();
    std::fs::write(dir.path().join("trace-b.json"), two).unwrap();
    std::fs::write(dir.path().join("report.json"), "{\"rows\":1}").unwrap();
    let (spans, report) = read(&Source::files(&[dir.path().to_owned()], false).unwrap()).unwrap();
    assert_eq!((spans.len(), report.notes.len()), (12, 0));
    assert!(Source::files(&[dir.path().join("nowhere")], false).unwrap_err().to_string().contains("nowhere"));
}

proptest::proptest! {
    /// Bytes of any sort end in an answer, never in a panic.
    #[test]
    fn garbage_never_panics(head in 0usize..6, bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
        let heads: [&[u8]; 6] = [b"", b"{", b"\x0a", b"\x00\x00\x00\x20", b"\x28\xB5\x2F\xFD", b"\x1F\x8B"];
        let _ = read_bytes(&[heads[head], &bytes].concat());
    }
}
