"""A server of its own for recorders: Server(BIN) starts one that logs for logical decoding, on a socket, and is removed afterwards.

BIN is the folder of its programs (initdb, pg_ctl, postgres). Needs psql, tar and zstd on PATH and a user that is not root.
"""
import os, shutil, subprocess, sys, tempfile

SETTINGS = """
wal_level = logical
listen_addresses = ''
fsync = off
full_page_writes = {images}
autovacuum = off
checkpoint_timeout = 1h
max_prepared_transactions = 5
"""


class Server:
    def __init__(self, bin, images="off"):
        self.images = images
        self.bin, self.root = bin, tempfile.mkdtemp(prefix="walstorm-record-")
        self.data, self.socket = f"{self.root}/data", f"{self.root}/s"

    def __enter__(self):
        subprocess.run([f"{self.bin}/initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "--wal-segsize=1", "--no-locale", "-E", "UTF8"],
                       check=True, stdout=subprocess.DEVNULL)
        os.mkdir(self.socket)
        with open(f"{self.data}/postgresql.conf", "a") as conf:
            conf.write(SETTINGS.format(images=self.images) + f"unix_socket_directories = '{self.socket}'\n")
        subprocess.run([f"{self.bin}/pg_ctl", "-D", self.data, "-w", "-l", f"{self.root}/server.log", "start"], check=True,
                       stdout=subprocess.DEVNULL)
        return self

    def __exit__(self, *_):
        subprocess.run([f"{self.bin}/pg_ctl", "-D", self.data, "-m", "immediate", "stop"], check=False, stdout=subprocess.DEVNULL)
        shutil.rmtree(self.root)

    def psql(self, sql):
        """Runs commands in one session, each its own transaction unless they say otherwise; gives the lines of their answers."""
        done = subprocess.run(["psql", "-h", self.socket, "-U", "postgres", "-d", "postgres", "-XqAt", "-v", "ON_ERROR_STOP=1"], input=sql,
                              text=True, capture_output=True)
        if done.returncode:
            sys.exit(f"{sql[:200]}: {done.stderr}")
        return done.stdout.splitlines()

    def session(self):
        """A session that takes commands one by one: psql with pipes."""
        return subprocess.Popen(["psql", "-h", self.socket, "-U", "postgres", "-d", "postgres", "-XqAt", "-v", "ON_ERROR_STOP=1"],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def pack(self, first, last, out, more=()):
        """Packs the segments from first to last, and files given as (name, text), into OUT."""
        log = f"{self.root}/log"
        os.makedirs(log)
        for segment in sorted(os.listdir(f"{self.data}/pg_wal")):
            if first <= segment <= last and len(segment) == 24:
                shutil.copy(f"{self.data}/pg_wal/{segment}", f"{log}/{segment}")
        for name, text in more:
            with open(f"{log}/{name}", "w") as file:
                file.write(text)
        subprocess.run(f"tar -C {log} --sort=name --owner=0 --group=0 --mtime=@0 -cf - . | zstd --ultra -22 -q -f -o {out}", shell=True,
                       check=True)
