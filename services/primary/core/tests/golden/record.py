#!/usr/bin/env python3
"""Runs the statements of statements.toml on real servers and writes what they logged to statements/NAME.txt, and what that adds
up to as a table to statements.tsv.

Usage: record.py [--only NAME,NAME] [--work FOLDER] --psql PSQL 13=BIN 14=BIN ... (BIN: a folder with initdb, pg_ctl, postgres)
Each server is made anew in FOLDER (default: a temporary one) and listens on a socket there only. As root it runs as user postgres.
The lines are made by `cargo run -p primary-core --example statement_lines`.
"""
import argparse, os, pathlib, re, shutil, subprocess, sys, tempfile, tomllib

HERE = pathlib.Path(__file__).resolve().parent
SETTINGS = """
listen_addresses = ''
wal_level = logical
autovacuum = on
autovacuum_naptime = 2000000s
autovacuum_vacuum_threshold = 2000000000
autovacuum_analyze_threshold = 2000000000
autovacuum_vacuum_insert_threshold = -1
max_wal_size = 4GB
wal_keep_size = 4GB
checkpoint_timeout = 1h
fsync = off
full_page_writes = off
wal_log_hints = off
"""


def run(command, user=None, cwd=None):
    if user and os.geteuid() == 0:
        command = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", *command]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr or done.stdout}")
    return done.stdout


class Session:
    """One psql, so that every statement finds a session that is warm."""

    def __init__(self, psql, folder):
        self.errors = open(folder / "psql.err", "w+")
        command = [psql, "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-h", folder, "-U", "postgres", "-d", "postgres"]
        if os.geteuid() == 0:
            command = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", *command]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)

    def __call__(self, sql):
        self.process.stdin.write(f"{sql.rstrip(';')};\n\\echo done.\n")
        self.process.stdin.flush()
        answer = []
        for line in self.process.stdout:
            if line.strip() == "done.":
                return answer
            answer.append(line.strip())
        self.errors.seek(0)
        sys.exit(f"{sql}: {self.errors.read()}")


def record(version, binaries, psql, statements, folder):
    """Runs all statements on one server; gives their lines by name."""
    folder.mkdir()
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    data, as_user = folder / "data", "postgres"
    flags = ["--no-data-checksums"] if version >= 18 else []
    run([f"{binaries}/initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N", *flags], as_user, folder)
    with open(data / "postgresql.conf", "a") as conf:
        conf.write(f"{SETTINGS}unix_socket_directories = '{folder}'\n")
    run([f"{binaries}/pg_ctl", "-D", data, "-w", "-l", folder / "log", "start"], as_user, folder)
    try:
        session, ranges = Session(psql, folder), []
        session("CREATE ROLE bob")
        session("CREATE FUNCTION trig() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'")
        position = "SELECT pg_current_wal_insert_lsn()"
        for statement in statements:
            if version not in statement.get("versions", [version]):
                continue
            for sql in statement.get("before", []):
                session(sql)
            first = session(position)[0]
            session(statement["sql"])
            ranges.append((statement["name"], first, session(position)[0]))
            for sql in statement.get("after", []):
                session(sql)
        session("SELECT pg_switch_wal()")
    finally:
        run([f"{binaries}/pg_ctl", "-D", data, "-w", "-m", "fast", "stop"], as_user, folder)
    table = folder / "ranges.tsv"
    table.write_text("".join("\t".join(fields) + "\n" for fields in ranges))
    lines = run(["cargo", "run", "-q", "-j2", "-p", "primary-core", "--example", "statement_lines", "--", data / "pg_wal", table], cwd=HERE)
    parts = re.split(r"^== (.*)\n", lines, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def counts(lines):
    """What a statement's lines add up to: messages of its commit records by kind, NEW_CID and INVALIDATIONS records."""
    total = dict.fromkeys(("catcache", "relcache", "snapshot", "relsync", "new_cid", "invalidations"), 0)
    for line in lines.splitlines():
        kind = line.split(" ")[0]
        times = int(line.rsplit(" × ", 1)[1]) if " × " in line and kind not in ("COMMIT", "INVALIDATIONS", "INPLACE") else 1
        if kind in ("INSERT", "MULTI_INSERT", "DELETE", "UPDATE", "NEW_CID") and re.search(r" (-|\d+) (-|\d+) (-|\d+)", line):
            total["new_cid"] += times * (2 if kind == "UPDATE" else 1)
        elif kind == "INVALIDATIONS":
            total["invalidations"] += 1
        elif kind == "COMMIT":
            for message in line.split("; ")[-1].removeprefix("COMMIT ").split(", "):
                name, _, n = message.partition(" × ")
                if name and name != "COMMIT" and not name.endswith(";"):
                    word = name.split(" ")[0]
                    total[word if word in total else "catcache"] += int(n or 1)
    return tuple(total.values())


def write_table(names, results, into):
    """statement × version, readable: versions that agree share a line."""
    rows = ["statement\tversions\tcatcache\trelcache\tsnapshot\trelsync\tNEW_CID\tINVALIDATIONS"]
    for name in names:
        groups = {}
        for version, lines in results.items():
            if name in lines:
                groups.setdefault(counts(lines[name]), []).append(version)
        rows += [f"{name}\t{' '.join(versions)}\t" + "\t".join(map(str, total)) for total, versions in groups.items()]
    (pathlib.Path(into) / "statements.tsv").write_text("\n".join(rows) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--psql", default="psql")
    parser.add_argument("--work")
    parser.add_argument("--only")
    parser.add_argument("--into", default=HERE)
    parser.add_argument("servers", nargs="+", metavar="VERSION=BIN")
    args = parser.parse_args()
    statements = tomllib.loads((HERE / "statements.toml").read_text())["statement"]
    work = pathlib.Path(args.work or tempfile.mkdtemp())
    work.mkdir(exist_ok=True)
    work.chmod(0o755)
    results = {}
    for server in args.servers:
        version, binaries = server.split("=", 1)
        results[version] = record(int(version), binaries, args.psql, statements, work / version)
    only = args.only.split(",") if args.only else [statement["name"] for statement in statements]
    for name in only:
        by_lines = {}
        for version, lines in results.items():
            if name in lines:
                by_lines.setdefault(lines[name].rstrip() + "\n", []).append(version)
        text = "".join(f"== {' '.join(versions)}\n{lines}" for lines, versions in by_lines.items())
        (pathlib.Path(args.into) / f"statements/{name}.txt").write_text(text)
    if not args.only:
        write_table(only, results, args.into)


main()
