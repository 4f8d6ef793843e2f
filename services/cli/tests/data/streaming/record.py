#!/usr/bin/env python3
"""Records what a real server does of transactions in progress and of prepared ones: record.py BIN VERSION OUT

BIN is the server's folder of programs (initdb, pg_ctl, postgres), VERSION a name like pg17, OUT a folder. Needs psql, tar and zstd
on PATH and a user that is not root. Each case has a slot of its own and is drained once by test_decoding, when all of it has
happened, with stream-changes on and logical_decoding_work_mem at 64kB. Writes OUT/VERSION.tar.zst (the log of each case, and a copy of pg_class) and
OUT/VERSION.txt: a line `case NAME` with spill_txns, spill_count, spill_bytes, stream_txns, stream_count and stream_bytes of
pg_stat_replication_slots, then what test_decoding said, equal lines counted.
"""
import os, re, shutil, subprocess, sys, tempfile

BIN, VERSION, OUT = sys.argv[1:4]
ROOT = tempfile.mkdtemp(prefix="walstorm-record-")
DATA, SOCKET = f"{ROOT}/data", f"{ROOT}/s"
SETTINGS = """
wal_level = logical
max_prepared_transactions = 10
max_replication_slots = 40
logical_decoding_work_mem = 64kB
listen_addresses = ''
fsync = off
full_page_writes = off
autovacuum = off
checkpoint_timeout = 1h
timezone = UTC
"""


