"""Locks for threads.  Two threads look after all locks of a Locks object: the keeper talks to the
server on a connection of its own; the watch never does, so it tells a loss in time and ends
statements that get no answer.  Both start when they are needed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import select
import socket
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional, TypeVar, Union

from . import _core
from . import _protocol as p
from ._core import NEVER, Ask, Core, Event, Grant, Leader, Options, Pause, Steps
from ._drivers import Connection, Source, code_of, source_of
from ._protocol import Busy, DlockError, InvalidArgument, NotReady, Unreachable, clock

F = TypeVar("F", bound=Callable[..., Any])


def make_options(ttl: Optional[float], at_least: float, **given: Any) -> Options:
    for name, value in given.items():
        if name in ("wait", "cleanup", "delay", "max_hold") and value is not None and value < 0:
            raise InvalidArgument(f"{name} must not be negative")
    if ttl is not None and not 0.001 <= ttl < NEVER:
        raise InvalidArgument("ttl must be positive")
    return Options(ttl=max(p.TTL, at_least) if ttl is None else ttl, at_least=at_least, **given)


def make_keys(key: Union[str, Sequence[str]]) -> tuple[str, ...]:
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not keys or not all(isinstance(k, str) and k for k in keys):
        raise InvalidArgument("a key is a text that is not empty")
    return keys


class _Flag(threading.Event):
    """An Event that looks at the clock, too: a process that was stopped knows at once."""

    grant: Optional[Grant] = None

    def is_set(self) -> bool:
        if not super().is_set() and self.grant is not None and self.grant.is_lost(clock()):
            self.set()
        return super().is_set()


class Lock(_core.LockBase):
    """One lock, or several that are taken together; made by Locks.lock().  One holder uses it at a
    time: give each thread its own.  It can be acquired again after its release."""

    def __init__(self, locks: Locks, keys: tuple[str, ...], options: Options):
        super().__init__(locks._core, keys, options)
        self._locks = locks
        self.lost = _Flag()
        self.asked = threading.Event()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As threading.Lock has it; without a timeout, `wait` of Locks.lock() counts."""
        wait = 0.0 if not blocking else self._options.wait if timeout < 0 else timeout
        try:
            self._acquire(wait)
            return True
        except Busy:
            return False

    def _acquire(self, wait: Optional[float]) -> None:
        if self._grant is not None:
            raise RuntimeError("the lock is already acquired")
        core, options = self._locks._core, self._options
        if wait != options.wait:
            options = dataclasses.replace(options, wait=wait)
        grant: Grant = self._locks._run(lambda: _core.Acquire(core, self.keys, options).run())
        if self._finalizer is not None:  # not the first time: those of the last grant stay as they are
            self.lost, self.asked = _Flag(), threading.Event()
        lost, asked = self.lost, self.asked
        lost.grant = self._grant = grant
        grant.notify = lambda kind: lost.set() if kind == "lost" else asked.set()
        self._finalizer = weakref.finalize(self, _collected, core, grant)
        if not grant.is_held(clock()):
            lost.set()

    def release(self) -> None:
        """Release it.  LockLost: it was not ours any more, what was done may not have been alone."""
        grant = self._held_grant()
        self._grant = None
        if self._finalizer is not None:
            self._finalizer.detach()
        self._locks._run(lambda: _core.release(self._locks._core, grant))

    def __enter__(self) -> Lock:
        self._acquire(self._options.wait)
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        """A loss that the body did not notice is raised here.  A server that does not answer is
        not: the body had the lock, which now ends by its TTL if not before."""
        if self._grant is None:
            return
        try:
            self.release()
        except DlockError as failure:
            if error is None and not isinstance(failure, Unreachable):
                raise

    @contextlib.contextmanager
    def fenced(self) -> Iterator[Any]:
        """A connection of the pool in a transaction that begins with the fence: nobody can take
        the lock until it ends, and LockLost is raised if it is not ours now."""
        self.check()
        with self._locks._fenced(self._held_grant()) as connection:
            yield connection

    def set_value(self, value: str) -> None:
        """Replace the value, which those who observe the key see."""
        lease = self._held_grant().leases[0]
        self._locks._run(lambda: _core.set_value(self._locks._core, lease, value))


