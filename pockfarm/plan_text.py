"""What a plan means for a model, as text for a terminal."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pockfarm.table import figure, text_table

Told = Mapping[str, Any]
COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "elements": "elements",
        "all_elements": "of",
        "weight_bytes": "weights B",
        "gradient_bytes": "gradient B",
        "optimizer_bytes": "optimizer B",
        "accumulator_bytes": "sums B",
        "kept_bytes": "kept B",
        "forward_flops": "forward MFLOP",
        "backward_flops": "backward MFLOP",
    }
)
"""Figure of a row -> its column."""
MAY_BE_LEFT_OUT = ("gradient_bytes", "optimizer_bytes", "accumulator_bytes", "kept_bytes")
"""Columns that are not there where no layer has any."""
REST = "everything else"
"""The row of what works for no layer."""
LEGEND = {
    "": "layer: its number, as `layers` of a plan counts. elements: what learns, of all of the layer's. B: bytes",
    "weight_bytes": "weights: what learns",
    "gradient_bytes": "gradient: gradients that are stored before they are applied",
    "optimizer_bytes": "optimizer: the optimizer's state",
    "accumulator_bytes": "sums: gradients added up over the micro-batches of a step",
    "kept_bytes": "kept: what the forward pass keeps because this layer's backward pass is the last to read it",
    "forward_flops": "MFLOP: millions of floating-point operations of one step, all of its micro-batches",
}
"""Column -> what it says."""
MOST_OF_NAME, MOST_OF_LEARNS, MOST_OF_VALUE = 44, 60, 200
"""Characters in a terminal; `--json` has all."""


def explanation_text(told: Told) -> str:
    """The table, its totals, planned memory, what stays and why, warnings, and every field of plan and spec."""
    totals = told["totals"]
    shown = [name for name in COLUMNS if totals[name] or name not in MAY_BE_LEFT_OUT]
    every = [*_shortened(told["rows"]), {"name": "all", "number": None, "learns": [], **totals}]
    widest = max(len("layer"), *(len(_number(row)) for row in every))
    rows = [(_number(row).rjust(widest), *_cells(row, shown)) for row in every]
    legend = [words for name, words in LEGEND.items() if name in ("", *shown)]
    header = ("layer", "", "learns", *(COLUMNS[name] for name in shown))
    parts = [text_table(header, rows), "", *legend, *_memory(told["memory"], totals)]
    if told["rows_left_out"]:
        parts.append(f"{told['rows_left_out']} more layers are not listed")
    parts += _section(f"blocks of the scheme, each {told['blocks']['kind']}", map(_block, told["blocks"]["found"]))
    parts += _section("cannot learn from this file", (f"{one['name']}: {one['reason']}; {one['remedy']}"
                                                      for one in told["cannot_learn"]))  # fmt: skip
    parts += _section("notes", told["notes"])
    parts += _section("warnings", (_warning(one) for one in told["warnings"]))
    for document in ("plan", "spec"):
        parts += _section(f"{document} (* is not the default)", map(_field, told[document]))
    return "\n".join(parts)


def _shortened(rows: Sequence[Told]) -> Iterator[Told]:
    """Frozen layers in a row as one."""
    for learns, run in itertools.groupby(rows, key=lambda row: bool(row["learns"]) or row["name"] == REST):
        same = list(run)
        if learns or len(same) < 3:
            yield from same
            continue
        numbers = [row["number"] for row in same if row["number"] is not None]
        yield {
            "name": " … ".join(_end_of(row["name"], MOST_OF_NAME // 2) for row in (same[0], same[-1])),
            "number": f"{min(numbers)}-{max(numbers)}" if numbers else None,
            "learns": [],
            **{name: sum(row[name] for row in same) for name in COLUMNS},
        }


def _cells(row: Told, shown: Sequence[str]) -> tuple[str, ...]:
    learns = _begin_of(", ".join(row["learns"]), MOST_OF_LEARNS) or ("" if row["name"] == "all" else "-")
    figures = (figure(row[name], 2, 1e-6) if name.endswith("_flops") else figure(row[name], 0) for name in shown)
    return (_end_of(row["name"], MOST_OF_NAME + 3), learns, *figures)


def _number(row: Told) -> str:
    return "" if row["number"] is None else str(row["number"])


def _begin_of(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _end_of(text: str, most: int) -> str:
    """A module's path tells most at its end."""
    return text if len(text) <= most else f"…{text[1 - most :]}"


def _memory(memory: Told, totals: Told) -> list[str]:
    arena, bound, optimizer = memory["arena_bytes"], memory["bound_bytes"], memory["optimizer_bytes"]
    gap = f"{arena / bound - 1:.2%} above" if bound else "at"
    state, sums = totals["optimizer_bytes"], totals["accumulator_bytes"]
    parts = (
        ("peak", memory["peak_bytes"], f"all of these; {memory['limit_bytes']:,} are allowed"),
        ("arena", arena, f"what a step makes; {gap} its lower bound of {bound:,}"),
        ("weights", memory["weights_bytes"], "parameters, constants, and packed copies of frozen weights"),
        (
            "optimizer",
            optimizer,
            f"state {state:,} + sums {sums:,} + alignment {optimizer - state - sums:,}",
        ),
    )
    widest = max(len(f"{size:,}") for _, size, _ in parts)
    return _section(
        "planned memory of a step", (f"{name:9}  {size:>{widest},} B  {said}" for name, size, said in parts)
    )


def _section(head: str, lines: Iterable[str]) -> list[str]:
    listed = list(lines)
    return ["", f"{head}:", *(f"  {line}" for line in listed)] if listed else []


def _block(one: Told) -> str:
    return f"{one['path'] or 'without a module of its own'}: layers {', '.join(map(str, one['layers']))}"


def _warning(one: Told) -> str:
    hint = f" ({one['hint']})" if one["hint"] else ""
    return f"{one['where']}: {one['message']}{hint} [{one['code']}]"


def _field(one: Told) -> str:
    mark = " " if one["default"] else "*"
    value = one["value"]
    shown = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return f"{mark} {one['field']}: {_begin_of(shown, MOST_OF_VALUE)}"
