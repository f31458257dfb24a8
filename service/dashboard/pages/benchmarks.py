"""Benchmarks: the newest run of each configuration, ranked among its like, and what trades off against what.

A group holds runs whose numbers may stand beside each other: same model, measurement class, mode, batch and data set.
Ranks by time are ranges, where noise leaves more than one (`device_agents/figures/ranks.py`). Times of emulated or
simulated boards are never ranked. Runs whose verdict is neither `valid` nor `function` are hidden, with their count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from markupsafe import Markup
from sqlalchemy.orm import Session

from device_agents.figures.ranks import Rank, ranks
from device_agents.figures.separate_runs import Standing
from device_agents.wire import REAL_CLASSES
from service.dashboard import addresses, queries
from service.dashboard import format as fmt
from service.dashboard.charts import FULL_WIDTH, HALF_WIDTH, for_screens
from service.dashboard.charts.pareto import Axis, TradeoffPoint, tradeoff_plot
from service.dashboard.comparison import Variations, beaten_flags, dominated_flags, no_rank, standing
from service.dashboard.facts import Measured, RunFacts
from service.dashboard.measured import measured
from service.dashboard.pages.benchmark_filter import filters, of_precision, query_of
from service.dashboard.pages.fronts import Axes, axis_filters, fronts
from service.dashboard.pages.run_table import measured_values
from service.dashboard.parts import CLASSES, COUNTING, Figure, Filter
from service.dashboard.tables import Column, Row, Table, Value, table
from service.work.runs.engines import engine_of
from service.work.runs.filter import RunFilter
from service.work.runs.variation import variations

FINAL_LOSS = "Over the data set after training, else the mean of the last ten steps"
COLUMNS: tuple[Column, ...] = (
    Column("plan", "Plan", primary=True, sortable=True),
    Column("target", "Target", files_only=True),
    Column("engine", "Engine", sortable=True),
    Column("device", "Device", sortable=True, wide_only=True),
    Column("precision", "Precision", sortable=True, wide_only=True),
    Column("verdict", "Verdict", "verdict"),
    Column(
        "rank",
        "Rank",
        wide_only=True,
        hint="By time: 1 more than are likely faster, to as many as are not likely slower",
    ),
    Column("rank_best", "Rank, best", "number", files_only=True),
    Column("rank_worst", "Rank, worst", "number", files_only=True),
    Column("no_rank", "No rank because", files_only=True),
    Column("median_ms", "Step median", "number", "ms", fits=True, sortable=True, hint="Below it, its 95% interval"),
    Column("p90_ms", "Step p90", "number", "ms", fits=True, sortable=True),
    Column("samples_per_second", "Samples", "number", "1/s", significant=3, sortable=True, files_only=True),
    Column("arena_mib", "Arena", "number", "MiB", fits=True, sortable=True, hint="Planned bytes of one training step"),
    Column("peak_rss_mib", "Peak RSS", "number", "MiB", fits=True, sortable=True),
    Column("energy_mj", "Energy/step", "number", "mJ", 1, sortable=True, hint="Absent without a sensor"),
    Column("bundle_mib", "Bundle", "number", "MiB", fits=True, sortable=True),
    Column("loss", "Final loss", "number", significant=4, sortable=True, hint=FINAL_LOSS),
    Column("runs", "Runs", "number", hint="Valid runs of this configuration; the newest is shown", files_only=True),
    Column("dominated", "Dominated", hint="Whether another row is likely faster (or smaller), and nowhere worse"),
)
OF_TIME = ("median_ms", "p90_ms", "samples_per_second")
USUAL_AXES = Axes()
NAMED = 3
"""Most rows that are named beside a reason."""

Line = TypeVar("Line", RunFacts, Measured)
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that are like each other, as one table with its picture."""

    title: str
    measurement_class: str
    detail: str
    table: Table
    figure: Figure | None
    ranked_by: tuple[Axis, ...]
    fronts: tuple[Figure, ...] = ()
    """Fronts of each device alone, over the chosen axes."""
    unranked: tuple[str, ...] = ()
    """Why rows have no rank by time, and which."""

    @property
    def times_mean_nothing(self) -> bool:
        """True for emulated and simulated boards."""
        return self.measurement_class not in REAL_CLASSES


