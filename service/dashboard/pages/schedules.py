"""The measurements of a run of mode tune: each kernel's default and winning schedule."""

from __future__ import annotations

from device_agents.wire import KernelTuning, Tuning
from service.dashboard.tables import Column, Row, Table, table

COLUMNS = (
    Column("kernel", "Kernel", primary=True),
    Column("calls", "Calls", "number"),
    Column("schedules", "Schedules", "number"),
    Column("default_us", "Default", "number", "µs", 1),
    Column("winner_us", "Winner", "number", "µs", 1),
    Column("winner", "Winning schedule", wrap=True),
)


def schedule_table(tuning: Tuning) -> Table:
    """Returns a table with a row per kernel; where nothing beat the default by more than noise, the winner is the
    default.
    """
    return table("schedules", "Schedules measured", COLUMNS, [_row(kernel) for kernel in tuning.kernels])


def _row(kernel: KernelTuning) -> Row:
    times = {variant.choice: variant.median_us for variant in kernel.variants}
    return Row(
        {
            "kernel": kernel.name,
            "calls": kernel.calls,
            "schedules": len(kernel.variants),
            "default_us": times.get(""),
            "winner_us": times.get(kernel.winner),
            "winner": kernel.winner or "default",
        }
    )
