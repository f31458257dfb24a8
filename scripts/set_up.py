"""Make the environment: `python3 scripts/set_up.py farm` (run the farm), `pytorch` (with it) or `dev` (run the tests).

Standard library only, since it runs before anything is installed. It does what is missing and nothing else: Debian
packages (as root; otherwise it says what to install), the virtual environment in `.venv`, the Python packages at the
versions of `constraints.txt`, the dashboard's chart library where npm is there, and the linker's C library for each
target. A stamp in `.venv` makes later calls quick. It says first what it will install and about how long that takes,
and then shows where it is: on a terminal a line that is written anew, elsewhere a line at least every ten seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
DASHBOARD = ROOT / "service" / "dashboard"
"""Whose package.json asks for the chart library."""
LOG = VENV / "set-up.log"
LEVELS = ("farm", "pytorch", "dev")
TORCH = "torch==2.13.0"
"""For modules of one's own, and the tests; the farm and the demo do without."""
TORCHVISION = "torchvision==0.28.0"
"""For its model definitions; has no build for this PyTorch without CUDA, so it comes alone (`tests/vision.py`)."""
PYTHON_PACKAGES = {"farm": (77, 1040), "pytorch": (86, 1790), "dev": (221, 2680), "gpu": (19, 4020)}
"""How many, and MB, at each level, and more with PyTorch for GPUs, by constraints.txt (a test measures again)."""
MINUTES = {"Debian packages": "1 to 3", "Python packages": "2 to 5", "linker": "1 to 5"}
"""On a machine of two to four cores and a line of 100 Mbit/s."""
PROGRESS_INTERVAL_S, TERMINAL_INTERVAL_S = 9.0, 0.5
LOCK_TIMEOUT_S = 600.0
"""A machine that has just started may update itself for minutes."""
LOCK_PAUSE_S = 2.0
NO_NPM = "there is no npm: charts stay pictures, which nobody can zoom; to have that: apt-get install npm"
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
    SystemPackage("postgresql", ("/usr/lib/postgresql/*/bin/initdb",), "the tests run on it as on SQLite", ("dev",)),
    *(
        SystemPackage(name, (program,), "compiles and runs what a bundle brings for apps", ("dev",))
        for name, program in (
            ("gcc", "gcc"),
            ("libc6-dev", "/usr/include/stdio.h"),
            ("libc6-arm64-cross", "/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1"),
        )
    ),
    *(
        SystemPackage(f"swift-{part}", (f"swift-{part}-server",), "a real S3 server for the topology's tests", ())
        for part in ("proxy", "account", "container", "object")
    ),
    SystemPackage("memcached", ("memcached",), "what that S3 server needs", ()),
    SystemPackage("npm", ("npm",), "installs the dashboard's chart library, which the tests zoom with", ("dev",)),
    SystemPackage("pocl-opencl-icd", ("/etc/OpenCL/vendors/pocl*.icd",), "runs OpenCL on the CPU", ("dev",)),
    SystemPackage("pypy3-venv", ("pypy3",), "a Python 3.9 on Debian 12, for the agent's tests", ()),
    *(SystemPackage(name, (name,), "completes our commands in the tests", ()) for name in ("zsh", "fish")),
    SystemPackage("python3-cryptography", ("/usr/lib/python3/dist-packages/cryptography",), "what boards have", ()),
)
WANTED = dict.fromkeys(LEVELS, ("qemu-user-static",)) | {"dev": tuple(package.name for package in SYSTEM_PACKAGES)}


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
    started = time.monotonic()
    missing, done = missing_packages(level), is_done(level)
    if not missing and done:
        return
    announce(level, missing, done)
    install_system_packages(level)
    if not done:
        make_venv()
        install_python_packages(level)
        install_chart_library(level)
        warm_linker()
        stamp(level).write_text(fingerprint())
    say(f"ready after {duration(time.monotonic() - started)}")


def announce(level: str, missing: Sequence[SystemPackage], done: bool) -> None:
    """Say what will be installed, how much that is, and about how long it takes."""
    say(f"what is missing here for `{level}`, and about how long it takes with a line of 100 Mbit/s:")
    if missing:
        names = " ".join(package.name for package in missing)
        say(f"  Debian packages  {names} and what they need; {MINUTES['Debian packages']} min")
    if not done:
        count, size_mb = new_packages(level)
        say(f"  Python packages  about {count}, {size_mb:,} MB in .venv; {MINUTES['Python packages']} min")
        if level != "farm":
            say(f"  PyTorch          among them; {PYTHON_PACKAGES['gpu'][1]:,} MB more if pip only has it for GPUs")
    if not done and not done_below(level):
        say("  chart library    uPlot by npm, 1 MB; seconds" if shutil.which("npm") else f"  chart library    {NO_NPM}")
        say(f"  linker           its C library for each kind of machine; {MINUTES['linker']} min")


