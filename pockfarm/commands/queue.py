"""`pockfarm queue`: what waits, what for, and when it may start."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pockfarm.commands.farm import connect
from pockfarm.commands.filters import count_of
from pockfarm.commands.shown import show, shown_command
from pockfarm.table import NONE, moment, text_table
from pockfarm.values import Job, Json, Run, part, text

if TYPE_CHECKING:
    from pockfarm.client import Client

HEADER = ("what", "state", "model", "target", "position", "may start", "sure", "why")
MOST = 1000
"""That are looked at of a kind."""
SHOWN = 20


def add_queue(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "list the runs and compiles that wait, those that came first on top: why, and when they may start"
    command = shown_command(subparsers, "queue", words, _queue)
    command.add_argument(
        "--limit", type=count_of, default=SHOWN, metavar="N", help=f"so many of each (default: {SHOWN})"
    )


def _queue(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        runs = farm.runs(state="queued", limit=MOST)[::-1]
        jobs = farm.jobs(state="queued", limit=MOST)[::-1]
        found = {
            kind: [_told(farm, one) for one in waiting[: options.limit]]
            for kind, waiting in (("runs", runs), ("jobs", jobs))
        }
    more = sum(max(0, len(waiting) - options.limit) for waiting in (runs, jobs))
    return show(options, found, lambda: queue_text([*found["runs"], *found["jobs"]], more))


def _told(farm: Client, one: Run | Job) -> Json:
    """The run or job as the farm gives it, and its `why`."""
    return {**one.raw, "why": dict(farm.why(one.id))}


def queue_text(waiting: Sequence[Json], more: int) -> str:
    """A line for each."""
    if not waiting:
        return "nothing waits"
    table = text_table(HEADER, [queue_row(one) for one in waiting])
    return f"{table}\nand {more} more: --limit N" if more else table


def queue_row(one: Json) -> tuple[str, ...]:
    """Under `HEADER`."""
    why = part(one, "why")
    waits = part(why, "waiting")
    least = "at least " if waits.get("is_position_least") else ""
    position = waits.get("position")
    return (
        text(one, "id"),
        text(why, "state"),
        text(one, "model_name") or text(part(one, "model"), "name"),
        text(one, "target"),
        NONE if position is None else f"{least}{position}",
        moment(text(waits, "expected_start_at")),
        text(waits, "sureness") or NONE,
        text(waits, "says") or text(why, "says"),
    )
