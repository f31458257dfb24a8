"""What a plan means for a model, as text for a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pockfarm.table import figure, text_table

Told = Mapping[str, Any]
SUMMED = ("elements", "all_elements", "weight_bytes", "gradient_bytes", "optimizer_bytes", "kept_bytes",
          "forward_flops", "backward_flops")  # fmt: skip
HEADER = ("layer", "", "learns", "elements", "of", "weights B", "gradient B", "optimizer B", "kept B",
          "forward FLOP", "backward FLOP")  # fmt: skip
REST = "everything else"
"""The row of what works for no layer."""
LEGEND = """layer: its number, as `layers` of a plan counts. weights, gradient, optimizer: bytes of what learns, of
gradients that are stored before they are applied, of the optimizer's state. kept: bytes that the forward pass keeps
because this layer's backward pass is the last to read them. FLOP of one step."""


def explanation_text(told: Told) -> str:
    """The table, its totals, planned memory, what stays and why, warnings, and every field of plan and spec."""
    rows = [_cells(row) for row in _shortened(told["rows"])]
    rows.append(_cells({"name": "all", "number": None, "learns": [], **told["totals"]}))
    parts = [text_table(HEADER, rows), "", LEGEND, "", _memory(told["memory"])]
    if told["rows_left_out"]:
        parts.append(f"{told['rows_left_out']} more layers are not listed")
    parts += _section(f"blocks of the scheme, each {told['blocks']['kind']}", map(_block, told["blocks"]["found"]))
    parts += _section("cannot learn from this file", (f"{one['name']}: {one['reason']}; {one['remedy']}"
                                                      for one in told["cannot_learn"]))  # fmt: skip
    parts += _section("warnings", (_warning(one) for one in told["warnings"]))
    for document in ("plan", "spec"):
        parts += _section(f"{document} (* as given, the others are defaults)", map(_field, told[document]))
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
            "name": f"{same[0]['name']} … {same[-1]['name']}",
            "number": f"{min(numbers)}-{max(numbers)}" if numbers else None,
            "learns": [],
            **{name: sum(row[name] for row in same) for name in SUMMED},
        }


def _cells(row: Told) -> tuple[str, ...]:
    number = "" if row["number"] is None else str(row["number"])
    learns = ", ".join(row["learns"]) or ("" if row["name"] == "all" else "-")
    return (number, row["name"], learns, *(figure(row[name], 0) for name in SUMMED))


def _memory(memory: Told) -> str:
    shown = ", ".join(f"{name.removesuffix('_bytes')} {value:,} B" for name, value in memory.items())
    return f"planned memory of a step: {shown}"


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
    return f"{mark} {one['field']}: {'null' if one['value'] is None else one['value']}"
