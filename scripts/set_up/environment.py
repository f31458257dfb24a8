"""The virtual environment in `.venv`: its Python packages, the linker's C libraries, and what is done already."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys

from scripts.set_up.debian import apt
from scripts.set_up.errors import SetUpError
from scripts.set_up.progress import ROOT, Progress, run

VENV = ROOT / ".venv"
DASHBOARD = ROOT / "service" / "dashboard"
"""Whose package.json asks for the chart library."""
LOG = VENV / "set-up.log"
LINKER_LOG = VENV / "linker.log"
LEVELS = ("farm", "pytorch", "dev")
TORCH = "torch==2.13.0"
"""For modules of one's own, and the tests; the farm and the demo do without."""
TORCHVISION = "torchvision==0.28.0"
"""For its model definitions; has no build for this PyTorch without CUDA, so it comes alone (`tests/vision.py`)."""
FIRST_LIBRARY = f"{platform.machine()}-linux-musl"
"""The C library that a compile for this machine links."""
NO_NPM = "there is no npm: charts stay pictures, which nobody can zoom; to have that: apt-get install npm"


def make_venv(progress: Progress) -> None:
    """Make `.venv` unless it is there. Raises: SetUpError."""
    if (VENV / "bin" / "python").exists():
        return
    progress.say("making the virtual environment in .venv")
    command = [sys.executable, "-m", "venv", str(VENV)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and os.geteuid() == 0 and shutil.which("apt-get"):
        apt(["python3-venv"], progress)
        done = subprocess.run([*command, "--clear"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shutil.rmtree(VENV, ignore_errors=True)
        raise SetUpError(f"no virtual environment (apt-get install python3-venv): {done.stderr or done.stdout}")


def install_linker(progress: Progress) -> None:
    """Install zig, so that its first C library can be built beside the other packages. Raises: SetUpError."""
    pip(progress, "install", "-c", "constraints.txt", "ziglang", about=1)


def install_python_packages(level: str, about: int, progress: Progress) -> None:
    """Install what a level asks for, at the versions of `constraints.txt`. Raises: SetUpError."""
    requirements = ["-e", f".[{level}]", *([TORCH] if level != "farm" else [])]
    pip(progress, "install", "-c", "constraints.txt", *requirements, about=about)
    if level == "dev":
        pip(progress, "install", "--no-deps", TORCHVISION)


def pip(progress: Progress, *arguments: str, about: int = 1) -> None:
    """Run pip with its output in the log, and show how many of `about` packages it has met. Raises: SetUpError.

    Modules are not compiled now but when they are first imported: most never are.
    """
    options = ["--disable-pip-version-check", "--no-input"]
    command = [str(VENV / "bin" / "python"), "-m", "pip", *options, arguments[0], "--no-compile", *arguments[1:]]
    names: set[str] = set()  # a resolver that goes back meets a package again

    def state(line: str) -> str | None:
        if line.startswith(("WARNING", "Attempting uninstall", "Found existing", "Uninstalling", "Successfully uni")):
            return None
        if match := re.match(r"(?:Collecting|Processing) (?:\S*/)?([A-Za-z0-9_.]+)", line):
            names.add(match[1].lower())
        if line.startswith("Installing collected packages"):
            return f"installing {line.count(',') + 1}"
        if match := re.match(r"(?:Downloading|Using cached) (?:\S*/)?(\S+\.whl) (\(.*\))", line):
            return f"{len(names)} of about {about}: {match[1]} {match[2]}"
        return f"{len(names)} of about {about}: {line[:70]}"

    with progress.step("Python packages") as show, LOG.open("a") as log:
        done = run(command, state, show, log=log.write)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise SetUpError(f"pip failed ({' '.join(last)}); its output is in {LOG.relative_to(ROOT)}")


def install_chart_library(level: str, progress: Progress) -> None:
    """What `package-lock.json` names, to the byte. Raises: SetUpError, where the tests need it."""
    npm = shutil.which("npm")
    if npm is None:
        progress.say(NO_NPM)
        return
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    with progress.step("chart library"):
        done = subprocess.run(
            command, cwd=DASHBOARD, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    if done.returncode != 0 and level == "dev":
        raise SetUpError(f"npm ci failed in {DASHBOARD.relative_to(ROOT)}: {done.stderr.strip()[-400:]}")
    if done.returncode != 0:
        progress.say(f"going on without it, charts stay pictures: {done.stderr.strip()[-400:]}")


def build_first_library(progress: Progress) -> None:
    """Build the C library that a compile for this machine links. Raises: SetUpError."""
    program = f"from compiler.codegen.linking.toolchain import ensure_library; ensure_library({FIRST_LIBRARY!r})"
    with progress.step(f"linker: {FIRST_LIBRARY}") as show:
        done = run([str(VENV / "bin" / "python"), "-c", program], str.strip, show)
    if done.returncode != 0:
        last = done.stderr.strip()[-600:]
        raise SetUpError(f"the linker (zig cc) could not build its C library; the reason is above\n{last}")


def build_other_libraries(progress: Progress) -> None:
    """Start to build the C libraries of all other targets, by a process that goes on when set-up is over."""
    command = ["nice", "-n", "10", str(VENV / "bin" / "python"), "-m", "compiler.codegen.linking.shared"]
    with LINKER_LOG.open("w") as log:
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    progress.say(
        "the linker's C libraries for other kinds of machine are being built meanwhile "
        f"({LINKER_LOG.relative_to(ROOT)}); a compile that needs one waits for it and says so"
    )


def is_done(level: str) -> bool:
    """Whether this level, or one that includes it, is set up as the checkout asks for now."""
    stamps = [VENV / f"set-up-{name}" for name in LEVELS[LEVELS.index(level) :]]
    return any(stamp.exists() and stamp.read_text() == fingerprint() for stamp in stamps)


def mark_done(level: str) -> None:
    (VENV / f"set-up-{level}").write_text(fingerprint())


def fingerprint() -> str:
    """Digest of what decides the environment."""
    digest = hashlib.sha256(sys.version.encode())
    sources = sorted((ROOT / "scripts" / "set_up").glob("*.py"))
    for path in (ROOT / "pyproject.toml", ROOT / "constraints.txt", DASHBOARD / "package-lock.json", *sources):
        digest.update(path.read_bytes())
    return digest.hexdigest()
