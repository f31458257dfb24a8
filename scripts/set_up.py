"""Make the environment: `python3 scripts/set_up.py farm` (run the farm) or `dev` (run the tests too).

Standard library only, since it runs before anything is installed. It does what is missing and nothing else: Debian
packages (as root; otherwise it says what to install), the virtual environment in `.venv`, the Python packages at the
versions of `constraints.txt`, and the linker's C library for each target. A stamp in `.venv` makes later calls quick.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOG = VENV / "set-up.log"
LEVELS = ("farm", "dev")
TORCH = "torch==2.13.0"
"""For the tests only, which compare with it; the farm and the demo do without."""
TORCHVISION = "torchvision==0.28.0"
"""For its model definitions; has no build for this PyTorch without CUDA, so it comes alone (`tests/vision.py`)."""
PROGRESS_INTERVAL_S = 10.0
LOCK_TIMEOUT_S = 600.0
"""A machine that has just started may update itself for minutes."""
LOCK_PAUSE_S = 2.0
HELD_LOCK = "Could not get lock"


@dataclass(frozen=True)
class SystemPackage:
    """A Debian package that we need because of one of `programs` (a name on the path, or a glob of full paths)."""

    name: str
    programs: tuple[str, ...]
    reason: str
    required_by: tuple[str, ...]
    """The levels that cannot do without it; the others only lose a part."""

    def is_present(self) -> bool:
        return any(
            any(Path("/").glob(program.lstrip("/"))) if program.startswith("/") else shutil.which(program) is not None
            for program in self.programs
        )


SYSTEM_PACKAGES = (
    SystemPackage("qemu-user-static", ("qemu-aarch64-static",), "runs AArch64 binaries", ("dev",)),
    SystemPackage("chromium", ("chromium",), "opens the dashboard in the tests", ("dev",)),
    SystemPackage(
        "postgresql", ("/usr/lib/postgresql/*/bin/initdb",), "the tests run on PostgreSQL as on SQLite", ("dev",)
    ),
    *(
        SystemPackage(name, (program,), "a real S3 server for the tests of the whole topology", ())
        for name, program in (
            ("swift-proxy", "swift-proxy-server"),
            ("swift-account", "swift-account-server"),
            ("swift-container", "swift-container-server"),
            ("swift-object", "swift-object-server"),
            ("memcached", "memcached"),
        )
    ),
    SystemPackage("pypy3-venv", ("pypy3",), "a Python 3.9 on Debian 12, for the agent's tests", ()),
    SystemPackage(
        "python3-cryptography",
        ("/usr/lib/python3/dist-packages/cryptography",),
        "what boards have, for the agent's tests",
        (),
    ),
)
WANTED = {"farm": ("qemu-user-static",), "dev": tuple(package.name for package in SYSTEM_PACKAGES)}


class SetUpError(Exception):
    """Set-up cannot go on; the message says what to do."""


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in LEVELS:
        print(f"usage: set_up.py {'|'.join(LEVELS)}", file=sys.stderr)
        return 2
    try:
        set_up(arguments[0])
    except SetUpError as problem:
        print(f"set-up: {problem}", file=sys.stderr)
        return 1
    return 0


def set_up(level: str) -> None:
    """Do whatever is missing for `level`. Raises: SetUpError."""
    if sys.version_info < (3, 11):  # noqa: UP036 - an older Python may well be the one that runs this file
        raise SetUpError(f"Python 3.11 is needed, this is {sys.version.split()[0]}; try make PYTHON=python3.11")
    install_system_packages(level)
    if is_done(level):
        return
    started = time.monotonic()
    make_venv()
    install_python_packages(level)
    warm_linker()
    stamp(level).write_text(fingerprint())
    say(f"ready after {time.monotonic() - started:.0f} s")


def install_system_packages(level: str) -> None:
    missing = [package for package in SYSTEM_PACKAGES if package.name in WANTED[level] and not package.is_present()]
    if not missing:
        return
    names = [package.name for package in missing]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        apt(names)
        missing = [package for package in missing if not package.is_present()]
    for package in missing:
        say(f"missing: {package.name} ({package.reason})")
    if any(level in package.required_by for package in missing):
        raise SetUpError(f"install what is missing, then try again: apt-get install {' '.join(names)}")
    if missing:
        say(f"going on without; to have it: apt-get install {' '.join(names)}")


def apt(names: Sequence[str]) -> None:
    """Install Debian packages as root; failures show in what is still missing afterwards."""
    say(f"installing Debian packages: {' '.join(names)}")
    gives_up_at = time.monotonic() + LOCK_TIMEOUT_S
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *names]):
        done = apt_get(*command, gives_up_at=gives_up_at)
        if done.returncode != 0:
            say(f"apt-get {command[0]} failed: {done.stderr.strip()[-400:]}")


def apt_get(*arguments: str, gives_up_at: float) -> subprocess.CompletedProcess[str]:
    """Run apt-get to its end, after whoever holds one of its locks, until the monotonic clock shows `gives_up_at`.

    apt's own `DPkg::Lock::Timeout` does not wait for the lock of the package lists, and says nothing meanwhile.
    """
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    command = ["apt-get", *arguments]
    said = False
    while True:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        held = next((line for line in done.stderr.splitlines() if HELD_LOCK in line), None)
        if done.returncode == 0 or held is None or time.monotonic() > gives_up_at:
            return done
        if not said:
            left_s = max(0.0, gives_up_at - time.monotonic())
            say(f"waiting for another package manager, for at most {left_s:.0f} s ({held.strip()})")
            said = True
        time.sleep(LOCK_PAUSE_S)


def make_venv() -> None:
    if (VENV / "bin" / "python").exists():
        return
    say("making the virtual environment in .venv")
    command = [sys.executable, "-m", "venv", str(VENV)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and os.geteuid() == 0 and shutil.which("apt-get"):
        apt(["python3-venv"])
        done = subprocess.run([*command, "--clear"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shutil.rmtree(VENV, ignore_errors=True)
        raise SetUpError(f"no virtual environment (apt-get install python3-venv): {done.stderr or done.stdout}")


def install_python_packages(level: str) -> None:
    say("installing Python packages (a few minutes the first time; the log is .venv/set-up.log)")
    wanted = ["-e", f".[{level}]", *([TORCH] if level == "dev" else [])]
    pip("install", "-c", "constraints.txt", *wanted)
    if level == "dev":
        pip("install", "--no-deps", TORCHVISION)


def pip(*arguments: str) -> None:
    """Run pip with its output in the log and a line now and then for the person who waits. Raises: SetUpError."""
    command = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    shown_at = time.monotonic()
    last = ""
    with (
        LOG.open("a") as log,
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            if line.strip():
                last = line.strip()
            if time.monotonic() - shown_at > PROGRESS_INTERVAL_S:
                shown_at = time.monotonic()
                say(f"  {last[:100]}")
    if process.returncode != 0:
        raise SetUpError(f"pip failed ({last}); its output is in {LOG.relative_to(ROOT)}")


def warm_linker() -> None:
    """Let the linker build its C library for each target once, so that no compile has to wait for it."""
    say("building the linker's C library for each target (about a minute each, once)")
    program = "from compiler.codegen.linking.link import warm_toolchain; warm_toolchain()"
    done = subprocess.run(
        [str(VENV / "bin" / "python"), "-c", program], cwd=ROOT, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode != 0:
        raise SetUpError("the linker (zig cc) could not build its C library; the reason is above")


def is_done(level: str) -> bool:
    levels = LEVELS[LEVELS.index(level) :]
    return any(stamp(one).exists() and stamp(one).read_text() == fingerprint() for one in levels)


def stamp(level: str) -> Path:
    return VENV / f"set-up-{level}"


def fingerprint() -> str:
    """Digest of what decides the environment."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (ROOT / "pyproject.toml", ROOT / "constraints.txt", Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def say(message: str) -> None:
    print(message, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
