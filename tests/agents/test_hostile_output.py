"""A binary that leaves links, FIFOs, devices, folders, giants in `out/`: nothing else is read, the agent lives."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from device_agents import wire as p
from device_agents.execute import run_bundle
from device_agents.wire import RunSettings
from tests.agents.conftest import AgentProcess, npz
from tests.agents.fake_farm import FakeFarm
from tests.agents.fake_step import bundle, script
from tests.agents.processes import processes_of
from tests.sample import sample, thinned

Start = Callable[..., AgentProcess]
SECRET = b"root:$6$secret:19000:0:99999:7:::"

ODD: dict[str, tuple[str, str]] = {
    "link": ("os.unlink(W); os.symlink('@SECRET@', W)", "output.unsafe"),
    "link to /dev/zero": ("os.unlink(W); os.symlink('/dev/zero', W)", "output.unsafe"),
    "link to a FIFO": ("os.unlink(W); os.mkfifo('out/f'); os.symlink('f', W)", "output.unsafe"),
    "link to nothing": ("os.unlink(W); os.symlink('nothing', W)", "output.unsafe"),
    "FIFO": ("os.unlink(W); os.mkfifo(W)", "output.unsafe"),
    "socket": ("import socket; os.unlink(W); socket.socket(socket.AF_UNIX).bind(W)", "output.unsafe"),
    "folder": ("os.unlink(W); os.mkdir(W)", "output.unsafe"),
    "hard link": ("os.link(W, 'out/second-name')", "output.unsafe"),
    "sparse giant": ("os.truncate(W, 1 << 26)", "output.size"),
    "nothing": ("os.unlink(W)", "output.missing"),
    "out is a link": ("os.rename('out', 'away'); os.symlink('@FOLDER@', 'out')", "output.unsafe"),
    "out is gone": ("import shutil; shutil.rmtree('out')", "output.missing"),
    "out is a FIFO": ("os.rename('out', 'away'); os.mkfifo('out')", "output.unsafe"),
}


@pytest.fixture(autouse=True)
def removable(tmp_path: Path) -> Iterator[None]:
    """pytest cannot remove what one of these tests leaves behind when it fails: a tree that is too deep for it."""
    yield
    for folder in ("state", "tmp"):
        subprocess.run(["rm", "-rf", str(tmp_path / folder)], check=True)


def hostile(code: str, folder: Path) -> bytes:
    """A bundle whose binary does `code` to the file W that it exports. A secret of the same name lies in `folder`."""
    folder.mkdir(exist_ok=True)
    secret = folder / "weights.safetensors"
    secret.write_bytes(SECRET)
    code = code.replace("@SECRET@", str(secret)).replace("@FOLDER@", str(folder))
    return bundle(step=script(then=f"if command == 'export':\n    W = given['--out']\n    {code}\n"))


@pytest.mark.parametrize("kind", sample(sorted(ODD), ("link", "sparse giant")))
def test_odd_files_end_the_run_and_not_the_agent(farm: FakeFarm, start_agent: Start, tmp_path: Path, kind: str) -> None:
    code, expected = ODD[kind]
    farm.assign(hostile(code, tmp_path / "secrets"), mode="train", steps=3, dataset=npz())
    agent = start_agent()
    report = farm.report()
    assert (report.outcome.state, report.outcome.code) == ("failed", expected)
    assert report.outcome.cause in ("compiler", "limits")
    assert "weights.safetensors" in report.outcome.message
    assert report.weights is None
    assert "lease-0001" not in farm.weights
    assert report.measurement is not None, "what was measured is kept"
    farm.assign(bundle(), lease="lease-0002", mode="train", steps=3, dataset=npz())
    assert farm.report("lease-0002").outcome.state == "succeeded"
    assert SECRET not in b"".join(farm.weights.values())
    farm.wait_for(lambda: farm.requests.count(("POST", p.LEASE_PATH)) >= 3)
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait() == 0
    assert not list((agent.state / "scratch").iterdir())


@pytest.mark.parametrize("kind", thinned(sorted(ODD), 4))
def test_the_same_without_a_farm(tmp_path: Path, kind: str) -> None:
    code, expected = ODD[kind]
    path, data, exported = tmp_path / "b.pfb", tmp_path / "d.npz", tmp_path / "exported"
    path.write_bytes(hostile(code, tmp_path / "secrets"))
    data.write_bytes(npz())
    result = run_bundle(path, RunSettings("train", steps=2), data=data, export=exported)
    assert (result.report.outcome.state, result.report.outcome.code) == ("failed", expected)
    assert result.error is not None
    assert not exported.exists()


@pytest.mark.parametrize(("mode", "asked"), [("train", "save"), ("infer", "out")])
@pytest.mark.parametrize("kind", ["link", "FIFO", "nothing"])
def test_checkpoints_and_logits_are_read_as_carefully(tmp_path: Path, mode: str, asked: str, kind: str) -> None:
    """The trained checkpoint changes after it was used last: in the export, or at the end of infer."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    code = ODD[kind][0].replace("@SECRET@", str(secret))
    name = "out/trained.safetensors" if mode == "train" else "out/logits.npy"
    command = "export" if mode == "train" else "infer"
    path, data, wanted = tmp_path / "b.pfb", tmp_path / "d.npz", tmp_path / "wanted"
    path.write_bytes(bundle(step=script(then=f"if command == '{command}':\n    W = '{name}'\n    {code}\n")))
    data.write_bytes(npz())
    result = run_bundle(path, RunSettings(mode, steps=2), data=data, **{asked: wanted})  # type: ignore[arg-type]
    assert (result.report.outcome.state, result.report.outcome.code) == ("failed", ODD[kind][1])
    assert not wanted.exists()


