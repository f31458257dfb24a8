"""`pockfarm log check --keep FILE`: that the farm's log of results has only grown since the last time."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pockfarm.commands.farm import connect, farm_command
from pockfarm.commands.output import facts_text, show
from pockfarm.commands.verify import public_key
from pockfarm.errors import Failed
from pockfarm.screen import Meaning, painted
from pockfarm.verification import NotVerified
from pockfarm.verification.log import check_log


def add_log(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "the farm's log of results, which only grows"
    command = subparsers.add_parser("log", help=words, description=words)
    actions = command.add_subparsers(metavar="ACTION", required=True)
    check = farm_command(actions, "check", "hold the farm to the heads that it has signed before", _check)
    words = "holds the head of the last time, and gets the newest; may be missing at first"
    check.add_argument("--keep", type=Path, required=True, metavar="FILE", help=words)
    check.add_argument("--trust", metavar="KEY", help="as for verify; else the root or key of the kept head")


def _check(options: argparse.Namespace) -> int:
    trusted = public_key(options.trust)
    with connect(options) as farm:
        try:
            findings = check_log(farm, options.keep, trusted=trusted)
        except NotVerified as error:
            problem = str(error)
            show(
                options,
                {"verdict": "NOT VERIFIED", "problem": problem},
                lambda: f"{painted('NOT VERIFIED', Meaning.BAD)}: {problem}",
            )
            raise Failed("the farm's log does not hold", state="failed", cause="policy") from None
    verdict = {"verdict": "verified", "findings": [asdict(finding) for finding in findings]}
    return show(options, verdict, lambda: facts_text([(finding.what, finding.how) for finding in findings]))
