"""What a command found: as people read it, or with `--json` as the farm gave it. One way for all commands.

With `--json` there is one JSON document on standard output (of what follows something as it comes, a line each), and
nothing else; progress, warnings and errors are on standard error, and the exit code is the same.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence

from pockfarm.table import cells, facts_text, table_or
from pockfarm.values import Json

__all__ = ["facts_text", "files_text", "show", "show_list"]
Row = Callable[[Json], Sequence[str]]


def show(options: argparse.Namespace, found: object, text: Callable[[], str]) -> int:
    """What was found on standard output; the exit code."""
    print(json.dumps(found, indent=2) if options.json else text())
    return 0


def show_list(
    options: argparse.Namespace,
    found: Sequence[Json],
    header: Sequence[str],
    row: Row | None = None,
    *,
    none: str,
    least: Sequence[str] = (),
) -> int:
    """A list on standard output, a line each: `row` makes it, else the header names fields; the exit code.

    `none` stands where there are no rows, in JSON an empty list; `least`: columns that a narrow window does without.
    """
    rows = cells(found, header) if row is None else [tuple(row(one)) for one in found]
    return show(options, list(found), lambda: table_or(header, rows, none, least=least))


def files_text(files: Sequence[Json]) -> str:
    """A line for each file that was written: its name, and its size."""
    return "\n".join(f"{one['file']}  {one['bytes']:,} bytes" if "bytes" in one else str(one["file"]) for one in files)