@dataclass(frozen=True, slots=True)
class BenchmarksPage:
    """The page's groups and filters, and what is hidden."""

    groups: tuple[Group, ...]
    filters: tuple[Filter, ...]
    query: tuple[tuple[str, str], ...]
    hidden: tuple[tuple[str, int], ...]
    """(verdict, how many runs) left out."""
    all_verdicts: bool
    toggle: str
    sort: str
    axes: tuple[Filter, ...] = ()
    """Choices of the fronts."""


def benchmarks_page(
    session: Session, chosen: RunFilter, *, all_verdicts: bool, sort: str, axes: Axes = USUAL_AXES
) -> BenchmarksPage:
    """Returns the page of measured runs, grouped with their like."""
    measurements = measured(session, chosen)
    precisions = {entry.precision for entry in measurements}
    measurements = of_precision(chosen, measurements)
    eligible = [entry for entry in measurements if all_verdicts or chosen.verdict or entry.verdict in COUNTING]
    hidden = _counted((entry.verdict or "no verdict", entry) for entry in measurements if entry.verdict not in COUNTING)
    newest, counted = newest_of_each(eligible)
    rows = {entry.id: entry for entry in queries.runs_by_id(session, [entry.id for entry in newest])}
    facts = queries.with_reports(session, [rows[entry.id] for entry in newest if entry.id in rows])
    facts = queries.with_precision(session, facts)
    query = query_of(chosen)
    return BenchmarksPage(
        groups=ranked_groups(facts, known_of(session, facts), counted, sort, axes),
        filters=filters(session, chosen, precisions),
        query=(*query, *((("verdicts", "all"),) if all_verdicts else ())),
        hidden=tuple(sorted(hidden.items())),
        all_verdicts=all_verdicts,
        toggle=addresses.page("benchmarks", *query, *(() if all_verdicts else (("verdicts", "all"),))),
        sort=sort,
        axes=axis_filters(axes),
    )


def known_of(session: Session, facts: Sequence[RunFacts]) -> Variations:
    """Returns how the times vary on those devices whose runs may be ranked by time. `facts` come with their reports."""
    devices = {run.device_id for run in facts if run.device_id and run.timing_means_something and run.has_interval}
    return variations(session, sorted(devices), judged=[run.id for run in facts]) if devices else {}


def ranked_groups(
    facts: Sequence[RunFacts],
    variations: Variations,
    counted: Counter[tuple[object, ...]],
    sort: str,
    axes: Axes = USUAL_AXES,
) -> tuple[Group, ...]:
    """Groups runs with their like and ranks each group. `variations`: how devices vary; `axes`: those of the fronts."""
    return tuple(_group(n, like, variations, counted, sort, axes) for n, like in enumerate(grouped(facts), start=1))


def benchmark_table(groups: Sequence[Group]) -> Table:
    """Returns every group's rows in one table, for CSV and JSON."""
    leading = (Column("model", "Model"), Column("measurement_class", "Class", "class"), Column("run", "Run"))
    columns = (*leading, Column("mode", "Mode"), Column("batch", "Batch", "number"), *COLUMNS)
    return table("benchmarks", "Benchmarks", columns, [row for group in groups for row in group.table.rows])


def configuration(entry: RunFacts | Measured) -> tuple[object, ...]:
    """Returns the key that two runs of the same benchmark share: they differ in nothing but when they ran."""
    return (*likeness(entry), entry.plan_name, entry.target, entry.device_id, entry.threads, entry.precision)


def likeness(entry: RunFacts | Measured) -> tuple[object, ...]:
    """Returns the key that two runs must share to be ranked against each other."""
    return (
        entry.model_name,
        entry.model_digest,
        entry.measurement_class or "",
        entry.mode,
        entry.batch or 0,
        entry.dataset_digest or "",
    )


def newest_of_each(entries: Sequence[Line]) -> tuple[list[Line], Counter[tuple[object, ...]]]:
    """Returns the newest run of each configuration (given newest first), and how many runs each has."""
    newest: dict[tuple[object, ...], Line] = {}
    for entry in entries:
        newest.setdefault(configuration(entry), entry)
    # Threads come from the report, which only the newest have: count by what every row knows.
    return list(newest.values()), _counted((configuration(entry), entry) for entry in entries)


def _counted(entries: Iterable[tuple[Key, RunFacts | Measured]]) -> Counter[Key]:
    """Groups runs by key."""
    counts: Counter[Key] = Counter()
    for key, entry in entries:
        counts[key] += entry.runs if isinstance(entry, Measured) else 1
    return counts


