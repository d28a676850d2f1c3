"""Locks in PostgreSQL, with TTLs and fencing tokens, for the dlock extension.

    from dlock import Locks

    locks = Locks("host=db1,db2 dbname=app")
    with locks.lock("nightly", ttl=30, wait=60) as lock:
        with lock.fenced() as conn:
            conn.execute("UPDATE ...")
"""

from ._core import Event, Leader
from ._protocol import (
    Busy,
    Deadlock,
    Denied,
    DlockError,
    InvalidArgument,
    LockLost,
    NotReady,
    Refused,
    Unreachable,
)
from ._sync import Lock, Locks

__version__ = "1.0.0"
__all__ = [
    "Busy", "Deadlock", "Denied", "DlockError", "Event", "InvalidArgument", "Leader", "Lock", "LockLost",
    "Locks", "NotReady", "Refused", "Unreachable",
]