def test_what_is_reported_is_what_is_uploaded(farm: FakeFarm, start_agent: Start) -> None:
    """A process that the binary leaves behind goes on changing the file: digest and bytes come from one reading."""
    code = "\n".join(
        (
            "if os.fork() == 0:",
            "        os.setsid()",
            "        while True:",
            "            open(W + '.new', 'w').write(str(time.time())); os.replace(W + '.new', W)",
        )
    )
    step = script(then=f"if command == 'export':\n    W = given['--out']\n    {code}\n")
    farm.assign(bundle(step=step), mode="train", steps=2, dataset=npz())
    agent = start_agent("--once")
    report = farm.report()
    assert agent.wait() == 0
    if report.outcome.state == "succeeded":
        assert report.weights is not None
        assert report.weights.digest == f"sha256:{hashlib.sha256(farm.weights['lease-0001']).hexdigest()}"
    else:
        assert report.outcome.code in ("output.unsafe", "output.missing")
    for pid in processes_of(agent.state):
        os.kill(pid, signal.SIGKILL)


TREES = {
    "deep": "[(os.mkdir('d'), os.chdir('d')) for _ in range(3000)]",
    "locked": "os.makedirs('out/a/b'); open('out/a/b/c', 'w').close(); os.chmod('out/a/b', 0); os.chmod('out/a', 0)",
    "links": "os.mkdir('out/a'); os.symlink('@FOLDER@', 'out/a/b'); os.symlink('/', 'out/c')",
    "odd names": "[open(os.path.join(b'out', name), 'w').close() for name in (b'\\xff\\xfe', b'\\n', b'-rf')]",
}


@pytest.mark.parametrize("kind", sample(sorted(TREES), ("deep",)))
def test_hostile_trees_are_removed_and_nothing_else(
    farm: FakeFarm, start_agent: Start, tmp_path: Path, kind: str
) -> None:
    farm.assign(hostile(TREES[kind], tmp_path / "kept"), mode="train", steps=2, dataset=npz())
    agent = start_agent()
    farm.report()
    farm.assign(bundle(), lease="lease-0002", steps=2)
    assert farm.report("lease-0002").outcome.state == "succeeded"
    agent.end()
    assert not list((agent.state / "scratch").iterdir())
    assert (tmp_path / "kept" / "weights.safetensors").read_bytes() == SECRET


@pytest.mark.parametrize("kind", sorted(TREES))
def test_hostile_trees_without_a_farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    scratch, path, data = tmp_path / "tmp", tmp_path / "b.pfb", tmp_path / "d.npz"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    path.write_bytes(hostile(TREES[kind], tmp_path / "kept"))
    data.write_bytes(npz())
    run_bundle(path, RunSettings("train", steps=1), data=data)
    assert not list(scratch.iterdir())
    assert (tmp_path / "kept" / "weights.safetensors").read_bytes() == SECRET
