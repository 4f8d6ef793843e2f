#!/usr/bin/env python3
"""Records incidents on a real server: record.py BIN VERSION OUT

BIN is the server's folder of programs (initdb, pg_ctl, postgres), VERSION a name like pg13, OUT a folder. Needs psql, tar and zstd
on PATH and a user that is not root. Writes OUT/VERSION.tar.zst, the segments of four logs, each from the restart point of a slot on:

* `truncate`: two parents with 40 partitions each, two rows inserted in every partition, TRUNCATE of one parent, a row in each again;
* `growth`: the same parents; rows in every partition, TRUNCATE of half of one parent's, again and of one parent, again and of both;
* `full`: a row inserted in each of 20 tables, then five transactions of CREATE TABLE and two CREATE INDEX;
* `empty`: five such transactions more, by a slot that was made after the rows.

The shipped scenarios `truncate-partitions` and `schema-storm` are the same at these sizes.
"""
import os, shutil, subprocess, sys, tempfile

BIN, VERSION, OUT = sys.argv[1:4]
ROOT = tempfile.mkdtemp(prefix="walstorm-record-")
DATA, SOCKET = f"{ROOT}/data", f"{ROOT}/s"
SETTINGS = """
wal_level = logical
listen_addresses = ''
fsync = off
full_page_writes = off
autovacuum = off
checkpoint_timeout = 1h
max_wal_size = 4GB
"""
COLUMNS = ("id bigint, part int, device int, kind smallint, taken timestamptz, arrived timestamptz, value numeric, unit text, "
           "quality int, lat int, lon int, note text, extra jsonb")
PARTITIONS, TABLES, STORMS = 40, 20, 5


def psql(sql):
    """Runs commands, each its own transaction unless they say otherwise; gives the lines of their answers."""
    done = subprocess.run(["psql", "-h", SOCKET, "-d", "postgres", "-XqAt", "-v", "ON_ERROR_STOP=1"], input=sql, text=True,
                          capture_output=True)
    if done.returncode:
        sys.exit(f"{sql[:200]}: {done.stderr}")
    return done.stdout.splitlines()


def case(name, setup, incident):
    """Keeps the segments that a slot needs which is made between `setup` and `incident`."""
    psql(setup + "checkpoint; select pg_switch_wal();")
    psql(f"select pg_create_logical_replication_slot('{name}', 'test_decoding');")
    [first] = psql(f"select pg_walfile_name(restart_lsn) from pg_replication_slots where slot_name = '{name}';")
    psql(incident)
    [last] = psql("select pg_walfile_name(pg_switch_wal());")
    os.makedirs(f"{ROOT}/logs/{name}")
    for segment in sorted(os.listdir(f"{DATA}/pg_wal")):
        if first <= segment <= last and len(segment) == 24:
            shutil.copy(f"{DATA}/pg_wal/{segment}", f"{ROOT}/logs/{name}/{segment}")


def partitions(parent):
    """A parent and its partitions."""
    parts = [f"create table {parent}_{i} partition of {parent} for values in ({i});" for i in range(PARTITIONS)]
    return f"create table {parent} ({COLUMNS}) partition by list (part);" + "".join(parts)


def storm(name):
    """Five transactions of a table with a sequence, a key and two indexes each."""
    one = ("begin; create table {t} (id serial primary key, a int, b text, c timestamptz default now()); create index on {t} (a); "
           "create index on {t} (c); commit;")
    return "".join(one.format(t=f"{name}_{i}") for i in range(STORMS))


def rows(parent, n):
    """Rows in every partition of a parent."""
    return "".join(f"insert into {parent}_{i} (id, part) select r, {i} from generate_series(1, {n}) r;" for i in range(PARTITIONS))


def record():
    case("truncate", partitions("measurements") + partitions("readings"),
         "begin;" + rows("measurements", 2) + rows("readings", 2) + "commit; truncate measurements; begin;"
         + rows("measurements", 1) + "commit;")
    filled = "begin;" + rows("measurements", 1) + rows("readings", 1) + "commit;"
    half = ", ".join(f"measurements_{i}" for i in range(PARTITIONS // 2))
    case("growth", "", "".join(f"{filled} truncate {which};" for which in [half, "measurements", "measurements, readings"]))
    known = range(TABLES)
    case("full", "".join(f"create table known_{i} (id int, a int, c timestamptz);" for i in known),
         "begin;" + "".join(f"insert into known_{i} values (1, 1, now());" for i in known) + "commit;" + storm("made"))
    case("empty", "", storm("more"))


def main():
    subprocess.run([f"{BIN}/initdb", "-D", DATA, "-A", "trust", "-U", "postgres", "--wal-segsize=1", "--no-locale", "-E", "UTF8"],
                   check=True, stdout=subprocess.DEVNULL)
    os.mkdir(SOCKET)
    open(f"{DATA}/postgresql.conf", "a").write(SETTINGS + f"unix_socket_directories = '{SOCKET}'\n")
    subprocess.run([f"{BIN}/pg_ctl", "-D", DATA, "-w", "-l", f"{ROOT}/log", "start"], check=True, stdout=subprocess.DEVNULL)
    try:
        os.environ["PGUSER"] = "postgres"
        record()
    finally:
        subprocess.run([f"{BIN}/pg_ctl", "-D", DATA, "-m", "immediate", "stop"], check=False, stdout=subprocess.DEVNULL)
    subprocess.run(f"tar -C {ROOT}/logs --sort=name --owner=0 --group=0 --mtime=@0 -cf - . | zstd --ultra -22 -q -f -o {OUT}/{VERSION}.tar.zst",
                   shell=True, check=True)
    shutil.rmtree(ROOT)


main()
