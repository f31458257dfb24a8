"""The standard's cases as models of ours: what exporters hold as constants is bound, and the rest is a batch of one."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, version_converter
from onnx.backend.test.case.test_case import TestCase as BackendCase

from compiler.graph import Array
from tests.onnx_standard.groups import RANDOM, outside, shape_inputs

OLDEST = 13
FLOAT_TYPES = frozenset((TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL))
KINDS = ("simple", "pytorch-operator", "pytorch-converted")


@dataclass(frozen=True)
class Standard:
    """One data set of a case. `feeds` and `wanted` are by name; inputs have a unit axis in front, if `is_wrapped`."""

    name: str
    op_type: str
    """The operator under test; for a model, its kind."""
    op_types: frozenset[str]
    model: bytes
    feeds: Mapping[str, Array]
    wanted: Mapping[str, Any]
    element_types: frozenset[int]
    rtol: float
    atol: float
    feature: str = ""
    batch: int = 1
    is_random: bool = False
    opset: int = field(default=0)

    @property
    def group(self) -> str:
        """Why it is outside of the quota, or an empty text."""
        if self.is_float:
            return outside(self.op_types)
        return outside(self.op_types) or "other element types"

    @property
    def is_float(self) -> bool:
        """True if its ends are float32 and what goes with it: int64, int32, bool."""
        return TensorProto.FLOAT in self.element_types and self.element_types <= FLOAT_TYPES

    @property
    def is_expanded(self) -> bool:
        """True for the function body of an operator in place of the operator."""
        return "_expanded" in self.name


@cache
def standard_cases() -> tuple[Standard, ...]:
    """All node cases and all models that come with the package, in its order."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return (*_node_cases(), *_model_cases(), *_light_models())


def _node_cases() -> Iterator[Standard]:
    found = _collected()
    operators = {case.name: case.model.graph.node[0].op_type for case in found if "_expanded" not in case.name}
    for case in found:
        op_type = operators.get(case.name.split("_expanded")[0]) or case.model.graph.node[0].op_type
        yield from _of_case(case, op_type, case.model, case.data_sets)


def _collected() -> list[BackendCase]:
    """Cases come to be when their modules are imported: those that others imported, for one operator, are forgotten."""
    from onnx.backend.test.case import node

    for name in [name for name in sys.modules if name.startswith(f"{node.__name__}.")]:
        del sys.modules[name]
    node._NodeTestCases.clear()
    node._existing_names.clear()
    return list(node.collect_testcases(None))


def _model_cases() -> Iterator[Standard]:
    from onnx.backend.test.loader import load_model_tests

    for kind in KINDS:
        for case in load_model_tests(kind=kind):
            folder = Path(case.model_dir)
            model = onnx.load(folder / "model.onnx")
            names = [value.name for value in _fed(model.graph)]
            sets = [_stored_set(path, model) for path in sorted(folder.glob("test_data_set_*"))]
            if names and sets:
                yield from _of_case(case, kind, model, sets)


def _stored_set(folder: Path, model: Any) -> tuple[list[Any], list[Any]]:
    def read(stem: str, values: Sequence[Any]) -> list[Any]:
        return [_stored(folder / f"{stem}_{number}.pb", value) for number, value in enumerate(values)]

    return read("input", _fed(model.graph)), read("output", model.graph.output)


