"""The table of runs, as the list, the overview and a device's page show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from service.dashboard import addresses
from service.dashboard import format as fmt
from service.dashboard.facts import RunFacts
from service.dashboard.tables import Column, Row, Table, Value, table

COLUMNS: tuple[Column, ...] = (
    Column("id", "Id", files_only=True),
    Column("run", "Run", primary=True),
    Column("model", "Model", files_only=True),
    Column("plan", "Plan", files_only=True),
    Column("target", "Target", files_only=True),
    Column("state", "State", "state", wide_only=True),
    Column("verdict", "Verdict", "verdict", hint="Whether the measurement counts; only valid ones rank"),
    Column("median_ms", "Median", "number", "ms", fits=True, sortable=True, hint="Of one step"),
    Column("p90_ms", "Step p90", "number", "ms", fits=True, sortable=True),
    Column("mode", "Mode", files_only=True),
    Column("name", "Name", files_only=True),
    Column("tags", "Tags"),
    Column("device", "Device"),
    Column("measurement_class", "Class", "class", hint="Measurement class: what the numbers are worth"),
    Column("training_outcome", "Training", files_only=True),
    Column("samples_per_second", "Samples", "number", "1/s", significant=3, sortable=True, files_only=True),
    Column("arena_mib", "Arena", "number", "MiB", fits=True, sortable=True, hint="Planned bytes of one training step"),
    Column("peak_rss_mib", "Peak RSS", "number", "MiB", fits=True, files_only=True),
    Column("energy_mj", "Energy/step", "number", "mJ", 1, sortable=True, hint="Absent without a sensor"),
    Column("loss_first", "First loss", "number", significant=4, files_only=True),
    Column("loss_last", "Last loss", "number", significant=4, sortable=True, hint="Of the last step"),
    Column("created_at", "Created", "time", "UTC", files_only=True),
)
TOLD_OUTCOMES = ("stopped_early", "diverged")
"""Outcomes of training that the state of the run does not tell."""
LEFT_OUT_WHEN_SHORT = ("p90_ms", "energy_mj", "tags")


def run_table(runs: Sequence[RunFacts], caption: str, *, short: bool = False) -> Table:
    """Returns a table of runs. `short` leaves out what an overview does not need."""
    columns = [
        replace(column, files_only=True) if short and column.key in LEFT_OUT_WHEN_SHORT else column
        for column in COLUMNS
    ]
    return table("runs", caption, columns, [run_row(entry) for entry in runs]).hiding_empty(
        "tags", "energy_mj", "loss_last"
    )


def run_row(entry: RunFacts) -> Row:
    """Makes the row of a run."""
    values: dict[str, Value] = {
        "id": entry.id,
        "run": entry.title,
        "model": entry.model_name,
        "plan": entry.plan_name,
        "target": entry.target,
        "state": entry.state,
        "mode": entry.mode,
        "name": entry.name or None,
        "tags": ", ".join(entry.tags) or None,
        "device": entry.device_name or entry.wanted or None,
        "measurement_class": entry.measurement_class,
        "training_outcome": entry.training_outcome,
        "verdict": entry.verdict,
        **measured_values(entry),
        "created_at": fmt.iso(entry.created_at),
    }
    links = {"run": addresses.run(entry.id)}
    if entry.device_id is not None:
        links["device"] = addresses.device(entry.device_id)
    ending = f" · {entry.training_outcome.replace('_', ' ')}" if entry.training_outcome in TOLD_OUTCOMES else ""
    what = f"{entry.what} · " if entry.name else ""
    note = f"{what}{entry.mode}{ending} · {fmt.clock(entry.created_at)}"
    return Row(values, links, notes={"run": note}, anchor=entry.id)


def measured_values(entry: RunFacts) -> dict[str, Value]:
    """Returns the values of the measured columns, in their fixed units."""
    return {
        "median_ms": entry.median_ms,
        "p90_ms": entry.p90_ms,
        "samples_per_second": entry.samples_per_second,
        "arena_mib": fmt.mebibytes(entry.arena_bytes),
        "peak_rss_mib": fmt.mebibytes(entry.peak_rss_bytes),
        "energy_mj": entry.energy_mj,
        "loss_first": entry.loss_first,
        "loss_last": entry.loss_last,
    }
