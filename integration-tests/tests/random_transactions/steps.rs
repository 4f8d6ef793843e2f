//! Random scenarios: what actors do, as blocks that proptest draws and shrinks, written as the scenario's text.
//!
//! Nobody waits for ever: a transaction locks a table exclusively only as the first thing it does ([`FRESH`]), but for `g`, of which
//! nothing else is ever asked, and for tables that nobody else knows. No statement is refused: what a transaction that may roll back
//! makes is used in that transaction alone; so new partitions are those of `q`, whose partitions nobody goes through.

use std::collections::BTreeSet;
use std::fmt::Write;

use proptest::prelude::*;

/// Steps inside of a transaction that need no others.
const PLAIN: [&str; 19] = [
    "{ insert = { table = 't', rows = 2 } }",
    "{ insert = { table = 'k' } }",
    "{ copy = { table = 't', rows = 5 } }",
    "{ update = { table = 'k', rows = 2 } }",
    "{ update = { table = 't', rows = 3 } }",
    "{ delete = { table = 't' } }",
    "{ delete = { table = 'k' } }",
    "{ insert_on_conflict = { table = 'k', rows = 2, conflicts = 1 } }",
    "{ insert_long = { table = 'k', bytes = 5000 } }",
    "{ update_long = { table = 'k', bytes = 3000 } }",
    "{ lock_rows = { table = 't', rows = 2, mode = 'share' } }",
    "{ lock_rows = { table = 'k', rows = 2, mode = 'key_share' } }",
    "{ lock_rows = { table = 'k', mode = 'no_key_update' } }",
    "{ lock_rows = { table = 't', mode = 'update' } }",
    "{ message = { prefix = 'p', bytes = 9 } }",
    "{ message = { prefix = 'p', bytes = 9, transactional = false } }",
    "{ grant = { table = 'g', role = 'r' } }",
    "{ analyze = { table = 'k' } }",
    "{ wait = { from = '0ms', to = '4ms' } }",
];

/// More subtransactions than a slot holds, and the list of who runs.
const OVERFLOW: &str = "{ repeat = { times = 70, steps = [{ savepoint = 'o' }, { insert = { table = 't' } }, { release = 'o' }] } }, \
    { log_standby_snapshot = {} }";

/// Steps that go anywhere.
const SERVER: [&str; 2] = ["{ checkpoint = {} }", "{ log_standby_snapshot = {} }"];

/// What begins a transaction, on tables that many share; `@` is a name that nothing else has.
const FRESH: [&str; 10] = [
    "{ truncate = { table = 'x' } }, { insert = { table = 'x', rows = 3 } }",
    "{ truncate = { table = 'x' } }, { insert = { table = 'x' } }, { truncate = { table = 'x' } }, { insert_long = { table = 'x', bytes = 3000 } }",
    "{ truncate = { table = 'p' } }, { insert = { partitions_of = 'p' } }",
    "{ insert = { partitions_of = 'p', rows = 2 } }, { update = { partitions_of = 'p' } }, { delete = { partitions_of = 'p' } }",
    "{ create_table = { table = '@', columns = [], partition_of = 'q' } }, { insert = { table = '@' } }",
    "{ create_index = { table = 'x', column = 'id', name = '@' } }, { insert = { table = 'x' } }",
    "{ add_column = { table = 'x', column = '@ int' } }, { update = { table = 'x', rows = 2 } }",
    "{ reindex_table = { table = 'x' } }, { insert = { table = 'x' } }",
    "{ truncate = { tables = ['x', 'p'], restart_identity = true } }, { insert = { table = 'x' } }",
    "{ replica_identity = { table = 'x', identity = 'full' } }, { delete = { table = 'x' } }",
];

