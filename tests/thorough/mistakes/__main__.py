"""Make every mistake and print what is said: `make mistakes` (ONLY=surface)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.thorough.mistakes.scene import scene, table
from tests.thorough.mistakes.table import MISTAKES


def main(surfaces: list[str]) -> None:
    chosen = tuple(one for one in MISTAKES if not surfaces or one.surface in surfaces)
    with tempfile.TemporaryDirectory(prefix="pockfarm-mistakes-") as folder, scene(Path(folder)) as found:
        for line in table(found, chosen):
            print(line, flush=True)
    print(f"{len(chosen)} mistakes")


if __name__ == "__main__":
    main(sys.argv[1:])
