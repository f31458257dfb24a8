"""What set-up shows while it works: what it will do, how much that is, and where it is, on a terminal and in a pipe."""

from __future__ import annotations

import importlib.metadata
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts.set_up import debian, environment
from scripts.set_up.__main__ import PYTHON_PACKAGES
from scripts.set_up.errors import SetUpError
from scripts.set_up.progress import Progress
from tests.architecture.sources import ROOT
from tests.architecture.test_set_up import PROJECT, Recorded, canonical
from tests.sample import sample

APT = """#!/bin/sh
case "$*" in
*--assume-no*)
    echo "0 upgraded, 37 newly installed, 0 to remove and 2 not upgraded."
    echo "Need to get 112 MB of archives."
    echo "After this operation, 423 MB of additional disk space will be used."
    echo "Do you want to continue? [Y/n] N"; exit 1 ;;
install*)
    echo "dlstatus:1:20.4:Retrieving file 4 of 37"
    echo "pmstatus:chromium:61.2:Unpacking chromium (amd64)" ;;
esac
"""
PYTHON = """#!/bin/sh
case "$*" in
*"-m pip"*torchvision*) exit 0 ;;
*"-m pip"*)
    echo "Collecting numpy>=2"
    echo "  Downloading numpy-2.1.0-cp311-cp311-linux.whl (16.3 MB)"
    echo "Processing /somewhere/onnx-1.21.0-cp311-linux.whl (from pockfarm)"
    echo "Installing collected packages: numpy, onnx, pockfarm"
    [ -z "$FAILS" ] || { echo "ERROR: no space left" >&2; exit 1; } ;;
esac
"""


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an apt-get and a virtual environment that install nothing."""
    (tmp_path / "bin").mkdir()
    for name, text in (("apt-get", APT), ("bin/python", PYTHON)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(environment, "VENV", tmp_path)
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "LOG", tmp_path / "set-up.log")
    return tmp_path


@pytest.fixture
def progress() -> Recorded:
    return Recorded()


def test_debian_packages_are_counted_before_they_come_and_shown_as_they_come(fakes: Path, progress: Recorded) -> None:
    debian.apt(["chromium"], progress)
    [message] = progress.messages
    assert re.findall(r"\d+(?: MB)?", message) == ["37", "112 MB", "423 MB"]
    assert [state.split(": ")[-1] for state in progress.states] == [
        "20% Retrieving file 4 of 37",
        "61% Unpacking chromium (amd64)",
    ]


def test_python_packages_are_counted_as_pip_meets_them(fakes: Path, progress: Recorded) -> None:
    environment.install_python_packages("dev", 221, progress)
    assert progress.states == [
        "Python packages: 1 of about 221: Collecting numpy>=2",
        "Python packages: 1 of about 221: numpy-2.1.0-cp311-cp311-linux.whl (16.3 MB)",
        "Python packages: 2 of about 221: Processing /somewhere/onnx-1.21.0-cp311-linux.whl (from pockfarm)",
        "Python packages: installing 3",
    ]
    assert "Downloading numpy" in (fakes / "set-up.log").read_text()


def test_what_pip_said_last_is_the_reason(fakes: Path, progress: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILS", "yes")
    with pytest.raises(SetUpError, match=r"ERROR: no space left.* set-up\.log"):
        environment.install_python_packages("dev", 221, progress)


def test_a_failing_linker_is_shown_with_what_it_wrote_to_its_error_output(fakes: Path, progress: Recorded) -> None:
    (fakes / "bin/python").write_text("#!/bin/sh\necho 'no such target' >&2; exit 1\n")
    with pytest.raises(SetUpError, match="no such target"):
        environment.build_first_library(progress)


def test_in_a_pipe_each_state_is_a_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    with progress.step("linker") as show_linker, progress.step("Python packages") as show_packages:
        show_linker("x86_64-linux-musl")
        show_packages("7 of about 221")
        progress.show()
        progress.say("waiting for another package manager")
    progress.show()
    assert re.sub(r"\d+ s\)", "0 s)", capsys.readouterr().out).splitlines() == [
        "set-up: linker: x86_64-linux-musl (0 s) | Python packages: 7 of about 221 (0 s)",
        "set-up: waiting for another package manager",
    ]


ON_A_TERMINAL = """
import sys
sys.path.insert(0, sys.argv[1])
from scripts.set_up.progress import Progress
progress = Progress()
with progress.shown(), progress.step("Python packages") as show:
    for number in range(3):
        show(f"{number} of about 221: a package with a name that is longer than any terminal")
        progress.show()
