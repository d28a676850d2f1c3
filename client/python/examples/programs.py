"""The programs of docs/languages.md.

    programs.py cron KEY TTL COMMAND...   run a command unless it runs elsewhere
    programs.py leader KEY TTL NAME       lead, or wait to lead
    programs.py writer KEY TTL            write the lines of standard input, fenced

TTL is in seconds.  The server is named by the PG* variables, as for psql.
Exit status: 75 the lock is busy, 76 it was lost.
"""

from __future__ import annotations

import subprocess
import sys
import time

from dlock import Busy, LockLost, Locks

BUSY, LOST = 75, 76


def cron(locks: Locks, key: str, ttl: float, command: list[str]) -> int:
    with locks.lock(key, ttl=ttl, wait=0) as lock:
        child = subprocess.Popen(command)
        while child.poll() is None:
            if lock.lost.wait(0.1):
                child.kill()
                child.wait()
        return child.returncode


def leader(locks: Locks, key: str, ttl: float, name: str) -> None:
    while True:
        try:
            with locks.elect(key, ttl=ttl, value=name) as term:
                while not term.lost.is_set():
                    with term.fenced() as conn:
                        conn.execute("INSERT INTO journal VALUES (%s, %s)", (term.version, name))
                    time.sleep(ttl / 10)
        except LockLost:
            pass  # be a candidate again


def writer(locks: Locks, key: str, ttl: float) -> int:
    with locks.lock(key, ttl=ttl, wait=10) as lock:
        for line in sys.stdin:
            with lock.fenced() as conn:
                conn.execute("INSERT INTO journal VALUES (%s, %s)", (lock.version, line.rstrip("\n")))
    return 0


def main(what: str, key: str, ttl: str, *more: str) -> int:
    with Locks("") as locks:
        try:
            if what == "cron":
                return cron(locks, key, float(ttl), list(more))
            if what == "leader":
                leader(locks, key, float(ttl), more[0])
            return writer(locks, key, float(ttl))
        except Busy:
            return BUSY
        except LockLost as error:
            print(error, file=sys.stderr)
            return LOST


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[1] not in ("cron", "leader", "writer"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
