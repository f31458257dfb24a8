"""How tensors lie in memory whose channels are kept in another order than the file's, as the runtime's `pf_axis`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from compiler.program.program import StateTensor

Axis = tuple[int, int, tuple[int, ...]]
"""(extent, stride, offsets): of an axis of the file; without offsets, by the stride."""


class OrderTables:
    """C arrays of the axes of tensors; equal tables of offsets are there once."""

    def __init__(self, states: Sequence[StateTensor]) -> None:
        self.lines: list[str] = []
        self._offsets: dict[tuple[int, ...], str] = {}
        self._fields = {state.value: self._written(number, state) for number, state in enumerate(states)}

    def fields(self, state: StateTensor) -> dict[str, str]:
        """Returns the fields of a `pf_state` that describe the orders."""
        return self._fields[state.value]

    def _written(self, number: int, state: StateTensor) -> dict[str, str]:
        if not state.orders:
            return {}
        rows = []
        for extent, stride, offsets in axes_of(state):
            if offsets and offsets not in self._offsets:
                self._offsets[offsets] = f"offsets_{len(self._offsets)}"
                listed = ", ".join(map(str, offsets))
                self.lines.append(f"static const int64_t {self._offsets[offsets]}[] = {{{listed}}};\n")
            rows.append(f"{{{extent}, {stride}, {self._offsets.get(offsets, 'NULL')}}}")
        self.lines.append(f"static const pf_axis axes_{number}[] = {{{', '.join(rows)}}};\n")
        return {"axes": f"axes_{number}", "axis_count": str(len(rows))}


def axes_of(state: StateTensor) -> list[Axis]:
    """The file's axes, outermost first."""
    strides = _strides(state)
    orders = {order.axis: order for order in state.orders}
    axes: list[Axis] = []
    axis = 0
    while axis < len(strides):
        order = orders.get(axis)
        if order is None:
            axes.append((state.view_shape[axis], strides[axis], ()))
            axis += 1
            continue
        axis_range = slice(axis, axis + order.count)
        places = np.unravel_index(np.argsort(order.channels), state.view_shape[axis_range])
        steps = sum(
            (place * stride for place, stride in zip(places, strides[axis_range], strict=True)), start=np.int64(0)
        )
        axes.append((len(order.channels), 0, tuple(int(step) for step in np.asarray(steps))))
        axis += order.count
    return axes


def _strides(state: StateTensor) -> list[int]:
    """How far apart neighbours along each view axis are in memory, in elements."""
    inside = [state.view_shape[axis] for axis in state.perm]
    strides = [0] * len(inside)
    for place, axis in enumerate(state.perm):
        strides[axis] = prod(inside[place + 1 :])
    return strides
