//! One subscriber's stream as a state machine: positions, credit and deadlines, without clock, socket or task.
//!
//! A subscriber that reads slower than WAL is decoded must not make anybody buffer without bound, and one that is silent must not
//! hold its subscription for ever. So what it has not flushed uses up the credit that it gave, it is asked to speak at half of its
//! timeout, and its positions are believed only as far as something was sent.
//!
//! # Invariants
//!
//! * **I1** Bytes in flight never pass the credit, except by one group: a transaction that is larger goes whole, but alone.
//! * **I2** The flushed position never goes back and never passes what was sent.
//! * **I3** The number of remembered groups never passes the credit in batches.
//!
//! Sending costs O(1), feedback O(groups that it frees).

use std::collections::VecDeque;
use std::time::Duration;

use pg_types::Lsn;

/// What a subscriber asked for, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriberSettings {
    /// Most bytes of batches that are sent and not flushed, at least 1.
    pub credit_bytes: u64,
    /// Most batches that are sent and not flushed, at least 1.
    pub credit_batches: usize,
    /// A heartbeat is sent when nothing else was for so long.
    pub heartbeat_interval: Duration,
    /// The stream ends when no feedback came for so long; zero: never.
    pub feedback_timeout: Duration,
}

/// Batches that give their credit back together: one batch, or all those of one large transaction.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// End of its last transaction.
    end: Lsn,
    /// Bytes.
    bytes: u64,
}

/// A feedback that cannot be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeedbackError {
    /// It takes something back.
    #[error("flushed_lsn {told} lies before {before}, which was reported earlier")]
    Back {
        /// What it said.
        told: Lsn,
        /// What was said before.
        before: Lsn,
    },
    /// It confirms what was never sent.
    #[error("flushed_lsn {told} lies beyond {sent}, the last that was sent")]
    Beyond {
        /// What it said.
        told: Lsn,
        /// What was sent.
        sent: Lsn,
    },
}

/// The subscriber was silent for its timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no feedback for {silent:?}, the timeout is {timeout:?}")]
pub struct FeedbackTimeout {
    /// Time since the last feedback.
    pub silent: Duration,
    /// What was agreed.
    pub timeout: Duration,
}

/// What the passing of time asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing before this time.
    At(Duration),
    /// A heartbeat now.
    Heartbeat {
        /// The subscriber has been silent for half of its timeout.
        reply_requested: bool,
    },
}

/// The state of one stream. Times are since its start.
#[derive(Debug)]
pub struct Subscriber {
    /// As agreed.
    settings: SubscriberSettings,
    /// Everything that ends at or below it was sent or holds nothing for this subscriber.
    sent: Lsn,
    /// Everything that ends at or below it is the subscriber's.
    flushed: Lsn,
    /// Sent and not flushed, oldest first.
    in_flight: VecDeque<Group>,
    /// Sum of `in_flight`.
    in_flight_bytes: u64,
    /// Bytes sent of a transaction whose last batch was not sent yet.
    open_bytes: Option<u64>,
    /// When feedback last came.
    last_feedback: Duration,
    /// When anything was last sent.
    last_sent: Duration,
    /// A reply was asked for since the last feedback.
    reply_asked: bool,
}

impl Subscriber {
    /// A stream that begins after `start`.
    #[must_use]
    pub fn new(settings: SubscriberSettings, start: Lsn) -> Self {
        Self {
            settings,
            sent: start,
            flushed: Lsn::INVALID,
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            open_bytes: None,
            last_feedback: Duration::ZERO,
            last_sent: Duration::ZERO,
            reply_asked: false,
        }
    }

    /// Whether a batch may be sent now: always within a transaction, and when nothing is in flight.
    #[must_use]
    pub fn may_send(&self) -> bool {
        let credit = self.in_flight_bytes < self.settings.credit_bytes && self.in_flight.len() < self.settings.credit_batches;
        credit || self.open_bytes.is_some() || self.in_flight.is_empty()
    }

    /// Bytes that were sent and not flushed.
    #[must_use]
    pub fn bytes_in_flight(&self) -> u64 {
        self.in_flight_bytes + self.open_bytes.unwrap_or(0)
    }

    /// Everything that ends at or below it was sent.
    #[must_use]
    pub fn sent(&self) -> Lsn {
        self.sent
    }

