"""Every kind of source for threads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import psycopg2.pool
import psycopg_pool
import pytest
import sqlalchemy
from conftest import Server
from psycopg.rows import dict_row

from dlock import Busy, LockLost, Locks
from dlock._drivers import source_of


@contextlib.contextmanager
def source(kind: str, server: Server) -> Iterator[Any]:
    if kind == "psycopg":
        with psycopg_pool.ConnectionPool(server.dsn(), min_size=1, max_size=3, open=True,
                                         kwargs={"row_factory": dict_row}) as pool:
            yield pool
    elif kind == "psycopg2":
        old = psycopg2.pool.ThreadedConnectionPool(1, 3, server.dsn())
        yield old
        old.closeall()
    elif kind.startswith("sqlalchemy"):
        engine = sqlalchemy.create_engine(f"postgresql+{kind[11:]}://{server.user}@{server.host}:{server.port}/{server.dbname}")
        yield engine
        engine.dispose()
    elif kind == "django":
        import django
        from django.conf import settings

        if not settings.configured:
            settings.configure(DATABASES={"default": {
                "ENGINE": "django.db.backends.postgresql", "HOST": server.host, "PORT": server.port,
                "USER": server.user, "NAME": server.dbname}})
            django.setup()
        from django.db import connection

        yield connection
        connection.close()
    else:
        yield server.dsn()


KINDS = ["conninfo", "psycopg", "psycopg2", "sqlalchemy+psycopg", "sqlalchemy+psycopg2", "django"]


@pytest.mark.parametrize("kind", KINDS)
def test_source(server: Server, key: str, kind: str) -> None:
    with source(kind, server) as given, Locks(given) as locks, Locks(server.dsn()) as other:
        with locks.lock(key, ttl=6, wait=5) as lock:
            with pytest.raises(Busy), other.lock(key, wait=0):
                pass
            server.until_renewed(key)
            assert lock.locked() and locks._core.listens
            with lock.fenced() as conn:
                sql = "INSERT INTO journal VALUES (1, 'driver:" + key + "')"
                if kind.startswith("sqlalchemy"):
                    conn.execute(sqlalchemy.text(sql.replace(":", "\\:")))
                else:
                    with conn.cursor() as cursor:
                        cursor.execute(sql)
        with other.lock(key, ttl=10):
            assert not locks.lock(key).acquire(timeout=0.5)
        assert server.sql("SELECT count(*) FROM journal WHERE line = %s", "driver:" + key) == 1
        with pytest.raises(LockLost), locks.lock(key, ttl=60) as lock:
            server.sql("SELECT dlock_force_release(%s, 'test')", key)
            with lock.fenced():
                raise AssertionError("not reached")


class Refused(Exception):
    pass


@pytest.mark.parametrize("dsn, given, seconds", [("host=x", {}, 5), ("host=x connect_timeout=7", {}, None),
                                                 ("host=x", {"connect_timeout": 9}, 9)])
def test_the_keeper_does_not_connect_for_ever(dsn: str, given: dict[str, Any], seconds: Any,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """The pools of the user, whose kwargs may have no limit; the conninfo may."""
    seen: list[dict[str, Any]] = []

    def connect(*args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs)
        raise Refused

    monkeypatch.setattr(psycopg.Connection, "connect", connect)
    monkeypatch.setattr(psycopg2, "connect", connect)
    pool = psycopg_pool.ConnectionPool(dsn, min_size=0, max_size=1, open=False, kwargs=given)
    for each in (pool, psycopg2.pool.ThreadedConnectionPool(0, 1, dsn, **given)):
        with pytest.raises(Refused):
            source_of(each, 10.0).open()
    assert [kwargs.get("connect_timeout") for kwargs in seen] == [seconds, seconds]