def _stored(path: Path, value: Any) -> Any:
    data = path.read_bytes()
    if value.type.WhichOneof("value") == "sequence_type":
        sequence = onnx.SequenceProto.FromString(data)
        return numpy_helper.to_list(sequence)
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def _light_models() -> Iterator[Standard]:
    """Whole networks whose weights are made by the graph, and whose input is a ramp."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    for path in sorted(folder.glob("*.onnx")):
        model = version_converter.convert_version(onnx.load(path), OLDEST)
        wanted = onnx.load_tensor(path.with_name(f"{path.stem}_output_0.pb"))
        feeds = {}
        for value in _fed(model.graph):
            shape = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
            size = int(np.prod(shape))
            feeds[value.name] = (np.arange(size).reshape(shape) / size).astype(np.float32)
        yield Standard(
            path.stem,
            "light",
            _op_types(model),
            model.SerializeToString(),
            feeds,
            {model.graph.output[0].name: numpy_helper.to_array(wanted)},
            frozenset((TensorProto.FLOAT,)),
            1e-3,
            1e-7,
            opset=OLDEST,
        )


def _op_types(model: Any) -> frozenset[str]:
    """Of sub-graphs too."""
    return frozenset(_inside(model.graph))


def _inside(graph: Any) -> Iterator[str]:
    for node in graph.node:
        yield node.op_type
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _inside(body)


def _fed(graph: Any) -> list[Any]:
    stored = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in stored]


def _of_case(case: BackendCase, op_type: str, model: Any, sets: Sequence[tuple[Any, Any]]) -> Iterator[Standard]:
    for number, (inputs, outputs) in enumerate(sets):
        made = onnx.ModelProto()
        made.CopyFrom(model)
        _raise_opset(made, op_type)
        fed = dict(zip([value.name for value in _fed(made.graph)], map(_plain, inputs), strict=False))
        _bind(made, fed, op_type)
        wanted = dict(zip([value.name for value in made.graph.output], map(_plain, outputs), strict=True))
        types = _element_types(model)
        if all(isinstance(array, np.ndarray | np.generic) for array in fed.values()):
            fed = _wrap(made, fed)
        yield Standard(
            f"{case.name}{f'-{number}' if number else ''}",
            op_type,
            _op_types(made) | {op_type},
            made.SerializeToString(),
            fed,
            wanted,
            types,
            case.rtol,
            case.atol,
            is_random=bool(_op_types(made) & RANDOM) or "dropout" in case.name,
            opset=_opset(made),
        )


def _plain(item: Any) -> Any:
    """An array; some cases give it as it is stored."""
    return numpy_helper.to_array(item) if isinstance(item, TensorProto) else item


def _opset(model: Any) -> int:
    return next((int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def _raise_opset(model: Any, kind: str) -> None:
    """A case from before our oldest opset is a case of that one if no operator's definition has changed since.

    Models go through ONNX's own converter, as the refusal of an old opset says.
    """
    if kind in KINDS and 0 < _opset(model) < OLDEST:
        with contextlib.suppress(RuntimeError):  # the converter does not know every step
            model.CopyFrom(version_converter.convert_version(model, OLDEST))
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and entry.version < OLDEST:
            before, after = ({n: _since(n, v) for n in _op_types(model)} for v in (entry.version, OLDEST))
            if before == after:
                entry.version = OLDEST


def _since(op_type: str, opset: int) -> int:
    try:
        return int(onnx.defs.get_schema(op_type, opset, "").since_version)
    except onnx.defs.SchemaError:
        return 0


def _element_types(model: Any) -> frozenset[int]:
    """Element types at the ends; -1 for what is no tensor."""
    return frozenset(
        int(value.type.tensor_type.elem_type) if value.type.WhichOneof("value") == "tensor_type" else -1
        for value in (*_fed(model.graph), *model.graph.output)
    )


def _bind(model: Any, fed: dict[str, Any], op_type: str) -> None:
    """Inputs that say shapes and axes, to the operator under test or to a node of its body, become initializers."""
    names = {value.name: number for number, value in enumerate(model.graph.input)}
    bound = {name for name, number in names.items() if number in shape_inputs(op_type)}
    for node in model.graph.node:
        places = shape_inputs(node.op_type)
        bound |= {name for place, name in enumerate(node.input) if place in places and name in names}
    for name in bound & fed.keys():
        array = fed[name]
        if isinstance(array, np.ndarray | np.generic):
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
            del fed[name]
    kept = [value for value in model.graph.input if value.name not in bound]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def _wrap(model: Any, fed: Mapping[str, Array]) -> dict[str, Array]:
    """Every input gets a unit axis in front, which the graph drops first: a batch of one sample.

    What no run-time input reaches is computed at compile time; an output is then chosen by a run-time switch.
    """
    graph, prologue, feeds = model.graph, [], {}
    graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.int64), "batch_axis"))
    for value in _fed(graph):
        array = np.asarray(fed[value.name])
        outer = f"{value.name}_batch"
        prologue.append(helper.make_node("Squeeze", [outer, "batch_axis"], [value.name], name=f"unbatch_{value.name}"))
        feeds[outer] = array[None]
        value.CopyFrom(helper.make_tensor_value_info(outer, value.type.tensor_type.elem_type, (1, *array.shape)))
    nodes = [*prologue, *graph.node]
    if not feeds or _op_types(model) <= {"Shape", "Size", "Squeeze"}:
        nodes = [*nodes, *_switched(graph, feeds)]
    del graph.node[:]
    graph.node.extend(nodes)
    return feeds


def _switched(graph: Any, feeds: dict[str, Array]) -> Iterator[Any]:
    graph.input.append(helper.make_tensor_value_info("switch_batch", TensorProto.BOOL, (1, 1)))
    feeds["switch_batch"] = np.ones((1, 1), np.bool_)
    yield helper.make_node("Squeeze", ["switch_batch"], ["switch"], name="unbatch_switch")
    for node in graph.node:
        for index, name in enumerate(node.output):
            node.output[index] = f"{name}_known" if name else ""
    for value in graph.output:
        known = f"{value.name}_known"
        yield helper.make_node("Where", ["switch", known, known], [value.name], name=f"switch_{value.name}")
