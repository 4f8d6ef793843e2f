//! `AdminService`: slots and what the server is.

use std::sync::Arc;

use pg_types::{Lsn, PgVersion};
use tonic::{Request, Response, Status};
use walstorm_proto::admin::v1 as pb;
use walstorm_proto::admin::v1::admin_service_server::AdminService;

use super::{State, convert};
use crate::error::{Error, Result};
use crate::slots::{Slot, SlotFile, Slots, validate_name};
use crate::wal_log::LogSource;

/// Slots on a page if the client does not say.
const PAGE_SIZE_DEFAULT: usize = 50;
/// Most slots on a page.
const PAGE_SIZE_MAX: usize = 1000;

/// `AdminService`.
pub(super) struct Admin {
    /// The node.
    pub(super) state: Arc<State>,
}

impl Admin {
    /// Runs something that blocks on the disk.
    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(&Slots) -> Result<T> + Send + 'static) -> Result<T> {
        let slots = self.state.slots.clone();
        let joined = tokio::task::spawn_blocking(move || work(&slots)).await;
        joined.map_err(|e| Error::Internal(format!("storing slots failed: {e}")))?
    }
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn create_slot(&self, request: Request<pb::CreateSlotRequest>) -> Result<Response<pb::CreateSlotResponse>, Status> {
        let request = request.into_inner();
        validate_name(&request.slot_id)
            .map_err(|_| Error::field("slot_id", "a slot's name has 1 to 63 of the characters a-z, 0-9 and _"))?;
        let log = &self.state.log;
        let start = convert::optional_lsn(request.start_lsn).unwrap_or_else(|| log.oldest());
        log.check_start(start)?;
        let file = SlotFile::new(&request.slot_id, &log.identity(), start, self.state.now_ms());
        let slot = self.blocking(move |slots| slots.create(file)).await?;
        Ok(Response::new(pb::CreateSlotResponse { slot: Some(slot_message(&slot)) }))
    }

    async fn get_slot(&self, request: Request<pb::GetSlotRequest>) -> Result<Response<pb::GetSlotResponse>, Status> {
        let request = request.into_inner();
        let slot = self.state.slots.table().get(convert::slot_name("name", &request.name)?)?;
        Ok(Response::new(pb::GetSlotResponse { slot: Some(slot_message(&slot)) }))
    }

    async fn list_slots(&self, request: Request<pb::ListSlotsRequest>) -> Result<Response<pb::ListSlotsResponse>, Status> {
        let request = request.into_inner();
        let size = match usize::try_from(request.page_size) {
            Err(_) => return Err(Error::field("page_size", "must not be negative").into()),
            Ok(0) => PAGE_SIZE_DEFAULT,
            Ok(size) => size.min(PAGE_SIZE_MAX),
        };
        // The token is the name after which the page begins: it stays good when slots come and go.
        let table = self.state.slots.table();
        let mut slots: Vec<pb::Slot> = table
            .list()
            .filter(|slot| slot.state.name.as_str() > request.page_token.as_str())
            .take(size + 1)
            .map(slot_message)
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

    async fn get_server_info(
        &self,
        _: Request<pb::GetServerInfoRequest>,
    ) -> Result<Response<pb::GetServerInfoResponse>, Status> {
        let State { log, started_ms, .. } = self.state.as_ref();
        let identity = log.identity();
        let source = match log.source() {
            LogSource::Segments => pb::SourceKind::Segments,
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

/// A slot for clients.
fn slot_message(slot: &Slot) -> pb::Slot {
    let state = match (&slot.state.invalidated, &slot.active) {
        (Some(_), _) => pb::SlotState::Invalidated,
        (None, Some(_)) => pb::SlotState::Active,
        (None, None) => pb::SlotState::Free,
    };
    let active = slot.active.as_ref();
    let (xmin, catalog_xmin) = active.map_or((0, 0), |a| a.xmins);
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
        xmin,
        catalog_xmin,
        create_time: Some(convert::timestamp_ms(slot.state.created_at_ms)),
        etag: slot.etag(),
    }
}
