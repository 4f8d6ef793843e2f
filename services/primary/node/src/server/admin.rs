//! `AdminService`: slots, streams, and what the server is.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pg_types::{Lsn, PgVersion};
use tonic::{Request, Response, Status};
use walstorm_proto::admin::v1 as pb;
use walstorm_proto::admin::v1::admin_service_server::AdminService;

use super::slot_filter::SlotFilter;
use super::streams::{Blocked, StreamStats};
use super::{State, convert};
use crate::error::{Error, Result};
use crate::slots::{
    BuildState, CreationReport, Persistency, Slot, SlotBuilder, SlotFile, SlotKind, Slots, restart_decoding, validate_name,
};
use crate::wal_log::LogSource;

/// Entries on a page if the client does not say.
const PAGE_SIZE_DEFAULT: usize = 50;
/// Most entries on a page.
const PAGE_SIZE_MAX: usize = 1000;
/// How long a temporary slot waits for its first stream.
const TEMPORARY_TIMEOUT: Duration = Duration::from_secs(300);
/// How long CreateSlot waits for a logical slot if the client does not say.
const WAIT_DEFAULT: Duration = Duration::from_secs(10);
/// Longest such wait.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// `AdminService`.
pub(super) struct Admin {
    /// The node.
    pub(super) state: Arc<State>,
}

impl Admin {
    /// Runs something that blocks on the disk.
    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(&Slots) -> Result<T> + Send + 'static) -> Result<T> {
        let slots = self.state.slots.clone();
        let joined = service_kit::blocking::spawn(move || work(&slots)).await;
        joined.map_err(|e| Error::Internal(format!("storing slots failed: {e}")))?
    }

    /// A slot for clients.
    fn message(&self, slot: &Slot) -> pb::Slot {
        slot_message(slot, self.state.log.end().lsn)
    }

    /// Removes a temporary slot that no stream takes in time.
    fn expire_later(&self, slot: &Slot) {
        if slot.persistency != Persistency::Temporary {
            return;
        }
        let (slots, drain) = (self.state.slots.clone(), self.state.drain.clone());
        let (name, created_at_ms) = (slot.state.name.clone(), slot.state.created_at_ms);
        tokio::spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(TEMPORARY_TIMEOUT) => {}
                () = drain.draining() => {}
            }
            if slots.expire(&name, created_at_ms) {
                tracing::info!(slot = name, "removed a temporary slot that no stream took");
            }
        });
    }

    /// Waits until a logical slot is built, cannot be, or `timeout` has passed; gives the slot as it is then.
    async fn wait_until_built(&self, slot: Slot, timeout: Duration) -> Result<Slot, Status> {
        let mut built = self.state.slots.built();
        let waited = async {
            loop {
                built.mark_unchanged();
                let now = self.state.slots.table().get(&slot.state.name)?;
                let failed = now.creation.as_ref().is_some_and(|creation| !creation.failure.is_empty());
                if !now.state.building || failed || now.state.invalidated.is_some() {
                    return Ok(now);
                }
                // The sender lives as long as the slots.
                let _ = built.changed().await;
            }
        };
        tokio::select! {
            slot = waited => slot.map_err(|error: Error| error.into()),
            () = tokio::time::sleep(timeout) => Ok(self.state.slots.table().get(&slot.state.name)?),
            () = self.state.drain.draining() => Err(Error::Draining.into()),
        }
    }
}

/// Checks the last part of a new slot's name.
fn check_slot_id(slot_id: &str) -> Result<()> {
    validate_name(slot_id).map_err(|_| Error::field("slot_id", "a slot's name has 1 to 63 of the characters a-z, 0-9 and _"))
}

/// How many entries a page has.
fn page_size(asked: i32) -> Result<usize> {
    match usize::try_from(asked) {
        Err(_) => Err(Error::field("page_size", "must not be negative")),
        Ok(0) => Ok(PAGE_SIZE_DEFAULT),
        Ok(size) => Ok(size.min(PAGE_SIZE_MAX)),
    }
}