    /// A batch goes out that completes everything up to `end`, or, with `end` unset, a part of a transaction.
    pub fn on_sent(&mut self, now: Duration, end: Option<Lsn>, bytes: u64) {
        self.last_sent = now;
        match end {
            None => *self.open_bytes.get_or_insert(0) += bytes,
            Some(end) => {
                let bytes = bytes + self.open_bytes.take().unwrap_or(0);
                self.sent = self.sent.max(end);
                self.in_flight.push_back(Group { end, bytes });
                self.in_flight_bytes += bytes;
            }
        }
    }

    /// What ends at or below `end` holds nothing for this subscriber.
    pub fn on_passed(&mut self, end: Lsn) {
        self.sent = self.sent.max(end);
        if let Some(bytes) = self.open_bytes.take() {
            // Parts that nothing ends: blocks that came again.
            self.in_flight.push_back(Group { end, bytes });
            self.in_flight_bytes += bytes;
        }
    }

    /// A heartbeat goes out.
    pub fn on_heartbeat(&mut self, now: Duration, reply_requested: bool) {
        self.last_sent = now;
        self.reply_asked |= reply_requested;
    }

    /// Takes a feedback; the flushed position if it moved. A position of 0 tells nothing.
    ///
    /// # Errors
    ///
    /// [`FeedbackError`]; nothing is changed then.
    pub fn on_feedback(&mut self, now: Duration, told: Lsn) -> Result<Option<Lsn>, FeedbackError> {
        if told.is_valid() && told < self.flushed {
            return Err(FeedbackError::Back { told, before: self.flushed });
        }
        if told > self.sent {
            return Err(FeedbackError::Beyond { told, sent: self.sent });
        }
        self.last_feedback = now;
        self.reply_asked = false;
        if told <= self.flushed {
            return Ok(None);
        }
        self.flushed = told;
        while let Some(group) = self.in_flight.front().filter(|group| group.end <= told) {
            self.in_flight_bytes -= group.bytes;
            self.in_flight.pop_front();
        }
        Ok(Some(told))
    }

