"""A short campaign of requests from the API's description; `make fuzz-api` is the long one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from fastapi import FastAPI

from tests.thorough.requests.callers import Callers, Names
from tests.thorough.requests.campaign import MAX_GROWTH_BYTES, Campaign, Findings, shown
from tests.thorough.requests.play import play

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
    time.sleep(2.1)
    return ""


@pytest.fixture
def broken() -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(BROKEN, host="127.0.0.1", port=0, log_level="critical"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(20)
    HELD.clear()


def test_what_breaks_lies_is_slow_or_grows_is_found(broken: str) -> None:
    callers = Callers({"operator": {}})
    findings: Findings = Campaign(broken, os.getpid(), callers, Names(), cases=12, seed=1).run()
    assert any("GET /fails" in one and "500" in one for one in findings.wrong), shown(findings)
    assert any("GET /lies" in one for one in findings.wrong), shown(findings)
    assert findings.p99_s > 2.0
    assert findings.growth_bytes > 20 << 20
    assert not findings.is_good


@pytest.mark.parametrize(("answered", "is_good"), [(12, True), (11, False)])
def test_a_campaign_of_fewer_requests_than_were_asked_for_shows_nothing(answered: int, is_good: bool) -> None:
    assert Findings(12, seconds=[0.1] * answered).is_good is is_good
