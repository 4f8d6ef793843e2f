//! `walstorm.decoder.v1.EventBatch`, kept encoded.
//!
//! A decoder encodes an event once, stores it, and sends it to any number of subscribers; decoding and encoding it again for each
//! would cost more than decoding the WAL did. So this message holds its fields as bytes and decodes an event when it is asked for.
//! On the wire it is what the `.proto` file says.

use std::fmt;

use bytes::{Buf, BufMut, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field};
use prost::{DecodeError, Message};

use crate::decoder::v1::Event;

/// Field number of `events`.
const EVENTS: u32 = 1;

/// Events in order.
#[derive(Clone, Default)]
pub struct EventBatch {
    /// Whole encoded fields, shared with whoever stores them.
    shared: Bytes,
    /// More of them, after those: what was received or pushed.
    own: Vec<u8>,
}

impl EventBatch {
    /// A batch of `encoded` fields `events`, as [`EventBatch::put`] writes them. Nothing is copied, nothing is checked.
    #[must_use]
    pub fn from_encoded(encoded: Bytes) -> Self {
        Self { shared: encoded, own: Vec::new() }
    }

    /// Appends `event` to `buf` as a field of a batch.
    pub fn put(event: &Event, buf: &mut impl BufMut) {
        prost::encoding::message::encode(EVENTS, event, buf);
    }

    /// Appends an event.
    pub fn push(&mut self, event: &Event) {
        Self::put(event, &mut self.own);
    }

    /// The events, decoded one by one. After an error there are no more.
    pub fn events(&self) -> impl Iterator<Item = Result<Event, DecodeError>> {
        let mut parts = [&self.shared[..], &self.own[..]];
        std::iter::from_fn(move || {
            let part = parts.iter_mut().find(|part| !part.is_empty())?;
            let event = next_event(part).transpose();
            if matches!(event, Some(Err(_))) {
                parts = [&[], &[]];
            }
            event
        })
    }
}

/// Takes fields from `buf` up to and with the next event; `None` if there is none.
fn next_event(buf: &mut &[u8]) -> Result<Option<Event>, DecodeError> {
    while buf.has_remaining() {
        let (tag, wire_type) = decode_key(buf)?;
        if (tag, wire_type) == (EVENTS, WireType::LengthDelimited) {
            return Event::decode_length_delimited(buf).map(Some);
        }
        skip_field(wire_type, tag, buf, DecodeContext::default())?;
    }
    Ok(None)
}

impl<'a> FromIterator<&'a Event> for EventBatch {
    fn from_iter<I: IntoIterator<Item = &'a Event>>(events: I) -> Self {
        let mut batch = Self::default();
        events.into_iter().for_each(|event| batch.push(event));
        batch
    }
}

impl PartialEq for EventBatch {
    fn eq(&self, other: &Self) -> bool {
        self.encoded_len() == other.encoded_len()
            && self.shared.iter().chain(&self.own).eq(other.shared.iter().chain(&other.own))
    }
}

impl fmt::Debug for EventBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.events()).finish()
    }
}

impl Message for EventBatch {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        buf.put_slice(&self.shared);
        buf.put_slice(&self.own);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        if tag != EVENTS {
            return skip_field(wire_type, tag, buf, ctx);
        }
        prost::encoding::check_wire_type(WireType::LengthDelimited, wire_type)?;
        let len = decode_varint(buf)?;
        let Some(available) = usize::try_from(len).ok().filter(|len| *len <= buf.remaining()) else {
            // The same error that every other message gives: ask prost for it.
            return prost::encoding::bytes::merge(wire_type, &mut Bytes::new(), &mut &[1u8][..], ctx);
        };
        encode_key(EVENTS, WireType::LengthDelimited, &mut self.own);
        encode_varint(len, &mut self.own);
        self.own.put(buf.take(available));
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        self.shared.len() + self.own.len()
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::v1::{Begin, Commit, SubscribeResponse, event, subscribe_response};

    fn events() -> Vec<Event> {
        let begin = Begin { xid: 700, first_lsn: 1 << 40, commit_lsn: (1 << 40) + 100, prepared: false };
        let commit = Commit { xid: 700, subxids: vec![701, 702], end_lsn: (1 << 40) + 140, ..Commit::default() };
        [event::Kind::Begin(begin), event::Kind::Commit(commit)].map(|kind| Event { kind: Some(kind) }).to_vec()
    }

    #[test]
    fn what_is_stored_encoded_arrives_as_events() {
        let mut stored = Vec::new();
        events().iter().for_each(|e| EventBatch::put(e, &mut stored));
        let batch = EventBatch::from_encoded(stored.into());
        let response = SubscribeResponse { kind: Some(subscribe_response::Kind::Batch(batch.clone())) };
        let received = SubscribeResponse::decode(&response.encode_to_vec()[..]).unwrap();
        assert_eq!(received, response);
        let Some(subscribe_response::Kind::Batch(received)) = received.kind else { panic!("{received:?}") };
        assert_eq!(received.events().collect::<Result<Vec<_>, _>>().unwrap(), events());
        assert_eq!(received, events().iter().collect());
        assert_ne!(received, EventBatch::default());
    }

    #[test]
    fn unknown_fields_are_passed_over() {
        let mut stored = vec![0x10, 5]; // Field 2, varint.
        EventBatch::put(&events()[0], &mut stored);
        let received = EventBatch::decode(&stored[..]).unwrap();
        for batch in [received, EventBatch::from_encoded(stored.into())] {
            assert_eq!(batch.events().collect::<Result<Vec<_>, _>>().unwrap(), events()[..1]);
        }
    }

    #[test]
    fn any_cut_is_an_error_or_fewer_events_and_never_a_panic() {
        let mut stored = Vec::new();
        events().iter().for_each(|e| EventBatch::put(e, &mut stored));
        for cut in 0..stored.len() {
            let lazy = EventBatch::from_encoded(Bytes::copy_from_slice(&stored[..cut]));
            let lazy: Result<Vec<_>, _> = lazy.events().collect();
            let eager = EventBatch::decode(&stored[..cut]);
            assert_eq!(lazy.is_ok(), eager.is_ok(), "cut at {cut}");
            if let Ok(events) = lazy {
                assert!(events.len() < 2);
            }
        }
        assert!(EventBatch::decode(&[0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F][..]).is_err());
    }
}
