"""The client for threads against a real server: the scenarios of docs/protocol.md."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from conftest import Proxy, Server, eventually

import dlock
from dlock import Busy, Denied, InvalidArgument, LockLost, Locks, NotReady, Refused, Unreachable


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


def test_waits_in_order(server: Server, locks: Locks, key: str) -> None:
    order: list[int] = []

    def wait(number: int) -> None:
        with locks.lock(key, ttl=10, wait=30):
            order.append(number)

    threads = [threading.Thread(target=wait, args=(n,)) for n in range(5)]
    with locks.lock(key, ttl=10):
        for n, thread in enumerate(threads, 1):
            thread.start()
            eventually(lambda n=n: server.sql("SELECT count(*) FROM dlock_waiters WHERE key = %s", key) == n)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]


def test_wait_ends(locks: Locks, other: Locks, key: str) -> None:
    with locks.lock(key, ttl=30):
        began = time.monotonic()
        with pytest.raises(Busy), other.lock(key, wait=0.7):
            pass
        assert 0.6 < time.monotonic() - began < 5


def test_renewed_over_many_ttls(locks: Locks, other: Locks, key: str) -> None:
    with locks.lock(key, ttl=0.6) as lock:
        until = time.monotonic() + 6
        while time.monotonic() < until:
            assert not other.lock(key).acquire(blocking=False)
            assert lock.locked()
            time.sleep(0.1)


def test_server_restarted(server: Server, locks: Locks, other: Locks, key: str) -> None:
    got: list[int] = []

    def wait() -> None:
        with other.lock(key, ttl=10, wait=60) as later:
            got.append(later.version)

    thread = threading.Thread(target=wait)
    with locks.lock(key, ttl=15) as lock:
        thread.start()
        eventually(lambda: server.sql("SELECT count(*) FROM dlock_waiters WHERE key = %s", key))
        server.restart()
        time.sleep(1)
        assert lock.locked()
        # the restart forgot the ticket; it is asked for again
        eventually(lambda: server.sql("SELECT count(*) FROM dlock_waiters WHERE key = %s", key))
        version = lock.version
        assert not got
    thread.join(30)
    assert got and got[0] > version


def test_lost_answer_is_one_grant(server: Server, proxy: Proxy, key: str) -> None:
    with Locks(server.dsn(proxy.port)) as locks:
        with locks.lock("warm:" + key, wait=0):
            pass
        before = server.sql("SELECT grants FROM dlock_stats")
        proxy.eat = b"dlock_acquire"
        with locks.lock(key, ttl=20, wait=0) as lock:
            assert proxy.eaten == 1
            assert grants(server, key) == 1
            assert server.sql("SELECT version FROM dlock_get(%s)", key) == lock.version
        assert server.sql("SELECT grants FROM dlock_stats") >= before
    assert grants(server, key) == 0


def test_lost_answer_of_a_ticket(server: Server, locks: Locks, proxy: Proxy, key: str) -> None:
    with Locks(server.dsn(proxy.port)) as waiting:
        with waiting.lock("warm:" + key, wait=0):
            pass
        with locks.lock(key, ttl=20):
            proxy.eat = b"dlock_enqueue"
            asked = waiting.lock(key, wait=30)
            thread = threading.Thread(target=asked.acquire)
            thread.start()
            eventually(lambda: proxy.eaten)
            time.sleep(0.5)
            assert server.sql("SELECT count(*) FROM dlock_waiters WHERE key = %s", key) == 1
        thread.join(20)
        assert asked.locked()
        asked.release()


def test_abandoned_request_is_taken_back(server: Server, locks: Locks, proxy: Proxy, key: str) -> None:
    with Locks(server.dsn(proxy.port), timeout=1.0) as waiting:
        with waiting.lock("warm:" + key, wait=0):
            pass
        with locks.lock(key, ttl=20):
            asked = waiting.lock(key, wait=30)
            failed: list[Any] = []

            def ask() -> None:
                try:
                    asked.acquire()
                except dlock.DlockError as error:
                    failed.append(error)

            thread = threading.Thread(target=ask)
            thread.start()
            eventually(lambda: server.sql("SELECT count(*) FROM dlock_waiters WHERE key = %s", key))
            proxy.silent = True
            thread.join(20)
            assert isinstance(failed[0], Unreachable)
            proxy.silent = False
            eventually(lambda: not server.sql("SELECT count(*) FROM dlock_waiters WHERE key = %s", key))


def test_silent_server_loss_is_told_first(server: Server, proxy: Proxy, locks: Locks, key: str) -> None:
    events: list[dlock.Event] = []
    with Locks(server.dsn(proxy.port), on_event=events.append) as silent:
        lock = silent.lock(key, ttl=3)
        lock.acquire()
        time.sleep(1.2)
        proxy.silent = True
        told: list[float] = []

        def watch() -> None:
            lock.lost.wait()
            told.append(time.monotonic())

        thread = threading.Thread(target=watch)
        thread.start()
        with locks.lock(key, ttl=5, wait=20):
            granted = time.monotonic()
            thread.join(10)
        assert told and told[0] < granted
        assert not lock.locked()
        assert [e.kind for e in events if e.kind in ("danger", "lost")] == ["danger", "lost"]
        assert events[-1].reason == "deadline"
        proxy.silent = False
        with pytest.raises(LockLost):
            lock.release()


def test_a_call_ends_in_time(server: Server, proxy: Proxy, key: str) -> None:
    with Locks(server.dsn(proxy.port), timeout=1.0) as locks:
        with locks.lock(key, wait=0):
            pass
        proxy.silent = True
        began = time.monotonic()
        with pytest.raises(Unreachable), locks.lock(key, wait=0):
            pass
        assert time.monotonic() - began < 6
        proxy.silent = False


STOPPED = """
    import sys, time
    import dlock
    locks = dlock.Locks(sys.argv[1])
    lock = locks.lock(sys.argv[2], ttl=1)
    lock.acquire()
    print(lock.version, flush=True)
    sys.stdin.readline()
    print(lock.lost.is_set(), lock.locked(), flush=True)
    try:
        with lock.fenced() as conn:
            print("wrote", flush=True)
    except dlock.LockLost:
        print("refused", flush=True)
