#!/usr/bin/env python3
"""Records what servers decode of changes with a replication origin: record.py BIN VERSION OUT (see ../server.py for BIN).

Sessions change a table as they are, and as appliers that name an origin. Writes OUT/VERSION.tar.zst, the log, and OUT/VERSION.txt: a line
per change that test_decoding shows, without and with `only-local`, and per ORIGIN message of pgoutput, with and without origin = none
(16 and later).
"""
import os, sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from server import Server

BIN, VERSION, OUT = sys.argv[1:4]
MAJOR = int(VERSION[2:])
SETUP = ("create table t (a int primary key, b text); select pg_replication_origin_create('elsewhere');"
         "select pg_replication_origin_create('other'); create publication p for all tables;")
AS = "select pg_replication_origin_session_setup('elsewhere');"
AT = "select pg_replication_origin_xact_setup('{}', '2026-01-01 00:00:{:02}+00');"
LOCAL = "insert into t values (1, 'here'); begin; insert into t values (2, 'here'); update t set b = 'x' where a = 1; commit;"
REMOTE = (AS
          + "begin;" + AT.format("0/AABB00", 1) + "insert into t values (10, 'there'), (11, 'there'); update t set b = 'y' where a = 10; commit;"
          # An applier that does not say where the transaction ended.
          + "begin; delete from t where a = 11; commit;"
          + "begin;" + AT.format("0/AABB10", 2) + "insert into t values (12, 'there'); savepoint s; insert into t values (13, 'there');"
          + "rollback to s; savepoint s; insert into t values (14, 'there'); release s;"
          + "select pg_logical_emit_message(true, 'pre', 'in'); commit;"
          + "select pg_logical_emit_message(false, 'pre', 'out');"
          # Schema changes from elsewhere still invalidate.
          + "begin;" + AT.format("0/AABB20", 3) + "alter table t add c int; commit;"
          + "begin;" + AT.format("0/AABB30", 4) + "insert into t values (15, 'there', 1); prepare transaction 'two'; commit prepared 'two';"
          + "begin;" + AT.format("0/AABB40", 5) + "truncate t; commit;"
          + "begin;" + AT.format("0/AABB50", 6) + "insert into t values (16, 'there', 1) on conflict do nothing; rollback;"
          + "select pg_replication_origin_session_reset();")
# A transaction that names its origin in its middle: each change has the origin of its moment, the commit the last.
MIXED = ("begin; insert into t values (20, 'here', 1);" + AS + "insert into t values (21, 'there', 1);" + AT.format("0/AABB60", 7)
         + "commit; select pg_replication_origin_session_reset();"
         + AS + "begin; insert into t values (22, 'there', 1); select pg_replication_origin_session_reset(); insert into t values (23, 'here', 1); commit;")
AGAIN = "begin; insert into t values (30, 'here', 1) on conflict do nothing; select pg_logical_emit_message(true, 'pre', 'here'); commit;"


def shown(line):
    """A line of test_decoding without the row: BEGIN xid, COMMIT xid, the action and its table, a message."""
    words = line.replace(":", " ").split()
    if words[0] == "table":
        return f"{words[2]} {words[1]}"
    if words[0] == "message":
        return "message"
    return f"{words[0]} {words[1]}"


with Server(BIN) as server:
    server.psql(SETUP + "checkpoint; select pg_switch_wal();")
    server.psql("select pg_create_logical_replication_slot('s', 'test_decoding'); select pg_create_logical_replication_slot('p', 'pgoutput');")
    [first] = server.psql("select pg_walfile_name(restart_lsn) from pg_replication_slots where slot_name = 's';")
    server.psql(LOCAL)
    server.psql(REMOTE)
    server.psql(MIXED)
    server.psql(AGAIN)
    [last] = server.psql("select pg_walfile_name(pg_switch_wal());")
    lines = []
    for name, option in [("all", "0"), ("local", "1")]:
        changes = server.psql(f"select data from pg_logical_slot_peek_changes('s', null, null, 'only-local', '{option}');")
        lines += [f"{name} {shown(line)}" for line in changes]
    for origin in ["any", "none"] if MAJOR >= 16 else ["any"]:
        option = f", 'origin', '{origin}'" if MAJOR >= 16 else ""
        messages = server.psql("select encode(data, 'hex') from pg_logical_slot_peek_binary_changes('p', null, null, 'proto_version', '1', "
                               f"'publication_names', 'p'{option});")
        for message in map(bytes.fromhex, messages):
            if message[:1] == b"B":
                lines.append(f"pgoutput {origin} begin {int.from_bytes(message[17:21], 'big')}")
            if message[:1] == b"O":
                lines.append(f"pgoutput {origin} origin {int.from_bytes(message[1:9], 'big'):X} {message[9:-1].decode()}")
    ids = server.psql("select roident || ' ' || roname from pg_replication_origin order by 1;")
    with open(f"{OUT}/{VERSION}.txt", "w") as text:
        text.write("\n".join(["id " + line for line in ids] + lines) + "\n")
    server.pack(first, last, f"{OUT}/{VERSION}.tar.zst")
