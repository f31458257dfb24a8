"""What learns, layer by layer, on a job's page: out of the compile report, whose texts come from a model's author."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from service.dashboard.facts import BundleFacts
from service.dashboard.tables import Column, Row, Table, Value, table

BYTES = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "accumulator_bytes", "kept_bytes")
FLOPS = ("forward_flops", "backward_flops")
"""As the report tells them: files have these, pages the same in KiB and MFLOP, which fit beside one another."""
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
    """Every layer, and their sum; None of a bundle that tells none (built by another compiler version)."""
    told = bundle.compile_report.get("plan")
    rows = told.get("rows") if isinstance(told, Mapping) else None
    if not isinstance(told, Mapping) or not isinstance(rows, list) or not rows:
        return None
    totals = told.get("totals")
    every = [*rows, {"name": "all", **totals}] if isinstance(totals, Mapping) else rows
    return table(
        "plan", "What learns, layer by layer", COLUMNS, [_row(row) for row in every if isinstance(row, Mapping)]
    )


def shown_rows(found: Table) -> Table:
    """What the page shows: layers that learn, the first of very many, and no column of zeros; the files have all."""
    learning = [row for row in found.rows if row.values["learns"] or row.values["name"] == "all"]
    kept = learning if len(learning) <= SHOWN_ROWS else [*learning[: SHOWN_ROWS - 1], learning[-1]]
    more = len(found.rows) - len(kept)
    caption = f"{found.caption} ({more:,} others are in the CSV and JSON files)" if more else found.caption
    unused = {key for key in ("gradient_kib", "accumulator_kib") if not any(row.values[key] for row in kept)}
    columns = [replace(column, files_only=True) if column.key in unused else column for column in found.columns]
    return table(found.name, caption, columns, kept)


def _row(told: Mapping[object, object]) -> Row:
    learns = told.get("learns")
    values: dict[str, Value] = {name: _count(told.get(name)) for name in _COUNTS}
    for name in BYTES:
        values[name.replace("_bytes", "_kib")] = _in_units(values[name], 1024)
    for name in FLOPS:
        values[name.replace("_flops", "_mflop")] = _in_units(values[name], 1e6)
    values["name"] = str(told.get("name", ""))[:200]
    values["learns"] = ", ".join(map(str, learns))[:500] if isinstance(learns, list) else ""
    return Row(values)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _in_units(count: Value, unit: float) -> float | None:
    return count / unit if isinstance(count, int) else None
