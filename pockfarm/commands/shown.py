"""What a farm answered: as people read it, or with `--json` as the farm gave it. One way for every list and page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

from pockfarm.commands.farm import farm_command
from pockfarm.table import cells, table_or
from pockfarm.values import Json

Row = Callable[[Json], Sequence[str]]


def shown_command(
    subparsers: argparse._SubParsersAction[Any], name: str, words: str, run: object, *, states: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """A command that shows what a farm answers. `states`: those that its option `--state` takes."""
    command = farm_command(subparsers, name, words, run, states=states)
    command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="as JSON, as the farm gives it")
    return command


def show(options: argparse.Namespace, found: object, text: Callable[[], str]) -> int:
    """What was found on standard output; the exit code."""
    print(json.dumps(found, indent=2) if options.json else text())
    return 0


def show_list(
    options: argparse.Namespace, found: Sequence[Json], header: Sequence[str], row: Row | None = None, *, none: str
) -> int:
    """A list on standard output, a line each: `row` makes it, else the header names fields; the exit code.

    `none` stands where there are no rows, in JSON an empty list.
    """
    rows = cells(found, header) if row is None else [tuple(row(one)) for one in found]
    return show(options, list(found), lambda: table_or(header, rows, none))
