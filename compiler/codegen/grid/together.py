"""Joint work of the items of a group: sums and maxima over shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from compiler.codegen.grid.grid import Here
from compiler.codegen.tir import tir
from compiler.codegen.tir.accumulate import Combine, combined
from compiler.codegen.tir.tir import Block, Buffer, Value
from compiler.errors import InternalError


def combine_items(
    here: Here, block: Block, combine: Combine, values: Sequence[Value], shared: Sequence[Buffer], width: int
) -> list[Value]:
    """Combines each of `values`, one per item, over every run of `width` neighbouring items, which all get the result.

    `shared` holds `here.items` elements for each value, and is free again afterwards. `width` is a power of two that
    divides the group. The tree is always the same, and so are the result's bits. Every item must come by here.
    Raises: InternalError for another width.
    """
    if width & (width - 1) or here.items % width:
        raise InternalError(f"{here.items} items do not fall into runs of {width}")
    if width == 1:
        return [block.let(value, "own") for value in values]
    lane = block.let(tirx.bitwise_and(here.item, tir.index(width - 1)), "lane")
    for buffer, value in zip(shared, values, strict=True):
        block.store(buffer, here.item, value)
    here.barrier(block)
    step = width // 2
    while step:

        def halve(inner: Block, step: int = step) -> None:
            for buffer in shared:
                first, second = (inner.let(tir.load(buffer, here.item + far), "one") for far in (0, step))
                inner.store(buffer, here.item, combined(combine, first, second))

        block.when(tirx.LT(lane, tir.index(step)), halve)
        here.barrier(block)
        step //= 2
    results = [block.let(tir.load(buffer, here.item - lane), "all") for buffer in shared]
    here.barrier(block)
    return results
