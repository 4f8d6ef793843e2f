//! One stream's positions, credits and deadlines: the state machine of a walsender (`replication/walsender.c`), without
//! clock, socket or task.
//!
//! The problem: a consumer that reads slower than WAL is written must not make anybody buffer without bound; one that is
//! silent must not hold its slot for ever; and what a consumer says it has must be believed only as far as it was sent.
//! So bytes and batches that the consumer has not *flushed* use up the credits it gave at the start, keepalives ask it to
//! speak at half of its timeout, and every position is checked.
//!
//! ```text
//!   batch sent ──► in flight ──(flushed_lsn ≥ its end)──► credit back
//!                     │ credits used up: nothing is sent, keepalives go on
//!   silent for timeout/2 ──► keepalive with reply_requested ──► silent for timeout ──► FEEDBACK_TIMEOUT
//! ```
//!
//! Invariants:
//! * I1 Bytes in flight never pass the credit, except by one group (a record larger than the credit has to go whole).
//! * I2 received, flushed, applied and restart never go back, and never pass what was sent; restart never passes flushed.
//! * I3 The number of remembered groups never passes the batch credit.
//!
//! Cost: sending O(1); feedback O(groups that it frees). Differs from PostgreSQL, which leaves flow control to TCP.

use std::collections::VecDeque;
use std::time::Duration;

use pg_types::Lsn;

use crate::error::{Error, Result};
use crate::slots::Confirmation;

/// What a stream was started with, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderSettings {
    /// Most bytes of records that are sent and not flushed. At least 1.
    pub credit_bytes: u64,
    /// Most batches that are sent and not flushed. At least 1.
    pub credit_batches: u32,
    /// A keepalive is sent when nothing else was for so long.
    pub keepalive_interval: Duration,
    /// The stream ends when no feedback came for so long (`wal_sender_timeout`); zero: never.
    pub feedback_timeout: Duration,
}

/// What a consumer says it has. [`Lsn::INVALID`] means "not told".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    /// Arrived.
    pub received: Lsn,
    /// Safely stored; moves the slot and gives credit back.
    pub flushed: Lsn,
    /// Applied; for metrics.
    pub applied: Lsn,
    /// Oldest position that the consumer may ask for again, if it keeps that apart from `flushed`.
    pub restart: Lsn,
}

/// Batches that are one unit for credits: a single batch, or all fragments of one record.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// End of its last record.
    end: Lsn,
    /// Its bytes.
    bytes: u64,
}

/// What the passing of time asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing before this time.
    At(Duration),
    /// A keepalive now.
    Keepalive {
        /// The consumer has been silent for half of its timeout.
        reply_requested: bool,
    },
}

/// The state of one stream. Times are since the start of the stream.
#[derive(Debug)]
pub struct WalSender {
    /// As agreed.
    settings: SenderSettings,
    /// Everything before was sent, or holds nothing that could be.
    sent: Lsn,
    /// What the consumer has told.
    positions: Positions,
    /// Sent and not flushed, oldest first (I3).
    in_flight: VecDeque<Group>,
    /// Sum of `in_flight`.
    in_flight_bytes: u64,
    /// Fragments of a record are on the way and its end is not: these bytes are in flight too.
    open_bytes: Option<u64>,
    /// When feedback last came.
    last_feedback: Duration,
    /// When anything was last sent.
    last_sent: Duration,
    /// A reply was asked for since the last feedback.
    reply_asked: bool,
}

impl WalSender {
    /// A stream of which everything before `start` is taken for sent.
    #[must_use]
    pub fn new(settings: SenderSettings, start: Lsn) -> Self {
        Self {
            settings,
            sent: start,
            positions: Positions::default(),
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            open_bytes: None,
            last_feedback: Duration::ZERO,
            last_sent: Duration::ZERO,
            reply_asked: false,
        }
    }

    /// Whether a batch may be sent now. Always true in the middle of a record, and when nothing is in flight (I1).
    #[must_use]
    pub fn may_send(&self) -> bool {
        let open = self.open_bytes.is_some();
        let bytes = self.in_flight_bytes < self.settings.credit_bytes;
        let batches = self.in_flight.len() < self.settings.credit_batches as usize;
        open || self.in_flight.is_empty() || (bytes && batches)
    }

