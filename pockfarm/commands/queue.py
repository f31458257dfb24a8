"""`pockfarm queue`: what waits, what for, and when it may start."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pockfarm.commands.farm import connect, reading_command
from pockfarm.commands.filters import count_of
from pockfarm.commands.output import show
from pockfarm.output.table import NONE, moment, text_table
from pockfarm.values import Job, Json, Run, part, text

if TYPE_CHECKING:
    from pockfarm.client import Client

HEADER = ("what", "state", "model", "target", "position", "may start", "sure", "why")
MOST = 1000
"""That are looked at of a kind."""
SHOWN = 20


def add_queue(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "list the runs and compiles that wait, those that came first on top: why, and when they may start"
    command = reading_command(subparsers, "queue", words, _queue)
    command.add_argument(
        "--limit", type=count_of, default=SHOWN, metavar="N", help=f"so many of each (default: {SHOWN})"
    )


def _queue(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        runs = farm.runs(state="queued", limit=MOST)[::-1]
        jobs = farm.jobs(state="queued", limit=MOST)[::-1]
        listed = {
            kind: [_with_reason(farm, job_or_run) for job_or_run in waiting[: options.limit]]
            for kind, waiting in (("runs", runs), ("jobs", jobs))
        }
    more = sum(max(0, len(waiting) - options.limit) for waiting in (runs, jobs))
    return show(options, listed, lambda: queue_text([*listed["runs"], *listed["jobs"]], more))


def _with_reason(farm: Client, job_or_run: Run | Job) -> Json:
    """The run or job as the farm gives it, and its `why`."""
    return {**job_or_run.raw, "why": dict(farm.why(job_or_run.id))}


def queue_text(waiting: Sequence[Json], more: int) -> str:
    """A line for each."""
    if not waiting:
        return "nothing waits"
    table = text_table(HEADER, [queue_row(job_or_run) for job_or_run in waiting])
    return f"{table}\nand {more} more: --limit N" if more else table


def queue_row(job_or_run: Json) -> tuple[str, ...]:
    """Under `HEADER`."""
    why = part(job_or_run, "why")
    waits = part(why, "waiting")
    least = "at least " if waits.get("is_position_least") else ""
    position = waits.get("position")
    return (
        text(job_or_run, "id"),
        text(why, "state"),
        text(job_or_run, "model_name") or text(part(job_or_run, "model"), "name"),
        text(job_or_run, "target"),
        NONE if position is None else f"{least}{position}",
        moment(text(waits, "expected_start_at")),
        text(waits, "confidence") or NONE,
        text(waits, "message") or text(why, "message"),
    )
