//! Named subscriptions: positions of subscribers that survive them and us. The state machine alone; the node decides when
//! the file is written.
//!
//! # Invariants
//!
//! * **I1** A subscription's position never moves back.
//! * **I2** At most one stream holds a subscription; one that was taken over can no longer move it.
//! * **I3** Output is released by positions that are on disk, not by those in memory.

use std::collections::BTreeMap;
use std::path::Path;

use pg_types::Lsn;
use serde::{Deserialize, Serialize};

use crate::durable_file::{self, DurableFileError};

/// First bytes of the file.
const MAGIC: [u8; 8] = *b"WSSUBS01";

/// What to do about a damaged file.
const REMEDY: &str = "restore it, or delete it: subscribers then have to name the position from which they resume";

/// Longest name.
const NAME_LEN_MAX: usize = 63;

/// A stream could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The name is none.
    #[error("a subscription's name is 1 to {NAME_LEN_MAX} of a-z, 0-9 and _")]
    Name,
    /// Another client reads it.
    #[error("subscription \"{name}\" is in use by client \"{holder}\"")]
    Active {
        /// The subscription.
        name: String,
        /// Who holds it.
        holder: String,
        /// Since when, in milliseconds since 1970.
        since_ms: u64,
    },
    /// No more streams.
    #[error("all {limit} streams are in use: try again later or raise subscriptions.streams_max")]
    Streams {
        /// The limit.
        limit: usize,
    },
    /// No more names.
    #[error("all {limit} subscriptions are in use: raise subscriptions.names_max")]
    Names {
        /// The limit.
        limit: usize,
    },
}

/// Number of a stream, never used twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Session(u64);

/// The stream that holds a subscription.
#[derive(Clone, Debug)]
struct Holder {
    /// Its number.
    session: Session,
    /// As it calls itself.
    client_id: String,
    /// When it came, in milliseconds since 1970.
    since_ms: u64,
}

/// One named subscription.
#[derive(Clone, Debug, Default)]
struct Subscription {
    /// Everything that ends at or below it is the subscriber's.
    confirmed: Lsn,
    /// Where it began because nothing before was kept, not because its subscriber had all before.
    began: Lsn,
    /// `confirmed` as it is on disk; `None` until it was written once.
    saved: Option<Lsn>,
    /// Who reads it now.
    holder: Option<Holder>,
}

/// An opened stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its number.
    pub session: Session,
    /// The subscription's position; `None` without a name or on first use.
    pub confirmed: Option<Lsn>,
    /// Its subscriber has nothing from before that position: it began there, and nothing was confirmed since.
    pub is_new: bool,
    /// The half-open stream of the same client that has to end.
    pub replaced: Option<Session>,
}

/// All subscriptions and open streams.
#[derive(Debug)]
pub struct Subscriptions {
    /// The named ones.
    named: BTreeMap<String, Subscription>,
    /// Open streams, with their subscription's name if they have one.
    streams: BTreeMap<Session, Option<String>>,
    /// Number for the next stream.
    next_session: u64,
    /// Most open streams.
    streams_max: usize,
    /// Most names.
    names_max: usize,
}

/// Positions as they are on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPositions {
    /// Cluster that the positions are of.
    pub system_id: u64,
    /// Position by name, as an integer.
    pub confirmed: BTreeMap<String, u64>,
    /// Of those that have confirmed nothing since they began: the same position.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub began: BTreeMap<String, u64>,
}

impl SavedPositions {
    /// Reads the file; an empty set of this cluster if there is none.
    ///
    /// # Errors
    ///
    /// [`DurableFileError`]; the file of another cluster counts as damaged.
    pub fn load(path: &Path, system_id: u64) -> Result<Self, DurableFileError> {
        let Some(bytes) = durable_file::read(path, MAGIC, REMEDY)? else {
            return Ok(Self { system_id, ..Self::default() });
        };
        let damaged = |reason: String| DurableFileError::Damaged { path: path.to_owned(), reason, remedy: REMEDY };
        let saved: Self = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
        if saved.system_id != system_id {
            return Err(damaged(format!("it is of the cluster with system id {}, not {system_id}", saved.system_id)));
        }
        Ok(saved)
    }

    /// Replaces the file.
    ///
    /// # Errors
    ///
    /// [`DurableFileError::Io`].
    pub fn store(&self, path: &Path) -> Result<(), DurableFileError> {
        // A struct of numbers and texts always has a JSON form.
        durable_file::write(path, MAGIC, &serde_json::to_vec(self).unwrap_or_default())
    }
}

