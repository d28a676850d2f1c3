"""The driver of the conformance suite for dlock.aio.Locks, on asyncpg; see test/conformance/README.md."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
import traceback
import weakref
from typing import Any

import asyncpg
from python_driver import Command, keys_of, options_of, reporter, result_of, say

import dlock
from dlock import aio


class Client:
    def __init__(self, command: Command):
        self.names: dict[int, str] = {}
        self.held: dict[str, aio.Lock] = {}
        self.pool = asyncpg.create_pool(
            host=command["host"], port=command["port"], database=command["dbname"], user=command["user"],
            min_size=0, max_size=command["pool"], statement_cache_size=0)
        self.locks = aio.Locks(self.pool, timeout=command["timeout"] / 1000,
                               on_event=reporter(command["client"], self.names))


clients: dict[str, Client] = {}


async def do_acquire(client: Client, command: Command) -> dict[str, Any]:
    lock = client.locks.lock(keys_of(command), **options_of(command))
    client.held.pop(command["lock"], None)
    await lock._acquire(lock._options.wait)
    versions = list(lock.versions.values())
    client.names[versions[0]] = command["lock"]
    client.held[command["lock"]] = lock
    return {"result": "granted", "versions": versions}


async def do_release(client: Client, command: Command) -> dict[str, Any]:
    await client.held[command["lock"]].release()
    return {"result": "released"}


async def do_state(client: Client, command: Command) -> dict[str, Any]:
    return {"result": "held" if client.held[command["lock"]].locked() else "not_held"}


async def do_fenced(client: Client, command: Command) -> dict[str, Any]:
    async with client.held[command["lock"]].fenced() as conn:
        await conn.execute(command["sql"])
    return {"result": "ok"}


async def do_limit(client: Client, command: Command) -> dict[str, Any]:
    left = await client.locks.limit(command["key"], command["n"], command["per"] / 1000)
    return {"result": "ok", "left": round(left * 1000)}


async def do_close(client: Client, command: Command) -> dict[str, Any]:
    await client.locks.close()
    await client.pool.close()
    return {"result": "ok"}


async def do_collect(client: Client, command: Command) -> dict[str, Any]:
    if "lock" in command:
        gone: weakref.ref[Any] = weakref.ref(client.held.pop(command["lock"]))
    else:
        gone = weakref.ref(client.locks)
        client.held.clear()
        del client.locks
    while gone() is not None:
        gc.collect()
        await asyncio.sleep(0)
    return {"result": "ok"}


async def do_fork(client: Client, command: Command) -> dict[str, Any]:
    """A child cannot continue with the event loop of its parent, so it has one of its own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = {"result": "held" if client.held[command["lock"]].locked() else "not_held"}

        async def attempt() -> None:
            try:
                await client.locks.lock("of a child", wait=0)._acquire(0)
                answer["acquire"] = "granted"
            except dlock.DlockError as error:
                answer["acquire"] = result_of(error)["result"]
            await client.locks.close()

        def run() -> None:
            asyncio.run(attempt())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return dict(json.loads(os.read(reading, 1000)))


async def obey(command: Command) -> None:
    try:
        if command["do"] == "open":
            clients[command["client"]] = client = Client(command)
            await client.pool
            answer: dict[str, Any] = {"result": "ok"}
        else:
            answer = await globals()["do_" + command["do"]](clients[command["client"]], command)
    except Exception as error:
        answer = result_of(error)
        if answer["result"] == "error":
            traceback.print_exc()
    say(id=command["id"], **answer)


async def main() -> None:
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    def start(line: str) -> None:
        task = loop.create_task(obey(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(start, line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
