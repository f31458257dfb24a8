"""A short campaign of requests from the API's description; `make fuzz-api` is the long one."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from fastapi import FastAPI

from tests.thorough.requests.callers import Callers, Names
from tests.thorough.requests.campaign import MAX_GROWTH_BYTES, Campaign, Findings, shown
from tests.thorough.requests.play import play
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.usefixtures("loopback")
CASES = 300


def test_nothing_breaks_the_api_and_it_answers_as_described() -> None:
    findings = play(CASES, seed=1)
    told = shown(findings)
    print(told)
    assert not findings.wrong, told
    assert len(findings.seconds) >= CASES, told
    assert findings.growth_bytes <= MAX_GROWTH_BYTES, told
    assert len(findings.operations) > len(findings.known) / 2, told
    assert findings.statuses["422"] > 20, told


BROKEN = FastAPI()
HELD: list[bytes] = []


@BROKEN.get("/fails")
def fails(count: int) -> int:
    return 1 // 0


@BROKEN.get(
    "/lies", response_model=None, responses={200: {"content": {"application/json": {"schema": {"type": "object"}}}}}
)
def lies() -> int:
    return 7


@BROKEN.get("/keeps")
def keeps() -> str:
    HELD.append(b"x" * (24 << 20))
    return ""


@pytest.fixture
def broken() -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(BROKEN, host="127.0.0.1", port=0, log_level="critical"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(HANG_S)
    HELD.clear()


def test_what_breaks_lies_or_grows_is_found(broken: str) -> None:
    callers = Callers({"operator": {}})
    findings: Findings = Campaign(broken, os.getpid(), callers, Names(), cases=12, seed=1).run()
    assert any("GET /fails" in one and "500" in one for one in findings.wrong), shown(findings)
    assert any("GET /lies" in one for one in findings.wrong), shown(findings)
    assert findings.growth_bytes > 20 << 20
    assert not findings.is_good


@pytest.mark.parametrize(("seconds", "is_good"), [([0.1] * 12, True), ([0.1] * 11, False), ([2.1] * 12, False)])
def test_a_campaign_of_too_few_requests_or_too_slow_answers_is_not_good(seconds: list[float], is_good: bool) -> None:
    assert Findings(12, seconds=seconds).is_good is is_good