    /// What is to be done at `now`.
    ///
    /// # Errors
    ///
    /// [`FeedbackTimeout`]: the stream ends.
    pub fn due(&self, now: Duration) -> Result<Due, FeedbackTimeout> {
        let timeout = self.settings.feedback_timeout;
        let mut next = self.last_sent + self.settings.heartbeat_interval;
        if !timeout.is_zero() {
            let silent = now.saturating_sub(self.last_feedback);
            if silent >= timeout {
                return Err(FeedbackTimeout { silent, timeout });
            }
            if silent >= timeout / 2 && !self.reply_asked {
                return Ok(Due::Heartbeat { reply_requested: true });
            }
            next = next.min(self.last_feedback + if self.reply_asked { timeout } else { timeout / 2 });
        }
        Ok(if now >= next { Due::Heartbeat { reply_requested: false } } else { Due::At(next) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SETTINGS: SubscriberSettings = SubscriberSettings {
        credit_bytes: 1000,
        credit_batches: 3,
        heartbeat_interval: Duration::from_secs(10),
        feedback_timeout: Duration::from_secs(60),
    };

    fn secs(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn a_transaction_larger_than_the_credit_goes_whole_but_alone() {
        let mut s = Subscriber::new(SETTINGS, Lsn(100));
        for _ in 0..5 {
            assert!(s.may_send());
            s.on_sent(secs(0), None, 900);
        }
        assert_eq!(s.on_feedback(secs(0), Lsn(101)), Err(FeedbackError::Beyond { told: Lsn(101), sent: Lsn(100) }));
        s.on_sent(secs(0), Some(Lsn(9000)), 900);
        assert!(!s.may_send());
        assert_eq!(s.bytes_in_flight(), 5400);
        assert_eq!(s.on_feedback(secs(0), Lsn(9000)), Ok(Some(Lsn(9000))));
        assert!(s.may_send() && s.bytes_in_flight() == 0);
    }

    #[test]
    fn batches_are_a_credit_of_their_own() {
        let mut s = Subscriber::new(SETTINGS, Lsn(100));
        for end in [110, 120, 130] {
            assert!(s.may_send());
            s.on_sent(secs(0), Some(Lsn(end)), 1);
        }
        assert!(!s.may_send());
        s.on_feedback(secs(0), Lsn(115)).unwrap();
        assert!(s.may_send());
    }

    #[test]
    fn positions_do_not_go_back_or_beyond_and_progress_may_be_confirmed() {
        let mut s = Subscriber::new(SETTINGS, Lsn(100));
        s.on_sent(secs(0), Some(Lsn(200)), 1);
        assert_eq!(s.on_feedback(secs(0), Lsn(150)), Ok(Some(Lsn(150))));
        assert_eq!(s.on_feedback(secs(0), Lsn(149)), Err(FeedbackError::Back { told: Lsn(149), before: Lsn(150) }));
        assert_eq!(s.on_feedback(secs(0), Lsn(201)), Err(FeedbackError::Beyond { told: Lsn(201), sent: Lsn(200) }));
        assert_eq!(s.on_feedback(secs(0), Lsn(150)), Ok(None), "to repeat is harmless");
        assert_eq!(s.on_feedback(secs(0), Lsn::INVALID), Ok(None), "nothing told, nothing changed");
        s.on_passed(Lsn(500));
        assert_eq!(s.on_feedback(secs(0), Lsn(500)), Ok(Some(Lsn(500))));
    }

    #[test]
    fn an_idle_stream_has_heartbeats_and_a_silent_one_ends() {
        let mut s = Subscriber::new(SETTINGS, Lsn(100));
        assert_eq!(s.due(secs(0)), Ok(Due::At(secs(10))));
        for t in [10, 20] {
            assert_eq!(s.due(secs(t)), Ok(Due::Heartbeat { reply_requested: false }));
            s.on_heartbeat(secs(t), false);
        }
        assert_eq!(s.due(secs(30)), Ok(Due::Heartbeat { reply_requested: true }));
        s.on_heartbeat(secs(30), true);
        assert_eq!(s.due(secs(31)), Ok(Due::At(secs(40))), "asked once");
        s.on_sent(secs(55), Some(Lsn(200)), 1);
        assert_eq!(s.due(secs(55)), Ok(Due::At(secs(60))));
        assert_eq!(s.due(secs(60)), Err(FeedbackTimeout { silent: secs(60), timeout: secs(60) }));
        s.on_feedback(secs(60), Lsn::INVALID).unwrap();
        assert!(s.due(secs(61)).is_ok());
        let patient = Subscriber::new(SubscriberSettings { feedback_timeout: Duration::ZERO, ..SETTINGS }, Lsn(1));
        assert_eq!(patient.due(secs(1_000_000)), Ok(Due::Heartbeat { reply_requested: false }));
    }

    proptest! {
        #[test]
        fn i1_i2_i3_hold_for_any_subscriber(steps in prop::collection::vec((0u8..5, 0u64..3000, 1u64..700), 1..200)) {
            let mut s = Subscriber::new(SETTINGS, Lsn(100));
            let mut at = 100;
            let mut open = 0;
            let mut groups = Vec::new();
            for (op, lsn, bytes) in steps {
                let (sent, flushed) = (s.sent(), s.flushed);
                match op {
                    0 if s.may_send() && bytes < 100 => {
                        s.on_sent(secs(0), None, bytes);
                        open += bytes;
                    }
                    0 | 1 if s.may_send() => {
                        at += bytes;
                        s.on_sent(secs(0), Some(Lsn(at)), bytes);
                        groups.push((at, bytes + std::mem::take(&mut open)));
                    }
                    2 if open == 0 => { at += 1; s.on_passed(Lsn(at)); }
                    _ => { let _ = s.on_feedback(secs(0), Lsn(lsn)); }
                }
                prop_assert!(s.flushed >= flushed && s.flushed <= s.sent() && s.sent() >= sent, "I2");
                let unflushed: Vec<_> = groups.iter().filter(|(end, _)| *end > s.flushed.0).collect();
                let sum: u64 = unflushed.iter().map(|(_, bytes)| bytes).sum();
                prop_assert_eq!(s.bytes_in_flight(), sum + open);
                let last = unflushed.last().map_or(0, |(_, bytes)| *bytes);
                prop_assert!(sum - last < SETTINGS.credit_bytes, "I1");
                prop_assert!(unflushed.len() <= SETTINGS.credit_batches, "I3");
            }
        }
    }
}
