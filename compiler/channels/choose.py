"""The choice of the channels that a rule means in each parameter: by number, the first ones, or those of the largest
norm.

    input    the input channels of a weight (a depth-wise one's own channels); of each group alike
    output   the output channels of a weight, with its bias: one choice for both
    heads    the heads of an attention: outputs of query, key and value, inputs of the projection behind them
    ffn      the hidden units of a feed-forward block: outputs of its first layers, inputs of its second
What a rule matches of one layer, attention or block has one choice: by norm, that of all of it together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.channels.blocks import Units, feed_forward_of, heads_of
from compiler.channels.outputs import output_axis, outputs_of
from compiler.errors import PlanError
from compiler.graph import Graph
from compiler.spec.channels import Channels
from compiler.values import Value


@dataclass(frozen=True, slots=True)
class Lane:
    """An axis of a parameter as outer x units x inner, and what the units belong to."""

    value: Value
    axis: int
    units: int
    inner: int
    of: object
    """The group of parameters that share one choice; equal for all of them."""


Chosen = Mapping[Value, tuple[int, tuple[int, ...]]]
"""Parameter -> the inside axis, and the channels along it that learn, ascending."""


def choose(model_units: Units, channels: Channels, values: Sequence[Value], where: str) -> Chosen:
    """The channels of a rule's parameters; those without such an axis are left out.

    Raises: PlanError for numbers that there are not, and where no parameter has such an axis.
    """
    graph, lanes = model_units.coupling.graph, _lanes(model_units, channels, values, where)
    together: dict[object, list[Lane]] = {}
    for lane in lanes:
        together.setdefault(lane.of, []).append(lane)
    chosen: dict[Value, tuple[int, tuple[int, ...]]] = {}
    for group in together.values():
        units = _units(graph, channels, group, where)
        for lane in group:
            chosen[lane.value] = (lane.axis, _channels(graph, lane, units))
    return chosen


def _lanes(model_units: Units, channels: Channels, values: Sequence[Value], where: str) -> list[Lane]:
    if channels.along == "heads":
        return [Lane(*row) for row in heads_of(model_units, values, channels.heads, where)]
    if channels.along == "ffn":
        return [Lane(*row) for row in feed_forward_of(model_units, values, where)]
    graph, lanes = model_units.coupling.graph, []
    wires, among = model_units.coupling.wires, frozenset(values)
    for value in values:
        parameter = graph.parameters[value]
        axis = parameter.channel_axis if channels.along == "input" else output_axis(wires, value)
        if axis is not None:
            of = value if channels.along == "input" else outputs_of(wires, value, among)
            lanes.append(Lane(value, axis, parameter.shape[axis], 1, (of, parameter.shape[axis])))
    if not lanes:
        raise PlanError(
            f"nothing that this rule matches has {channels.along} channels", where=where, hint="leave `channels` out"
        )
    return lanes


def _units(graph: Graph, channels: Channels, lanes: Sequence[Lane], where: str) -> tuple[int, ...]:
    """The units that learn, ascending."""
    first = lanes[0]
    if channels.ratio is None:
        beyond = [number for number in channels.indices if number >= first.units]
        if beyond:
            name, what = graph.parameters[first.value].name, _WORDS[channels.along]
            raise PlanError(
                f"{name!r} has {first.units} {what}, numbers 0 to {first.units - 1}; there is no {beyond[0]}",
                where=f"{where}.channels.indices",
            )
        return channels.indices
    count = max(1, math.ceil(channels.ratio * first.units - 1e-9))
    if channels.select == "first":
        return tuple(range(count))
    norms = sum((_squares(graph, lane) for lane in lanes), start=np.zeros(first.units))
    return tuple(sorted(int(unit) for unit in np.argsort(-norms, kind="stable")[:count]))


_WORDS = {"input": "input channels", "output": "output channels", "heads": "heads", "ffn": "hidden units"}


def _squares(graph: Graph, lane: Lane) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The sum of squares of each unit."""
    array = np.moveaxis(graph.arrays[lane.value].astype(np.float64), lane.axis, 0)
    rows = array.reshape(-1, lane.units, lane.inner, array[0].size)
    return np.asarray(np.square(rows).sum(axis=(0, 2, 3)))


def _channels(graph: Graph, lane: Lane, units: Sequence[int]) -> tuple[int, ...]:
    extent = graph.parameters[lane.value].shape[lane.axis]
    grid = np.arange(extent).reshape(-1, lane.units, lane.inner)
    return tuple(int(channel) for channel in np.sort(grid[:, list(units)].reshape(-1)))