    /// Bytes of credit that are left.
    #[must_use]
    pub fn credit_bytes_left(&self) -> u64 {
        self.settings.credit_bytes.saturating_sub(self.bytes_in_flight())
    }

    /// Bytes that were sent and are not flushed.
    #[must_use]
    pub fn bytes_in_flight(&self) -> u64 {
        self.in_flight_bytes + self.open_bytes.unwrap_or(0)
    }

    /// Everything before was sent.
    #[must_use]
    pub fn sent(&self) -> Lsn {
        self.sent
    }

    /// What the consumer has told.
    #[must_use]
    pub fn positions(&self) -> Positions {
        self.positions
    }

    /// A batch of whole records up to `end` goes out, or, with `end` unset, a fragment that does not end its record.
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

    /// A keepalive goes out that tells that nothing is left to send before `progress`.
    pub fn on_keepalive(&mut self, now: Duration, progress: Lsn, reply_requested: bool) {
        self.last_sent = now;
        self.sent = self.sent.max(progress);
        self.reply_asked |= reply_requested;
    }

    /// Takes a feedback. Returns what it confirms, if that moved.
    ///
    /// # Errors
    /// A position went back or beyond what was sent (I2); nothing is changed then.
    pub fn on_feedback(&mut self, now: Duration, told: Positions) -> Result<Option<Confirmation>> {
        let received = self.check("feedback.received_lsn", self.positions.received, told.received)?;
        let flushed = self.check("feedback.flushed_lsn", self.positions.flushed, told.flushed)?;
        let applied = self.check("feedback.applied_lsn", self.positions.applied, told.applied)?;
        let restart = self.check("feedback.restart_lsn", self.positions.restart, told.restart)?;
        if restart > flushed {
            let problem = format!("beyond {flushed}, which is flushed");
            return Err(Error::AckOutOfOrder { field: "feedback.restart_lsn", lsn: restart, sent: self.sent, problem });
        }
        let moved = flushed > self.positions.flushed || restart > self.positions.restart;
        // What is flushed was received, told or not.
        self.positions = Positions { received: received.max(flushed), flushed, applied, restart };
        self.last_feedback = now;
        self.reply_asked = false;
        while let Some(group) = self.in_flight.front() {
            if group.end > flushed {
                break;
            }
            self.in_flight_bytes -= group.bytes;
            self.in_flight.pop_front();
        }
        Ok(moved.then_some(Confirmation { flushed, restart }))
    }

    /// The new value of one position.
    fn check(&self, field: &'static str, before: Lsn, told: Lsn) -> Result<Lsn> {
        let sent = self.sent;
        if !told.is_valid() {
            Ok(before)
        } else if told < before {
            Err(Error::AckOutOfOrder {
                field,
                lsn: told,
                sent,
                problem: format!("before {before}, which was reported earlier"),
            })
        } else if told > self.sent {
            Err(Error::AckOutOfOrder { field, lsn: told, sent, problem: format!("beyond {sent}, the last that was sent") })
        } else {
            Ok(told.max(before))
        }
    }

