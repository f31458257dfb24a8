"""Set-up: what it asks for is pinned, what is missing is said, and what is done is not done again."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.architecture.sources import ROOT

DEBIAN_12 = "3.11.2"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("set_up_script", ROOT / "scripts" / "set_up.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load_script()
    monkeypatch.setattr(module, "VENV", tmp_path)
    return module


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_requirement_is_pinned_within_its_range() -> None:
    from packaging.requirements import Requirement

    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    pins = {canonical(name): version for name, version in (line.split("==") for line in lines)}
    requirements = [Requirement(text) for extra in PROJECT["optional-dependencies"].values() for text in extra]
    for requirement in requirements:
        if requirement.name != "pockfarm":
            assert requirement.specifier.contains(pins[canonical(requirement.name)]), requirement


def test_every_pin_installs_on_the_oldest_python_that_the_readme_promises() -> None:
    """Debian 12's. Where one pin does not, pip looks for minutes for others that would, and finds none."""
    from packaging.specifiers import SpecifierSet

    assert "Debian 12 with Python 3.11" in (ROOT / "README.md").read_text()
    told = {
        found.name: str(found.metadata.json.get("requires_python", "")) for found in importlib.metadata.distributions()
    }
    assert len(told) > 100
    assert [name for name, wanted in told.items() if DEBIAN_12 not in SpecifierSet(wanted)] == []


def test_the_agent_extra_is_small_and_old_python_can_install_it() -> None:
    assert [re.split(r"\W", text)[0] for text in PROJECT["optional-dependencies"]["agent"]] == ["cryptography"]
    assert PROJECT["dependencies"] == []
    assert PROJECT["requires-python"] == ">=3.9"


