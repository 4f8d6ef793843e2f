//! `HoldSnapshot`: a reader whose snapshot lives as long as its stream, and that replay may cancel.

use pg_types::{Lsn, Oid, Xid};
use service_kit::status::{Reason, failure, invalid_field};
use standby_core::RecoveryError;
use standby_core::held::{ConflictKind, HeldSnapshot};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::{Status, Streaming};
use walstorm_proto::standby::v1::hold_snapshot_request::Kind as Up;
use walstorm_proto::standby::v1::hold_snapshot_response::Kind as Down;
use walstorm_proto::standby::v1::{HoldSnapshotRequest, HoldSnapshotResponse, HoldStart, LockRelation, LockResult};

use super::{StandbyServer, convert};

/// Xids that one message may ask about.
const XIDS_MAX: usize = 10_000;

/// Where answers go.
type Responses = mpsc::Sender<Result<HoldSnapshotResponse, Status>>;

/// Serves one reader until it leaves, is cancelled, or the node stops.
pub(super) async fn run(
    server: &StandbyServer,
    mut requests: Streaming<HoldSnapshotRequest>,
    responses: &Responses,
    deadline: Instant,
) -> Result<(), Status> {
    let Some(first) = server.first_message(&mut requests).await? else { return Ok(()) };
    let Some(Up::Start(start)) = first.kind else {
        return Err(invalid_field("start", "the first message must be a start").into());
    };
    let mut progress = server.progress.clone();
    let database = Oid(start.database);
    let held = take(server, start, responses, deadline).await?;
    loop {
        if let Some(kind) = held.cancelled() {
            return Err(cancelled(kind));
        }
        tokio::select! {
            request = requests.message() => match request? {
                None => return Ok(()),
                Some(HoldSnapshotRequest { kind: Some(Up::Lock(lock)) }) => {
                    let granted = locked(&held, database, lock).map_err(|e| server.refusal(&e))?;
                    answer(responses, Down::Lock(LockResult { granted })).await;
                }
                Some(HoldSnapshotRequest { kind: Some(Up::Check(check)) }) if check.xids.len() <= XIDS_MAX => {
                    let visibility = held.visibility(check.xids.into_iter().map(Xid));
                    answer(responses, Down::Visibility(convert::visibility(visibility))).await;
                }
                Some(HoldSnapshotRequest { kind: Some(Up::Check(_)) }) => {
                    return Err(invalid_field("check.xids", format!("must be at most {XIDS_MAX}")).into());
                }
                Some(_) => return Err(invalid_field("kind", "after the start only locks and checks may come").into()),
            },
            // Replay publishes whenever it has cancelled somebody; when it has ended nobody will be.
            changed = progress.changed() => if changed.is_err() { return Err(server.ended().into()) },
            () = server.drain.draining() => return Err(StandbyServer::stops().into()),
        }
    }
}

/// Takes the snapshot and answers with it.
async fn take(
    server: &StandbyServer,
    start: HoldStart,
    responses: &Responses,
    deadline: Instant,
) -> Result<HeldSnapshot, Status> {
    let wanted = start.snapshot.unwrap_or_default();
    let min_lsn = Lsn(wanted.min_lsn);
    server.state_at(min_lsn, deadline).await?;
    let reader = server.readable()?.reader;
    let held = reader.hold_snapshot(Oid(start.database)).map_err(|e| server.refusal(&e))?;
    server.totals.given();
    // The state that the snapshot is of, or a later one: only the sizes of the array are taken from it.
    let mut snapshot = convert::snapshot(&reader.state(), held.taken(), Lsn::INVALID, &wanted);
    server.add_age(&mut snapshot);
    answer(responses, Down::Snapshot(snapshot)).await;
    Ok(held)
}

/// Locks a relation, if replay has not.
fn locked(held: &HeldSnapshot, database: Oid, lock: LockRelation) -> Result<bool, RecoveryError> {
    held.lock(if lock.shared { Oid::INVALID } else { database }, Oid(lock.relation))
}

/// Sends an answer. A client that is gone ends the stream by itself.
async fn answer(responses: &Responses, kind: Down) {
    let _ = responses.send(Ok(HoldSnapshotResponse { kind: Some(kind) })).await;
}

/// Replay has cancelled the reader.
fn cancelled(kind: ConflictKind) -> Status {
    let (conflict, why) = match kind {
        ConflictKind::Snapshot => ("snapshot", "it removes rows that the snapshot may see"),
        ConflictKind::Lock => ("lock", "it locks a relation that the reader has locked"),
    };
    let message = format!("replay has cancelled the reader: {why}; start again");
    failure(Reason::RecoveryConflict, message).metadata("conflict", conflict).into()
}
