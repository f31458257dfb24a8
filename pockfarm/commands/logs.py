"""`pockfarm logs RUN|JOB`: what the device of a run said, line by line; of a compile its states and stages."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pockfarm.commands.farm import connect, reading_command
from pockfarm.commands.ids import kind_of
from pockfarm.commands.watch import lines
from pockfarm.values import Json, number, part, text

if TYPE_CHECKING:
    from pockfarm.client import Client


def add_logs(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "print what the device of a run said, or how far a compile came"
    command = reading_command(subparsers, "logs", words, _logs)
    command.add_argument("id", metavar="RUN|JOB")
    command.add_argument("--follow", action="store_true", help="and what comes, until it ends; JSON: a line each then")


def _logs(options: argparse.Namespace) -> int:
    kind = kind_of(options.id, "run", "job")
    with connect(options) as farm:
        if options.json and not options.follow:
            print(json.dumps(list(_chosen(farm, kind, options)), indent=2))
            return 0
        is_silent = True
        for event in _chosen(farm, kind, options):
            is_silent = False
            print(json.dumps(event) if options.json else log_line(event), flush=True)
    if is_silent:
        hint = f"`pockfarm watch {options.id}` shows what happened in it" if kind == "run" else "it has no events yet"
        print(f"nothing was said in {options.id}; {hint}", file=sys.stderr)
    return 0


def _chosen(farm: Client, kind: str, options: argparse.Namespace) -> Iterator[Json]:
    events = farm.follow(options.id) if options.follow else farm.events(options.id)
    return (event for event in events if kind == "job" or text(event, "kind") == "log")


def log_line(event: Json) -> str:
    """`12:34:56  goes on after step 50`; of a compile's progress its share and stage."""
    body = part(event, "body")
    if text(event, "kind") == "progress":
        return f"{text(event, 'at')[11:19]}  {number(body, 'fraction'):4.0%}  {text(body, 'stage')}"
    return "".join(lines([event]))