def done_below(level: str) -> str | None:
    """The highest level below this one that is done."""
    return next((one for one in reversed(LEVELS[: LEVELS.index(level)]) if is_done(one)), None)


def new_packages(level: str) -> tuple[int, int]:
    """About how many packages will come, and MB."""
    (count, size_mb), there = PYTHON_PACKAGES[level], PYTHON_PACKAGES.get(done_below(level) or "", (0, 0))
    return count - there[0], size_mb - there[1]


def missing_packages(level: str) -> list[SystemPackage]:
    return [package for package in SYSTEM_PACKAGES if package.name in WANTED[level] and not package.is_present()]


def install_system_packages(level: str) -> None:
    missing = missing_packages(level)
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
    gives_up_at = time.monotonic() + LOCK_TIMEOUT_S
    install = ["install", "-y", "-qq", "--no-install-recommends"]
    say("Debian packages: reading what there is")
    for command in (["update", "-qq"], [*install, *names]):
        if command[0] == "install":
            say(f"Debian packages: {how_much(names)}")
        done = apt_get(*command, gives_up_at=gives_up_at)
        if done.returncode != 0:
            say(f"apt-get {command[0]} failed: {done.stderr.strip()[-400:]}")


def how_much(names: Sequence[str]) -> str:
    """What apt says it would install: how many packages, and how much to fetch and on the disk."""
    command = ["env", "LC_ALL=C", "apt-get", "install", "--assume-no", "--no-install-recommends", *names]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    fetch, disk = r"Need to get (?:\S+ \S+/)?([\d.,]+ \w+)", r"operation, ([\d.,]+ \w+)"
    found = [re.search(pattern, done.stdout) for pattern in (r"(\d+) newly installed", fetch, disk)]
    texts = [match[1] if match else "?" for match in found]
    if texts == ["?", "?", "?"]:
        return f"installing {' '.join(names)}"
    return f"{texts[0]} to install, {texts[1]} to fetch, {texts[2]} on the disk"


def apt_get(*arguments: str, gives_up_at: float) -> subprocess.CompletedProcess[str]:
    """Run apt-get to its end, after whoever holds one of its locks, until the monotonic clock shows `gives_up_at`.

    apt's own `DPkg::Lock::Timeout` does not wait for the lock of the package lists, and says nothing meanwhile.
    """
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    command = ["apt-get", arguments[0], "-o", "APT::Status-Fd=1", *arguments[1:]]
    said = False
    while True:
        done = run_shown(command, f"Debian packages: {arguments[0]}", apt_state, environment=environment)
        held = next((line for line in done.stderr.splitlines() if HELD_LOCK in line), None)
        if done.returncode == 0 or held is None or time.monotonic() > gives_up_at:
            return done
        if not said:
            left_s = max(0.0, gives_up_at - time.monotonic())
            say(f"waiting for another package manager, for at most {left_s:.0f} s ({held.strip()})")
            said = True
        time.sleep(LOCK_PAUSE_S)


def apt_state(line: str) -> str | None:
    """What a line of apt's status tells a person ("dlstatus:1:20:Retrieving file 1 of 9"), or None."""
    parts = line.split(":", 3)
    if parts[0] not in ("dlstatus", "pmstatus") or len(parts) < 4:
        return None
    return f"{float(parts[2]):.0f}% {parts[3]}" if re.fullmatch(r"[\d.]+", parts[2]) else parts[3]


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
    say("Python packages: the whole output goes to .venv/set-up.log")
    wanted = ["-e", f".[{level}]", *([TORCH] if level != "farm" else [])]
    pip("install", "-c", "constraints.txt", *wanted, about=new_packages(level)[0])
    if level == "dev":
        pip("install", "--no-deps", TORCHVISION)


def pip(*arguments: str, about: int = 1) -> None:
    """Run pip with its output in the log, and show how many of `about` packages it has found. Raises: SetUpError."""
    command = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    found: set[str] = set()  # a resolver that goes back meets a package again

    def state(line: str) -> str:
        if line.startswith("WARNING"):
            return ""
        if match := re.match(r"(?:Collecting|Processing) (?:\S*/)?([A-Za-z0-9_.]+)", line):
            found.add(match[1].lower())
        if line.startswith("Installing collected packages"):
            return f"installing {line.count(',') + 1}"
        if match := re.match(r"(?:Downloading|Using cached) (?:\S*/)?(\S+\.whl) (\(.*\))", line):
            return f"{len(found)} of about {about}: {match[1]} {match[2]}"
        return f"{len(found)} of about {about}: {line[:70]}"

    with LOG.open("a") as log:
        done = run_shown(command, "Python packages", state, log=log.write)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise SetUpError(f"pip failed ({' '.join(last)}); its output is in {LOG.relative_to(ROOT)}")


