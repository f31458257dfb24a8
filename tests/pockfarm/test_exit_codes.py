"""Every exit code of the documentation, brought about by each command that has it: at a farm on a socket, or none."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pockfarm import cli
from pockfarm.client import answers
from pockfarm.client.synchronous import looks
from pockfarm.command_line.manual import FARM, MANUAL
from pockfarm.command_line.words import runs, walk
from tests.pockfarm.fake_farm import Answer, FakeFarm, fake_farm
from tests.sample import sample
from tests.small_disk import small_disk
from tests.waiting import until

ALL = {" ".join(path): command for path, command in walk(cli.parser()) if runs(command)}
HERE_TOO = ("compare", "tune", "tune-kernels", "init")
OF_A_FARM = sorted(path for path, one in MANUAL.items() if set(FARM) <= set(one.exits) and path not in HERE_TOO)
"""Without those that ask a farm only if they are told to, or another one than is named elsewhere."""
REFUSALS = {401: "no key", 404: "not there", 409: "not now"}
SHOWN = {
    "audit": 401,
    "bundles show": 404,
    "cancel": 409,
    "compile": 401,
    "dataset": 409,
    "devices": 401,
    "devices canary": 404,
    "groups list": 401,
    "key add": 401,
    "link": 401,
    "logs": 404,
    "maintenance add": 409,
    "open": 401,
    "org limit": 404,
    "pin": 404,
    "queue": 401,
    "receipt": 404,
    "releases offer": 409,
    "report": 404,
    "reproduce": 404,
    "retry": 409,
    "run": 409,
    "runs": 401,
    "user add": 409,
    "watch": 404,
    "webhooks test": 404,
    "weights": 404,
    "why": 404,
}
"""Commands that make, list, show, follow, change and load down, of each noun, with a refusal that each meets."""
REFUSED = sample(
    [pytest.param(path, status, id=f"{path}-{status}") for path in OF_A_FARM for status in sorted(REFUSALS)],
    [f"{path}-{status}" for path, status in SHOWN.items()],
)


@pytest.fixture
def farm(loopback: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeFarm]:
    monkeypatch.setattr(answers, "RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr(looks, "POLL_INTERVAL_S", 0.01)
    monkeypatch.chdir(tmp_path)
    for name in ("net.onnx", "d.npz", "net.pfb"):
        (tmp_path / name).write_bytes(b"{}")
    with fake_farm() as farm:
        monkeypatch.setenv("POCKFARM_URL", farm.url)
        monkeypatch.setenv("POCKFARM_API_KEY", "key-1")
        yield farm


def example(path: str) -> list[str]:
    return shlex.split(MANUAL[path].example)[1:]


@pytest.mark.parametrize("path", sorted(ALL))
def test_2_a_wrong_argument(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*path.split(), "--no-such-option"])
    assert ended.value.code == 2
    assert "--no-such-option" in capsys.readouterr().err


@pytest.mark.parametrize(("path", "status"), REFUSED)
def test_3_the_farm_refuses(path: str, status: int, farm: FakeFarm, capsys: pytest.CaptureFixture[str]) -> None:
    problem = {"detail": REFUSALS[status], "code": "a.code", "hint": "do that"}
    farm.answer = lambda request: Answer(status, problem)  # type: ignore[method-assign]
    assert cli.main([*example(path), "--json"]) == 3
    out, err = capsys.readouterr()
    assert not out
    found = json.loads(err.splitlines()[-1])
    assert (found["message"], found["code"], found["hint"]) == (REFUSALS[status], "a.code", "do that")


@pytest.mark.parametrize("path", sample(OF_A_FARM, SHOWN))
def test_5_no_farm_answers(
    path: str, farm: FakeFarm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POCKFARM_URL", "http://127.0.0.1:1")
    assert cli.main([*example(path), "--json"]) == 5
    out, err = capsys.readouterr()
    assert not out
    problem = json.loads(err.splitlines()[-1])
    assert problem["code"] == "farm.unreachable"
    assert " http://127.0.0.1:1" in problem["message"]


@pytest.mark.parametrize("path", sample(OF_A_FARM, SHOWN))
def test_2_no_farm_is_named(path: str, nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (nowhere / "d.npz").write_bytes(b"")
    (nowhere / "net.onnx").write_bytes(b"")
    assert cli.main(example(path)) == 2
    assert "no farm" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["down", "status"])
def test_what_is_not_up_here(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main([path, "--state", str(tmp_path)])
    assert code == {"down": 0, "status": 5}[path], "down of what is down is done"
    err = capsys.readouterr().err
    assert "no farm is up" in err
    assert str(tmp_path) in err


ENDED = {"failed": "failed", "cancelled": "cancelled", "expired": "expired"}


@pytest.mark.parametrize("state", sorted(ENDED))
@pytest.mark.parametrize("path", ["compile", "run", "retry", "reproduce", "watch"])
def test_4_it_ended_without_success(path: str, state: str, farm: FakeFarm, capsys: pytest.CaptureFixture[str]) -> None:
    ending = {"cause": "device", "code": "device.lost", "message": "it went silent"}
    ended = {"id": "run_1", "state": state, "ending": ending, "finished_at": "2026-01-01T00:00:00Z"}

    def answer(request: object) -> Answer:
        asked = getattr(request, "path", "").split("?")[0]
        if asked.endswith("/events"):
            return Answer(200, [])
        created = getattr(request, "method", "") == "POST"
        return Answer(202 if created else 200, {**ended, "state": "queued"} if created else ended)

    farm.answer = answer  # type: ignore[method-assign]
    assert cli.main(example(path)) == 4
    if path != "watch":
        assert f"{state}: it went silent [device: device.lost]" in capsys.readouterr().err


def test_1_the_doctor_found_something(farm: FakeFarm, capsys: pytest.CaptureFixture[str]) -> None:
    farm.on("GET", "/healthz", Answer(500, {}))
    assert cli.main(["doctor", "--json"]) == 1
    assert "wrong" in {one["state"] for one in json.loads(capsys.readouterr().out)}


def test_4_a_file_that_does_not_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "odd.pfb"
    file.write_bytes(b"no bundle")
    assert cli.main(["verify", str(file), "--json"]) == 4
    (found,) = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "NOT VERIFIED"
    assert cli.main(["verify", str(file)]) == 4
    assert f"{file}: NOT VERIFIED: " in capsys.readouterr().out


def test_74_no_room(farm: FakeFarm, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    farm.on("GET", "/runs/run_1/weights", Answer(200, b"w" * (1 << 20)))
    with small_disk(tmp_path / "small", 1 << 20) as disk, disk.full():
        out = disk.folder / "trained.safetensors"
        assert cli.main(["weights", "run_1", "--out", str(out)]) == 74
        assert not list(disk.folder.glob("trained*")), "nothing half-written is left"
    err = capsys.readouterr().err
    assert f"{out} cannot be written" in err
    assert "make room there" in err


def test_what_is_no_ordinary_file_is_written_to_and_stays_what_it_is(farm: FakeFarm, tmp_path: Path) -> None:
    farm.on("GET", "/runs/run_1/weights", Answer(200, b"weights"))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert cli.main(["weights", "run_1", "--out", str(pipe)]) == 0
    assert os.read(reader, 100) == b"weights"
    os.close(reader)
    assert pipe.is_fifo()


def started(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pockfarm.cli", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ), preexec_fn=heed_sigint
    )


def heed_sigint() -> None:
    """What a shell without job control starts in the background has it ignored, and so has what that starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def pressed_until_it_ends(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it said, by Ctrl-C, pressed again: Python ignores exceptions in finalizers."""
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=60)
    process.kill()
    return process.communicate()


@pytest.mark.parametrize("path", ["watch", "run"])
def test_130_interrupted(path: str, farm: FakeFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    farm.on("GET", "/runs/run_1", Answer(200, {"id": "run_1", "state": "running"}))
    farm.on("GET", "/runs/run_1/events", Answer(200, []))
    farm.on("POST", "/runs", Answer(202, {"id": "run_1", "state": "queued"}))
    words = {"watch": ["watch", "run_1"], "run": ["run", "sha256:" + "a" * 64, "profile"]}[path]
    with started(*words) as process:
        until(lambda: any(one.path.startswith("/runs/run_1") for one in farm.seen))
        out, err = pressed_until_it_ends(process)
    assert process.returncode == 130
    assert not out
    assert err.endswith("pockfarm: interrupted\n")
    assert "Traceback" not in err


def test_0_whoever_reads_stops_reading(farm: FakeFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    many = [{"id": f"run_{n}", "state": "queued", "model_name": "m" * 100} for n in range(2000)]
    farm.on("GET", "/runs", Answer(200, {"items": many}))
    with started("runs") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
    assert (process.returncode, err) == (0, "")
