"""`pockfarm jobs | runs`: what was compiled and what ran, the newest first."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pockfarm.commands.farm import connect
from pockfarm.commands.filters import OPEN, add_filter_options, chosen_filters
from pockfarm.commands.shown import show_list, shown_command
from pockfarm.near import meant
from pockfarm.table import NONE, loss_text, median_cells
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
"""What a narrow window does without, the last one first."""
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
    command = shown_command(subparsers, "jobs", "list compiles, the newest first", _jobs, states=(*JOB_STATES, OPEN))
    add_filter_options(command, **JOB_FILTERS)


def add_runs(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = shown_command(subparsers, "runs", "list runs, the newest first", _runs, states=(*RUN_STATES, OPEN))
    add_filter_options(command, **RUN_FILTERS)


def _jobs(options: argparse.Namespace) -> int:
    chosen = chosen_filters(options, *JOB_FILTERS)
    with connect(options) as farm:
        found = [job.raw for job in farm.jobs(**chosen)]
        none = "" if found else none_of("jobs", chosen, _names(farm.jobs(limit=LOOKED_AT)))
    return show_list(options, found, JOB_HEADER, job_row, none=none, least=JOB_LEAST)


def _runs(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        chosen = chosen_filters(options, *RUN_FILTERS)
        found = [run.raw for run in farm.runs(**chosen)]
        none = "" if found else none_of("runs", chosen, _names(farm.runs(limit=LOOKED_AT)))
    return show_list(options, found, RUN_HEADER, run_row, none=none, least=RUN_LEAST)


def none_of(what: str, chosen: Json, known: Mapping[str, Collection[str]]) -> str:
    """`no runs of mode train, plan biasonly; did you mean 'bias-only'?`; without filters `no runs yet`.

    `known`: of a filter, the names that there are among the newest.
    """
    given = {name: str(value) for name, value in chosen.items() if value and name != "limit"}
    if not given:
        return f"no {what} yet"
    wrong = [meant(value, known[name]) for name, value in given.items() if name in known and value not in known[name]]
    said = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in given.items())
    return f"no {what} of {said}{next(filter(None, wrong), '')}"


def _names(found: Sequence[Job] | Sequence[Run]) -> Mapping[str, Collection[str]]:
    return {
        "model": {one.model_name for one in found},
        "plan": {one.plan_name for one in found},
        "target": {one.target for one in found},
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


def why_of(one: Json) -> str:
    """Of a job or run that ended without success: `device: device.lost`; else empty."""
    ending = part(one, "ending")
    return f"{text(ending, 'cause')}: {text(ending, 'code')}" if ending else ""
