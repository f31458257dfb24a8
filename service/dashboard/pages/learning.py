"""The learning layers on a job's page, one by one, out of the report, whose texts come from a model's author."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from service.dashboard.facts import BundleFacts
from service.dashboard.tables import Column, Row, Table, Value, table

BYTES = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "accumulator_bytes", "kept_bytes")
FLOPS = ("forward_flops", "backward_flops")
"""Columns as the report has them, which files contain. Pages show KiB and MFLOP instead, so that the numbers fit side
by side.
"""
COLUMNS: tuple[Column, ...] = (
    Column("number", "#", "number", hint="As `layers` of a plan counts"),
    Column("name", "Layer", primary=True),
    Column("learns", "What learns", wrap=True),
    Column("elements", "Learn", "number", hint="Elements that learn"),
    Column("all_elements", "Of", "number", hint="All elements of the layer's parameters"),
    Column("weight_kib", "Weights", "number", "KiB", 1, hint="Of what learns"),
    Column("gradient_kib", "Gradient", "number", "KiB", 1, hint="Of gradients that are stored before they are applied"),
    Column("optimizer_kib", "Optimizer", "number", "KiB", 1),
    Column("accumulator_kib", "Sums", "number", "KiB", 1, hint="Of gradients, over the micro-batches of a step"),
    Column("kept_kib", "Kept", "number", "KiB", 1, hint="Kept by the forward pass for this layer's backward pass"),
    Column("forward_mflop", "Forward", "number", "MFLOP", 2),
    Column("backward_mflop", "Backward", "number", "MFLOP", 2),
    *(Column(name, name, "number", "B", files_only=True) for name in BYTES),
    *(Column(name, name, "number", "FLOP", files_only=True) for name in FLOPS),
)
SHOWN_ROWS = 200
_COUNTS = ("number", "elements", "all_elements", *BYTES, *FLOPS)


def learning_table(bundle: BundleFacts) -> Table | None:
    """Returns a table of every layer, with their sum; None for a bundle without layers (built by another compiler
    version).
    """
    plan = bundle.compile_report.get("plan")
    rows = plan.get("rows") if isinstance(plan, Mapping) else None
    if not isinstance(plan, Mapping) or not isinstance(rows, list) or not rows:
        return None
    totals = plan.get("totals")
    every = [*rows, {"name": "all", **totals}] if isinstance(totals, Mapping) else rows
    return table(
        "plan", "What learns, layer by layer", COLUMNS, [_row(row) for row in every if isinstance(row, Mapping)]
    )


def shown_rows(full: Table) -> Table:
    """Shortens the table for the page: layers that learn, the first of very many, and no column of zeros; the files
    have all.
    """
    learning = [row for row in full.rows if row.values["learns"] or row.values["name"] == "all"]
    rows = learning if len(learning) <= SHOWN_ROWS else [*learning[: SHOWN_ROWS - 1], learning[-1]]
    more = len(full.rows) - len(rows)
    caption = f"{full.caption} ({more:,} others are in the CSV and JSON files)" if more else full.caption
    unused = {key for key in ("gradient_kib", "accumulator_kib") if not any(row.values[key] for row in rows)}
    columns = [replace(column, files_only=True) if column.key in unused else column for column in full.columns]
    return table(full.name, caption, columns, rows)


def _row(layer: Mapping[object, object]) -> Row:
    learns = layer.get("learns")
    values: dict[str, Value] = {name: _count(layer.get(name)) for name in _COUNTS}
    for name in BYTES:
        values[name.replace("_bytes", "_kib")] = _in_units(values[name], 1024)
    for name in FLOPS:
        values[name.replace("_flops", "_mflop")] = _in_units(values[name], 1e6)
    values["name"] = str(layer.get("name", ""))[:200]
    values["learns"] = ", ".join(map(str, learns))[:500] if isinstance(learns, list) else ""
    return Row(values)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _in_units(count: Value, unit: float) -> float | None:
    return count / unit if isinstance(count, int) else None
