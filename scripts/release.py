"""Build a release: `python -m scripts.release [FOLDER]` writes the source distribution, the wheel and SHA256SUMS.

The source distribution is made from a copy of exactly the files that git tracks, and the wheel from that source
distribution: whatever lies about in a checkout is in neither, and who has the first can make the second. Only the chart
library, which git does not track, is put into the wheel from where `npm ci` has installed it. Nothing is fetched: the
build backend is the one of this environment. Every time in the wheel is the commit's, so the same commit
gives the same wheel.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from scripts import client_wheel

ROOT = Path(__file__).resolve().parent.parent
BACKEND = "import sys, setuptools.build_meta as backend; print(getattr(backend, sys.argv[1])(sys.argv[2]))"
SITE = Path("service/dashboard/manual/site")
SUMS = "SHA256SUMS"
DASHBOARD = Path("service", "dashboard")
LIBRARY = Path("node_modules", "uplot")
LIBRARY_FILES = ("LICENSE", "package.json", "dist/uPlot.iife.min.js", "dist/uPlot.min.css")


class ReleaseError(Exception):
    """There is no release; the message says what to do."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Build the source distribution and the wheels.")
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "dist", help="where to (default: dist)")
    words = "also with changes that are not committed: for tests, never for a release"
    site = "the documentation's site as `make docs` built it, for tests; a release builds its own"
    parser.add_argument("--site", type=Path, help=site)
    parser.add_argument("--as-it-is", action="store_true", help=words)
    options = parser.parse_args(arguments)
    try:
        if not options.as_it_is:
            refuse_what_is_not_ready()
        built = build(options.folder.absolute(), site=options.site, builds_site=not options.as_it_is)
    except ReleaseError as problem:
        print(f"release: {problem}", file=sys.stderr)
        return 1
    for path in built:
        print(path)
    return 0


def refuse_what_is_not_ready() -> None:
    """Raises: ReleaseError."""
    changed = git("status", "--porcelain")
    if changed:
        raise ReleaseError(f"commit these first, or put them aside:\n{changed}")
    number = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if not re.search(rf"^## \[{re.escape(number)}\] - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M):
        raise ReleaseError(f"CHANGELOG.md has no section `## [{number}] - YYYY-MM-DD`: name what the release holds")
    if not has_chart_library():
        raise ReleaseError(f"the chart library is not what {DASHBOARD}/package-lock.json names: run `npm ci` there")


def build(folder: Path, *, site: Path | None = None, builds_site: bool = True) -> list[Path]:
    """All files and their digests, in `folder`. Raises: ReleaseError."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pockfarm-release-") as name:
        work = Path(name)
        made_at = int(git("log", "-1", "--format=%ct"))
        tree = copy_tracked(work / "tree", made_at)
        source = folder / run_backend("build_sdist", tree, folder, made_at)
        shutil.unpack_archive(source, work / "source")
        (unpacked,) = (work / "source").iterdir()
        add_chart_library(unpacked, made_at)
        add_site(unpacked, made_at, build_site(unpacked, work / "site") if builds_site else site)
        client = work / "client"
        shutil.copytree(unpacked, client)
        client_wheel.keep_only_client(client)
        client_wheel.remove_client(unpacked)
        wheels = [folder / run_backend("build_wheel", one, folder, made_at) for one in (client, unpacked)]
    sums = folder / SUMS
    sums.write_text("".join(f"{sha256(path)}  {path.name}\n" for path in (source, *wheels)))
    return [source, *wheels, sums]


def copy_tracked(folder: Path, made_at: int) -> Path:
    """The files that git tracks, or will once they are added."""
    for line in git("ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0"):
        if line and (ROOT / line).is_file():
            to = folder / line
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / line, to)
            to.chmod(0o755 if os.access(ROOT / line, os.X_OK) else 0o644)
            os.utime(to, (made_at, made_at))
    return folder


def has_chart_library() -> bool:
    """Whether the version of the lock is installed here, whose bytes `npm ci` has compared with the lock's digest."""
    lock = json.loads((ROOT / DASHBOARD / "package-lock.json").read_text())["packages"][LIBRARY.as_posix()]
    told = ROOT / DASHBOARD / LIBRARY / "package.json"
    return told.is_file() and json.loads(told.read_text())["version"] == lock["version"]


def add_chart_library(tree: Path, made_at: int) -> None:
    """What pages load of it, and its licence. Without it the wheel's charts are pictures, which is said."""
    if not has_chart_library():
        print("release: no chart library in this wheel: `npm ci` has not been run", file=sys.stderr)
        return
    for name in LIBRARY_FILES:
        to = tree / DASHBOARD / LIBRARY / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / DASHBOARD / LIBRARY / name, to)
        to.chmod(0o644)
        os.utime(to, (made_at, made_at))


def build_site(tree: Path, folder: Path) -> Path:
    """The documentation of `tree`, as its own script builds it. Raises: ReleaseError."""
    command = [sys.executable, "-m", "scripts.manual", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"the documentation could not be built:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    return folder


def add_site(tree: Path, made_at: int, site: Path | None) -> None:
    """The documentation's site, where the farm looks for it. Without it the farm's /docs says that it was not built."""
    if site is None:
        print("release: no documentation in this wheel", file=sys.stderr)
        return
    for path in sorted(site.rglob("*")):
        if path.is_file():
            to = tree / SITE / path.relative_to(site)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
            to.chmod(0o644)
            os.utime(to, (made_at, made_at))


def run_backend(hook: str, tree: Path, folder: Path, made_at: int) -> str:
    """The file's name in `folder`. Raises: ReleaseError."""
    command = [sys.executable, "-c", BACKEND, hook, str(folder)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(made_at)}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"{hook} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout.splitlines()[-1]


def git(*words: str) -> str:
    """Raises: ReleaseError."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"git {words[0]} failed ({done.stderr.strip()}): a release is made from a checkout")
    return done.stdout.strip()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
