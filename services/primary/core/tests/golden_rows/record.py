#!/usr/bin/env python3
"""Records what real servers log when several sessions are at work: shared row locks (multixacts), rows that are pruned when they are
read, VACUUM of catalogs while a logical slot needs their rows and after it has moved. Writes pg13.tar.zst … pg18.tar.zst.

Usage: record.py [--work FOLDER] [--into FOLDER] --psql PSQL 13=BIN 14=BIN ... (BIN: a folder with initdb, pg_ctl, postgres)
Each server is made anew in FOLDER (default: a temporary one) and listens on a socket there only. As root it runs as user postgres.
"""
import argparse, os, pathlib, shutil, subprocess, sys, tempfile

HERE = pathlib.Path(__file__).resolve().parent
SETTINGS = """
listen_addresses = ''
wal_level = logical
autovacuum = off
max_wal_size = 4GB
wal_keep_size = 4GB
checkpoint_timeout = 1h
fsync = off
full_page_writes = off
wal_log_hints = off
"""
CATALOGS = ("pg_class", "pg_attribute", "pg_type", "pg_depend")


def as_postgres(command):
    if os.geteuid() != 0:
        return list(map(str, command))
    return ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", *map(str, command)]


def run(command, cwd):
    done = subprocess.run(as_postgres(command), capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr or done.stdout}")


class Session:
    """One psql, so that every statement finds a session that is warm."""

    def __init__(self, psql, folder):
        self.errors = tempfile.TemporaryFile("w+")
        command = as_postgres([psql, "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-h", folder, "-U", "postgres", "-d", "postgres"])
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)

    def __call__(self, *statements):
        for sql in statements:
            self.process.stdin.write(f"{sql};\n\\echo done.\n")
            self.process.stdin.flush()
            answer = []
            for line in self.process.stdout:
                if line.strip() == "done.":
                    break
                answer.append(line.strip())
            else:
                self.errors.seek(0)
                sys.exit(f"{sql}: {self.errors.read()}")
        return answer


