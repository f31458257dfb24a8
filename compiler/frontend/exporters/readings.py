"""The differences between the file's initializers and the author's parameters, read off a model before and after its
repair.

Whatever an earlier step found out (`restore`, `unrecorded`, `sharing`), the nodes it kept say which tensor they read
now, and which initializer the file gave them.
"""

from __future__ import annotations

from collections.abc import Mapping

from compiler.element_types import holds_reals
from compiler.frontend.file.source import SourceModel, SourceNode
from compiler.graph import Array
from compiler.origins import Constant, Reading, Step

_VIEWS = ("Transpose", "Reshape", "Expand")


def readings_of(
    stored: SourceModel, source: SourceModel, own_names: Mapping[tuple[str, int], str]
) -> tuple[Reading, ...]:
    """Returns every input that reads another tensor than the initializer that the file names there.

    `own_names` is what the import itself told apart: (first output of a node, input) -> tensor.
    """
    before = {node.outputs[0]: node for node in stored.nodes}
    makers = {name: node for node in source.nodes for name in node.outputs if name not in before}
    readings = []
    for node in source.nodes:
        old = before.get(node.outputs[0])
        if old is None or old.op_type != node.op_type:
            continue  # what stands in for another node has inputs of its own, and tells nothing of the file's
        for index, name in enumerate(node.inputs):
            # What the file makes of another tensor (TorchScript's Identity) may be a tensor of its own, of that name.
            is_own = name in source.initializers and name not in stored.initializers
            if name and (is_own or name != old.operand(index)):
                reading = _reading(source, makers, node, index, old.operand(index))
                readings += [reading] if reading is not None else []
    for (node_name, index), name in own_names.items():
        readings = [earlier for earlier in readings if (earlier.node, earlier.index) != (node_name, index)]
        old = before.get(node_name)
        readings.append(Reading(node_name, index, old.operand(index) if old is not None else "", name))
    return tuple(readings)


def _reading(
    source: SourceModel, makers: dict[str, SourceNode], node: SourceNode, index: int, stored: str
) -> Reading | None:
    name = node.inputs[index]
    if name in source.initializers:
        return Reading(node.outputs[0], index, stored, name)
    view = makers.get(name)
    if view is None:
        return None
    if view.op_type not in _VIEWS or view.inputs[0] not in source.initializers:
        return _made_by_steps(source, makers, node, index, stored)
    perm = view.attributes.get("perm", ())
    order = tuple(int(axis) for axis in perm) if isinstance(perm, tuple) else ()
    return Reading(node.outputs[0], index, stored, view.inputs[0], view.op_type, order)


def _made_by_steps(
    source: SourceModel, makers: dict[str, SourceNode], node: SourceNode, index: int, stored: str
) -> Reading | None:
    """Returns the reading of what several nodes make of one tensor or more; None if they read what the step
    computes.
    """
    steps: dict[str, Step] = {}
    leaves: dict[str, Array] = {}
    pending = [node.inputs[index]]
    while pending:
        name = pending[-1]
        maker = makers.get(name)
        if name in source.initializers:
            leaves[name] = source.initializers[name]
        elif maker is None:
            return None
        elif any(unread := [operand for operand in maker.inputs if operand not in steps and operand not in leaves]):
            pending += unread
            continue
        else:
            steps[name] = Step(maker.op_type, maker.inputs, name, _numbers(maker))
        pending.pop()
    tensors = [name for name, array in leaves.items() if holds_reals(array) and name not in source.constants]
    if not tensors:
        return None
    constants = tuple(
        Constant(name, str(array.dtype), array.shape, tuple(array.reshape(-1).tolist()))
        for name, array in leaves.items()
        if name not in tensors
    )
    output = node.outputs[0]
    return Reading(output, index, stored, tensors[0], "", (), tuple(tensors[1:]), tuple(steps.values()), constants)


def _numbers(node: SourceNode) -> tuple[tuple[str, int | tuple[int, ...]], ...]:
    """The attributes of a node that a repair has made: numbers, or lists of them."""
    numbers: list[tuple[str, int | tuple[int, ...]]] = []
    for key, value in node.attributes.items():
        if isinstance(value, int):
            numbers.append((key, value))
        elif isinstance(value, tuple):
            numbers.append((key, tuple(int(number) for number in value)))
    return tuple(numbers)
