"""dlock.Locks against a real server: what the conformance suite does not know."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import psycopg
import pytest
from conftest import Server, eventually

from dlock import Busy, InvalidArgument, LockLost, Locks, NotReady
from dlock._protocol import LIMIT


@pytest.fixture
def locks(server: Server) -> Iterator[Locks]:
    with Locks(server.dsn()) as locks:
        yield locks


@pytest.fixture
def other(server: Server) -> Iterator[Locks]:
    with Locks(server.dsn()) as locks:
        yield locks


def grants(server: Server, key: str) -> int:
    return int(server.sql("SELECT count(*) FROM dlock_get(%s) WHERE state <> 'cooling'", key))


def test_granted_busy_released(server: Server, locks: Locks, other: Locks, key: str) -> None:
    with locks.lock(key, ttl=30) as lock:
        assert lock.locked() and lock.version > 0 and not lock.lost.is_set()
        with pytest.raises(Busy), other.lock(key, wait=0):
            pass
        assert other.lock(key).acquire(blocking=False) is False
        assert other.lock(key).acquire(timeout=0.2) is False
    assert not lock.locked() and not lock.lost.is_set() and grants(server, key) == 0
    first = other.lock(key, wait=0)
    assert first.acquire() is True
    with pytest.raises(RuntimeError):
        first.acquire()
    first.release()
    with pytest.raises(RuntimeError):
        first.release()
    assert first.acquire() is True
    first.release()


def test_loss_is_raised_at_the_end(server: Server, locks: Locks, key: str) -> None:
    with pytest.raises(LockLost), locks.lock(key, ttl=60):
        server.sql("SELECT dlock_force_release(%s, 'test')", key)


def test_shared_slots_and_several(server: Server, locks: Locks, other: Locks, key: str) -> None:
    with locks.lock(key, shared=True), other.lock(key, shared=True, wait=0):
        assert grants(server, key) == 2
        assert not other.lock(key).acquire(blocking=False)
    with locks.lock(key, slots=2), locks.lock(key, slots=2):
        with pytest.raises(Busy), other.lock(key, slots=2, wait=0):
            pass
    with locks.lock([key + "a", key + "b"], ttl=10) as both:
        assert set(both.versions) == {key + "a", key + "b"}
        with pytest.raises(Busy), other.lock([key + "c", key + "b"], wait=0.3):
            pass
        with both.fenced() as conn:
            conn.execute("SELECT 1")
    with other.lock([key + "c", key + "b"], wait=0):
        assert grants(server, key + "c") == 1
    assert grants(server, key + "c") == 0


def test_at_least_and_once(locks: Locks, other: Locks, key: str) -> None:
    runs: list[int] = []

    @locks.once(key, at_least=60)
    def job(n: int) -> int:
        runs.append(n)
        return n

    assert job(1) == 1
    assert job(2) is None
    assert runs == [1]
    assert other.lock(key).acquire(blocking=False) is False


def test_leader(locks: Locks, other: Locks, key: str) -> None:
    assert other.leader(key) is None
    seen = other.observe(key, every=0.05)
    assert next(seen) is None
    with locks.elect(key, value="http://a") as leader:
        found = next(seen)
        assert found is not None and found.value == "http://a" and found.version == leader.version
        leader.set_value("http://b")
        again = next(seen)
        assert again is not None and again.value == "http://b" and again.version == leader.version
    assert next(seen) is None


def test_rate_limit(locks: Locks, key: str) -> None:
    assert [locks.limit(key, 2, per=30) for _ in range(2)] == [0.0, 0.0]
    assert 0 < locks.limit(key, 2, per=30) <= 30
    assert locks.limit(key + "x", 1, per=0.5) == 0.0
    assert locks.limit(key + "x", 1, per=0.5, wait=5) == 0.0


def test_less_than_a_millisecond_is_not_go_ahead(server: Server) -> None:
    server.sql("CREATE SCHEMA IF NOT EXISTS almost")
    server.sql("CREATE OR REPLACE FUNCTION almost.dlock_limit(key text, n int, per interval, wait interval, "
               "priority int) RETURNS interval LANGUAGE sql AS $$ SELECT interval '1 microsecond' $$")
    query = LIMIT.replace("@.", "almost.")
    for number, value in enumerate(("'key'", "1", "'1 s'", "0"), 1):
        query = query.replace(f"${number}", value)
    assert server.sql(query) == 1


def test_fence_of_a_connection(server: Server, locks: Locks, key: str) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute("CREATE TEMP TABLE written (what text)")
        with locks.lock(key) as lock:
            conn.execute("SELECT set_config('dlock.fence', %s, false)", (lock.fence_setting,))
            conn.execute("INSERT INTO written VALUES ('ours')")
        with pytest.raises(psycopg.Error) as error:
            conn.execute("INSERT INTO written VALUES ('late')")
        assert error.value.sqlstate == "LK001"
        conn.execute("RESET dlock.fence")


def test_collected_without_release(server: Server, key: str) -> None:
    locks = Locks(server.dsn())
    lock = locks.lock(key, ttl=6)
    lock.acquire()
    server.until_renewed(key)
    with pytest.warns(ResourceWarning, match="not released"):
        del lock
        gc.collect()
    assert grants(server, key) == 1
    eventually(lambda: grants(server, key) == 0)  # nobody renews it
    threads = list(locks._runner.threads)
    del locks
    gc.collect()
    eventually(lambda: not any(thread.is_alive() for thread in threads))


def test_bad_arguments(server: Server, locks: Locks, key: str) -> None:
    for bad in ({"ttl": 0}, {"ttl": -1}, {"wait": -1}, {"cleanup": -1}):
        with pytest.raises(InvalidArgument):
            locks.lock(key, **bad)
    with pytest.raises(InvalidArgument):
        locks.lock("")
    with pytest.raises(InvalidArgument):
        Locks(42)
    for bad in ({"ttl": 1e6}, {"slots": 0}, {"at_least": 5, "ttl": 1}, {"priority": -1}):
        with pytest.raises(InvalidArgument), locks.lock(key, wait=0, **bad):
            pass
    with pytest.raises(InvalidArgument), locks.lock("k" * 2000, wait=0):
        pass
    with pytest.raises(InvalidArgument), locks.lock("nul\0", wait=0):
        pass
    assert grants(server, key) == 0


def test_no_extension(server: Server) -> None:
    with Locks(server.dsn(dbname="template1")) as locks:
        with pytest.raises(NotReady, match="CREATE EXTENSION"), locks.lock("x"):
            pass


def test_old_server(server: Server) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute("CREATE SCHEMA old")
    with Locks(server.dsn(), schema="old") as locks:
        with pytest.raises(NotReady, match="dlock_features"), locks.lock("x"):
            pass


def test_hostile_search_path(server: Server, key: str) -> None:
    server.sql("""CREATE SCHEMA hostile; CREATE FUNCTION hostile.boom(timestamptz, timestamptz) RETURNS interval
        LANGUAGE plpgsql AS $$ BEGIN RAISE 'reached'; END $$;
        CREATE OPERATOR hostile.- (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = hostile.boom);
        CREATE FUNCTION hostile.unnest(text[]) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'reached'; END $$""")
    dsn = server.dsn() + " options='-csearch_path=hostile,pg_catalog'"
    with Locks(dsn) as locks, locks.lock(key, ttl=6) as lock:
        server.until_renewed(key)
        assert lock.locked()
        with lock.fenced():
            pass


def test_asked(locks: Locks, other: Locks, key: str) -> None:
    with locks.lock(key, ttl=60, cleanup=200) as lock:
        assert not lock.asked.is_set() and lock.time_left <= 54
        higher = other.lock(key, ttl=60, priority=5, wait=300)
        thread = threading.Thread(target=higher.acquire)
        thread.start()
        assert lock.asked.wait(60)
        assert lock.asked_why == "priority" and 0 < lock.time_left <= 200
    thread.join()
    higher.release()
