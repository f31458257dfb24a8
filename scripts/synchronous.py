"""Write `pockfarm/client/synchronous/` from `pockfarm/client/asynchronous/`: `python -m scripts.synchronous [FOLDER]`.

Both kinds of client are one source: what `async` and `await` are taken from is the other, word by word (unasync). Names
that differ stand in `NAMES`. `make golden` runs it; a test compares.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import unasync

ROOT = Path(__file__).resolve().parent.parent
CLIENT = Path("pockfarm") / "client"
SOURCE = CLIENT / "asynchronous"
MADE = CLIENT / "synchronous"
NAMES = {
    "aclose": "close",
    "aiter_bytes": "iter_bytes",
    "aread": "read",
    "run_in_thread": "run_here",
    "asynchronous": "synchronous",
    "asyncio": "time",
    "AsyncBaseTransport": "BaseTransport",
}
"""Beside those of unasync itself, and our classes, which lose their `Async`."""
NOTICE = "# Made from {source} by scripts/synchronous.py: change that one, then `make golden`.\n"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Write the client without async and await.")
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / MADE, help=f"where to (default: {MADE})")
    write(parser.parse_args(arguments).folder)
    return 0


def write(folder: Path) -> None:
    """All modules, formatted; what is no longer made is removed."""
    with tempfile.TemporaryDirectory(prefix="pockfarm-synchronous-") as name:
        tree = Path(name)
        shutil.copytree(ROOT / SOURCE, tree / SOURCE, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copyfile(ROOT / "pyproject.toml", tree / "pyproject.toml")
        (tree / MADE).mkdir()
        files = sorted(str(path) for path in (tree / SOURCE).glob("*.py"))
        words = {name: name.removeprefix("Async") for path in files for name in classes(Path(path))}
        rule = unasync.Rule(f"{tree / SOURCE}/", f"{tree / MADE}/", {**words, **NAMES})
        unasync.unasync_files(files, [rule])
        made = sorted((tree / MADE).glob("*.py"))
        for path in made:
            text = path.read_text().replace("client/asynchronous", "client/synchronous")
            path.write_text(NOTICE.format(source=(SOURCE / path.name).as_posix()) + text)
        ruff(tree, "check", "--fix", "--quiet")
        ruff(tree, "format", "--quiet")
        folder.mkdir(exist_ok=True)
        for old in folder.glob("*.py"):
            if not (tree / MADE / old.name).exists():
                old.unlink()
        for path in made:
            shutil.copyfile(path, folder / path.name)


def classes(path: Path) -> list[str]:
    """Names of ours that tell which kind something is of."""
    return re.findall(r"\bAsync[A-Z]\w*", path.read_text())


def ruff(tree: Path, *words: str) -> None:
    command = [sys.executable, "-m", "ruff", *words, "--no-cache", str(tree / MADE)]
    subprocess.run(command, cwd=tree, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
