#!/usr/bin/env python3
"""Records which relations pgoutput looks up again after schema changes: record.py BIN VERSION OUT

BIN is the server's folder of programs (initdb, pg_ctl, postgres) of 15 or later, VERSION a name like pg18, OUT a folder. Needs psql, tar
and zstd on PATH and a user that is not root. A row is inserted into each of five tables, in one transaction, before the first change and
after each; then one session decodes all of it with pgoutput. A relation that it looks up again it describes again, from 15 on. Writes
OUT/VERSION.tar.zst, the log, and to stdout a line per transaction with rows: VERSION, the change before it, descriptions.
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
"""
TABLES = 5
SETUP = ("".join(f"create table t{i} (a int);" for i in range(TABLES + 2)) + "create role bob superuser; create schema other;"
         "create publication p for table t0, t1, t2, t3, t4; create publication q for table t0; create publication r0 for table t6;"
         "create publication al for all tables; create publication everything for all tables;")
CHANGES = [
    ("add_table", "alter publication p add table t5;"),
    ("drop_table", "alter publication p drop table t4;"),
    ("set_table", "alter publication p set table t0, t1, t2, t3, t4;"),
    ("options", "alter publication p set (publish = 'insert');"),
    ("rename", "alter publication q rename to q2;"),
    ("rename_all_tables", "alter publication al rename to al2;"),
    ("owner", "alter publication p owner to bob;"),
    ("create_publication", "create publication r for table t6;"),
    ("drop_publication", "drop publication r0;"),
    ("add_schema", "alter publication p add tables in schema other;"),
    ("alter_table", "alter table t0 add b int;"),
    ("rename_schema", "alter schema other rename to other2;"),
]


def psql(sql):
    """Runs commands, each its own transaction unless they say otherwise; gives the lines of their answers."""
    done = subprocess.run(["psql", "-h", SOCKET, "-U", "postgres", "-d", "postgres", "-XqAt", "-v", "ON_ERROR_STOP=1"], input=sql,
                          text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{sql[:200]}: {done.stderr}")
    return done.stdout.splitlines()


def record():
    psql(SETUP + "checkpoint; select pg_switch_wal();")
    psql("select pg_create_logical_replication_slot('s', 'pgoutput');")
    [first] = psql("select pg_walfile_name(restart_lsn) from pg_replication_slots where slot_name = 's';")
    rows = "begin;" + "".join(f"insert into t{i} (a) values (1);" for i in range(TABLES)) + "commit;"
    psql(rows + "".join(change + rows for _, change in CHANGES))
    [last] = psql("select pg_walfile_name(pg_switch_wal());")
    kinds = psql("select chr(get_byte(data, 0)) from pg_logical_slot_get_binary_changes('s', null, null, 'proto_version', '1', "
                 "'publication_names', 'p,everything');")
    transactions = [t for t in "".join(kinds).split("B") if "I" in t]
    for (name, _), kinds in zip([("nothing", ""), *CHANGES], transactions, strict=True):
        assert kinds.count("I") == TABLES, kinds
        print(VERSION, name, kinds.count("R"))
    os.makedirs(f"{ROOT}/log")
    for segment in sorted(os.listdir(f"{DATA}/pg_wal")):
        if first <= segment <= last and len(segment) == 24:
            shutil.copy(f"{DATA}/pg_wal/{segment}", f"{ROOT}/log/{segment}")


def main():
    subprocess.run([f"{BIN}/initdb", "-D", DATA, "-A", "trust", "-U", "postgres", "--wal-segsize=1", "--no-locale", "-E", "UTF8"],
                   check=True, stdout=subprocess.DEVNULL)
    os.mkdir(SOCKET)
    open(f"{DATA}/postgresql.conf", "a").write(SETTINGS + f"unix_socket_directories = '{SOCKET}'\n")
    subprocess.run([f"{BIN}/pg_ctl", "-D", DATA, "-w", "-l", f"{ROOT}/server.log", "start"], check=True, stdout=subprocess.DEVNULL)
    try:
        record()
    finally:
        subprocess.run([f"{BIN}/pg_ctl", "-D", DATA, "-m", "immediate", "stop"], check=False, stdout=subprocess.DEVNULL)
    subprocess.run(f"tar -C {ROOT}/log --sort=name --owner=0 --group=0 --mtime=@0 -cf - . | zstd --ultra -22 -q -f -o {OUT}/{VERSION}.tar.zst",
                   shell=True, check=True)
    shutil.rmtree(ROOT)


main()
