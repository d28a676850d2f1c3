"""Adapters for the drivers of threads: psycopg, psycopg2, and what is built on them.

A Source gives connections: borrowed from the user's pool for one statement, opened for the
keeper alone, or in a transaction for the user.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Collection, Iterator
from typing import Any, Callable, Optional, Protocol

from . import _protocol as p

_PARAM = re.compile(r"\$(\d+)")
_cache: dict[str, str] = {}
# without an SQLSTATE, these mean that there was no answer
_NO_ANSWER = {"OperationalError", "InterfaceError", "InternalClientError", "PoolError", "PoolTimeout",
              "PoolClosed", "TooManyRequests", "TimeoutError", "OSError", "ConnectionDoesNotExistError"}


def named(sql: str) -> str:
    """$1 as psycopg writes it."""
    if sql not in _cache:
        _cache[sql] = _PARAM.sub(r"%(p\1)s", sql)
    return _cache[sql]


def code_of(error: BaseException) -> Optional[str]:
    """The SQLSTATE, also of an error that SQLAlchemy or Django has wrapped."""
    for e in (error, getattr(error, "orig", None), error.__cause__):
        code = getattr(e, "sqlstate", None) or getattr(e, "pgcode", None)
        if code:
            return str(code)
    return None


def translate(error: BaseException) -> Optional[p.DlockError]:
    """What an exception of any driver means; None: it is none of theirs."""
    code = code_of(error)
    error = getattr(error, "orig", None) or error
    names = {c.__name__ for c in type(error).__mro__}
    if code or names & _NO_ANSWER:
        return p.error_of(code, str(error).strip() or type(error).__name__)
    if "DataError" in names:
        return p.InvalidArgument(str(error))
    return None


@contextlib.contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except p.DlockError:
        raise
    except Exception as error:
        known = translate(error)
        if known is None:
            raise
        raise known from error


def shut_down(fd: int) -> None:
    """Shut a connection down.  Whoever waits for its answer gets an error now."""
    with socket.socket(fileno=os.dup(fd)) as twin:
        twin.shutdown(socket.SHUT_RDWR)


def defaults(conninfo: str, timeout: float, given: Collection[str] = (), **more: str) -> dict[str, Any]:
    """What libpq shall do unless the conninfo says otherwise, or "given" does: notice a dead server."""
    seconds = max(int(timeout / 2), 2)
    wanted = {"connect_timeout": seconds, "keepalives_idle": seconds, "keepalives_interval": 2,
              "keepalives_count": 3, "tcp_user_timeout": seconds * 1000, **more}
    said: dict[str, Any]
    try:
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        from psycopg2.extensions import parse_dsn

        said = parse_dsn(conninfo)
    else:
        said = conninfo_to_dict(conninfo)
    return {name: value for name, value in wanted.items() if name not in said and name not in given}


# of connections that are ours alone
OWN = {"target_session_attrs": "read-write", "application_name": "dlock"}


class Connection(Protocol):
    """Of one thread, but for abort()."""

    def pid(self) -> int: ...
    def query(self, sql: str, params: p.Params) -> list[p.Row]: ...
    def abort(self) -> None: ...
    def listen(self, hear: p.Hear) -> None: ...
    def wait(self, wake: socket.socket, seconds: Optional[float]) -> None: ...
    def close(self) -> None: ...


class Source(Protocol):
    def borrow(self) -> contextlib.AbstractContextManager[Connection]: ...
    def open(self) -> Connection: ...
    def fenced(self, sql: str, fences: list[p.Params]) -> contextlib.AbstractContextManager[Any]: ...
    def close(self) -> None: ...


class _DbConnection:
    """What psycopg and psycopg2 have in common.  A second descriptor of its socket lets another
    thread end a statement that gets no answer, whatever the driver is doing."""

    def __init__(self, raw: Any, own: bool):
        self.raw = raw
        self.hear: p.Hear = lambda payload: None
        self.fd = os.dup(raw.fileno())
        if own:
            raw.autocommit = True

    def pid(self) -> int:
        return int(self.raw.info.backend_pid)

    def cursor(self) -> Any:
        raise NotImplementedError

    def query(self, sql: str, params: p.Params) -> list[p.Row]:
        with translated(), contextlib.closing(self.cursor()) as cursor:
            cursor.execute(named(sql), {f"p{i}": value for i, value in enumerate(params, 1)})
            return list(cursor.fetchall()) if cursor.description else []

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            shut_down(self.fd)

    def listen(self, hear: p.Hear) -> None:
        self.hear = hear
        self.query(p.LISTEN, ())

    def read(self) -> None:
        raise NotImplementedError

    def wait(self, wake: socket.socket, seconds: Optional[float]) -> None:
        """Until there is something to read, somebody wakes us, or the time is over."""
        import selectors

        with translated(), selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ)
            selector.register(self.raw.fileno(), selectors.EVENT_READ, self)
            for key, _ in selector.select(seconds):
                if key.data is self:
                    self.read()

    def forget(self) -> None:
        os.close(self.fd)

    def close(self) -> None:
        self.forget()
        with contextlib.suppress(Exception):
            self.raw.close()


class _Psycopg(_DbConnection):
    def __init__(self, raw: Any, own: bool = False):
        super().__init__(raw, own)
        if own:
            raw.prepare_threshold = None  # until it is known that there is no pooler
            raw.add_notify_handler(lambda notify: self.hear(notify.payload))

    def cursor(self) -> Any:
        import psycopg
        from psycopg.rows import tuple_row

        return psycopg.Cursor(self.raw, row_factory=tuple_row)

    def read(self) -> None:
        pgconn = self.raw.pgconn
        pgconn.consume_input()
        while True:
            notify = pgconn.notifies()
            if notify is None:
                return
            self.hear(notify.extra.decode("utf-8", "replace"))


class _Psycopg2(_DbConnection):
    def cursor(self) -> Any:
        import psycopg2.extensions

        return self.raw.cursor(cursor_factory=psycopg2.extensions.cursor)

    def query(self, sql: str, params: p.Params) -> list[p.Row]:
        rows = super().query(sql, params)
        self.drain()
        return rows

    def read(self) -> None:
        self.raw.poll()
        self.drain()

    def drain(self) -> None:
        while self.raw.notifies:
            self.hear(self.raw.notifies.pop(0).payload)


def _wrap(raw: Any, own: bool = False) -> _DbConnection:
    name = type(raw).__module__ + "".join(c.__module__ for c in type(raw).__mro__)
    if "psycopg2" in name:
        return _Psycopg2(raw, own)
    if "psycopg" in name:
        return _Psycopg(raw, own)
    raise p.InvalidArgument(f"dlock needs psycopg or psycopg2, not {type(raw).__name__}")


@contextlib.contextmanager
def _autocommit(raw: Any) -> Iterator[_DbConnection]:
    """A borrowed connection whose statements commit by themselves.  A grant takes effect at
    COMMIT, so one that is in a transaction already is not for us."""
    conn = _wrap(raw)
    before = raw.autocommit
    try:
        if not before:
            raw.autocommit = True
        yield conn
    finally:
        conn.forget()
        if not before and not raw.closed:
            with contextlib.suppress(Exception):
                raw.autocommit = False


@contextlib.contextmanager
def _fence(raw: Any, sql: str, fences: list[p.Params]) -> Iterator[Any]:
    """A transaction of a raw connection that begins with the fence."""
    before = raw.autocommit
    raw.autocommit = False
    try:
        conn = _wrap(raw)
        try:
            for params in fences:
                conn.query(sql, params)
        finally:
            conn.forget()
        yield raw
        raw.commit()
    except BaseException:
        with contextlib.suppress(Exception):
            raw.rollback()
        raise
    finally:
        if not raw.closed:
            raw.autocommit = before


class _Base:
    """A Source made of two functions: one that lends a raw connection, one that opens one."""

    def __init__(self, lend: Callable[[], contextlib.AbstractContextManager[Any]], connect: Callable[[], Any]):
        self.lend, self.connect = lend, connect

    @contextlib.contextmanager
    def borrow(self) -> Iterator[Connection]:
        with translated(), self.lend() as raw, _autocommit(raw) as conn:
            yield conn

    def open(self) -> Connection:
        with translated():
            return _wrap(self.connect(), own=True)

    @contextlib.contextmanager
    def fenced(self, sql: str, fences: list[p.Params]) -> Iterator[Any]:
        with self.lend() as raw, _fence(raw, sql, fences):
            yield raw

    def close(self) -> None:
        pass


class _Conninfo(_Base):
    """Connections of our own.  A few that are not in use are kept."""

    def __init__(self, conninfo: str, timeout: float):
        super().__init__(self._lend, self._connect)
        self.conninfo, self.timeout = conninfo, timeout
        self.idle: list[Any] = []
        self.kept = 4
        self.mutex = threading.Lock()

    def _connect(self) -> Any:
        extra = defaults(self.conninfo, self.timeout, **OWN)
        try:
            import psycopg
        except ImportError:
            import psycopg2

            return psycopg2.connect(self.conninfo, **extra)
        raw = psycopg.connect(self.conninfo, prepare_threshold=None, **extra)
        raw.autocommit = True
        if raw.execute("SELECT pg_catalog.pg_backend_pid()").fetchone() == (raw.info.backend_pid,):
            raw.prepare_threshold = 5  # no pooler in between
        return raw

    @contextlib.contextmanager
    def _lend(self) -> Iterator[Any]:
        with self.mutex:
            raw = self.idle.pop() if self.idle else None
        raw = raw or self._connect()
        try:
            yield raw
        except BaseException:
            raw.close()
            raise
        with self.mutex:
            if len(self.idle) < self.kept and not raw.closed:
                self.idle.append(raw)
                return
        raw.close()

    def close(self) -> None:
        with self.mutex:
            self.kept = 0
            while self.idle:
                self.idle.pop().close()


def _psycopg_pool(pool: Any, timeout: float) -> Source:
    def connect() -> Any:
        conninfo = pool.conninfo() if callable(pool.conninfo) else pool.conninfo
        kwargs = (pool.kwargs() if callable(pool.kwargs) else pool.kwargs) or {}
        return pool.connection_class.connect(conninfo, **kwargs, **defaults(conninfo, timeout, kwargs))

    return _Base(lambda: pool.connection(timeout), connect)


def _psycopg2_pool(pool: Any, timeout: float) -> Source:
    @contextlib.contextmanager
    def lend() -> Iterator[Any]:
        raw = pool.getconn()
        failed = True
        try:
            yield raw
            failed = False
        finally:
            pool.putconn(raw, close=failed)

    def connect() -> Any:
        import psycopg2

        conninfo = next(iter(pool._args), pool._kwargs.get("dsn")) or ""
        return psycopg2.connect(*pool._args, **pool._kwargs, **defaults(conninfo, timeout, pool._kwargs))

    return _Base(lend, connect)


class _SQLAlchemy(_Base):
    def __init__(self, engine: Any):
        super().__init__(self._lend, self._connect)
        self.engine = engine
        self.pool = engine.pool.recreate()  # not the user's, who may have borrowed all of it

    @contextlib.contextmanager
    def _lend(self) -> Iterator[Any]:
        proxy = self.engine.raw_connection()
        try:
            yield proxy.driver_connection
        except BaseException:
            proxy.invalidate()
            raise
        finally:
            proxy.close()

    def _connect(self) -> Any:
        proxy = self.pool.connect()
        raw = proxy.driver_connection
        proxy.detach()
        raw.rollback()
        return raw

    @contextlib.contextmanager
    def fenced(self, sql: str, fences: list[p.Params]) -> Iterator[Any]:
        """A sqlalchemy.Connection."""
        with self.engine.begin() as connection:
            conn = _wrap(connection.connection.driver_connection)
            try:
                for params in fences:
                    conn.query(sql, params)
            finally:
                conn.forget()
            yield connection


class _Django(_Base):
    """The user's connection of this thread, in autocommit; a fence is an atomic block."""

    def __init__(self, alias: str, timeout: float):
        super().__init__(self._lend, self._connect)
        self.alias, self.timeout = alias, timeout

    def _wrapper(self) -> Any:
        from django.db import connections

        return connections[self.alias]

    @contextlib.contextmanager
    def _lend(self) -> Iterator[Any]:
        wrapper = self._wrapper()
        if wrapper.in_atomic_block:
            raise p.InvalidArgument("a lock cannot be acquired or released within an atomic block: "
                                    "it would take effect at its COMMIT only")
        wrapper.ensure_connection()
        try:
            yield wrapper.connection
        except BaseException:
            wrapper.close_if_unusable_or_obsolete()
            raise

    def _connect(self) -> Any:
        from django.db import connections

        wrapper = connections.create_connection(self.alias)
        params = wrapper.get_connection_params()
        return wrapper.get_new_connection({**defaults("", self.timeout), **params})

    @contextlib.contextmanager
    def fenced(self, sql: str, fences: list[p.Params]) -> Iterator[Any]:
        from django.db import transaction

        wrapper = self._wrapper()
        with transaction.atomic(using=self.alias):
            with wrapper.cursor() as cursor:
                for params in fences:
                    cursor.execute(named(sql), {f"p{i}": value for i, value in enumerate(params, 1)})
            yield wrapper


def source_of(given: Any, timeout: float) -> Source:
    """The adapter for what the user has."""
    names = [f"{c.__module__}.{c.__name__}" for c in type(given).__mro__]
    if isinstance(given, str):
        return _Conninfo(given, timeout)
    if any(n.startswith("psycopg_pool.") for n in names):
        return _psycopg_pool(given, timeout)
    if "psycopg2.pool.AbstractConnectionPool" in names:
        return _psycopg2_pool(given, timeout)
    if any(n.startswith("sqlalchemy.") and n.endswith(".Engine") for n in names):
        return _SQLAlchemy(given)
    if any(n.startswith("django.") for n in names):
        return _Django(str(getattr(given, "alias", "default")), timeout)
    if hasattr(given, "borrow") and hasattr(given, "open"):
        return given  # type: ignore[no-any-return]
    raise p.InvalidArgument("Locks() takes a conninfo, a psycopg or psycopg2 pool, an SQLAlchemy engine "
                            f"or a Django connection, not {type(given).__name__}")
