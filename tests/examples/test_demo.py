"""The demo's bad days: it ends, and says why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from examples import demo
from examples.demo import Story, follow
from pockfarm.client import Client
from pockfarm.errors import PockfarmError
from service.work.runs.attempts import WAITS
from tests.pockfarm.fake_farm import Answer, fake_farm


def test_a_run_that_its_device_gave_up_ends_the_demo_with_the_reason(loopback: None) -> None:
    assert demo.WAITS == WAITS
    run = {"id": "run_0", "state": "queued", "mode": "profile", "phase": WAITS, "steps": 2}
    place: Any = SimpleNamespace(name="host", model_name="net", plan_name="full")
    with fake_farm() as farm, Client(farm.url, api_key="key-1") as client:
        farm.on("GET", "/runs/run_0", Answer(200, run))
        farm.on("GET", "/runs/run_0/why", Answer(200, {"message": "its process was killed"}))
        farm.on("POST", "/runs/run_0/cancel", Answer(200, {**run, "state": "cancelled"}))
        with pytest.raises(PockfarmError, match=r"profile net full on host: its process was killed"):
            follow(Story(client), client.run("run_0"), place, place)
        assert ("POST", "/runs/run_0/cancel") in [(request.method, request.path) for request in farm.seen]
