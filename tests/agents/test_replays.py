"""What was signed once is taken once, and a board's owner may allow less than its farm."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from device_agents import wire as p
from device_agents.errors import EnrolmentError
from device_agents.farm.state import StateFolder, seal
from device_agents.job.own_limits import lower, parse
from tests.agents.conftest import AgentProcess
from tests.agents.fake_farm import FakeFarm
from tests.agents.fake_step import bundle

Start = Callable[..., AgentProcess]


def test_an_assignment_is_taken_once_also_by_a_later_start(farm: FakeFarm, start_agent: Start) -> None:
    work = farm.assign(bundle(), steps=2)
    envelope = seal(farm.key, farm.key_id, p.ASSIGNMENT_TYPE, p.dumps(work))
    start_agent("--once").wait()
    assert farm.report().outcome.state == "succeeded"
    farm.give(work, envelope)
    downloads = [path for method, path in farm.requests if method == "GET"]
    start_agent("--once").wait()
    outcome = farm.refusal()
    assert (outcome.cause, outcome.code) == ("policy", "envelope.replayed")
    assert [path for method, path in farm.requests if method == "GET"] == downloads


def test_what_was_taken_is_remembered_until_it_has_expired(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "agent")
    assert state.use("a", expires_at=100.0, now=1.0)
    assert not state.use("a", expires_at=100.0, now=2.0)
    assert not StateFolder(tmp_path / "agent").use("a", expires_at=900.0, now=99.0)
    assert state.use("b", expires_at=300.0, now=101.0)
    assert json.loads((tmp_path / "agent/used.json").read_text()) == {"until": {"b": 300.0}}, (
        "it does not grow for ever"
    )
    assert (tmp_path / "agent/used.json").stat().st_mode & 0o777 == 0o600


def test_a_memory_that_is_damaged_is_no_empty_one(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "agent")
    state.use("a", expires_at=100.0, now=1.0)
    (tmp_path / "agent/used.json").write_text('{"until": {"a": ')
    with pytest.raises(EnrolmentError, match=r"used\.json is damaged"):
        state.use("a", expires_at=100.0, now=1.0)


def test_what_is_remembered_is_no_lease_token(farm: FakeFarm, start_agent: Start, tmp_path: Path) -> None:
    farm.assign(bundle(), steps=2, lease="a-lease-token-of-its-own")
    agent = start_agent("--once")
    agent.wait()
    [used] = tmp_path.rglob("used.json")
    assert "a-lease-token" not in used.read_text()
    [until] = json.loads(used.read_text())["until"].values()
    assert time.time() < until < time.time() + 900


@pytest.mark.parametrize("text", ["run_s", "run_s=", "run_s=x", "run_s=0", "run_s=-1", "run_s=nan", "run_s=inf", "x=1"])
def test_an_owners_limit_names_what_there_is(text: str) -> None:
    with pytest.raises(
        EnrolmentError, match=re.escape(f"--limit {text}: expected NAME=NUMBER above 0, NAME one of transfer_s, ")
    ):
        parse([text])


def test_the_lower_limit_holds() -> None:
    signed = p.Limits(900.0, 1800.0, 1 << 32, 1 << 32)
    own = parse(["run_s=60", "run_s=90", "transfer_s=2000", "memory_bytes=1e9"])
    held, bound = lower(signed, own)
    assert held == p.Limits(900.0, 60.0, 1_000_000_000, 1 << 32)
    assert bound == {"run_s": 60.0, "memory_bytes": 1e9}
    assert all(isinstance(getattr(held, one.name), type(one.default)) for one in dataclasses.fields(held))
    assert lower(signed, {}) == (signed, {})


def test_the_report_tells_which_limits_were_the_owners(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(bundle(), steps=2)
    start_agent("--once", "--limit", "run_s=120", "--limit", "transfer_s=9999").wait()
    report = farm.report()
    assert (report.outcome.state, report.own_limits) == ("succeeded", {"run_s": 120.0})


def test_an_owners_limit_ends_a_job_and_is_named(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(bundle(), steps=2)
    start_agent("--once", "--limit", "disk_bytes=1000").wait()
    outcome = farm.report().outcome
    assert (outcome.state, outcome.cause, outcome.code) == ("failed", "limits", "limits.disk")
    assert "this board's own limits: disk_bytes=1000" in outcome.hint
