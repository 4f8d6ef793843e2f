//! What was there before the log begins: tables and publications of the scenario, made by the same statements, with their records
//! thrown away.

use std::sync::Arc;

use pg_types::{FullXid, PgVersion, Timestamp};

use crate::backend::{Backend, Cluster, Result};
use crate::backend_numbers::BackendNumbers;
use crate::catalog::{Catalog, CatalogTraits};
use crate::ddl::create_table::TableSpec;
use crate::ddl::object::ObjectStatement;
use crate::error::PrimaryError;
use crate::proc_array::ProcArray;
use crate::scenario::{Plan, PublicationPlan, TablePlan};
use crate::sink::NullSink;
use crate::twophase::TwoPhaseState;
use crate::xact::Transaction;

use super::{Continuation, named};

/// `FrozenTransactionId`: whatever was there before is visible to everybody.
const FROZEN: FullXid = FullXid(2);

/// A cluster with the scenario's tables, ready to write its first record.
pub(super) fn bootstrap(
    plan: &Plan,
    version: PgVersion,
    from: Option<Continuation>,
) -> std::result::Result<Cluster, PrimaryError> {
    let mut catalog = Catalog::new(CatalogTraits::of(version));
    if let Some(from) = from {
        catalog.next_oid = from.next_oid;
    }
    let mut cluster = Cluster::new(catalog, ProcArray::new(FROZEN));
    cluster.autovacuum = plan.server.autovacuum;
    cluster.wal_level = plan.server.wal_level;
    for table in &plan.tables {
        for index in (0..table.count).map(|n| table.first.saturating_add(n)) {
            make(&mut cluster, table, index).map_err(|error| named("bootstrap", "CREATE TABLE", error))?;
        }
    }
    for publication in &plan.publications {
        for number in publication.numbers.0..=publication.numbers.1 {
            let published = publish(&mut cluster, publication, number);
            published.map_err(|error| named("bootstrap", "CREATE PUBLICATION", error))?;
        }
    }
    let next_xid = from.map_or(FullXid(plan.server.first_xid), |from| from.next_xid);
    let mut cluster = Cluster::new(cluster.catalog, ProcArray::new(next_xid));
    cluster.autovacuum = plan.server.autovacuum;
    cluster.wal_level = plan.server.wal_level;
    cluster.backends = BackendNumbers::new(plan.server.max_connections, cluster.catalog.traits.backend_numbers_in_turn);
    cluster.twophase = TwoPhaseState::new(plan.server.max_prepared_transactions);
    Ok(cluster)
}

/// One table with its partitions and rows.
fn make(cluster: &mut Cluster, plan: &TablePlan, index: u64) -> Result<()> {
    let name = plan.name_of(index);
    let mut spec = TableSpec {
        name: name.as_str().into(),
        columns: plan.columns.clone(),
        parent: None,
        partitioned: plan.partitions.is_some(),
        row_len: plan.row_len,
        temporary: None,
    };
    let table = silently(cluster, |backend| backend.create_table(&spec))?;
    let Some(partitions) = plan.partitions else {
        return silently(cluster, |backend| backend.insert_rows(table, plan.rows));
    };
    for number in 1..=partitions {
        spec = TableSpec { name: format!("{name}_{number}").into(), parent: Some(table), partitioned: false, ..spec };
        let partition = silently(cluster, |backend| backend.create_table(&spec))?;
        silently(cluster, |backend| backend.insert_rows(partition, plan.rows))?;
    }
    Ok(())
}

/// One publication.
fn publish(cluster: &mut Cluster, plan: &PublicationPlan, number: u64) -> Result<()> {
    let tables = plan.tables.iter().flat_map(|(table, numbers)| {
        let (first, last) = numbers.unwrap_or((number, number));
        (first..=last).map(move |index| Arc::from(table.numbered(index)))
    });
    let statement = ObjectStatement::CreatePublication {
        reads: Vec::new(),
        name: plan.name.numbered(number).into(),
        tables: tables.collect(),
        all_tables: plan.all_tables,
        schema: plan.schema.as_deref().map(Arc::from),
    };
    silently(cluster, |backend| backend.run_object(&statement).map(drop))
}

/// A transaction whose records nobody sees.
fn silently<T>(cluster: &mut Cluster, work: impl FnOnce(&mut Backend<'_>) -> Result<T>) -> Result<T> {
    let mut sink = NullSink(cluster.catalog.traits.version);
    let mut xact = Transaction::new(0);
    cluster.procs = ProcArray::new(FROZEN);
    let mut backend = Backend { cluster, xact: &mut xact, sink: &mut sink, now: Timestamp(0) };
    let result = work(&mut backend)?;
    backend.commit()?;
    Ok(result)
}
