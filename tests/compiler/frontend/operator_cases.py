"""One or more small models per import row, each with a run-time input, compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from compiler.graph import Array
from tests.compiler.frontend.onnx_graphs import Shape, model_of, node

F, N, B = "f32", "i64", "bool"


@dataclass(frozen=True)
class Case:
    """A single-node model: operator, run-time inputs (type, shape), known inputs, attributes."""

    op_type: str
    inputs: tuple[tuple[str, Shape] | Array | None, ...]
    attributes: Mapping[str, object] = field(default_factory=dict)
    outputs: int = 1
    opset: int = 18
    label: str = ""
    positive: bool = False
    integers: int = 3

    @property
    def name(self) -> str:
        """The test's id."""
        return f"{self.op_type}{'-' if self.label else ''}{self.label}"

    def model(self) -> bytes:
        """The model's bytes; inputs are x0, x1 ..., outputs y0, y1 ..."""
        run_time, known, names = {}, {}, []
        for i, operand in enumerate(self.inputs):
            names.append("" if operand is None else f"x{i}")
            if isinstance(operand, np.ndarray):
                known[f"x{i}"] = operand
            elif operand is not None:
                run_time[f"x{i}"] = operand
        outputs = [f"y{i}" for i in range(self.outputs)]
        made = node(self.op_type, names, outputs, **self.attributes)
        return model_of([made], run_time, outputs, known, opset=self.opset)


def _floats(*shape: int, seed: int = 7) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _ints(*values: int) -> Array:
    return np.asarray(values, np.int64)


def _scalar(value: float) -> Array:
    return np.asarray(value, np.float32)


X: tuple[str, Shape] = (F, (2, 3, 4))
ROW: tuple[str, Shape] = (F, (2, 1, 4))
IMAGE: tuple[str, Shape] = (F, (2, 4, 7, 6))


