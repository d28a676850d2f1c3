"""The fake that users' unit tests use."""

from __future__ import annotations

import asyncio

import pytest

from dlock import Busy, LockLost
from dlock.testing import FakeServer


def test_fake() -> None:
    server = FakeServer()
    with server.locks() as locks, server.locks() as other:
        with locks.lock("a", ttl=0.3) as lock:
            assert lock.version == 1
            with pytest.raises(Busy), other.lock("a", wait=0.2):
                pass
            with lock.fenced() as conn:
                conn.execute("UPDATE x")
            server.ask_to_yield("a")
            assert lock.asked.wait(2)
            assert not lock.lost.wait(1)  # it is renewed
        assert server.executed == [("UPDATE x",)]
        with pytest.raises(LockLost), other.lock("a", ttl=60) as lock:
            server.take("a")
            assert lock.lost.wait(2)
        server.hold("b")
        assert not locks.lock("b").acquire(blocking=False)
        with locks.lock(["c", "d"]), locks.lock("s", shared=True), other.lock("s", shared=True):
            assert not other.lock(["d", "e"]).acquire(blocking=False)
        with locks.lock("n", slots=2), other.lock("n", slots=2):
            assert not other.lock("n", slots=2).acquire(blocking=False)
        assert [locks.limit("r", 1, per=60) > 0 for _ in range(2)] == [False, True]
        calls = [locks.once("job", at_least=60)(lambda: 1)() for _ in range(2)]
        assert calls == [1, None]
        with locks.elect("boss", value="x") as boss:
            boss.set_value("y")
            found = other.leader("boss")
            assert found is not None and found.value == "y"


def test_fake_aio() -> None:
    async def main() -> None:
        server = FakeServer()
        async with server.aio_locks() as locks:
            async with locks.lock("a") as lock:
                async with lock.fenced() as conn:
                    conn.execute("UPDATE x")
            with pytest.raises(LockLost):
                async with locks.lock("a"):
                    server.take("a")
                    await asyncio.sleep(10)

    asyncio.run(main())
