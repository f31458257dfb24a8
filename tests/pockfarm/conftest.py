"""A real farm on a socket, for the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agents.live_farm import LiveFarm, live_farm


@pytest.fixture(scope="module")
def running(loopback: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFarm]:
    with live_farm(tmp_path_factory.mktemp("farm"), sweep_s=1.0) as farm:
        yield farm


@pytest.fixture
def live(running: LiveFarm, monkeypatch: pytest.MonkeyPatch) -> LiveFarm:
    """The farm that commands of this test talk to, as its operator."""
    monkeypatch.setenv("POCKFARM_URL", running.url)
    monkeypatch.setenv("POCKFARM_API_KEY", running.http.headers["Authorization"].removeprefix("Bearer "))
    return running