/// The life of a table that nobody else knows, named `@`; `;` is where its transactions end.
const LIVES: [&str; 4] = [
    "{ create_table = { table = '@', columns = ['id serial primary key', 'a text'] } }, { insert = { table = '@' } }; \
     { drop_table = { table = '@' } }, { create_table = { table = '@', columns = ['id int', 'b text'] } }, \
     { insert = { table = '@', rows = 2 } }; { truncate = { table = '@' } }, { insert_long = { table = '@', bytes = 4100 } }; \
     { drop_table = { table = '@' } }; ",
    "{ create_table = { table = '@', columns = ['id int'] } }; { copy = { table = '@', rows = 300 } }; \
     { create_index = { table = '@', column = 'id' } }; { update = { table = '@', rows = 4 } }, { truncate = { table = '@' } }; \
     { insert = { table = '@' } }; ",
    "{ create_table = { table = '@', columns = ['id int', 'a text'], partitioned = true } }; \
     { create_table = { table = '@_1', columns = [], partition_of = '@' } }, { insert = { table = '@_1', rows = 2 } }; \
     { create_table = { table = '@_2', columns = ['id int', 'a text'] } }, { insert = { table = '@_2' } }; \
     { attach_partition = { table = '@', partition = '@_2' } }, { insert = { partitions_of = '@' } }; \
     { detach_partition = { table = '@', partition = '@_1' } }, { drop_table = { table = '@' } }; ",
    "{ create_table = { table = '@', columns = ['id int', 'a text'] } }, { insert = { table = '@', rows = 3 } }; \
     { alter_column_type = { table = '@', column = 'id', type = 'bigint' } }; { insert = { table = '@' } }, \
     { rename_table = { table = '@', to = '@_r' } }; { create_index = { table = '@_r', column = 'id', name = '@_i' } }; \
     { cluster = { table = '@_r', index = '@_i' } }, { delete = { table = '@_r' } }; ",
];

/// Temporary tables named `@`; `;` is where their transactions end.
const TEMPORARY: [&str; 4] = [
    "{ create_table = { table = '@', columns = ['id int', 'a text'], temporary = true } }, { insert = { table = '@', rows = 3 } }; \
     { insert = { table = '@' } }, { insert = { table = 't' } }, { drop_table = { table = '@' } }; ",
    "{ create_table = { table = '@', columns = ['id int'], temporary = true, on_commit = 'drop' } }, \
     { insert = { table = '@', rows = 3 } }, { insert = { table = 'k' } }; ",
    "{ create_table = { table = '@', columns = ['id serial primary key', 'a text'], temporary = true } }, { copy = { table = '@', rows = 9 } }; ",
    "{ create_table = { table = '@', columns = ['id int'], temporary = true } }, { create_index = { table = '@', column = 'id' } }, \
     { insert = { table = '@' } }; { truncate = { table = '@' } }, { insert = { table = '@' } }; ",
];

/// What an actor does next.
#[derive(Clone, Debug)]
enum Block {
    /// A step.
    Plain(usize),
    /// A table of its own, which stays.
    Create,
    /// The life of a table in one transaction.
    Life(usize),
    /// A savepoint with what is done in it: rolled back to, released, or left open.
    Sub(Vec<Block>, u8),
    /// More subtransactions than a slot holds.
    Overflow,
    /// COMMIT or ROLLBACK.
    End(bool),
    /// PREPARE, then COMMIT PREPARED or ROLLBACK PREPARED after a while.
    Prepared(bool),
    /// A table is made in a prepared transaction.
    PreparedTable(bool),
    /// COMMIT, then VACUUM of `k`, `x` or `t`, perhaps with FREEZE and ANALYZE.
    Vacuum(usize, bool, bool),
    /// The server is asked for something.
    Server(usize),
    /// COMMIT, then something that begins a transaction.
    Fresh(usize),
    /// COMMIT, then the life of a table in several transactions.
    Lives(usize),
    /// COMMIT, then a temporary table.
    Temporary(usize),
}

/// Blocks with savepoints up to a depth.
fn block() -> impl Strategy<Value = Block> {
    let leaf = prop_oneof![
        24 => (0..PLAIN.len()).prop_map(Block::Plain),
        2 => Just(Block::Create),
        2 => (0..LIVES.len()).prop_map(Block::Life),
        2 => Just(Block::Overflow),
        2 => (0..SERVER.len()).prop_map(Block::Server),
    ];
    let nested = leaf.prop_recursive(3, 12, 4, |inner| {
        (proptest::collection::vec(inner, 1..4), 0..3u8).prop_map(|(blocks, end)| Block::Sub(blocks, end))
    });
    prop_oneof![
        12 => nested,
        1 => any::<bool>().prop_map(Block::End),
        2 => any::<bool>().prop_map(Block::Prepared),
        1 => any::<bool>().prop_map(Block::PreparedTable),
        2 => (0..3usize, any::<bool>(), any::<bool>()).prop_map(|(table, freeze, analyze)| Block::Vacuum(table, freeze, analyze)),
        4 => (0..FRESH.len()).prop_map(Block::Fresh),
        2 => (0..LIVES.len()).prop_map(Block::Lives),
        3 => (0..TEMPORARY.len()).prop_map(Block::Temporary),
    ]
}

