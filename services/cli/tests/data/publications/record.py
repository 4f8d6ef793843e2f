#!/usr/bin/env python3
"""Records which changes pgoutput sends while publications change: record.py BIN VERSION OUT (see ../server.py for BIN).

Rows of all tables are changed after each change of a publication, and beside some of them; then one session decodes all of it. Writes
OUT/VERSION.tar.zst (the log, copies of the catalogs from before it) and OUT/VERSION.txt: each change that was sent, with its transaction.
"""
import os, sys, time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from server import Server

BIN, VERSION, OUT = sys.argv[1:4]
MAJOR = int(VERSION[2:])
NAMES = "p,i,r"
SETUP = ("".join(f"create table t{i} (a int primary key, b text);" for i in range(1, 5))
         + "create schema s; create table s.t5 (a int primary key, b text);"
         "create table part (a int primary key, b text) partition by range (a);"
         "create table part1 partition of part for values from (0) to (1000000);"
         "create table part2 partition of part for values from (1000000) to (2000000) partition by range (a);"
         "create table part21 partition of part2 for values from (1000000) to (2000000);"
         "create table child () inherits (t4); alter table child add primary key (a);"
         "create publication p for table t1; create publication i for table t2 with (publish = 'insert');"
         "create publication r for table part with (publish_via_partition_root = true);"
         "create publication other for all tables; create materialized view m as select 1 as a;")
TABLES = ["t1", "t2", "t3", "t4", "child", "s.t5", "part", "part2"]
# (what is done, statements, statements after it in the same transaction as a change of rows)
CHANGES = [
    ("nothing", "select 1"),
    ("add_table", "alter publication p add table t3"),
    ("drop_table", "alter publication p drop table t1"),
    ("publish", "alter publication i set (publish = 'update, delete')"),
    ("publish_all", "alter publication i set (publish = 'insert, update, delete, truncate')"),
    ("set_table", "alter publication p set table t2, t4"),
    ("not_via_root", "alter publication r set (publish_via_partition_root = false)"),
    ("of_a_partition", "alter publication p add table part21"),
    ("via_root", "alter publication r set (publish_via_partition_root = true)"),
    ("detach", "alter table part detach partition part2"),
    ("attach", "alter table part attach partition part2 for values from (1000000) to (2000000)"),
    ("rename_other", "alter publication other rename to another"),
    ("rolled_back", "begin; alter publication p add table t1; rollback"),
    ("owner", "create role bob superuser; alter publication i owner to bob"),
    ("rename_table", "alter table t3 rename to t33; alter publication p add table t33; alter table t33 rename to t3"),
    ("drop_other", "drop publication another"),
]
if MAJOR >= 15:
    CHANGES += [("add_schema", "alter publication p add tables in schema s"), ("drop_schema", "alter publication p drop tables in schema s")]
# Changes of publications between rows of one transaction.
OWN = [
    ("own", "insert into t1 values ({n}); alter publication p add table t1; insert into t1 values ({n} + 1);"
            "alter publication p drop table t1; insert into t1 values ({n} + 2)"),
    ("own_savepoint", "savepoint one; alter publication p add table t1; insert into t1 values ({n}); rollback to one;"
                      "insert into t1 values ({n} + 1); savepoint two; alter publication i set (publish = 'truncate');"
                      "insert into t2 values ({n}); release two; insert into t2 values ({n} + 1)"),
    ("own_truncate", "truncate t1, t2, t3, t4, s.t5, part"),
]
ROWS = ("begin;" + "".join(f"insert into {t} values ({{n}});" for t in TABLES[:-1]) + "insert into part2 values ({n} + 1000000);"
        + "".join(f"update {t} set b = 'x' where a = {{n}};" for t in ["t1", "t2", "t3", "only t4", "s.t5", "part"])
        + "".join(f"delete from {t} where a = {{n}};" for t in ["t1", "t2", "t3", "only t4", "s.t5", "part"])
        + "refresh materialized view m; commit;")
CATALOGS = {
    "pg_class": "select relname, c.oid, relfilenode, reltablespace, relnamespace, relkind, n.nspname as nsp, pg_relation_filenode(c.oid) as filenode_effective from pg_class c "
                "join pg_namespace n on n.oid = relnamespace where c.oid >= 16384",
    "pg_publication": "select ctid, * from pg_publication",
    "pg_publication_rel": "select ctid, oid, prpubid, prrelid from pg_publication_rel",
    "pg_inherits": "select ctid, * from pg_inherits",
}
if MAJOR >= 15:
    CATALOGS["pg_publication_namespace"] = "select ctid, * from pg_publication_namespace"


def sent(messages):
    """The lines of each transaction: the action and the table."""
    names, transactions = {}, []
    for message in map(bytes.fromhex, messages):
        kind, body = message[:1], message[1:]
        number = lambda at: int.from_bytes(body[at:at + 4], "big")
        if kind == b"B":
            transactions.append((int.from_bytes(body[16:20], "big"), []))
        elif kind == b"R":
            schema, name = body[4:].split(b"\0")[:2]
            names[number(0)] = f"{schema.decode()}.{name.decode()}"
        elif kind in (b"I", b"U", b"D"):
            transactions[-1][1].append(f"{kind.decode()} {names[number(0)]}")
        elif kind == b"T":
            transactions[-1][1].append("T " + ",".join(names[number(5 + 4 * i)] for i in range(number(0))))
    return transactions


# Of one version pages are logged whole, too.
with Server(BIN, images="on" if MAJOR == 18 else "off") as server:
    server.psql(SETUP + "checkpoint; select pg_switch_wal();")
    server.psql("select pg_create_logical_replication_slot('s', 'pgoutput');")
    copy = lambda name: "\n".join(server.psql(f"copy ({CATALOGS[name]}) to stdout (format csv, header);")) + "\n"
    catalogs = [(f"{name}_start.csv", copy(name)) for name in CATALOGS]
    [first] = server.psql("select pg_walfile_name(restart_lsn) from pg_replication_slots where slot_name = 's';")
    n = 0
    for name, change in CHANGES:
        n += 10
        server.psql(change + ";" + ROWS.format(n=n))
    for name, change in OWN:
        n += 10
        server.psql("begin;" + change.format(n=n) + "; commit;")
    # A publication changes while somebody writes, who goes on afterwards.
    n += 10
    writer = server.session()
    writer.stdin.write(f"begin; insert into t1 values ({n}); insert into t2 values ({n}); select 'written';\n")
    writer.stdin.flush()
    assert writer.stdout.readline() == "written\n"
    server.psql(f"alter publication p add table t1; alter publication i set (publish = 'insert'); insert into t1 values ({n} + 1);")
    writer.stdin.write(f"insert into t1 values ({n} + 2); insert into t2 values ({n} + 2); commit;\n")
    writer.stdin.close()
    assert writer.wait() == 0
    server.psql(ROWS.format(n=n + 10))
    # TRUNCATE gave tables new files.
    catalogs.append(("pg_class.csv", copy("pg_class")))
    [last] = server.psql("select pg_walfile_name(pg_switch_wal());")
    messages = server.psql("select encode(data, 'hex') from pg_logical_slot_get_binary_changes('s', null, null, 'proto_version', '1', "
                           f"'publication_names', '{NAMES}');")
    lines = [f"{xid} {change}" for xid, changes in sent(messages) for change in changes]
    with open(f"{OUT}/{VERSION}.txt", "w") as text:
        text.write("\n".join(lines) + "\n")
    server.pack(first, last, f"{OUT}/{VERSION}.tar.zst", catalogs)
