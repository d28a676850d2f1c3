"""The protocol of docs/protocol.md: statements, times, and what an error means.

Nothing here talks to a server or keeps state.  Every statement is written for a hostile
search_path: names have their schema, operators are written OPERATOR(pg_catalog.x), each
argument is given by name and with its type.  "@." is the schema of the extension, and
"$1" the first parameter; the drivers replace both.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Sequence
from typing import Any, Callable, Optional

# Times, in seconds or as parts of the TTL
TTL = 20.0  # unless the caller names one
TIMEOUT = 10.0  # how long the server may be silent
LEASE = 0.9  # a lock is ours for this part of its TTL after the question was sent
DANGER = 0.6  # after this part without a renewal the program is warned
PERIOD = 1 / 3  # of renewals, with a jitter of a tenth
TOGETHER = 0.2  # what is due this soon is renewed together with what is due now
ANSWER = 1 / 3  # how long the server may take to answer a renewal
CONFIRM = 0.25  # a grant whose answer took longer is confirmed by a refresh
REFUSED = 0.1  # until the next try after the server refused a renewal
CLAIM_TTL = 10.0  # the longest TTL of a ticket's grant until it is claimed
POLL = 0.25  # between questions about tickets where there is no LISTEN
OVERDUE = 1.0  # how long the server may take to say that a wait is over
SHORT = 0.1  # a lock that is held for less needs no connection for its renewal
HEAR_PAUSE, HEAR_BURST = 0.25, 4  # questions that events lead to: rate, and how many at once
BACKOFF_FIRST, BACKOFF_LAST = 0.05, 1.0  # pauses between two tries
ABANDON_PAUSE, ABANDON_LAST = 0.2, 60.0
MAX_BATCH = 10_000
MAX_TICKET_BYTES = 1024

_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def clock() -> float:
    """Seconds, on a clock that runs while the machine is suspended (as leases do)."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


def new_owner() -> str:
    """Unique to one request.  Two requests with the same owner would share one grant."""
    return secrets.token_hex(16)


def jitter(seconds: float) -> float:
    return seconds * random.uniform(0.9, 1.1)


# Errors


class DlockError(Exception):
    """Base of all errors.  `sqlstate` is the server's code, if it has answered."""

    def __init__(self, message: str, sqlstate: Optional[str] = None):
        super().__init__(message)
        self.sqlstate = sqlstate


class Busy(DlockError):
    """Another client holds the lock, and the wait is over."""


class LockLost(DlockError):
    """The lock was held and is not any more.  Do not continue; do not repeat with this version."""


class Refused(DlockError):
    """A holder of a lower priority did not yield in time (55P03)."""


class Deadlock(DlockError):
    """Requests wait for each other (40P01)."""


class Denied(DlockError):
    """A missing privilege, or a policy (42501)."""


class NotReady(DlockError):
    """The extension is missing, too old or not preloaded, or it lacks a feature."""


class InvalidArgument(DlockError, ValueError):
    """The server rejected an argument (22xxx), or the client did."""


class Unreachable(DlockError):
    """No answer: it is unknown whether the statement took effect."""


_CLASSES: dict[str, type[DlockError]] = {
    "LK001": LockLost,
    "55P03": Refused,
    "40P01": Deadlock,
    "42501": Denied,
    "55000": NotReady,
    "42883": NotReady,
    "3F000": NotReady,
    "42P01": NotReady,
    "42704": NotReady,
    "42725": NotReady,
    "0A000": NotReady,
}
_AGAIN = ("08", "57P0", "25006", "25P04", "53300")


def error_of(code: Optional[str], message: str) -> DlockError:
    """The exception for an SQLSTATE; None: the server did not answer."""
    if not code or code.startswith(_AGAIN):
        return Unreachable(message, code)
    if code.startswith("22"):
        return InvalidArgument(message, code)
    if code.startswith("28") or code == "3D000":
        return Denied(message, code)
    return _CLASSES.get(code, DlockError)(message, code)


