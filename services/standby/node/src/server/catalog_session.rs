//! `OpenCatalogSession`: a backend that reads catalogs, for as long as its stream.

use pg_types::{Lsn, Oid};
use service_kit::status::invalid_field;
use standby_core::catalog_session::CatalogSession;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tonic::{Status, Streaming};
use walstorm_proto::standby::v1::open_catalog_session_request::Kind as Up;
use walstorm_proto::standby::v1::{OpenCatalogSessionRequest, OpenCatalogSessionResponse};

use super::{StandbyServer, convert};
use crate::progress::Progress;

/// Scans that one message may ask for.
const SCANS_MAX: u32 = 1000;

/// Serves one session until it leaves or the node stops.
pub(super) async fn run(
    server: &StandbyServer,
    mut requests: Streaming<OpenCatalogSessionRequest>,
    responses: &mpsc::Sender<Result<OpenCatalogSessionResponse, Status>>,
) -> Result<(), Status> {
    let Some(first) = server.first_message(&mut requests).await? else { return Ok(()) };
    let Some(Up::Start(start)) = first.kind else {
        return Err(invalid_field("start", "the first message must be a start").into());
    };
    let rule = convert::catalog_snapshot_rule(start.rule)?;
    server.state_at(Lsn::INVALID, Instant::now()).await?;
    let readable = server.readable()?;
    let mut session = readable.reader.open_session(readable.version, rule).map_err(|e| server.refusal(&e))?;
    let mut progress = server.progress.clone();
    let mut answer = OpenCatalogSessionResponse::default();
    loop {
        let counts = session.queue_counts();
        answer.snapshots_total = session.snapshots_taken();
        answer.entries = u32::try_from(session.entry_count()).unwrap_or(u32::MAX);
        (answer.resets_total, answer.signals_total) = (counts.resets, counts.signals);
        if responses.send(Ok(answer)).await.is_err() {
            return Ok(());
        }
        let next = next_request(server, &mut requests, &mut session, &mut progress, start.busy).await?;
        let Some(request) = next else { return Ok(()) };
        answer = act(server, &mut session, request)?;
    }
}

/// The next message; none at the end. An idle backend is woken by a catch-up signal; here one is looked for after each batch that was
/// replayed, unless the session is busy, and before the next message is read (`ProcessClientReadInterrupt`).
async fn next_request(
    server: &StandbyServer,
    requests: &mut Streaming<OpenCatalogSessionRequest>,
    session: &mut CatalogSession,
    progress: &mut watch::Receiver<Progress>,
    busy: bool,
) -> Result<Option<OpenCatalogSessionRequest>, Status> {
    loop {
        tokio::select! {
            biased;
            changed = progress.changed() => {
                if changed.is_err() {
                    return Err(server.ended().into());
                }
                if !busy {
                    session.answer_signal();
                }
            }
            request = requests.message() => return request,
            () = server.drain.draining() => return Err(StandbyServer::stops().into()),
        }
    }
}

/// Does what one message says.
fn act(
    server: &StandbyServer,
    session: &mut CatalogSession,
    request: OpenCatalogSessionRequest,
) -> Result<OpenCatalogSessionResponse, Status> {
    let mut answer = OpenCatalogSessionResponse::default();
    match request.kind {
        Some(Up::Connect(connect)) => session.connect(Oid(connect.database)),
        Some(Up::Scan(scan)) if scan.scans <= SCANS_MAX => {
            let scanned = session.scan_together(Oid(scan.relation), scan.scans.max(1)).map_err(|e| server.refusal(&e))?;
            answer = convert::scanned(scanned);
        }
        Some(Up::Scan(_)) => return Err(invalid_field("scan.scans", format!("must be at most {SCANS_MAX}")).into()),
        Some(Up::Snapshot(_)) => {
            let taken = session.transaction_snapshot().map_err(|e| server.refusal(&e))?;
            server.totals.given();
            (answer.snapshots, answer.replay_lsn) = (1, taken.snapshot.replay_lsn.0);
            (answer.slots_visited, answer.slots_skipped) = (taken.slots.visited, taken.slots.skipped);
            answer.reused = taken.reused;
        }
        Some(Up::EndTransaction(_)) => session.end_transaction(),
        Some(Up::Lookup(lookup)) => {
            let (read_at, scan) = session.lookup(convert::cache_key(lookup)?).map_err(|e| server.refusal(&e))?;
            answer = scan.map_or(OpenCatalogSessionResponse { hit: true, ..answer }, convert::scanned);
            answer.replay_lsn = read_at.0;
        }
        Some(Up::Start(_)) | None => {
            return Err(invalid_field("kind", "after the start only what a session does may come").into());
        }
    }
    Ok(answer)
}