impl Subscriptions {
    /// The subscriptions that were saved, with limits for streams and names.
    #[must_use]
    pub fn new(saved: &SavedPositions, streams_max: usize, names_max: usize) -> Self {
        let restore = |(name, lsn): (&String, &u64)| {
            let (confirmed, began) = (Lsn(*lsn), Lsn(saved.began.get(name).copied().unwrap_or(0)));
            (name.clone(), Subscription { confirmed, began, saved: Some(confirmed), holder: None })
        };
        let named = saved.confirmed.iter().map(restore).collect();
        Self { named, streams: BTreeMap::new(), next_session: 0, streams_max, names_max }
    }

    /// Opens a stream of `client_id`, on a subscription unless `name` is empty.
    ///
    /// # Errors
    ///
    /// [`OpenError`]; nothing is changed then.
    pub fn open(&mut self, name: &str, client_id: &str, now_ms: u64) -> Result<Opened, OpenError> {
        let replaced = self.check(name, client_id)?;
        if self.streams.len() >= self.streams_max && replaced.is_none() {
            return Err(OpenError::Streams { limit: self.streams_max });
        }
        if let Some(old) = replaced {
            self.close(old);
        }
        let session = Session(self.next_session);
        self.next_session += 1;
        if name.is_empty() {
            self.streams.insert(session, None);
            return Ok(Opened { session, confirmed: None, is_new: true, replaced });
        }
        let subscription = self.named.entry(name.to_owned()).or_default();
        subscription.holder = Some(Holder { session, client_id: client_id.to_owned(), since_ms: now_ms });
        let confirmed = subscription.confirmed.is_valid().then_some(subscription.confirmed);
        let is_new = subscription.confirmed == subscription.began;
        self.streams.insert(session, Some(name.to_owned()));
        Ok(Opened { session, confirmed, is_new, replaced })
    }

    /// Whether `client_id` may open `name`, and whom it replaces.
    fn check(&self, name: &str, client_id: &str) -> Result<Option<Session>, OpenError> {
        let is_name = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
        if name.len() > NAME_LEN_MAX || !name.bytes().all(is_name) {
            return Err(OpenError::Name);
        }
        match self.named.get(name) {
            None if !name.is_empty() && self.named.len() >= self.names_max => Err(OpenError::Names { limit: self.names_max }),
            None => Ok(None),
            Some(Subscription { holder: Some(holder), .. }) if client_id.is_empty() || holder.client_id != client_id => {
                Err(OpenError::Active { name: name.to_owned(), holder: holder.client_id.clone(), since_ms: holder.since_ms })
            }
            Some(subscription) => Ok(subscription.holder.as_ref().map(|h| h.session)),
        }
    }

    /// A stream ended.
    pub fn close(&mut self, session: Session) {
        if let Some(subscription) = self.held(session) {
            subscription.holder = None;
        }
        self.streams.remove(&session);
    }

    /// A stream begins at `lsn` because nothing before is kept.
    pub fn begin(&mut self, session: Session, lsn: Lsn) {
        if let Some(subscription) = self.held(session).filter(|subscription| lsn >= subscription.confirmed) {
            (subscription.confirmed, subscription.began) = (lsn, lsn);
        }
    }

    /// A stream tells that everything up to `lsn` is its subscriber's. True if a named position moved.
    pub fn confirm(&mut self, session: Session, lsn: Lsn) -> bool {
        match self.held(session) {
            Some(subscription) if lsn > subscription.confirmed => {
                subscription.confirmed = lsn;
                true
            }
            _ => false,
        }
    }

    /// Open streams.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// The oldest position on disk: output after it is needed. `None` if nobody needs any.
    #[must_use]
    pub fn needed(&self) -> Option<Lsn> {
        self.named.values().map(|s| s.saved.unwrap_or(Lsn::INVALID)).min()
    }

    /// What to write, if anything moved since the last [`Subscriptions::on_saved`].
    #[must_use]
    pub fn to_save(&self, system_id: u64) -> Option<SavedPositions> {
        let dirty = self.named.values().any(|s| s.saved != Some(s.confirmed));
        let position = |(name, s): (&String, &Subscription)| (name.clone(), s.confirmed.0);
        dirty.then(|| SavedPositions {
            system_id,
            confirmed: self.named.iter().map(position).collect(),
            began: self.named.iter().filter(|(_, s)| s.began == s.confirmed).map(position).collect(),
        })
    }

    /// `positions` is on disk.
    pub fn on_saved(&mut self, positions: &SavedPositions) {
        for (name, lsn) in &positions.confirmed {
            if let Some(subscription) = self.named.get_mut(name) {
                subscription.saved = Some(Lsn(*lsn));
            }
        }
    }

