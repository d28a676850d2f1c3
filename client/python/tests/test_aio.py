"""dlock.aio against a real server, with psycopg and asyncpg."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Callable

import asyncpg
import psycopg_pool
import pytest
from conftest import Proxy, Server, eventually

from dlock import Busy, LockLost, Unreachable, aio

Body = Callable[[aio.Locks], Awaitable[None]]


@contextlib.asynccontextmanager
async def source(kind: str, server: Server, port: int = 0) -> AsyncIterator[Any]:
    dsn = server.dsn(port or None)
    if kind == "asyncpg":
        async with asyncpg.create_pool(host="127.0.0.1", port=port or server.port, user="postgres",
                                       database="app", min_size=1, max_size=4) as pool:
            yield pool
    elif kind == "pool":
        async with psycopg_pool.AsyncConnectionPool(dsn, min_size=1, max_size=4, open=False) as pool:
            yield pool
    elif kind == "sqlalchemy":
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(f"postgresql+asyncpg://postgres@127.0.0.1:{port or server.port}/app")
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


def run(kind: str, server: Server, body: Body, port: int = 0, **options: Any) -> None:
    async def main() -> None:
        async with source(kind, server, port) as given, aio.Locks(given, **options) as locks:
            await body(locks)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_lock(server: Server, key: str, kind: str) -> None:
    async def body(locks: aio.Locks) -> None:
        async with locks.lock(key, ttl=1, wait=5) as lock:
            assert lock.locked() and lock.version > 0
            assert not await locks.lock(key).acquire(blocking=False)
            with pytest.raises(Busy):
                async with locks.lock(key, wait=0.3):
                    pass
            await asyncio.sleep(2.5)
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


def test_waits_in_order(server: Server, key: str, kind: str) -> None:
    async def body(locks: aio.Locks) -> None:
        order: list[int] = []

        async def wait(n: int) -> None:
            async with locks.lock(key, ttl=10, wait=30):
                order.append(n)

        tasks = []
        async with locks.lock(key, ttl=10):
            for n in range(4):
                tasks.append(asyncio.create_task(wait(n)))
                while await asyncio.to_thread(
                        server.sql, "SELECT count(*) FROM dlock_waiters WHERE key = %s", key) <= n:
                    await asyncio.sleep(0.02)
        await asyncio.gather(*tasks)
        assert order == [0, 1, 2, 3]

    run(kind, server, body)


def test_body_is_cancelled(server: Server, key: str, kind: str) -> None:
    async def body(locks: aio.Locks) -> None:
        reached = []
        with pytest.raises(LockLost):
            async with locks.lock(key, ttl=60):
                while not locks._core.listens:
                    await asyncio.sleep(0.02)
                await asyncio.to_thread(server.sql, "SELECT dlock_force_release(%s, 'test')", key)
                await asyncio.sleep(30)
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


def test_silent_server(server: Server, proxy: Proxy, key: str, kind: str) -> None:
    async def body(locks: aio.Locks) -> None:
        began = time.monotonic()
        with pytest.raises(LockLost):
            async with locks.lock(key, ttl=2):
                await asyncio.sleep(0.5)
                proxy.silent = True
                await asyncio.sleep(30)
        assert time.monotonic() - began < 4.5
        with pytest.raises(Unreachable):
            await locks.lock(key).acquire()
        proxy.silent = False

    run(kind, server, body, proxy.port, timeout=1.0)


def test_lost_answer(server: Server, proxy: Proxy, key: str, kind: str) -> None:
    async def body(locks: aio.Locks) -> None:
        async with locks.lock("warm:" + key, wait=0):
            pass
        proxy.eat = b"dlock_acquire"
        async with locks.lock(key, ttl=20, wait=0) as lock:
            found = await asyncio.to_thread(server.sql, "SELECT array_agg(version) FROM dlock_get(%s)", key)
            assert found == [lock.version]

    run(kind, server, body, proxy.port)


def test_collected(server: Server, key: str) -> None:
    async def body(locks: aio.Locks) -> None:
        lock = locks.lock(key, ttl=1.5)
        await lock.acquire()
        with pytest.warns(ResourceWarning):
            del lock
            gc.collect()
        assert await locks.lock(key, ttl=5).acquire(timeout=10)

    with pytest.warns(ResourceWarning):
        run("conninfo", server, body)
        gc.collect()
