"""A bundle's graph before and after the plan, out of its compile report: layers in the order of the forward pass,
gathered by module until a page can hold them, alike neighbours as one."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.dashboard.facts import BundleFacts

MOST_GROUPS = 48
FEWEST_GROUPS = 8
"""Fewest groups that neighbours which look alike are gathered to; fewer would say nothing."""
PHASES = ("forward", "backward", "update")


@dataclass(frozen=True, slots=True)
class LayerRow:
    """The compiler's facts about a layer; `before` counts nodes of the model, `after` those of the step by phase."""

    path: tuple[str, ...]
    operators: tuple[str, ...]
    before: int
    after: Mapping[str, int]
    sources: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[object, ...]:
        """Key that two layers share if they look alike."""
        return self.operators, self.before, tuple(self.after.get(phase, 0) for phase in PHASES)


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Neighbouring layers of one module, or several modules that look alike."""

    name: str
    layers: int
    alike: int
    """Number of adjacent modules that the group stands for."""
    operators: tuple[tuple[str, int], ...]
    before: int
    after: Mapping[str, int]
    sources: tuple[int, ...]
    """Groups that it reads from, by position."""


@dataclass(frozen=True, slots=True)
class LayerGraph:
    """The whole graph as a page shows it."""

    rows: tuple[LayerRow, ...]
    groups: tuple[LayerGroup, ...]
    left_out: int
    is_whole: bool
    """Told by the compiler; otherwise (an older bundle) put together from the plan's table, which has no edges."""


def layer_graph(bundle: BundleFacts) -> LayerGraph | None:
    """Returns the graph of a bundle's layers; None if the bundle's report has neither layers nor a plan's table."""
    section = bundle.compile_report.get("layers")
    entries = section.get("rows") if isinstance(section, Mapping) else None
    is_whole = isinstance(section, Mapping) and isinstance(entries, list)
    if not is_whole:
        section = bundle.compile_report.get("plan")
        entries = section.get("rows") if isinstance(section, Mapping) else None
    if not isinstance(section, Mapping) or not isinstance(entries, list):
        return None
    read = _layer_row if is_whole else _planned
    rows = tuple(read(entry) for entry in entries if isinstance(entry, Mapping))
    return LayerGraph(rows, _groups(rows), _count(section.get("rows_left_out")), is_whole) if rows else None


def _layer_row(entry: Mapping[object, object]) -> LayerRow:
    operators, sources = entry.get("operators"), entry.get("from")
    return LayerRow(
        _path(entry),
        tuple(map(str, operators)) if isinstance(operators, list) else (),
        _count(entry.get("nodes")),
        {phase: _count(entry.get(phase)) for phase in PHASES},
        tuple(source for source in sources if isinstance(source, int)) if isinstance(sources, list) else (),
    )


def _planned(entry: Mapping[object, object]) -> LayerRow:
    after = {"forward": 1, "backward": int(bool(entry.get("backward_flops"))), "update": int(bool(entry.get("learns")))}
    operator = str(entry.get("operator", ""))
    return LayerRow(_path(entry), (operator,) if operator else (), 1, after)


def _path(entry: Mapping[object, object]) -> tuple[str, ...]:
    name = str(entry.get("name", ""))[:200].removeprefix("/")
    parts = name.split("/") if "/" in name else name.split(".")
    return tuple(part for part in parts if part) or ("everything else",)


def _groups(rows: Sequence[LayerRow]) -> tuple[LayerGroup, ...]:
    """Groups the layers by module, as deep as fits on a page. Where there are too many groups, neighbours that look
    alike become one.
    """
    deepest = max(len(row.path) for row in rows)
    runs: list[list[list[int]]] = []
    for depth in range(deepest, 0, -1):
        modules = _modules(rows, depth)
        if len(modules) <= MOST_GROUPS:
            return _layer_groups(rows, [[numbers] for numbers in modules])
        runs = _alike(rows, modules)
        if FEWEST_GROUPS <= len(runs) <= MOST_GROUPS:
            return _layer_groups(rows, runs)
    width = -(-len(runs) // MOST_GROUPS)
    wide = [list(itertools.chain.from_iterable(runs[at : at + width])) for at in range(0, len(runs), width)]
    return _layer_groups(rows, wide)


def _modules(rows: Sequence[LayerRow], depth: int) -> list[list[int]]:
    by_module = itertools.groupby(range(len(rows)), key=lambda number: rows[number].path[:depth])
    return [list(numbers) for _, numbers in by_module]


def _alike(rows: Sequence[LayerRow], modules: Sequence[list[int]]) -> list[list[list[int]]]:
    """Neighbours with the same layers in them, side by side."""
    keyed = itertools.groupby(modules, key=lambda numbers: tuple(rows[number].shape for number in numbers))
    return [list(same) for _, same in keyed]


def _layer_groups(rows: Sequence[LayerRow], runs: Sequence[list[list[int]]]) -> tuple[LayerGroup, ...]:
    owner = {number: at for at, run in enumerate(runs) for numbers in run for number in numbers}
    groups = []
    for at, run in enumerate(runs):
        inside = [rows[number] for numbers in run for number in numbers]
        sources = {owner[number] for row in inside for number in row.sources if number in owner} - {at}
        operators = Counter(name for row in inside for name in row.operators)
        groups.append(
            LayerGroup(
                name=_name(rows, run),
                layers=len(inside),
                alike=len(run),
                operators=tuple(operators.most_common(4)),
                before=sum(row.before for row in inside),
                after={phase: sum(row.after.get(phase, 0) for row in inside) for phase in PHASES},
                sources=tuple(sorted(sources)),
            )
        )
    return tuple(groups)


def _name(rows: Sequence[LayerRow], run: Sequence[list[int]]) -> str:
    first, last = rows[run[0][0]].path, rows[run[-1][-1]].path
    shared = [part for part, other in zip(first, last, strict=False) if part == other]
    if len(run) == 1:
        return ".".join(shared or first)
    return f"{_short(first)} to {_short(last)}"


def _short(path: Sequence[str]) -> str:
    return re.sub(r"^(.{40}).+$", r"\1…", ".".join(path))


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
