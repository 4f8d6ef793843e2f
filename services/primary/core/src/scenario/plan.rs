//! A scenario with all its numbers: what the engine runs.

use crate::ddl::column::Column;

use super::{Expectation, Pause, StatementPlan, Template};

/// A scenario with all its numbers.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// When open-ended actors stop, in microseconds from the beginning.
    pub duration_us: Option<u64>,
    /// The server.
    pub server: ServerPlan,
    /// Hints for a decoder.
    pub decoder: DecoderHints,
    /// Snapshots a second on a standby, 0 for none.
    pub snapshots_per_second: u64,
    /// Tables that are there before the log begins.
    pub tables: Vec<TablePlan>,
    /// Publications that are there before the log begins.
    pub publications: Vec<PublicationPlan>,
    /// Who does something.
    pub actors: Vec<ActorPlan>,
    /// Who reads the log.
    pub consumers: Vec<ConsumerPlan>,
    /// What goes wrong, by time.
    pub faults: Vec<FaultPlan>,
    /// What must come out.
    pub expect: Vec<Expectation>,
}

/// Settings of the server.
#[derive(Clone, Copy, Debug)]
pub struct ServerPlan {
    /// wal_level.
    pub wal_level: WalLevel,
    /// max_connections.
    pub max_connections: u32,
    /// autovacuum.
    pub autovacuum: bool,
    /// max_prepared_transactions.
    pub max_prepared_transactions: u32,
    /// Time between checkpoints.
    pub checkpoint_every_us: u64,
    /// Time between records of running transactions.
    pub running_xacts_every_us: u64,
    /// Most bytes of WAL that a consumer may keep: past them it is lost.
    pub max_slot_wal_keep_size: Option<u64>,
    /// Time between barriers.
    pub barrier_every_us: u64,
    /// The first xid.
    pub first_xid: u64,
}

/// `WalLevel` (`access/xlog.h`), as far as a standby can follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WalLevel {
    /// What a standby needs.
    Replica = 1,
    /// What decoding needs besides.
    #[default]
    Logical = 2,
}

/// What a decoder that plays the scenario should be set up with; all optional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderHints {
    /// Syscache callbacks that are registered.
    pub syscache_callbacks: Option<u8>,
    /// Relcache callbacks that are registered.
    pub relcache_callbacks: Option<u8>,
    /// Entries of the map of each callback beyond a walsender's.
    pub callback_entries: u32,
    /// Who decodes.
    pub consumer: Option<DecoderConsumer>,
    /// Bytes that changes in memory may count for.
    pub work_mem: Option<u64>,
    /// Large transactions are given out in blocks, if the version can.
    pub streaming: bool,
    /// Prepared transactions are given out when they are prepared, if the version can.
    pub two_phase: bool,
}

/// Who decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecoderConsumer {
    /// A walsender that keeps up, and reads the shared queue of invalidation messages too.
    Live,
    /// One that decodes WAL whose messages everybody has read long ago.
    CatchUp,
}

/// Tables that are there before the log begins.
#[derive(Clone, Debug)]
pub struct TablePlan {
    /// Name; counts if there are several.
    pub name: Template,
    /// How many.
    pub count: u64,
    /// Number of the first.
    pub first: u64,
    /// Columns.
    pub columns: Vec<Column>,
    /// Partitions of each; [`None`] for plain tables.
    pub partitions: Option<u64>,
    /// Rows in each (in each partition).
    pub rows: u64,
    /// Bytes of a row in a record, if not what its columns take.
    pub row_len: Option<u32>,
}

impl TablePlan {
    /// The name of the table of this number. Whatever is drawn for it is drawn from a generator of its own.
    pub(crate) fn name_of(&self, index: u64) -> String {
        self.name.numbered(index)
    }
}

/// Publications that are there before the log begins.
#[derive(Clone, Debug)]
pub struct PublicationPlan {
    /// Name; counts if there are several.
    pub name: Template,
    /// Numbers of the first and of the last.
    pub numbers: (u64, u64),
    /// Its tables, a name with the numbers that it stands for; [`None`] if that is the publication's number.
    pub tables: Vec<(Template, Option<(u64, u64)>)>,
    /// It is for all tables.
    pub all_tables: bool,
    /// It is for the tables of this schema.
    pub schema: Option<String>,
}

/// An actor.
#[derive(Clone, Debug)]
pub struct ActorPlan {
    /// Name.
    pub name: String,
    /// Sessions.
    pub sessions: u64,
    /// When the first transaction begins.
    pub start: Pause,
    /// Indexes of the actors that must have finished before.
    pub after: Vec<usize>,
    /// How much later each session starts than the one before it.
    pub stagger_us: u64,
    /// From one transaction's begin to the next; at once if not said.
    pub every: Option<Pause>,
    /// From one transaction's end to the next one's begin, at least.
    pub think: Pause,
    /// Transactions of each session; until the scenario's duration if not said.
    pub transactions: Option<u64>,
    /// Transactions that a session runs before it leaves and connects anew; it stays connected if not said.
    pub transactions_per_connection: Option<u64>,
    /// Transactions of a hundred that roll back.
    pub rollback_percent: u64,
    /// The replication origin that its transactions come from, 0 for none.
    pub origin: u16,
    /// What transactions do: one of these, by weight. There is at least one, and a weight above 0.
    pub mix: Vec<TransactionPlan>,
}

/// What one kind of transaction does.
#[derive(Clone, Debug)]
pub struct TransactionPlan {
    /// How often it is chosen, among the weights of all.
    pub weight: u64,
    /// Its statements, loops before what they repeat.
    pub statements: Vec<StatementPlan>,
    /// The line of each in the file, from 1.
    pub lines: Vec<usize>,
}

impl TransactionPlan {
    /// Adds a statement that is written in this line.
    pub(super) fn push(&mut self, statement: StatementPlan, line: usize) {
        self.statements.push(statement);
        self.lines.push(line);
    }
}

/// A consumer of the log, with a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerPlan {
    /// Its slot, `[a-z0-9_]{1,63}`; no two consumers have the same.
    pub slot: String,
    /// What the slot is for.
    pub kind: ConsumerKind,
    /// Bytes that it reads and confirms in a second of simulated time; [`None`] for all that there are.
    pub bytes_per_second: Option<u64>,
    /// When it stays connected but reads nothing; in order, apart.
    pub paused: Vec<PausedPlan>,
    /// When it goes away for good; its slot stays.
    pub dead_at_us: Option<u64>,
}

/// What a consumer's slot is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConsumerKind {
    /// A standby with hot_standby_feedback: it holds rows of all tables.
    #[default]
    Physical,
    /// A decoder: it holds rows of catalogs.
    Logical,
}

/// A time at which a consumer reads nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PausedPlan {
    /// First microsecond.
    pub from_us: u64,
    /// First microsecond after it.
    pub to_us: u64,
}

/// Something goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    /// From when on, in microseconds from the beginning: it happens at the first barrier from then on.
    pub at_us: u64,
    /// What.
    pub kind: FaultKind,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The server ends without warning and recovers: open transactions are gone, and no record says so.
    Crash,
    /// The server is stopped in order and started again (`pg_ctl restart -m fast`): open transactions roll back, sessions leave.
    Restart,
    /// The disk of the log has no room: nothing is written, and whoever would write waits.
    DiskFull {
        /// For so many microseconds, up to the first barrier from then on.
        for_us: u64,
    },
    /// The clock that stamps commits jumps.
    ClockJump {
        /// By so many microseconds, back if negative.
        by_us: i64,
    },
}
