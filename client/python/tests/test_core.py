"""Decisions of the core that need no server."""

from __future__ import annotations

import pathlib
import re
import threading
from typing import Any

import pytest

from dlock import _core, _drivers
from dlock import _protocol as p


def make(ttl: float = 30.0, **options: Any) -> tuple[_core.Core, _core.Lease]:
    core = _core.Core(10.0, None, threading.Event)
    grant = core.add(["k"], "owner", [7], _core.Options(ttl=ttl, **options), p.clock())
    return core, grant.leases[0]


def test_late_answer_revives_nothing() -> None:
    core, lease = make()
    lease.deadline = p.clock() - 0.001
    core.renewed([lease], [True], [(1, 30_000, "held", None)], p.clock())
    assert not lease.is_held(p.clock())
    core.expire(p.clock())
    assert (lease.state, lease.reason) == ("lost", "deadline")
    core.renewed([lease], [True], [(1, 30_000, "held", None)], p.clock())
    assert lease.state == "lost" and not core.leases


@pytest.mark.parametrize("timeout", [0.0, 600.0])
def test_a_ttl_shorter_than_an_answer(timeout: float) -> None:
    """The grant is over before we hear of it.  That begins again, but not for ever."""
    core = _core.Core(timeout, None, threading.Event)
    steps = _core.Acquire(core, ["k"], _core.Options(ttl=1.0)).granted([7], p.clock() - 1)
    assert next(steps).sql == p.REFRESH
    with pytest.raises(StopIteration if timeout else p.Unreachable) as end:
        steps.send(_core.Answer([(None,)], p.clock()))
    assert end.value.args == () or not timeout


def test_null_is_final() -> None:
    core, lease = make()
    core.renewed([lease], [True], [(1, None, "held", None)], p.clock())
    assert lease.state == "lost"


def test_deadline_counts_what_the_server_left() -> None:
    core, lease = make()
    sent = p.clock()
    core.renewed([lease], [True], [(1, 10_000, "held", None)], sent)
    assert lease.deadline == pytest.approx(sent + 9.0)


def test_released_is_not_renewed() -> None:
    core, lease = make()
    assert lease.grant is not None
    core.drop(lease.grant)
    assert core.plan(p.clock() + 1000) is None


def test_flood_of_events() -> None:
    core, lease = make(ttl=300)  # so that no renewal is due
    now = p.clock()
    asked = 0
    for step in range(1000):
        core.hear('{"event": "forced", "key": "k", "version": 7}')
        question = core.plan(now + step * 0.005)
        if question is not None:
            assert question.params[3] == [False]  # asked, not refreshed
            question.answered([(1, None, "held", None)], now)
            asked += 1
    assert 4 <= asked <= 4 + 5 / 0.25
    assert lease.state == "held"


def test_events_that_are_none() -> None:
    core, lease = make()
    for payload in ("", "[]", "1", "{}", '{"event": 1}', '{"event": "forced", "key": [], "version": {}}', "\0",
                    '{"event": "granted", "ticket": "x"}', '{"event": "forced", "key": "k", "version": 8}'):
        core.hear(payload)
    assert not lease.heard


@pytest.mark.parametrize("code", [None, "08006", "57P01", "57P03", "25006", "53300"])
def test_asked_again(code: str) -> None:
    assert isinstance(p.error_of(code, ""), p.Unreachable)


@pytest.mark.parametrize("code", ["55P03", "57014", "40P01", "42501", "22023", "22004", "LK001", "LK002", "XX000"])
def test_never_asked_again(code: str) -> None:
    assert not isinstance(p.error_of(code, ""), p.Unreachable)


def test_unknown_errors_are_the_programs() -> None:
    assert _drivers.translate(KeyError("x")) is None
    assert isinstance(_drivers.translate(ConnectionResetError()), p.Unreachable)


def test_statements_are_those_of_the_page() -> None:
    """docs/protocol.md has the same statements, but for those that it abbreviates."""
    page = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "protocol.md").read_text()
    block = re.findall(r"^```\n(hello .*?)^```", page, re.M | re.S)[0]
    found = {name: re.sub(r"--.*", "", text) for name, text in re.findall(
        r"^(\w+(?: \w+)?)  +(SELECT.*?)(?=^\w|\Z)", block, re.M | re.S)}

    def plain(sql: str) -> str:
        while True:
            start = sql.find("ms(")
            if start < 0:
                return re.sub(r"\s+|pg_catalog\.", "", sql)
            depth, end = 1, start + 3
            while depth:
                depth += {"(": 1, ")": -1}.get(sql[end], 0)
                end += 1
            inner = sql[start + 3 : end - 1]
            sql = (f"{sql[:start]}(EXTRACT(EPOCH FROM {inner})::float8 OPERATOR(pg_catalog.*) 1000::float8)::int8"
                   f"{sql[end:]}")

    names = {name: name.upper().replace(" ", "_") for name in found if name not in ("hello", "enqueue")}
    assert len(names) == 12
    for name, constant in names.items():
        assert plain(found[name]) == plain(getattr(p, constant)), name
