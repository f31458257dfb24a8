"""The explanation of a plan for a model, as text for a terminal."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pockfarm.output.table import bytes_text, figure, text_table, work_text
from pockfarm.screen import Meaning, painted

Explanation = Mapping[str, Any]
COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "elements": "elements",
        "all_elements": "of",
        "weight_bytes": "weights",
        "gradient_bytes": "gradient",
        "optimizer_bytes": "optimizer",
        "accumulator_bytes": "sums",
        "kept_bytes": "kept",
        "forward_flops": "forward",
        "backward_flops": "backward",
    }
)
"""Figure of a row -> its column."""
LEAST = ("of", "forward", "backward", "sums", "optimizer", "kept", "gradient")
"""Columns that a narrow window does without, the last one first."""
MAY_BE_LEFT_OUT = ("gradient_bytes", "optimizer_bytes", "accumulator_bytes", "kept_bytes")
"""Columns that are not there where no layer has any."""
REST = "everything else"
"""The row of what works for no layer."""
LEGEND = {
    "": "layer: its number, as `layers` of a plan counts. elements: what learns, of all of the layer's",
    "weight_bytes": "weights: what learns",
    "gradient_bytes": "gradient: gradients that are stored before they are applied",
    "optimizer_bytes": "optimizer: the optimizer's state",
    "accumulator_bytes": "sums: gradients added up over the micro-batches of a step",
    "kept_bytes": "kept: what the forward pass keeps because this layer's backward pass is the last to read it",
    "forward_flops": "forward, backward: floating-point operations of one step, all of its micro-batches",
}
"""Column -> what it says."""
MOST_OF_NAME, MOST_OF_LEARNS, MOST_OF_VALUE = 44, 60, 200
"""Characters in a terminal; `--json` has all."""


def explanation_text(explanation: Explanation) -> str:
    """The table, its totals, planned memory, what stays and why, warnings, and every field of plan and spec."""
    totals = explanation["totals"]
    columns = [name for name in COLUMNS if totals[name] or name not in MAY_BE_LEFT_OUT]
    every = [*_shortened(explanation["rows"]), {"name": "all", "number": None, "learns": [], **totals}]
    widest = max(len("layer"), *(len(_number(row)) for row in every))
    rows = [(_number(row).rjust(widest), *_cells(row, columns)) for row in every]
    legend = [words for name, words in LEGEND.items() if name in ("", *columns)]
    header = ("layer", "", "learns", *(COLUMNS[name] for name in columns))
    parts = [
        text_table(header, rows, least=LEAST),
        "",
        *(painted(line, Meaning.QUIET) for line in legend),
        *_memory(explanation["memory"], totals),
    ]
    if explanation["rows_left_out"]:
        parts.append(f"{explanation['rows_left_out']} more layers are not listed")
    parts += _section(
        f"blocks of the scheme, each {explanation['blocks']['kind']}", map(_block, explanation["blocks"]["found"])
    )
    parts += _section(
        "cannot learn from this file",
        (f"{layer['name']}: {layer['reason']}; {layer['remedy']}" for layer in explanation["cannot_learn"]),
    )
    parts += _section("notes", explanation["notes"])
    parts += _section("warnings", (_warning(warning) for warning in explanation["warnings"]))
    for document in ("plan", "spec"):
        parts += _section(f"{document} (* is not the default)", map(_field, explanation[document]))
    return "\n".join(parts)


def _shortened(rows: Sequence[Explanation]) -> Iterator[Explanation]:
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


def _cells(row: Explanation, columns: Sequence[str]) -> tuple[str, ...]:
    learns = _begin_of(", ".join(row["learns"]), MOST_OF_LEARNS) or ("" if row["name"] == "all" else "-")
    return (_end_of(row["name"], MOST_OF_NAME + 3), learns, *(_figure(name, row[name]) for name in columns))


def _figure(name: str, value: float) -> str:
    if name.endswith("_flops"):
        return work_text(value)
    return bytes_text(value) if name.endswith("_bytes") else figure(value, 0)


def _number(row: Explanation) -> str:
    return "" if row["number"] is None else str(row["number"])


def _begin_of(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _end_of(text: str, most: int) -> str:
    """A module's path tells most at its end."""
    return text if len(text) <= most else f"…{text[1 - most :]}"


def _memory(memory: Explanation, totals: Explanation) -> list[str]:
    arena, bound, optimizer = memory["arena_bytes"], memory["bound_bytes"], memory["optimizer_bytes"]
    gap = f"{arena / bound - 1:.2%} above" if bound else "at"
    state, sums = totals["optimizer_bytes"], totals["accumulator_bytes"]
    parts = (
        ("peak", memory["peak_bytes"], f"all of these; {bytes_text(memory['limit_bytes'])} are allowed"),
        ("arena", arena, f"what a step makes; {gap} its lower bound of {bytes_text(bound)}"),
        ("weights", memory["weights_bytes"], "parameters, constants, and packed copies of frozen weights"),
        (
            "optimizer",
            optimizer,
            f"state {bytes_text(state)} + sums {bytes_text(sums)} + alignment {bytes_text(optimizer - state - sums)}",
        ),
    )
    widest = max(len(bytes_text(size)) for _, size, _ in parts)
    return _section(
        "planned memory of a step",
        (f"{name:9}  {bytes_text(size):>{widest}}  {meaning}" for name, size, meaning in parts),
    )


def _section(head: str, lines: Iterable[str]) -> list[str]:
    listed = list(lines)
    return ["", painted(f"{head}:", Meaning.HEAD), *(f"  {line}" for line in listed)] if listed else []


def _block(block: Explanation) -> str:
    return f"{block['path'] or 'without a module of its own'}: layers {', '.join(map(str, block['layers']))}"


def _warning(warning: Explanation) -> str:
    hint = f" ({warning['hint']})" if warning["hint"] else ""
    return f"{warning['where']}: {warning['message']}{hint} [{warning['code']}]"


def _field(field: Explanation) -> str:
    mark = " " if field["default"] else "*"
    value = field["value"]
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return f"{mark} {field['field']}: {_begin_of(text, MOST_OF_VALUE)}"