/// What one actor is.
#[derive(Clone, Debug)]
pub(super) struct Actor {
    /// Its sessions.
    sessions: u8,
    /// Transactions of each.
    transactions: u8,
    /// Some of its transactions roll back.
    rolls_back: bool,
    /// They come from elsewhere.
    replicated: bool,
    /// Its sessions leave after each transaction.
    leaves: bool,
    /// What it does.
    blocks: Vec<Block>,
}

/// Any actor.
pub(super) fn actor() -> impl Strategy<Value = Actor> {
    let blocks = proptest::collection::vec(block(), 1..8);
    (1..4u8, 1..5u8, any::<bool>(), any::<bool>(), any::<bool>(), blocks).prop_map(
        |(sessions, transactions, rolls_back, replicated, leaves, blocks)| Actor {
            sessions,
            transactions,
            rolls_back,
            replicated,
            leaves,
            blocks,
        },
    )
}

/// Writes an actor's steps.
struct Steps<'a> {
    /// Its number.
    index: usize,
    /// Its transactions may roll back where they should commit.
    rolls_back: bool,
    /// The number of the next name.
    next: u32,
    /// The open transaction used a temporary table, so that it cannot be prepared.
    temporary: bool,
    /// The steps.
    out: &'a mut Vec<String>,
}

impl Steps<'_> {
    /// Blocks one after the other.
    fn write(&mut self, blocks: &[Block]) {
        blocks.iter().for_each(|block| self.block(block));
    }

    /// A name that no other transaction of any actor has.
    fn name(&mut self) -> String {
        self.next += 1;
        format!("made_{}_{}_{{n}}", self.index, self.next)
    }

    /// COMMIT.
    fn commit(&mut self) {
        self.out.push("{ commit = {} }".to_owned());
        self.temporary = false;
    }

    /// Steps with a name in the place of `@`, in several transactions if none can roll back, else in one.
    fn named(&mut self, steps: &str, several: bool) {
        let steps = steps.replace('@', &self.name());
        let parts = steps.split("; ").filter(|part| !part.is_empty());
        for part in parts {
            self.out.push(part.to_owned());
            if several && !self.rolls_back {
                self.commit();
            }
        }
    }

    /// PREPARE and the end of it.
    fn prepared(&mut self, commit: bool) {
        if self.temporary {
            self.commit();
        }
        let gid = format!("gid = '{}'", self.name());
        self.out.push(format!("{{ prepare = {{ {gid} }} }}, {{ wait = {{ from = '0ms', to = '9ms' }} }}"));
        let finish = if commit { "commit_prepared" } else { "rollback_prepared" };
        // A crash may come before PREPARE, or after it.
        self.out.push(format!("{{ {finish} = {{ {gid}, if_exists = true }} }}"));
    }

    /// One block.
    fn block(&mut self, block: &Block) {
        match block {
            Block::Plain(index) => self.out.push(PLAIN[*index].to_owned()),
            Block::Server(index) => self.out.push(SERVER[*index].to_owned()),
            Block::Create => self.named(
                "{ create_table = { table = '@', columns = ['id serial primary key', 'a text'] } }, { insert = { table = '@' } }",
                false,
            ),
            Block::Life(index) => self.named(LIVES[*index], false),
            Block::Sub(inner, end) => self.sub(inner, *end),
            Block::Overflow => self.out.push(OVERFLOW.to_owned()),
            Block::End(true) => self.commit(),
            Block::End(false) => {
                self.out.push("{ rollback = {} }".to_owned());
                self.temporary = false;
            }
            Block::Prepared(commit) => self.prepared(*commit),
            Block::PreparedTable(commit) => {
                self.commit();
                self.named(LIVES[3], false);
                self.prepared(*commit);
            }
            Block::Vacuum(table, freeze, analyze) => {
                self.commit();
                let table = ["k", "x", "t"][*table];
                self.out.push(format!("{{ vacuum = {{ table = '{table}', freeze = {freeze}, analyze = {analyze} }} }}"));
            }
            Block::Fresh(index) => {
                self.commit();
                self.named(FRESH[*index], false);
            }
            Block::Lives(index) => {
                self.commit();
                self.named(LIVES[*index], true);
            }
            Block::Temporary(index) => {
                self.commit();
                self.temporary = true;
                self.named(TEMPORARY[*index], true);
            }
        }
    }

    /// A savepoint.
    fn sub(&mut self, inner: &[Block], end: u8) {
        self.next += 1;
        let name = format!("s{}", self.next);
        self.out.push(format!("{{ savepoint = '{name}' }}"));
        self.write(inner);
        match end {
            0 => self.out.push(format!("{{ rollback_to = '{name}' }}")),
            1 => self.out.push(format!("{{ release = '{name}' }}")),
            _ => {}
        }
    }
}

