"""The Debian packages that a checkout needs: installed by root, tried afterwards, and named where they are missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.set_up.errors import SetUpError
from scripts.set_up.progress import ROOT, Progress, run

LOCK_TIMEOUT_S = 600.0
"""A machine that has just started may update itself for minutes."""
LOCK_PAUSE_S = 2.0
CHECK_TIMEOUT_S = 120.0
HELD_LOCK = "Could not get lock"


@dataclass(frozen=True)
class SystemPackage:
    """A Debian package that we need because of one of `programs` (a name on the path, or a glob of full paths)."""

    name: str
    programs: tuple[str, ...]
    reason: str
    required_by: tuple[str, ...]
    """The levels that cannot do without it; the others only lose a part."""
    check: tuple[str, ...]
    """A command that uses it, run in the checkout: the package works if the command ends with code 0."""

    def is_present(self) -> bool:
        return any(
            any(Path("/").glob(program.lstrip("/"))) if program.startswith("/") else shutil.which(program) is not None
            for program in self.programs
        )

    def why_broken(self) -> str:
        """What the command that uses it says when it fails; empty if it works."""
        try:
            done = subprocess.run(
                self.check,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=CHECK_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"{self.check[0]} did not end within {CHECK_TIMEOUT_S:.0f} s"
        except OSError as problem:
            return str(problem)
        if done.returncode == 0:
            return ""
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return lines[-1] if lines else f"{self.check[0]} ended with code {done.returncode}"


def shell(script: str) -> tuple[str, ...]:
    """A check of several commands, in a folder of its own that is removed afterwards."""
    return ("sh", "-c", f'checkout=$PWD; folder=$(mktemp -d); trap "rm -rf $folder" EXIT; set -e; cd $folder; {script}')


AGENT = ".venv/bin/python -m device_agents.agent --probe --isolation 0"
OPEN_A_PAGE = shell(
    "chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--user-data-dir=$folder --dump-dom 'data:text/html,<p>opened</p>' >page 2>errors "
    "|| { tail -n 1 errors >&2; exit 1; }; grep -q opened page"
)
MAKE_A_CLUSTER = shell(
    "chmod 755 $folder; as=; [ $(id -u) != 0 ] || { chown postgres $folder; as='runuser -u postgres --'; }; "
    "$as $(ls -d /usr/lib/postgresql/*/bin | tail -n 1)/initdb -D $folder/cluster -U postgres --no-sync >/dev/null"
)
COMPILE_AND_RUN = shell("printf '#include <stdio.h>\\nint main(void) { return 0; }' >a.c; gcc a.c -o a; ./a")
ARM_LOADER = "/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1"

SYSTEM_PACKAGES = (
    SystemPackage(
        "qemu-user-static",
        ("qemu-aarch64-static",),
        "runs AArch64 binaries",
        ("dev",),
        tuple(f"{AGENT} --runner qemu-aarch64-static".split()),
    ),
    SystemPackage("chromium", ("chromium",), "opens the dashboard in the tests", ("dev",), OPEN_A_PAGE),
    SystemPackage(
        "postgresql",
        ("/usr/lib/postgresql/*/bin/initdb",),
        "the tests run on it as on SQLite",
        ("dev",),
        MAKE_A_CLUSTER,
    ),
    *(
        SystemPackage(name, (program,), "compiles and runs what a bundle brings for apps", ("dev",), check)
        for name, program, check in (
            ("gcc", "gcc", COMPILE_AND_RUN),
            ("libc6-dev", "/usr/include/stdio.h", COMPILE_AND_RUN),
            ("libc6-arm64-cross", ARM_LOADER, ("qemu-aarch64-static", ARM_LOADER, "--version")),
        )
    ),
    *(
        SystemPackage(
            f"swift-{part}",
            (f"swift-{part}-server",),
            "a real S3 server for the topology's tests",
            (),
            (f"swift-{part}-server", "--help"),
        )
        for part in ("proxy", "account", "container", "object")
    ),
    SystemPackage("memcached", ("memcached",), "what that S3 server needs", (), ("memcached", "-V")),
    SystemPackage(
        "npm", ("npm",), "installs the dashboard's chart library, which the tests zoom with", ("dev",), ("npm", "-v")
    ),
    *(
        SystemPackage(name, (program,), reason, ("dev",), tuple(f"{AGENT} --engine opencl".split()))
        for name, program, reason in (
            ("ocl-icd-libopencl1", "/usr/lib/*/libOpenCL.so.1", "loads OpenCL's drivers"),
            ("pocl-opencl-icd", "/etc/OpenCL/vendors/pocl*.icd", "runs OpenCL on the CPU"),
        )
    ),
    SystemPackage(
        "pypy3-venv",
        ("pypy3",),
        "a Python 3.9 on Debian 12, for the agent's tests",
        (),
        ("pypy3", "-c", "import ensurepip, venv"),
    ),
    SystemPackage(
        "systemd", ("systemd-analyze",), "checks our units in the tests", (), ("systemd-analyze", "--version")
    ),
    *(
        SystemPackage(name, (name,), "completes our commands in the tests", (), (name, "-c", "exit 0"))
        for name in ("zsh", "fish")
    ),
    SystemPackage(
        "python3-cryptography",
        ("/usr/lib/python3/dist-packages/cryptography",),
        "what boards have",
        (),
        ("/usr/bin/python3", "-c", "from cryptography.hazmat.primitives.asymmetric import ed25519"),
    ),
)


def wanted_packages(level: str) -> tuple[SystemPackage, ...]:
    """What a level uses: the tests everything, a farm the emulator alone."""
    if level == "dev":
        return SYSTEM_PACKAGES
    return tuple(package for package in SYSTEM_PACKAGES if package.name == "qemu-user-static")


def missing_packages(level: str) -> list[SystemPackage]:
    return [package for package in wanted_packages(level) if not package.is_present()]


def install_system_packages(level: str, progress: Progress) -> None:
    """Install what is missing, as root. Raises: SetUpError where a package is missing that the level needs."""
    missing = missing_packages(level)
    if not missing:
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        apt([package.name for package in missing], progress)
    problems = {package: "not installed" for package in missing if not package.is_present()}
    report(level, problems, progress)


def check_system_packages(level: str, progress: Progress) -> None:
    """Use each package that is there. Raises: SetUpError where one does not work that the level needs."""
    present = [package for package in wanted_packages(level) if package.is_present()]
    report(level, {package: reason for package in present if (reason := package.why_broken())}, progress)


def report(level: str, problems: dict[SystemPackage, str], progress: Progress) -> None:
    """Name what is missing or broken. Raises: SetUpError where the level needs it."""
    if not problems:
        return
    for package, problem in problems.items():
        progress.say(f"missing: {package.name} ({package.reason}): {problem}")
    command = f"apt-get install {' '.join(package.name for package in problems)}"
    if any(level in package.required_by for package in problems):
        raise SetUpError(f"install what is missing, then try again: {command}")
    progress.say(f"going on without; to have it: {command}")


def apt(names: Sequence[str], progress: Progress) -> None:
    """Install Debian packages as root; failures show in what is still missing afterwards."""
    gives_up_at = time.monotonic() + LOCK_TIMEOUT_S
    install = ["install", "-y", "-qq", "--no-install-recommends"]
    for command in (["update", "-qq"], [*install, *names]):
        if command[0] == "install":
            progress.say(f"Debian packages: {how_much(names)}")
        done = apt_get(*command, gives_up_at=gives_up_at, progress=progress)
        if done.returncode != 0:
            progress.say(f"apt-get {command[0]} failed: {why_failed(done)}")


def why_failed(done: subprocess.CompletedProcess[str]) -> str:
    """What dpkg said of each package that it could not set up, or else the last that apt said."""
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    lines = [line for line in lines if not line.startswith(("pmstatus:", "dlstatus:"))]
    errors = [at for at, line in enumerate(lines) if line.startswith("dpkg: error processing")]
    if not errors:
        return done.stderr.strip()[-400:]
    return " | ".join(dict.fromkeys(line for at in errors for line in lines[max(0, at - 2) : at + 2]))


def how_much(names: Sequence[str]) -> str:
    """What apt says it would install: how many packages, and how much to fetch and on the disk."""
    command = ["env", "LC_ALL=C", "apt-get", "install", "--assume-no", "--no-install-recommends", *names]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    fetch, disk = r"Need to get (?:\S+ \S+/)?([\d.,]+ \w+)", r"operation, ([\d.,]+ \w+)"
    matches = [re.search(pattern, done.stdout) for pattern in (r"(\d+) newly installed", fetch, disk)]
    texts = [match[1] if match else "?" for match in matches]
    if texts == ["?", "?", "?"]:
        return f"installing {' '.join(names)}"
    return f"{texts[0]} to install, {texts[1]} to fetch, {texts[2]} on the disk"


def apt_get(*arguments: str, gives_up_at: float, progress: Progress) -> subprocess.CompletedProcess[str]:
    """Run apt-get to its end, after whoever holds one of its locks, until the monotonic clock shows `gives_up_at`.

    apt's own `DPkg::Lock::Timeout` does not wait for the lock of the package lists, and says nothing meanwhile.
    """
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    command = ["apt-get", arguments[0], "-o", "APT::Status-Fd=1", *arguments[1:]]
    has_said_so = False
    with progress.step(f"Debian packages: {arguments[0]}") as show:
        while True:
            done = run(command, apt_state, show, environment=environment)
            held = next((line for line in done.stderr.splitlines() if HELD_LOCK in line), None)
            if done.returncode == 0 or held is None or time.monotonic() > gives_up_at:
                return done
            if not has_said_so:
                left_s = max(0.0, gives_up_at - time.monotonic())
                progress.say(f"waiting for another package manager, for at most {left_s:.0f} s ({held.strip()})")
                has_said_so = True
            time.sleep(LOCK_PAUSE_S)


def apt_state(line: str) -> str | None:
    """What a line of apt's status tells a person ("dlstatus:1:20:Retrieving file 1 of 9"), or None."""
    parts = line.split(":", 3)
    if parts[0] not in ("dlstatus", "pmstatus") or len(parts) < 4:
        return None
    return f"{float(parts[2]):.0f}% {parts[3]}" if re.fullmatch(r"[\d.]+", parts[2]) else parts[3]
