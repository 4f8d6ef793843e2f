#!/bin/sh
# Records what traceparent.sql writes on a real server: record_traceparent.sh BIN OUT
# BIN is the folder of a server's programs; needs psql, tar and zstd on PATH and a user that is not root. Writes OUT/traceparent.tar.zst.
set -eu
bin=$1 out=$2 here=$(cd "$(dirname "$0")" && pwd)
root=$(mktemp -d)
"$bin/initdb" -D "$root/data" -A trust -U postgres --wal-segsize=1 --no-locale -E UTF8 >/dev/null
printf "wal_level = logical\nlisten_addresses = ''\nfsync = off\nautovacuum = off\nunix_socket_directories = '%s'\n" "$root" >> "$root/data/postgresql.conf"
"$bin/pg_ctl" -D "$root/data" -w -l "$root/log" start >/dev/null
trap '"$bin/pg_ctl" -D "$root/data" -m immediate stop >/dev/null; rm -rf "$root"' EXIT
sql() { psql -h "$root" -U postgres -XqAt -v ON_ERROR_STOP=1 "$@"; }
sql -c "CREATE TABLE orders (id int PRIMARY KEY, v text)"
sql -c "CHECKPOINT" -c "SELECT pg_switch_wal()" >/dev/null
sql -c "SELECT pg_log_standby_snapshot()" >/dev/null
first=$(sql -c "SELECT pg_walfile_name(pg_current_wal_lsn())")
sql -f "$here/traceparent.sql" >/dev/null
sql -c "SELECT pg_switch_wal()" >/dev/null
tar -C "$root/data/pg_wal" --owner=0 --group=0 --mtime=@0 -cf - "$first" | zstd --ultra -22 -q -f -o "$out/traceparent.tar.zst"
