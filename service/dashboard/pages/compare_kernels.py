"""Compared runs kernel by kernel: what each took, and the difference to the first run.

A kernel's time is the median of one profiling pass, without an interval: how noisy it is, is not known. So nothing here
says which kernel is faster, and no row is marked; and where the runs' times are not comparable, there is no table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from device_agents.wire import KernelTime
from service.dashboard.comparison import letter
from service.dashboard.facts import RunFacts
from service.dashboard.tables import Column, Row, Table, Value, table

Key = tuple[str, str]
"""(name, phase): what a kernel of one run is known by in another."""
MOST_ROWS = 200
WORDS = (
    "Each time is the median of one profiling pass, whose noise is not known: a difference here is where to look, not "
    "a finding. Kernels that one plan has and another has not have no difference."
)


def kernel_differences(runs: Sequence[RunFacts]) -> Table | None:
    """A row for each kernel, the largest difference first; None unless two runs or more have times by kernel."""
    times = [_times(run.report.kernels if run.report else ()) for run in runs]
    if sum(1 for run_times in times if run_times) < 2:
        return None
    columns = [Column("kernel", "Kernel", primary=True), Column("phase", "Phase", sortable=True, wide_only=True)]
    for place, _ in enumerate(runs):
        columns.append(Column(f"{letter(place)}_us", letter(place), "number", "µs", fits=True, sortable=True))
        if place:
            hint = f"What it takes longer in {letter(place)} than in A; negative: shorter"
            columns.append(
                Column(
                    f"{letter(place)}_more_us",
                    f"{letter(place)} − A",
                    "number",
                    "µs",
                    fits=True,
                    is_difference=True,
                    sortable=True,
                    hint=hint,
                )
            )
    keys = list(dict.fromkeys(key for run_times in times for key in run_times))
    rows = sorted((_row(key, times) for key in keys), key=_size, reverse=True)
    return table("kernels", "Kernel by kernel", columns, rows)


def shown(table: Table | None) -> Table | None:
    """As a page has it: the largest differences."""
    if table is None or len(table.rows) <= MOST_ROWS:
        return table
    caption = f"{table.caption}: the {MOST_ROWS} largest differences of {len(table.rows):,} (the files have all)"
    return replace(table, caption=caption, rows=table.rows[:MOST_ROWS])


def _times(kernels: Sequence[KernelTime]) -> Mapping[Key, float]:
    """Microseconds by kernel; calls of one name and phase together."""
    totals: dict[Key, float] = {}
    for kernel in kernels:
        key = (kernel.name, kernel.phase)
        totals[key] = totals.get(key, 0.0) + kernel.us
    return totals


def _row(key: Key, times: Sequence[Mapping[Key, float]]) -> Row:
    values: dict[str, Value] = {"kernel": key[0], "phase": key[1]}
    first = times[0].get(key)
    for place, run_times in enumerate(times):
        us = run_times.get(key)
        values[f"{letter(place)}_us"] = us
        if place:
            values[f"{letter(place)}_more_us"] = None if us is None or first is None else us - first
    return Row(values, mark=f"phase-{key[1]}")


def _size(row: Row) -> float:
    more = [abs(value) for key, value in row.values.items() if key.endswith("_more_us") and isinstance(value, float)]
    return max(more, default=-1.0)
