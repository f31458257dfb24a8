"""Cutting work into even ranges for threads."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from compiler.codegen.tir.tir import Block, Value, index


def share_out(block: Block, slots: int, units: int, body: Callable[[Block, Value, Value, Value], None]) -> None:
    """Cuts `units` into `slots` even ranges and runs `body(block, slot, first, end)` for each, in parallel."""
    if slots == 1:
        body(block, index(0), index(0), index(units))
        return

    def emit_slot(inner: Block, slot: Value) -> None:
        first = inner.let(tirx.truncdiv(slot * units, index(slots)), "first")
        end = inner.let(tirx.truncdiv((slot + 1) * units, index(slots)), "end")
        body(inner, slot, first, end)

    block.loop(slots, emit_slot, kind="parallel", name="slot")