def install_chart_library(level: str) -> None:
    """What `package-lock.json` names, to the byte. Raises: SetUpError, where the tests need it."""
    npm = shutil.which("npm")
    if npm is None:
        say(NO_NPM)
        return
    say("chart library: uPlot, by npm")
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=DASHBOARD, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0 and level == "dev":
        raise SetUpError(f"npm ci failed in {DASHBOARD.relative_to(ROOT)}: {done.stderr.strip()[-400:]}")
    if done.returncode != 0:
        say(f"going on without it, charts stay pictures: {done.stderr.strip()[-400:]}")


def warm_linker() -> None:
    """Let the linker build its C library for each target once, so that no compile has to wait for it."""
    say("linker: building its C library for each kind of machine, once")
    program = (
        "from compiler.codegen.linking.shared import warm_everything\n"
        "for triple in warm_everything(): print(triple, flush=True)"
    )
    done = run_shown([str(VENV / "bin" / "python"), "-c", program], "linker", str.strip)
    if done.returncode != 0:
        last = done.stderr.strip()[-600:]
        raise SetUpError(f"the linker (zig cc) could not build its C library; the reason is above\n{last}")


def run_shown(
    command: Sequence[str],
    what: str,
    state: Callable[[str], str | None],
    *,
    environment: dict[str, str] | None = None,
    log: Callable[[str], object] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `command` to its end and show, all along, what `state` makes of its newest line and how long it has run.

    It is shown by the clock, not by the command: some are silent for minutes.
    """
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    started = time.monotonic()
    kept: list[str] = []
    errors: list[str] = []
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, errors="replace",
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        outputs = ((process.stdout, kept), (process.stderr, errors))
        readers = [threading.Thread(target=_read, args=(stream, into, lines)) for stream, into in outputs]
        for reader in readers:
            reader.start()
        _show_until_end(lines, what, state, log, started)
        for reader in readers:
            reader.join()
    if sys.stdout.isatty():
        print("\r\x1b[K", end="", flush=True)
    return subprocess.CompletedProcess(list(command), process.returncode, "".join(kept), "".join(errors))


def _read(stream: Iterable[str], into: list[str], lines: queue.SimpleQueue[str | None]) -> None:
    for line in stream:
        into.append(line)
        lines.put(line)
    lines.put(None)


def _show_until_end(
    lines: queue.SimpleQueue[str | None],
    what: str,
    state: Callable[[str], str | None],
    log: Callable[[str], object] | None,
    started: float,
) -> None:
    """Read both outputs to their ends; the newest state is shown whenever it is time, with lines or without."""
    interval_s = TERMINAL_INTERVAL_S if sys.stdout.isatty() else PROGRESS_INTERVAL_S
    newest, ended, due = "working", 0, started + interval_s
    while ended < 2:
        line: str | None = ""
        with contextlib.suppress(queue.Empty):
            line = lines.get(timeout=max(0.0, due - time.monotonic()))
        ended += line is None
        if line and log:
            log(line)
        newest = (line and line.strip() and state(line.strip())) or newest
        if time.monotonic() >= due:
            show(f"{what}: {newest} ({duration(time.monotonic() - started)})")
            due = time.monotonic() + interval_s


def is_done(level: str) -> bool:
    levels = LEVELS[LEVELS.index(level) :]
    return any(stamp(one).exists() and stamp(one).read_text() == fingerprint() for one in levels)


def stamp(level: str) -> Path:
    return VENV / f"set-up-{level}"


def fingerprint() -> str:
    """Digest of what decides the environment."""
    digest = hashlib.sha256(sys.version.encode())
    lock = DASHBOARD / "package-lock.json"
    for path in (ROOT / "pyproject.toml", ROOT / "constraints.txt", lock, Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def duration(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


def say(message: str) -> None:
    print(f"set-up: {message}", flush=True)


def show(message: str) -> None:
    """Progress: on a terminal in place of what was shown last, elsewhere a line of its own."""
    if not sys.stdout.isatty():
        say(message)
        return
    width = shutil.get_terminal_size().columns - 1
    print(f"\r\x1b[K{f'set-up: {message}'[:width]}", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
