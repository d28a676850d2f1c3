#!/usr/bin/python3
"""dlock from Python: psycopg2 and plain SQL.

    dlock_example.py cron KEY TTL COMMAND...   run a command unless it runs elsewhere
    dlock_example.py leader KEY TTL NAME       lead, or wait to lead
    dlock_example.py writer KEY TTL            write the lines of standard input, fenced

TTL is in seconds.  The server is named by the PG* variables, as for psql.
Exit status: 75 the lock is busy, 76 it was lost.
"""
import subprocess
import sys
import threading
import time
import uuid

import psycopg2

BUSY, LOST = 75, 76


def connect(ttl):
    # A server that does not answer is to be noticed within the TTL.
    conn = psycopg2.connect("", connect_timeout=2, keepalives_idle=10,
                            tcp_user_timeout=int(ttl * 1000 / 3))
    conn.autocommit = True
    return conn


def ask(conn, sql, *args):
    with conn.cursor() as cursor:
        cursor.execute(sql, args)
        return cursor.fetchone()[0]


def acquire(key, ttl, owner, wait):
    """The version, or None.  A lost answer is asked for again: the same owner
    gets the same grant."""
    give_up = time.monotonic() + wait + ttl
    while True:
        try:
            conn = connect(ttl)
            try:
                return ask(conn, "SELECT dlock_acquire(%s::text, make_interval(secs => %s::float8),"
                           " owner => %s::text, wait => make_interval(secs => %s::float8))",
                           key, ttl, owner, wait)
            finally:
                conn.close()
        except psycopg2.OperationalError as error:
            # Without a code the connection broke, or there was none; 57P: the
            # server goes down or starts.  All else is the server's answer: a
            # deadlock, a cancel, a timeout.
            answered = error.pgcode and not error.pgcode.startswith("57P")
            if answered or time.monotonic() > give_up:
                raise
            time.sleep(0.2)


class Lease:
    """Renews a lock every third of its TTL, from a thread and a connection of
    its own, and knows when it can no longer be relied on."""

    def __init__(self, key, version, ttl):
        self.key, self.version, self.ttl = key, version, ttl
        self.deadline = 0.0
        self.gone = False
        self.conn = None
        self.stop = threading.Event()
        # The first renewal is at once: the acquire may have waited, so when
        # the grant began is not known here.
        self.renew()
        threading.Thread(target=self.run, daemon=True).start()

    def renew(self):
        sent = time.monotonic()
        try:
            self.conn = self.conn or connect(self.ttl)
            expiry = ask(self.conn, "SELECT dlock_refresh(%s::text, %s::bigint)", self.key, self.version)
        except psycopg2.Error:
            # Not known: the deadline stands, a new connection may still make it.
            if self.conn:
                self.conn.close()
            self.conn = None
            return
        if expiry is None:
            self.gone = True
        else:
            # From before it was sent, and a tenth less: the server ends later.
            self.deadline = sent + 0.9 * self.ttl

    def run(self):
        while not self.gone and not self.stop.wait(
                self.ttl / 3 if self.conn else self.ttl / 20):
            self.renew()

    def lost(self):
        return self.gone or time.monotonic() >= self.deadline

    def release(self):
        self.stop.set()
        conn = connect(self.ttl)
        ask(conn, "SELECT dlock_release(%s::text, %s::bigint)", self.key, self.version)
        conn.close()


def fenced_write(conn, key, version, line):
    """False if the lock is not ours any more; then nothing was written."""
    try:
        # "with conn" is a transaction, also where autocommit is on
        with conn, conn.cursor() as cursor:
            cursor.execute("SELECT dlock_fence(%s::text, %s::bigint)", (key, version))
            cursor.execute("INSERT INTO journal (version, line) VALUES (%s, %s)",
                           (version, line))
        return True
    except psycopg2.Error as error:
        if error.pgcode != "LK001":
            raise
        return False


def cron(key, ttl, command):
    version = acquire(key, ttl, str(uuid.uuid4()), wait=0)
    if version is None:
        return BUSY
    lease = Lease(key, version, ttl)
    if lease.lost():
        return LOST
    child = subprocess.Popen(command)
    while child.poll() is None:
        if lease.lost():
            # What is left until the server's expiry is a tenth of the TTL.
            child.terminate()
            try:
                child.wait(ttl / 20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            return LOST
        time.sleep(ttl / 100)
    lease.release()
    return child.returncode


def leader(key, ttl, name):
    while True:
        # unique to this run, so that a restarted process is another candidate
        version = acquire(key, ttl, f"{name} {uuid.uuid4()}", wait=60)
        if version is None:
            continue
        lease = Lease(key, version, ttl)
        conn = connect(ttl)
        while not lease.lost() and fenced_write(conn, key, version, name):
            time.sleep(ttl / 10)
        lease.stop.set()
        conn.close()


def writer(key, ttl):
    version = acquire(key, ttl, str(uuid.uuid4()), wait=10)
    if version is None:
        return BUSY
    lease = Lease(key, version, ttl)
    conn = connect(ttl)
    for line in sys.stdin:
        # No lease.lost() here: the fence knows better.
        if not fenced_write(conn, key, version, line.rstrip("\n")):
            print("LK001: the lock was lost, nothing was written", file=sys.stderr)
            return LOST
    lease.release()
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[1] not in ("cron", "leader", "writer"):
        sys.exit(__doc__)
    what, lock, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    if what == "cron":
        sys.exit(cron(lock, seconds, sys.argv[4:]))
    sys.exit(leader(lock, seconds, sys.argv[4]) if what == "leader" else writer(lock, seconds))
