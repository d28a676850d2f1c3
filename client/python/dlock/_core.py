"""What both worlds share: the state of locks and requests, and the decisions about them.

Nothing here blocks.  Requests, and the keeper, are generators of steps: questions to the server,
pauses, waits for an event.  _sync.py takes these steps in a thread, aio.py in a task.

    TRY -> granted
     |
    busy -> ENQUEUE -> WAIT -> CLAIM -> granted, or missed
                        ^--------'
    ... and from the beginning if the server does not know the ticket any more.

The keeper (a thread or a task with a connection of its own) sends what plan() says.  The watch
(another one, which never talks to a server) calls expire(), so that a loss is told in time whatever
the server does.  The mutex is never held while a program is called back.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Callable, Generic, Optional, TypeVar, Union

from . import _protocol as p
from ._protocol import Busy, Deadlock, DlockError, InvalidArgument, LockLost, NotReady, Refused, Unreachable, clock

log = logging.getLogger("dlock")
NEVER = float("inf")


def interval(seconds: Optional[float]) -> Optional[timedelta]:
    return None if seconds is None or seconds == NEVER else timedelta(milliseconds=round(seconds * 1000))


@dataclass(frozen=True)
class Event:
    """Told to `on_event`: granted, busy, renewed, danger, asked, lost or released.

    `seconds` is the time waited (granted, busy), or what is left (danger, asked).  `reason` says
    why it is lost (deadline, preempted, forced, expired, closed) or asked for (priority, max_hold).
    """

    kind: str
    key: str
    version: int = 0
    seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Options:
    """What a request asks for; the arguments of Locks.lock()."""

    ttl: float = p.TTL
    wait: Optional[float] = None
    value: Optional[str] = None
    shared: bool = False
    slots: int = 1
    priority: int = 0
    cleanup: float = 0.0
    force: bool = False
    at_least: float = 0.0
    delay: float = 0.0
    lazy: bool = False
    max_hold: Optional[float] = None

    def terms(self) -> list[Any]:
        return [self.value, self.priority, interval(self.cleanup), self.force, self.slots,
                interval(self.at_least), interval(self.delay), self.lazy, self.shared]


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


class Lease:
    """One grant of one key, and how long it is ours."""

    def __init__(self, core: Core, key: str, owner: str, version: int, options: Options):
        self.core, self.key, self.owner, self.version = core, key, owner, version
        self.ttl, self.max_hold = options.ttl, options.max_hold
        self.state = "held"  # or lost, released
        self.reason = ""
        self.grant: Optional[Grant] = None
        self.since = clock()
        self.ends = NEVER if self.max_hold is None else self.since + self.max_hold
        self.renews = True
        self.deadline = self.danger_at = self.due = 0.0
        self.asked = self.heard = self.forced = self.alone = False

    def renewed(self, sent_at: float, lasts: Optional[float] = None) -> None:
        """The server answered a question that was sent then.  It counts from later on, and may
        have granted less than the TTL (a policy's max_hold)."""
        ttl = self.ttl if lasts is None else min(self.ttl, lasts)
        self.deadline = min(sent_at + p.LEASE * ttl, self.ends)
        self.danger_at = sent_at + p.DANGER * ttl
        self.due = sent_at + p.jitter(p.PERIOD * ttl)

    def is_held(self, now: float) -> bool:
        return self.state == "held" and now < self.deadline

    def gone(self, state: str) -> None:
        """The server says that it is free, or another's.  Before our deadline it cannot have
        expired, so if another client holds it, it was taken away."""
        taken = self.forced or state == "held_by_other"
        self.lose("preempted" if self.asked else "forced" if taken else "expired")

    def lose(self, reason: str) -> None:
        if self.state == "held":
            self.state, self.reason = "lost", reason
            self.core.tell("lost", self, reason=reason)


class Grant:
    """The leases of one request: one for each key.  The keeper knows grants and not Lock objects,
    so a Lock that nobody has any more is collected, and its renewal ends."""

    def __init__(self, leases: Sequence[Lease]):
        self.leases = leases
        self.asked_until = NEVER
        self.asked_why = ""
        self.notify: Callable[[str], None] = lambda kind: None
        for lease in leases:
            lease.grant = self

    def is_held(self, now: float) -> bool:
        return all(lease.is_held(now) for lease in self.leases)

    def is_lost(self, now: float) -> bool:
        return any(x.state == "lost" or (x.state == "held" and now >= x.deadline) for x in self.leases)

    def error(self) -> LockLost:
        names = ", ".join(f'"{lease.key}" ({lease.reason or "deadline"})' for lease in self.leases
                          if not lease.is_held(clock()))
        return LockLost(f"lock {names} is lost" if names else "lock is lost")


@dataclass
class Wait:
    """A request that waits by ticket."""

    ticket: int
    event: Any
    missed: Optional[DlockError] = None
    said_missed: bool = False


@dataclass
class Abandoned:
    """A request that ended without an answer: it may have been granted, or still be queued."""

    key: str
    owner: str
    in_queue: bool
    until: float
    due: float = 0.0
    pause: float = p.ABANDON_PAUSE


# Steps of a request


@dataclass(frozen=True)
class Ask:
    sql: str
    params: Sequence[Any]
    timeout: float


@dataclass(frozen=True)
class Answer:
    rows: list[p.Row]
    sent_at: float


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Await:
    event: Any
    seconds: float


@dataclass(frozen=True)
class Open:
    """Of the keeper: open its connection, and return the process that the driver was told."""


@dataclass(frozen=True)
class Listen:
    """Of the keeper: hand what it hears to Core.hear()."""


@dataclass(frozen=True)
class Close:
    """Of the keeper."""


@dataclass(frozen=True)
class Rest:
    """Of the keeper: until something is heard, it is woken, or the time is over.  None: nothing
    needs a connection until the first lock is SHORT old."""

    seconds: Optional[float]


Step = Union[Ask, Pause, Await, Open, Listen, Close, Rest]
Steps = Generator[Step, Any, Any]


@dataclass
class Question:
    """What the keeper sends, and what to do with the answer."""

    sql: str
    params: Sequence[Any]
    timeout: float
    answered: Callable[[list[p.Row], float], None]
    failed: Callable[[DlockError], None] = field(default=lambda error: None)


class Core:
    def __init__(self, timeout: float, on_event: Optional[Callable[[Event], object]],
                 new_event: Callable[[], Any], schema: Optional[str] = None):
        self.timeout, self.on_event, self.new_event = timeout, on_event, new_event
        self.schema, self.schema_given = schema or "", schema
        self.knows_server = False
        self.pid = os.getpid()
        self.mutex = threading.RLock()
        self.closed = False
        self.features: frozenset[str] = frozenset()
        self.leases: set[Lease] = set()
        self.waits: dict[int, Wait] = {}
        self.early: deque[int] = deque(maxlen=256)
        self.abandoned: list[Abandoned] = []
        self.told: deque[tuple[Event, Optional[Grant]]] = deque()
        self.listens = False
        self.alive_at = self.asked_at = self.hear_at = 0.0
        self.wake_keeper: Callable[[], None] = lambda: None
        self.wake_watch: Callable[[float], None] = lambda at: None

    # Telling

    def tell(self, kind: str, lease: Lease, seconds: float = 0.0, reason: str = "") -> None:
        self.told.append((Event(kind, lease.key, lease.version, seconds, reason), lease.grant))

    def deliver(self) -> None:
        """Call back the program, without the mutex."""
        while True:
            try:
                event, grant = self.told.popleft()
            except IndexError:
                return
            if grant is not None and event.kind in ("lost", "asked"):
                grant.notify(event.kind)
            self.emit(event)

    def emit(self, event: Event) -> None:
        if self.on_event is not None:
            try:
                self.on_event(event)
            except Exception:
                log.exception("on_event failed")

    # Leases

    def check_usable(self) -> None:
        if self.pid != os.getpid():
            raise InvalidArgument("these Locks belong to the parent process; make new ones after a fork")
        if self.closed:
            raise InvalidArgument("these Locks are closed")

    def add(self, keys: Sequence[str], owner: str, versions: Sequence[int], options: Options,
            sent_at: float, lasts: Optional[float] = None) -> Grant:
        leases = [Lease(self, key, owner, version, options) for key, version in zip(keys, versions)]
        grant = Grant(leases)
        with self.mutex:
            for lease in leases:
                lease.renewed(sent_at, lasts)
                self.leases.add(lease)
        self.wake_watch(leases[0].due)
        return grant

    def drop(self, grant: Grant, reason: str = "") -> None:
        """It is not renewed any more: released, closed, or nobody has it."""
        with self.mutex:
            for lease in grant.leases:
                self.leases.discard(lease)
                if reason:
                    lease.lose(reason)
                elif lease.state == "held":
                    lease.state = "released"

    def expire(self, now: float) -> float:
        """Find what is lost or in danger by now; when to look again."""
        with self.mutex:
            soon = NEVER
            for lease in list(self.leases):
                if lease.state == "held" and now >= lease.deadline:
                    lease.lose("deadline")
                if lease.state != "held":
                    self.leases.discard(lease)
                    continue
                if now >= lease.danger_at:
                    lease.danger_at = NEVER
                    self.tell("danger", lease, lease.deadline - now)
                last = lease.ends - p.LEASE * lease.ttl
                if lease.renews and now >= last:
                    lease.renews, lease.danger_at = False, NEVER
                    self.ask(lease, lease.deadline, "max_hold", now)
                soon = min(soon, lease.deadline, lease.danger_at, last if lease.renews else NEVER)
            return soon

    def ask(self, lease: Lease, until: float, why: str, now: float) -> None:
        """The holder is asked to finish and to release."""
        if lease.grant is not None:
            lease.grant.asked_until, lease.grant.asked_why = until, why
        self.tell("asked", lease, until - now, why)

    def close(self) -> None:
        with self.mutex:
            self.closed = True
            for lease in self.leases:
                lease.lose("closed")
            self.leases.clear()
            for wait in self.waits.values():
                wait.event.set()

    # The keeper

    def needs_connection(self, now: float) -> bool:
        with self.mutex:
            return bool(self.waits or self.abandoned) or any(
                now >= lease.since + p.SHORT for lease in self.leases)

    def connected(self, listens: bool) -> None:
        """The keeper has a new connection: what was told meanwhile was missed."""
        with self.mutex:
            self.listens, self.asked_at = listens, 0.0
            for lease in self.leases if listens else ():
                lease.heard = True

    def hear(self, payload: str) -> None:
        """Every role may send on the channel, so an event only leads to a question."""
        try:
            said = json.loads(payload)
            kind, key, version = said["event"], said.get("key"), said.get("version")
            ticket = said.get("ticket")
        except (ValueError, TypeError, KeyError, AttributeError):
            return
        with self.mutex:
            if kind in ("granted", "missed") and isinstance(ticket, int):
                wait = self.waits.get(ticket)
                if wait is None:
                    self.early.append(ticket)
                    return
                if kind == "missed":
                    wait.said_missed = True
                    code = said.get("code")
                    wait.missed = p.error_of(str(code), str(said.get("reason"))) if code else None
                wait.event.set()
            elif kind in ("preempt", "expired", "forced"):
                for lease in self.leases:
                    if lease.key == key and lease.version == version:
                        lease.heard = True
                        lease.forced = lease.forced or kind == "forced"

    def plan(self, now: float) -> Optional[Question]:
        """What the keeper sends now."""
        with self.mutex:
            return self.renewal(now) or self.tickets(now) or self.giveback(now)

    def next_at(self) -> float:
        """When to plan again, if nothing happens."""
        with self.mutex:
            at = min((a.due for a in self.abandoned), default=NEVER)
            if self.waits:
                at = min(at, self.asked_at + (self.timeout / 2 if self.listens else p.POLL))
            for lease in self.leases:
                at = min(at, lease.due, self.hear_at if lease.heard else NEVER)
            return at

    def renewal(self, now: float) -> Optional[Question]:
        """One statement for all that are due, and for those that events have named.  Locks of a
        statement that failed follow one by one."""
        hears = now >= self.hear_at

        def is_wanted(lease: Lease, at: float) -> bool:
            return lease.due <= at or (lease.heard and hears)

        ripe = [lease for lease in self.leases if is_wanted(lease, now)]
        if not ripe:
            return None
        batch = [lease for lease in self.leases
                 if not lease.alone and is_wanted(lease, now + p.TOGETHER * lease.ttl)][:p.MAX_BATCH]
        if all(lease.alone for lease in ripe):
            batch = [min(ripe, key=lambda lease: lease.deadline)]
        if any(lease.heard for lease in batch):
            self.hear_at = max(self.hear_at, now - p.HEAR_PAUSE * (p.HEAR_BURST - 1)) + p.HEAR_PAUSE
        renew = [lease.renews and lease.due <= now + p.TOGETHER * lease.ttl for lease in batch]
        heard = [lease for lease in batch if lease.heard]
        for lease in batch:
            lease.heard = False
        timeout = max(p.ANSWER * min(lease.ttl for lease in batch), 0.02)

        def answered(rows: list[p.Row], sent_at: float) -> None:
            self.renewed(batch, renew, rows, sent_at)

        def failed(error: DlockError) -> None:
            with self.mutex:
                for lease in heard:
                    lease.heard = True
                if isinstance(error, Unreachable):
                    return
                # the server is there but refused it, perhaps because of one of them
                for lease in batch:
                    if lease.alone or len(batch) == 1:
                        lease.due = clock() + p.REFUSED * lease.ttl
                    lease.alone = True

        params = [[lease.key for lease in batch], [lease.version for lease in batch],
                  [lease.owner for lease in batch], renew, f"{max(int(timeout * 333), 1)}ms"]
        return Question(p.RENEW, params, timeout, answered, failed)

    def renewed(self, batch: list[Lease], renew: list[bool], rows: list[p.Row], sent_at: float) -> None:
        now = clock()
        with self.mutex:
            for number, lasts, state, yields in rows:
                lease, was_renewed = batch[number - 1], renew[number - 1]
                if lease.state != "held" or now >= lease.deadline:
                    continue  # a lost lock never comes back
                lease.alone = False
                if state not in ("held", "preempting") or (was_renewed and lasts is None):
                    lease.gone(state)
                    continue
                if not lease.heard:
                    lease.forced = False
                if was_renewed:
                    lease.renewed(sent_at, lasts / 1000)
                    self.tell("renewed", lease)
                elif lease.due <= now:
                    lease.due = sent_at + p.PERIOD * lease.ttl
                if state == "preempting" and not lease.asked:
                    self.ask(lease, now + max(yields or 0, 0) / 1000, "priority", now)
                lease.asked = state == "preempting"

    def tickets(self, now: float) -> Optional[Question]:
        """One question for all requests that wait."""
        pause = self.timeout / 2 if self.listens else p.POLL
        if not self.waits or now < self.asked_at + pause:
            return None
        self.asked_at = now

        def answered(rows: list[p.Row], sent_at: float) -> None:
            with self.mutex:
                for (ticket,) in rows:
                    if ticket in self.waits:
                        self.waits[ticket].event.set()

        return Question(p.TICKETS, [list(self.waits)[:p.MAX_BATCH]], self.timeout, answered)

    def abandon(self, key: str, owner: str, in_queue: bool, ttl: float) -> None:
        now = clock()
        with self.mutex:
            self.abandoned.append(Abandoned(key, owner, in_queue, now + min(ttl, p.ABANDON_LAST), now))
        self.wake_keeper()

    def giveback(self, now: float) -> Optional[Question]:
        """Release by owner what may have been granted unheard.  If nothing was there, its request
        may be slower than our release, so it is tried again later."""
        self.abandoned = [a for a in self.abandoned if now < a.until]
        due = [a for a in self.abandoned if now >= a.due][:p.MAX_BATCH]
        if not due:
            return None
        for a in due:
            a.due, a.pause = now + a.pause, a.pause * 2

        def answered(rows: list[p.Row], sent_at: float) -> None:
            with self.mutex:
                for a, (said,) in zip(due, rows):
                    if said == "released":
                        self.abandoned.remove(a)

        sql = p.ABANDON if "tickets" in self.features else p.ABANDON_PORTABLE
        params = [[a.key for a in due], [a.owner for a in due], [a.in_queue for a in due]]
        return Question(sql, params, self.timeout, answered)


def learn(core: Core, ask: Callable[[str], Steps]) -> Steps:
    """What the server has; returns the process that answered."""
    answer = yield from ask(p.HELLO)
    pid, found = answer.rows[0]
    if core.schema_given is None and found is None:
        raise NotReady("the database has no extension dlock: CREATE EXTENSION dlock, or name the schema of the "
                       "portable edition (schema=)")
    core.schema = core.schema_given or str(found)
    try:
        answer = yield from ask(p.FEATURES)
    except NotReady as error:
        if error.sqlstate != "42883":
            raise
        raise NotReady("this client needs a dlock with dlock_features(): update the server's package, then "
                       "ALTER EXTENSION dlock UPDATE", "42883") from error
    core.features = frozenset(answer.rows[0][2])
    core.knows_server = True
    return pid


def keeper(core: Core) -> Steps:
    """Send what is to be sent, on a connection of its own, which is opened when something needs it."""

    def ask(sql: str) -> Steps:
        return (yield Ask(sql, (), core.timeout))

    connected = False
    pause, retry_at = p.BACKOFF_FIRST, 0.0
    while not core.closed:
        try:
            now = clock()
            if not connected and now >= retry_at and core.needs_connection(now):
                told = yield Open()
                pid = yield from learn(core, ask)
                if pid == told:  # there is no pooler in between
                    yield Listen()
                core.connected(pid == told)
                connected = True
            question = core.plan(now) if connected else None
            if question is not None:
                try:
                    answer = yield Ask(question.sql, question.params, question.timeout)
                except DlockError as error:
                    question.failed(error)
                    if isinstance(error, Unreachable):
                        raise
                else:
                    core.alive_at, pause = clock(), p.BACKOFF_FIRST
                    question.answered(answer.rows, answer.sent_at)
                core.deliver()
            elif connected or core.needs_connection(now):
                until = core.next_at() if connected else retry_at
                yield Rest(min(max(until - clock(), 0.0), 60.0))
            else:
                yield Rest(None)
        except Exception as error:
            ours = isinstance(error, DlockError)
            log.log(logging.INFO if ours else logging.ERROR, "renewal: %s", error, exc_info=not ours)
            if isinstance(error, DlockError) and p.is_turned_away(error):
                core.alive_at = clock()
            yield Close()
            connected, retry_at = False, clock() + p.jitter(pause)
            pause = min(2 * pause, p.BACKOFF_LAST)


# Requests


class Request:
    """One statement, or several, asked until there is an answer."""

    def __init__(self, core: Core, wait: Optional[float] = 0.0):
        self.core = core
        self.began = self.alive = clock()
        self.unanswered = False  # a statement may have taken effect unheard
        self.wait_until = NEVER if wait is None else self.began + max(wait, 0.0)

    def ask(self, sql: str, *params: Any) -> Steps:
        """Ask again after no answer: the same owner gets the same grant.  The server may be silent
        for the timeout; one that turns us away is not silent, as long as the wait lasts."""
        pause = p.BACKOFF_FIRST
        while True:
            try:
                answer = yield Ask(sql, params, self.core.timeout)
                self.alive = clock()
                return answer
            except Unreachable as error:
                now, self.unanswered = clock(), True
                if p.is_turned_away(error) and now < self.wait_until:
                    self.alive = now
                if now + pause >= self.alive + self.core.timeout:
                    raise
                yield Pause(p.jitter(pause))
                pause = min(2 * pause, p.BACKOFF_LAST)


class Acquire(Request):
    def __init__(self, core: Core, keys: Sequence[str], options: Options):
        super().__init__(core, options.wait)
        self.keys, self.options, self.owner = keys, options, p.new_owner()
        self.in_doubt = self.in_queue = False
        self.late_since = NEVER  # grants are over before we hear of them

    def run(self) -> Steps:
        done = False
        try:
            grant = yield from (self.one() if len(self.keys) == 1 else self.all())
            done = True
            self.core.emit(Event("granted", self.keys[0], grant.leases[0].version, clock() - self.began))
            return grant
        except Busy:
            self.core.emit(Event("busy", self.keys[0], seconds=clock() - self.began))
            raise
        finally:
            # also if the caller was interrupted
            if not done and (self.in_doubt or self.in_queue):
                for key in self.keys:
                    self.core.abandon(key, self.owner, self.in_queue, self.options.ttl)

    def busy(self) -> Busy:
        names = ", ".join(f'"{key}"' for key in self.keys)
        return Busy(f"lock {names} is held by another client")

    def granted(self, versions: Sequence[int], sent_at: float, lasts: Optional[float] = None) -> Steps:
        """It counts as ours only if we know when the lease started."""
        if clock() - sent_at > p.CONFIRM * self.options.ttl:
            for key, version in zip(self.keys, versions):
                answer = yield from self.ask(p.REFRESH, key, version, self.owner, None)
                lasts = answer.rows[0][0]
                if lasts is None:
                    self.late_since = min(self.late_since, clock())
                    if clock() >= self.late_since + self.core.timeout:
                        raise Unreachable("the server takes longer to answer than the TTL")
                    return None
                sent_at, lasts = answer.sent_at, lasts / 1000
        self.in_doubt = self.in_queue = False
        return self.core.add(self.keys, self.owner, versions, self.options, sent_at, lasts)

    def one(self) -> Steps:
        key, o, core = self.keys[0], self.options, self.core
        tickets = "tickets" in core.features and len((o.value or "").encode()) <= p.MAX_TICKET_BYTES
        missed = 0
        while True:
            # a try with a priority would not give the holder the time to yield
            if o.priority == 0 or not tickets or clock() >= self.wait_until:
                self.in_doubt = True
                answer = yield from self.ask(p.TRY, key, interval(o.ttl), self.owner, *o.terms())
                version = answer.rows[0][0]
                if version is not None:
                    grant = yield from self.granted([version], answer.sent_at)
                    if grant is not None:
                        return grant
                    continue
                self.in_doubt, self.late_since = self.unanswered, NEVER  # the holder may be our own first try
            now = clock()
            if now >= self.wait_until:
                raise self.busy()
            if not tickets:
                yield Pause(min(p.jitter(p.POLL), self.wait_until - now))
                continue
            try:
                self.in_queue = True
                ttl = max(min(o.ttl, p.CLAIM_TTL), o.at_least)
                answer = yield from self.ask(
                    p.ENQUEUE, key, interval(ttl), self.owner, *o.terms(),
                    interval(self.wait_until if self.wait_until == NEVER else self.wait_until - now))
            except DlockError as error:
                if error.sqlstate != "53400" or clock() >= self.wait_until:
                    self.in_queue = isinstance(error, Unreachable)
                    raise
                self.in_queue = False  # there is no room for a ticket now
                yield Pause(min(p.POLL, self.wait_until - clock()))
                continue
            result = yield from self.wait(answer.rows[0][0])
            if isinstance(result, Grant):
                return result
            if result == "missed":
                missed += 1
                if missed > 1:
                    raise Deadlock(f'deadlock detected while waiting for lock "{key}"', "40P01")

    def wait(self, ticket: int) -> Steps:
        """A grant; "again" if it is unknown or was lost; "missed" if a try shall say why."""
        core, key, o = self.core, self.keys[0], self.options
        wait = Wait(ticket, core.new_event())
        with core.mutex:
            core.waits[ticket] = wait
            if ticket in core.early:
                wait.event.set()
        core.wake_keeper()
        asked = clock()
        try:
            while True:
                silent_at = max(asked, core.alive_at) + core.timeout
                yield Await(wait.event, max(min(self.wait_until, silent_at) - clock(), 0.05))
                core.check_usable()
                was_heard = wait.event.is_set()
                wait.event.clear()
                if not was_heard and clock() < self.wait_until:
                    if clock() >= max(asked, core.alive_at) + core.timeout:
                        raise Unreachable(f"no answer from a server in {core.timeout} s")
                    continue
                answer = yield from self.ask(p.CLAIM, key, ticket, self.owner, interval(o.ttl))
                asked = clock()
                state, version, lasts = answer.rows[0]
                if state == "granted":
                    if lasts is not None:
                        grant = yield from self.granted([version], answer.sent_at, lasts / 1000)
                        if grant is not None:
                            return grant
                    self.in_queue = False
                    return "again"
                if state is None:
                    return "again"  # the server was restarted, or it is another one
                if state == "missed":
                    self.in_queue = False
                    return self.missed(wait)
                if asked >= self.wait_until + p.OVERDUE:
                    answer = yield from self.ask(p.DEQUEUE, ticket)
                    if answer.rows[0][0]:
                        self.in_queue = False
                        raise self.busy()
                elif was_heard:
                    yield Pause(p.POLL)  # a false event is not acted upon for a while
        finally:
            with core.mutex:
                core.waits.pop(ticket, None)

    def missed(self, wait: Wait) -> str:
        """The server says that the wait is over.  The event says why, but need not have come."""
        if wait.missed is not None:
            raise wait.missed
        late = clock() >= self.wait_until
        if self.options.priority > 0 and not wait.said_missed:
            raise Refused(f'the holder of lock "{self.keys[0]}" did not yield', "55P03")
        if wait.said_missed or late:
            raise self.busy()
        return "missed"

    def all(self) -> Steps:
        """Several keys have no ticket: polite polling, without a place in the queue."""
        o, n = self.options, len(self.keys)
        pause = p.BACKOFF_FIRST
        while True:
            self.in_doubt = True
            answer = yield from self.ask(p.TRY_ALL, list(self.keys), interval(o.ttl), self.owner, o.value,
                                         o.priority, [o.slots] * n, [o.shared] * n)
            versions = answer.rows[0][0]
            if versions is not None:
                grant = yield from self.granted(versions, answer.sent_at)
                if grant is not None:
                    return grant
                continue
            self.in_doubt, self.late_since = self.unanswered, NEVER
            now = clock()
            if now >= self.wait_until:
                raise self.busy()
            yield Pause(min(p.jitter(pause), self.wait_until - now))
            pause = min(2 * pause, p.POLL)


def release(core: Core, grant: Grant) -> Steps:
    """Stop the renewal, then release.  A grant that is not there was lost, unless an earlier
    release got no answer."""
    was_held = grant.is_held(clock())
    core.drop(grant)
    request = Request(core)
    leases = grant.leases
    try:
        if not was_held:
            raise grant.error()
        answer = yield from request.ask(
            p.RELEASE, [x.key for x in leases], [x.version for x in leases], [x.owner for x in leases])
    except (Unreachable, LockLost):
        for lease in leases:
            core.abandon(lease.key, lease.owner, False, lease.ttl)
        raise
    for lease, (said,) in zip(leases, answer.rows):
        if said == "released" or request.unanswered:
            core.emit(Event("released", lease.key, lease.version))
        else:
            lease.state = "held"
            lease.gone(said)
    core.deliver()
    if any(lease.state == "lost" for lease in leases):
        raise grant.error()


def set_value(core: Core, lease: Lease, value: str) -> Steps:
    answer = yield from Request(core).ask(p.REFRESH, lease.key, lease.version, lease.owner, value)
    with core.mutex:
        if answer.rows[0][0] is None:
            lease.gone("not_held")
        elif lease.is_held(clock()):
            lease.renewed(answer.sent_at, answer.rows[0][0] / 1000)
    if not lease.is_held(clock()):
        raise LockLost(f'lock "{lease.key}" is lost', None)


def limit(core: Core, key: str, n: int, per: float, wait: Optional[float], priority: int) -> Steps:
    request = Request(core, wait)
    while True:
        answer = yield from request.ask(p.LIMIT, key, n, interval(per), priority)
        left = float(answer.rows[0][0]) / 1000
        now = clock()
        if left <= 0 or now + left > request.wait_until:
            return left
        yield Pause(left)


def look(core: Core, key: str) -> Steps:
    answer = yield from Request(core).ask(p.GET, key)
    for version, owner, value, state in answer.rows:
        if state in ("held", "preempting", "lapsed"):
            return Leader(version, owner, value)
    return None


class LockBase:
    """What the Lock of threads and that of tasks have in common."""

    def __init__(self, core: Core, keys: tuple[str, ...], options: Options):
        self._core, self.keys, self._options = core, keys, options
        self._grant: Optional[Grant] = None
        self._finalizer: Optional[weakref.finalize[Any, Any]] = None

    @property
    def key(self) -> str:
        return self.keys[0]

    @property
    def versions(self) -> dict[str, int]:
        """The fencing tokens, by key."""
        return {lease.key: lease.version for lease in self._held_grant().leases}

    @property
    def version(self) -> int:
        """The fencing token of the (first) key."""
        return self._held_grant().leases[0].version

    @property
    def fence_setting(self) -> str:
        """What to set `dlock.fence` to in a connection of your own: what it writes is committed
        only while the (first) key is held, in autocommit, too."""
        lease = self._held_grant().leases[0]
        return f"{lease.version}:{lease.key}"

    @property
    def time_left(self) -> float:
        """Seconds until the lock must be released if `asked` is set, else until its deadline."""
        grant = self._grant
        if grant is None:
            return 0.0
        until = min(lease.deadline for lease in grant.leases)
        return max(min(until, grant.asked_until) - clock(), 0.0)

    @property
    def asked_why(self) -> str:
        return self._grant.asked_why if self._grant is not None else ""

    def _held_grant(self) -> Grant:
        if self._grant is None:
            raise RuntimeError("the lock is not acquired")
        return self._grant

    def locked(self) -> bool:
        """Do we hold it?  A lost lock never comes back."""
        grant = self._grant
        return grant is not None and os.getpid() == self._core.pid and grant.is_held(clock())

    def check(self) -> None:
        """Raise LockLost unless it is ours."""
        if not self.locked():
            raise self._held_grant().error()


@dataclass(frozen=True)
class Leader:
    """Who holds a key.  Owner and value of another role's lock may be hidden (None)."""

    version: int
    owner: Optional[str]
    value: Optional[str]


L = TypeVar("L", bound=LockBase)


class LocksBase(Generic[L]):
    """What the Locks of threads and those of tasks have in common."""

    _core: Core

    def _make(self, keys: tuple[str, ...], options: Options) -> L:
        raise NotImplementedError

    def lock(self, key: Union[str, Sequence[str]], *, ttl: Optional[float] = None,
             wait: Optional[float] = None, value: Optional[str] = None, shared: bool = False,
             slots: int = 1, priority: int = 0, cleanup: float = 0.0, force: bool = False,
             at_least: float = 0.0, delay: float = 0.0, lazy: bool = False,
             max_hold: Optional[float] = None) -> L:
        """A lock, to be acquired by "with" or acquire().  Times are in seconds; `wait` None waits
        without limit.  Several keys are taken together or not at all."""
        return self._make(make_keys(key), make_options(
            ttl, at_least, wait=wait, value=value, shared=shared, slots=slots, priority=priority,
            cleanup=cleanup, force=force, delay=delay, lazy=lazy, max_hold=max_hold))

    def elect(self, key: str, *, value: Optional[str] = None, ttl: float = 10.0, cleanup: float = 0.0) -> L:
        """A candidate: it leads while it holds the lock, and its version is its term."""
        return self.lock(key, ttl=ttl, value=value, cleanup=cleanup)
