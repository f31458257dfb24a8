"""Puts channels that learn side by side, by one order for all that must be in the same.

Rewrites: the elements of parameters and constants along axes that hang together (`compiler.channels.coupling`), so that
each wanted set of channels is one range. Requires: a graph before its loss. Ensures: every output is what it was, up to
the order of sums; parameters say in which order they are kept (`Parameter.orders`). Where a set fits no common order,
the parameter alone is kept in one of its own, its channels in front, and is read through a `gather` that undoes it.
Why: a range is a slice, which costs what the channels cost; a list of places is a copy in every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from compiler.channels.atoms import Atom
from compiler.channels.coupling import Coupling
from compiler.channels.orders import accepted, is_run, order_of
from compiler.channels.slices import UpdateSlice
from compiler.errors import PlanError
from compiler.graph import Array, Graph, Parameter, TensorType
from compiler.rewriting.builder import GraphBuilder
from compiler.values import Value

MAX_AXES = 8
"""The most axes of a tensor in the runtime's tables."""


@dataclass(frozen=True, slots=True)
class ChannelRequest:
    """Channels of a parameter along one inside axis, ascending, in the order of the file."""

    value: Value
    axis: int
    channels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Alone:
    """A parameter whose channels fit no common order."""

    value: Value
    reason: str


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The graph in its new order, where the wanted channels lie in it, and what is kept in an order of its own."""

    graph: Graph
    windows: Mapping[Value, UpdateSlice]
    alone: tuple[Alone, ...]


def arrange(graph: Graph, requests: Sequence[ChannelRequest]) -> Arrangement:
    """Puts the wanted channels of each parameter side by side."""
    coupling = Coupling(graph)
    places = {request.value: place for request in requests if (place := _place(coupling, request)) is not None}
    orders = _orders(graph, requests, places)
    writer = _Writer(coupling, orders)
    windows: dict[Value, UpdateSlice] = {}
    alone: list[Alone] = []
    for request in requests:
        window = _window(coupling, request, places.get(request.value), orders)
        if window is None:
            alone.append(Alone(request.value, _reason(places.get(request.value))))
            window = writer.keep_alone(request)
        elif isinstance(window, _Split):
            window = writer.split(request, window)
        windows[request.value] = window
    return Arrangement(writer.changed_graph(), windows, tuple(alone))


Orders = Mapping[Atom, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Place:
    """The factor of the axis along which channels are chosen, and which of it they are, with all of the others."""

    atom: Atom
    members: frozenset[int]
    position: int


@dataclass(frozen=True, slots=True)
class _Split:
    """A range that lies in each of `outer` equal parts of the axis."""

    outer: int
    start: int
    size: int


def _place(coupling: Coupling, request: ChannelRequest) -> _Place | None:
    atoms = coupling.factors(request.value, request.axis)
    grid = np.zeros(prod(atom.extent for atom in atoms), bool)
    grid[list(request.channels)] = True
    grid = grid.reshape([atom.extent for atom in atoms])
    for position, atom in enumerate(atoms):
        others = tuple(axis for axis in range(len(atoms)) if axis != position)
        some = grid.any(axis=others)
        if np.array_equal(some, grid.all(axis=others)):
            return _Place(atom, frozenset(int(member) for member in np.flatnonzero(some)), position)
    return None


def _orders(graph: Graph, requests: Sequence[ChannelRequest], places: Mapping[Value, _Place]) -> Orders:
    """The order of each atom that has to move: what costs most when it is kept alone comes first."""
    sets: dict[Atom, list[frozenset[int]]] = {}
    for request in sorted(requests, key=lambda request: -graph.types[request.value].size_bytes):
        place = places.get(request.value)
        if place is not None:
            sets.setdefault(place.atom, []).append(place.members)
    orders = {}
    for atom, member_sets in sets.items():
        if atom.pinned or all(is_run(sorted(members)) for members in member_sets):
            continue
        order = order_of(atom.extent, accepted(member_sets))
        if order != tuple(range(atom.extent)):
            orders[atom] = order
    return orders


def _window(
    coupling: Coupling, request: ChannelRequest, place: _Place | None, orders: Orders
) -> UpdateSlice | _Split | None:
    """Returns where the channels lie in the new order; None if they are not one range."""
    atoms = coupling.factors(request.value, request.axis)
    if place is not None:
        order = orders.get(place.atom, tuple(range(place.atom.extent)))
        positions = [number for number, member in enumerate(order) if member in place.members]
        outer, inner = (
            prod(atom.extent for atom in part) for part in (atoms[: place.position], atoms[place.position + 1 :])
        )
        rank = len(coupling.axes(request.value)) + (outer > 1)
        if is_run(positions) and rank <= MAX_AXES:
            start, size = positions[0] * inner, len(positions) * inner
            return UpdateSlice(request.axis, start, size) if outer == 1 else _Split(outer, start, size)
    if is_run(request.channels) and not any(atom in orders for atom in atoms):
        return UpdateSlice(request.axis, request.channels[0], len(request.channels))
    return None


def _reason(place: _Place | None) -> str:
    if place is None:
        return "they cut across blocks that the model keeps together"
    if place.atom.pinned:
        return "the model's inputs, outputs or an operator fix the order of these channels"
    return "other layers on the same channels learn others"


def _table(atoms: Sequence[Atom], orders: Orders) -> tuple[int, ...]:
    """Returns which channel of the file stands at each place of an axis; empty if each stands in its own."""
    if not any(atom in orders for atom in atoms):
        return ()
    grid = np.arange(prod(atom.extent for atom in atoms)).reshape([atom.extent for atom in atoms])
    for axis, atom in enumerate(atoms):
        if atom in orders:
            grid = grid.take(orders[atom], axis=axis)
    return tuple(int(channel) for channel in grid.reshape(-1))


class _Writer:
    """The graph with its arrays in another order."""

    def __init__(self, coupling: Coupling, orders: Orders) -> None:
        self.graph, self.orders, self.coupling = coupling.graph, orders, coupling
        self.b = GraphBuilder(coupling.graph, keep_nodes=False)
        self.parameters: dict[Value, Parameter] = dict(coupling.graph.parameters)
        self.read_as: dict[Value, Value] = {}
        for value in coupling.graph.arrays if orders else ():
            tables = tuple(_table(self._factors(value, axis), orders) for axis in self._axes(value))
            if any(tables):
                self._reorder(value, tables)

    def _axes(self, value: Value) -> range:
        return range(len(self.coupling.axes(value)))

    def _factors(self, value: Value, axis: int) -> list[Atom]:
        return self.coupling.factors(value, axis)

    def _reorder(self, value: Value, tables: tuple[tuple[int, ...], ...]) -> None:
        self.b.arrays[value] = reordered(self.graph.arrays[value], tables)
        if value in self.parameters:
            self.parameters[value] = replace(self.parameters[value], orders=tables if any(tables) else ())

    def keep_alone(self, request: ChannelRequest) -> UpdateSlice:
        """The channels in front of the parameter's own order, which its readers do not see. Raises: PlanError."""
        parameter = self.parameters[request.value]
        if request.value in self.graph.outputs:
            raise PlanError("an output of the model cannot be kept in another order", where=parameter.name)
        extent = parameter.shape[request.axis]
        tables = list(parameter.orders or [()] * len(parameter.shape))
        network = tables[request.axis] or tuple(range(extent))
        order = (*request.channels, *sorted(set(range(extent)) - set(request.channels)))
        tables[request.axis] = order if order != tuple(range(extent)) else ()
        self._reorder(request.value, tuple(tables))
        place = {channel: number for number, channel in enumerate(order)}
        numbers = self.b.constant(np.array([place[channel] for channel in network], np.int64))
        self._read(request.value, self.b.emit("gather", request.value, numbers, axis=request.axis))
        return UpdateSlice(request.axis, 0, len(request.channels))

    def split(self, request: ChannelRequest, window: _Split) -> UpdateSlice:
        """The parameter with the axis as two, so that the window is a range of the second; readers get it as one."""
        value, axis = request.value, request.axis
        shape = self.b.shape(value)
        cut = (window.outer, shape[axis] // window.outer)
        atoms = self._factors(value, axis)
        before = next(n for n in range(len(atoms) + 1) if prod(atom.extent for atom in atoms[:n]) == window.outer)
        tables = list(self.parameters[value].orders or [()] * len(shape))
        tables[axis : axis + 1] = [_table(atoms[:before], self.orders), _table(atoms[before:], self.orders)]
        whole = replace(self.parameters[value], orders=())
        self.parameters[value] = replace(split_axis(whole, axis, cut), orders=tuple(tables) if any(tables) else ())
        parted = (*shape[:axis], *cut, *shape[axis + 1 :])
        self.b.types[value] = TensorType(self.b.types[value].dtype, parted)
        self.b.arrays[value] = np.asarray(self.b.arrays[value]).reshape(parted)
        self._read(value, self.b.emit("reshape", value, shape=shape))
        return UpdateSlice(axis + 1, window.start, window.size)

    def _read(self, value: Value, instead: Value) -> None:
        self.b.nodes[-1] = replace(self.b.nodes[-1], layer=self.parameters[value].layer)
        self.read_as[value] = instead

    def changed_graph(self) -> Graph:
        """Returns the graph with all changes."""
        nodes = [
            replace(node, inputs=tuple(self.read_as.get(value, value) for value in node.inputs))
            if any(value in self.read_as for value in node.inputs)
            else node
            for node in self.graph.nodes
        ]
        self.b.nodes += nodes
        return replace(self.b.graph_of(self.graph), parameters=self.parameters)


def reordered(array: Array, tables: Sequence[Sequence[int]]) -> Array:
    """The array with the channel `table[i]` at place i of each axis that has a table."""
    for axis, table in enumerate(tables):
        if table:
            array = array.take(table, axis=axis)
    return array


def split_axis(parameter: Parameter, axis: int, cut: tuple[int, int]) -> Parameter:
    """The parameter with an inside axis as two."""
    there = parameter.perm[axis]
    view = (*parameter.view_shape[:there], *cut, *parameter.view_shape[there + 1 :])
    moved = [[place + (place > there)] for place in parameter.perm]
    moved[axis] = [there, there + 1]
    channel_axis = parameter.channel_axis
    if channel_axis is not None:
        channel_axis += channel_axis >= axis
    perm = tuple(place for places in moved for place in places)
    return replace(parameter, view_shape=view, perm=perm, channel_axis=channel_axis, parted=axis)
