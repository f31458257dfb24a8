"""`python -m tests.others FOLDER`: a line for each ONNX file below a folder, and how many are usable by a spec alone.

`FOLDER/specs.json` may hold what a user would add to the spec of a file: {"net.onnx": {"inputs": {...}}}.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from tests.others.trial import tried


def main() -> None:
    """Try every file; wrong numbers are what to look at first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="files whose path has this in it")
    options = parser.parse_args()
    listed = options.folder / "specs.json"
    specs = json.loads(listed.read_text()) if listed.exists() else {}
    counts: Counter[str] = Counter()
    for path in sorted(options.folder.rglob("*.onnx")):
        name = str(path.relative_to(options.folder))
        if options.only in name:
            outcome = tried(path, name, specs.get(path.name, {}))
            counts[outcome.verdict] += 1
            print(outcome.line(), flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))


if __name__ == "__main__":
    main()