progress.say("ready")
"""


def test_on_a_terminal_one_line_is_written_anew() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "60", "LINES": "24"}
    words = [sys.executable, "-c", ON_A_TERMINAL, str(ROOT)]
    with subprocess.Popen(words, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while part := _read(ours):
            shown += part
    os.close(ours)
    assert process.returncode == 0, shown
    renewed, last = shown.decode().replace("\r\n", "\n").split("\n")
    assert last == ""
    pieces = renewed.split("\r\x1b[K")
    assert pieces[-1] == "set-up: ready"
    numbers = [piece[: len("set-up: Python packages: 0")] for piece in pieces if "Python packages" in piece]
    assert set(numbers) == {f"set-up: Python packages: {number}" for number in range(3)}
    assert all(len(piece) < 60 for piece in pieces)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # how a terminal says that its other end is gone
        return b""


@pytest.mark.parametrize("level", sample(["farm", "pytorch", "dev"], ["dev"]))
def test_what_is_announced_is_what_is_installed_here(level: str) -> None:
    found = installed("pockfarm", level)
    found |= installed("torch") if level != "farm" else set()
    found |= installed("torchvision") if level == "dev" else set()
    count, size_mb = PYTHON_PACKAGES[level]
    of_torch = found - installed("pockfarm", "cuda")
    if any(name.startswith("nvidia-") for name in of_torch):  # pip's index had PyTorch for GPUs only
        more, more_mb = PYTHON_PACKAGES["gpu"]
        count, size_mb = count + more, size_mb + more_mb
    assert abs(len(found) - count) <= 0.05 * count, len(found)
    actual_mb = sum(file.size or 0 for name in found for file in importlib.metadata.files(name) or ()) / 1e6
    assert abs(actual_mb - size_mb) <= 0.15 * size_mb, actual_mb


def installed(name: str, extra: str = "") -> set[str]:
    """The distributions that a requirement brings, itself among them, by what is installed here."""
    found: set[tuple[str, str]] = set()
    open_ones = [(canonical(name), extra)]
    while open_ones:
        one = open_ones.pop()
        if one in found:
            continue
        found.add(one)
        ours = PROJECT["optional-dependencies"].get(one[1], ())
        for text in ours if one[0] == "pockfarm" else importlib.metadata.requires(one[0]) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": one[1]}):
                open_ones += [(canonical(requirement.name), extra) for extra in ("", *requirement.extras)]
    return {one for one, _ in found}


DPKG = """Setting up postgresql-common (248+deb12u1) ...
pmstatus:postgresql-common:71.0:Configuring postgresql-common (amd64)
chown: invalid user: 'postgres'
dpkg: error processing package postgresql-common (--configure):
 installed postgresql-common package post-installation script subprocess returned error exit status 1
Setting up fish (3.6.0-3.1+deb12u1) ...
"""


def test_a_package_that_cannot_be_set_up_is_named_with_its_own_words() -> None:
    failed = subprocess.CompletedProcess(
        ["apt-get"], 100, DPKG, "E: Sub-process /usr/bin/dpkg returned an error code (1)"
    )
    assert debian.why_failed(failed) == (
        "Setting up postgresql-common (248+deb12u1) ... | chown: invalid user: 'postgres' | dpkg: error processing "
        "package postgresql-common (--configure): | installed postgresql-common package post-installation script "
        "subprocess returned error exit status 1"
    )
    without_output = subprocess.CompletedProcess(["apt-get"], 100, "", failed.stderr)
    assert debian.why_failed(without_output) == failed.stderr
