"""The wire-level scan refuses what is absurd, by name and figure, before any library parses it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.errors import CompileError, LimitExceeded, ModelError, ModelShapeError, UnsupportedOperator
from compiler.frontend.file.prescan import ModelLimits, prescan
from tests.compiler.frontend.onnx_graphs import model_of, node


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _model(graph: bytes) -> bytes:
    return _number(1, 10) + _field(8, _number(2, 18)) + _field(7, graph)


def _tensor(dims: list[int], data_type: int = 1, *, raw: bytes | None = None, rest: bytes = b"") -> bytes:
    """A TensorProto as an attacker would write it, wrapped in a model as an initializer called `w`."""
    body = b"".join(_number(1, dim) for dim in dims) + _number(2, data_type) + _field(8, b"w") + rest
    return _model(_field(5, body + (b"" if raw is None else _field(9, raw))))


def _relu(name: str = "x", **kwargs: object) -> bytes:
    return model_of([node("Relu", ["x"], ["y"])], {"x": ("f32", ("batch", 3))}, **kwargs)  # type: ignore[arg-type]


def test_ordinary_models_pass() -> None:
    prescan(_relu())
    weight = np.zeros((3, 5), np.float32)
    prescan(model_of([node("MatMul", ["x", "w"], ["y"])], {"x": ("f32", ("batch", 3))}, initializers={"w": weight}))


@pytest.mark.parametrize("data_type", ["FLOAT", "DOUBLE", "INT64", "INT32", "INT8", "BOOL", "FLOAT16", "UINT64"])
def test_typed_data_fields_pass_when_complete(data_type: str) -> None:
    """Values in float_data, int32_data, int64_data ... instead of raw_data."""
    tensor = helper.make_tensor("w", getattr(TensorProto, data_type), [2, 3], [1, 0, 1, 1, 0, 1])
    graph = helper.make_graph([], "g", [], [], [tensor])
    prescan(helper.make_model(graph).SerializeToString())
    del tensor.dims[:]
    tensor.dims.extend([2, 4])
    with pytest.raises(ModelError, match=r"^tensor 'w': .* 8 numbers, 6 "):
        prescan(helper.make_model(helper.make_graph([], "g", [], [], [tensor])).SerializeToString())


@pytest.mark.parametrize("data_type", [TensorProto.INT4, TensorProto.UINT4])
def test_packed_four_bit_tensors_are_counted_by_half_bytes(data_type: int) -> None:
    prescan(_tensor([3], data_type, raw=b"ab"))
    with pytest.raises(ModelError, match="declares 2 bytes, 1 are present"):
        prescan(_tensor([3], data_type, raw=b"a"))


ABSURD = {
    "overflowing dims": (
        _tensor([1 << 33, 1 << 33]),
        LimitExceeded,
        r"tensor 'w': 73,786,976,294,838,206,464 elements",
    ),
    "negative dim": (_tensor([-1, 4], raw=b""), ModelShapeError, r"tensor 'w'.*negative"),
    "huge dim without data": (_tensor([1 << 30]), ModelError, r"declares 1,073,741,824 numbers, 0 are present"),
    "raw data too short": (_tensor([2, 2], raw=bytes(12)), ModelError, r"declares 16 bytes, 12 are present"),
    "raw data too long": (_tensor([2, 2], raw=bytes(20)), ModelError, r"declares 16 bytes, 20 are present"),
    "data twice": (_tensor([1], raw=bytes(4), rest=_field(4, bytes(4))), ModelError, r"more than once"),
    "rank": (_tensor([1] * 100, raw=bytes(4)), LimitExceeded, r"dimensions, the limit is 8"),
    "unknown type": (_tensor([1], 99, raw=bytes(4)), UnsupportedOperator, r"element type 99"),
    "external data": (_tensor([1], rest=_number(14, 1)), ModelError, r"tensor 'w'.*no location"),
    "external path": (
        _tensor([1], rest=_number(14, 1) + _field(13, _field(1, b"location") + _field(2, b"../../etc/passwd"))),
        ModelError,
        r"tensor 'w'.*location '../../etc/passwd' is not a plain path",
    ),
    "half external": (
        _tensor([1], rest=_field(13, _field(1, b"location") + _field(2, b"w.bin"))),
        ModelError,
        r"tensor 'w'.*names external data and does not use it",
    ),
    "name not text": (_model(_field(1, _field(3, b"\xff\xfe"))), ModelError, r"not UTF-8"),
    "long name": (_model(_field(1, _field(3, b"n" * 5000))), LimitExceeded, r"5,000 bytes, the limit is 1,024"),
    "no graph": (_number(1, 10), ModelError, r"0 graphs"),
    "two graphs": (_model(b"") + _field(7, b""), ModelError, r"2 graphs"),
    "training section": (_model(b"") + _field(20, b""), UnsupportedOperator, r"training_info"),
    "sparse initializer": (_model(_field(15, b"")), UnsupportedOperator, r"sparse"),
    "empty": (b"", ModelError, r"0 bytes"),
    "not protobuf": (b"\x00" * 64, ModelError, r"not a protobuf message"),
    "text": (b"<html><body>404 Not Found</body></html>", ModelError, r"protobuf|declares|graphs"),
    "group wire type": (_varint(7 << 3 | 3), ModelError, r"wire type 3"),
    "field past the end": (
        _varint(7 << 3 | 2) + _varint(1 << 40) + b"x",
        ModelError,
        r"declares 1,099,511,627,776 bytes",
    ),
    "endless varint": (b"\x08" + b"\xff" * 64, ModelError, r"does not end"),
    "sparse attribute": (
        _model(_field(1, _field(4, b"Constant") + _field(5, _field(22, b"")))),
        UnsupportedOperator,
        r"sparse",
    ),
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_files_are_refused(name: str) -> None:
    model, error, message = ABSURD[name]
    with pytest.raises(error, match=message) as caught:
        prescan(model)
    assert caught.value.where
    assert caught.value.cause in ("model", "limits")


def _nested(depth: int) -> bytes:
    """Graphs in attributes of nodes of graphs ..."""
    graph = b""
    for _ in range(depth):
        graph = _field(1, _field(4, b"If") + _field(5, _field(6, graph)))
    return _model(graph)


def test_depth_is_bounded() -> None:
    prescan(_nested(5))
    with pytest.raises(LimitExceeded, match="nested messages, the limit is 64"):
        prescan(_nested(200))
    typed = b""
    for _ in range(100):
        typed = _field(4, _field(1, typed))
    with pytest.raises(LimitExceeded, match="nested messages"):
        prescan(_model(_field(11, _field(1, b"x") + _field(2, typed))))


def test_counts_are_bounded_and_named() -> None:
    limits = ModelLimits(nodes=3, initializers=2, graph_ends=2, node_ends=4)
    nodes = b"".join(_field(1, _field(4, b"Relu")) for _ in range(4))
    with pytest.raises(LimitExceeded, match="4 nodes, the limit is 3"):
        prescan(_model(nodes), limits)
    stored = b"".join(_field(5, _number(1, 0) + _number(2, 1)) for _ in range(3))
    with pytest.raises(LimitExceeded, match="3 initializers, the limit is 2"):
        prescan(_model(stored), limits)
    ends = b"".join(_field(12, _field(1, b"y%d" % i)) for i in range(3))
    with pytest.raises(LimitExceeded, match="3 graph inputs and outputs, the limit is 2"):
        prescan(_model(ends), limits)
    wide = _field(1, _field(4, b"Sum") + b"".join(_field(1, b"x") for _ in range(5)))
    with pytest.raises(LimitExceeded, match=r"^node 0 \(Sum\): 5 .* 4$"):
        prescan(_model(wide), limits)
    with pytest.raises(LimitExceeded, match="protobuf fields"):
        prescan(_relu(), ModelLimits(wire_fields=10))
    with pytest.raises(LimitExceeded, match="bytes, the limit is 20"):
        prescan(_relu(), ModelLimits(model_bytes=20))


def _function(name: str, calls: list[str]) -> bytes:
    body = b"".join(_field(7, _field(4, call.encode()) + _field(7, b"local")) for call in calls)
    return _field(25, _field(1, name.encode()) + _field(10, b"local") + body)


def _calling(name: str, *functions: bytes) -> bytes:
    return _model(_field(1, _field(4, name.encode()) + _field(7, b"local"))) + b"".join(functions)


def test_functions_may_not_recurse_or_explode() -> None:
    prescan(_calling("f", _function("f", ["g"]), _function("g", [])))
    with pytest.raises(ModelError, match="calls itself"):
        prescan(_calling("f", _function("f", ["g"]), _function("g", ["f"])))
    laughs = [_function(f"f{i}", [f"f{i + 1}"] * 10) for i in range(20)]
    with pytest.raises(LimitExceeded, match="nodes with functions expanded"):
        prescan(_calling("f0", *laughs, _function("f20", ["f21"]), _function("f21", [])), ModelLimits(nodes=1000))
    with pytest.raises(ModelError, match="defined twice"):
        prescan(_calling("f", _function("f", []), _function("f", [])))


def test_a_chain_of_functions_is_bounded() -> None:
    chain = [_function(f"f{i}", [f"f{i + 1}"]) for i in range(100)]
    with pytest.raises(LimitExceeded, match="deeper than 32"):
        prescan(_calling("f0", *chain, _function("f100", [])))


def test_every_cut_of_a_model_is_a_typed_error() -> None:
    weight = numpy_helper.from_array(np.ones((3, 5), np.float32), "w")
    graph = helper.make_graph(
        [node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, ["batch", 3])],
        [helper.make_tensor_value_info("y", 1, ["batch", 5])],
        [weight],
    )
    model = helper.make_model(graph).SerializeToString()
    refused = 0
    for size in range(len(model)):
        try:
            prescan(model[:size])
        except CompileError:
            refused += 1
    # A cut between two top-level fields is still a valid message, so a few short ones may pass or lack the graph.
    assert refused > len(model) - 10


def test_it_accepts_exactly_what_onnx_wrote() -> None:
    """All tensor types of ONNX that NumPy knows, as raw data."""
    for dtype in (np.float32, np.float64, np.int8, np.uint16, np.int64, np.bool_, np.complex64):
        tensor = numpy_helper.from_array(np.ones((2, 3), dtype), "w")
        prescan(helper.make_model(helper.make_graph([], "g", [], [], [tensor])).SerializeToString())
    strings = numpy_helper.from_array(np.asarray(["a", "bc"], object), "s")
    prescan(helper.make_model(helper.make_graph([], "g", [], [], [strings])).SerializeToString())
    assert onnx.__version__