def catalogs(step, a, b):
    """Dead rows of catalogs, beside a logical slot that needs them, then does not."""
    a("CREATE PUBLICATION p", "SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    step("churn")
    for _ in range(20):
        b("CREATE TEMP TABLE w (id int, n int)", "DROP TABLE w")
    for catalog in CATALOGS:
        step(f"held_{catalog}")
        b(f"VACUUM {catalog}")
    step("moving")
    for _ in range(20):
        a("CHECKPOINT", "SELECT count(*) FROM pg_logical_slot_get_binary_changes('s', NULL, NULL, 'proto_version', '1', 'publication_names', 'p')")
        if a("SELECT catalog_xmin::text::bigint = txid_snapshot_xmin(txid_current_snapshot()) FROM pg_replication_slots") == ["t"]:
            break
    else:
        sys.exit("the slot's catalog_xmin does not move")
    for catalog in CATALOGS:
        step(f"moved_{catalog}")
        b(f"VACUUM {catalog}")
    step("catalogs_done")


LOCKS = {"ks": "KEY SHARE", "s": "SHARE", "nku": "NO KEY UPDATE", "u": "UPDATE"}


def multixacts(step, sessions):
    """Rows that several transactions lock. Each case has a row of its own: what the sessions a, b, c do with it in turn."""
    a, b, c = (sessions[name] for name in "abc")
    a("CREATE TABLE m (id int PRIMARY KEY, note text)", "INSERT INTO m SELECT g, 'x' FROM generate_series(1, 40) g")
    cases = {
        "share_share": "a:s b:s",
        "key_share_key_share": "a:ks b:ks",
        "share_key_share": "a:s b:ks",
        "key_share_share": "a:ks b:s",
        "key_share_no_key_update": "a:ks b:nku",
        "no_key_update_key_share": "a:nku b:ks",
        "three": "a:s b:s c:s",
        "three_of_which_one_ended": "a:s b:s a:end c:s",
        "both_ended": "a:s b:s a:end b:end c:s",
        "one_ended": "a:s a:end b:s",
        "key_share_then_update": "a:ks b:upd",
        "update_then_key_share": "a:upd b:ks",
        "two_key_shares_then_update": "a:ks b:ks c:upd",
        "update_of_what_i_share": "a:ks b:ks a:upd",
        "stronger": "a:ks a:s",
        "stronger_beside_another": "a:ks b:ks a:s",
        "weaker": "a:s a:ks",
        "weaker_beside_another": "a:s b:s a:ks",
        "mine_then_update": "a:u a:upd",
        "mine_key_share_then_update": "a:ks a:upd",
        "mine_share_then_delete": "a:s a:del",
        "savepoint_update": "a:u a:save a:upd",
        "savepoint_lock": "a:ks a:save a:s",
        "savepoint_share": "a:s a:save a:s",
        "savepoint_rolled_back": "a:s a:save a:nku a:back a:upd",
    }
    for row, (name, turns) in enumerate(cases.items(), 1):
        opened = set()
        step(f"multi_{name}")
        for turn in turns.split():
            who, what = turn.split(":")
            session = sessions[who]
            if who not in opened and what != "end":
                session("BEGIN")
                opened.add(who)
            if what == "end":
                session("COMMIT")
                opened.discard(who)
            elif what == "save":
                session("SAVEPOINT s")
            elif what == "back":
                session("ROLLBACK TO s")
            elif what == "upd":
                session(f"UPDATE m SET note = 'y' WHERE id = {row}")
            elif what == "del":
                session(f"DELETE FROM m WHERE id = {row}")
            else:
                session(f"SELECT 1 FROM m WHERE id = {row} FOR {LOCKS[what]}")
        for who in sorted(opened):
            sessions[who]("COMMIT")
    step("multixacts_done")


def pruning(step, a):
    """Pages that are pruned when an update finds them full."""
    a("CREATE TABLE o (id int PRIMARY KEY, n int, f text)", "INSERT INTO o SELECT g, 0, repeat('x', 80) FROM generate_series(1, 60) g")
    for row in range(1, 20):
        a(f"SELECT n FROM o WHERE id = {row}")
    step("prune_updates")
    for turn in range(3):
        for row in (1, 2, 3, 5, 5, 5, 7, 8, 9, 10):
            a(f"UPDATE o SET n = n + 1 WHERE id = {row}")
    step("prune_one_row")
    for turn in range(40):
        a("UPDATE o SET n = n + 1 WHERE id = 20")
    step("prune_delete")
    for row in range(30, 50):
        a(f"DELETE FROM o WHERE id = {row}")
        a(f"UPDATE o SET n = n + 1 WHERE id = {row - 10}")
    step("prune_done")


def record(version, binaries, psql, folder, into):
    """Runs everything on one server, and keeps its log."""
    folder.mkdir()
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    data = folder / "data"
    flags = ["--no-data-checksums"] if version >= 18 else []
    run([f"{binaries}/initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N", *flags], folder)
    with open(data / "postgresql.conf", "a") as conf:
        conf.write(f"{SETTINGS}unix_socket_directories = '{folder}'\n")
    run([f"{binaries}/pg_ctl", "-D", data, "-w", "-l", folder / "log", "start"], folder)
    try:
        sessions = {name: Session(psql, folder) for name in "abcd"}
        a, b, d = sessions["a"], sessions["b"], sessions["d"]
        # What initdb wrote is not kept.
        a("SELECT pg_switch_wal()", "CHECKPOINT")
        first = a("SELECT pg_walfile_name(pg_current_wal_insert_lsn())")[0]
        step = lambda name: d(f"SELECT pg_logical_emit_message(false, 'step', '{name}')")
        catalogs(step, a, b)
        multixacts(step, sessions)
        pruning(step, a)
        a("SELECT pg_switch_wal()")
    finally:
        run([f"{binaries}/pg_ctl", "-D", data, "-w", "-m", "fast", "stop"], folder)
    segments = sorted(path.name for path in (data / "pg_wal").iterdir() if len(path.name) == 24 and path.name >= first)
    archive = pathlib.Path(into) / f"pg{version}.tar.zst"
    owner = ["--owner=0", "--group=0", "--mtime=@0", "--sort=name"]
    subprocess.run(["tar", *owner, "-C", data / "pg_wal", "-I", "zstd -19 -T2", "-cf", archive, *segments], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--psql", default="psql")
    parser.add_argument("--work")
    parser.add_argument("--into", default=HERE)
    parser.add_argument("servers", nargs="+", metavar="VERSION=BIN")
    args = parser.parse_args()
    work = pathlib.Path(args.work or tempfile.mkdtemp())
    work.mkdir(exist_ok=True)
    work.chmod(0o755)
    for server in args.servers:
        version, binaries = server.split("=", 1)
        record(int(version), binaries, args.psql, work / version, args.into)


main()
