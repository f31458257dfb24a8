"""What a job cannot do, tried by real processes; what each end of a process means."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from device_agents.errors import AttemptError, Stopped
from device_agents.job import cgroup
from device_agents.job.matrix import described, matrix
from device_agents.job.sandbox import NOBODY, Sandbox, job_rlimits, level_of, probe
from device_agents.job.step import Ending, Process, check, run_process
from device_agents.wire import ISOLATION_PARTS, borne_out
from tests.waiting import HANG_S, HeldPipe

LIMITS = job_rlimits(memory_bytes=1 << 28, disk_bytes=1 << 20, cpu_s=60, sparse=False)
SHOWN = tuple(f"/{name}" for name in sorted(os.listdir("/")) if name not in ("proc", "sys", "dev", "tmp", "job"))
BEST = probe(with_cgroup=False, readable_paths=SHOWN)
"""As for binaries. Scripts are binaries here: they see the whole system, and no call is refused them."""
HERE = replace(BEST, syscalls="any", landlock=False)
LEAST = probe(most=1)
NEEDS_NAMESPACES = pytest.mark.skipif(not HERE.namespaces, reason="there are no namespaces in this container")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "state" / "scratch" / "job"
    (path / "out").mkdir(parents=True)
    (tmp_path / "state" / "device-key").write_text("secret")
    return path


def shell(
    folder: Path,
    script: str,
    *,
    sandbox: Sandbox = HERE,
    limits: dict[str, int] | None = None,
    stop_after: str = "never",
    deadline_s: float = 1e9,
    grace_s: float = 1e9,
) -> tuple[Ending, list[str], Process]:
    """Run a shell script as the binary; its stderr lines are its words, and it is stopped after one of them."""
    words: list[str] = []
    process = Process(
        ["/bin/sh", "-c", script], folder, sandbox, limits or LIMITS, time.monotonic() + deadline_s, grace_s
    )

    def stop() -> Stopped | None:
        enough = Stopped("run.cancelled", "enough", cause="user", state="cancelled")
        return enough if stop_after in words else None

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
        ("echo nonsense; sleep 600", "compiler", "step.output"),
        ("echo '[]'; sleep 600", "compiler", "step.output"),
        (
            f"echo '{json.dumps({'event': 'error', 'cause': 'data', 'code': 'data.shape', 'message': 'm'})}'; exit 3",
            "user",
            "data.shape",
        ),
        (
            f"""echo '{json.dumps({"event": "error", "cause": "internal", "code": "x.y", "message": "m"})}'; exit 5""",
            "compiler",
            "x.y",
        ),
        ("dd if=/dev/zero of=big bs=65536 count=64 2>/dev/null || exit 4", "limits", "limits.step"),
    ],
)
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
    ending, _, process = shell(folder, f"sh -c 'exit 0'; kill -{name} $$", sandbox=LEAST)
    assert code_of(ending, process) == (cause, code)


def test_missing_binary(folder: Path) -> None:
    process = Process(["./nothing"], folder, HERE, LIMITS, time.monotonic() + HANG_S)
    ending = run_process(process, on_event=lambda _: None, on_stderr=lambda _: None, should_stop=lambda: None)
    assert code_of(ending, process) == ("device", "launch.exec")


def test_stop_is_sigterm_first(folder: Path) -> None:
    script = """trap 'echo stopped >&2; exit 0' TERM; echo ready >&2; while true; do sleep 0.05; done"""
    ending, words, process = shell(folder, script, stop_after="ready")
    assert words[-1] == "stopped"
    assert code_of(ending, process) == ("user", "run.cancelled")


def test_then_sigkill_of_the_whole_group(folder: Path) -> None:
    held = HeldPipe(folder / "out" / "held")
    child = "exec 9> out/held; echo >&9; echo ready >&2; while :; do sleep 1 9>&-; done"
    shell(
        folder, f"trap '' TERM; ({child}) & while :; do sleep 1; done", sandbox=LEAST, stop_after="ready", grace_s=0.1
    )
    held.until_let_go()


def test_deadline(folder: Path) -> None:
    ending, _, process = shell(folder, "sleep 600", deadline_s=0.5, grace_s=0.1)
    assert code_of(ending, process) == ("limits", "limits.time")


def test_memory_limit(folder: Path) -> None:
    limits = {**LIMITS, "RLIMIT_AS": 200 << 20}
    script = f"dd if=/dev/zero of=/dev/null bs=400M count=1 && {DONE}"
    ending, words, _ = shell(folder, script, sandbox=LEAST, limits=limits)
    assert not ending.done
    assert any("memory" in word for word in words)


@NEEDS_NAMESPACES
def test_no_network_and_no_survivors(loopback: None, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        command = HERE.command(["python3", "-c", script], rlimits={})
        assert subprocess.run(command, cwd=folder, capture_output=True, timeout=HANG_S, check=False).returncode != 0
    held = HeldPipe(folder / "out" / "held")
    daemon = (
        "import os, time\nheld = open('out/held', 'w', buffering=1)\nprint(file=held)\n"
        "if os.fork() == 0:\n os.setsid()\n time.sleep(600)"
    )
    shell(folder, f'python3 -c "{daemon}"; {DONE}')
    held.until_let_go()


@NEEDS_NAMESPACES
def test_an_empty_root_with_only_the_jobs_folder(folder: Path, tmp_path: Path) -> None:
    beside = tmp_path / "state" / "device-key"
    script = f"cat {beside} >&2; touch {tmp_path}/outside; touch inside; echo in > out/inside; pwd >&2; {DONE}"
    ending, words, process = shell(folder, script)
    check(ending, process)
    assert not any("secret" in word for word in words)
    assert words[-1] == "/job"
    assert (folder / "out" / "inside").read_text() == "in\n"
    assert not (folder / "inside").exists()
    assert not (tmp_path / "outside").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_jobs_of_root_run_as_another_user(folder: Path, tmp_path: Path) -> None:
    os.chmod(tmp_path / "state", 0o700)
    os.chown(folder / "out", NOBODY, NOBODY)
    script = f"id -u >&2; cat ../../device-key >&2; echo x > out/made; {DONE}"
    for sandbox in (replace(LEAST, uid=NOBODY), replace(HERE, uid=NOBODY)):
        ending, words, process = shell(folder, script, sandbox=sandbox)
        check(ending, process)
        assert words[0] == str(NOBODY)
        assert not any("secret" in word for word in words)
        assert (folder / "out" / "made").stat().st_uid == NOBODY


@pytest.mark.parametrize("namespaces", {HERE.namespaces, False})
def test_job_dies_with_its_parent(folder: Path, namespaces: bool) -> None:
    """A parent that is killed cannot clean up; the kernel does."""
    starter = (
        "import subprocess, sys, time, json; from pathlib import Path; from device_agents.job.sandbox import Sandbox; "
        f"s = Sandbox(1, {namespaces}, shown={SHOWN!r}); "
        "c = s.command(['/bin/sh', '-c', 'exec 9> out/held; echo >&9; while :; do sleep 1 9>&-; done'], rlimits={}); "
        f"subprocess.Popen(c, cwd={str(folder)!r}, start_new_session=True, stdout=subprocess.DEVNULL); time.sleep(600)"
    )
    held = HeldPipe(folder / "out" / "held")
    parent = subprocess.Popen(["python3", "-c", starter], cwd=Path(__file__).parents[2])
    try:
        held.until_held()
    finally:
        parent.kill()
        parent.wait()
    held.until_let_go()


def test_levels_are_what_was_found() -> None:
    facts = {
        "no_new_privileges": True,
        "no_capabilities": True,
        "filter": True,
        "one_process": True,
        "own_processes": True,
        "no_network": True,
        "empty_root": True,
        "read_only": True,
        "cgroup": 1,
    }
    levels = {"cgroup": 3, "read_only": 2, "no_network": 2, "one_process": 1, "no_capabilities": 0}
    assert level_of(Sandbox(0, facts=facts)) == 4
    for missing, level in levels.items():
        assert level_of(Sandbox(0, facts={**facts, missing: False})) == level
    assert BEST.level == level_of(BEST) or SHOWN
    assert LEAST.level <= 1


def test_output_flood_ends_the_process(folder: Path) -> None:
    ending, _, process = shell(folder, "head -c 3000000 /dev/zero; sleep 600", sandbox=LEAST)
    assert code_of(ending, process) == ("compiler", "step.output")


def test_stop_from_another_thread_is_seen(folder: Path) -> None:
    flag = threading.Event()
    process = Process(["/bin/sh", "-c", "echo >&2; sleep 600"], folder, HERE, LIMITS, time.monotonic() + 1e9, 0.1)
    ending = run_process(
        process,
        on_event=lambda _: None,
        on_stderr=lambda _: threading.Thread(target=flag.set).start(),
        should_stop=lambda: Stopped("agent.stopped", "x", cause="infra") if flag.is_set() else None,
    )
    assert code_of(ending, process) == ("infra", "agent.stopped")


def test_cgroup_files(tmp_path: Path) -> None:
    """On a SYNTHETIC cgroup v2 folder (Documentation/admin-guide/cgroup-v2.rst): what is written and read where."""
    own = tmp_path / "system.slice" / "agent.service"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text("cpu memory pids\n")
    parent = cgroup.prepare(tmp_path, "0::/system.slice/agent.service")
    assert parent is not None
    assert (parent.version, set(parent.folders.values())) == (2, {own})
    assert (own / "pockfarm-agent" / "cgroup.procs").read_text() == str(os.getpid())
    assert (own / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert cgroup.prepare(tmp_path, "0::/system.slice/agent.service/pockfarm-agent") == parent, (
        "one that became another"
    )
    job = parent.make("7", 1000)
    assert job is not None
    assert (job.memory / "memory.max").read_text() == "1000"
    assert job.joined_by == [str(own / "pockfarm-job-7" / "cgroup.procs")]
    assert job.is_limited()
    assert job.peak_bytes() is None
    assert not job.was_out_of_memory()
    (job.memory / "memory.peak").write_text("12345\n")
    (job.memory / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n")
    assert job.peak_bytes() == 12345
    assert job.was_out_of_memory()


def test_cgroup_files_of_version_1(tmp_path: Path) -> None:
    """SYNTHETIC too (Documentation/admin-guide/cgroup-v1/memory.rst): a tree for each controller."""
    for place in ("memory/agents/one", "pids"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "cgroup.procs").write_text("")
    parent = cgroup.prepare(tmp_path, "8:pids:/\n4:memory:/agents/one\n0::/")
    assert parent is not None
    assert (parent.version, parent.folders["pids"]) == (1, tmp_path / "pids")
    job = parent.make("7", 1 << 20)
    assert job is not None
    assert (job.memory / "memory.limit_in_bytes").read_text() == "1048576"
    assert len(job.joined_by) == 2
    assert job.is_limited()
    (job.memory / "memory.max_usage_in_bytes").write_text("777\n")
    (job.memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert job.peak_bytes() == 777
    assert job.was_out_of_memory()


def test_no_cgroup_where_there_is_none(tmp_path: Path) -> None:
    assert cgroup.prepare(tmp_path, "0::/") is None
    assert cgroup.prepare(tmp_path, "0::/gone") is None
    assert cgroup.prepare(tmp_path, "4:memory:/") is None
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "cgroup.controllers").write_text("cpu\n")
    assert cgroup.prepare(tmp_path, "0::/x") is None


@pytest.mark.parametrize(
    ("command_line", "table", "expected"),
    [
        ("console=serial0 cgroup_disable=memory rootwait", "memory\t0\t95\t0", "cgroup_disable=memory"),
        ("rootwait", "memory\t0\t95\t0", "memory controller off"),
        ("cgroup_disable=memory cgroup_enable=memory", "memory\t0\t95\t1", ""),
        ("rootwait", "cpuset\t0\t95\t1", ""),
    ],
)
def test_boot_options_that_switch_the_memory_controller_off(command_line: str, table: str, expected: str) -> None:
    said = cgroup.memory_switched_off(command_line, table)
    assert expected in said
    assert bool(said) == bool(expected)
    rows = matrix(Sandbox(0), command_line=command_line, cgroups=table)
    assert not said or said in {row.how for row in rows}


def test_the_parts_of_each_level_are_those_that_are_tried() -> None:
    tried = {level: {row.name for row in matrix(Sandbox(0)) if row.level == level} for level in range(1, 5)}
    assert tried == {level: set(ISOLATION_PARTS[level]) for level in range(1, 5)}


@pytest.mark.parametrize("most", range(5))
def test_what_a_probe_finds_bears_out_its_level(most: int) -> None:
    sandbox = probe(most=most)
    facts = described(matrix(sandbox))
    assert borne_out(sandbox.level, facts) == sandbox.level
    assert (sandbox.level == 4) == (borne_out(4, facts) == 4), "and no higher one"
