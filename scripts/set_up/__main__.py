"""Make the environment: `python3 -m scripts.set_up farm` (run the farm), `pytorch` (with it) or `dev` (run the tests).

It does what is missing and nothing else: Debian packages (as root; otherwise it says what to install), the virtual
environment in `.venv`, the Python packages at the versions of `constraints.txt`, the dashboard's chart library where
npm is there, and the linker's C library. It uses what it has installed before it says that it is ready. A stamp in
`.venv` makes later calls quick. It says first what it will install and about how long that takes, and then shows where
it is.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from scripts.set_up import debian, environment
from scripts.set_up.errors import SetUpError
from scripts.set_up.progress import Progress, duration

PYTHON_PACKAGES = {"farm": (77, 1040), "pytorch": (86, 1790), "dev": (221, 2680), "gpu": (19, 4020)}
"""How many, and MB, at each level, and more with PyTorch for GPUs, by constraints.txt (a test measures again)."""
MINUTES = {"farm": "1 to 3", "pytorch": "2 to 4", "dev": "3 to 6"}
"""On a machine of two to four cores and a line of 100 Mbit/s."""


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in environment.LEVELS:
        print(f"usage: set_up {'|'.join(environment.LEVELS)}", file=sys.stderr)
        return 2
    try:
        set_up(arguments[0], Progress())
    except SetUpError as problem:
        print(f"set-up: {problem}", file=sys.stderr)
        return 1
    return 0


def set_up(level: str, progress: Progress) -> None:
    """Do whatever is missing for `level`. Raises: SetUpError."""
    if sys.version_info < (3, 11):  # noqa: UP036 - an older Python may well be the one that runs this file
        raise SetUpError(f"Python 3.11 is needed, this is {sys.version.split()[0]}; try make PYTHON=python3.11")
    started = time.monotonic()
    is_done = environment.is_done(level)
    missing = debian.missing_packages(level)
    if is_done and not missing:
        return
    announce(level, missing, is_done, progress)
    with progress.shown():
        if is_done:
            debian.install_system_packages(level, progress)
        else:
            install(level, progress)
        with progress.step("trying what was installed"):
            debian.check_system_packages(level, progress)
    environment.mark_done(level)
    progress.say(f"ready after {duration(time.monotonic() - started)}")
    if not is_done:
        environment.build_other_libraries(progress)


def install(level: str, progress: Progress) -> None:
    """Debian packages, Python packages and the first C library, side by side. Raises: SetUpError."""

    def from_debian() -> None:
        debian.install_system_packages(level, progress)
        environment.install_chart_library(level, progress)

    environment.make_venv(progress)
    environment.install_linker(progress)
    side_by_side(
        from_debian,
        lambda: environment.install_python_packages(level, new_packages(level)[0], progress),
        lambda: environment.build_first_library(progress),
    )


def side_by_side(*acts: Callable[[], None]) -> None:
    """Run each in a thread of its own, to its end. Raises: the first problem, in the order of the arguments."""
    with ThreadPoolExecutor(len(acts)) as threads:
        results = [threads.submit(act) for act in acts]
    for result in results:
        result.result()


def announce(level: str, missing: Sequence[debian.SystemPackage], is_done: bool, progress: Progress) -> None:
    """Say what will be installed, how much that is, and about how long it takes."""
    progress.say(f"what is missing here for `{level}`; about {MINUTES[level]} min with a line of 100 Mbit/s:")
    if missing:
        progress.say(f"  Debian packages  {' '.join(package.name for package in missing)} and what they need")
    if is_done:
        return
    count, size_mb = new_packages(level)
    progress.say(f"  Python packages  about {count}, {size_mb:,} MB in .venv")
    if level != "farm":
        gpu_mb = PYTHON_PACKAGES["gpu"][1]
        progress.say(f"  PyTorch          among them; {gpu_mb:,} MB more if pip only has it for GPUs")
    if done_below(level) is None:
        progress.say(f"  chart library    {'uPlot by npm, 1 MB' if shutil.which('npm') else environment.NO_NPM}")
        progress.say("  linker           its C library for this machine; those for others are built afterwards")


def done_below(level: str) -> str | None:
    """The highest level below this one that is done."""
    levels = environment.LEVELS
    return next((name for name in reversed(levels[: levels.index(level)]) if environment.is_done(name)), None)


def new_packages(level: str) -> tuple[int, int]:
    """About how many packages will come, and MB."""
    (count, size_mb), present = PYTHON_PACKAGES[level], PYTHON_PACKAGES.get(done_below(level) or "", (0, 0))
    return count - present[0], size_mb - present[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
