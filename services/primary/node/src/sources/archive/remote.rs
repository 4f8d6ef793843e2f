//! The object store behind an archive's URL: how to reach it, what lies there, and how often to try.
//!
//! Credentials come from the environment, under the names that each cloud's own tools read (`AWS_…`, `GOOGLE_…`, `AZURE_…`), or
//! from the machine's metadata service; they are never part of the URL and never printed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, ObjectStoreScheme, RetryConfig};
use pg_wal::SegmentName;
use service_kit::client::Backoff;
use tokio::time::Instant;
use url::Url;

use super::names::{Kind, kind_of};
use crate::error::{Error, Result};

/// Most objects with a segment's name that are listed: 16 TB of WAL at 16 MB each. Each takes some 200 bytes of memory.
const OBJECTS_MAX: usize = 1 << 20;
/// Longest history file: PostgreSQL writes a line of some 100 bytes for each promotion.
const HISTORY_BYTES_MAX: u64 = 1 << 20;
/// Pauses between attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// One object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Object {
    /// Where it is in its store.
    pub(super) path: Path,
    /// Its bytes as stored, perhaps compressed.
    pub(super) size: u64,
    /// When it was stored.
    pub(super) modified: SystemTime,
}

impl From<ObjectMeta> for Object {
    fn from(meta: ObjectMeta) -> Self {
        Self { path: meta.location, size: meta.size, modified: meta.last_modified.into() }
    }
}

/// What an archive holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    /// Segments, and whether each is a partial one.
    pub(super) segments: BTreeMap<(SegmentName, bool), Object>,
    /// Histories of timelines.
    pub(super) histories: BTreeMap<u32, Object>,
    /// Segments that are there more than once; the newest object counts.
    pub(super) twice: usize,
}

/// A store, and the part of it that is the archive.
#[derive(Clone)]
pub(super) struct Remote {
    /// The store.
    pub(super) store: Arc<dyn ObjectStore>,
    /// The archive's folder in it.
    prefix: Path,
    /// How the store is called in messages; an object's path comes behind it.
    base: String,
    /// How long to try.
    retry_timeout: Duration,
}

impl std::fmt::Debug for Remote {
    /// The URL alone: a store would show part of its credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Remote").field(&self.name()).finish()
    }
}

impl Remote {
    /// The store that `url` names, with options from `environment`. Nothing is asked of it yet.
    ///
    /// # Errors
    /// The URL is none that is known, or the options do not fit.
    pub(super) fn open(
        url: &str,
        environment: impl Iterator<Item = (String, String)>,
        retry_timeout: Duration,
    ) -> Result<Self> {
        let url = parse(url)?;
        // Whoever hosts this node may have chosen another provider, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let wrong = |e: object_store::Error| Error::Config(format!("source.archive: {}", service_kit::error_text(&e)));
        let (scheme, prefix) = ObjectStoreScheme::parse(&url)
            .map_err(|e| Error::Config(format!("source.archive: {}; {KNOWN_URLS}", service_kit::error_text(&e))))?;
        let retry = RetryConfig { retry_timeout, ..RetryConfig::default() };
        macro_rules! cloud {
            ($builder:ty, $prefix:literal) => {{
                let builder = <$builder>::new().with_url(url.as_str()).with_retry(retry);
                let options = environment.filter(|(name, _)| name.starts_with($prefix));
                let builder = options.fold(builder, |builder, (name, value)| match name.to_ascii_lowercase().parse() {
                    Ok(key) => builder.with_config(key, value),
                    // A variable of the cloud's other tools.
                    Err(_) => builder,
                });
                Arc::new(builder.build().map_err(wrong)?)
            }};
        }
        let store: Arc<dyn ObjectStore> = match scheme {
            ObjectStoreScheme::Local => Arc::new(LocalFileSystem::new()),
            ObjectStoreScheme::Memory => Arc::new(InMemory::new()),
            ObjectStoreScheme::AmazonS3 => cloud!(AmazonS3Builder, "AWS_"),
            ObjectStoreScheme::GoogleCloudStorage => cloud!(GoogleCloudStorageBuilder, "GOOGLE_"),
            ObjectStoreScheme::MicrosoftAzure => cloud!(MicrosoftAzureBuilder, "AZURE_"),
            _ => return Err(Error::Config(format!("source.archive: {url} is no archive; {KNOWN_URLS}"))),
        };
        let authority = url[..url::Position::BeforePath].to_owned();
        Ok(Self { store, prefix, base: authority, retry_timeout })
    }

