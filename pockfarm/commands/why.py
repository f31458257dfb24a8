"""`pockfarm why RUN|JOB`: what became of it and why, what it waits for, when it may start."""

from __future__ import annotations

import argparse
from typing import Any

from pockfarm.commands.farm import connect
from pockfarm.commands.shown import show, shown_command
from pockfarm.table import NONE, text_table
from pockfarm.values import Json, number, optional_text, part, parts, text


def add_why(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = shown_command(subparsers, "why", "say why a run or a compile is where it is, and when it may start", _why)
    command.add_argument("id", metavar="RUN|JOB")


def _why(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        said = farm.why(options.id)
    return show(options, said, lambda: why_text(said))


def why_text(said: Json) -> str:
    """The explanation as people read it: the sum of it, each try, then each device while it waits."""
    lines = [f"{text(said, 'id')} is {text(said, 'state')}. {text(said, 'says')}"]
    lines += [line for one in parts(said, "tries") for line in _try(one)]
    waiting = part(said, "waiting")
    if waiting:
        lines += ["", *_queue(waiting)]
    rows = [
        (text(one, "name"), text(one, "device_class"), text(one, "says"), optional_text(one, "until") or NONE)
        for one in parts(waiting, "devices")
    ]
    if rows:
        lines += ["", text_table(("device", "class", "now", "until"), rows)]
    more = int(number(waiting, "more_devices"))
    return "\n".join([*lines, f"and {more} more devices"] if more else lines)


def _try(one: Json) -> list[str]:
    where = f" on {text(one, 'device_name')}" if text(one, "device_name") else ""
    code = optional_text(one, "code")
    ended = f": {text(one, 'state')}" + (f", {code}" if code else "") if text(one, "state") else ""
    message = optional_text(one, "message")
    lines = ["", f"attempt {int(number(one, 'n'))}{where}{ended}"]
    return lines + ([f"  {message}"] if message else []) + [f"  -> {text(one, 'decision')}"]


def _queue(waiting: Json) -> list[str]:
    lines = []
    if waiting.get("position") is not None:
        least = "at least " if waiting.get("is_position_least") else ""
        lines.append(f"position in the queue: {least}{int(number(waiting, 'position'))}")
    start_at = optional_text(waiting, "expected_start_at") or "unknown"
    lines.append(f"expected start: {start_at} ({text(waiting, 'sureness')}: {text(waiting, 'basis')})")
    return [*lines, f"expires: {text(waiting, 'expires_at')}"]
