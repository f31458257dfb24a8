"""Commands that show what a farm answers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from pockfarm.commands.farm import farm_command
from pockfarm.commands.output import facts_text, show, show_list

__all__ = ["facts_text", "show", "show_list", "shown_command"]


def shown_command(
    subparsers: argparse._SubParsersAction[Any], name: str, words: str, run: object, *, states: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """A command that shows what a farm answers. `states`: those that its option `--state` takes."""
    command = farm_command(subparsers, name, words, run, states=states)
    command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="as JSON, as the farm gives it")
    return command
