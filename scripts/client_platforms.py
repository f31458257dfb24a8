"""Does the client's wheel hold where it is for? `python -m scripts.client_platforms [types|types-SYSTEM|packages]`.

`types`: its files alone are checked by mypy for each system, or one, as if it ran there. `packages`: everything that it
depends on is looked for as a wheel, for each system and Python, by pip; this asks the package index. Python 3.11 runs
it here (tests/thorough/release), and vermin finds what needs more than Python 3.9.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from packaging.requirements import Requirement

from scripts import client_wheel

ROOT = Path(__file__).resolve().parent.parent
SYSTEMS = {
    "linux": ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"),
    "linux-arm": ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"),
    "darwin": (
        "macosx_14_0_arm64",
        "macosx_12_0_arm64",
        "macosx_11_0_arm64",
        "macosx_12_0_universal2",
        "macosx_10_9_universal2",
    ),
    "win32": ("win_amd64",),
}
"""By the name that mypy and `sys.platform` have; tags of wheels that such a machine takes."""
FOUND = "Would install"
ATTEMPTS = 3
"""To pip, an index that does not answer has no versions: what is not found is looked for again."""
PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
TYPED = {"win32": "3.12", "darwin": "3.14", "linux": "3.10"}
"""mypy knows no older one."""
FARMS = ("pockfarm/own_farm/parts.py", "pockfarm/own_farm/supervisor.py")
"""What only runs where a farm does, on Linux; the command line loads it everywhere."""


def main(arguments: Sequence[str]) -> int:
    checks: dict[str, Callable[[], Iterator[str]]] = {"types": lambda: type_errors(TYPED), "packages": missing_packages}
    chosen = arguments or list(checks)
    checks |= {f"types-{system}": partial(type_errors, {system: TYPED[system]}) for system in TYPED}
    if set(chosen) - set(checks):
        print(f"usage: client_platforms.py [{'|'.join(checks)}]", file=sys.stderr)
        return 2
    found = [problem for name in chosen for problem in checks[name]()]
    print(*found, sep="\n")
    return 1 if found else 0


def type_errors(typed: Mapping[str, str]) -> Iterator[str]:
    """What mypy says of the client's files on each system, with a Python of its."""
    with tempfile.TemporaryDirectory(prefix="pockfarm-client-") as name:
        tree = Path(name)
        for file in client_wheel.client_files(ROOT) - client_wheel.DOORS:
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, tree / file)
        for system, python in typed.items():
            print(f"types: {system}, Python {python}", file=sys.stderr)
            # NumPy's own stubs are for Python 3.12 and later: before, what it returns counts as `Any`.
            words = ["--platform", system, "--python-version", python, "--no-warn-return-any", "pockfarm"]
            command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), *words]
            cache = {"MYPY_CACHE_DIR": str(ROOT / "build" / f"mypy-{system}")}
            done = subprocess.run(
                command, cwd=tree, env={**os.environ, **cache}, capture_output=True, text=True, check=False
            )
            lines = [line for line in done.stdout.splitlines() if ": error:" in line and not line.startswith(FARMS)]
            yield from (f"{system}, Python {python}: {line}" for line in lines)
            if done.returncode not in (0, 1):
                yield f"{system}, Python {python}: {done.stdout}{done.stderr}"


def missing_packages() -> Iterator[str]:
    """Systems and Pythons for which pip finds no set of wheels."""
    project = tomllib.loads(client_wheel.client_project((ROOT / "pyproject.toml").read_text()))["project"]
    found = 0
    for system, tags in SYSTEMS.items():
        for python in PYTHONS:
            said = resolved(project["dependencies"], tags, python)
            print(f"packages: {system}, Python {python}: {said.splitlines()[-1]}", file=sys.stderr)
            found += said.startswith(FOUND)
            if not said.startswith(FOUND):
                yield f"{system}, Python {python}: {said}"
    print(f"packages: wheels for {found} of {len(SYSTEMS) * len(PYTHONS)} systems and Pythons", file=sys.stderr)


def resolved(needs: Sequence[str], tags: Sequence[str], python: str) -> str:
    """What pip would install, or why not, at the last attempt."""
    said = ""
    for _ in range(ATTEMPTS):
        said = asked(needs, tags, python)
        if said.startswith(FOUND):
            break
    return said


def asked(needs: Sequence[str], tags: Sequence[str], python: str) -> str:
    """What pip would install, or why not. Markers are read here: pip's are those of the Python that it runs on."""
    read = [Requirement(line) for line in needs]
    chosen = [one for one in read if one.marker is None or one.marker.evaluate({"python_version": python})]
    wanted = [f"{one.name}{one.specifier}" for one in chosen]
    with tempfile.TemporaryDirectory() as target:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--dry-run",
            "--only-binary=:all:",
            "--ignore-installed",
            "--disable-pip-version-check",
            "--quiet",
            "--report",
            "-",
            "--target",
            target,
            "--implementation",
            "cp",
            "--python-version",
            python,
        ]
        command += [word for tag in tags for word in ("--platform", tag)] + wanted
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return "\n".join(line for line in done.stderr.splitlines() if "ERROR" in line) or done.stderr
    items = json.loads(done.stdout)["install"]
    return f"{FOUND} " + " ".join(f"{one['metadata']['name']}-{one['metadata']['version']}" for one in items)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
