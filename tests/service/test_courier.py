"""The courier as a process of its own: it sends what API processes leave to it, and says that it lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pockfarm.webhooks import verify_webhook
from service.features.webhooks import endpoints
from tests.service.farms import TestFarm, open_test_farm
from tests.service.receiver import Receiver, receiving
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.usefixtures("loopback")
LOOPBACK = "127.0.0.0/8"
SETTINGS: dict[str, Any] = {"webhook_networks": LOOPBACK, "send_webhooks": False, "poll_s": 0.05}


@pytest.fixture
def apart(database_url: str, tmp_path: Path) -> Iterator[tuple[TestFarm, Receiver]]:
    """A farm whose API process leaves sending to a courier, on each database, and a receiver."""
    with open_test_farm(tmp_path / "state", database_url, **SETTINGS) as farm, receiving() as receiver:
        yield farm, receiver


@contextmanager
def courier(farm: TestFarm, alive: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process, with what its container is given: neither a state folder nor a storage."""
    variables = {
        "POCKFARM_DATABASE_URL": farm.farm.settings.database,
        "POCKFARM_WEBHOOK_NETWORKS": LOOPBACK,
        "POCKFARM_ALIVE_FILE": str(alive),
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POCKFARM_")} | variables
    with subprocess.Popen([sys.executable, "-m", "service.features.webhooks"], env=environment) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def add(farm: TestFarm, receiver: Receiver) -> dict[str, Any]:
    return dict(farm.http.post("/webhooks", json={"url": receiver.url}).raise_for_status().json())


def test_it_tells_what_the_api_process_leaves_to_it(apart: tuple[TestFarm, Receiver], tmp_path: Path) -> None:
    farm, receiver = apart
    made = add(farm, receiver)
    run = farm.run(bundle=farm.bundle())
    farm.http.post(f"/runs/{run['id']}/cancel")
    assert receiver.received == [], "the API process has no way out"
    with courier(farm, tmp_path / "alive") as process:
        told = [verify_webhook(made["secret"], *one) for one in receiver.wait_for(2)]
        assert {one["type"] for one in told} == {"job.ended", "run.ended"}
        assert farm.http.post(f"/webhooks/{made['id']}/test").json()["state"] == "delivered"
        receiver.answers = [500]
        for _ in range(2):  # the second in spite of the rest that the first brings about
            tested = farm.http.post(f"/webhooks/{made['id']}/test").json()
            assert (tested["state"], tested["error"]) == ("failed", "answered 500")
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 0


def test_it_gives_signs_of_life(apart: tuple[TestFarm, Receiver], tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    with courier(apart[0], alive):
        until(alive.exists)
        first_ns = alive.stat().st_mtime_ns
        until(lambda: alive.stat().st_mtime_ns != first_ns)


def test_a_test_that_nobody_sends_is_said(apart: tuple[TestFarm, Receiver], monkeypatch: pytest.MonkeyPatch) -> None:
    farm, receiver = apart
    monkeypatch.setattr(endpoints, "TEST_WITHIN_S", 0.2)
    made = add(farm, receiver)
    answer = farm.http.post(f"/webhooks/{made['id']}/test")
    assert (answer.status_code, answer.json()["code"]) == (409, "webhook.under-way")
    assert "courier" in answer.json()["detail"]
    assert receiver.received == []
    [waiting] = farm.http.get(f"/webhooks/{made['id']}/deliveries").json()["items"]
    assert waiting["state"] == "waiting"
