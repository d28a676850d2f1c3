"""An in-memory fake for unit tests: a server that answers the protocol's statements.

    from dlock.testing import FakeServer

    server = FakeServer()
    locks = server.locks()           # a dlock.Locks; aio_locks() gives a dlock.aio.Locks
    with locks.lock("nightly") as lock:
        server.take("nightly")       # lost: as dlock_force_release() does
        assert lock.lost.wait(1)

fenced() gives a FakeConnection, which records what is executed.  All clients of one FakeServer share
its locks.  It has no priorities and no durability, and times are those of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import select
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Callable, Optional

from . import _protocol as p
from . import aio
from ._aio_drivers import wait_for_event
from ._core import NEVER
from ._protocol import LockLost, clock
from ._sync import Locks


@dataclass
class _Held:
    version: int
    owner: str
    value: Optional[str]
    slots: float
    ttl: float
    at_least: float
    until: float
    since: float
    cooling: bool = False


class FakeConnection:
    """What fenced() gives: records what is executed."""

    def __init__(self, executed: list[tuple[Any, ...]]):
        self.executed = executed

    def execute(self, *statement: Any) -> None:
        self.executed.append(statement)


class FakeServer:
    def __init__(self) -> None:
        self.executed: list[tuple[Any, ...]] = []
        self._mutex = threading.RLock()
        self._numbers = itertools.count(1)
        self._held: dict[str, list[_Held]] = {}
        self._asked: set[int] = set()
        self._news: dict[int, str] = {}  # events, by version; each leads to a question
        self._answers: dict[str, Callable[..., list[p.Row]]] = {
            p.HELLO: lambda: [(0, "fake")],
            p.FEATURES: lambda: [("fake", "1", [])],
            p.LISTEN: lambda: [],
            p.TRY: self._try,
            p.TRY_ALL: self._try_all,
            p.RENEW: self._renew,
            p.RELEASE: lambda keys, versions, owners: [
                (self._release(k, v),) for k, v in zip(keys, versions)],
            p.ABANDON_PORTABLE: lambda keys, owners, queued: [("released",) for _ in keys],
            p.REFRESH: lambda key, version, owner, value: [(self._refresh(key, version, value),)],
            p.GET: lambda key: [(h.version, h.owner, h.value, "held") for h in self._live(key) if not h.cooling],
            p.LIMIT: self._limit,
        }

    def locks(self, **options: Any) -> Locks:
        return Locks(_FakeSource(self), **options)

    def aio_locks(self, **options: Any) -> aio.Locks:
        return aio.Locks(_AioFakeSource(self), **options)

    def take(self, key: str) -> None:
        """Take a lock away from all its holders; they notice within a moment."""
        with self._mutex:
            for held in self._held.pop(key, []):
                self._news[held.version] = json.dumps({"event": "forced", "key": key, "version": held.version})

    def ask_to_yield(self, key: str) -> None:
        """Ask the holders of a lock to yield, as a request with a higher priority does."""
        with self._mutex:
            for held in self._live(key):
                self._asked.add(held.version)
                self._news[held.version] = json.dumps({"event": "preempt", "key": key, "version": held.version})

    def hold(self, key: str) -> None:
        """Let another client have the lock."""
        with self._mutex:
            self._held[key] = [_Held(next(self._numbers), "other", None, 1, NEVER, 0, NEVER, clock())]

    def answer(self, sql: str, params: p.Params) -> list[p.Row]:
        with self._mutex:
            return self._answers[sql.replace("fake.", "@.")](*params)

    def fence(self, fences: list[p.Params]) -> None:
        for key, version in fences:
            if self._find(key, version) is None:
                raise LockLost(f'lock "{key}" is not held with version {version}', "LK001")

    def _live(self, key: str) -> list[_Held]:
        now = clock()
        self._held[key] = [h for h in self._held.get(key, []) if h.until > now]
        return self._held[key]

    def _find(self, key: str, version: int) -> Optional[_Held]:
        with self._mutex:
            return next((h for h in self._live(key) if h.version == version and not h.cooling), None)

    def _grant(self, key: str, ttl: Any, owner: str, value: Optional[str], slots: float,
               at_least: float = 0.0) -> Optional[int]:
        live = self._live(key)
        for held in live:
            if held.owner == owner and not held.cooling:
                return held.version
        if any(h.slots == 1 for h in live) or (live and slots == 1) or len(live) >= slots:
            return None
        now, seconds = clock(), ttl.total_seconds()
        live.append(_Held(next(self._numbers), owner, value, slots, seconds, at_least, now + seconds, now))
        return live[-1].version

    def _try(self, key: str, ttl: Any, owner: str, value: Optional[str], priority: int, cleanup: Any,
             force: bool, slots: int, at_least: Any, delay: Any, lazy: bool, shared: bool) -> list[p.Row]:
        return [(self._grant(key, ttl, owner, value, NEVER if shared else slots, at_least.total_seconds()),)]

    def _try_all(self, keys: list[str], ttl: Any, owner: str, value: Optional[str], priority: int,
                 slots: list[int], shared: list[bool]) -> list[p.Row]:
        got = [self._grant(k, ttl, owner, value, NEVER if h else s) for k, s, h in zip(keys, slots, shared)]
        if None in got:
            for key, version in zip(keys, got):
                if version is not None:
                    self._release(key, version)
            return [(None,)]
        return [(got,)]

    def _refresh(self, key: str, version: int, value: Optional[str] = None) -> Optional[int]:
        held = self._find(key, version)
        if held is None:
            return None
        held.until, held.value = clock() + held.ttl, held.value if value is None else value
        return round(held.ttl * 1000)

    def _renew(self, keys: list[str], versions: list[int], owners: list[str], renew: list[bool],
               timeout: str) -> list[p.Row]:
        rows: list[p.Row] = []
        for i, (key, version, r) in enumerate(zip(keys, versions, renew), 1):
            lasts = self._refresh(key, version) if r else None
            state = "preempting" if version in self._asked else "held"
            rows.append((i, lasts, state if self._find(key, version) else "held_by_other", 1000))
        return rows

    def _release(self, key: str, version: int) -> str:
        held = self._find(key, version)
        if held is None:
            return "not_held"
        held.cooling, held.until = True, held.since + held.at_least
        return "released"

    def _limit(self, key: str, n: int, per: Any, priority: int) -> list[p.Row]:
        version = self._grant(key, per, p.new_owner(), None, n, per.total_seconds())
        if version is not None:
            self._release(key, version)
            return [(0,)]
        return [(max(1, round(1000 * (min(h.until for h in self._live(key)) - clock()))),)]


_LOOK = 0.05  # how often a holder looks whether the test has taken its lock away


class _FakeSource:
    """A Source and its Connection at once."""

    def __init__(self, server: FakeServer):
        self.server = server

    @contextlib.contextmanager
    def borrow(self) -> Iterator[_FakeSource]:
        yield self

    def open(self) -> _FakeSource:
        return self

    @contextlib.contextmanager
    def fenced(self, sql: str, fences: list[p.Params]) -> Iterator[FakeConnection]:
        self.server.fence(fences)
        yield FakeConnection(self.server.executed)

    def pid(self) -> int:
        return 0

    def query(self, sql: str, params: p.Params) -> list[p.Row]:
        return self.server.answer(sql, params)

    def listen(self, hear: p.Hear) -> None:
        self.hear = hear

    def wait(self, wake: socket.socket, seconds: Optional[float]) -> None:
        select.select([wake], [], [], _LOOK if seconds is None else min(seconds, _LOOK))
        self.tell()

    def tell(self) -> None:
        for payload in list(self.server._news.values()):
            self.hear(payload)

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass


class _AioFakeSource:
    def __init__(self, server: FakeServer):
        self.sync = _FakeSource(server)

    @contextlib.asynccontextmanager
    async def borrow(self) -> AsyncIterator[_AioFakeSource]:
        yield self

    async def open(self) -> _AioFakeSource:
        return self

    @contextlib.asynccontextmanager
    async def fenced(self, sql: str, fences: list[p.Params]) -> AsyncIterator[FakeConnection]:
        self.sync.server.fence(fences)
        yield FakeConnection(self.sync.server.executed)

    def pid(self) -> int:
        return 0

    async def query(self, sql: str, params: p.Params) -> list[p.Row]:
        return self.sync.query(sql, params)

    async def listen(self, hear: p.Hear) -> None:
        self.sync.hear = hear

    async def wait(self, wake: asyncio.Event, seconds: Optional[float]) -> None:
        await wait_for_event(wake, _LOOK if seconds is None else min(seconds, _LOOK))
        self.sync.tell()

    def abort(self) -> None:
        pass

    async def close(self) -> None:
        pass
