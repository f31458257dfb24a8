"""Hostile binaries through the real agent: it lives, it says what happened, nothing outside is touched or left."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from device_agents.errors import StepFailed
from device_agents.job.forbidden import received
from device_agents.job.sandbox import probe
from device_agents.job.step import Process, check, run_process
from tests.agents.fake_farm import FakeFarm
from tests.hostile.arena import USERS, Arena, compiled, verdict
from tests.hostile.behaviours import BEHAVIOURS, SLOW, Behaviour

pytestmark = pytest.mark.xdist_group("hostile")
GOOD = Behaviour("good", ("succeeded",))
SELF = str(os.geteuid())
ALONE = ("--job-users", str(USERS)) if os.geteuid() == 0 else ("--run-as", SELF)
WEAKER = ("--run-as", SELF, "--isolation", "2")
"""As on a board without root, namespaces and cgroups: the list of system calls, Landlock, limits."""


@pytest.fixture(scope="module")
def step() -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        yield compiled(Path(folder))


@pytest.fixture(scope="module")
def strong(loopback: None, step: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with FakeFarm() as farm, Arena(farm, tmp_path_factory.mktemp("strong"), step, ALONE) as arena:
        yield arena


@pytest.fixture(scope="module")
def weak(loopback: None, step: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with FakeFarm() as farm, Arena(farm, tmp_path_factory.mktemp("weak"), step, WEAKER) as arena:
        yield arena


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.name)
def test_the_strongest_confinement_here(strong: Arena, behaviour: Behaviour) -> None:
    assert verdict(strong, behaviour)[1] == ""


def test_the_samples_of_a_job_are_there_for_it_to_read(strong: Arena) -> None:
    """Each try to change them was made, and refused."""
    behaviour = next(one for one in BEHAVIOURS if one.name == "changes-its-data")
    assert verdict(strong, behaviour)[1] == ""
    said = [event.message for event in strong.farm.events[f"lease-{strong.count:04}"].values() if event.message]
    for place, times in {"data/array0.npy": 5, "data/array1.npy": 5, "data/new": 1, "data": 1}.items():
        assert sum(f"refused: {place}:" in line for line in said) == times, said


def test_after_all_that_a_good_run(strong: Arena) -> None:
    assert verdict(strong, GOOD)[1] == ""


@pytest.fixture
def asks_for_a_socket(step: bytes, tmp_path: Path) -> Path:
    """A job's folder, with a binary that does."""
    (tmp_path / "out").mkdir()
    (tmp_path / "step").write_bytes(step)
    (tmp_path / "step").chmod(0o755)
    (tmp_path / "orders").write_text("unix-socket\nx\ny\n1\n")
    return tmp_path


WORDS = ["./step", "profile", "--weights", "orders", "--steps", "1"]


def test_with_nobody_to_hear_of_it_a_forbidden_call_is_not_made(asks_for_a_socket: Path) -> None:
    sandbox = replace(probe(most=2), users=None, uid=None, tells=True)
    hear, say = socket.socketpair()
    with hear, say:
        command = sandbox.command(WORDS, rlimits={}, say=say.fileno())
        with subprocess.Popen(command, cwd=asks_for_a_socket, pass_fds=[say.fileno()], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as child:  # fmt: skip
            while (listener := received(hear)[1]) is None:
                pass
            assert listener.wait(20) == "socket(AF_UNIX)"
            listener.close()
            said = child.communicate(timeout=20)
    assert "refused: unix-socket: Function not implemented" in said[1]
    assert "done" in said[0]


def test_a_kernel_that_cannot_tell_ends_the_process(asks_for_a_socket: Path) -> None:
    sandbox = replace(probe(most=2), users=None, uid=None, tells=False)
    process = Process(WORDS, asks_for_a_socket, sandbox, {}, time.monotonic() + 20)
    ending = run_process(process, on_event=lambda _: None, on_stderr=lambda _: None, should_stop=lambda: None)
    with pytest.raises(StepFailed, match="this kernel does not tell which"):
        check(ending, process)


QUICK = [behaviour for behaviour in BEHAVIOURS if behaviour.name not in SLOW]


@pytest.mark.parametrize("behaviour", QUICK[::4], ids=lambda behaviour: behaviour.name)
def test_without_root_and_namespaces(weak: Arena, behaviour: Behaviour) -> None:
    assert verdict(weak, behaviour)[1] == ""


def test_after_that_a_good_run(weak: Arena) -> None:
    assert verdict(weak, GOOD)[1] == ""