def is_turned_away(error: DlockError) -> bool:
    """The server is there, but accepts nobody: full, starting or shutting down."""
    return (error.sqlstate or "").startswith(("53300", "57P0"))


# Statements

TEXT, INT4, INT8 = "::pg_catalog.text", "::pg_catalog.int4", "::pg_catalog.int8"
BOOL, INTERVAL, FLOAT8 = "::pg_catalog.bool", "::pg_catalog.interval", "::pg_catalog.float8"
EQUALS = " OPERATOR(pg_catalog.=) "


def _ms(x: str) -> str:
    return f"(EXTRACT(EPOCH FROM {x}){FLOAT8} OPERATOR(pg_catalog.*) 1000{FLOAT8}){INT8}"


def _left(refresh: str) -> str:
    """Milliseconds until the expiry that a refresh returns."""
    return _ms(f"({refresh} OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp())")


def _refresh(key: str, version: str, owner: str, ttl: str, value: str = "NULL") -> str:
    return _left(
        f"@.dlock_refresh(key => {key}, version => {version}, ttl => {ttl}{INTERVAL}, "
        f"owner => {owner}, value => {value}{TEXT}, at_least => NULL{INTERVAL})"
    )


def _unnest(*types: str) -> str:
    return ", ".join(f"pg_catalog.unnest(${i}{t}[])" for i, t in enumerate(types, 1))


# the schema of the extension, and the process, which a pooler does not know
HELLO = (
    f"SELECT pg_catalog.pg_backend_pid(), (SELECT pg_catalog.quote_ident(n.nspname{TEXT}) "
    "FROM pg_catalog.pg_extension AS e, pg_catalog.pg_namespace AS n "
    f"WHERE n.oid{EQUALS}e.extnamespace AND (e.extname{EQUALS}'dlock'::pg_catalog.name "
    f"OR e.extname{EQUALS}'dlock_portable'::pg_catalog.name "
    f"OR e.extname{EQUALS}'dlock_router'::pg_catalog.name) ORDER BY e.extname LIMIT 1)"
)
FEATURES = f"SELECT f.edition{TEXT}, f.version{TEXT}, f.features{TEXT}[] FROM @.dlock_features() AS f"
LISTEN = "LISTEN dlock"

