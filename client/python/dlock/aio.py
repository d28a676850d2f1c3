"""Locks for asyncio, with the names of dlock.Locks.

    async with locks.lock("nightly", ttl=30, wait=60) as lock:
        async with lock.fenced() as conn:
            await conn.execute("UPDATE ...")

If the lock is lost, the body is cancelled, and the block raises LockLost.  One task keeps all locks
of a Locks object, one watches their deadlines.  One Locks object belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, Callable, Optional, Union

from . import _core
from . import _protocol as p
from ._aio_drivers import Connection, Source, source_of, wait_for_event, within
from ._core import NEVER, Ask, Core, Event, Grant, Leader, Options, Pause, Steps
from ._drivers import code_of
from ._protocol import Busy, DlockError, LockLost, NotReady, Unreachable, clock
from ._sync import _collected, make_keys, make_options


class Lock(_core.LockBase):
    """One lock, or several that are taken together; made by Locks.lock()."""

    def __init__(self, locks: Locks, keys: tuple[str, ...], options: Options):
        super().__init__(locks._core, keys, options)
        self._locks = locks
        self._body: list[asyncio.Task[Any]] = []  # the task to cancel, while it is in the block
        self._cancelled: list[bool] = []
        self.lost = asyncio.Event()
        self.asked = asyncio.Event()

    async def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        wait = 0.0 if not blocking else self._options.wait if timeout < 0 else timeout
        try:
            await self._acquire(wait)
            return True
        except Busy:
            return False

    async def _acquire(self, wait: Optional[float]) -> None:
        if self._grant is not None:
            raise RuntimeError("the lock is already acquired")
        options = dataclasses.replace(self._options, wait=wait)
        core = self._locks._core
        grant: Grant = await self._locks._run(lambda: _core.Acquire(core, self.keys, options).run())
        lost, asked = asyncio.Event(), asyncio.Event()
        body: list[asyncio.Task[Any]] = []
        cancelled: list[bool] = []

        def notify(kind: str) -> None:
            (lost if kind == "lost" else asked).set()
            if kind == "lost":
                for task in body:
                    cancelled.append(True)
                    task.cancel()
                body.clear()

        self._grant, self.lost, self.asked, self._body, self._cancelled = grant, lost, asked, body, cancelled
        grant.notify = notify
        self._finalizer = weakref.finalize(self, _collected, core, grant)

    async def release(self) -> None:
        """Release it.  LockLost: it was not ours any more, what was done may not have been alone."""
        grant = self._held_grant()
        self._grant = None
        if self._finalizer is not None:
            self._finalizer.detach()
        await self._locks._run(lambda: _core.release(self._locks._core, grant))

    async def __aenter__(self) -> Lock:
        await self._acquire(self._options.wait)
        task = asyncio.current_task()
        if task is not None:
            self._body.append(task)
        if not self.locked():
            await self.__aexit__(None, None, None)
        return self

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._body.clear()
        if self._grant is None:
            return
        cancelled_by_us = bool(self._cancelled)
        if cancelled_by_us:
            task = asyncio.current_task()
            if task is not None and hasattr(task, "uncancel"):
                task.uncancel()
            if error is None:  # the body ended before the cancellation reached it
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
        try:
            await self.release()
        except LockLost as failure:
            if error is None or (cancelled_by_us and isinstance(error, asyncio.CancelledError)):
                raise failure from None
        except Unreachable:
            pass  # the body had the lock, which now ends by its TTL if not before

    @contextlib.asynccontextmanager
    async def fenced(self) -> AsyncIterator[Any]:
        """A connection of the pool in a transaction that begins with the fence."""
        self.check()
        async with self._locks._fenced(self._held_grant()) as connection:
            yield connection

    async def set_value(self, value: str) -> None:
        lease = self._held_grant().leases[0]
        await self._locks._run(lambda: _core.set_value(self._locks._core, lease, value))


class _Runner:
    """The two tasks; as in _sync.py."""

    def __init__(self, core: Core, source: Source, schema: Optional[str]):
        self.core, self.source, self.schema_given = core, source, schema
        self.schema: Optional[str] = None
        self.tasks: list[asyncio.Task[None]] = []
        self.loop: Optional[asyncio.AbstractEventLoop] = None
        core.wake_keeper = self.ring
        core.wake_watch = lambda at: self.ring()

    def ring(self) -> None:
        if self.core.closed:
            return
        if not self.tasks:
            self.loop = asyncio.get_running_loop()
            self.keeper_wake, self.watch_wake = asyncio.Event(), asyncio.Event()
            self.tasks = [self.loop.create_task(self.watch()), self.loop.create_task(self.keep())]
        self.keeper_wake.set()
        self.watch_wake.set()

    def hear(self, payload: str) -> None:
        self.core.hear(payload)
        self.keeper_wake.set()

    async def stop(self) -> None:
        self.core.close()
        self.core.deliver()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.source.close()

    async def ask(self, conn: Connection, sql: str, params: p.Params, timeout: float) -> _core.Answer:
        """One statement.  If it gets no answer in time its connection is ended, not the statement
        cancelled: a cancel would have to reach the same silent server."""
        sent_at = clock()
        timer = asyncio.get_running_loop().call_later(timeout, conn.abort)
        try:
            return _core.Answer(await conn.query(sql.replace("@.", f"{self.schema}."), params), sent_at)
        finally:
            timer.cancel()

    async def learn(self, conn: Connection) -> bool:
        pid, schema = (await self.ask(conn, p.HELLO, (), self.core.timeout)).rows[0]
        self.schema = _core.read_hello([(pid, schema)], self.schema_given)
        try:
            answer = await self.ask(conn, p.FEATURES, (), self.core.timeout)
        except NotReady as error:
            self.schema = None
            raise _core.explain(error) from error
        self.core.features = _core.read_features(answer.rows)
        return bool(pid == conn.pid())

    async def watch(self) -> None:
        while not self.core.closed:
            self.watch_wake.clear()
            at = self.core.expire(clock())
            self.core.deliver()
            # a second at most, because sleeps do not count the time of a suspension
            await wait_for_event(self.watch_wake, None if at == NEVER else min(max(at - clock(), 0.0), 1.0))

    async def keep(self) -> None:
        core = self.core
        conn: Optional[Connection] = None
        pause, retry_at = p.BACKOFF_FIRST, 0.0
        try:
            while not core.closed:
                self.keeper_wake.clear()
                try:
                    now = clock()
                    if conn is None and now >= retry_at and core.needs_connection(now):
                        conn = await within(core.timeout, self.source.open())
                        listens = await self.learn(conn)
                        if listens:
                            await conn.listen(self.hear)
                        core.connected(listens)
                    question = core.plan(now) if conn is not None else None
                    if conn is not None and question is not None:
                        try:
                            answer = await self.ask(conn, question.sql, question.params, question.timeout)
                        except DlockError as error:
                            question.failed(error)
                            if isinstance(error, Unreachable):
                                raise
                        else:
                            core.alive_at, pause = clock(), p.BACKOFF_FIRST
                            question.answered(answer.rows, answer.sent_at)
                        core.deliver()
                        continue
                except Exception as error:
                    _core.log.info("renewal: %s", error)
                    if isinstance(error, DlockError) and p.is_turned_away(error):
                        core.alive_at = clock()
                    if conn is not None:
                        await conn.close()
                    conn, retry_at = None, clock() + p.jitter(pause)
                    pause = min(2 * pause, p.BACKOFF_LAST)
                until = core.next_at() if conn is not None else (
                    retry_at if core.needs_connection(clock()) else
                    clock() + p.SHORT if core.leases else NEVER)
                seconds = None if until == NEVER else min(max(until - clock(), 0.0), 60.0)
                if conn is not None:
                    await conn.wait(self.keeper_wake, seconds)
                else:
                    await wait_for_event(self.keeper_wake, seconds)
        finally:
            if conn is not None:
                await conn.close()


class Locks:
    """All locks of a program in one database; see dlock.Locks.

    source: a conninfo, a psycopg AsyncConnectionPool, an asyncpg pool, or an SQLAlchemy AsyncEngine.
    Close it (or use "async with") before the event loop ends.
    """

    def __init__(self, source: Any, *, timeout: float = p.TIMEOUT, schema: Optional[str] = None,
                 on_event: Optional[Callable[[Event], object]] = None):
        self._core = Core(timeout, on_event, asyncio.Event)
        self._runner = _Runner(self._core, source_of(source, timeout), schema)
        weakref.finalize(self, _stop, self._core, self._runner).atexit = False

    def lock(self, key: Union[str, Sequence[str]], *, ttl: Optional[float] = None,
             wait: Optional[float] = None, value: Optional[str] = None, shared: bool = False,
             slots: int = 1, priority: int = 0, cleanup: float = 0.0, force: bool = False,
             at_least: float = 0.0, delay: float = 0.0, lazy: bool = False,
             max_hold: Optional[float] = None) -> Lock:
        return Lock(self, make_keys(key), make_options(
            ttl, at_least, wait=wait, value=value, shared=shared, slots=slots, priority=priority,
            cleanup=cleanup, force=force, delay=delay, lazy=lazy, max_hold=max_hold))

    def elect(self, key: str, *, value: Optional[str] = None, ttl: float = 10.0, cleanup: float = 0.0) -> Lock:
        return self.lock(key, ttl=ttl, value=value, cleanup=cleanup)

    async def leader(self, key: str) -> Optional[Leader]:
        found: Optional[Leader] = await self._run(lambda: _core.look(self._core, key))
        return found

    async def observe(self, key: str, every: float = 1.0) -> AsyncIterator[Optional[Leader]]:
        last = await self.leader(key)
        yield last
        while True:
            await asyncio.sleep(every)
            now = await self.leader(key)
            if now != last:
                last = now
                yield now

    async def limit(self, key: str, n: int, per: float, wait: Optional[float] = 0.0, priority: int = 0) -> float:
        left: float = await self._run(lambda: _core.limit(self._core, key, n, per, wait, priority))
        return left

    def once(self, key: str, *, at_least: float = 0.0, ttl: Optional[float] = None,
             **options: Any) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
        """A decorator: the coroutine runs if the lock is free, and else returns None."""

        def decorate(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            @functools.wraps(function)
            async def run(*args: Any, **kwargs: Any) -> Any:
                lock = self.lock(key, ttl=ttl, wait=0.0, at_least=at_least, **options)
                async with contextlib.AsyncExitStack() as stack:
                    try:
                        await stack.enter_async_context(lock)
                    except Busy:
                        return None
                    return await function(*args, **kwargs)

            return run

        return decorate

    async def close(self) -> None:
        """Stop renewing.  Locks that are held are told lost and end by their TTL."""
        if os.getpid() == self._core.pid and not self._core.closed:
            await self._runner.stop()

    async def __aenter__(self) -> Locks:
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.close()

    async def _run(self, make_steps: Callable[[], Steps]) -> Any:
        """Take the steps of a request in this task.  If it is cancelled, the generator leaves to
        the keeper what may have been granted unheard."""
        self._core.check_usable()
        if self._runner.schema is None:
            self._runner.schema = ""
            try:
                await self._run(lambda: _core.Request(self._core).ask(p.HELLO))
            except BaseException:
                self._runner.schema = None
                raise
        steps = make_steps()
        try:
            step = next(steps)
            while True:
                result: Any = None
                failure: Optional[DlockError] = None
                if isinstance(step, Ask):
                    try:
                        result = await self._ask(step)
                    except DlockError as error:
                        failure = error
                elif isinstance(step, Pause):
                    await asyncio.sleep(max(step.seconds, 0.0))
                else:
                    await wait_for_event(step.event, step.seconds)
                step = steps.send(result) if failure is None else steps.throw(failure)
        except StopIteration as stop:
            return stop.value
        except NotReady:
            self._runner.schema = None
            raise
        finally:
            steps.close()

    async def _ask(self, step: Ask) -> _core.Answer:
        async with contextlib.AsyncExitStack() as stack:
            conn = await within(step.timeout, stack.enter_async_context(self._runner.source.borrow()))
            if step.sql is p.HELLO:
                await self._runner.learn(conn)
                return _core.Answer([], clock())
            return await self._runner.ask(conn, step.sql, step.params, step.timeout)

    @contextlib.asynccontextmanager
    async def _fenced(self, grant: Grant) -> AsyncIterator[Any]:
        fences: list[p.Params] = [(lease.key, lease.version) for lease in grant.leases]
        sql = p.FENCE.replace("@.", f"{self._runner.schema}.")
        try:
            async with self._runner.source.fenced(sql, fences) as connection:
                yield connection
        except Exception as error:
            if code_of(error) != "LK001":
                raise
            raise p.error_of("LK001", str(error)) from error


def _stop(core: Core, runner: _Runner) -> None:
    """Nobody has these Locks any more: nothing is renewed; the tasks end with their loop."""
    if os.getpid() == core.pid and not core.closed:
        core.close()
        if runner.loop is not None and runner.loop.is_running():
            for task in runner.tasks:
                runner.loop.call_soon_threadsafe(task.cancel)