    /// The subscription that a stream holds.
    fn held(&mut self, session: Session) -> Option<&mut Subscription> {
        let name = self.streams.get(&session)?.as_ref()?;
        self.named.get_mut(name).filter(|s| s.holder.as_ref().is_some_and(|h| h.session == session))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Subscriptions {
        Subscriptions::new(&SavedPositions::default(), 3, 2)
    }

    #[test]
    fn one_client_holds_a_subscription_and_may_take_it_over() {
        let mut s = empty();
        let a = s.open("orders", "a", 7).unwrap();
        assert_eq!((a.confirmed, a.replaced), (None, None));
        let refused = OpenError::Active { name: "orders".to_owned(), holder: "a".to_owned(), since_ms: 7 };
        assert_eq!(s.open("orders", "b", 8), Err(refused));
        assert!(s.confirm(a.session, Lsn(100)));
        let again = s.open("orders", "a", 9).unwrap();
        assert_eq!((again.confirmed, again.is_new, again.replaced), (Some(Lsn(100)), false, Some(a.session)));
        assert!(!s.confirm(a.session, Lsn(200)), "the old stream moves nothing any more");
        assert!(!s.confirm(again.session, Lsn(99)), "positions do not go back");
        s.close(a.session);
        assert!(s.open("orders", "b", 10).is_err(), "the end of the old stream does not free it");
        s.close(again.session);
        assert_eq!(s.open("orders", "b", 11).unwrap().confirmed, Some(Lsn(100)));
    }

    #[test]
    fn one_that_began_without_a_position_is_new_until_it_confirms_something() {
        let mut s = empty();
        let a = s.open("a", "a", 0).unwrap();
        assert!(a.is_new && s.open("", "", 0).unwrap().is_new);
        s.begin(a.session, Lsn(100));
        s.close(a.session);
        let mut s = Subscriptions::new(&s.to_save(5).unwrap(), 3, 2);
        let again = s.open("a", "a", 0).unwrap();
        assert_eq!((again.confirmed, again.is_new), (Some(Lsn(100)), true));
        s.confirm(again.session, Lsn(101));
        assert!(s.to_save(5).unwrap().began.is_empty());
        s.close(again.session);
        assert!(!s.open("a", "a", 0).unwrap().is_new);
    }

    #[test]
    fn clients_without_a_name_take_nothing_over() {
        let mut s = empty();
        s.open("orders", "", 0).unwrap();
        assert!(matches!(s.open("orders", "", 0), Err(OpenError::Active { .. })));
    }

    #[test]
    fn names_and_numbers_are_limited() {
        let mut s = empty();
        for bad in ["Orders", "a-b", "a b", "ä", "a/b", &"x".repeat(64)] {
            assert_eq!(s.open(bad, "a", 0), Err(OpenError::Name), "{bad}");
        }
        s.open(&"x".repeat(63), "a", 0).unwrap();
        s.open("y_1", "a", 0).unwrap();
        assert_eq!(s.open("z", "a", 0), Err(OpenError::Names { limit: 2 }));
        let last = s.open("", "a", 0).unwrap();
        assert_eq!(s.open("", "a", 0), Err(OpenError::Streams { limit: 3 }));
        assert!(s.open("y_1", "a", 0).is_ok(), "taking over needs no room");
        s.close(last.session);
        assert!(s.open("", "a", 0).is_ok());
        assert_eq!(s.streams(), 3);
    }

    #[test]
    fn output_is_released_by_what_is_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("positions");
        let mut s = empty();
        assert_eq!((s.needed(), s.to_save(5)), (None, None));
        let a = s.open("a", "", 0).unwrap().session;
        let b = s.open("b", "", 0).unwrap().session;
        s.confirm(a, Lsn(100));
        s.confirm(b, Lsn(50));
        assert_eq!(s.needed(), Some(Lsn::INVALID), "nothing is on disk yet");
        let saved = s.to_save(5).unwrap();
        saved.store(&path).unwrap();
        s.on_saved(&saved);
        assert_eq!((s.needed(), s.to_save(5)), (Some(Lsn(50)), None));
        s.confirm(b, Lsn(70));
        assert_eq!(s.needed(), Some(Lsn(50)));
        let mut restored = Subscriptions::new(&SavedPositions::load(&path, 5).unwrap(), 3, 2);
        assert_eq!(restored.open("b", "", 0).unwrap().confirmed, Some(Lsn(50)));
        assert_eq!(restored.needed(), Some(Lsn(50)));
        let error = SavedPositions::load(&path, 6).unwrap_err();
        assert!(error.to_string().contains("system id 5"), "{error}");
    }
}