/// How long a named slot lives.
fn persistency(temporary: bool) -> Persistency {
    if temporary { Persistency::Temporary } else { Persistency::Persistent }
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn create_slot(&self, request: Request<pb::CreateSlotRequest>) -> Result<Response<pb::CreateSlotResponse>, Status> {
        let request = request.into_inner();
        check_slot_id(&request.slot_id)?;
        let kind = pb::SlotKind::try_from(request.kind)
            .map_err(|_| Error::field("kind", "must be SLOT_KIND_PHYSICAL or SLOT_KIND_LOGICAL"))?;
        let timeout = convert::duration_field("wait_timeout", request.wait_timeout, WAIT_DEFAULT, Duration::ZERO, WAIT_MAX)?;
        let State { log, slots, drain, .. } = self.state.as_ref();
        let start = convert::optional_lsn(request.start_lsn).unwrap_or_else(|| log.oldest());
        log.check_start(start)?;
        let logical = kind == pb::SlotKind::Logical;
        let new = if logical { SlotFile::new_logical } else { SlotFile::new };
        let file = new(&request.slot_id, &log.identity(), start, self.state.now_ms());
        let mut slot = self.blocking(move |slots| slots.create(file, persistency(request.temporary))).await?;
        self.expire_later(&slot);
        if logical {
            SlotBuilder::spawn(slots, log, drain, &slot.state);
            slot = self.wait_until_built(slot, timeout).await?;
        }
        Ok(Response::new(pb::CreateSlotResponse { slot: Some(self.message(&slot)) }))
    }

    async fn get_slot(&self, request: Request<pb::GetSlotRequest>) -> Result<Response<pb::GetSlotResponse>, Status> {
        let request = request.into_inner();
        let slot = self.state.slots.table().get(convert::slot_name("name", &request.name)?)?;
        Ok(Response::new(pb::GetSlotResponse { slot: Some(self.message(&slot)) }))
    }

    async fn list_slots(&self, request: Request<pb::ListSlotsRequest>) -> Result<Response<pb::ListSlotsResponse>, Status> {
        let request = request.into_inner();
        let size = page_size(request.page_size)?;
        let filter = SlotFilter::parse(&request.filter)?;
        // The token is the name after which the page begins: it stays good when slots come and go.
        let table = self.state.slots.table();
        let mut slots: Vec<pb::Slot> = table
            .list()
            .filter(|slot| slot.state.name.as_str() > request.page_token.as_str())
            .map(|slot| self.message(slot))
            .filter(|slot| filter.takes(slot))
            .take(size + 1)
            .collect();
        drop(table);
        let more = slots.len() > size;
        slots.truncate(size);
        let last = slots.last().and_then(|slot| slot.name.strip_prefix("slots/")).filter(|_| more);
        let next_page_token = last.unwrap_or_default().to_owned();
        Ok(Response::new(pb::ListSlotsResponse { slots, next_page_token }))
    }

    async fn delete_slot(&self, request: Request<pb::DeleteSlotRequest>) -> Result<Response<pb::DeleteSlotResponse>, Status> {
        let request = request.into_inner();
        let name = convert::slot_name("name", &request.name)?.to_owned();
        self.blocking(move |slots| slots.delete(&name, &request.etag, request.force)).await?;
        Ok(Response::new(pb::DeleteSlotResponse {}))
    }

    async fn advance_slot(
        &self,
        request: Request<pb::AdvanceSlotRequest>,
    ) -> Result<Response<pb::AdvanceSlotResponse>, Status> {
        let request = request.into_inner();
        let name = convert::slot_name("name", &request.name)?.to_owned();
        let Some(target) = convert::optional_lsn(request.target_lsn) else {
            return Err(Error::field("target_lsn", "must be set").into());
        };
        let end = self.state.log.end().lsn;
        if target > end {
            return Err(Error::LsnAhead { requested: target, end }.into());
        }
        let state = Arc::clone(&self.state);
        let find = move |restart| {
            // Reading WAL for it costs what a stream does, also when the client has gone.
            let _permit = state.admit()?;
            restart_decoding::find(&state.log, restart, target, &state.drain)
        };
        let slot = self.blocking(move |slots| slots.advance(&name, target, &request.etag, find)).await?;
        Ok(Response::new(pb::AdvanceSlotResponse { slot: Some(self.message(&slot)) }))
    }

    async fn copy_slot(&self, request: Request<pb::CopySlotRequest>) -> Result<Response<pb::CopySlotResponse>, Status> {
        let request = request.into_inner();
        let source = convert::slot_name("name", &request.name)?.to_owned();
        check_slot_id(&request.slot_id)?;
        let (persistency, now_ms) = (persistency(request.temporary), self.state.now_ms());
        let slot = self.blocking(move |slots| slots.copy(&source, &request.slot_id, persistency, now_ms)).await?;
        self.expire_later(&slot);
        Ok(Response::new(pb::CopySlotResponse { slot: Some(self.message(&slot)) }))
    }

    async fn list_streams(
        &self,
        request: Request<pb::ListStreamsRequest>,
    ) -> Result<Response<pb::ListStreamsResponse>, Status> {
        let request = request.into_inner();
        let size = page_size(request.page_size)?;
        let after = match request.page_token.as_str() {
            "" => 0,
            token => token.parse().map_err(|_| Error::field("page_token", "is not one that this method gave out"))?,
        };
        let (mut page, buffered_bytes) = self.state.registry.list(after, size + 1);
        let more = page.len() > size;
        page.truncate(size);
        let last = page.last().filter(|_| more);
        let next_page_token = last.map_or_else(String::new, |stream| stream.id.to_string());
        let streams = page.iter().map(|stream| stream_message(stream)).collect();
        Ok(Response::new(pb::ListStreamsResponse { streams, next_page_token, buffered_bytes }))
    }

    async fn get_server_info(
        &self,
        _: Request<pb::GetServerInfoRequest>,
    ) -> Result<Response<pb::GetServerInfoResponse>, Status> {
        let State { log, started_ms, .. } = self.state.as_ref();
        let identity = log.identity();
        let source = match log.source() {
            LogSource::Segments => pb::SourceKind::Segments,
            LogSource::Archive => pb::SourceKind::Archive,
            LogSource::Simulated => pb::SourceKind::Simulated,
        };
        Ok(Response::new(pb::GetServerInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            system_id: identity.system_id,
            timeline: identity.timeline,
            pg_version: identity.version.major(),
            segment_size: identity.segment_size,
            wal_start_lsn: log.oldest().0,
            wal_end_lsn: log.end().lsn.0,
            source: source.into(),
            readable_pg_versions: PgVersion::ALL.into_iter().map(PgVersion::major).collect(),
            active_streams: u32::try_from(self.state.open_streams()).unwrap_or(u32::MAX),
            start_time: Some(convert::timestamp_ms(*started_ms)),
        }))
    }
}