    /// A store that is there already.
    #[cfg(test)]
    pub(super) fn of_store(store: Arc<dyn ObjectStore>, prefix: &str, retry_timeout: Duration) -> Self {
        Self { store, prefix: Path::from(prefix), base: "memory://".to_owned(), retry_timeout }
    }

    /// How an object, or the archive's folder, is called in messages.
    pub(super) fn shown(&self, path: &Path) -> PathBuf {
        PathBuf::from(format!("{}/{path}", self.base))
    }

    /// How the archive is called in messages.
    pub(super) fn name(&self) -> PathBuf {
        self.shown(&self.prefix)
    }

    /// Everything that the archive holds, with its folders.
    ///
    /// # Errors
    /// The store cannot be reached, refuses, or holds more than [`OBJECTS_MAX`].
    pub(super) async fn list(&self) -> Result<Listing> {
        let listing = self.retrying(&self.name(), || self.list_once()).await?;
        if listing.segments.len() > OBJECTS_MAX {
            let reason = format!("it has more than {OBJECTS_MAX} segments: name a folder of it, or remove the oldest");
            return Err(Error::ArchiveUnreadable { object: self.name(), reason });
        }
        Ok(listing)
    }

    /// One attempt to list.
    async fn list_once(&self) -> object_store::Result<Listing> {
        let mut listing = Listing::default();
        let mut objects = self.store.list(Some(&self.prefix));
        while let Some(meta) = objects.try_next().await? {
            match kind_of(meta.location.filename().unwrap_or_default()) {
                Kind::Segment { name, partial } => listing.add_segment((name, partial), meta.into()),
                Kind::History(timeline) => _ = listing.histories.insert(timeline, meta.into()),
                Kind::Other => {}
            }
            if listing.segments.len() > OBJECTS_MAX {
                break;
            }
        }
        Ok(listing)
    }

    /// The text of a history file.
    ///
    /// # Errors
    /// It cannot be had, is too large, or is no text.
    pub(super) async fn history(&self, object: &Object) -> Result<String> {
        let shown = self.shown(&object.path);
        let unreadable = |reason: String| Error::ArchiveUnreadable { object: shown.clone(), reason };
        if object.size > HISTORY_BYTES_MAX {
            return Err(unreadable(format!("it has {} bytes, which no history of a timeline has", object.size)));
        }
        let bytes = self.retrying(&shown, || async { self.store.get(&object.path).await?.bytes().await }).await?;
        super::download::history_text(&bytes, HISTORY_BYTES_MAX).map_err(unreadable)
    }

    /// Tries until it works, fails for good, or `retry_timeout` is over.
    async fn retrying<T, F>(&self, object: &std::path::Path, mut attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let mut retry = self.retry();
        loop {
            let error = match attempt().await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if !is_transient(&error) || !retry.pause().await {
                return Err(unavailable(object, &error));
            }
            tracing::debug!(object = %object.display(), %error, "trying again");
        }
    }

    /// Attempts at one thing.
    pub(super) fn retry(&self) -> Retry {
        Retry { backoff: Backoff::new(BACKOFF.0, BACKOFF.1), until: Instant::now() + self.retry_timeout }
    }
}

impl Listing {
    /// Adds a segment; of two objects for the same one the newer counts.
    fn add_segment(&mut self, key: (SegmentName, bool), object: Object) {
        match self.segments.get_mut(&key) {
            Some(known) => {
                self.twice += 1;
                if object.modified > known.modified {
                    *known = object;
                }
            }
            None => drop(self.segments.insert(key, object)),
        }
    }
}

/// Pauses that grow, up to an end.
#[derive(Debug)]
pub(super) struct Retry {
    /// The pauses.
    backoff: Backoff,
    /// No attempt is made after this.
    until: Instant,
}

