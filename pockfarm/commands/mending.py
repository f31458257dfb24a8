"""`pockfarm cancel | retry`: stop what was asked for, or ask for it once more."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from pockfarm.commands.farm import connect, reading_command, wait_for
from pockfarm.commands.ids import kind_of
from pockfarm.commands.output import show
from pockfarm.commands.waiting import job_looks
from pockfarm.errors import Failed, UsageError
from pockfarm.output.summary import is_diverged, report_text
from pockfarm.screen.progress import Waiting
from pockfarm.values import OPEN_STATES, Job, Json, Run, text

if TYPE_CHECKING:
    from pockfarm.client import Client


def add_cancel(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "ask runs and compiles to stop; what has ended stays as it is"
    command = reading_command(subparsers, "cancel", words, _cancel)
    command.add_argument("ids", nargs="+", metavar="RUN|JOB")


def add_retry(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "queue a run or a compile once more, as it was asked for, and print the new one's id"
    command = reading_command(subparsers, "retry", words, _retry)
    command.add_argument("id", metavar="RUN|JOB", help="one that has ended; of compiles, without a bundle")
    where = command.add_mutually_exclusive_group()
    where.add_argument("--device", metavar="ID|NAME", help="on another device (default: the one that had it)")
    where.add_argument("--class", dest="device_class", metavar="NAME", help="on any device of this class")
    command.add_argument(
        "--wait", action="store_true", help="wait for it, and print the report, or the bundle's digest"
    )


def _cancel(options: argparse.Namespace) -> int:
    kinds = {target_id: kind_of(target_id, "run", "job") for target_id in options.ids}
    with connect(options) as farm:
        cancelled = [
            (farm.cancel_run if kind == "run" else farm.cancel_job)(target_id).raw for target_id, kind in kinds.items()
        ]
    return show(options, cancelled, lambda: "\n".join(map(cancelled_text, cancelled)))


def cancelled_text(target: Json) -> str:
    """Returns the outcome of a request to cancel."""
    target_id, state = text(target, "id"), text(target, "state")
    if text(target, "message") and state not in OPEN_STATES:
        return f"{target_id} {text(target, 'message')}"
    if state == "cancelled":
        return f"{target_id} is cancelled"
    if target.get("finished_at") or not target.get("cancel_requested"):
        return f"{target_id} had ended before: {state}"
    return f"{target_id} is asked to stop; `pockfarm why {target_id}` says when it has"


def _retry(options: argparse.Namespace) -> int:
    kind = kind_of(options.id, "run", "job")
    with connect(options) as farm:
        if kind == "job":
            job = _compile_again(farm, options)
            return show(options, job.raw, lambda: job.bundle_digest or job.id)
        run = _run_again(farm, options)
        if not options.wait:
            return show(options, run.raw, lambda: run.id)
        wait_for(farm, run)
        report = farm.report(run.id)
    show(options, report, lambda: report_text(report))
    return Failed.exit_code if is_diverged(report) else 0


def _run_again(farm: Client, options: argparse.Namespace) -> Run:
    before = farm.run(options.id)
    if before.is_open:
        raise UsageError(
            f"{before.id} is {before.state} yet: `pockfarm cancel {before.id}` stops it, `pockfarm why "
            f"{before.id}` says what it waits for"
        )
    return farm.run_again(before.id, device=options.device, device_class=options.device_class)


def _compile_again(farm: Client, options: argparse.Namespace) -> Job:
    if options.device or options.device_class:
        raise UsageError(f"--device and --class are of runs, and {options.id} is a compile", hint="leave them out")
    before = farm.job(options.id)
    if before.is_open:
        raise UsageError(
            f"{before.id} is {before.state} yet: `pockfarm cancel {before.id}` stops it, `pockfarm why "
            f"{before.id}` says what it waits for"
        )
    job = farm.job_again(before.id)
    if job.id == before.id:
        raise UsageError(f"{before.id} has succeeded: its bundle is {before.bundle_digest}, for `pockfarm run`")
    if options.wait:
        with Waiting() as waiting:
            job = farm.wait_for_job(job.id, on_look=job_looks(waiting))
    return job
