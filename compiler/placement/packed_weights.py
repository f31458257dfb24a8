"""Frozen weights are stored in the order in which matrix products read them, so that no step packs them.

Rewrites: a product whose B is a whole frozen weight -> the same product of B in panels (`MatmulSpec.b_panel`).
Requires: programs as they will run (a call that is cut into parts reads the same weight in each).
Ensures: every product multiplies the same numbers; checkpoints hold what they held.
Why: packing costs up to a fifth of a product of few rows, in every step and for every part of a batch.

Packing is a layout and no computation: `StateTensor.view_shape` and `perm` say it, the loader makes it, a checkpoint
undoes it. A weight that is read in several orders is stored in each of them: the first takes the place of the weight if
nothing reads it as it was, the others are copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from compiler.graph import TensorType
from compiler.kernels.spec import MatmulSpec
from compiler.program.aliases import storage_of
from compiler.program.program import KernelCall, Program, StateTensor, ViewOrder
from compiler.rewriting.passes import Declined, PassResult, Reason
from compiler.values import Value

AS_IT_IS = Reason(
    "packing.as_it_is", "a weight that divides into panels, is faster so, and has room for a copy if others read it too"
)

PanelWidth = Callable[[MatmulSpec], int]
"""Columns of the panels in which a product reads a B that never changes best; 0: as it is."""
MAX_RANK = 8


@dataclass(frozen=True, slots=True)
class Order:
    """How a product reads a weight: the weight's axes are (k, n), or (n, k) if `transposed`."""

    weight: Value
    transposed: bool


Stored = Mapping[Order, StateTensor]
"""The packed tensor of each order that has one."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Which weights are stored packed, decided for all programs of a binary at once."""

    frozen: Mapping[Value, StateTensor]
    stored: Stored
    state: tuple[StateTensor, ...]
    """All state, with packed weights beside or in place of the others."""


def plan_packing(
    programs: Sequence[Program], state: Sequence[StateTensor], panel_width: PanelWidth, *, may_copy: bool
) -> Packing:
    """The packed weights that pay, and the state that holds them; copies only if `may_copy`."""
    frozen = {tensor.value: tensor for tensor in state if _never_changes(tensor)}
    packed_by_order = {
        order: packed
        for order, spec in _costliest(programs, frozen).items()
        if (width := panel_width(spec))
        and (packed := packed_state(frozen[order.weight], spec, order.transposed, width)) is not None
    }
    stored, replaced = _stored(programs, frozen, packed_by_order, may_copy=may_copy)
    unpacked = [tensor for tensor in state if tensor.value not in replaced]
    return Packing(frozen, stored, (*unpacked, *stored.values()))


def pack_weights(program: Program, *, packing: Packing) -> PassResult[Program]:
    """The program with packed operands, and their types."""
    calls: list[KernelCall] = []
    declined: list[Declined] = []
    for call in program.calls:
        order = _order(program, call, packing.frozen)
        packed = packing.stored.get(order) if order is not None else None
        if packed is not None and isinstance(call.spec, MatmulSpec):
            width = packed.type.shape[-1]
            spec = replace(call.spec, b_transposed=False, b_batched=False, b_panel=width)
            call = replace(call, spec=spec, inputs=(call.inputs[0], packed.value, *call.inputs[2:]))
        elif order is not None:
            declined.append(AS_IT_IS.at(call.layer))
        calls.append(call)
    types = {tensor.value: tensor.type for tensor in packing.stored.values()}
    state = tuple(dict.fromkeys((*program.state, *types)))
    rewritten = replace(program, calls=tuple(calls), types={**program.types, **types}, state=state)
    return PassResult(rewritten, rewritten.calls != program.calls, tuple(declined))


def _never_changes(tensor: StateTensor) -> bool:
    return tensor.role in ("parameter", "constant") and not tensor.trained and tensor.type.element.is_real


def _order(program: Program, call: KernelCall, frozen: Mapping[Value, StateTensor]) -> Order | None:
    """How a call reads a frozen weight as its B; None if it does not, or not the whole weight."""
    spec = call.spec
    if not isinstance(spec, MatmulSpec) or spec.b_panel or (spec.b_batched and spec.batch > 1):
        return None
    home = storage_of(program.aliases, call.inputs[1])
    tensor = frozen.get(home.value)
    if tensor is None or home.offset_bytes or tensor.type.size != spec.k * spec.n:
        return None
    return Order(tensor.value, spec.b_transposed)