class Session:
    """A session that stays open."""

    def __init__(self):
        self.psql = subprocess.Popen(
            ["psql", "-h", SOCKET, "-d", "postgres", "-XqAt", "-F", "\t"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, sql):
        """Runs commands; gives the lines of their answers."""
        self.psql.stdin.write(sql.rstrip().rstrip(";") + ";\n\\echo ~done\n")
        self.psql.stdin.flush()
        lines = []
        while (line := self.psql.stdout.readline().rstrip("\n")) != "~done":
            if "ERROR" in line or self.psql.poll() is not None:
                sys.exit(f"{sql[:200]}: {line}")
            lines.append(line)
        return lines

    def close(self):
        self.psql.stdin.close()
        self.psql.wait()


def rows(table, n, start=0):
    """Inserts, each a record of its own."""
    return f"insert into {table} select i, 'row ' || i from generate_series({start}, {start + n - 1}) i;"


TABLES = """
create table {p}_a (id int primary key, t text);
create table {p}_b (id int primary key, t text);
create table {p}_full (id int primary key, t text);
alter table {p}_full replica identity full;
"""


def plain(s, _):
    s[0].run("begin;" + rows("plain_a", 3000) + "commit")


def small(s, _):
    s[0].run("begin;" + rows("small_a", 100) + "commit")


def subs(s, _):
    parts = [f"savepoint s{i};" + rows("subs_a", 40, 40 * i) + ("release" if i % 2 else "select") + (f" s{i};" if i % 2 else " 1;")
             for i in range(40)]
    s[0].run("begin;" + rows("subs_b", 5) + "".join(parts) + "commit")


def rollback_to(s, _):
    warm = rows("rollback_to_a", 3, 100000)
    parts = []
    for i in range(12):
        parts.append(f"savepoint s{i};" + rows("rollback_to_a", 250, 1000 * i))
        if i % 3 == 1:
            parts.append(f"rollback to s{i};")
    s[0].run(warm + "begin;" + rows("rollback_to_a", 300, 50000) + "".join(parts) + rows("rollback_to_a", 100, 60000) + "commit")


def rolled_back(s, _):
    s[0].run(rows("rolled_back_a", 3, 100000) + "begin;" + rows("rolled_back_a", 2000) + "rollback")
    s[0].run("begin;" + rows("rolled_back_b", 2000) + "rollback;" + rows("rolled_back_b", 2))
    s[0].run("begin;" + rows("rolled_back_a", 2500) + "commit")


def toast(s, _):
    wide = "repeat(chr(65 + i % 26), 6400)"
    s[0].run("alter table toast_a alter t set storage external")
    s[0].run(f"begin; insert into toast_a select i, {wide} from generate_series(1, 30) i;" + rows("toast_b", 400)
             + f"update toast_a set t = t || 'x' where id < 12; savepoint a; insert into toast_a select i, {wide} from "
               "generate_series(100, 120) i; rollback to a;" + rows("toast_b", 500, 1000) + "delete from toast_a where id < 5; commit")


def huge_toast(s, _):
    wide = "repeat(chr(65 + i % 26), 80000)"
    s[0].run("alter table huge_toast_a alter t set storage external")
    s[0].run(f"begin; insert into huge_toast_a select i, {wide} from generate_series(1, 3) i;" + rows("huge_toast_b", 10)
             + f"savepoint a; insert into huge_toast_a select i, {wide} from generate_series(4, 5) i; release a;"
             + rows("huge_toast_b", 10, 50) + "commit")


def upsert(s, _):
    up = "insert into upsert_a select i % 700, 'n' || i from generate_series(1, 2000) i on conflict (id) do nothing;"
    s[0].run("begin;" + up + rows("upsert_b", 900) + "insert into upsert_b select i, 'again' from generate_series(1, 500) i "
             "on conflict (id) do update set t = excluded.t; commit")


def copy(s, _):
    data = "".join(f"{i}\tcopied {i:04}\n" for i in range(3000))
    open(f"{ROOT}/copy.txt", "w").write(data)
    s[0].run(f"begin; copy copy_a from '{ROOT}/copy.txt';" + rows("copy_b", 20) + "commit")


def full(s, _):
    s[0].run("begin;" + rows("full_full", 900) + "update full_full set t = t || '!'; delete from full_full where id < 300;"
             + rows("full_a", 500) + "update full_a set id = id + 100000; delete from full_a where id < 100200; commit")


def msg(s, _):
    s[0].run("begin; select count(pg_logical_emit_message(true, 'big', repeat('m', 3000))) from generate_series(1, 60);"
             + rows("msg_a", 10) + "truncate msg_a, msg_b; select count(pg_logical_emit_message(true, 'b', repeat('m', 3000))) from "
             "generate_series(1, 30); select pg_logical_emit_message(false, 'now', 'outside'); commit")


def between(s, _):
    """Three writers side by side, one of which is the largest."""
    s[0].run("begin;" + rows("between_a", 200))
    s[1].run("begin;" + rows("between_b", 50))
    s[2].run("begin;" + rows("between_full", 20))
    for i in range(8):
        s[0].run(rows("between_a", 150, 1000 + 1000 * i))
        s[1].run(rows("between_b", 60, 1000 + 1000 * i))
        s[2].run(rows("between_full", 30, 1000 + 1000 * i))
    s[1].run("commit")
    s[0].run(rows("between_a", 100, 100000) + "commit")
    s[2].run("rollback")


def ddl(s, _):
    """Schema changes in a streamed transaction, and beside it."""
    s[0].run("begin;" + rows("ddl_a", 600) + "alter table ddl_a add c int; create table ddl_new (id int primary key, t text);"
             + rows("ddl_new", 700) + "insert into ddl_a select i, 'x', 1 from generate_series(10000, 10500) i;")
    s[1].run("alter table ddl_b add d int; create table ddl_other (id int)")
    s[0].run("insert into ddl_b select i, 'y', 2 from generate_series(1, 900) i; savepoint s; alter table ddl_new add e int;"
             "insert into ddl_new select i, 'z', 3 from generate_series(20000, 20600) i; rollback to s;"
             + rows("ddl_new", 800, 30000) + "commit")


def open_at_end(s, _):
    """Does not end."""
    s[0].run("begin;" + rows("open_at_end_a", 1500))
    s[1].run(rows("open_at_end_b", 5))


def idle_writer(s, _):
    """A writer that is handed much while it does nothing."""
    s[0].run("begin;" + rows("idle_writer_a", 500))
    for i in range(60):
        s[1].run(f"create table idle_writer_{i} (id int primary key, t text)")
    s[0].run(rows("idle_writer_a", 5, 1000) + "commit")


def no_rows(s, _):
    """A transaction with schema changes alone, handed much."""
    s[0].run("begin; create table no_rows_own (id int)")
    for i in range(60):
        s[1].run(f"create table no_rows_{i} (id int primary key, t text)")
    s[0].run("commit")


def two_phase(s, _):
    for gid, end in (("kept", "commit"), ("dropped", "rollback"), ("hidden_nodecode", "commit")):
        s[0].run(f"begin;" + rows("two_phase_a", 5, {"kept": 0, "dropped": 100, "hidden_nodecode": 200}[gid])
                 + f"savepoint s; {rows('two_phase_b', 3, {'kept': 0, 'dropped': 100, 'hidden_nodecode': 200}[gid])}"
                 + f"prepare transaction '{gid}'")
        s[0].run(rows("two_phase_full", 1, {"kept": 0, "dropped": 1, "hidden_nodecode": 2}[gid]))
        s[0].run(f"{end} prepared '{gid}'")
    s[0].run("begin; create table two_phase_new (id int); insert into two_phase_new values (1), (2); prepare transaction 'ddl'")
    s[0].run(rows("two_phase_full", 1, 10) + "commit prepared 'ddl'; insert into two_phase_new values (3)")
    s[0].run("begin;" + rows("two_phase_a", 2, 900) + "prepare transaction 'open'")


def two_phase_stream(s, _):
    s[0].run(rows("two_phase_stream_a", 2, 900000))
    for i, (gid, end) in enumerate((("kept", "commit"), ("dropped", "rollback"), ("hidden_nodecode", "commit"))):
        s[0].run("begin;" + rows("two_phase_stream_a", 1500, 10000 * i) + f"prepare transaction '{gid}'")
        s[0].run(rows("two_phase_stream_full", 1, i))
        s[0].run(f"{end} prepared '{gid}'")


CASES = [plain, small, subs, rollback_to, rolled_back, toast, huge_toast, upsert, copy, full, msg, between, ddl, idle_writer, no_rows,
         open_at_end, two_phase, two_phase_stream]


def said(lines):
    """test_decoding's lines, shortened: equal ones counted, values left out."""
    out = []
    for line in lines:
        if line.count("\t") < 2:
            continue
        lsn, xid, data = line.split("\t", 2)
        if data.startswith("table "):
            what = "rows " + re.search(r": (INSERT|UPDATE|DELETE|TRUNCATE):", data).group(1).lower()
        elif data.startswith("message: "):
            what = "message" + (" outside" if "transactional: 0" in data else "")
        elif data.startswith("streaming "):
            what = "streaming " + data.split()[1].rstrip(":")
        elif data.startswith("BEGIN"):
            what = "begin"
        else:
            words = ["opening", "closing", "aborting", "committing", "preparing", "COMMIT PREPARED", "ROLLBACK PREPARED", "PREPARE",
                     "COMMIT"]
            what = next(word for word in words if data.startswith(word)).lower().replace(" ", "_")
            what = f"{what} {lsn}"
        named = re.search(r"TXN (\d+)", data)
        what += f" {named.group(1) if named and 'aborting' in data else xid}"
        if out and out[-1][0] == what:
            out[-1][1] += 1
        else:
            out.append([what, 1])
    return [f"{what} x{n}" for what, n in out]


def main():
    env = {**os.environ, "PGTZ": "UTC"}
    subprocess.run([f"{BIN}/initdb", "-D", DATA, "-A", "trust", "-U", os.environ.get("USER", "postgres"), "--wal-segsize=1",
                    "--no-locale", "-E", "UTF8"], check=True, stdout=subprocess.DEVNULL, env=env)
    os.mkdir(SOCKET)
    open(f"{DATA}/postgresql.conf", "a").write(SETTINGS + f"unix_socket_directories = '{SOCKET}'\n")
    subprocess.run([f"{BIN}/pg_ctl", "-D", DATA, "-w", "-l", f"{ROOT}/log", "start"], check=True, stdout=subprocess.DEVNULL, env=env)
    try:
        record()
    finally:
        subprocess.run([f"{BIN}/pg_ctl", "-D", DATA, "-m", "immediate", "stop"], check=False, stdout=subprocess.DEVNULL)
        shutil.rmtree(ROOT)


def record():
    admin = Session()
    logs, text = f"{ROOT}/logs", []
    for case in CASES:
        name = case.__name__
        admin.run("set client_min_messages = warning;" + TABLES.format(p=name))
        admin.run("checkpoint; select pg_switch_wal()")
        two_phase = "true" if name.startswith("two_phase") else "false"
        admin.run(f"select pg_create_logical_replication_slot('{name}', 'test_decoding', false, {two_phase})")
        [first] = admin.run(f"select pg_walfile_name(restart_lsn) from pg_replication_slots where slot_name = '{name}'")
        sessions = [Session() for _ in range(3)]
        case(sessions, admin)
        admin.run("select pg_switch_wal()")
        [last] = admin.run("select pg_walfile_name(pg_current_wal_lsn() + 1)")
        drain = Session()
        got = drain.run(f"select lsn, xid, data from pg_logical_slot_get_changes('{name}', null, null, 'stream-changes', '1')")
        drain.close()
        columns = "spill_txns, spill_count, spill_bytes, stream_txns, stream_count, stream_bytes"
        admin.run("select pg_sleep(0.7)")
        [stats] = admin.run(f"select {columns} from pg_stat_replication_slots where slot_name = '{name}'")
        text += [f"case {name} " + stats.replace("\t", " ")] + said(got)
        os.makedirs(f"{logs}/{name}")
        for segment in sorted(os.listdir(f"{DATA}/pg_wal")):
            if first <= segment < last and len(segment) == 24:
                shutil.copy(f"{DATA}/pg_wal/{segment}", f"{logs}/{name}/{segment}")
        for session in sessions:
            session.close()
        if name == "two_phase":
            admin.run("rollback prepared 'open'")
        admin.run(f"select pg_drop_replication_slot('{name}')")
    columns = ("relname, c.oid, pg_relation_filenode(c.oid) as relfilenode, reltablespace, nspname as nsp, relkind, relpersistence, "
               "relisshared, relreplident, reltoastrelid")
    admin.run(f"copy (select {columns} from pg_class c join pg_namespace n on n.oid = relnamespace) to '{ROOT}/pg_class.csv' csv header")
    shutil.move(f"{ROOT}/pg_class.csv", f"{logs}/pg_class.csv")
    subprocess.run(f"tar -C {logs} --sort=name --owner=0 --group=0 --mtime=@0 -cf - . | zstd -19 -q -f -o {OUT}/{VERSION}.tar.zst",
                   shell=True, check=True)
    open(f"{OUT}/{VERSION}.txt", "w").write("\n".join(text) + "\n")


main()
