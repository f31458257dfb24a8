"""Random numbers as functions: of a seed, the step, the node that draws, and the place of the element in its tensor.

    random_key       64 bits for one node and one step: Philox of (step, `stream`), the node's number, under the seed
    random_uniform   n / 2^24, n: 24 bits of Philox of the element's place under the key; in [0, 1)
    random_normal    sqrt(-2 log u) cos(2 pi v), u = (n + 1) / 2^24, v = m / 2^24: two words of the same Philox
So a number that is drawn again (in the backward pass, in parts, on other threads, from a checkpoint on) is the same.
Source: Philox4x32-10 (`compiler.kernels.philox`); Box and Muller, "A note on the generation of random normal deviates"
(Annals of Mathematical Statistics 29, 1958).

Philox4x32-10 in standard ONNX operators on i64; see `compiler.kernels.philox` for its meaning and source.

Dropout as evaluation takes it: the values as they are; a training step drops some (`compiler.step.dropout`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import pi, prod

import numpy as np

from compiler.errors import InternalError
from compiler.graph import Array, Attrs, TensorType
from compiler.kernels import philox
from compiler.kernels.access import Access, identity
from compiler.kernels.affine import row_major
from compiler.kernels.expressions import Binary, Const, Expr, Index, Ref, Unary, add, mul
from compiler.kernels.philox import BITS, KEY_STEPS, MULTIPLIERS, ROUNDS
from compiler.kernels.spec import MapSpec
from compiler.ops.broadcasting import pointwise
from compiler.ops.record import (
    Example,
    NamedNode,
    NotDifferentiable,
    OnnxNode,
    OnnxWriter,
    Operator,
    Types,
    View,
    elementwise_cost,
    integer,
    ints,
)

DROPOUT = (
    Operator(
        name="dropout",
        attributes=("ratio", "stream", "seed"),
        infer=lambda inputs, attrs: (inputs[0],),
        evaluate=lambda inputs, attrs: (inputs[0].copy(),),
        grad=lambda b, node, d_output, wanted: (d_output,),
        cost=elementwise_cost(0),
        lower=lambda inputs, outputs, attrs: View(),
        to_onnx=lambda node, types: [OnnxNode("Identity", node.inputs, node.outputs)],
        examples=(Example((TensorType("f32", (2, 3, 5)),), {"ratio": 0.25, "stream": 1, "seed": -1}),),
    ),
)


_I64, _U64 = 7, 13


@dataclass(frozen=True, slots=True)
class Philox:
    """Writes the nodes of a draw."""

    out: OnnxWriter

    def bits(self, counter: str, key: str, output: str) -> None:
        """Adds nodes that make both words of a counter one number of 64 bits."""
        low, high = self._words(counter, key)
        shifted = self.out.add("Mul", high, self._number(1 << 32))
        self.out.add("BitwiseOr", shifted, low, output=output)

    def top_bits(self, places: Array, key: str) -> tuple[str, str]:
        """The upper 24 bits of both words, for every place."""
        low, high = self._words(self.out.add("Constant", value=places), key)
        divisor = self._number(1 << (32 - BITS))
        return self.out.add("Div", low, divisor), self.out.add("Div", high, divisor)

    def _words(self, counter: str, key: str) -> tuple[str, str]:
        c0, c1 = self._low(counter), self._high(counter)
        k0, k1 = self._low(key), self._high(key)
        zero = self._number(0)
        c2 = c3 = zero
        for turn in range(ROUNDS):
            if turn:
                k0, k1 = (
                    self._low(self.out.add("Add", k, self._number(step)))
                    for k, step in zip((k0, k1), KEY_STEPS, strict=True)
                )
            product, other = (
                self.out.add("Mul", c, self._number(by)) for c, by in zip((c0, c2), MULTIPLIERS, strict=True)
            )
            c0, c2 = (
                self.out.add("BitwiseXor", self.out.add("BitwiseXor", self._high(half), c), k)
                for half, c, k in ((other, c1, k0), (product, c3, k1))
            )
            c1, c3 = self._low(other), self._low(product)
        return c0, c1

    def _number(self, value: int) -> str:
        return self.out.add("Constant", value=np.asarray(value, np.int64))

    def _low(self, value: str) -> str:
        return self.out.add("BitwiseAnd", value, self._number(0xFFFFFFFF))

    def _high(self, value: str) -> str:
        bits = self.out.add("Cast", value, to=_U64)
        half = self.out.add("Constant", value=np.asarray(32, np.uint64))
        return self.out.add("Cast", self.out.add("BitShift", bits, half, direction="RIGHT"), to=_I64)


_KEY = TensorType("i64", ())
_DRAWN = NotDifferentiable("what is drawn does not depend on what is learned")
_STREAM = 1 << 32
"""The distance between the counters of two nodes; a node's go with the steps."""
_SHARE = 2.0**-philox.BITS
_FLOPS = 120

# --------------------------------------------------------------------------------------------------------------- keys


def _key_infer(inputs: Types, attrs: Attrs) -> Types:
    if inputs != (_KEY, _KEY):
        raise InternalError(f"a random key of {', '.join(map(str, inputs))}")
    return (_KEY,)