    /// What is to be done at `now`.
    ///
    /// # Errors
    /// The consumer has been silent for its timeout.
    pub fn due(&self, now: Duration) -> Result<Due> {
        let timeout = self.settings.feedback_timeout;
        let mut next = self.last_sent + self.settings.keepalive_interval;
        if !timeout.is_zero() {
            let silent = now.saturating_sub(self.last_feedback);
            if silent >= timeout {
                return Err(Error::FeedbackTimeout {
                    silent_ms: silent.as_millis() as u64,
                    timeout_ms: timeout.as_millis() as u64,
                    last_flushed: self.positions.flushed,
                });
            }
            if silent >= timeout / 2 && !self.reply_asked {
                return Ok(Due::Keepalive { reply_requested: true });
            }
            let ask = if self.reply_asked { timeout } else { timeout / 2 };
            next = next.min(self.last_feedback + ask);
        }
        Ok(if now >= next { Due::Keepalive { reply_requested: false } } else { Due::At(next) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SETTINGS: SenderSettings = SenderSettings {
        credit_bytes: 1000,
        credit_batches: 3,
        keepalive_interval: Duration::from_secs(10),
        feedback_timeout: Duration::from_secs(60),
    };

    fn secs(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn flushed(lsn: u64) -> Positions {
        Positions { flushed: Lsn(lsn), ..Positions::default() }
    }

    fn confirmed(flushed: u64) -> Option<Confirmation> {
        Some(Confirmation { flushed: Lsn(flushed), restart: Lsn::INVALID })
    }

    #[test]
    fn credit_ends_at_flushed_while_restart_holds_wal() {
        let mut s = WalSender::new(SETTINGS, Lsn(100));
        let told = |flushed, restart| Positions { flushed: Lsn(flushed), restart: Lsn(restart), ..Positions::default() };
        s.on_sent(secs(0), Some(Lsn(200)), 1000);
        s.on_sent(secs(0), Some(Lsn(300)), 1000);
        let confirmed = s.on_feedback(secs(1), told(300, 150)).unwrap();
        assert_eq!(confirmed, Some(Confirmation { flushed: Lsn(300), restart: Lsn(150) }));
        assert!(s.may_send() && s.bytes_in_flight() == 0, "what must be read again after a crash takes no credit");
        assert_eq!(s.on_feedback(secs(1), told(300, 0)).unwrap(), None, "0 leaves it");
        assert_eq!(s.positions().restart, Lsn(150));
        for bad in [told(300, 149), told(300, 301)] {
            let before = s.positions();
            assert!(matches!(s.on_feedback(secs(1), bad), Err(Error::AckOutOfOrder { field: "feedback.restart_lsn", .. })));
            assert_eq!(s.positions(), before);
        }
        s.on_sent(secs(1), Some(Lsn(400)), 10);
        let error = s.on_feedback(secs(1), told(0, 350)).unwrap_err().to_string();
        assert!(error.contains("0/15E") && error.contains("flushed"), "{error}");
    }

    #[test]
    fn credit_comes_back_when_flushed_not_when_received() {
        let mut s = WalSender::new(SETTINGS, Lsn(100));
        s.on_sent(secs(0), Some(Lsn(200)), 600);
        s.on_sent(secs(0), Some(Lsn(300)), 600);
        assert!(!s.may_send());
        s.on_feedback(secs(1), Positions { received: Lsn(300), applied: Lsn(300), ..Positions::default() }).unwrap();
        assert!(!s.may_send(), "received and applied give none");
        assert_eq!(s.on_feedback(secs(1), flushed(199)).unwrap(), confirmed(199));
        assert!(!s.may_send(), "half of a batch gives none");
        assert_eq!(s.on_feedback(secs(1), flushed(200)).unwrap(), confirmed(200));
        assert!(s.may_send());
        assert_eq!(s.credit_bytes_left(), 400);
        assert_eq!(s.on_feedback(secs(1), flushed(200)).unwrap(), None, "to repeat is harmless");
    }

    #[test]
    fn batches_are_a_credit_of_their_own() {
        let mut s = WalSender::new(SETTINGS, Lsn(100));
        for end in [110, 120, 130] {
            assert!(s.may_send());
            s.on_sent(secs(0), Some(Lsn(end)), 1);
        }
        assert!(!s.may_send());
    }

    #[test]
    fn a_record_larger_than_the_credit_goes_whole_but_alone() {
        let mut s = WalSender::new(SETTINGS, Lsn(100));
        for _ in 0..5 {
            assert!(s.may_send());
            s.on_sent(secs(0), None, 900);
        }
        assert!(s.on_feedback(secs(0), flushed(101)).is_err(), "no part of a record can be flushed");
        s.on_sent(secs(0), Some(Lsn(9000)), 900);
        assert!(!s.may_send());
        assert_eq!(s.bytes_in_flight(), 5400);
        s.on_feedback(secs(0), flushed(9000)).unwrap();
        assert_eq!(s.bytes_in_flight(), 0);
    }

    #[test]
    fn positions_do_not_go_back_or_beyond() {
        let mut s = WalSender::new(SETTINGS, Lsn(100));
        s.on_sent(secs(0), Some(Lsn(200)), 1);
        s.on_feedback(secs(0), flushed(150)).unwrap();
        for bad in [flushed(149), flushed(201), Positions { applied: Lsn(201), ..Positions::default() }] {
            let before = s.positions();
            assert!(matches!(s.on_feedback(secs(0), bad), Err(Error::AckOutOfOrder { .. })), "{bad:?}");
            assert_eq!(s.positions(), before);
        }
        assert_eq!(s.on_feedback(secs(0), Positions::default()).unwrap(), None, "nothing told, nothing changed");
        s.on_keepalive(secs(1), Lsn(500), false);
        assert_eq!(s.on_feedback(secs(1), flushed(500)).unwrap(), confirmed(500), "progress may be confirmed");
        assert_eq!(s.positions().received, Lsn(500));
    }

    #[test]
    fn an_idle_stream_has_keepalives_and_a_silent_one_ends() {
        let mut s = WalSender::new(SETTINGS, Lsn(100));
        assert_eq!(s.due(secs(0)).unwrap(), Due::At(secs(10)));
        for t in [10, 20] {
            assert_eq!(s.due(secs(t)).unwrap(), Due::Keepalive { reply_requested: false });
            s.on_keepalive(secs(t), Lsn(100), false);
        }
        assert_eq!(s.due(secs(30)).unwrap(), Due::Keepalive { reply_requested: true });
        s.on_keepalive(secs(30), Lsn(100), true);
        assert_eq!(s.due(secs(31)).unwrap(), Due::At(secs(40)), "asked once");
        s.on_keepalive(secs(55), Lsn(100), false);
        assert_eq!(s.due(secs(55)).unwrap(), Due::At(secs(60)));
        assert!(matches!(s.due(secs(60)), Err(Error::FeedbackTimeout { silent_ms: 60_000, .. })));
        s.on_feedback(secs(60), Positions::default()).unwrap();
        assert!(s.due(secs(61)).is_ok());
    }

    #[test]
    fn a_busy_stream_asks_for_replies_too_and_zero_never_ends() {
        let mut s = WalSender::new(SETTINGS, Lsn(100));
        s.on_sent(secs(30), Some(Lsn(200)), 1);
        assert_eq!(s.due(secs(30)).unwrap(), Due::Keepalive { reply_requested: true });
        let s = WalSender::new(SenderSettings { feedback_timeout: Duration::ZERO, ..SETTINGS }, Lsn(100));
        assert_eq!(s.due(secs(1_000_000)).unwrap(), Due::Keepalive { reply_requested: false });
    }

    proptest! {
        #[test]
        fn i1_i2_i3_hold_for_any_consumer(
            steps in proptest::collection::vec((0u8..4, 0u64..3000, 1u64..700), 1..200)
        ) {
            let mut s = WalSender::new(SETTINGS, Lsn(100));
            let mut at = 100;
            let mut groups = vec![];
            for (op, lsn, bytes) in steps {
                let before = s.positions();
                match op {
                    0 | 1 if s.may_send() => {
                        at += bytes;
                        s.on_sent(secs(0), Some(Lsn(at)), bytes);
                        groups.push((at, bytes));
                    }
                    2 => { let _ = s.on_feedback(secs(0), flushed(lsn)); }
                    _ => { let _ = s.on_feedback(secs(0), Positions { received: Lsn(lsn), ..Positions::default() }); }
                }
                let p = s.positions();
                prop_assert!(p.flushed >= before.flushed && p.received >= before.received && p.received <= s.sent());
                let model: Vec<_> = groups.iter().filter(|(end, _)| *end > p.flushed.0).collect();
                let sum: u64 = model.iter().map(|(_, b)| b).sum();
                prop_assert_eq!(s.bytes_in_flight(), sum);
                prop_assert!(sum < SETTINGS.credit_bytes + 700, "I1");
                prop_assert!(model.len() <= SETTINGS.credit_batches as usize, "I3");
                prop_assert_eq!(s.may_send(), model.is_empty() || (sum < 1000 && model.len() < 3));
            }
        }
    }
}
