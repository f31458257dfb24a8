"""`pockfarm jobs | runs`: what was compiled and what ran, the newest first."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pockfarm.commands.farm import connect, reading_command
from pockfarm.commands.filters import OPEN, add_filter_options, chosen_filters
from pockfarm.commands.output import show_list
from pockfarm.output.table import NONE, loss_text, median_cells
from pockfarm.suggestions import suggestion
from pockfarm.values import JOB_STATES, RUN_STATES, Job, Json, Run, optional_number, part, text

JOB_HEADER = ("job", "state", "model", "plan", "target", "bundle", "why")
RUN_HEADER = (
    "run",
    "state",
    "mode",
    "model",
    "plan",
    "target",
    "class",
    "verdict",
    "training",
    "step",
    "95%",
    "last loss",
    "why",
)
JOB_LEAST = ("plan", "target", "bundle")
RUN_LEAST = ("model", "95%", "verdict", "plan", "mode", "last loss", "target", "training", "class")
"""Columns that a narrow window leaves out, the last one first."""
MEDIAN = ("median_us", "median_low_us", "median_high_us")
LOOKED_AT = 200
"""For names that may have been meant."""
JOB_FILTERS = {"target": "T", "model": "NAME", "plan": "NAME"}
RUN_FILTERS = {
    "mode": "MODE",
    "device": "ID",
    "target": "T",
    "verdict": "V",
    "model": "NAME",
    "plan": "NAME",
    "bundle": "DIGEST",
    "measurement_class": "CLASS",
    "group": "ID",
}


def add_jobs(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = reading_command(subparsers, "jobs", "list compiles, the newest first", _jobs, states=(*JOB_STATES, OPEN))
    add_filter_options(command, **JOB_FILTERS)


def add_runs(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = reading_command(subparsers, "runs", "list runs, the newest first", _runs, states=(*RUN_STATES, OPEN))
    add_filter_options(command, **RUN_FILTERS)


def _jobs(options: argparse.Namespace) -> int:
    chosen = chosen_filters(options, *JOB_FILTERS)
    with connect(options) as farm:
        jobs = [job.raw for job in farm.jobs(**chosen)]
        none = "" if jobs else none_of("jobs", chosen, _names(farm.jobs(limit=LOOKED_AT)))
    return show_list(options, jobs, JOB_HEADER, job_row, none=none, least=JOB_LEAST)


def _runs(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        chosen = chosen_filters(options, *RUN_FILTERS)
        runs = [run.raw for run in farm.runs(**chosen)]
        none = "" if runs else none_of("runs", chosen, _names(farm.runs(limit=LOOKED_AT)))
    return show_list(options, runs, RUN_HEADER, run_row, none=none, least=RUN_LEAST)


def none_of(what: str, chosen: Json, names: Mapping[str, Collection[str]]) -> str:
    """`no runs of mode train, plan biasonly; did you mean 'bias-only'?`; without filters `no runs yet`.

    `names`: of a filter, the names that there are among the newest.
    """
    used_filters = {name: str(value) for name, value in chosen.items() if value and name != "limit"}
    if not used_filters:
        return f"no {what} yet"
    wrong = [
        suggestion(value, names[name])
        for name, value in used_filters.items()
        if name in names and value not in names[name]
    ]
    filters = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in used_filters.items())
    return f"no {what} of {filters}{next(filter(None, wrong), '')}"


def _names(rows: Sequence[Job] | Sequence[Run]) -> Mapping[str, Collection[str]]:
    return {
        "model": {row.model_name for row in rows},
        "plan": {row.plan_name for row in rows},
        "target": {row.target for row in rows},
    }


def job_row(job: Json) -> tuple[str, ...]:
    """Under `JOB_HEADER`."""
    names = (text(part(job, "model"), "name"), text(part(job, "plan"), "name"), text(job, "target"))
    return (text(job, "id"), text(job, "state"), *names, text(job, "bundle_digest") or NONE, why_of(job))


def run_row(run: Json) -> tuple[str, ...]:
    """Under `RUN_HEADER`."""
    summary = part(run, "summary")
    return (
        *(text(run, name) for name in ("id", "state", "mode", "model_name", "plan_name", "target")),
        text(summary, "measurement_class") or NONE,
        text(summary, "verdict") or NONE,
        text(summary, "training_outcome").replace("_", " ") or NONE,
        *median_cells(*(optional_number(summary, name) for name in MEDIAN)),
        loss_text(optional_number(summary, "loss_last")),
        why_of(run),
    )


def why_of(job_or_run: Json) -> str:
    """Returns why a job or run ended without success, as in `device: device.lost`; else empty."""
    ending = part(job_or_run, "ending")
    return f"{text(ending, 'cause')}: {text(ending, 'code')}" if ending else ""
