"""dlock.aio against a real server, with psycopg and asyncpg."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Callable

import asyncpg
import psycopg_pool
import pytest
from conftest import Server, eventually

from dlock import Busy, LockLost, aio

Body = Callable[[aio.Locks], Awaitable[None]]


@contextlib.asynccontextmanager
async def source(kind: str, server: Server) -> AsyncIterator[Any]:
    dsn = server.dsn()
    if kind == "asyncpg":
        async with asyncpg.create_pool(host=server.host, port=server.port, user=server.user,
                                       database=server.dbname, min_size=1, max_size=4) as pool:
            yield pool
    elif kind == "pool":
        async with psycopg_pool.AsyncConnectionPool(dsn, min_size=1, max_size=4, open=False) as pool:
            yield pool
    elif kind == "sqlalchemy":
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(f"postgresql+asyncpg://{server.user}@{server.host}:{server.port}/{server.dbname}")
        yield engine
        await engine.dispose()
    else:
        yield dsn


KINDS = ["conninfo", "pool", "asyncpg", "sqlalchemy"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlalchemy":
        pytest.importorskip("greenlet")
    return str(request.param)


def run(kind: str, server: Server, body: Body, **options: Any) -> None:
    async def main() -> None:
        async with source(kind, server) as given, aio.Locks(given, **options) as locks:
            await body(locks)

    asyncio.run(asyncio.wait_for(main(), 300))


def test_lock(server: Server, key: str, kind: str) -> None:
    async def body(locks: aio.Locks) -> None:
        async with locks.lock(key, ttl=6, wait=5) as lock:
            assert lock.locked() and lock.version > 0
            assert not await locks.lock(key).acquire(blocking=False)
            with pytest.raises(Busy):
                async with locks.lock(key, wait=0.3):
                    pass
            await asyncio.to_thread(server.until_renewed, key)
            assert lock.locked()
            async with lock.fenced() as conn:
                assert conn is not None
        async with locks.lock([key + "a", key + "b"], ttl=5) as both:
            assert len(both.versions) == 2
        assert await locks.limit(key + "r", 1, per=30) == 0.0
        assert await locks.limit(key + "r", 1, per=30) > 0

        @locks.once(key + "o", at_least=30)
        async def job() -> int:
            return 7

        assert [await job(), await job()] == [7, None]

    run(kind, server, body)


def test_body_is_cancelled(server: Server, key: str, kind: str) -> None:
    async def body(locks: aio.Locks) -> None:
        reached = []
        with pytest.raises(LockLost):
            async with locks.lock(key, ttl=60):
                while not locks._core.listens:
                    await asyncio.sleep(0.02)
                await asyncio.to_thread(server.sql, "SELECT dlock_force_release(%s, 'test')", key)
                await asyncio.sleep(300)
                reached.append(True)
        assert not reached
        await asyncio.sleep(0)  # the task itself is not cancelled

    run(kind, server, body)


def test_cancelled_wait_is_withdrawn(server: Server, key: str, kind: str) -> None:
    async def body(locks: aio.Locks) -> None:
        count = "SELECT count(*) FROM dlock_waiters WHERE key = %s"
        async with locks.lock(key, ttl=10):
            task = asyncio.create_task(locks.lock(key, wait=30).acquire())
            while not await asyncio.to_thread(server.sql, count, key):
                await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(eventually, lambda: not server.sql(count, key))

    run(kind, server, body)


def test_collected(server: Server, key: str) -> None:
    async def body(locks: aio.Locks) -> None:
        lock = locks.lock(key, ttl=6)
        await lock.acquire()
        with pytest.warns(ResourceWarning):
            del lock
            gc.collect()
        assert await locks.lock(key, ttl=5).acquire(timeout=60)

    with pytest.warns(ResourceWarning):
        run("conninfo", server, body)
        gc.collect()
