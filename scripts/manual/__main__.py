"""Build the site. Warnings of the generator, links that lead nowhere and anything inline that is left are errors."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import links, pages, policy, reference

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PARTS = ("furo", "sphinx", "sphinx-basic-ng")
DEFAULT = ROOT / "service" / "manual" / "site"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.manual", description="Build the documentation's site.")
    parser.add_argument(
        "folder", type=Path, nargs="?", default=DEFAULT, help="where to (default: service/dashboard/manual/site)"
    )
    folder = parser.parse_args(arguments).folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".manual-", dir=folder.parent) as name:
        work = Path(name)
        made = build(work)
        if made is None:
            return 1
        if folder.exists():
            folder.rename(work / "before")
        made.rename(folder)
    print(f"{folder}: {sum(1 for _ in folder.rglob('*.html'))} pages; a farm of this checkout serves them at /docs/")
    return 0


def build(work: Path) -> Path | None:
    """The site in `work`, or None after saying what is wrong."""
    source, site = work / "source", work / "site"
    pages.collect(ROOT, source)
    reference.write(ROOT, source / "reference")
    pages.order_folders(source)
    if not run_sphinx(source, site, work / "doctrees"):
        return None
    shutil.rmtree(site / "_sources", ignore_errors=True)
    for left in (".buildinfo", "objects.inv"):
        (site / left).unlink(missing_ok=True)
    add_notices(site)
    policy.apply(site)
    problems = [*policy.violations(site), *links.dead(site)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return None if problems else site


def add_notices(site: Path) -> None:
    """The licences of the packages whose scripts and style sheets the site holds."""
    folder = site / "_static" / "licences"
    folder.mkdir()
    for name in PARTS:
        files = importlib.metadata.files(name) or []
        (notice,) = [file for file in files if file.name.startswith("LICENSE") and "dist-info" in str(file)]
        (folder / f"{name}.txt").write_text(notice.read_text())


def run_sphinx(source: Path, site: Path, doctrees: Path) -> bool:
    strict = ["--fail-on-warning", "--keep-going", "--nitpicky", "--quiet"]
    places = ["-c", str(HERE), "-d", str(doctrees), str(source), str(site)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", "0"), "PYTHONHASHSEED": "0"}
    return (
        subprocess.run(
            [sys.executable, "-m", "sphinx", *strict, "-b", "html", *places], env=environment, check=False
        ).returncode
        == 0
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