def grouped(facts: Sequence[RunFacts]) -> list[list[RunFacts]]:
    """Groups runs by likeness: real boards first, then by model."""
    groups: dict[tuple[object, ...], list[RunFacts]] = {}
    for entry in facts:
        groups.setdefault(likeness(entry), []).append(entry)
    order = list(CLASSES)
    return sorted(
        groups.values(),
        key=lambda like: (
            order.index(like[0].measurement_class) if like[0].measurement_class in order else len(order),
            like[0].model_name,
            like[0].mode,
            like[0].batch or 0,
        ),
    )


def ranked_axes(like: Sequence[RunFacts]) -> tuple[Axis, ...]:
    """Returns the axes that every run of the group has; never latency where time means nothing or has no interval."""
    axes: list[Axis] = []
    if all(entry.timing_means_something and entry.has_interval for entry in like):
        axes.append("latency")
    if all(entry.arena_bytes is not None for entry in like):
        axes.append("memory")
    if all(entry.final_loss is not None for entry in like):
        axes.append("loss")
    return tuple(axes)


def tradeoff_points(
    like: Sequence[RunFacts], axes: Sequence[Axis], standings: Sequence[Standing | None]
) -> tuple[TradeoffPoint, ...]:
    """Returns the group's runs with their coordinates, and whether another run dominates each on `axes`: in time, where
    it is likely faster.
    """
    points = [
        TradeoffPoint(
            letter=_letters(place),
            label=f"{entry.plan_name}, {entry.device_name or entry.target}",
            anchor=f"row-{entry.id}",
            latency=entry.median_ms,
            memory=fmt.mebibytes(entry.arena_bytes),
            loss=entry.final_loss,
            dominated=False,
            energy=entry.energy_mj,
            error=None if entry.accuracy_after is None else 100 * (1 - entry.accuracy_after),
            bundle=fmt.mebibytes(entry.bundle_bytes),
        )
        for place, entry in enumerate(like)
    ]
    if len(axes) < 2:
        return tuple(points)
    exact = [[point.value(axis) or 0.0 for axis in axes if axis != "latency"] for point in points]
    flags = beaten_flags(exact, standings) if "latency" in axes else dominated_flags(exact)
    return tuple(replace(point, dominated=flag) for point, flag in zip(points, flags, strict=True))


def _letters(place: int) -> str:
    """Returns A to Z, AA, AB: no numbers, which would look like ranks."""
    more, last = divmod(place, 26)
    return (_letters(more - 1) if more else "") + chr(ord("A") + last)


def _group(
    number: int,
    like: list[RunFacts],
    variations: Variations,
    counted: Counter[tuple[object, ...]],
    sort: str,
    chosen: Axes,
) -> Group:
    axes = ranked_axes(like)
    placed = list(zip(like, ranks([standing(entry, variations) for entry in like]), strict=True))
    placed.sort(key=lambda pair: _order(*pair))
    ordered, places = [entry for entry, _ in placed], [rank for _, rank in placed]
    standings = [standing(entry, variations) for entry in ordered]
    points = tradeoff_points(ordered, axes, standings)
    first, reasons = ordered[0], [no_rank(entry, variations) for entry in ordered]
    rows = [
        _row(entry, point, rank, reason, counted, axes)
        for entry, point, rank, reason in zip(ordered, points, places, reasons, strict=True)
    ]
    parts = [first.mode, f"batch {first.batch}" if first.batch else "", first.dataset_name or "synthetic data"]
    told_apart = ", ".join(part for part in (first.model_name, *parts, first.measurement_class) if part)
    listing = table(f"group-{number}", told_apart, COLUMNS, rows)
    listing = listing.hiding_empty("rank", *OF_TIME, "energy_mj", "loss", "peak_rss_mib", "dominated")
    if len({entry.precision for entry in like}) < 2:
        listing = listing.hiding("precision")
    if len({engine_of(entry.target) for entry in like}) < 2:
        listing = listing.hiding("engine")
    is_known = "latency" not in axes or all(rank and rank.best == rank.worst for rank in places)
    return Group(
        title=first.model_name,
        measurement_class=first.measurement_class or "",
        detail=" · ".join(part for part in parts if part),
        table=listing.sorted_by(sort),
        figure=_figure(number, points, axes, is_known=is_known),
        ranked_by=axes if len(axes) > 1 else (),
        fronts=fronts(f"group-{number}", ordered, points, standings, chosen),
        unranked=_unranked(ordered, reasons) if first.timing_means_something else (),
    )


