#!/usr/bin/env python3
"""Crashes and restarts real servers under load, and packs the WAL that they wrote as pgVERSION.tar.zst beside this file.

Usage: record.py --psql PSQL 13=BIN 15=BIN ... (BIN: a folder with initdb, pg_ctl, postgres; needs tar and zstd)
Each server is made anew in a temporary folder and listens on a socket there only. As root it runs as user postgres. Before each step
there is a logical message that is no part of a transaction, with prefix `step` and the step's name.
"""
import argparse, os, pathlib, shutil, signal, subprocess, sys, tempfile, time

HERE = pathlib.Path(__file__).resolve().parent
SETTINGS = """
listen_addresses = ''
wal_level = logical
autovacuum = off
max_prepared_transactions = 10
max_wal_size = 1GB
wal_keep_size = 1GB
checkpoint_timeout = 1h
full_page_writes = off
wal_log_hints = off
lock_timeout = 300ms
"""
# What a session of its own does before the crash. The first one is that of the steps' messages.
BEFORE_CRASH = [
    ["CREATE TEMP TABLE tt (id int, b text)", "INSERT INTO tt VALUES (1, 'b')", "CREATE TEMP TABLE ts (id serial PRIMARY KEY, a int)",
     "BEGIN", "CREATE TEMP TABLE tu (id int)", "INSERT INTO t VALUES (99, 'open')"],
    ["BEGIN", "ALTER TABLE k ADD COLUMN more int", "PREPARE TRANSACTION 'p'"],
    ["BEGIN", "DELETE FROM t WHERE id < 3", "SAVEPOINT s", "INSERT INTO t VALUES (98, 'open')"],
]
BEFORE_RESTART = [
    ["BEGIN", "INSERT INTO t VALUES (97, 'open')", "SAVEPOINT s", "INSERT INTO t VALUES (96, 'open')"],
    ["CREATE TEMP TABLE tt (id int, b text)"],
    ["BEGIN", "ALTER TABLE k ADD COLUMN further int", "PREPARE TRANSACTION 'q'"],
    ["BEGIN", "SELECT 1"],
    ["CREATE TEMP TABLE tv (id int)", "BEGIN", "CREATE TEMP TABLE tw (id int)", "TRUNCATE w"],
]


def as_postgres(command):
    return ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", *command] if os.geteuid() == 0 else command


def run(*command, cwd=None):
    done = subprocess.run(as_postgres([str(c) for c in command]), capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr or done.stdout}")


