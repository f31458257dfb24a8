"""`pockfarm why RUN|JOB`: what became of it and why, what it waits for, when it may start."""

from __future__ import annotations

import argparse
from typing import Any

from pockfarm.commands.farm import connect, reading_command
from pockfarm.commands.output import facts_text, show
from pockfarm.output.table import moment, text_table
from pockfarm.screen import Meaning, by_word, painted
from pockfarm.values import Json, number, optional_text, part, parts, text


def add_why(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = reading_command(
        subparsers, "why", "say why a run or a compile is where it is, and when it may start", _why
    )
    command.add_argument("id", metavar="RUN|JOB")


def _why(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        explanation = farm.why(options.id)
    return show(options, explanation, lambda: why_text(explanation))


def why_text(explanation: Json) -> str:
    """The explanation as people read it: the sum of it, each try, then each device while it waits."""
    state = text(explanation, "state")
    head = f"{painted(text(explanation, 'id'), Meaning.HEAD)} is {painted(state, by_word(state))}"
    lines = [f"{head}. {text(explanation, 'message')}"]
    lines += [line for attempt in parts(explanation, "tries") for line in _try(attempt)]
    waiting = part(explanation, "waiting")
    if waiting:
        lines += ["", *_queue(waiting)]
    rows = [
        (text(device, "name"), text(device, "device_class"), text(device, "message"), moment(text(device, "until")))
        for device in parts(waiting, "devices")
    ]
    if rows:
        lines += ["", text_table(("device", "class", "now", "until"), rows)]
    more = int(number(waiting, "more_devices"))
    return "\n".join([*lines, f"and {more} more devices"] if more else lines)


def _try(attempt: Json) -> list[str]:
    where = f" on {text(attempt, 'device_name')}" if text(attempt, "device_name") else ""
    code = optional_text(attempt, "code")
    state = text(attempt, "state")
    ending = f": {painted(state, by_word(state))}" + (f", {code}" if code else "") if state else ""
    message = optional_text(attempt, "message")
    name = f"attempt {int(number(attempt, 'n'))}"
    lines = ["", f"{painted(name, Meaning.HEAD)}{where}{ending}"]
    return lines + ([f"  {message}"] if message else []) + [f"  -> {text(attempt, 'decision')}"]


def _queue(waiting: Json) -> list[str]:
    least = "at least " if waiting.get("is_position_least") else ""
    place = "" if waiting.get("position") is None else f"{least}{int(number(waiting, 'position'))}"
    start_at = optional_text(waiting, "expected_start_at")
    start = moment(start_at) if start_at else "unknown"
    facts = [
        ("position in the queue", place),
        ("expected start", f"{start} ({text(waiting, 'confidence')}: {text(waiting, 'basis')})"),
        ("expires", moment(text(waiting, "expires_at"))),
    ]
    return [facts_text(facts)]
