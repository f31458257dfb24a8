"""The memory plan's figure and table, shared by a job's and a run's page."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy.orm import Session

from service.dashboard import format as fmt
from service.dashboard import memory_plan, queries
from service.dashboard.charts import FULL_WIDTH, for_screens
from service.dashboard.charts.arena import ArenaPlan, arena_picture, live_bytes
from service.dashboard.charts.ways import ways_plot
from service.dashboard.facts import BundleFacts
from service.dashboard.parts import Figure
from service.dashboard.tables import Column, Row, Table, table
from service.store.database.memory import lasting_of

COLUMNS: tuple[Column, ...] = (
    Column("value", "Value", primary=True),
    Column("offset_bytes", "Offset", "number", "B"),
    Column("size_bytes", "Size", "number", "B"),
    Column("first_call", "First call", "number"),
    Column("last_call", "Last call", "number"),
)
WAY_COLUMNS: tuple[Column, ...] = (
    Column("way", "Way to run the step", primary=True),
    Column("needed_bytes", "Memory in all", "number", "B"),
    Column("flops_ratio", "FLOPs", "number", "x", 3),
    Column("taken", "Taken"),
)
SHOWN_ROWS = 200


def memory_table(plan: ArenaPlan) -> Table:
    """Returns a table of every value in the arena, by offset and first use."""
    ordered = sorted(plan.values, key=lambda value: (value.offset_bytes, value.first))
    rows = [
        Row(
            {
                "value": value.name,
                "offset_bytes": value.offset_bytes,
                "size_bytes": value.size_bytes,
                "first_call": value.first,
                "last_call": value.last,
            }
        )
        for value in ordered
    ]
    return table("memory", "Values of the arena", COLUMNS, rows)


def memory_figure(bundle: BundleFacts, data_href: str) -> Figure | None:
    """Draws the arena over one step; None when the bundle has no plan."""
    plan = memory_plan.arena_plan(bundle)
    if plan is None:
        return None
    live = live_bytes(plan)
    peak = max(live, default=0)
    share = peak / plan.arena_bytes if plan.arena_bytes else 0.0
    full = memory_table(plan)
    return Figure(
        id="memory-plan",
        title="Memory plan",
        note=f"Each box is a value: its bytes in the arena, from its first to its last kernel call. At the peak (call "
        f"{live.index(peak) if live else 0}) {fmt.size(peak)} live at once, {fmt.percent(share)} of the arena's "
        f"{fmt.size(plan.arena_bytes)} (dashed).{_of_which(bundle)}",
        legend=(("box-forward", "made in forward"), ("box-backward", "in backward"), ("box-update", "in update")),
        drawing=for_screens(lambda width: arena_picture(plan, width), FULL_WIDTH),
        table=full if len(full.rows) <= SHOWN_ROWS else _largest(full),
        data_href=data_href,
    )


def memory_drawing(
    session: Session, digest: str, data_href: str = "", built: BundleFacts | None = None
) -> Figure | None:
    """Returns the same as `memory_figure`, drawn only once, since a bundle never changes. `built`: the bundle, if it
    has already been read.
    """

    def draw() -> Figure | None:
        bundle = built or queries.bundle(session, digest)
        return memory_figure(bundle, "") if bundle else None

    figure = lasting_of(session).recall(("memory plan", digest), draw, lambda drawn: drawn.size_bytes if drawn else 0)
    return replace(figure, data_href=data_href) if figure else None


def _of_which(bundle: BundleFacts) -> str:
    if memory_plan.micro_batches(bundle) == 1:
        return ""
    return " Shown is a step's last micro-batch; the others before it take the same bytes, or fewer."


def _largest(full: Table) -> Table:
    # A page of thousands of rows helps nobody: the largest are shown, the files have all.
    largest = sorted(full.rows, key=lambda row: -int(row.values["size_bytes"] or 0))[:SHOWN_ROWS]
    caption = f"The {SHOWN_ROWS} largest of {len(full.rows):,} values of the arena (the CSV and JSON files have all)"
    return table(full.name, caption, full.columns, largest)


def ways_figure(bundle: BundleFacts) -> Figure | None:
    """Draws the cost of less memory; None where there is no choice."""
    ways = memory_plan.ways(bundle)
    if len({way.needed_bytes for way in ways}) < 2:
        return None
    least = min(ways, key=lambda way: way.needed_bytes)
    rows = [
        Row({"way": w.name, "needed_bytes": w.needed_bytes, "flops_ratio": w.flops_ratio, "taken": w.is_chosen or None})
        for w in ways
    ]
    return Figure(
        id="memory-curve",
        title="Memory against arithmetic",
        note=f"With a memory_limit_bytes in the spec, the compiler works part by part, or repeats forward kernels "
        f"instead of keeping what they make: down to {fmt.size(least.needed_bytes)} at {least.flops_ratio:.2f} times "
        f"the FLOPs.",
        drawing=for_screens(lambda width: ways_plot(ways, width), FULL_WIDTH),
        table=table("ways", "Ways to run the step", WAY_COLUMNS, rows),
    )
