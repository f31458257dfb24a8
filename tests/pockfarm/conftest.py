"""A real farm on a socket, for the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that one stands in, where no farm is named: not around it, and not in what other tests remember."""
    for name in ("POCKFARM_URL", "POCKFARM_API_KEY", "POCKFARM_STATE", "POCKFARM_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("POCKFARM_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path