/// A crash or a restart.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    /// It crashes; else it is stopped and started.
    crash: bool,
    /// When, in milliseconds.
    at: u8,
}

/// None in every third history, up to three in the others.
pub(super) fn faults() -> impl Strategy<Value = Vec<Fault>> {
    let fault = (any::<bool>(), 1..40u8).prop_map(|(crash, at)| Fault { crash, at });
    prop_oneof![1 => Just(Vec::new()), 2 => proptest::collection::vec(fault, 1..4)]
}

/// The faults, and whoever ends what they leave prepared, so that nobody waits for ever.
fn write_faults(faults: &[Fault], text: &mut String) {
    let Some(last) = faults.iter().map(|fault| fault.at).max() else { return };
    let prepared = text.split("{ prepare = { gid = '").skip(1).filter_map(|rest| rest.split_once("_{n}'"));
    let gids: BTreeSet<&str> = prepared.map(|(gid, _)| gid).collect();
    let ends = gids.iter().map(|gid| format!("{{ rollback_prepared = {{ gid = '{gid}_{{1..12}}', if_exists = true }} }}"));
    let ends: Vec<String> = ends.chain(["{ message = { prefix = 'p' } }".to_owned()]).collect();
    let start = last + 2;
    let _ = write!(text, "[[actors]]\nname = 'dba'\nstart = '{start}ms'\ntransactions = 1\nsteps = [{}]\n", ends.join(", "));
    for Fault { crash, at } in faults {
        let kind = if *crash { "crash" } else { "restart" };
        // Writing to a string cannot fail.
        let _ = write!(text, "[[faults]]\nat = '{at}ms'\nkind = '{kind}'\n");
    }
}

/// The scenario's text.
pub(super) fn scenario(actors: &[Actor], faults: &[Fault], first_xid: u64) -> String {
    let mut text = format!(
        "name = 'random'\nstory = 'Random.'\nseed = 1\n[server]\nmax_prepared_transactions = 60\nrunning_xacts_every = '5ms'\n\
         checkpoint_every = '11ms'\nbarrier_every = '1ms'\nfirst_xid = {first_xid}\n\
         [[tables]]\nname = 't'\ncolumns = ['id int', 'note text']\nrows = 50\n\
         [[tables]]\nname = 'k'\ncolumns = ['id int primary key', 'note text']\nrows = 50\n\
         [[tables]]\nname = 'x'\ncolumns = ['id serial', 'note text']\nrows = 20\n\
         [[tables]]\nname = 'p'\ncolumns = ['id int', 'note text']\npartitions = 3\nrows = 5\n\
         [[tables]]\nname = 'q'\ncolumns = ['id int']\npartitions = 1\n\
         [[tables]]\nname = 'g'\ncolumns = ['id int']\n"
    );
    for (index, actor) in actors.iter().enumerate() {
        let mut out = Vec::new();
        Steps { index, rolls_back: actor.rolls_back, next: 0, temporary: false, out: &mut out }.write(&actor.blocks);
        let percent = if actor.rolls_back { 30 } else { 0 };
        let origin = if actor.replicated { format!("origin = {}\n", index + 1) } else { String::new() };
        let connects = if actor.leaves { "per transaction" } else { "once" };
        let Actor { sessions, transactions, .. } = actor;
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "[[actors]]\nname = 'a{index}'\nsessions = {sessions}\ntransactions = {transactions}\nevery = '3ms'\n\
             connects = '{connects}'\nrollback_percent = {percent}\n{origin}steps = [{}]\n",
            out.join(", ")
        );
    }
    write_faults(faults, &mut text);
    text
}