def _elementwise() -> Iterator[Case]:
    for op in ("Abs", "Neg", "Exp", "Tanh", "Sigmoid", "Erf", "Relu", "Floor", "Ceil", "Sign", "Sin", "Cos", "IsNaN"):
        yield Case(op, (X,))
    for op in ("Log", "Sqrt", "Reciprocal"):
        yield Case(op, (X,), positive=True)
    for op in ("Add", "Sub", "Mul", "Div", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"):
        yield Case(op, (X, ROW))
    yield Case("Add", ((N, (2, 3)), (N, (2, 1))), label="int64")
    yield Case("Equal", ((N, (2, 3)), (N, (2, 1))))
    yield Case("Equal", ((B, (2, 3)), (B, (2, 3))), label="bool")
    for op in ("And", "Or", "Xor"):
        yield Case(op, ((B, (2, 3)), (B, (2, 1))))
    yield Case("Not", ((B, (2, 3)),))
    for op in ("Max", "Min", "Sum", "Mean"):
        yield Case(op, (X, ROW, _floats(4)))
    yield Case("Where", ((B, (2, 3, 1)), X, ROW))
    yield Case("Where", ((B, (2, 3)), (N, (2, 3)), _ints(4)), label="int64")
    yield Case("Identity", (X,))
    yield Case("Dropout", (X, _scalar(0.5), np.asarray(False)))
    for code, kind in ((1, N), (7, F), (6, F), (9, F), (1, B)):
        yield Case("Cast", ((kind, (2, 3)),), {"to": code}, label=f"{kind}-to-{code}")
    yield Case("CastLike", ((N, (2, 3)), (F, (2, 1))))
    for power in (1.0, 2.0, 3.0, 4.0, 0.5, -0.5, -1.0, 1.5):
        yield Case("Pow", (X, _scalar(power)), label=str(power), positive=True)
    yield Case("Pow", (X, ROW), label="run-time", positive=True)
    yield Case("Clip", (X, _scalar(-0.5), _scalar(0.5)))
    yield Case("Clip", (X, None, _scalar(0.5)), label="high")
    yield Case("Clip", (X, _scalar(0.0), None), label="relu")
    yield Case("Clip", (X, _scalar(0.0), _scalar(3.4028235e38)), label="no-bound")
    yield Case("Clip", (X,), label="none")


def _activations() -> Iterator[Case]:
    for op in ("HardSigmoid", "HardSwish", "LeakyRelu", "Elu", "Celu", "Selu", "Softplus", "Mish", "Softsign"):
        yield Case(op, (X,))
    yield Case("ThresholdedRelu", (X,), {"alpha": 0.3})
    yield Case("HardSigmoid", (X,), {"alpha": 0.3, "beta": 0.4}, label="attributes")
    yield Case("Celu", (X,), {"alpha": 0.7}, label="alpha")
    yield Case("PRelu", (X, _floats(4)))
    yield Case("Gelu", (X,), opset=20)
    yield Case("Gelu", (X,), {"approximate": "tanh"}, opset=20, label="tanh")


def _movement() -> Iterator[Case]:
    yield Case("Reshape", (X, _ints(0, -1)), label="zero-and-minus-one")
    yield Case("Reshape", (X, _ints(4, 6)))
    yield Case("Squeeze", ((F, (2, 1, 4, 1)), _ints(1, -1)))
    yield Case("Squeeze", ((F, (2, 1, 4, 1)),), label="all")
    yield Case("Unsqueeze", (X, _ints(0, -1)))
    yield Case("Flatten", (X,), {"axis": 2})
    yield Case("Flatten", (X,), {"axis": -1}, label="negative")
    yield Case("Flatten", (X,), {"axis": 0}, label="zero")
    yield Case("Transpose", (X,), {"perm": [2, 0, 1]})
    yield Case("Transpose", (X,), label="reverse")
    yield Case("Expand", ((F, (2, 1, 4)), _ints(5, 1, 3, 1)))
    yield Case("Tile", (X, _ints(2, 1, 3)))
    yield Case("Slice", (X, _ints(1, 0), _ints(3, 99), _ints(1, 2)))
    yield Case("Slice", (X, _ints(-3), _ints(-1), _ints(2)), label="negative-bounds")
    yield Case("Slice", (X, _ints(0), _ints(9), _ints(2), _ints(2)), label="step-2")
    yield Case("Slice", (X, _ints(-1), _ints(-99), _ints(2), _ints(-1)), label="reverse")
    yield Case("Split", ((F, (2, 6)), _ints(1, 2, 3)), {"axis": 1}, outputs=3)
    yield Case("Split", ((F, (2, 7)),), {"axis": 1, "num_outputs": 3}, outputs=3, label="uneven")
    yield Case("Split", ((F, (2, 6)),), {"axis": -1}, outputs=2, opset=13, label="opset-13")
    yield Case("Concat", (X, (F, (2, 2, 4)), _floats(2, 1, 4)), {"axis": -2})
    yield Case("Pad", (X, _ints(0, 1, 2, 0, 0, 1), _scalar(0.5)))
    yield Case("Pad", (X, _ints(0, -1, 2, 0, 0, -1)), label="negative")
    yield Case("Pad", (X, _ints(1, 2), None, _ints(-1)), label="axes")
    yield Case("Gather", (X, _ints(2, 0, -1)), {"axis": 1})
    yield Case("Gather", (X, np.asarray(-1)), {"axis": 2}, label="scalar")
    yield Case("Gather", (_floats(3, 4), (N, (2, 5))), label="embedding")
    yield Case("GatherElements", (X, np.asarray([[[1, -1, 0, 1]], [[0, 2, 2, 1]]])), {"axis": 1})
    yield Case("GatherElements", ((F, (2, 3)), (N, (2, 5))), {"axis": 1}, label="run-time")
    yield Case("GatherND", (X, np.asarray([[1, 2], [0, -1]])))
    yield Case("GatherND", ((F, (3, 4, 5)), (N, (3, 7, 2))), label="run-time")
    yield Case("Trilu", ((F, (2, 4, 4)),), {"upper": 0})
    yield Case("Trilu", ((F, (2, 4, 4)), np.asarray(1)), label="upper")
    for mode in ("DCR", "CRD"):
        yield Case("DepthToSpace", ((F, (2, 8, 3, 2)),), {"blocksize": 2, "mode": mode}, label=mode)
    yield Case("SpaceToDepth", ((F, (2, 3, 4, 6)),), {"blocksize": 2})


def _reductions() -> Iterator[Case]:
    for op in ("Max", "Min", "Mean", "L1", "L2", "SumSquare", "LogSumExp"):
        yield Case(f"Reduce{op}", (X, _ints(1)))
        yield Case(f"Reduce{op}", (X,), {"axes": [0, -1], "keepdims": 0}, opset=13, label="opset-13")
    yield Case("ReduceSum", (X, _ints(0, 2)), {"keepdims": 0})
    yield Case("ReduceSum", (X,), label="all")
    yield Case("ReduceSum", (X, _ints()), {"noop_with_empty_axes": 1}, label="none")
    yield Case("GlobalAveragePool", (IMAGE,))
    yield Case("GlobalMaxPool", (IMAGE,))


def _contractions() -> Iterator[Case]:
    bias = _floats(5)
    yield Case("Conv", (IMAGE, _floats(5, 4, 3, 3), bias), {"pads": [1, 0, 2, 1], "strides": [2, 1]})
    yield Case("Conv", (IMAGE, _floats(5, 4, 3, 3)), {"dilations": [2, 1]}, label="dilated-no-bias")
    yield Case("Conv", (IMAGE, _floats(5, 4, 1, 1), bias), label="1x1")
    yield Case("Conv", (IMAGE, _floats(4, 1, 3, 5), _floats(4)), {"group": 4, "pads": [1, 2, 1, 2]}, label="depthwise")
    for mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        made = {"auto_pad": mode, "strides": [2, 2]}
        yield Case("Conv", (IMAGE, _floats(5, 4, 3, 4), bias), made, label=mode)
    yield Case("Conv", (IMAGE, (F, (2, 4, 3, 3))), label="run-time-weight")
    yield Case("Gemm", ((F, (2, 3)), _floats(5, 3), bias), {"transB": 1})
    yield Case("Gemm", ((F, (3, 3)), _floats(3, 5), bias), {"alpha": 0.5, "beta": 2.0, "transA": 1}, label="scaled")
    yield Case("Gemm", ((F, (2, 3)), _floats(3, 5)), label="no-bias")
    yield Case("Gemm", ((F, (2, 3)), (F, (2, 3))), {"transB": 1}, label="run-time")
    yield Case("MatMul", (X, _floats(4, 5)))
    yield Case("MatMul", (X, (F, (2, 4, 5))), label="batched")
    yield Case("MatMul", (X, _floats(4)), label="vector-right")
    yield Case("MatMul", (_floats(3), X), label="vector-left")
    yield Case("MatMul", (_floats(5, 3), X), label="matrix-left")
    yield Case("MatMul", ((F, (2, 1, 3, 4)), (F, (2, 5, 4, 3))), label="broadcast")
    norm = (_floats(4), _floats(4, seed=1), _floats(4, seed=2), np.abs(_floats(4, seed=3)) + 0.5)
    yield Case("BatchNormalization", (IMAGE, *norm), {"epsilon": 1e-3})
    yield Case("BatchNormalization", ((F, (2, 4)), *norm), label="rank-2")


def _pooling() -> Iterator[Case]:
    window = {"kernel_shape": [3, 3], "strides": [2, 2]}
    for op in ("MaxPool", "AveragePool"):
        yield Case(op, (IMAGE,), {**window, "pads": [1, 0, 1, 1]})
        yield Case(op, (IMAGE,), {**window, "ceil_mode": 1}, label="ceil")
        yield Case(op, (IMAGE,), {"kernel_shape": [2, 2], "strides": [3, 3], "ceil_mode": 1}, label="ceil-drop")
        yield Case(op, (IMAGE,), {**window, "auto_pad": "SAME_UPPER"}, label="same")
    yield Case("AveragePool", (IMAGE,), {**window, "pads": [1, 1, 1, 1], "count_include_pad": 1}, label="counted")


def _normalization() -> Iterator[Case]:
    for op in ("Softmax", "LogSoftmax"):
        yield Case(op, (X,))
        yield Case(op, (X,), {"axis": 1}, label="axis-1")
    yield Case("LayerNormalization", (X, _floats(4), _floats(4, seed=1)), {"epsilon": 1e-3})
    yield Case("LayerNormalization", (X, _floats(3, 4)), {"axis": 1}, label="two-axes")
    yield Case("RMSNormalization", (X, _floats(4)), {"epsilon": 1e-3}, opset=23)
    yield Case("InstanceNormalization", (IMAGE, _floats(4), _floats(4, seed=1)))
    yield Case("GroupNormalization", (IMAGE, _floats(4), _floats(4, seed=1)), {"num_groups": 2}, opset=21)


def _attention() -> Iterator[Case]:
    q, kv = (F, (2, 4, 5, 6)), (F, (2, 2, 7, 6))
    yield Case("Attention", (q, (F, (2, 4, 7, 6)), (F, (2, 4, 7, 6))), opset=23)
    yield Case("Attention", (q, kv, kv), {"scale": 0.3, "softcap": 2.0}, opset=23, label="grouped-softcap")
    yield Case("Attention", (q, kv, kv, (F, (2, 1, 5, 7))), opset=23, label="grouped-mask")
    yield Case("Attention", (q, kv, kv, (F, (2, 4, 5, 7))), opset=23, label="mask-per-head")
    keep = np.tril(np.ones((5, 7), bool), 2)
    yield Case("Attention", (q, (F, (2, 4, 7, 6)), (F, (2, 4, 7, 6)), keep), opset=23, label="bool-mask")
    flat = (F, (2, 5, 12))
    heads = {"q_num_heads": 3, "kv_num_heads": 3}
    yield Case("Attention", (flat, flat, flat), {**heads, "is_causal": 1}, opset=23, label="flat-causal")
    tables = _floats(9, 4), _floats(9, 4, seed=3)
    where = np.asarray([[0, 3, 2, 5, 8], [1, 1, 4, 6, 7]])
    yield Case("RotaryEmbedding", ((F, (2, 3, 5, 8)), *tables, where), opset=23)
    yield Case(
        "RotaryEmbedding", ((F, (2, 3, 5, 8)), *tables, where), {"interleaved": 1}, opset=23, label="interleaved"
    )
    part = {"rotary_embedding_dim": 4, "num_heads": 3}
    halves = _floats(9, 2), _floats(9, 2, seed=3)
    yield Case("RotaryEmbedding", ((F, (2, 5, 24)), *halves, where), part, opset=23, label="part-flat")
    cached = _floats(2, 5, 4), _floats(2, 5, 4, seed=3)
    yield Case("RotaryEmbedding", ((F, (2, 3, 5, 8)), *cached), opset=23, label="per-position")


CASES: Sequence[Case] = (
    *_elementwise(),
    *_activations(),
    *_movement(),
    *_reductions(),
    *_contractions(),
    *_pooling(),
    *_normalization(),
    *_attention(),
)
