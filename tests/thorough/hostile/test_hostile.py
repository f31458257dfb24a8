"""Hostile binaries through the real agent: it lives, it says what happened, nothing outside is touched or left."""

from __future__ import annotations

import os
import shutil
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
from tests.sample import sample
from tests.thorough.hostile.arena import USERS, Arena, compiled, standing, verdict
from tests.thorough.hostile.behaviours import BEHAVIOURS, GROUPS, PLACES, SLOW, Behaviour
from tests.waiting import HANG_S

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
    with FakeFarm() as farm, Arena(farm, tmp_path_factory.mktemp("weak"), step, WEAKER, log_format="text") as arena:
        yield arena


def one_of_each() -> list[Behaviour]:
    """Of each group, one for each way in which it is told; all of those that look for files of others."""
    found: dict[tuple[int, object], Behaviour] = {}
    for number, group in enumerate(GROUPS):
        for behaviour in group:
            if behaviour.name not in SLOW:
                found.setdefault((number, behaviour.name if group is PLACES else behaviour.codes), behaviour)
    return list(found.values())


TOLD_IN_OTHER_WORDS = (
    "calls-as-32-bit",
    "calls-as-x32",
    "clones-into-a-namespace",
    "io-uring",
    "ip-socket",
    "kills-everybody",
    "kills-the-agent",
    "leaves-a-daemon",
    "limits-the-agent",
    "makes-a-user-namespace",
    "out-hard-link",
    "pins-the-agent",
    "takes-a-file-descriptor",
    "unix-socket",
    "writes-code",
)
KEPT = {"ignores-sigterm", "spins", *TOLD_IN_OTHER_WORDS, *(one.name for one in one_of_each())}
"""The other forbidden calls are refused by the same list. `make hostile` makes them all."""


@pytest.mark.parametrize("behaviour", sample(BEHAVIOURS, KEPT, lambda behaviour: str(behaviour.name)))
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
    return job_folder(tmp_path, step, "unix-socket")


def job_folder(tmp_path: Path, step: bytes, orders: str, agent: int = 1) -> Path:
    """With a binary that will do so, and take that process for its agent."""
    (tmp_path / "out").mkdir()
    (tmp_path / "step").write_bytes(step)
    (tmp_path / "step").chmod(0o755)
    (tmp_path / "orders").write_text(f"{orders}\nx\ny\n{agent}\nx\nx\nx\n")
    return tmp_path


WORDS = ["./step", "profile", "--weights", "orders", "--steps", "1"]


def test_with_nobody_to_hear_of_it_a_forbidden_call_is_not_made(asks_for_a_socket: Path) -> None:
    sandbox = replace(probe(most=2), users=None, uid=None, tells=True)
    hear, say = socket.socketpair()
    with hear, say:
        command = sandbox.command(WORDS, rlimits={}, say=say.fileno())
        with subprocess.Popen(
            command,
            cwd=asks_for_a_socket,
            pass_fds=[say.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as child:
            while (listener := received(hear)[1]) is None:
                pass
            assert listener.wait(HANG_S) == "socket(AF_UNIX)"
            listener.close()
            said = child.communicate(timeout=HANG_S)
    assert "refused: unix-socket: Function not implemented" in said[1]
    assert "done" in said[0]


def test_a_kernel_that_cannot_tell_ends_the_process(asks_for_a_socket: Path) -> None:
    sandbox = replace(probe(most=2), users=None, uid=None, tells=False)
    process = Process(WORDS, asks_for_a_socket, sandbox, {}, time.monotonic() + HANG_S)
    ending = run_process(process, on_event=lambda _: None, on_stderr=lambda _: None, should_stop=lambda: None)
    with pytest.raises(StepFailed, match="this kernel does not tell which"):
        check(ending, process)


@pytest.mark.parametrize(
    "orders", ["limits-the-agent", "pins-the-agent", "looks-where-the-agent-runs", "reads-the-agents-clock"]
)
def test_an_emulator_changes_no_other_process(step: bytes, tmp_path: Path, orders: str) -> None:
    """Of the same user and without powers, seen by its number: only the list of system calls is in the way."""
    sandbox = replace(probe(most=2), users=None, uid=None, syscalls="emulator", landlock=False)
    said: list[str] = []
    words = probe(most=1).command(["sleep", "600"], rlimits={})
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        before = standing(other.pid)
        process = Process(WORDS, job_folder(tmp_path, step, orders, other.pid), sandbox, {}, time.monotonic() + HANG_S)
        ending = run_process(process, on_event=lambda _: None, on_stderr=said.append, should_stop=lambda: None)
        after = standing(other.pid)
        other.kill()
    check(ending, process)
    assert after == before
    assert [line.partition(":")[0] for line in said] == ["refused"]


@pytest.fixture(scope="module")
def emulated_step() -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        yield compiled(Path(folder), "aarch64")


@pytest.mark.parametrize("most", [2, 4])
@pytest.mark.parametrize(("orders", "name"), [("dumps-core", "SIGSEGV"), ("aborts", "SIGABRT")])
def test_an_emulated_crash_is_told_as_a_crash(
    emulated_step: bytes, tmp_path: Path, orders: str, name: str, most: int
) -> None:
    runner = shutil.which("qemu-aarch64-static")
    assert runner, "install qemu-user-static"
    sandbox = replace(probe(runner=[runner], most=most), users=None, uid=None)
    folder = job_folder(tmp_path, emulated_step, orders)
    process = Process([runner, *WORDS], folder, sandbox, {}, time.monotonic() + HANG_S)
    ending = run_process(process, on_event=lambda _: None, on_stderr=lambda _: None, should_stop=lambda: None)
    with pytest.raises(StepFailed, match=f"crashed with {name}") as caught:
        check(ending, process)
    assert caught.value.code == "step.crashed"


@pytest.mark.parametrize("most", [2, 4])
def test_a_crash_is_told_by_its_signal(step: bytes, tmp_path: Path, most: int) -> None:
    """In a process space of its own too, where process 1 would be spared it."""
    sandbox = replace(probe(most=most), users=None, uid=None)
    process = Process(WORDS, job_folder(tmp_path, step, "aborts"), sandbox, {}, time.monotonic() + HANG_S)
    ending = run_process(process, on_event=lambda _: None, on_stderr=lambda _: None, should_stop=lambda: None)
    with pytest.raises(StepFailed, match="crashed with SIGABRT"):
        check(ending, process)


@pytest.mark.parametrize("behaviour", one_of_each(), ids=lambda behaviour: behaviour.name)
def test_without_root_and_namespaces(weak: Arena, behaviour: Behaviour) -> None:
    assert verdict(weak, behaviour)[1] == ""


def test_after_that_a_good_run(weak: Arena) -> None:
    assert verdict(weak, GOOD)[1] == ""
