"""What set-up shows while it works: what it will do, how much that is, and where it is, on a terminal and in a pipe."""

from __future__ import annotations

import importlib.metadata
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.architecture.sources import ROOT
from tests.architecture.test_set_up import PROJECT, canonical, load_script

APT = """#!/bin/sh
case "$*" in
update*) exit 0 ;;
*--assume-no*)
    echo "0 upgraded, 37 newly installed, 0 to remove and 2 not upgraded."
    echo "Need to get 112 MB of archives."
    echo "After this operation, 423 MB of additional disk space will be used."
    echo "Do you want to continue? [Y/n] N"; exit 1 ;;
install*)
    echo "dlstatus:1:20.4:Retrieving file 4 of 37"
    sleep 0.5
    echo "pmstatus:chromium:61.2:Unpacking chromium (amd64)"
    sleep 0.5
    touch "$FAKES/chromium"; chmod +x "$FAKES/chromium" ;;
esac
"""
PYTHON = """#!/bin/sh
case "$*" in
*"-m pip"*torchvision*) exit 0 ;;
*"-m pip"*)
    echo "Collecting numpy>=2"
    echo "  Downloading numpy-2.1.0-cp311-cp311-linux.whl (16.3 MB)"
    sleep 0.5
    echo "Processing /somewhere/onnx-1.21.0-cp311-linux.whl (from pockfarm)"
    sleep 0.5
    echo "Installing collected packages: numpy, onnx, pockfarm"
    sleep 0.5
    [ -z "$FAILS" ] || { echo "ERROR: no space left" >&2; exit 1; } ;;
*warm_everything*) echo aarch64-linux-musl; sleep 0.5; echo x86_64-linux-musl; sleep 0.5 ;;
esac
"""
CALL = """
import importlib.util, os, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("set_up_script", sys.argv[1])
script = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = script
spec.loader.exec_module(script)
script.ROOT = script.VENV = Path(sys.argv[2])
script.LOG = script.VENV / "set-up.log"
script.fingerprint = lambda: "this"
script.PROGRESS_INTERVAL_S = script.TERMINAL_INTERVAL_S = 0.2
script.SYSTEM_PACKAGES = [one for one in script.SYSTEM_PACKAGES if one.name == "chromium"]
os.geteuid = lambda: 0
sys.exit(script.main(["dev"]))
"""


@pytest.fixture
def fakes(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for name, text in (("apt-get", APT), ("bin/python", PYTHON)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def command(fakes: Path, **more: str) -> tuple[list[str], dict[str, str]]:
    words = [sys.executable, "-c", CALL, str(ROOT / "scripts/set_up.py"), str(fakes)]
    return words, {"PATH": f"{fakes}:/usr/bin:/bin", "FAKES": str(fakes), **more}


def in_a_pipe(fakes: Path, **more: str) -> tuple[list[tuple[float, str]], subprocess.Popen[str]]:
    """(Seconds since the start, line) of everything that was printed."""
    words, environment = command(fakes, **more)
    started = time.monotonic()
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        return [(time.monotonic() - started, line.rstrip("\n")) for line in process.stdout], process


def test_in_a_pipe_plain_lines_come_all_along(fakes: Path) -> None:
    lines, process = in_a_pipe(fakes)
    assert process.returncode == 0
    texts = [text for _, text in lines]
    assert all(text.startswith("set-up: ") for text in texts)
    assert not re.search("[\\r\\x1b]", "".join(texts))
    text = "\n".join(texts)
    assert re.search(r"Python packages  about \d+, [\d,]+ MB in .venv; \d to \d min", text.split("Python packages:")[0])
    assert re.search(r"Python packages: 1 of about \d+: numpy-2.1.0\S+ \(16.3 MB\) \(\d+ s\)", text)
    assert re.search(r"Python packages: 2 of about \d+: Processing /somewhere/onnx", text)
    assert "Python packages: installing 3 (" in text
    assert "linker: aarch64-linux-musl (" in text
    assert "linker: x86_64-linux-musl (" in text
    assert re.search(r"ready after \d+ s$", text)
    assert "Downloading numpy" in (fakes / "set-up.log").read_text()
    assert len(texts) >= 10, "some lines for each of the steps, which take half a second each"


def test_debian_packages_are_counted_before_they_come(fakes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script()
    monkeypatch.setenv("PATH", f"{fakes}:/usr/bin:/bin")
    assert script.how_much(["chromium"]) == "37 to install, 112 MB to fetch, 423 MB on the disk"


def test_debian_packages_show_where_apt_is(
    fakes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load_script()
    monkeypatch.setenv("PATH", f"{fakes}:/usr/bin:/bin")
    monkeypatch.setenv("FAKES", str(fakes))
    monkeypatch.setattr(script, "PROGRESS_INTERVAL_S", 0.2)
    script.apt(["chromium"])
    said = capsys.readouterr().out
    assert "set-up: Debian packages: 37 to install, 112 MB to fetch, 423 MB on the disk" in said
    assert re.search(r"Debian packages: install: 20% Retrieving file 4 of 37 \(\d s\)", said)
    assert re.search(r"Debian packages: install: 61% Unpacking chromium \(amd64\) \(\d s\)", said)


def test_on_a_terminal_one_line_is_written_anew(fakes: Path) -> None:
    words, environment = command(fakes, COLUMNS="60", LINES="24")
    ours, theirs = pty.openpty()
    with subprocess.Popen(words, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while part := _read(ours):
            shown += part
    os.close(ours)
    assert process.returncode == 0, shown
    lines = shown.decode().replace("\r\n", "\n").split("\n")
    renewed = [line for line in lines if "\r\x1b[K" in line]
    assert any(line.count("\r\x1b[Kset-up: Python packages: ") >= 3 for line in renewed)
    assert all(len(piece) < 60 for line in renewed for piece in line.split("\r\x1b[K")[:-1])
    assert re.fullmatch(r"\r\x1b\[Kset-up: ready after \d+ s|.*\x1b\[Kset-up: ready after \d+ s", lines[-2])


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # how a terminal says that its other end is gone
        return b""


def test_what_pip_said_last_is_the_reason(fakes: Path) -> None:
    lines, process = in_a_pipe(fakes, FAILS="yes")
    assert process.returncode == 1
    assert lines[-1][1] == "set-up: pip failed (ERROR: no space left); its output is in set-up.log"


def test_a_failing_step_is_shown_with_what_it_wrote_to_its_error_output(
    fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = load_script()
    (fakes / "bin/python").write_text("#!/bin/sh\necho 'no such target' >&2; exit 1\n")
    monkeypatch.setattr(script, "VENV", fakes)
    with pytest.raises(script.SetUpError, match="no such target"):
        script.warm_linker()


@pytest.mark.parametrize("level", ["farm", "pytorch", "dev"])
def test_what_is_announced_is_what_is_installed_here(level: str) -> None:
    script = load_script()
    found = installed("pockfarm", level)
    found |= installed("torch") if level != "farm" else set()
    found |= installed("torchvision") if level == "dev" else set()
    count, size_mb = script.PYTHON_PACKAGES[level]
    of_torch = found - installed("pockfarm", "cuda")
    if any(name.startswith("nvidia-") for name in of_torch):  # pip's index had PyTorch for GPUs only
        more, more_mb = script.PYTHON_PACKAGES["gpu"]
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
