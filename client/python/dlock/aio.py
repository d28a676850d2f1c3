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
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Callable, Optional

from . import _core
from . import _protocol as p
from ._aio_drivers import Connection, Source, source_of, wait_for_event, within
from ._core import NEVER, Core, Event, Grant, Leader, Options, Step, Steps
from ._drivers import code_of
from ._protocol import Busy, LockLost, NotReady, Unreachable, clock
from ._sync import _collected


async def drive(steps: Steps, perform: Callable[[Step], Awaitable[Any]]) -> Any:
    """Take the steps of a generator, and give it what becomes of them."""
    try:
        step = next(steps)
        while True:
            try:
                result = await perform(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as stop:
        return stop.value
    finally:
        steps.close()


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
        grant: Grant = await self._locks._run(_core.Acquire(core, self.keys, options).run())
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
        await self._locks._run(_core.release(self._locks._core, grant))

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
        await self._locks._run(_core.set_value(self._locks._core, lease, value))


class _Runner:
    """The two tasks; as in _sync.py."""

    def __init__(self, core: Core, source: Source):
        self.core, self.source = core, source
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
            return _core.Answer(await conn.query(sql.replace("@.", f"{self.core.schema}."), params), sent_at)
        finally:
            timer.cancel()

    async def watch(self) -> None:
        while not self.core.closed:
            self.watch_wake.clear()
            at = self.core.expire(clock())
            self.core.deliver()
            # a second at most, because sleeps do not count the time of a suspension
            await wait_for_event(self.watch_wake, None if at == NEVER else min(max(at - clock(), 0.0), 1.0))

    async def keep(self) -> None:
        own: list[Connection] = []  # none or one

        async def perform(step: Step) -> Any:
            if isinstance(step, _core.Open):
                own.append(await within(self.core.timeout, self.source.open()))
                return own[0].pid()
            if isinstance(step, _core.Listen):
                return await own[0].listen(self.hear)
            if isinstance(step, _core.Ask):
                return await self.ask(own[0], step.sql, step.params, step.timeout)
            if isinstance(step, _core.Close):
                return await own.pop().close() if own else None
            assert isinstance(step, _core.Rest)
            return await self.rest(own[0] if own else None, step.seconds)

        try:
            await drive(_core.keeper(self.core), perform)
        finally:
            await perform(_core.Close())

    async def rest(self, conn: Optional[Connection], seconds: Optional[float]) -> None:
        if conn is not None:
            await conn.wait(self.keeper_wake, seconds)
        else:
            if seconds is None and self.core.leases:
                seconds = p.SHORT
            await wait_for_event(self.keeper_wake, seconds)
        self.keeper_wake.clear()


class Locks(_core.LocksBase[Lock]):
    """All locks of a program in one database; see dlock.Locks.

    source: a conninfo, a psycopg AsyncConnectionPool, an asyncpg pool, or an SQLAlchemy AsyncEngine.
    Close it (or use "async with") before the event loop ends.
    """

    def __init__(self, source: Any, *, timeout: float = p.TIMEOUT, schema: Optional[str] = None,
                 on_event: Optional[Callable[[Event], object]] = None):
        self._core = Core(timeout, on_event, asyncio.Event, schema)
        self._runner = _Runner(self._core, source_of(source, timeout))
        weakref.finalize(self, _stop, self._core, self._runner).atexit = False

    def _make(self, keys: tuple[str, ...], options: Options) -> Lock:
        return Lock(self, keys, options)

    async def leader(self, key: str) -> Optional[Leader]:
        found: Optional[Leader] = await self._run(_core.look(self._core, key))
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
        left: float = await self._run(_core.limit(self._core, key, n, per, wait, priority))
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

    async def _run(self, steps: Steps) -> Any:
        """Take the steps of a request in this task.  If it is cancelled, the generator leaves to
        the keeper what may have been granted unheard."""
        core = self._core
        core.check_usable()
        try:
            if not core.knows_server:
                await drive(_core.learn(core, _core.Request(core).ask), self._perform)
            return await drive(steps, self._perform)
        except NotReady:
            core.knows_server = False  # look for the extension again
            raise

    async def _perform(self, step: Step) -> Any:
        if isinstance(step, _core.Ask):
            async with contextlib.AsyncExitStack() as stack:
                conn = await within(step.timeout, stack.enter_async_context(self._runner.source.borrow()))
                return await self._runner.ask(conn, step.sql, step.params, step.timeout)
        if isinstance(step, _core.Pause):
            return await asyncio.sleep(max(step.seconds, 0.0))
        assert isinstance(step, _core.Await)
        return await wait_for_event(step.event, step.seconds)

    @contextlib.asynccontextmanager
    async def _fenced(self, grant: Grant) -> AsyncIterator[Any]:
        fences: list[p.Params] = [(lease.key, lease.version) for lease in grant.leases]
        sql = p.FENCE.replace("@.", f"{self._core.schema}.")
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