/// A slot for clients, of a log that ends at `end`.
fn slot_message(slot: &Slot, end: Lsn) -> pb::Slot {
    let state = match (&slot.state.invalidated, &slot.active) {
        (Some(_), _) => pb::SlotState::Invalidated,
        (None, _) if slot.state.building => pb::SlotState::Building,
        (None, Some(_)) => pb::SlotState::Active,
        (None, None) => pb::SlotState::Free,
    };
    let kind = match slot.state.kind {
        SlotKind::Physical => pb::SlotKind::Physical,
        SlotKind::Logical => pb::SlotKind::Logical,
    };
    let active = slot.active.as_ref();
    let kept = if slot.state.invalidated.is_some() { 0 } else { end.0.saturating_sub(slot.state.restart_lsn.0) };
    pb::Slot {
        name: format!("slots/{}", slot.state.name),
        state: state.into(),
        restart_lsn: slot.state.restart_lsn.0,
        confirmed_flush_lsn: slot.state.confirmed_flush_lsn.0,
        received_lsn: active.map_or(Lsn(0), |a| a.received).0,
        applied_lsn: active.map_or(Lsn(0), |a| a.applied).0,
        active_client_id: active.map_or_else(String::new, |a| a.client_id.clone()),
        active_since: active.map(|a| convert::timestamp_ms(a.since_ms)),
        invalidation_cause: slot.state.invalidated.clone().unwrap_or_default(),
        xmin: slot.state.xmin,
        catalog_xmin: slot.state.catalog_xmin,
        create_time: Some(convert::timestamp_ms(slot.state.created_at_ms)),
        etag: slot.etag(),
        kind: kind.into(),
        temporary: slot.persistency != Persistency::Persistent,
        creation: slot.state.building.then(|| creation_message(slot.creation.as_deref().unwrap_or(&CreationReport::default()))),
        kept_bytes: kept,
    }
}

/// How far the creation of a slot is.
fn creation_message(report: &CreationReport) -> pb::SlotCreation {
    let state = match report.state {
        BuildState::Start => pb::SlotCreationState::Start,
        BuildState::Building => pb::SlotCreationState::Building,
        BuildState::FullSnapshot => pb::SlotCreationState::Full,
        BuildState::Consistent => pb::SlotCreationState::Consistent,
    };
    let running = report.running.iter().map(|transaction| pb::RunningTransaction {
        xid: transaction.xid.0,
        since_lsn: transaction.since_lsn.0,
        since: transaction.since.map(convert::timestamp),
        began_earlier: transaction.began_earlier,
    });
    pb::SlotCreation {
        state: state.into(),
        state_lsn: report.state_lsn.0,
        waits_for_xid: report.waits_for.0,
        transactions: running.collect(),
        transaction_count: u32::try_from(report.running_count).unwrap_or(u32::MAX),
        read_lsn: report.read_to.0,
        failure: report.failure.clone(),
    }
}

/// A stream for clients.
fn stream_message(stats: &StreamStats) -> pb::Stream {
    let blocked_on = match stats.blocked() {
        Blocked::Source => pb::BlockedOn::Source,
        Blocked::Credit => pb::BlockedOn::Credit,
        Blocked::Window => pb::BlockedOn::Window,
    };
    pb::Stream {
        id: stats.id,
        client_id: stats.client_id.clone(),
        slot: stats.slot.clone(),
        start_time: Some(convert::timestamp_ms(stats.start_ms)),
        sent_lsn: stats.sent.load(Ordering::Relaxed),
        received_lsn: stats.received.load(Ordering::Relaxed),
        flushed_lsn: stats.flushed.load(Ordering::Relaxed),
        applied_lsn: stats.applied.load(Ordering::Relaxed),
        outstanding_bytes: stats.outstanding_bytes.load(Ordering::Relaxed),
        buffered_bytes: stats.buffered_bytes(),
        blocked_on: blocked_on.into(),
    }
}
