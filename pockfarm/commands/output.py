"""Output of a command: as text for people, or with `--json` as the farm gave it. All commands share it.

With `--json` there is one JSON document on standard output (of what follows something as it comes, a line each), and
nothing else; progress, warnings and errors are on standard error, and the exit code is the same.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence

from pockfarm.output.table import cells, facts_text, table_or
from pockfarm.values import Json

__all__ = ["facts_text", "files_text", "show", "show_list"]
Row = Callable[[Json], Sequence[str]]


def show(options: argparse.Namespace, document: object, text: Callable[[], str]) -> int:
    """Prints the document on standard output; returns the exit code."""
    print(json.dumps(document, indent=2) if options.json else text())
    return 0


def show_list(
    options: argparse.Namespace,
    items: Sequence[Json],
    header: Sequence[str],
    row: Row | None = None,
    *,
    none: str,
    least: Sequence[str] = (),
) -> int:
    """A list on standard output, a line each: `row` makes it, else the header names fields; the exit code.

    `none` stands where there are no rows, in JSON an empty list; `least`: columns that a narrow window does without.
    """
    rows = cells(items, header) if row is None else [tuple(row(fields)) for fields in items]
    return show(options, list(items), lambda: table_or(header, rows, none, least=least))


def files_text(files: Sequence[Json]) -> str:
    """A line for each file that was written: its name, and its size."""
    return "\n".join(
        f"{file['file']}  {file['bytes']:,} bytes" if "bytes" in file else str(file["file"]) for file in files
    )
