"""`make large`: a module of more than 2 GB out and back, here and by a farm, with what it took.

`python -m tests.large ACT...` of `compile`, `here` and `farm` (all by default), each in a process of its own, so that
its peak of memory is its own. Files go to TMPDIR: about 30 GB at 2.3 GB of weights.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.large.acts import ACTS, apart


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.large", description=__doc__)
    parser.add_argument("acts", nargs="*", metavar="ACT", help=", ".join(ACTS))
    parser.add_argument("--gigabytes", type=float, default=2.3)
    asked = parser.parse_args()
    for name in asked.acts or list(ACTS):
        with tempfile.TemporaryDirectory(prefix="pockfarm-large-") as folder:
            apart(ACTS[name], asked.gigabytes, Path(folder))


if __name__ == "__main__":
    main()
