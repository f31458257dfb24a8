"""Parts of every optimizer's update: a parameter, or a range of its channels, takes its new values in place.

`w` is the whole parameter; the gradient and all state cover the channels from `start` along `axis` (everything when
axis is -1). Operands are w, its gradient, state, then scalars that are fed at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from compiler.errors import InternalError
from compiler.graph import Array, Attrs, TensorType
from compiler.kernels.access import Access, axis, broadcast, identity
from compiler.ops.record import Cost, NamedNode, NotDifferentiable, OnnxWriter, Types, integer

UPDATE = NotDifferentiable("an optimizer step is the end of the graph")
W, G, SCALAR = TensorType("f32", (4, 3)), TensorType("f32", (2, 3)), TensorType("f32", ())
"""Types of examples: a parameter, a range of its channels, a number."""
WHOLE, PART = {"axis": -1, "start": 0}, {"axis": 0, "start": 1}


def infer_update(inputs: Types, attrs: Attrs, states: int) -> Types:
    """The types of the parameter and of its state. Raises: InternalError if the gradient has another shape."""
    parameter, gradient = inputs[0], inputs[1]
    expected = list(parameter.shape)
    along = integer(attrs, "axis")
    if along >= 0:
        expected[along] = gradient.shape[along]
    if tuple(expected) != gradient.shape or any(state != gradient for state in inputs[2 : 2 + states]):
        raise InternalError(f"update of {parameter} with gradient {gradient} along axis {along}")
    return (parameter, *inputs[2 : 2 + states])


def window(parameter: Array, gradient: Array, attrs: Attrs) -> tuple[slice, ...]:
    """Returns where in the parameter the gradient is."""
    index = [slice(None)] * parameter.ndim
    along, start = integer(attrs, "axis"), integer(attrs, "start")
    if along >= 0:
        index[along] = slice(start, start + gradient.shape[along])
    return tuple(index)


def accesses(inputs: Types, attrs: Attrs, states: int) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
    """Reads and writes over the slice: the parameter through its window, the rest whole, scalars broadcast."""
    gradient = inputs[1]
    along, start = integer(attrs, "axis"), integer(attrs, "start")
    index = tuple(axis(i, offset=start if i == along else 0) for i in range(len(gradient.shape)))
    through = Access(inputs[0], index)
    whole = tuple(identity(tensor) for tensor in inputs[1 : 2 + states])
    scalars = tuple(broadcast(tensor, gradient.shape) for tensor in inputs[2 + states :])
    return (through, *whole, *scalars), (through, *whole[1:])


def sliced(out: OnnxWriter, node: NamedNode, types: Mapping[str, TensorType]) -> str:
    """The part of the parameter that learns."""
    along, start = integer(node.attrs, "axis"), integer(node.attrs, "start")
    if along < 0:
        return node.inputs[0]
    stop = start + types[node.inputs[1]].shape[along]
    return out.add("Slice", node.inputs[0], out.ints(start), out.ints(stop), out.ints(along))


def put_back(out: OnnxWriter, node: NamedNode, types: Mapping[str, TensorType], updated: str) -> None:
    """The parameter with what it has become there."""
    along, start = integer(node.attrs, "axis"), integer(node.attrs, "start")
    if along < 0:
        out.add("Identity", updated, output=node.outputs[0])
        return
    extent, stop = types[node.inputs[0]].shape[along], start + types[node.inputs[1]].shape[along]
    parts = [updated]
    if start:
        parts.insert(0, out.add("Slice", node.inputs[0], out.ints(0), out.ints(start), out.ints(along)))
    if stop < extent:
        parts.append(out.add("Slice", node.inputs[0], out.ints(stop), out.ints(extent), out.ints(along)))
    out.add("Concat", *parts, output=node.outputs[0], axis=along)


def blend(out: OnnxWriter, old: str, new: str, beta: float, output: str | None = None) -> str:
    """kept old + (1 - kept) new."""
    before, fresh = out.add("Mul", old, out.scalar(beta)), out.add("Mul", new, out.scalar(1 - beta))
    return out.add("Add", before, fresh, output=output)


def shrunk(out: OnnxWriter, weight: str, rate: str, decay: float) -> str:
    """weight (1 - rate decay): weight decay beside the gradient."""
    shrinkage = out.add("Mul", rate, out.scalar(decay))
    return out.add("Mul", weight, out.add("Sub", out.scalar(1.0), shrinkage))


def decayed(out: OnnxWriter, weight: str, gradient: str, decay: float) -> str:
    """gradient + decay weight: weight decay as a part of the gradient."""
    return out.add("Add", gradient, out.add("Mul", weight, out.scalar(decay))) if decay else gradient


def update_cost(flops_per_element: int) -> Callable[[Types, Types, Attrs], Cost]:
    """Returns the cost of an update that reads and writes each element once."""

    def cost(inputs: Types, outputs: Types, attrs: Attrs) -> Cost:
        moved = inputs[1].size_bytes
        return Cost(flops_per_element * inputs[1].size, moved * (1 + len(outputs)), moved * len(outputs))

    return cost
