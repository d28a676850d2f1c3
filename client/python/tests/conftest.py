"""A temporary server with dlock preloaded, built from this tree; nothing of the system is changed.

DLOCK_BUILD names a folder that `make` has run in (default: the tree).  Servers do not run as
root: if root runs the tests, the server belongs to user postgres.  DLOCK_TEST_SQL names a script
that runs after CREATE EXTENSION.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, Callable, Optional

import psycopg
import pytest

TREE = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("DLOCK_BUILD", TREE))
BINDIR = pathlib.Path(subprocess.check_output(
    [os.environ.get("PG_CONFIG", "pg_config"), "--bindir"], text=True).strip())


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def eventually(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def _demote() -> None:
    if os.getuid() == 0:
        user = pwd.getpwnam("postgres")
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)


class Server:
    def __init__(self, folder: pathlib.Path):
        self.folder, self.port = folder, free_port()
        self.data = folder / "data"

    def run(self, *command: object) -> None:
        subprocess.run([str(c) for c in command], check=True, preexec_fn=_demote, cwd=self.folder,
                       stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)

    def create(self) -> None:
        # a copy of PostgreSQL's folders by links, because an extension must be in one of them
        share = pathlib.Path(subprocess.check_output([BINDIR / "pg_config", "--sharedir"], text=True).strip())
        lib = pathlib.Path(subprocess.check_output([BINDIR / "pg_config", "--pkglibdir"], text=True).strip())
        version = lib.parent
        copy = self.folder / "copy"
        for target in (BINDIR, lib, share):
            shutil.copytree(target, copy / target.relative_to("/"), symlinks=True,
                            ignore=shutil.ignore_patterns("bitcode", "pgxs", "man"))
        del version
        self.bindir = copy / BINDIR.relative_to("/")
        shutil.copy(BUILD / "dlock.so", copy / lib.relative_to("/"))
        for file in (BUILD / "dlock.control", *(BUILD / "sql").glob("dlock--*.sql")):
            shutil.copy(file, copy / share.relative_to("/") / "extension")
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres")
            for file in (self.folder, *self.folder.rglob("*")):
                os.chown(file, user.pw_uid, user.pw_gid, follow_symlinks=False)
        self.run(self.bindir / "initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "--no-sync")
        (self.data / "postgresql.auto.conf").write_text(
            f"shared_preload_libraries = 'dlock'\nport = {self.port}\nlisten_addresses = '127.0.0.1'\n"
            f"unix_socket_directories = ''\nfsync = off\nmax_connections = 60\n")
        self.start()
        with self.admin("postgres") as conn:
            conn.execute("CREATE DATABASE app")
        with self.admin() as conn:
            conn.execute("CREATE EXTENSION dlock")
            if os.environ.get("DLOCK_TEST_SQL"):
                conn.execute(pathlib.Path(os.environ["DLOCK_TEST_SQL"]).read_text())
            conn.execute("CREATE TABLE journal (version bigint, line text)")
            conn.execute("GRANT ALL ON journal TO PUBLIC; CREATE ROLE app LOGIN")

    def start(self) -> None:
        self.run(self.bindir / "pg_ctl", "-D", self.data, "-l", self.folder / "log", "-w", "start")

    def stop(self, mode: str = "fast") -> None:
        self.run(self.bindir / "pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")

    def restart(self) -> None:
        self.stop()
        self.start()

    def dsn(self, port: Optional[int] = None, user: str = "postgres", dbname: str = "app") -> str:
        return f"host=127.0.0.1 port={port or self.port} user={user} dbname={dbname}"

    @contextlib.contextmanager
    def admin(self, dbname: str = "app") -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.dsn(dbname=dbname), autocommit=True) as conn:
            yield conn

    def sql(self, query: str, *params: Any) -> Any:
        with self.admin() as conn:
            cursor = conn.execute(query, params)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="dlock-py."))
    folder.chmod(0o755)
    server = Server(folder)
    try:
        server.create()
        yield server
    finally:
        with contextlib.suppress(Exception):
            server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name}:{time.monotonic_ns()}"


class Proxy:
    """TCP in front of the server.  It can keep answers back (deaf), or eat the next one."""

    def __init__(self, target: int):
        self.target = target
        self.silent = False
        self.eat: Optional[bytes] = None
        self.eaten = 0
        self.sockets: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            self.sockets += [client, server]
            state = {"match": False}
            for args in ((client, server, True), (server, client, False)):
                threading.Thread(target=self.pump, args=(*args, state), daemon=True).start()

    def pump(self, source: socket.socket, sink: socket.socket, to_server: bool, state: dict[str, bool]) -> None:
        with contextlib.suppress(OSError):
            while True:
                data = source.recv(65536)
                if not data:
                    break
                while self.silent:
                    time.sleep(0.02)
                if to_server and self.eat is not None and self.eat in data:
                    self.eat, state["match"] = None, True
                elif not to_server and state["match"]:
                    self.eaten += 1
                    break  # the answer is lost, and so is the connection
                sink.sendall(data)
        for s in (source, sink):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.silent = False
        self.listener.close()
        for s in self.sockets:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)  # a thread may be reading it
            s.close()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def bouncer(server: Server) -> Iterator[str]:
    """PgBouncer in transaction mode with five server connections."""
    program = shutil.which("pgbouncer", path=os.environ["PATH"] + ":/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    port = free_port()
    ini = server.folder / "pgbouncer.ini"
    users = server.folder / "users.txt"
    users.write_text('"postgres" ""\n')
    ini.write_text(
        f"[databases]\napp = host=127.0.0.1 port={server.port} dbname=app user=postgres\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = trust\n"
        f"auth_file = {users}\npool_mode = transaction\ndefault_pool_size = 5\nmax_client_conn = 500\n")
    process = subprocess.Popen([program, "-q", str(ini)], preexec_fn=_demote, stderr=subprocess.DEVNULL)

    def is_up() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    try:
        eventually(is_up)
        yield server.dsn(port)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test, no connection of a closed Locks is left."""
    yield
    if "server" in request.fixturenames and "bouncer" not in request.fixturenames:
        server: Server = request.getfixturevalue("server")
        query = ("SELECT string_agg(concat_ws(' ', pid, backend_start, state, query), '; ') "
                 "FROM pg_stat_activity WHERE application_name = 'dlock'")
        try:
            eventually(lambda: not server.sql(query), 5)
        except AssertionError:
            pytest.fail(f"connections are left: {server.sql(query)}")
