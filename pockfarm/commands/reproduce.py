"""`pockfarm reproduce`: the same run once more, and whether it says the same."""

from __future__ import annotations

import argparse
from typing import Any

from pockfarm.commands.farm import connect, farm_command, wait_for
from pockfarm.commands.output import facts_text, show
from pockfarm.errors import Failed
from pockfarm.output.table import text_table
from pockfarm.screen import by_word, painted
from pockfarm.values import Json, parts, text

AGREES = {True: "agrees", False: "does not agree", None: "may agree"}


def add_reproduce(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = farm_command(subparsers, "reproduce", "make a run again, and say whether the two agree", _reproduce)
    command.add_argument("run_id", metavar="RUN")
    where = command.add_mutually_exclusive_group()
    where.add_argument("--device", metavar="ID|NAME", help="on another device (default: the one that made it)")
    where.add_argument("--class", dest="device_class", metavar="NAME", help="on any device of this class")
    words = "compare with this run, which is there already, in place of making one"
    where.add_argument("--with", dest="other", metavar="RUN", help=words)
    command.add_argument("--json", action="store_true", help="print what was found as JSON")


def _reproduce(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        other = options.other
        if other is None:
            run = farm.run_again(options.run_id, device=options.device, device_class=options.device_class)
            wait_for(farm, run)
            other = run.id
        comparison = farm.beside(options.run_id, other)
    show(options, comparison, lambda: beside_text(comparison))
    return Failed.exit_code if comparison.get("agrees") is False else 0


def beside_text(comparison: Json) -> str:
    """Whether two runs agree, why, and what explains a difference."""
    agrees = comparison.get("agrees")
    verdict = AGREES[agrees if isinstance(agrees, bool) else None]
    lines = [
        f"{text(comparison, 'second')} {painted(verdict, by_word(verdict))} with {text(comparison, 'first')}: "
        f"{text(comparison, 'message')}"
    ]
    facts = [(name, text(comparison, name)) for name in ("losses", "weights") if text(comparison, name)]
    lines += [facts_text(facts)] if facts else []
    differences = parts(comparison, "differences")
    if differences:
        rows = [
            (text(difference, "what"), _short(text(difference, "first")), _short(text(difference, "second")))
            for difference in differences
        ]
        lines += ["", text_table(("not the same", "first", "second"), rows)]
    return "\n".join(lines)


def _short(digest: str) -> str:
    return digest[:19] if digest.startswith("sha256:") else digest or "-"
