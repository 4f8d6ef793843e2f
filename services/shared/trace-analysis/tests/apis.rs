//! Jaeger's and Tempo's APIs, and everything else that may answer at their addresses.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use support::{json_line, transaction};
use trace_analysis::Source;
use trace_analysis::read::api::{Api, Query};

/// A server that answers each request by its path; gives its URL. It ends with the test's process.
fn serve(answer: impl Fn(&str) -> (u16, Vec<u8>) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let request = lines.next().and_then(Result::ok).unwrap_or_default();
            while lines.next().and_then(Result::ok).is_some_and(|line| !line.is_empty()) {}
            let (status, body) = answer(request.split(' ').nth(1).unwrap_or_default());
            let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        }
    });
    url
}

/// The spans that an API gives, sorted, or its error.
fn ask(api: Api, url: &str) -> Result<Vec<String>, String> {
    let query = Query { api, url: url.to_owned(), service: None, limit: 20 };
    let source = Source::api(&query, &|_| ()).map_err(|error| error.to_string())?;
    let mut spans = Vec::new();
    let mut sink = |span: &trace_analysis::Span<'_>| {
        spans.push(format!("{} {} {}", span.trace, span.service, span.name));
        Ok(())
    };
    source.read(&|_| (), &mut sink).map_err(|error| error.to_string())?;
    spans.sort();
    Ok(spans)
}

#[test]
fn jaeger_is_asked_for_each_service() {
    let url = serve(|path| match path {
        "/base/api/services" => (200, br#"{"data":["decoder","a b&c"],"errors":null}"#.to_vec()),
        "/base/api/traces?service=decoder&limit=20" | "/base/api/traces?service=a%20b%26c&limit=20" => {
            let trace = r#"{"data":[{"traceID":"0a","spans":[
                {"traceID":"0a","spanID":"02","operationName":"op","startTime":10,"duration":3,"processID":"p"}],
                "processes":{"p":{"serviceName":"decoder"}}}]}"#;
            (200, trace.as_bytes().to_vec())
        }
        _ => (404, b"404 page not found".to_vec()),
    });
    let spans = ask(Api::Jaeger, &format!("{url}/base/")).unwrap();
    assert_eq!(spans, vec![format!("{:032x} decoder op", 10); 2]);
    let error = ask(Api::Jaeger, &url).unwrap_err();
    assert!(error.contains("404") && error.contains("page not found") && error.contains("16686"), "{error}");
}

#[test]
fn tempo_is_searched_and_asked_for_each_trace() {
    let url = serve(|path| match path {
        "/api/search?limit=20" => (200, br#"{"traces":[{"traceID":"1"},{"traceID":"2"}],"metrics":{}}"#.to_vec()),
        "/api/traces/1" => (200, json_line(&transaction(1)).replace("resourceSpans", "batches").into_bytes()),
        "/api/traces/2" => (200, format!("{{\n\"trace\":{}}}", json_line(&transaction(2))).into_bytes()),
        _ => (500, Vec::new()),
    });
    assert_eq!(ask(Api::Tempo, &url).unwrap().len(), 8);
}

#[test]
fn whatever_else_answers_is_told_with_a_remedy() {
    let page = b"<!DOCTYPE html><html><title>Grafana</title></html>".to_vec();
    let cases: [(u16, Vec<u8>, &str); 5] = [
        (200, page, "answers no JSON, but '<!DOCTYPE html>"),
        (404, b"not here".to_vec(), "answers 404"),
        (503, Vec::new(), "nothing"),
        (200, b"{\"data\":42}".to_vec(), "something else than"),
        (200, b"\x00\x01\x02".to_vec(), "answers no JSON"),
    ];
    for (status, body, expected) in cases {
        let url = serve(move |_| (status, body.clone()));
        for api in [Api::Jaeger, Api::Tempo] {
            let error = ask(api, &url).unwrap_err();
            assert!(error.contains(expected) && error.contains("give "), "{api:?}, {expected}: {error}");
        }
    }
    // Nobody listens on a port that was just given back.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = ask(Api::Jaeger, &url).unwrap_err();
    assert!(error.contains("no answer") && error.contains("is it running"), "{error}");
    assert!(ask(Api::Tempo, "localhost:3200").unwrap_err().contains("is no URL"));
}

#[test]
fn an_answer_that_breaks_off_or_never_ends_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"data\":");
        }
    });
    let error = ask(Api::Jaeger, &url).unwrap_err();
    assert!(error.contains("broke off") || error.contains("no answer"), "{error}");
}