_TERMS = (
    f"key => $1{TEXT}, ttl => $2{INTERVAL}, owner => $3{TEXT}, value => $4{TEXT}, "
    f"priority => $5{INT4}, cleanup => $6{INTERVAL}, force => $7{BOOL}, slots => $8{INT4}, "
    f"at_least => $9{INTERVAL}, delay => $10{INTERVAL}, lazy => $11{BOOL}, shared => $12{BOOL}, "
    "again => true"
)
TRY = f"SELECT @.dlock_acquire({_TERMS}, wait => '0'{INTERVAL}, session => false)"
ENQUEUE = f"SELECT @.dlock_enqueue({_TERMS}, wait => $13{INTERVAL})"
TRY_ALL = (
    f"SELECT @.dlock_acquire_all(keys => $1{TEXT}[], ttl => $2{INTERVAL}, owner => $3{TEXT}, "
    f"value => $4{TEXT}, wait => '0'{INTERVAL}, priority => $5{INT4}, session => false, "
    f"slots => $6{INT4}[], shared => $7{BOOL}[])"
)
# key, ticket, owner, TTL: what has become of the ticket; if it was granted, it is refreshed
CLAIM = (
    f"SELECT s.state, s.version, CASE WHEN s.state{EQUALS}'granted'{TEXT} THEN "
    f"{_refresh(f'$1{TEXT}', 's.version', f'$3{TEXT}', '$4')} END "
    f"FROM (SELECT 1) AS one LEFT JOIN LATERAL @.dlock_ticket(ticket => $2{INT8}) AS s ON true"
)
DEQUEUE = f"SELECT @.dlock_dequeue(ticket => $1{INT8})"
# those that do not wait any more
TICKETS = (
    f"SELECT u.t FROM pg_catalog.unnest($1{INT8}[]) AS u(t) "
    "LEFT JOIN LATERAL @.dlock_ticket(ticket => u.t) AS s ON true "
    f"WHERE s.state IS NULL OR s.state OPERATOR(pg_catalog.<>) 'waiting'{TEXT}"
)
# key, version, owner, new value or NULL
REFRESH = f"SELECT {_refresh(f'$1{TEXT}', f'$2{INT8}', f'$3{TEXT}', 'NULL', '$4')}"
# keys, versions, owners, which to refresh, lock_timeout: for each its number, how long it
# lasts if it was refreshed, its state, and how long it may take to yield
RENEW = (
    f"SELECT x.i, x.expires, x.state, CASE WHEN x.state{EQUALS}'preempting'{TEXT} THEN (SELECT "
    f"{_left('l.requestor_deadline')} FROM @.dlock_get(key => x.k) AS l WHERE l.version{EQUALS}x.v) "
    "END FROM (SELECT u.i, u.k, u.v, CASE WHEN u.r THEN "
    f"{_refresh('u.k', 'u.v', 'u.o', 'NULL')} END AS expires, "
    "@.dlock_check(key => u.k, version => u.v, owner => u.o) AS state "
    f"FROM (SELECT pg_catalog.set_config('lock_timeout', $5{TEXT}, true) OFFSET 0) AS l(t), "
    f"ROWS FROM ({_unnest(TEXT, INT8, TEXT, BOOL)}) WITH ORDINALITY AS u(k, v, o, r, i) "
    "WHERE l.t IS NOT NULL OFFSET 0) AS x"
)
RELEASE = (
    "SELECT @.dlock_release(key => u.k, version => u.v, owner => u.o) "
    f"FROM ROWS FROM ({_unnest(TEXT, INT8, TEXT)}) AS u(k, v, o)"
)
# keys, owners, which may still be in the queue
ABANDON = (
    "SELECT CASE WHEN u.q AND EXISTS (SELECT FROM @.dlock_waiters AS w WHERE CASE WHEN "
    f"w.ticket IS NOT NULL AND w.key{EQUALS}u.k AND w.owner{EQUALS}u.o "
    f"THEN @.dlock_dequeue(ticket => w.ticket) END) THEN 'released'{TEXT} "
    f"ELSE @.dlock_release(key => u.k, version => NULL{INT8}, owner => u.o) END "
    f"FROM ROWS FROM ({_unnest(TEXT, TEXT, BOOL)}) AS u(k, o, q)"
)
ABANDON_PORTABLE = (
    f"SELECT @.dlock_release(key => u.k, version => NULL{INT8}, owner => u.o) "
    f"FROM ROWS FROM ({_unnest(TEXT, TEXT, BOOL)}) AS u(k, o, q)"
)
# within the transaction that it protects; the token is for fences that are triggers
FENCE = (
    f"SELECT @.dlock_fence(key => $1{TEXT}, version => $2{INT8}), "
    f"pg_catalog.set_config('dlock.token', $2{INT8}{TEXT}, true)"
)
# rounded up: a part of a millisecond is not "go ahead"
LIMIT = (
    f"SELECT pg_catalog.ceil(EXTRACT(EPOCH FROM @.dlock_limit(key => $1{TEXT}, n => $2{INT4}, "
    f"per => $3{INTERVAL}, wait => '0'{INTERVAL}, priority => $4{INT4})){FLOAT8} "
    f"OPERATOR(pg_catalog.*) 1000{FLOAT8}){INT8}"
)
GET = (
    f"SELECT l.version, l.owner, l.value, l.state FROM @.dlock_get(key => $1{TEXT}) AS l "
    "WHERE l.version IS NOT NULL ORDER BY l.version DESC"
)

# What a driver does for the core, in both worlds: run a statement and return its rows.
Row = tuple[Any, ...]
Params = Sequence[Any]
Hear = Callable[[str], None]
