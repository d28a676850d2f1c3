"""The tests use a database that has dlock, named by the variables of libpq (PGHOST, PGPORT, PGDATABASE,
PGUSER), as a superuser.  scripts/test gives them one.  What every client does is tested by
test/conformance; these tests are about what only this package has."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any, Callable, Optional

import psycopg
import pytest


def eventually(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


class Server:
    def __init__(self) -> None:
        self.host, self.port = os.environ["PGHOST"], int(os.environ["PGPORT"])
        self.user, self.dbname = os.environ["PGUSER"], os.environ["PGDATABASE"]

    def dsn(self, dbname: Optional[str] = None) -> str:
        return f"host={self.host} port={self.port} user={self.user} dbname={dbname or self.dbname}"

    def sql(self, query: str, *params: Any) -> Any:
        with psycopg.connect(self.dsn(), autocommit=True) as conn:
            cursor = conn.execute(query, params)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None


    def until_renewed(self, key: str) -> None:
        eventually(lambda: self.sql("SELECT refreshed_at > acquired_at FROM dlock_get(%s)", key))


@pytest.fixture(scope="session")
def server() -> Server:
    server = Server()
    server.sql("CREATE TABLE journal (version bigint, line text)")
    return server


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name}:{time.monotonic_ns()}"


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test, no connection of a closed Locks is left."""
    yield
    if "server" in request.fixturenames:
        server: Server = request.getfixturevalue("server")
        query = ("SELECT string_agg(concat_ws(' ', pid, backend_start, state, query), '; ') FROM pg_stat_activity "
                 "WHERE application_name = 'dlock' AND datname = current_database()")
        with contextlib.suppress(AssertionError):
            eventually(lambda: not server.sql(query), 20)
            return
        pytest.fail(f"connections are left: {server.sql(query)}")