def _collected(core: Core, grant: Grant) -> None:
    if os.getpid() == core.pid and not core.closed:
        core.drop(grant)
        warnings.warn(f'lock "{grant.leases[0].key}" was not released; it ends by its TTL',
                      ResourceWarning, stacklevel=2)


class _Runner:
    """The two threads.  They know the core and the source, not Locks, so that one that nobody has
    any more is collected, and they end."""

    def __init__(self, core: Core, source: Source, schema: Optional[str]):
        self.core, self.source, self.schema_given = core, source, schema
        self.schema: Optional[str] = None
        self.changed = threading.Condition(threading.Lock())
        self.calls: dict[int, tuple[float, Connection]] = {}
        self.sleeps_until = 0.0
        self.stopping = self.keeper_rests = False
        self.threads: list[threading.Thread] = []
        self.wake, self.woken = socket.socketpair()
        self.wake.setblocking(False)
        self.woken.setblocking(False)
        core.wake_keeper, core.wake_watch = self.ring, self.look_at

    def start(self) -> None:
        with self.changed:
            if self.threads or self.stopping:
                return
            for main in (self.watch, self.keep):
                thread = threading.Thread(target=main, name=f"dlock-{main.__name__}", daemon=True)
                self.threads.append(thread)
        for thread in self.threads:
            thread.start()

    def ring(self) -> None:
        self.start()
        with contextlib.suppress(BlockingIOError, OSError):
            self.wake.send(b"x")

    def look_at(self, at: float) -> None:
        """The watch sleeps a second at most, so only what is sooner wakes it."""
        self.start()
        with self.changed:
            if at < self.sleeps_until:
                self.changed.notify_all()

    def stop(self) -> None:
        self.core.close()
        with self.changed:
            self.stopping = True
            self.changed.notify_all()
            for _, conn in self.calls.values():
                conn.abort()
        with contextlib.suppress(OSError):
            self.wake.send(b"x")
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(2.0)
        self.core.deliver()
        self.source.close()
        if not any(thread.is_alive() for thread in self.threads):
            self.wake.close()
            self.woken.close()

    def ask(self, conn: Connection, sql: str, params: p.Params, timeout: float) -> _core.Answer:
        """One statement, which the watch ends if it gets no answer in time."""
        me = threading.get_ident()
        sent_at = clock()
        with self.changed:
            self.calls[me] = (sent_at + timeout, conn)
        self.look_at(sent_at + timeout)
        try:
            return _core.Answer(conn.query(sql.replace("@.", f"{self.schema}."), params), sent_at)
        finally:
            with self.changed:
                del self.calls[me]

    def learn(self, conn: Connection) -> bool:
        """What the server has.  True: there is no pooler in between, so we may listen."""
        pid, schema = self.ask(conn, p.HELLO, (), self.core.timeout).rows[0]
        self.schema = _core.read_hello([(pid, schema)], self.schema_given)
        try:
            self.core.features = _core.read_features(self.ask(conn, p.FEATURES, (), self.core.timeout).rows)
        except NotReady as error:
            self.schema = None
            raise _core.explain(error) from error
        return bool(pid == conn.pid())

    def watch(self) -> None:
        idle = 0
        while True:
            now = clock()
            at = self.core.expire(now)
            self.core.deliver()
            if self.keeper_rests and self.core.leases:
                # a lock that is released soon needs no keeper, and does not even wake the watch
                at = min(at, self.core.next_at())
                if self.core.needs_connection(now):
                    self.ring()
            with self.changed:
                if self.stopping:
                    return
                for until, conn in list(self.calls.values()):
                    if now >= until:
                        conn.abort()
                    at = min(at, max(until, now + 0.05))
                idle = 0 if at < NEVER else idle + 1
                # an idle watch sleeps until it is woken, but not after each short call
                self.sleeps_until = NEVER if idle > 10 else min(at, now + 1.0)
                self.changed.wait(None if idle > 10 else max(self.sleeps_until - now, 0.0))

    def keep(self) -> None:
        core, conn = self.core, None
        pause, retry_at = p.BACKOFF_FIRST, 0.0
        while not self.stopping:
            try:
                now = clock()
                if conn is None and now >= retry_at and core.needs_connection(now):
                    conn = self.source.open()
                    listens = self.learn(conn)
                    if listens:
                        conn.listen(core.hear)
                    core.connected(listens)
                question = core.plan(now) if conn is not None else None
                if conn is not None and question is not None:
                    try:
                        answer = self.ask(conn, question.sql, question.params, question.timeout)
                    except DlockError as error:
                        question.failed(error)
                        if isinstance(error, Unreachable):
                            raise
                    else:
                        core.alive_at, pause = clock(), p.BACKOFF_FIRST
                        question.answered(answer.rows, answer.sent_at)
                    core.deliver()
                    continue
            except DlockError as error:
                _core.log.info("renewal: %s", error)
                if p.is_turned_away(error):
                    core.alive_at = clock()
                if conn is not None:
                    conn.close()
                conn, retry_at = None, clock() + p.jitter(pause)
                pause = min(2 * pause, p.BACKOFF_LAST)
            except Exception:
                _core.log.exception("renewal failed")
                if conn is not None:
                    conn.close()
                conn, retry_at = None, clock() + p.BACKOFF_LAST
            self.rest(conn, min(retry_at if conn is None else core.next_at(), clock() + 60.0))
        if conn is not None:
            conn.close()

    def rest(self, conn: Optional[Connection], until: float) -> None:
        """Until it is time, something is heard, or somebody wakes us."""
        seconds = max(until - clock(), 0.0)
        try:
            if conn is not None:
                conn.wait(self.woken, seconds)
            else:
                self.keeper_rests = not self.core.needs_connection(clock())
                select.select([self.woken], [], [], None if self.keeper_rests else seconds)
                self.keeper_rests = False
        except DlockError:
            pass  # the next statement finds out
        with contextlib.suppress(BlockingIOError, OSError):
            self.woken.recv(4096)


