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
from collections.abc import Iterator
from typing import Any, Callable, Optional, TypeVar

from . import _core
from . import _protocol as p
from ._core import NEVER, Core, Event, Grant, Leader, Options, Step, Steps
from ._drivers import Connection, Source, code_of, source_of
from ._protocol import Busy, DlockError, NotReady, Unreachable, clock

F = TypeVar("F", bound=Callable[..., Any])


def drive(steps: Steps, perform: Callable[[Step], Any]) -> Any:
    """Take the steps of a generator, and give it what becomes of them."""
    try:
        step = next(steps)
        while True:
            try:
                result = perform(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as stop:
        return stop.value
    finally:
        steps.close()


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
        grant: Grant = self._locks._run(_core.Acquire(core, self.keys, options).run())
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
        self._locks._run(_core.release(self._locks._core, grant))

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
        self._locks._run(_core.set_value(self._locks._core, lease, value))


def _collected(core: Core, grant: Grant) -> None:
    if os.getpid() == core.pid and not core.closed:
        core.drop(grant)
        warnings.warn(f'lock "{grant.leases[0].key}" was not released; it ends by its TTL',
                      ResourceWarning, stacklevel=2)


class _Runner:
    """The two threads.  They know the core and the source, not Locks, so that one that nobody has
    any more is collected, and they end."""

    def __init__(self, core: Core, source: Source):
        self.core, self.source = core, source
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
            return _core.Answer(conn.query(sql.replace("@.", f"{self.core.schema}."), params), sent_at)
        finally:
            with self.changed:
                del self.calls[me]

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
        own: list[Connection] = []  # none or one

        def perform(step: Step) -> Any:
            if isinstance(step, _core.Open):
                own.append(self.source.open())
                return own[0].pid()
            if isinstance(step, _core.Listen):
                return own[0].listen(self.core.hear)
            if isinstance(step, _core.Ask):
                return self.ask(own[0], step.sql, step.params, step.timeout)
            if isinstance(step, _core.Close):
                return own.pop().close() if own else None
            assert isinstance(step, _core.Rest)
            return self.rest(own[0] if own else None, step.seconds)

        try:
            drive(_core.keeper(self.core), perform)
        finally:
            perform(_core.Close())

    def rest(self, conn: Optional[Connection], seconds: Optional[float]) -> None:
        if conn is not None:
            conn.wait(self.woken, seconds)
        else:
            self.keeper_rests = seconds is None
            select.select([self.woken], [], [], seconds)
            self.keeper_rests = False
        with contextlib.suppress(BlockingIOError, OSError):
            self.woken.recv(4096)


class Locks(_core.LocksBase[Lock]):
    """All locks of a program in one database.

    source: a conninfo, a pool of psycopg or psycopg2, an SQLAlchemy engine, or a Django connection.
    timeout: how many seconds the server may be silent before a call fails (Unreachable).
    schema: of the functions, if they were installed without an extension.
    on_event: is told of each Event; it must be short, and must not use these Locks.
    """

    def __init__(self, source: Any, *, timeout: float = p.TIMEOUT, schema: Optional[str] = None,
                 on_event: Optional[Callable[[Event], object]] = None):
        self._core = Core(timeout, on_event, threading.Event, schema)
        self._runner = _Runner(self._core, source_of(source, timeout))
        self._stop = weakref.finalize(self, _stop, self._core, self._runner)
        self._stop.atexit = False

    def _make(self, keys: tuple[str, ...], options: Options) -> Lock:
        return Lock(self, keys, options)

    def leader(self, key: str) -> Optional[Leader]:
        """Who leads (or holds) the key now."""
        found: Optional[Leader] = self._run(_core.look(self._core, key))
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
        """A rate limit: 0.0, go ahead; else the seconds after which to ask again."""
        left: float = self._run(_core.limit(self._core, key, n, per, wait, priority))
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

    def _run(self, steps: Steps) -> Any:
        """Take the steps of a request in this thread.  However it ends, the generator is closed,
        and leaves to the keeper what may have been granted unheard."""
        core = self._core
        core.check_usable()
        try:
            if not core.knows_server:
                drive(_core.learn(core, _core.Request(core).ask), self._perform)
            return drive(steps, self._perform)
        except NotReady:
            core.knows_server = False  # look for the extension again
            raise

    def _perform(self, step: Step) -> Any:
        if isinstance(step, _core.Ask):
            with self._runner.source.borrow() as conn:
                return self._runner.ask(conn, step.sql, step.params, step.timeout)
        if isinstance(step, _core.Pause):
            return time.sleep(max(step.seconds, 0.0))
        assert isinstance(step, _core.Await)
        return step.event.wait(step.seconds)

    @contextlib.contextmanager
    def _fenced(self, grant: Grant) -> Iterator[Any]:
        fences: list[p.Params] = [(lease.key, lease.version) for lease in grant.leases]
        sql = p.FENCE.replace("@.", f"{self._core.schema}.")
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
