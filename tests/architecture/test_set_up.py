"""Set-up: what it asks for is pinned, what is missing is said, and what is done is not done again."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.set_up import __main__ as set_up
from scripts.set_up import debian, environment
from scripts.set_up.debian import SystemPackage, shell
from scripts.set_up.errors import SetUpError
from scripts.set_up.progress import Progress
from tests.architecture.sources import ROOT

DEBIAN_12 = "3.11.2"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


class Recorded(Progress):
    """Records what it is given to print, and prints nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []
        self.states: list[str] = []

    def say(self, message: str) -> None:
        self.messages.append(message)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[Callable[[str], None]]:
        yield lambda state: self.states.append(f"{name}: {state}")

    @property
    def text(self) -> str:
        return "\n".join(self.messages)


@pytest.fixture
def progress() -> Recorded:
    return Recorded()


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of `.venv`."""
    monkeypatch.setattr(environment, "VENV", tmp_path)
    monkeypatch.setattr(environment, "LOG", tmp_path / "set-up.log")
    return tmp_path


@pytest.fixture
def pip_calls(venv: Path) -> Path:
    """The file in which a Python that installs nothing writes what it was asked."""
    interpreter = venv / "bin" / "python"
    interpreter.parent.mkdir()
    interpreter.write_text(f'#!/bin/sh\necho "$@" >> {venv}/calls\n')
    interpreter.chmod(0o755)
    return venv / "calls"


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


def test_an_ordinary_user_is_told_what_to_install(progress: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SetUpError, match=r"apt-get install .*qemu-user-static chromium"):
        debian.install_system_packages("dev", progress)
    debian.install_system_packages("farm", progress)
    assert "missing: chromium" in progress.text
    assert progress.messages[-1].endswith(" apt-get install qemu-user-static")


def test_root_installs_what_is_missing_and_no_more(
    progress: Recorded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "apt.log"
    apt = tmp_path / "apt-get"
    apt.write_text(f'#!/bin/sh\necho "$@" >> {log}\nif [ "$1" = install ]; then touch {tmp_path}/chromium; fi\n')
    apt.chmod(0o755)
    present = {"qemu-aarch64-static", "apt-get"}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: name if name in present or (tmp_path / name).exists() else None)
    monkeypatch.setattr(debian, "SYSTEM_PACKAGES", debian.SYSTEM_PACKAGES[:2])
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    debian.install_system_packages("dev", progress)
    commands = log.read_text().splitlines()
    assert commands[0].startswith("update")
    assert all(command.split()[-1] == "chromium" for command in commands[1:])
    assert [command.split()[0] for command in commands[1:]] == ["install", "install"], "the first asks how much it is"
    assert "--assume-no" in commands[1]
    assert "qemu" not in log.read_text()


def package(check: tuple[str, ...], required_by: tuple[str, ...]) -> SystemPackage:
    return SystemPackage("driver", ("sh",), "plays a device", required_by, check)


def test_what_is_there_but_does_not_work_is_missing_with_its_own_words(
    progress: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fresh machine had a driver's file, and nothing that could load it."""
    broken = shell("echo libDriver.so.1: cannot open shared object file >&2; exit 1")
    monkeypatch.setattr(debian, "SYSTEM_PACKAGES", [package(broken, required_by=("dev",))])
    with pytest.raises(SetUpError, match="apt-get install driver"):
        debian.check_system_packages("dev", progress)
    [message] = progress.messages
    assert message.startswith("missing: driver ")
    assert message.endswith(": libDriver.so.1: cannot open shared object file")
    monkeypatch.setattr(debian, "SYSTEM_PACKAGES", [package(broken, required_by=())])
    debian.check_system_packages("dev", progress)
    assert progress.messages[-1].endswith(" apt-get install driver")


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (shell("exit 3"), "sh ended with code 3"),
        (("no-such-program",), "[Errno 2] No such file or directory: 'no-such-program'"),
        (shell("test -d $folder && test -f $checkout/README.md"), ""),
    ],
)
def test_a_check_says_why_it_fails(check: tuple[str, ...], reason: str) -> None:
    assert package(check, required_by=()).why_broken() == reason


def test_everything_that_set_up_promises_works_here() -> None:
    present = [package for package in debian.SYSTEM_PACKAGES if package.is_present()]
    assert {package.name for package in debian.SYSTEM_PACKAGES if package.required_by} <= {
        package.name for package in present
    }
    assert {package.name: why for package in present if (why := package.why_broken())} == {}


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
    progress: Recorded, monkeypatch: pytest.MonkeyPatch, apt_folder: Path, command: str
) -> None:
    messages = progress.messages
    monkeypatch.setattr(debian, "LOCK_PAUSE_S", 0.05)
    with held(apt_folder / LOCKS[command]) as holder:

        def say(message: str) -> None:
            messages.append(message)
            holder.communicate()  # once it says that it waits, the other process ends

        monkeypatch.setattr(progress, "say", say)
        done = debian.apt_get(command, "-qq", gives_up_at=time.monotonic() + 600, progress=progress)
        assert holder.poll() is not None, "it went on while the lock was held"
    assert done.returncode == 0, done.stderr
    assert len(messages) == 1
    assert re.search(rf"\b(600|599) s .*process {holder.pid}\b", messages[0])


