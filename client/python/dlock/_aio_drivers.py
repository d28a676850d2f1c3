"""Adapters for the drivers of asyncio: psycopg, asyncpg, and SQLAlchemy on either of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Callable, Optional, Protocol, TypeVar

from . import _protocol as p
from ._drivers import OWN, defaults, named, shut_down, translated

T = TypeVar("T")


class Connection(Protocol):
    def pid(self) -> int: ...
    async def query(self, sql: str, params: p.Params) -> list[p.Row]: ...
    def abort(self) -> None: ...
    async def listen(self, hear: p.Hear) -> None: ...
    async def wait(self, wake: asyncio.Event, seconds: Optional[float]) -> None: ...
    async def close(self) -> None: ...


class Source(Protocol):
    def borrow(self) -> contextlib.AbstractAsyncContextManager[Connection]: ...
    async def open(self) -> Connection: ...
    def fenced(self, sql: str, fences: list[p.Params]) -> contextlib.AbstractAsyncContextManager[Any]: ...
    async def close(self) -> None: ...


async def wait_for_event(event: asyncio.Event, seconds: Optional[float]) -> None:
    """asyncio.wait_for() before 3.12 forgets a cancellation that comes together with the event."""
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiter}, timeout=seconds)
    finally:
        waiter.cancel()


async def within(seconds: float, connecting: Awaitable[T]) -> T:
    """A connection in time, or Unreachable."""
    task = asyncio.current_task()
    late = False

    def fire() -> None:
        nonlocal late
        late = True
        if task is not None:
            task.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, fire)
    try:
        return await connecting
    except asyncio.CancelledError:
        if not late or (task is not None and hasattr(task, "uncancel") and task.uncancel() > 0):
            raise
        raise p.Unreachable(f"no connection in {seconds} s") from None
    finally:
        timer.cancel()


class _Psycopg:
    def __init__(self, raw: Any):
        self.raw = raw

    def pid(self) -> int:
        return int(self.raw.info.backend_pid)

    async def query(self, sql: str, params: p.Params) -> list[p.Row]:
        import psycopg
        from psycopg.rows import tuple_row

        with translated():
            async with psycopg.AsyncCursor(self.raw, row_factory=tuple_row) as cursor:
                await cursor.execute(named(sql), {f"p{i}": v for i, v in enumerate(params, 1)})
                return list(await cursor.fetchall()) if cursor.description else []

    def abort(self) -> None:
        with contextlib.suppress(Exception):
            shut_down(self.raw.fileno())

    async def listen(self, hear: p.Hear) -> None:
        self.hear = hear
        self.raw.add_notify_handler(lambda notify: hear(notify.payload))
        await self.query(p.LISTEN, ())

    async def wait(self, wake: asyncio.Event, seconds: Optional[float]) -> None:
        loop = asyncio.get_running_loop()
        fd, pgconn = self.raw.fileno(), self.raw.pgconn
        loop.add_reader(fd, wake.set)
        try:
            await wait_for_event(wake, seconds)
        finally:
            loop.remove_reader(fd)
        with contextlib.suppress(Exception):  # the next statement finds out
            pgconn.consume_input()
            while True:
                notify = pgconn.notifies()
                if notify is None:
                    break
                self.hear(notify.extra.decode("utf-8", "replace"))

    async def close(self) -> None:
        with contextlib.suppress(Exception):
            await self.raw.close()


class _Asyncpg:
    def __init__(self, raw: Any):
        self.raw = raw

    def pid(self) -> int:
        return int(self.raw.get_server_pid())

    async def query(self, sql: str, params: p.Params) -> list[p.Row]:
        with translated():
            return [tuple(row) for row in await self.raw.fetch(sql, *params)]

    def abort(self) -> None:
        self.raw.terminate()

    async def listen(self, hear: p.Hear) -> None:
        with translated():
            await self.raw.add_listener("dlock", lambda c, pid, channel, payload: hear(payload))

    async def wait(self, wake: asyncio.Event, seconds: Optional[float]) -> None:
        await wait_for_event(wake, seconds)

    async def close(self) -> None:
        self.raw.terminate()


def _wrap(raw: Any) -> Connection:
    return _Asyncpg(raw) if type(raw).__module__.startswith("asyncpg") else _Psycopg(raw)


async def _prepare(raw: Any) -> Connection:
    """A connection of our own."""
    if not type(raw).__module__.startswith("asyncpg"):
        await raw.set_autocommit(True)
        raw.prepare_threshold = None
    return _wrap(raw)


class _Base:
    """A Source made of two functions: one that lends a raw connection, one that opens one."""

    def __init__(self, lend: Callable[[], Any], connect: Callable[[], Any]):
        self.lend, self.connect = lend, connect

    @contextlib.asynccontextmanager
    async def borrow(self) -> AsyncIterator[Connection]:
        with translated():
            async with self.lend() as raw:
                before = getattr(raw, "autocommit", True)
                if not before:
                    await raw.set_autocommit(True)
                try:
                    yield _wrap(raw)
                finally:
                    if not before and not raw.closed:
                        with contextlib.suppress(Exception):
                            await raw.set_autocommit(False)

    async def open(self) -> Connection:
        with translated():
            return await _prepare(await self.connect())

    @contextlib.asynccontextmanager
    async def fenced(self, sql: str, fences: list[p.Params]) -> AsyncIterator[Any]:
        async with self.lend() as raw, raw.transaction():
            for params in fences:
                await _wrap(raw).query(sql, params)
            yield raw

    async def close(self) -> None:
        pass


class _Conninfo(_Base):
    """Connections of our own.  A few that are not in use are kept."""

    def __init__(self, conninfo: str, timeout: float):
        super().__init__(self._lend, self._connect)
        self.conninfo, self.timeout = conninfo, timeout
        self.idle: list[Any] = []
        self.kept = 4

    async def _connect(self) -> Any:
        try:
            import psycopg
        except ImportError:
            import asyncpg

            return await asyncpg.connect(self.conninfo, timeout=self.timeout)
        raw = await psycopg.AsyncConnection.connect(
            self.conninfo, autocommit=True, prepare_threshold=None, **defaults(self.conninfo, self.timeout, **OWN))
        found = await (await raw.execute("SELECT pg_catalog.pg_backend_pid()")).fetchone()
        if found == (raw.info.backend_pid,):
            raw.prepare_threshold = 5
        return raw

    @contextlib.asynccontextmanager
    async def _lend(self) -> AsyncIterator[Any]:
        raw = self.idle.pop() if self.idle else await self._connect()
        try:
            yield raw
        except BaseException:
            await _wrap(raw).close()
            raise
        if len(self.idle) < self.kept:
            self.idle.append(raw)
        else:
            await raw.close()

    async def close(self) -> None:
        self.kept = 0
        while self.idle:
            await self.idle.pop().close()


def _psycopg_pool(pool: Any) -> Source:
    async def connect() -> Any:
        conninfo = pool.conninfo() if callable(pool.conninfo) else pool.conninfo
        kwargs = pool.kwargs() if callable(pool.kwargs) else pool.kwargs
        return await pool.connection_class.connect(conninfo, **(kwargs or {}))

    return _Base(pool.connection, connect)


def _asyncpg_pool(pool: Any) -> Source:
    async def connect() -> Any:
        import asyncpg

        return await asyncpg.connect(*pool._connect_args, **pool._connect_kwargs)

    @contextlib.asynccontextmanager
    async def lend() -> AsyncIterator[Any]:
        async with pool.acquire() as proxy:
            yield proxy

    return _Base(lend, connect)


class _SQLAlchemy(_Base):
    def __init__(self, engine: Any):
        super().__init__(self._lend, self._connect)
        self.engine = engine

    @contextlib.asynccontextmanager
    async def _lend(self) -> AsyncIterator[Any]:
        proxy = await self.engine.raw_connection()
        try:
            yield proxy.driver_connection
        except BaseException:
            proxy.invalidate()
            raise
        finally:
            proxy.close()

    async def _connect(self) -> Any:
        proxy = await self.engine.raw_connection()
        raw = proxy.driver_connection
        proxy.detach()
        return raw

    @contextlib.asynccontextmanager
    async def fenced(self, sql: str, fences: list[p.Params]) -> AsyncIterator[Any]:
        """An AsyncConnection of SQLAlchemy."""
        import sqlalchemy

        text = sql.replace("::", "\\:\\:")
        for number in (2, 1):
            text = text.replace(f"${number}", f":p{number}")
        async with self.engine.begin() as connection:
            with translated():
                for key, version in fences:
                    await connection.execute(sqlalchemy.text(text), {"p1": key, "p2": version})
            yield connection


def source_of(given: Any, timeout: float) -> Source:
    names = [f"{c.__module__}.{c.__name__}" for c in type(given).__mro__]
    if isinstance(given, str):
        return _Conninfo(given, timeout)
    if any(n.startswith("psycopg_pool.") for n in names):
        return _psycopg_pool(given)
    if "asyncpg.pool.Pool" in names:
        return _asyncpg_pool(given)
    if any(n.startswith("sqlalchemy.") and n.endswith(".AsyncEngine") for n in names):
        return _SQLAlchemy(given)
    if hasattr(given, "borrow") and hasattr(given, "open"):
        return given  # type: ignore[no-any-return]
    raise p.InvalidArgument("Locks() takes a conninfo, an async pool of psycopg or asyncpg, or an AsyncEngine, "
                            f"not {type(given).__name__}")