def test_an_ordinary_user_is_told_what_to_install(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(script.shutil, "which", lambda name: None)
    with pytest.raises(script.SetUpError, match=r"apt-get install .*qemu-user-static chromium"):
        script.install_system_packages("dev")
    script.install_system_packages("farm")
    told = capsys.readouterr().out
    assert "missing: chromium (opens the dashboard in the tests)" in told
    assert "going on without; to have it: apt-get install qemu-user-static" in told


def test_root_installs_what_is_missing_and_no_more(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "apt.log"
    apt = tmp_path / "apt-get"
    apt.write_text(f'#!/bin/sh\necho "$@" >> {log}\nif [ "$1" = install ]; then touch {tmp_path}/chromium; fi\n')
    apt.chmod(0o755)
    there = {"qemu-aarch64-static", "apt-get"}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        script.shutil, "which", lambda name: name if name in there or (tmp_path / name).exists() else None
    )
    monkeypatch.setattr(script, "SYSTEM_PACKAGES", script.SYSTEM_PACKAGES[:2])
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    script.install_system_packages("dev")
    commands = log.read_text().splitlines()
    assert commands[0].startswith("update")
    assert all(command.split()[-1] == "chromium" for command in commands[1:])
    assert [command.split()[0] for command in commands[1:]] == ["install", "install"], "the first asks how much it is"
    assert "--assume-no" in commands[1]
    assert "qemu" not in log.read_text()


LOCKS = {"update": "lists/lock", "install": "dpkg/lock-frontend"}
HOLD = """
import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def apt_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the real apt-get keeps its state, with nothing to fetch or to install."""
    for name in ("lists/partial", "dpkg", "cache/archives/partial"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("sources", "dpkg/status"):
        (tmp_path / name).touch()
    settings = {
        "Dir::State": "",
        "Dir::State::lists": "lists",
        "Dir::State::status": "dpkg/status",
        "Dir::Cache": "cache",
        "Dir::Etc::sourcelist": "sources",
        "Dir::Etc::sourceparts": "none",
    }
    lines = [f'{name} "{tmp_path / place}";' for name, place in settings.items()]
    (tmp_path / "apt.conf").write_text("\n".join(lines))
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    return tmp_path


@contextlib.contextmanager
def held(lock: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its input ends."""
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


@pytest.mark.parametrize("command", sorted(LOCKS))
def test_a_lock_that_another_process_holds_is_waited_for(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, apt_folder: Path, command: str
) -> None:
    said: list[str] = []
    monkeypatch.setattr(script, "LOCK_PAUSE_S", 0.05)
    with held(apt_folder / LOCKS[command]) as holder:

        def say(message: str) -> None:
            said.append(message)
            holder.communicate()  # once it says that it waits, the other process ends

        monkeypatch.setattr(script, "say", say)
        done = script.apt_get(command, "-qq", gives_up_at=time.monotonic() + 600)
        assert holder.poll() is not None, "it went on while the lock was held"
    assert done.returncode == 0, done.stderr
    assert len(said) == 1
    assert re.search(
        rf"waiting for another package manager, for at most (600|599) s .*held by process {holder.pid}", said[0]
    )


def test_a_lock_is_not_waited_for_for_ever(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, apt_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "LOCK_PAUSE_S", 0.05)
    monkeypatch.setattr(script, "LOCK_TIMEOUT_S", 0.2)
    with held(apt_folder / LOCKS["install"]) as holder:
        script.apt(["qemu-user-static"])
        assert f"It is held by process {holder.pid}" in capsys.readouterr().out


def test_one_call_of_pip_resolves_all_that_the_tests_need(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = script.VENV / "bin" / "python"
    interpreter.parent.mkdir()
    interpreter.write_text(f'#!/bin/sh\necho "$@" >> {script.VENV}/calls\n')
    interpreter.chmod(0o755)
    monkeypatch.setattr(script, "LOG", script.VENV / "set-up.log")
    script.install_python_packages("dev")
    call, alone = (script.VENV / "calls").read_text().splitlines()
    assert call.endswith(f"install -c constraints.txt -e .[dev] {script.TORCH}")
    assert alone.endswith(f"install --no-deps {script.TORCHVISION}"), "which resolves nothing"


def test_pytorch_comes_beside_the_farm_at_the_version_of_the_tests(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interpreter = script.VENV / "bin" / "python"
    interpreter.parent.mkdir()
    interpreter.write_text(f'#!/bin/sh\necho "$@" >> {script.VENV}/calls\n')
    interpreter.chmod(0o755)
    monkeypatch.setattr(script, "LOG", script.VENV / "set-up.log")
    monkeypatch.setattr(script, "install_system_packages", lambda level: None)
    monkeypatch.setattr(script, "install_chart_library", lambda level: None)
    script.set_up("pytorch")
    assert (script.VENV / "calls").read_text().splitlines()[0].endswith(f".[pytorch] {script.TORCH}")
    whole = capsys.readouterr().out
    assert "PyTorch          among them" in whole
    assert "linker           its C library" in whole
    script.stamp("pytorch").unlink()
    script.stamp("farm").write_text(script.fingerprint())
    script.set_up("pytorch")
    more = capsys.readouterr().out
    (count,) = re.findall(r"Python packages  about (\d+)", more)
    assert int(count) == script.PYTHON_PACKAGES["pytorch"][0] - script.PYTHON_PACKAGES["farm"][0]
    assert "linker           " not in more, "it was built with the farm's own environment"


def test_what_is_done_is_not_done_again_until_something_changes(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(script, "install_system_packages", lambda level: None)
    monkeypatch.setattr(script, "make_venv", lambda: done.append("venv"))
    monkeypatch.setattr(script, "install_python_packages", lambda level: done.append(level))
    monkeypatch.setattr(script, "install_chart_library", lambda level: done.append("charts"))
    monkeypatch.setattr(script, "warm_linker", lambda: done.append("linker"))
    script.set_up("dev")
    assert done == ["venv", "dev", "charts", "linker"]
    script.set_up("dev")
    script.set_up("pytorch")
    script.set_up("farm")
    assert done == ["venv", "dev", "charts", "linker"], "the larger environment serves the smaller ones"
    monkeypatch.setattr(script, "fingerprint", lambda: "other constraints")
    script.set_up("farm")
    assert done[4:] == ["venv", "farm", "charts", "linker"]


def test_without_npm_set_up_goes_on_and_says_what_is_missing(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script.shutil, "which", lambda name: None)
    script.install_chart_library("farm")
    assert "charts stay pictures" in capsys.readouterr().out


@pytest.mark.parametrize("level", ["farm", "dev"])
def test_a_chart_library_that_cannot_be_had_stops_only_the_tests(
    level: str, script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    npm = tmp_path / "npm"
    npm.write_text('#!/bin/sh\necho "no network for $1" >&2\nexit 1\n')
    npm.chmod(0o755)
    monkeypatch.setattr(script.shutil, "which", lambda name: str(npm))
    if level == "dev":
        with pytest.raises(script.SetUpError, match="no network for ci"):
            script.install_chart_library(level)
        return
    script.install_chart_library(level)
    assert "charts stay pictures: no network for ci" in capsys.readouterr().out


def test_the_lock_names_a_digest_and_no_host() -> None:
    lock = json.loads((ROOT / "service" / "dashboard" / "package-lock.json").read_text())["packages"]
    packages = [told for path, told in lock.items() if path]
    assert [told for told in packages if "resolved" in told] == []
    assert all(told["integrity"].startswith("sha512-") for told in packages)


def test_a_failing_pip_ends_the_set_up_with_the_reason(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = script.VENV / "bin" / "python"
    interpreter.parent.mkdir()
    interpreter.write_text("#!/bin/sh\necho 'no such package: tvm'\nexit 1\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(script, "ROOT", script.VENV)
    monkeypatch.setattr(script, "LOG", script.VENV / "set-up.log")
    with pytest.raises(script.SetUpError, match="no such package: tvm"):
        script.pip("install", "tvm")


def test_nobody_is_told_to_install_what_is_not_published() -> None:
    """The package is installed from a checkout; its name is on no index, or will be somebody else's."""
    advised = re.compile(r"pip3? install[^\n]*")
    told = {
        (path, line)
        for path in subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split("\n")
        if path.endswith((".md", ".py", ".html", ".toml", ".sh", "Dockerfile")) and not path.startswith("tests/")
        for line in advised.findall((ROOT / path).read_text())
    }
    assert any(path == "docs/agent.md" for path, _ in told)
    assert {(path, line) for path, line in told if re.search(r"install.*\bpockfarm\b(?!/)", line)} == set()


def test_every_target_of_the_makefile_is_phony_and_described() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z0-9-]+):", text, re.MULTILINE)
    phony = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split()
    assert sorted(targets) == sorted(phony)
    listed = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [name for name in targets if not re.search(rf"^{name}\s+\S", listed, re.MULTILINE)] == []


def test_continuous_integration_runs_make_test_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    assert lines == ["set -eu", 'cd "$(dirname "$0")/.."', "exec make test </dev/null"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
