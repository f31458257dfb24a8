"""The file that a model came in: the author's tensors in it, and the same file with other elements.

Nodes, names, metadata and opsets stay. Where the file has one initializer for several of the author's tensors
that differ now, initializers are added, and only the inputs that read these are renamed.

Makes again, of the new elements of the author's tensors, what an exporter made of them.

A file that was exported for training, as it computes when it does not train: what its modules' modes were.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from compiler.errors import ModelError
from compiler.external import NO_EXTERNAL, External
from compiler.frontend.file.eight_bits import read_integers
from compiler.frontend.file.external_data import fill_in
from compiler.frontend.file.modes import EVALUATION, MODE
from compiler.frontend.file.source import free_name
from compiler.frontend.file.stored_tensors import Path, StoredTensor, read_inside, stored_tensors
from compiler.origins import Origins, Reading
from compiler.tensors import Array
from compiler.trained.data_files import DataFile, location_of, refer
from compiler.trained.files import Files


def without_training_mode(model: bytes) -> bytes:
    """The model whose Dropout nodes pass on what they read: their `training_mode` is left out, the nodes stay.

    Source: ONNX Dropout (13, 22); `dropout: train` in a spec lets them drop all the same.
    """
    proto = onnx.ModelProto.FromString(model)
    for nodes in (proto.graph.node, *(function.node for function in proto.functions)):
        for node in nodes:
            if node.op_type == "Dropout" and node.domain in ("", "ai.onnx"):
                del node.input[2:]
    return bytes(proto.SerializeToString())


def with_evaluated(model: bytes, momenta: Mapping[float, float]) -> bytes:
    """The model whose norms of certain momenta are marked as in evaluation mode; they get the others in their place.

    In evaluation a norm's momentum has no effect, so that an exporter can carry with it which norm a node is.
    """
    proto = onnx.ModelProto.FromString(model)
    exact = {float(np.float32(marked)): intended for marked, intended in momenta.items()}
    for nodes in (proto.graph.node, *(function.node for function in proto.functions)):
        for node in nodes:
            for attribute in node.attribute if node.op_type == "BatchNormalization" else ():
                if attribute.name == "momentum" and attribute.f in exact:
                    attribute.f = exact[attribute.f]
                    node.metadata_props.add(key=MODE, value=EVALUATION)
    return bytes(proto.SerializeToString())


_OPSET = 18
_OPERATORS = frozenset(
    (
        "Add",
        "Concat",
        "Exp",
        "Expand",
        "Gather",
        "Log",
        "Mul",
        "Neg",
        "Reciprocal",
        "ReduceSum",
        "Reshape",
        "Sigmoid",
        "Tanh",
        "Transpose",
        "Unsqueeze",
    )
)
"""Operators that repairs are made of; a bundle that asks for anything else is not one of ours."""
_IR = 8


def tensor_from_steps(reading: Reading, tensors: Mapping[str, Array]) -> Array:
    """The tensor that the reading's steps make. Raises: ModelError for steps that no repair has."""
    strange = [step.op_type for step in reading.steps if step.op_type not in _OPERATORS]
    if strange:
        raise ModelError(
            f"is made by {strange[0]!r}", where=f"tensor {reading.tensor!r}", hint="build the bundle again"
        )
    inputs = {name: tensors[name] for name in (reading.tensor, *reading.others)}
    fixed = {
        constant.name: np.asarray(constant.elements, constant.dtype).reshape(constant.shape)
        for constant in reading.constants
    }
    graph = helper.make_graph(
        [helper.make_node(step.op_type, step.inputs, [step.output], **dict(step.attributes)) for step in reading.steps],
        "steps",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in inputs.items()],
        [helper.make_tensor_value_info(reading.steps[-1].output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in fixed.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    (tensor,) = ReferenceEvaluator(model).run(None, inputs)
    return np.asarray(tensor)


class _SourceView(NamedTuple):
    """The tensor that an input reads: one of the author's through a view."""

    tensor: str
    view: str = ""
    perm: tuple[int, ...] = ()
    reading: Reading | None = None
    """The way it is made, if it takes more than a view."""

    def is_of(self, names: Collection[str]) -> bool:
        """Whether one of these tensors is behind it."""
        return self.tensor in names or (self.reading is not None and any(name in names for name in self.reading.others))


class _Use(NamedTuple):
    """Input `place` of a node (protobuf) of the main graph, or of no node that could be changed."""

    node: Any
    place: int
    source: _SourceView


class Rewritten(NamedTuple):
    """A model's files with other elements, and the names of initializers that had to be added."""

    files: Files
    added: tuple[str, ...]


class StoredModel:
    """An ONNX model, and how its initializers relate to the author's tensors."""

    def __init__(self, model: bytes, origins: Origins, external: External = NO_EXTERNAL) -> None:
        self._proto = onnx.ModelProto.FromString(model)
        self._external = external
        self._outside = fill_in(self._proto, external)
        read_integers(self._proto.graph, origins.parameters)
        self._tensors = {stored.name: stored.tensor for stored in stored_tensors(self._proto).values()}
        self._readings = {(reading.node, reading.index): reading for reading in origins.readings}
        self._apart = {reading.stored for reading in origins.readings} - self._tensors.keys()
        """Values of the file that are tensors of their own, though a node makes them of another one."""
        self._behind: dict[str, Reading] = {}
        for reading in origins.readings:
            self._behind.setdefault(reading.tensor, reading)

    def tensor(self, name: str) -> Array:
        """The author's tensor of that name. Raises: ModelError if the file does not hold it."""
        reading = self._behind.get(name)
        stored = name if name in self._tensors or reading is None else reading.stored
        array = self._array(stored)
        if stored == name or reading is None or not reading.view:
            return array
        return array.transpose(np.argsort(reading.perm)) if reading.view == "Transpose" else array.reshape(-1)

    def norms_of(self, mean: str) -> int:
        """Returns how many BatchNormalization nodes read a running mean."""
        nodes = [node for node in self._proto.graph.node if node.op_type == "BatchNormalization"]
        return sum(self._source_of(node, 3).tensor == mean for node in nodes)

    def _source_of(self, node: Any, place: int) -> _SourceView:
        reading = self._readings.get((node.output[0], place))
        if reading is not None:
            how = replace(reading, node="", index=0) if reading.steps else None
            return _SourceView(reading.tensor, reading.view, reading.perm, how)
        if node.op_type == "Identity" and node.output[0] in self._apart:
            return _SourceView("")  # what its own readers have not learned stays as it is stored
        return _SourceView(node.input[place] if place < len(node.input) else "")

    def _array(self, name: str) -> Array:
        if name in self._outside:
            return self._outside[name]
        if name in self._tensors:
            return np.asarray(numpy_helper.to_array(self._tensors[name]))
        for node in self._proto.graph.node:
            if name in node.output and node.op_type == "Identity":
                return self._array(node.input[0])
        raise ModelError("the file does not hold it", where=f"tensor {name!r}")

    def with_tensors(
        self, changed: Mapping[str, Array], others: Mapping[str, Array] = MappingProxyType({})
    ) -> Rewritten:
        """The file with other elements of the author's tensors.

        `others` are the tensors that did not change: what is stored may be made of several.
        """
        proto = onnx.ModelProto()
        proto.CopyFrom(self._proto)
        places = stored_tensors(proto)
        protos = {stored.name: stored.tensor for stored in places.values()}
        files = {location: DataFile(memoryview(data).cast("B")) for location, data in self._external.items()}
        uses: dict[str, list[_Use]] = {}
        for stored, use in self._uses(proto, places):
            uses.setdefault(stored, []).append(use)
        used_names = {*self._tensors, *(name for node in proto.graph.node for name in node.output)}
        tensors = {**others, **changed}
        added: list[str] = []
        sums: dict[str, str] = {}
        for stored, readers in uses.items():
            kinds = list(dict.fromkeys(use.source if use.source.is_of(changed) else None for use in readers))
            retained = self._retained_source(stored, kinds)
            for kind in kinds:
                if kind is None:
                    continue
                array = self._stored_form(tensors, kind, stored)
                if kind == retained:
                    _replace(protos[stored], array, files)
                    continue
                name = free_name(kind.tensor, used_names)
                _add(proto.graph.initializer.add(), name, array, files)
                added.append(name)
                for use in readers:
                    if use.source == kind and _is_sum(use):
                        sums[use.node.output[0]] = name
                    elif use.source == kind:
                        _rewire(use, name)
        _add_sums(proto.graph, sums, used_names)
        return Rewritten(Files(proto.SerializeToString(), files), tuple(added))

    def _uses(self, proto: Any, places: Mapping[Path, StoredTensor]) -> Iterator[tuple[str, _Use]]:
        """(what the file names there, use) of every input that reads a stored tensor or a tensor of the author's."""
        for node in proto.graph.node:
            dropped = range(len(node.input), len(node.input) + 3)
            for index in [*range(len(node.input)), *dropped]:
                name = node.input[index] if index < len(node.input) else ""
                if name in self._tensors or (node.output[0], index) in self._readings:
                    yield name, _Use(node, index, self._source_of(node, index))
        for name in read_inside(proto, places):
            if name in self._tensors:
                yield name, _Use(None, 0, _SourceView(name))

    def _retained_source(self, stored: str, kinds: list[_SourceView | None]) -> _SourceView | None:
        """Whose elements the file's own initializer holds from now on."""
        if stored not in self._tensors or None in kinds:
            return None
        original = _SourceView(stored)
        return original if original in kinds else kinds[0]

    def _stored_form(self, tensors: Mapping[str, Array], source: _SourceView, stored: str) -> Array:
        if source.reading is not None:
            return tensor_from_steps(source.reading, tensors)
        array = tensors[source.tensor]
        if stored not in self._tensors and not source.view:
            return array
        old = self._array(stored)
        if source.view == "Transpose":
            array = array.transpose(source.perm)
        elif source.view:
            array = array.reshape(old.shape) if source.view == "Reshape" else np.broadcast_to(array, old.shape)
        return array.astype(old.dtype, copy=False)


def _replace(tensor: Any, array: Array, files: Mapping[str, DataFile]) -> None:
    """Other elements for an initializer, where its own lie."""
    if tensor.data_location == tensor.EXTERNAL:
        location, begin = location_of(tensor)
        files[location].places[begin] = array
    else:
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def _add(tensor: Any, name: str, array: Array, files: Mapping[str, DataFile]) -> None:
    """A new initializer, in the first data file if there is one."""
    if not files:
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return
    location, file = next(iter(files.items()))
    tensor.CopyFrom(onnx.TensorProto(name=name, dims=array.shape, data_type=_onnx_type(array)))
    refer(tensor, location, file.append(array))


def _onnx_type(array: Array) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))


def _is_sum(use: _Use) -> bool:
    """Whether a tensor is a bias that a plan gave to a product: ONNX's MatMul has no place for it."""
    return use.node is not None and use.node.op_type == "MatMul" and use.place == 2


def _add_sums(graph: Any, sums: Mapping[str, str], used_names: set[str]) -> None:
    """An Add behind each product that has a bias now; what reads the product reads the sum."""
    if not sums:
        return
    nodes = []
    for node in graph.node:
        nodes.append(node)
        name = node.output[0] if node.output else ""
        if name in sums:
            node.output[0] = free_name(f"{name}_without_bias", used_names)
            label = f"{node.name}_bias" if node.name else ""
            nodes.append(onnx.helper.make_node("Add", [node.output[0], sums[name]], [name], name=label))
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _rewire(use: _Use, name: str) -> None:
    if use.node is None:
        raise ModelError("is read inside a branch or loop, where it cannot be told apart", where=f"tensor {name!r}")
    while len(use.node.input) <= use.place:
        use.node.input.append("")
    use.node.input[use.place] = name
