//! A small S3 server: enough of ListObjectsV2, GET with ranges and HEAD that a real client can be tested, and faults on demand.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Frame, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, LAST_MODIFIED, RANGE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// Keys of a page of a listing: few, so that clients have to ask for the next one.
const PAGE_KEYS: usize = 2;
/// Who may read.
pub(crate) const ACCESS_KEY_ID: &str = "AKIDOFTHETEST";
/// The bucket.
pub(crate) const BUCKET: &str = "wal-archive";

/// What a response carries.
type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// Objects, and what is to go wrong.
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    /// The objects by key.
    pub(crate) objects: BTreeMap<String, Bytes>,
    /// So many of the next requests are answered with 503.
    pub(crate) busy: usize,
    /// So many of the next objects are cut after half of their bytes.
    pub(crate) cut: usize,
    /// Every request is refused with 403.
    pub(crate) refuse: bool,
    /// Objects that were asked for, in order.
    pub(crate) got: Vec<String>,
    /// Pages of listings that were asked for.
    pub(crate) pages: usize,
}

/// A running server; it ends with the test's runtime.
#[derive(Debug)]
pub(crate) struct S3 {
    /// Where it listens.
    pub(crate) endpoint: String,
    /// What it has.
    bucket: Arc<Mutex<Bucket>>,
}

impl S3 {
    /// Starts one on a free port.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let bucket = Arc::new(Mutex::new(Bucket::default()));
        let shared = Arc::clone(&bucket);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let bucket = Arc::clone(&shared);
                let service = service_fn(move |request| {
                    let response = answer(&mut bucket.lock().unwrap(), &request);
                    std::future::ready(Ok::<_, Infallible>(response))
                });
                let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(async move {
                    // A body that is cut ends its connection with an error.
                    let _ = connection.await;
                });
            }
        });
        Self { endpoint, bucket }
    }

    /// Looks at the bucket or changes it.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Bucket) -> T) -> T {
        change(&mut self.bucket.lock().unwrap())
    }
}

/// A response without a body worth mentioning.
fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let bytes = Bytes::copy_from_slice(text.as_bytes());
    Response::builder().status(status).header(CONTENT_LENGTH, bytes.len()).body(frames(vec![Ok(bytes)])).unwrap()
}

/// A body of these pieces.
fn frames(pieces: Vec<std::io::Result<Bytes>>) -> Body {
    let frames = pieces.into_iter().map(|piece| piece.map(Frame::data));
    UnsyncBoxBody::new(StreamBody::new(tokio_stream::iter(frames)))
}

/// Answers one request.
fn answer(bucket: &mut Bucket, request: &Request<Incoming>) -> Response<Body> {
    let signed = request.headers().get(AUTHORIZATION).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if bucket.refuse || !signed.starts_with(&format!("AWS4-HMAC-SHA256 Credential={ACCESS_KEY_ID}/")) {
        return plain(StatusCode::FORBIDDEN, "<Error><Code>AccessDenied</Code></Error>");
    }
    if bucket.busy > 0 {
        bucket.busy -= 1;
        return plain(StatusCode::SERVICE_UNAVAILABLE, "<Error><Code>SlowDown</Code></Error>");
    }
    let path = request.uri().path().strip_prefix('/').unwrap_or_default();
    match path.split_once('/') {
        None if path == BUCKET => list(bucket, request.uri().query().unwrap_or_default()),
        Some((BUCKET, "")) => list(bucket, request.uri().query().unwrap_or_default()),
        Some((BUCKET, key)) => object(bucket, key, request),
        _ => plain(StatusCode::NOT_FOUND, "<Error><Code>NoSuchBucket</Code></Error>"),
    }
}

/// ListObjectsV2.
fn list(bucket: &mut Bucket, query: &str) -> Response<Body> {
    bucket.pages += 1;
    let query: BTreeMap<_, _> = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    assert_eq!(query.get("list-type").map(String::as_str), Some("2"));
    let value = |name: &str| query.get(name).map_or("", String::as_str);
    let after = value("start-after").max(value("continuation-token"));
    let found = bucket.objects.iter().filter(|(key, _)| key.starts_with(value("prefix")) && key.as_str() > after);
    let mut keys: Vec<_> = found.take(PAGE_KEYS + 1).collect();
    let truncated = keys.len() > PAGE_KEYS;
    keys.truncate(PAGE_KEYS);
    let mut xml = format!("<ListBucketResult><IsTruncated>{truncated}</IsTruncated>");
    if truncated {
        write!(xml, "<NextContinuationToken>{}</NextContinuationToken>", keys.last().unwrap().0).unwrap();
    }
    for (key, bytes) in keys {
        let (size, modified) = (bytes.len(), "2026-01-02T03:04:05.000Z");
        write!(xml, "<Contents><Key>{key}</Key><LastModified>{modified}</LastModified><ETag>\"{size}\"</ETag>").unwrap();
        write!(xml, "<Size>{size}</Size></Contents>").unwrap();
    }
    xml.push_str("</ListBucketResult>");
    plain(StatusCode::OK, &xml)
}

/// GET and HEAD of an object.
fn object(bucket: &mut Bucket, key: &str, request: &Request<Incoming>) -> Response<Body> {
    let Some(bytes) = bucket.objects.get(key).cloned() else {
        return plain(StatusCode::NOT_FOUND, "<Error><Code>NoSuchKey</Code></Error>");
    };
    let range = request.headers().get(RANGE).and_then(|v| v.to_str().ok()).and_then(|v| v.strip_prefix("bytes="));
    let from: usize = range.and_then(|range| range.split('-').next()?.parse().ok()).unwrap_or(0);
    let wanted = bytes.slice(from.min(bytes.len())..);
    let mut response = Response::builder()
        .header(ETAG, format!("\"{}\"", bytes.len()))
        .header(LAST_MODIFIED, "Fri, 02 Jan 2026 03:04:05 GMT")
        .header(CONTENT_LENGTH, wanted.len());
    if range.is_some() {
        let shown = format!("bytes {from}-{}/{}", bytes.len().saturating_sub(1), bytes.len());
        response = response.status(StatusCode::PARTIAL_CONTENT).header(CONTENT_RANGE, shown);
    }
    if request.method() == Method::HEAD {
        return response.body(frames(Vec::new())).unwrap();
    }
    bucket.got.push(key.to_owned());
    if bucket.cut > 0 {
        bucket.cut -= 1;
        let half = wanted.slice(..wanted.len() / 2);
        return response.body(frames(vec![Ok(half), Err(std::io::Error::other("cut"))])).unwrap();
    }
    response.body(frames(vec![Ok(wanted)])).unwrap()
}
