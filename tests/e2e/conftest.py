"""One real farm for all end-to-end tests: every part a process of its own, in a folder of the test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from pockfarm.client import Client
from pockfarm.own_farm import up
from pockfarm.own_farm.parts import EMULATED_CLASS
from pockfarm.own_farm.state import StateFolder
from pockfarm.values import Device


@dataclass(frozen=True)
class LiveFarm:
    """The farm, a client of it, and its two devices."""

    state: StateFolder
    client: Client
    host: Device
    emulated: Device

    def part_pid(self, name: str) -> int:
        status = self.state.status()
        assert status is not None
        pid = status.parts[name].pid
        assert pid is not None
        return pid


@pytest.fixture(scope="package")
def live(loopback: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFarm]:
    state = StateFolder(tmp_path_factory.mktemp("farm") / "state")
    settings = {
        "POCKFARM_COMPILE_LEASE_S": "6",
        "POCKFARM_SWEEP_S": "0.5",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        up.up(state, say=print, port=0)
        with Client(state=state) as client:
            host = next(one for one in client.devices() if one.measurement_class == "host")
            board = next(one for one in client.devices() if one.device_class == EMULATED_CLASS)
            yield LiveFarm(state, client, host, board)
    finally:
        up.down(state, say=print)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