"""


def child(program: str, *args: str) -> subprocess.Popen[str]:
    path = os.path.dirname(os.path.dirname(dlock.__file__))
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(program), *args], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})


def test_stopped_past_the_ttl(server: Server, locks: Locks, key: str) -> None:
    with child(STOPPED, server.dsn(), key) as process:
        assert process.stdin and process.stdout
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        with locks.lock(key, ttl=10, wait=20):
            process.stdin.write("\n")
            process.stdin.flush()
            process.send_signal(signal.SIGCONT)
            assert process.stdout.readline().split() == ["True", "False"]
            assert process.stdout.readline().strip() == "refused"
        process.stdin.close()
        process.wait(20)


def test_forced_release(server: Server, key: str) -> None:
    events: list[dlock.Event] = []
    with Locks(server.dsn(), on_event=events.append) as locks:
        lock = locks.lock(key, ttl=60)
        lock.acquire()
        eventually(lambda: locks._core.listens)
        server.sql("SELECT dlock_force_release(%s, 'test')", key)
        assert lock.lost.wait(5)
        eventually(lambda: events[-1].kind == "lost")
        assert events[-1].reason == "forced"
        with pytest.raises(LockLost):
            lock.release()


def test_loss_is_raised_at_the_end(server: Server, locks: Locks, key: str) -> None:
    with pytest.raises(LockLost), locks.lock(key, ttl=60):
        server.sql("SELECT dlock_force_release(%s, 'test')", key)


def test_asked_to_yield(locks: Locks, other: Locks, key: str) -> None:
    lock = locks.lock(key, ttl=60, cleanup=20)
    lock.acquire()
    got = threading.Event()

    def take() -> None:
        with other.lock(key, ttl=10, priority=5, wait=30):
            got.set()

    thread = threading.Thread(target=take)
    thread.start()
    assert lock.asked.wait(10)
    assert lock.asked_why == "priority" and 10 < lock.time_left <= 20
    assert lock.locked() and not got.is_set()
    lock.release()
    assert got.wait(10)
    thread.join()


def test_refused_to_yield(locks: Locks, other: Locks, key: str) -> None:
    with locks.lock(key, ttl=60, cleanup=30) as lock:
        with pytest.raises(Refused), other.lock(key, priority=5, wait=1):
            pass
        assert lock.locked()


def test_max_hold(locks: Locks, other: Locks, key: str) -> None:
    lock = locks.lock(key, ttl=1, max_hold=3)
    lock.acquire()
    began = time.monotonic()
    assert lock.asked.wait(10)
    assert lock.asked_why == "max_hold" and lock.locked()
    assert lock.lost.wait(10)
    assert time.monotonic() - began < 3.2
    with other.lock(key, wait=5):
        pass
    with pytest.raises(LockLost):
        lock.release()


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


def test_fenced_write(server: Server, locks: Locks, other: Locks, key: str) -> None:
    with locks.lock(key, ttl=60) as lock:
        with lock.fenced() as conn:
            conn.execute("INSERT INTO journal VALUES (%s, %s)", (lock.version, key))
            assert not other.lock(key, force=True, priority=9).acquire(blocking=False)
        with pytest.raises(ZeroDivisionError), lock.fenced() as conn:
            conn.execute("INSERT INTO journal VALUES (0, %s)", (key,))
            raise ZeroDivisionError
    assert server.sql("SELECT count(*) FROM journal WHERE line = %s", key) == 1
    with pytest.raises(LockLost), locks.lock(key, ttl=60) as lock:
        server.sql("SELECT dlock_force_release(%s, 'test')", key)
        with lock.fenced() as conn:
            conn.execute("INSERT INTO journal VALUES (1, %s)", (key,))
    assert server.sql("SELECT count(*) FROM journal WHERE line = %s", key) == 1


def test_pgbouncer(server: Server, bouncer: str, key: str) -> None:
    """One holder and 200 waits through five server connections."""
    done: list[int] = []
    with Locks(bouncer, timeout=20) as locks:
        def wait(n: int) -> None:
            with locks.lock(key, ttl=20, wait=120, slots=100):
                done.append(n)

        threads = [threading.Thread(target=wait, args=(n,)) for n in range(200)]
        with locks.lock(key, ttl=6) as lock:
            for thread in threads:
                thread.start()
            eventually(lambda: server.sql("SELECT count(*) FROM dlock_waiters WHERE key = %s", key) == 200, 60)
            assert not locks._core.listens
            time.sleep(6)
            assert lock.locked()  # it is renewed although everybody waits
            used = server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock'")
            assert used <= 5
        for thread in threads:
            thread.join(60)
    assert len(done) == 200


def test_thousand_locks_one_statement(server: Server, key: str) -> None:
    keys = [f"{key}:{n}" for n in range(1000)]
    with Locks(server.dsn()) as locks:
        sent: list[tuple[str, int]] = []
        lock = locks.lock(keys, ttl=6)
        asks = locks._runner.ask

        def ask(conn: Any, sql: str, params: Any, timeout: float) -> Any:
            if "ORDINALITY" in sql:
                sent.append(("renew", len(params[0])))
            return asks(conn, sql, params, timeout)

        lock.acquire()
        eventually(lambda: locks._core.listens)
        time.sleep(0.5)
        locks._runner.ask = ask  # type: ignore[method-assign]
        time.sleep(2.5)
        assert sent and all(n == 1000 for _, n in sent) and len(sent) <= 2
        assert lock.locked()
        lock.release()
    assert server.sql("SELECT count(*) FROM dlock_locks WHERE key LIKE %s", key + ":%") == 0


def test_close_without_release(server: Server, key: str) -> None:
    locks = Locks(server.dsn())
    lock = locks.lock(key, ttl=2)
    lock.acquire()
    time.sleep(0.5)
    threads = list(locks._runner.threads)
    locks.close()
    assert lock.lost.is_set() and not lock.locked()
    assert not any(thread.is_alive() for thread in threads)
    assert grants(server, key) == 1  # not released: it ends by its TTL
    with pytest.raises(InvalidArgument):
        locks.lock(key).acquire()
    with Locks(server.dsn()) as other, other.lock(key, wait=10):
        pass


def test_collected_without_release(server: Server, key: str) -> None:
    locks = Locks(server.dsn())
    lock = locks.lock(key, ttl=1.5)
    lock.acquire()
    time.sleep(0.5)
    with pytest.warns(ResourceWarning, match="not released"):
        del lock
        gc.collect()
    assert grants(server, key) == 1
    eventually(lambda: grants(server, key) == 0, 5)  # nobody renews it
    threads = list(locks._runner.threads)
    del locks
    gc.collect()
    eventually(lambda: not any(thread.is_alive() for thread in threads))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork(server: Server, locks: Locks, key: str) -> None:
    with locks.lock(key, ttl=1) as lock:
        time.sleep(0.3)
        pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                assert not lock.locked()
                try:
                    locks.lock("other").acquire()
                except InvalidArgument:
                    status = 0
                locks.close()
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        time.sleep(2)
        assert lock.locked()


def test_role_without_rights(server: Server, key: str) -> None:
    server.sql("REVOKE EXECUTE ON FUNCTION dlock_fence(text, bigint) FROM PUBLIC")
    names = server.sql("SELECT string_agg(oid::regprocedure::text, ', ') FROM pg_proc "
                       "WHERE proname = 'dlock_acquire'")
    server.sql(f"REVOKE EXECUTE ON FUNCTION {names} FROM PUBLIC")
    try:
        with Locks(server.dsn(user="app")) as locks:
            began = time.monotonic()
            with pytest.raises(Denied), locks.lock(key, wait=5):
                pass
            assert time.monotonic() - began < 3
    finally:
        server.sql(f"GRANT EXECUTE ON FUNCTION {names}, dlock_fence(text, bigint) TO PUBLIC")


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
    with Locks(server.dsn(dbname="postgres")) as locks:
        with pytest.raises(NotReady, match="CREATE EXTENSION"), locks.lock("x"):
            pass


def test_old_server(server: Server) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute("CREATE SCHEMA old")
    with Locks(server.dsn(), schema="old") as locks:
        with pytest.raises(NotReady, match="dlock_features"), locks.lock("x"):
            pass


def test_server_without_tickets(locks: Locks, other: Locks, key: str) -> None:
    """The portable edition: polite polling."""
    with locks.lock("warm:" + key):
        pass
    locks._core.features = frozenset()
    with other.lock(key, ttl=10):
        assert not locks.lock(key).acquire(timeout=0.6)
        asked = locks.lock(key, wait=20)
        thread = threading.Thread(target=asked.acquire)
        thread.start()
        time.sleep(0.5)
        assert not asked.locked()
    thread.join(10)
    assert asked.locked()
    asked.release()


def test_hostile_search_path(server: Server, key: str) -> None:
    server.sql("""CREATE SCHEMA hostile; CREATE FUNCTION hostile.boom(timestamptz, timestamptz) RETURNS interval
        LANGUAGE plpgsql AS $$ BEGIN RAISE 'reached'; END $$;
        CREATE OPERATOR hostile.- (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = hostile.boom);
        CREATE FUNCTION hostile.unnest(text[]) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'reached'; END $$""")
    dsn = server.dsn() + " options='-csearch_path=hostile,pg_catalog'"
    with Locks(dsn) as locks, locks.lock(key, ttl=1) as lock:
        time.sleep(1.5)
        assert lock.locked()
        with lock.fenced():
            pass