class Locks:
    """All locks of a program in one database.

    source: a conninfo, a pool of psycopg or psycopg2, an SQLAlchemy engine, or a Django connection.
    timeout: how many seconds the server may be silent before a call fails (Unreachable).
    schema: of the functions, if they were installed without an extension.
    on_event: is told of each Event; it must be short, and must not use these Locks.
    """

    def __init__(self, source: Any, *, timeout: float = p.TIMEOUT, schema: Optional[str] = None,
                 on_event: Optional[Callable[[Event], object]] = None):
        self._core = Core(timeout, on_event, threading.Event)
        self._runner = _Runner(self._core, source_of(source, timeout), schema)
        self._stop = weakref.finalize(self, _stop, self._core, self._runner)
        self._stop.atexit = False

    def lock(self, key: Union[str, Sequence[str]], *, ttl: Optional[float] = None,
             wait: Optional[float] = None, value: Optional[str] = None, shared: bool = False,
             slots: int = 1, priority: int = 0, cleanup: float = 0.0, force: bool = False,
             at_least: float = 0.0, delay: float = 0.0, lazy: bool = False,
             max_hold: Optional[float] = None) -> Lock:
        """A lock, to be acquired by "with" or acquire().  Times are in seconds; `wait` None waits
        without limit.  Several keys are taken together or not at all."""
        return Lock(self, make_keys(key), make_options(
            ttl, at_least, wait=wait, value=value, shared=shared, slots=slots, priority=priority,
            cleanup=cleanup, force=force, delay=delay, lazy=lazy, max_hold=max_hold))

    def elect(self, key: str, *, value: Optional[str] = None, ttl: float = 10.0, cleanup: float = 0.0) -> Lock:
        """A candidate: it leads while it holds the lock, and its version is its term."""
        return self.lock(key, ttl=ttl, value=value, cleanup=cleanup)

    def leader(self, key: str) -> Optional[Leader]:
        """Who leads (or holds) the key now."""
        found: Optional[Leader] = self._run(lambda: _core.look(self._core, key))
        return found

    def observe(self, key: str, every: float = 1.0) -> Iterator[Optional[Leader]]:
        """The leader now, and after each change of it or of its value."""
        last = self.leader(key)
        yield last
        while True:
            time.sleep(every)
            now = self.leader(key)
            if now != last:
                last = now
                yield now

    def limit(self, key: str, n: int, per: float, wait: Optional[float] = 0.0, priority: int = 0) -> float:
        """A rate limit: 0.0, go ahead; else ask again after so many seconds."""
        left: float = self._run(lambda: _core.limit(self._core, key, n, per, wait, priority))
        return left

    def once(self, key: str, *, at_least: float = 0.0, ttl: Optional[float] = None,
             **options: Any) -> Callable[[F], Callable[..., Any]]:
        """A decorator: the function runs if the lock is free, and else returns None."""

        def decorate(function: F) -> Callable[..., Any]:
            @functools.wraps(function)
            def run(*args: Any, **kwargs: Any) -> Any:
                try:
                    lock = self.lock(key, ttl=ttl, wait=0.0, at_least=at_least, **options)
                    lock._acquire(0.0)
                except Busy:
                    return None
                with contextlib.ExitStack() as stack:
                    stack.push(lock.__exit__)
                    return function(*args, **kwargs)

            return run

        return decorate

    def close(self) -> None:
        """Stop renewing.  Locks that are held are told lost and end by their TTL."""
        self._stop()

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _run(self, make_steps: Callable[[], Steps]) -> Any:
        """Take the steps of a request in this thread.  However it ends, the generator is closed,
        and leaves to the keeper what may have been granted unheard."""
        self._core.check_usable()
        if self._runner.schema is None:
            self._first()
        steps = make_steps()
        try:
            step = next(steps)
            while True:
                result: Any = None
                failure: Optional[DlockError] = None
                if isinstance(step, Ask):
                    try:
                        result = self._ask(step)
                    except DlockError as error:
                        failure = error
                elif isinstance(step, Pause):
                    time.sleep(max(step.seconds, 0.0))
                else:
                    step.event.wait(step.seconds)
                step = steps.send(result) if failure is None else steps.throw(failure)
        except StopIteration as stop:
            return stop.value
        except NotReady:
            self._runner.schema = None  # look for the extension again
            raise
        finally:
            steps.close()

    def _first(self) -> None:
        """Find out what the server has; like any question, until there is an answer."""
        self._runner.schema = ""
        try:
            self._run(lambda: _core.Request(self._core).ask(p.HELLO))
        except BaseException:
            self._runner.schema = None
            raise

    def _ask(self, step: Ask) -> _core.Answer:
        with self._runner.source.borrow() as conn:
            if step.sql is p.HELLO:
                self._runner.learn(conn)
                return _core.Answer([], clock())
            return self._runner.ask(conn, step.sql, step.params, step.timeout)

    @contextlib.contextmanager
    def _fenced(self, grant: Grant) -> Iterator[Any]:
        fences: list[p.Params] = [(lease.key, lease.version) for lease in grant.leases]
        sql = p.FENCE.replace("@.", f"{self._runner.schema}.")
        try:
            with self._runner.source.fenced(sql, fences) as connection:
                yield connection
        except Exception as error:
            if code_of(error) != "LK001":
                raise
            raise p.error_of("LK001", str(error)) from error


def _stop(core: Core, runner: _Runner) -> None:
    """In a child process this touches nothing: threads and connections are the parent's."""
    if os.getpid() == core.pid:
        runner.stop()