def _key_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    seed, step = inputs
    return (philox.bits_of(step + np.int64(integer(attrs, "stream") * _STREAM), seed),)


def _key_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    seed, step = node.inputs
    counter = out.add("Add", step, out.add("Constant", value=np.asarray(integer(node.attrs, "stream") * _STREAM)))
    Philox(out).bits(counter, seed, node.output)
    return out.nodes


# -------------------------------------------------------------------------------------------------------------- draws


def _infer(inputs: Types, attrs: Attrs) -> Types:
    if inputs != (_KEY,):
        raise InternalError(f"draws under the key {', '.join(map(str, inputs))}")
    return (TensorType("f32", ints(attrs, "shape")),)


def _places(shape: tuple[int, ...]) -> Array:
    return np.arange(prod(shape), dtype=np.int64).reshape(shape)


def _uniform_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    bits = philox.top_bits(_places(ints(attrs, "shape")), inputs[0], 0)
    return ((bits * np.float64(_SHARE)).astype(np.float32),)


def _normal_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    places = _places(ints(attrs, "shape"))
    n, m = (philox.top_bits(places, inputs[0], word) for word in (0, 1))
    length = np.sqrt(-2 * np.log((n + 1) * np.float64(_SHARE)))
    return ((length * np.cos(2 * pi * _SHARE * m)).astype(np.float32),)


def _place(shape: tuple[int, ...]) -> Expr:
    """The element's place in its tensor, counted in row-major order."""
    total: Expr = Const(0)
    for axis, stride in enumerate(row_major(shape)):
        if shape[axis] > 1:
            term: Expr = Index(axis) if stride == 1 else mul(Index(axis), Const(stride))
            total = term if total == Const(0) else add(total, term)
    return total


def _word(shape: tuple[int, ...], op: str) -> Expr:
    # By way of i32, which every machine converts in vectors.
    return Unary("to_f32", Unary("to_i32", Binary(op, _place(shape), Ref(0))))


def _draws(inputs: Types, output: TensorType, expr: Expr) -> MapSpec:
    return MapSpec(output.shape, (Access(inputs[0], ()),), (identity(output),), (expr,))


def _uniform_lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    return _draws(inputs, outputs[0], mul(_word(outputs[0].shape, "philox0"), Const(_SHARE)))


def _normal_lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    shape = outputs[0].shape
    above_zero = mul(add(_word(shape, "philox0"), Const(1.0)), Const(_SHARE))
    length = Unary("sqrt", mul(Const(-2.0), Unary("log", above_zero)))
    angle = mul(_word(shape, "philox1"), Const(2 * pi * _SHARE))
    return _draws(inputs, outputs[0], mul(length, Unary("cos", angle)))


def _uniform_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    (word, _) = Philox(out).top_bits(_places(ints(node.attrs, "shape")), node.inputs[0])
    out.add("Mul", out.add("Cast", word, to=1), out.scalar(_SHARE), output=node.output)
    return out.nodes


def _normal_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    first, second = (
        out.add("Cast", word, to=1) for word in Philox(out).top_bits(_places(ints(node.attrs, "shape")), node.inputs[0])
    )
    above_zero = out.add("Mul", out.add("Add", first, out.scalar(1.0)), out.scalar(_SHARE))
    length = out.add("Sqrt", out.add("Mul", out.scalar(-2.0), out.add("Log", above_zero)))
    angle = out.add("Mul", second, out.scalar(2 * pi * _SHARE))
    out.add("Mul", length, out.add("Cos", angle), output=node.output)
    return out.nodes


_EXAMPLES = (
    Example((_KEY,), {"shape": (2, 3, 5)}, ("index:1000",)),
    Example((_KEY,), {"shape": (37,)}, ("index:1000",)),
)

RANDOM = (
    Operator(
        name="random_key",
        attributes=("stream",),
        infer=_key_infer,
        evaluate=_key_evaluate,
        grad=_DRAWN,
        cost=elementwise_cost(_FLOPS),
        lower=lambda inputs, outputs, attrs: pointwise(
            inputs, outputs[0], Binary("philox", add(Ref(1), Const(integer(attrs, "stream") * _STREAM)), Ref(0))
        ),
        to_onnx=_key_onnx,
        examples=(Example((_KEY, _KEY), {"stream": 3}, ("index:1000", "index:1000")),),
    ),
    Operator(
        name="random_uniform",
        attributes=("shape",),
        infer=_infer,
        evaluate=_uniform_evaluate,
        grad=_DRAWN,
        cost=elementwise_cost(_FLOPS),
        lower=_uniform_lower,
        to_onnx=_uniform_onnx,
        examples=_EXAMPLES,
    ),
    Operator(
        name="random_normal",
        attributes=("shape",),
        infer=_infer,
        evaluate=_normal_evaluate,
        grad=_DRAWN,
        cost=elementwise_cost(_FLOPS + 40),
        lower=_normal_lower,
        to_onnx=_normal_onnx,
        examples=_EXAMPLES,
    ),
)