class Session:
    """One psql."""

    def __init__(self, psql, folder):
        command = [psql, "-X", "-q", "-At", "-h", folder, "-U", "postgres", "-d", "postgres"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(as_postgres(command), stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)
        self("SELECT 1")

    def __call__(self, sql):
        """The lines of the answer, or of the error."""
        self.process.stdin.write(f"{sql};\n\\echo done.\n")
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            if line.strip() == "done.":
                return lines
            lines.append(line.strip())
        sys.exit(f"{sql}: the connection is gone")

    def good(self, sql):
        answer = self(sql)
        if any("ERROR" in line for line in answer):
            sys.exit(f"{sql}: {answer}")
        return answer

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Server:
    def __init__(self, version, binaries, psql, folder):
        self.binaries, self.psql, self.folder, self.data = binaries, psql, folder, folder / "data"
        flags = ["--no-data-checksums"] if version >= 18 else []
        run(f"{binaries}/initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N",
            "--wal-segsize=1", *flags, cwd=folder)
        with open(self.data / "postgresql.conf", "a") as conf:
            conf.write(f"{SETTINGS}unix_socket_directories = '{folder}'\n")

    def start(self):
        run(f"{self.binaries}/pg_ctl", "-D", self.data, "-w", "-l", self.folder / "log", "start", cwd=self.folder)

    def stop(self):
        run(f"{self.binaries}/pg_ctl", "-D", self.data, "-w", "-m", "fast", "stop", cwd=self.folder)

    def kill(self):
        """kill -9 of all processes: the first stands still meanwhile, so that it does not start others."""
        first = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(first, signal.SIGSTOP)
        children = pathlib.Path(f"/proc/{first}/task/{first}/children").read_text().split()
        for pid in [*map(int, children), first]:
            os.kill(pid, signal.SIGKILL)
        while any(pathlib.Path(f"/proc/{pid}").exists() and " Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text()
                  for pid in [*children, first]):
            time.sleep(0.01)
        # Where nobody buries the dead, its number looks as if it ran.
        for lock in (self.data / "postmaster.pid", self.folder / ".s.PGSQL.5432.lock"):
            lock.unlink()

    def session(self):
        return Session(self.psql, self.folder)


def steps(server):
    """Everything, with what a test cannot see in the log said aloud."""
    def step(name):
        main.good(f"SELECT pg_logical_emit_message(false, 'step', '{name}')")

    def load(what):
        sessions = []
        for statements in what:
            session = server.session()
            for sql in statements:
                session.good(sql)
            sessions.append(session)
        return sessions

    def temp():
        return main.good("SELECT relname, relnamespace::regnamespace FROM pg_class WHERE relpersistence = 't' AND relkind = 'r' ORDER BY 1")

    server.start()
    main = server.session()
    for table in ("t (id int, note text)", "k (id int PRIMARY KEY, note text)", "w (id int, note text)"):
        main.good(f"CREATE TABLE {table}")
        main.good(f"INSERT INTO {table[0]} SELECT i, 'note' FROM generate_series(1, 20) i")
    main.good("CREATE SEQUENCE s")
    main.good("CHECKPOINT")
    main.good("SELECT pg_switch_wal()")
    step("crash_load")
    first = main.good("SELECT pg_walfile_name(pg_current_wal_insert_lsn())")[0]
    load(BEFORE_CRASH)
    main.good("SELECT nextval('s')")
    step("crash")
    main.good("INSERT INTO w VALUES (99, 'flushed')")
    print("before the crash:", temp())
    server.kill()
    server.start()
    main = server.session()
    print("after it:", temp(), "nextval:", main.good("SELECT nextval('s')"))
    step("crash_locked")
    print("a statement on what the prepared transaction locks:", main("INSERT INTO k VALUES (99, 'n')"))
    print("another on it:", main("SELECT count(*) FROM k"), "on t:", main.good("SELECT count(*) FROM t"))
    step("crash_commit_prepared")
    main.good("COMMIT PREPARED 'p'")
    print("afterwards:", main.good("INSERT INTO k VALUES (99, 'n')"))
    heir = server.session()
    print("before the first use:", heir("SELECT * FROM tt"), temp())
    step("crash_orphans_rolled_back")
    for sql in ("BEGIN", "CREATE TEMP TABLE tx (a int)", "ROLLBACK"):
        heir.good(sql)
    print("rolled back:", temp())
    step("crash_orphans")
    heir.good("CREATE TEMP TABLE tx (a int)")
    print("used:", temp())
    step("crash_orphans_again")
    heir.good("CREATE TEMP TABLE ty (a int)")
    step("crash_orphans_exit")
    heir.close()
    while temp():
        time.sleep(0.01)
    step("crash_snapshot")
    time.sleep(17)
    step("restart_load")
    load(BEFORE_RESTART)
    main.good("CREATE TABLE before (a int)")
    print("before the restart:", temp())
    step("restart")
    server.stop()
    server.start()
    main = server.session()
    step("restarted")
    print("after it:", temp(), "nextval:", main.good("SELECT nextval('s')"))
    main.good("CREATE TABLE after (a int)")
    print("oids:", main.good("SELECT 'after'::regclass::oid::int - 'before'::regclass::oid::int"))
    step("restart_commit_prepared")
    print("on what the prepared transaction locks:", main("INSERT INTO k VALUES (98, 'n')"))
    main.good("COMMIT PREPARED 'q'")
    step("restart_snapshot")
    time.sleep(17)
    step("end")
    last = main.good("SELECT pg_walfile_name(pg_switch_wal())")[0]
    server.stop()
    return first, last


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--psql", default="psql")
    parser.add_argument("--into", default=HERE, type=pathlib.Path)
    parser.add_argument("servers", nargs="+", metavar="VERSION=BIN")
    args = parser.parse_args()
    for server in args.servers:
        version, binaries = server.split("=", 1)
        folder = pathlib.Path(tempfile.mkdtemp())
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        print(f"PostgreSQL {version}")
        first, last = steps(Server(int(version), binaries, args.psql, folder))
        wal = folder / "data/pg_wal"
        segments = sorted(path.name for path in wal.iterdir() if len(path.name) == 24 and first <= path.name <= last)
        archive = args.into / f"pg{version}.tar.zst"
        subprocess.run(["tar", "--zstd", "-cf", archive, "-C", wal, *segments], check=True, env={**os.environ, "ZSTD_CLEVEL": "19"})
        shutil.rmtree(folder)


main()
