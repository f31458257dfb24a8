"""What a job cannot do, tried by real processes; what each end of a process means."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from device_agents.errors import AttemptError, Stopped
from device_agents.job import cgroup
from device_agents.job.sandbox import NOBODY, Sandbox, job_rlimits, probe
from device_agents.job.step import Ending, Process, check, run_process

LIMITS = job_rlimits(memory_bytes=1 << 28, disk_bytes=1 << 20, cpu_s=60, emulated=False)
HERE = probe(hide=None, uid=None, with_cgroup=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "state" / "scratch" / "job"
    path.mkdir(parents=True)
    (tmp_path / "state" / "device-key").write_text("secret")
    return path


def shell(
    folder: Path, script: str, *, sandbox: Sandbox = HERE, limits: dict[str, int] | None = None,
    stop_after_s: float = 1e9, deadline_s: float = 60.0, grace_s: float = 2.0,
) -> tuple[Ending, list[str], Process]:  # fmt: skip
    """Run a shell script as the binary; its stderr lines are its words."""
    words: list[str] = []
    begin_s = time.monotonic()
    process = Process(["/bin/sh", "-c", script], folder, sandbox, limits or LIMITS, begin_s + deadline_s, grace_s)

    def stop() -> Stopped | None:
        late = time.monotonic() - begin_s > stop_after_s
        return Stopped("run.cancelled", "enough", cause="user", state="cancelled") if late else None

    ending = run_process(process, on_event=lambda _: None, on_stderr=words.append, should_stop=stop)
    return ending, words, process


def code_of(ending: Ending, process: Process) -> tuple[str, str]:
    with pytest.raises(AttemptError) as caught:
        check(ending, process)
    return caught.value.cause, caught.value.code


DONE = """echo '{"event":"done"}'"""


def test_a_good_end(folder: Path) -> None:
    ending, _, process = shell(folder, DONE)
    check(ending, process)
    assert ending.launched_s is not None
    assert ending.launched_s <= time.monotonic()


@pytest.mark.parametrize(
    ("script", "cause", "code"),
    [
        ("true", "compiler", "step.incomplete"),
        ("exit 5", "compiler", "step.exit"),
        ("exit 4", "limits", "limits.step"),
        ("exit 3", "user", "step.input"),
        ("echo nonsense; sleep 20", "compiler", "step.output"),
        ("echo '[]'; sleep 20", "compiler", "step.output"),
        (f"""echo '{json.dumps({"event": "error", "cause": "data", "code": "data.shape", "message": "m"})}'; exit 3""",
         "user", "data.shape"),
        (f"""echo '{json.dumps({"event": "error", "cause": "internal", "code": "x.y", "message": "m"})}'; exit 5""",
         "compiler", "x.y"),
        ("dd if=/dev/zero of=big bs=65536 count=64 2>/dev/null || exit 4", "limits", "limits.step"),
    ],
)  # fmt: skip
def test_each_end_is_typed(folder: Path, script: str, cause: str, code: str) -> None:
    ending, _, process = shell(folder, script)
    assert code_of(ending, process) == (cause, code)


@pytest.mark.parametrize(
    ("name", "cause", "code"),
    [
        ("SEGV", "compiler", "step.crashed"),
        ("KILL", "device", "step.killed"),
        ("XCPU", "limits", "limits.cpu_time"),
    ],
)
def test_signals(folder: Path, name: str, cause: str, code: str) -> None:
    ending, _, process = shell(folder, f"sh -c 'exit 0'; kill -{name} $$", sandbox=Sandbox(1))
    assert code_of(ending, process) == (cause, code)


def test_missing_binary(folder: Path) -> None:
    process = Process(["./nothing"], folder, HERE, LIMITS, time.monotonic() + 20)
    ending = run_process(process, on_event=lambda _: None, on_stderr=lambda _: None, should_stop=lambda: None)
    assert code_of(ending, process) == ("device", "launch.exec")


def test_stop_is_sigterm_first(folder: Path) -> None:
    script = """trap 'echo stopped >&2; exit 0' TERM; while true; do sleep 0.05; done"""
    ending, words, process = shell(folder, script, stop_after_s=0.5)
    assert words[-1] == "stopped"
    assert code_of(ending, process) == ("user", "run.cancelled")


def test_then_sigkill_of_the_whole_group(folder: Path) -> None:
    script = "trap '' TERM; (while true; do date > alive; sleep 0.05; done) & while true; do sleep 0.05; done"
    begin_s = time.monotonic()
    shell(folder, script, stop_after_s=0.5, grace_s=1.0)
    assert time.monotonic() - begin_s < 20
    time.sleep(0.3)
    before = (folder / "alive").stat().st_mtime_ns
    time.sleep(0.4)
    assert (folder / "alive").stat().st_mtime_ns == before


def test_deadline(folder: Path) -> None:
    ending, _, process = shell(folder, "sleep 60", deadline_s=0.5)
    assert code_of(ending, process) == ("limits", "limits.time")


def test_memory_limit(folder: Path) -> None:
    limits = {**LIMITS, "RLIMIT_AS": 200 << 20}
    script = f"dd if=/dev/zero of=/dev/null bs=400M count=1 && {DONE}"
    ending, words, _ = shell(folder, script, limits=limits)
    assert not ending.done
    assert any("memory" in word for word in words)


def test_no_network_and_no_survivors(loopback: None, folder: Path) -> None:
    if HERE.level < 2:
        return  # a container without namespaces: the level says so, and there is nothing to hold it to
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        command = HERE.command(["python3", "-c", script], rlimits={}, group=None)
        assert subprocess.run(command, cwd=folder, capture_output=True, timeout=20, check=False).returncode != 0
    shell(folder, f"setsid sh -c 'while true; do date > alive; sleep 0.05; done' & sleep 0.5; {DONE}")
    time.sleep(0.2)
    before = (folder / "alive").stat().st_mtime_ns
    time.sleep(0.4)
    assert (folder / "alive").stat().st_mtime_ns == before


def test_read_only_world_and_hidden_state(folder: Path, tmp_path: Path) -> None:
    if HERE.level < 3:
        return  # as above
    state = tmp_path / "state"
    sandbox = Sandbox(3, None, state)
    script = (
        f"""cat {state}/device-key >&2; touch {tmp_path}/outside; echo in > inside; cat {folder}/inside >&2; {DONE}"""
    )
    ending, words, process = shell(folder, script, sandbox=sandbox)
    check(ending, process)
    assert not any("secret" in word for word in words)
    assert words[-1] == "in"
    assert (folder / "inside").read_text() == "in\n"
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("level", [1, 2, 3])
def test_jobs_of_root_run_as_nobody(folder: Path, tmp_path: Path, level: int) -> None:
    if os.geteuid() != 0 or level > HERE.level:
        return  # only root can become another user
    os.chmod(tmp_path / "state", 0o700)
    os.chown(folder, NOBODY, NOBODY)
    sandbox = Sandbox(level, NOBODY, tmp_path / "state")
    ending, words, process = shell(
        folder, f"id -u >&2; cat ../../device-key >&2; echo x > made; {DONE}", sandbox=sandbox
    )
    check(ending, process)
    assert words[0] == str(NOBODY)
    assert not any("secret" in word for word in words)
    assert (folder / "made").stat().st_uid == NOBODY


@pytest.mark.parametrize("level", range(1, max(1, HERE.level) + 1))
def test_job_dies_with_its_parent(folder: Path, level: int) -> None:
    """A parent that is killed cannot clean up; the kernel does."""
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    sandbox = Sandbox(level, NOBODY if os.geteuid() == 0 else None)
    starter = (
        "import subprocess, sys, time, json; from pathlib import Path; from device_agents.job.sandbox import Sandbox; "
        f"s = Sandbox({sandbox.level}, {sandbox.uid}); "
        "c = s.command(['/bin/sh', '-c', 'while true; do date > alive; sleep 0.05; done'], rlimits={}, group=None); "
        f"subprocess.Popen(c, cwd={str(folder)!r}, start_new_session=True, stdout=subprocess.DEVNULL); time.sleep(60)"
    )
    parent = subprocess.Popen(["python3", "-c", starter], cwd=Path(__file__).parents[2])
    try:
        deadline = time.monotonic() + 20
        while not (folder / "alive").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        parent.kill()
        parent.wait()
    time.sleep(0.5)
    before = (folder / "alive").stat().st_mtime_ns
    time.sleep(0.4)
    assert (folder / "alive").stat().st_mtime_ns == before


def test_output_flood_ends_the_process(folder: Path) -> None:
    ending, _, process = shell(folder, "head -c 3000000 /dev/zero; sleep 30")
    assert code_of(ending, process) == ("compiler", "step.output")


def test_stop_from_another_thread_is_seen(folder: Path) -> None:
    flag = threading.Event()
    threading.Timer(0.3, flag.set).start()
    process = Process(["/bin/sh", "-c", "sleep 30"], folder, HERE, LIMITS, time.monotonic() + 60, 1.0)
    ending = run_process(
        process,
        on_event=lambda _: None,
        on_stderr=lambda _: None,
        should_stop=lambda: Stopped("agent.stopped", "x", cause="infra") if flag.is_set() else None,
    )
    assert code_of(ending, process) == ("infra", "agent.stopped")


def test_cgroup_files(tmp_path: Path) -> None:
    """On a SYNTHETIC cgroup v2 folder (Documentation/admin-guide/cgroup-v2.rst): what is written and read where."""
    own = tmp_path / "system.slice" / "agent.service"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text("cpu memory pids\n")
    parent = cgroup.prepare(tmp_path, "/system.slice/agent.service")
    assert parent == own
    assert (own / "pockfarm-agent" / "cgroup.procs").read_text() == str(os.getpid())
    assert (own / "cgroup.subtree_control").read_text() == "+memory +pids"
    job = cgroup.create(own, "7", 1000)
    assert job is not None
    assert (job.path / "memory.max").read_text() == "1000"
    assert job.peak_bytes() is None
    assert not job.was_out_of_memory()
    (job.path / "memory.peak").write_text("12345\n")
    (job.path / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n")
    assert job.peak_bytes() == 12345
    assert job.was_out_of_memory()


def test_no_cgroup_where_there_is_none(tmp_path: Path) -> None:
    assert cgroup.prepare(tmp_path, "/") is None
    assert cgroup.prepare(tmp_path, "/gone") is None
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "cgroup.controllers").write_text("cpu\n")
    assert cgroup.prepare(tmp_path, "/x") is None