def _costliest(programs: Sequence[Program], frozen: Mapping[Value, StateTensor]) -> dict[Order, MatmulSpec]:
    """The product that decides each order's panels: of the first program that has one, the largest."""
    products: dict[Order, MatmulSpec] = {}
    for program in programs:
        costliest_calls: dict[Order, KernelCall] = {}
        for call in program.calls:
            order = _order(program, call, frozen)
            if order is not None and (order not in costliest_calls or call.flops > costliest_calls[order].flops):
                costliest_calls[order] = call
        products = {
            order: call.spec for order, call in costliest_calls.items() if isinstance(call.spec, MatmulSpec)
        } | products
    return products


def packed_state(tensor: StateTensor, spec: MatmulSpec, transposed: bool, width: int) -> StateTensor | None:
    """The weight as [n / width, k, width] for this product; None if its axes do not divide into n, k and panels."""
    view = [extent for extent in tensor.view_shape if extent > 1]
    number = {axis: sum(extent > 1 for extent in tensor.view_shape[:axis]) for axis in tensor.perm}
    inside = [number[axis] for axis in tensor.perm if tensor.view_shape[axis] > 1]
    extents = [view[axis] for axis in inside]
    outer = spec.n if transposed else spec.k
    cut = next((i for i in range(len(extents) + 1) if prod(extents[:i]) == outer), None)
    if cut is None:
        return None
    rows, columns = (inside[cut:], inside[:cut]) if transposed else (inside[:cut], inside[cut:])
    if not columns or view[columns[-1]] % width or len(view) + 1 > MAX_RANK:
        return None
    last = columns[-1]
    view[last : last + 1] = [view[last] // width, width]
    panels, steps = ([axis + (axis > last) for axis in axes] for axes in (columns, rows))
    perm = (*panels, *steps, last + 1)
    kind = TensorType(tensor.type.dtype, tuple(view[axis] for axis in perm))
    orders = tuple(_order_inside(order, tensor.view_shape, last) for order in tensor.orders)
    return replace(tensor, type=kind, view_shape=tuple(view), perm=perm, orders=orders, packed=True)


def _order_inside(order: ViewOrder, view_shape: tuple[int, ...], cut: int) -> ViewOrder:
    """The order where axes of extent 1 are left out and axis `cut` of the others is two."""
    axis = sum(extent > 1 for extent in view_shape[: order.axis])
    return replace(order, axis=axis + (axis > cut), count=order.count + (axis == cut))


def _stored(
    programs: Sequence[Program], frozen: Mapping[Value, StateTensor], packed_by_order: Stored, *, may_copy: bool
) -> tuple[Stored, set[Value]]:
    """The packed tensors to keep, by order, and the weights whose place they take."""
    plain = set(_read_plainly(programs, frozen, packed_by_order))
    orders = Counter(order.weight for order in packed_by_order)
    stored: dict[Order, StateTensor] = {}
    replaced: set[Value] = set()
    for order, packed in packed_by_order.items():
        room = may_copy and not packed.lies_in_file
        if order.weight not in plain | replaced and (room or orders[order.weight] == 1):
            stored[order] = packed
            replaced.add(order.weight)
        elif room:
            value = order.weight.packed(transposed=order.transposed)
            stored[order] = replace(packed, value=value, copy_of=order.weight)
    return stored, replaced


def _read_plainly(
    programs: Sequence[Program], frozen: Mapping[Value, StateTensor], packed_by_order: Stored
) -> Iterator[Value]:
    """Frozen weights that something reads as they are: another kernel, or an operand other than B."""
    for program in programs:
        yield from (program.root(name) for name in program.outputs if program.root(name) in frozen)
        for call in program.calls:
            order = _order(program, call, frozen)
            for position, name in enumerate(call.inputs):
                if program.root(name) in frozen and not (position == 1 and order in packed_by_order):
                    yield program.root(name)
