"""A farm on a socket, and agents as real processes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.agents.fake_farm import FakeFarm
from tests.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[2]
MAIN = "import sys; from device_agents.agent import main; sys.exit(main())"

SOON = """
from device_agents.farm import events, retry
retry.UPLOAD, retry.LEASE = retry.Policy(5, 0.05, 0.2), retry.Policy(None, 0.1, 0.5)
events.CLOSE_TIMEOUT_S = 1.0
"""
"""What is tried again is tried soon, and events are not waited for."""


class AgentProcess:
    """`python -m device_agents.agent`, with its standard error kept."""

    def __init__(
        self,
        url: str,
        token: str,
        state: Path,
        *options: str,
        python: str = sys.executable,
        cwd: Path = ROOT,
        environment: Mapping[str, str] | None = None,
        before: str = "",
    ) -> None:
        """`before`: Python code that the process runs first."""
        self.state = state
        self.log = state.with_suffix(".log")
        program = ["-c", f"{before}\n{MAIN}"] if before else ["-m", "device_agents.agent"]
        command = [python, *program, "--server", url, "--state", str(state)]
        # The binaries of these tests are scripts, which need the whole system (tests/thorough/hostile has others).
        command += ["--run-as", str(os.geteuid()), "--isolation", "1", "--heartbeat-interval", "0.2"]
        command += ["--long-poll", "2", *options]
        given = {**(os.environ if environment is None else environment), "POCKFARM_ENROL_TOKEN": token}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, cwd=cwd, env=given, stderr=log, stdin=subprocess.DEVNULL)

    def wait(self) -> int:
        return self.process.wait(timeout=HANG_S)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=HANG_S)
            finally:
                self.process.kill()
                self.process.wait()


@pytest.fixture(autouse=True)
def always_scripts(scripts_for_binaries: None) -> None:
    """The binaries of these tests are scripts."""


@pytest.fixture
def farm(loopback: None) -> Iterator[FakeFarm]:
    with FakeFarm() as running:
        yield running


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The file that a step of behaviour "held" waits for."""
    return tmp_path / "gate"


@pytest.fixture
def start_agent(farm: FakeFarm, tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    agents: list[AgentProcess] = []

    def start(*options: str, **how: Any) -> AgentProcess:
        agents.append(AgentProcess(farm.url, farm.token, tmp_path / "state", *options, **how))
        return agents[-1]

    yield start
    for agent in agents:
        agent.end()


def npz(samples: int = 8, *, value: float = 1.0, name: str = "x", label: int = 1) -> bytes:
    """A data set of `samples` x 2 numbers, with labels that are all `label`."""
    stream = io.BytesIO()
    arrays: dict[str, Any] = {
        name: numpy.full((samples, 2), value, numpy.float32),
        "y": numpy.full(samples, label, numpy.int64),
    }
    numpy.savez_compressed(stream, **arrays)
    return stream.getvalue()