impl Retry {
    /// Waits before the next attempt; false if there is to be none.
    pub(super) async fn pause(&mut self) -> bool {
        let delay = self.backoff.next_delay();
        if Instant::now() + delay > self.until {
            return false;
        }
        tokio::time::sleep(delay).await;
        true
    }
}

/// The URLs that are known, for messages.
const KNOWN_URLS: &str = "write file:///folder, s3://bucket/folder, gs://bucket/folder or az://container/folder";

/// Checks the URL.
fn parse(url: &str) -> Result<Url> {
    // What is wrong with it may be that it holds a secret, so it is not repeated.
    let url = Url::parse(url).map_err(|e| Error::Config(format!("source.archive is no URL ({e}); {KNOWN_URLS}")))?;
    if url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
        let reason =
            "must have no password, query or fragment: credentials come from the environment (AWS_…, GOOGLE_…, AZURE_…)";
        return Err(Error::Config(format!("source.archive {reason}")));
    }
    Ok(url)
}

/// Whether a configured URL is one that can be used; nothing is opened.
///
/// # Errors
/// As for [`Remote::open`].
pub(crate) fn check_url(url: &str) -> Result<()> {
    use ObjectStoreScheme::{AmazonS3, GoogleCloudStorage, Local, Memory, MicrosoftAzure};
    match ObjectStoreScheme::parse(&parse(url)?) {
        Ok((Local | Memory | AmazonS3 | GoogleCloudStorage | MicrosoftAzure, _)) => Ok(()),
        _ => Err(Error::Config(format!("source.archive is no URL of an archive; {KNOWN_URLS}"))),
    }
}

/// Whether another attempt may help.
pub(super) fn is_transient(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::Generic { .. } | object_store::Error::JoinError { .. })
}

/// What is told when the store does not give what was asked.
pub(super) fn unavailable(object: &std::path::Path, error: &object_store::Error) -> Error {
    Error::ArchiveUnavailable { object: object.to_owned(), reason: service_kit::error_text(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_without_secrets_of_known_stores_are_taken() {
        for good in
            ["file:///srv/wal", "memory:///", "s3://b/p", "gs://b/p/q", "az://c/p", "abfss://c@account.dfs.core.windows.net/p"]
        {
            check_url(good).unwrap();
        }
        for (bad, part) in [
            ("/srv/wal", "no URL"),
            ("ftp://h/p", "s3://bucket/folder"),
            ("https://example.org/wal", "s3://bucket/folder"),
            ("s3://key:hidden@b/p", "credentials come from the environment"),
            ("s3://b/p?X-Amz-Signature=hidden", "credentials come from the environment"),
        ] {
            let error = check_url(bad).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("hidden"), "{bad}: {error}");
        }
    }

    #[test]
    fn every_cloud_is_compiled_in_and_reads_its_variables() {
        let env = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<Vec<_>>().into_iter()
        };
        let open = |url: &str, pairs: &[(&str, &str)]| Remote::open(url, env(pairs), Duration::from_secs(1));
        let s3 = open(
            "s3://bucket/wal/main",
            &[("AWS_ACCESS_KEY_ID", "hidden"), ("AWS_SECRET_ACCESS_KEY", "hidden"), ("AWS_PROFILE", "x"), ("REGION", "x")],
        );
        let s3 = s3.unwrap();
        assert_eq!(s3.name(), PathBuf::from("s3://bucket/wal/main"));
        assert!(!format!("{s3:?}").contains("hidden"), "credentials are not shown: {s3:?}");
        let azure = open("az://container/wal", &[("AZURE_STORAGE_ACCOUNT_NAME", "account"), ("AZURE_SKIP_SIGNATURE", "true")]);
        assert_eq!(azure.unwrap().name(), PathBuf::from("az://container/wal"));
        assert!(open("az://container/wal", &[]).unwrap_err().to_string().contains("source.archive"), "an account is missing");
        let google = open("gs://bucket/wal", &[("GOOGLE_SKIP_SIGNATURE", "true")]).unwrap();
        assert_eq!(google.name(), PathBuf::from("gs://bucket/wal"));
    }
}
