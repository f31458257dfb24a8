"""`pockfarm watch RUN|JOB`: what happens in a run or a compile, as it happens."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import Any

from pockfarm.commands.farm import connect, farm_command
from pockfarm.errors import Failed
from pockfarm.values import Job, Json, Run, part


def add_watch(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = farm_command(subparsers, "watch", "show what happens in a run or a compile until it ends", _watch)
    command.add_argument("run_id", metavar="RUN|JOB")
    command.add_argument("--steps", type=int, default=0, metavar="N", help="the loss of every N-th step too")


def _watch(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        events = farm.follow(options.run_id)
        for line in map(json.dumps, events) if options.json else lines(events, every=options.steps):
            print(line, flush=True)
        is_job = options.run_id.startswith("job_")
        job_or_run: Job | Run = farm.job(options.run_id) if is_job else farm.run(options.run_id)
    return 0 if job_or_run.state == "succeeded" else Failed.exit_code


def lines(events: Iterable[Json], *, every: int = 0) -> Iterable[str]:
    """A line for each event that people want to see; `every`: of steps too, each so many."""
    for event in events:
        line = _line(str(event.get("kind", "")), part(event, "body"), every)
        if line:
            yield f"{str(event.get('at', ''))[11:19]}  {line}"


SAID = ("phase", "log", "checkpoint", "cancel-requested")
"""Kinds of events of which the message is all."""


def _line(kind: str, body: Json, every: int) -> str:
    if kind == "state":
        reason = body.get("reason") or body.get("message") or body.get("name") or ""
        return f"{body.get('state')}{f': {reason}' if reason else ''}"
    if kind == "eval":
        where = f" after step {body['step']:,}" if isinstance(body.get("step"), int) else ""
        accuracy = body.get("accuracy")
        accuracy_text = f", accuracy {accuracy:.4f}" if isinstance(accuracy, (int, float)) else ""
        return f"{body.get('message')}{where}: loss {body.get('loss')}{accuracy_text}"
    if kind == "step":
        step = body.get("step")
        is_due = every > 0 and isinstance(step, int) and step % every == 0
        return f"step {step:,}: loss {body.get('loss')}" if is_due else ""
    return str(body.get("message") or "") if kind in SAID else ""
