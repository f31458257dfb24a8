"""Where the file's initializers and the author's parameters part, read off a model before and after its repair.

Whatever an earlier step found out (`restore`, `unrecorded`, `sharing`), the nodes it kept say which tensor they read
now, and which initializer the file gave them.
"""

from __future__ import annotations

from collections.abc import Mapping

from compiler.frontend.file.source import SourceModel, SourceNode
from compiler.origins import Reading

_VIEWS = ("Transpose", "Reshape", "Expand")


def readings_of(
    stored: SourceModel, source: SourceModel, own_names: Mapping[tuple[str, int], str]
) -> tuple[Reading, ...]:
    """Every input that reads another tensor than the initializer that the file names there.

    `own_names` is what the import itself told apart: (first output of a node, input) -> tensor.
    """
    before = {node.outputs[0]: node for node in stored.nodes}
    made = {name: node for node in source.nodes for name in node.outputs if name not in before}
    found = []
    for node in source.nodes:
        old = before.get(node.outputs[0])
        if old is None:
            continue
        for index, name in enumerate(node.inputs):
            # What the file makes of another tensor (TorchScript's Identity) may be a tensor of its own, of that name.
            is_own = name in source.initializers and name not in stored.initializers
            if name and (is_own or name != old.operand(index)):
                reading = _reading(source, made, node, index, old.operand(index))
                found += [reading] if reading is not None else []
    for (node_name, index), name in own_names.items():
        found = [one for one in found if (one.node, one.index) != (node_name, index)]
        old = before.get(node_name)
        found.append(Reading(node_name, index, old.operand(index) if old is not None else "", name))
    return tuple(found)


def _reading(
    source: SourceModel, made: dict[str, SourceNode], node: SourceNode, index: int, stored: str
) -> Reading | None:
    name = node.inputs[index]
    if name in source.initializers:
        return Reading(node.outputs[0], index, stored, name)
    view = made.get(name)
    if view is None or view.op_type not in _VIEWS or view.inputs[0] not in source.initializers:
        return None
    perm = view.attributes.get("perm", ())
    order = tuple(int(axis) for axis in perm) if isinstance(perm, tuple) else ()
    return Reading(node.outputs[0], index, stored, view.inputs[0], view.op_type, order)