def test_a_lock_is_not_waited_for_for_ever(
    progress: Recorded, monkeypatch: pytest.MonkeyPatch, apt_folder: Path
) -> None:
    monkeypatch.setattr(debian, "LOCK_PAUSE_S", 0.05)
    monkeypatch.setattr(debian, "LOCK_TIMEOUT_S", 0.2)
    with held(apt_folder / LOCKS["install"]) as holder:
        debian.apt(["qemu-user-static"], progress)
        assert f"It is held by process {holder.pid}" in progress.text


def test_one_call_of_pip_resolves_all_that_the_tests_need(progress: Recorded, pip_calls: Path) -> None:
    environment.install_python_packages("dev", 221, progress)
    call, alone = pip_calls.read_text().splitlines()
    assert call.endswith(f"-c constraints.txt -e .[dev] {environment.TORCH}")
    assert alone.endswith(f"--no-deps {environment.TORCHVISION}"), "which resolves nothing"


@pytest.fixture
def steps(venv: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what set-up does, in order; nothing is done."""
    done: list[str] = []

    def records(name: str) -> None:
        monkeypatch.setattr(environment, name, lambda *arguments: done.append(name))

    for name in ("make_venv", "install_linker", "install_chart_library", "build_first_library"):
        records(name)
    records("build_other_libraries")
    monkeypatch.setattr(
        environment, "install_python_packages", lambda level, about, progress: done.append(f"packages of {level}")
    )
    monkeypatch.setattr(debian, "install_system_packages", lambda level, progress: None)
    monkeypatch.setattr(debian, "check_system_packages", lambda level, progress: done.append("checks"))
    return done


def test_pytorch_comes_beside_the_farm_at_the_version_of_the_tests(
    progress: Recorded, pip_calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.install_python_packages("pytorch", 9, progress)
    assert pip_calls.read_text().splitlines()[0].endswith(f".[pytorch] {environment.TORCH}")
    set_up.announce("pytorch", [], False, progress)
    assert "PyTorch          among them" in progress.text
    assert "linker           its C library" in progress.text
    environment.mark_done("farm")
    more = Recorded()
    set_up.announce("pytorch", [], False, more)
    (count,) = re.findall(r"Python packages  about (\d+)", more.text)
    assert int(count) == set_up.PYTHON_PACKAGES["pytorch"][0] - set_up.PYTHON_PACKAGES["farm"][0]
    assert "linker           " not in more.text, "it was built with the farm's environment"


def test_what_is_done_is_not_done_again_until_something_changes(
    progress: Recorded, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian, "missing_packages", lambda level: [])
    set_up.set_up("dev", progress)
    assert steps[:2] == ["make_venv", "install_linker"]
    assert set(steps[2:5]) == {"packages of dev", "install_chart_library", "build_first_library"}
    assert steps[5:] == ["checks", "build_other_libraries"]
    for level in ("dev", "pytorch", "farm"):
        set_up.set_up(level, progress)
    assert len(steps) == 7, "the larger environment serves the smaller ones"
    monkeypatch.setattr(environment, "fingerprint", lambda: "other constraints")
    set_up.set_up("farm", progress)
    assert "packages of farm" in steps[7:]


def test_nothing_is_done_of_which_a_part_failed(
    progress: Recorded, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(progress: Progress) -> None:
        raise SetUpError("no space left")

    monkeypatch.setattr(environment, "build_first_library", fail)
    with pytest.raises(SetUpError, match="no space left"):
        set_up.set_up("farm", progress)
    assert {"packages of farm", "install_chart_library"} <= set(steps), "the others go on to their ends"
    assert not environment.is_done("farm")


def test_without_npm_set_up_goes_on_and_says_what_is_missing(
    progress: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    environment.install_chart_library("farm", progress)
    assert "charts stay pictures" in progress.text


@pytest.mark.parametrize("level", ["farm", "dev"])
def test_a_chart_library_that_cannot_be_had_stops_only_the_tests(
    level: str, progress: Recorded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    npm = tmp_path / "npm"
    npm.write_text('#!/bin/sh\necho "no network for $1" >&2\nexit 1\n')
    npm.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(npm))
    if level == "dev":
        with pytest.raises(SetUpError, match="no network for ci"):
            environment.install_chart_library(level, progress)
    else:
        environment.install_chart_library(level, progress)
        assert "charts stay pictures: no network for ci" in progress.text


def test_the_lock_names_a_digest_and_no_host() -> None:
    lock = json.loads((ROOT / "service" / "dashboard" / "package-lock.json").read_text())["packages"]
    packages = [told for path, told in lock.items() if path]
    assert [told for told in packages if "resolved" in told] == []
    assert all(told["integrity"].startswith("sha512-") for told in packages)


def test_a_failing_pip_ends_the_set_up_with_the_reason(
    progress: Recorded, pip_calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (environment.VENV / "bin" / "python").write_text("#!/bin/sh\necho 'no such package: tvm'\nexit 1\n")
    monkeypatch.setattr(environment, "ROOT", environment.VENV)
    with pytest.raises(SetUpError, match="no such package: tvm"):
        environment.pip(progress, "install", "tvm")


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
