"""The driver of the conformance suite for dlock.Locks; see test/conformance/README.md."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
import traceback
import weakref
from typing import Any, Callable

import psycopg_pool

import dlock

Command = dict[str, Any]

RESULTS = {
    dlock.Busy: "busy", dlock.LockLost: "lost", dlock.Refused: "refused", dlock.Deadlock: "deadlock",
    dlock.Denied: "denied", dlock.InvalidArgument: "invalid", dlock.NotReady: "not_ready",
    dlock.Unreachable: "unreachable",
}
SECONDS = ("ttl", "cleanup", "at_least", "delay", "max_hold")
OTHERS = ("shared", "slots", "priority", "force", "value")


def say(**what: Any) -> None:
    os.write(1, (json.dumps(what) + "\n").encode())


def result_of(error: BaseException) -> dict[str, Any]:
    name = next((name for kind, name in RESULTS.items() if isinstance(error, kind)), "error")
    return {"result": name, "sqlstate": getattr(error, "sqlstate", None), "message": str(error)}


def options_of(command: Command) -> dict[str, Any]:
    """The arguments of Locks.lock()."""
    options = {name: command[name] for name in OTHERS if name in command}
    options.update({name: command[name] / 1000 for name in SECONDS if name in command})
    options["wait"] = None if command["wait"] < 0 else command["wait"] / 1000
    return options


def keys_of(command: Command) -> Any:
    return command["keys"][0] if len(command["keys"]) == 1 else command["keys"]


def reporter(client: str, names: dict[int, str]) -> Callable[[dlock.Event], None]:
    """Reports events; a lock is known by the version of its first key."""

    def report(event: dlock.Event) -> None:
        if event.kind in ("lost", "asked") and event.version in names:
            say(event=event.kind, client=client, lock=names[event.version], reason=event.reason,
                left=round(event.seconds * 1000), at=round(time.time() * 1000))

    return report


def conninfo_of(command: Command) -> str:
    return " ".join(f"{name}={command[name]}" for name in ("host", "port", "dbname", "user"))


class Client:
    def __init__(self, command: Command):
        self.names: dict[int, str] = {}
        self.held: dict[str, dlock.Lock] = {}
        self.pool = psycopg_pool.ConnectionPool(
            conninfo_of(command), min_size=0, max_size=command["pool"], open=True,
            kwargs={"prepare_threshold": None})
        self.locks = dlock.Locks(self.pool, timeout=command["timeout"] / 1000,
                                 on_event=reporter(command["client"], self.names))


clients: dict[str, Client] = {}


def do_acquire(client: Client, command: Command) -> dict[str, Any]:
    lock = client.locks.lock(keys_of(command), **options_of(command))
    client.held.pop(command["lock"], None)
    lock._acquire(lock._options.wait)
    versions = list(lock.versions.values())
    client.names[versions[0]] = command["lock"]
    client.held[command["lock"]] = lock
    return {"result": "granted", "versions": versions}


def do_release(client: Client, command: Command) -> dict[str, Any]:
    client.held[command["lock"]].release()
    return {"result": "released"}


def do_state(client: Client, command: Command) -> dict[str, Any]:
    return {"result": "held" if client.held[command["lock"]].locked() else "not_held"}


def do_fenced(client: Client, command: Command) -> dict[str, Any]:
    with client.held[command["lock"]].fenced() as conn:
        conn.execute(command["sql"])
    return {"result": "ok"}


def do_limit(client: Client, command: Command) -> dict[str, Any]:
    left = client.locks.limit(command["key"], command["n"], command["per"] / 1000)
    return {"result": "ok", "left": round(left * 1000)}


def do_close(client: Client, command: Command) -> dict[str, Any]:
    client.locks.close()
    client.pool.close()
    return {"result": "ok"}


def do_collect(client: Client, command: Command) -> dict[str, Any]:
    if "lock" in command:
        gone: weakref.ref[Any] = weakref.ref(client.held.pop(command["lock"]))
    else:
        gone = weakref.ref(client.locks)
        client.held.clear()
        del client.locks
    while gone() is not None:
        gc.collect()
    return {"result": "ok"}


def do_fork(client: Client, command: Command) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = do_state(client, command)
        try:
            client.locks.lock("of a child", wait=0)._acquire(0)
            answer["acquire"] = "granted"
        except dlock.DlockError as error:
            answer["acquire"] = result_of(error)["result"]
        client.locks.close()
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return dict(json.loads(os.read(reading, 1000)))


def obey(command: Command) -> None:
    try:
        if command["do"] == "open":
            clients[command["client"]] = Client(command)
            answer = {"result": "ok"}
        else:
            answer = globals()["do_" + command["do"]](clients[command["client"]], command)
    except Exception as error:
        answer = result_of(error)
        if answer["result"] == "error":
            traceback.print_exc()
    say(id=command["id"], **answer)


if __name__ == "__main__":
    threading.stack_size(256 * 1024)
    for line in sys.stdin:
        threading.Thread(target=obey, args=(json.loads(line),), daemon=True).start()
    os._exit(0)