def _unranked(like: Sequence[RunFacts], reasons: Sequence[str]) -> tuple[str, ...]:
    """Returns each reason once, with the runs to which it applies unless it applies to all."""
    names_by_reason: dict[str, list[str]] = {}
    for entry, reason in zip(like, reasons, strict=True):
        if reason:
            names_by_reason.setdefault(reason, []).append(f"{entry.plan_name} on {entry.device_name or entry.target}")
    return tuple(
        reason if len(names) == len(like) else f"{fmt.some(names, NAMED)}: {reason}"
        for reason, names in names_by_reason.items()
    )


def _order(entry: RunFacts, rank: Rank | None) -> tuple[float, float, float, str]:
    """Returns the key to sort by: the rank, and among equal ranks what is planned and not measured."""
    best, worst = (rank.best, rank.worst) if rank else (math.inf, math.inf)
    return best, worst, float(entry.arena_bytes or 0), entry.plan_name


def _row(
    entry: RunFacts,
    point: TradeoffPoint,
    rank: Rank | None,
    reason: str,
    counted: Counter[tuple[object, ...]],
    axes: Sequence[Axis],
) -> Row:
    values: dict[str, Value] = {
        "id": entry.id,
        "run": entry.id,
        "pick": f"{entry.plan_name} on {entry.device_name or entry.target}",
        "model": entry.model_name,
        "measurement_class": entry.measurement_class,
        "mode": entry.mode,
        "batch": entry.batch,
        "plan": entry.plan_name,
        "target": entry.target,
        "engine": engine_of(entry.target),
        "device": entry.device_name,
        "precision": entry.precision or None,
        "verdict": entry.verdict,
        "rank": rank.words if rank else None,
        "rank_best": rank.best if rank else None,
        "rank_worst": rank.worst if rank else None,
        "no_rank": reason or None,
        **measured_values(entry),
        "bundle_mib": fmt.mebibytes(entry.bundle_bytes),
        "loss": entry.final_loss,
        "runs": _count(counted, entry),
        "dominated": None if len(axes) < 2 else ("yes" if point.dominated else "no"),
    }
    links = {"plan": addresses.run(entry.id)}
    if entry.device_id:
        links["device"] = addresses.device(entry.device_id)
    notes = {"device": entry.target} if entry.device_name else {}
    interval = entry.interval_ms
    if interval and entry.median_ms is not None:
        notes["median_ms"] = fmt.latency_span(entry.median_ms, interval)
    if (count := _count(counted, entry)) > 1:
        notes["plan"] = f"newest of {count} runs"
    letter = point.letter if len(axes) > 1 else ""
    where = entry.device_name or entry.target
    narrow = {"plan": f"{where}, rank {rank.words}" if rank else where}
    return Row(values, links, notes, narrow, anchor=point.anchor, dimmed=point.dominated, letter=letter)


def _count(counted: Counter[tuple[object, ...]], entry: RunFacts) -> int:
    # A report may have filled in the threads that the row left open.
    open_threads = configuration(replace(entry, threads=None))
    return counted[configuration(entry)] or counted[open_threads]


def _figure(number: int, points: Sequence[TradeoffPoint], axes: Sequence[Axis], *, is_known: bool) -> Figure | None:
    if len(points) < 2 or len(axes) < 2:
        return None
    pairs: list[tuple[Axis, Axis]] = [(axes[0], axis) for axis in axes[1:]]
    wide = FULL_WIDTH if len(pairs) == 1 else HALF_WIDTH
    drawing = Markup("").join(
        Markup('<div class="panel">{}</div>').format(
            for_screens(lambda width, x=x, y=y: tradeoff_plot(points, x, y, width, is_known=is_known), wide)  # type: ignore[misc]
        )
        for x, y in pairs
    )
    front_size = sum(1 for point in points if not point.dominated)
    note = (
        f"Lower left is better. {front_size} of {len(points)} not dominated in {' × '.join(axes)}; dominated ones are \
hollow. Letters are the rows of the table."
    )
    if not is_known:
        note += " Times are medians; of some it is not known which is the faster one, so no line joins the best."
    return Figure(f"tradeoff-{number}", "Trade-offs", drawing, note)
