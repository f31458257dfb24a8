"""Scaled dot-product attention over heads that lie side by side in each position, and its gradient.

    attention        s = scale q k' + mask, top = max s, share = 1 / sum exp(s - top) per row, p = exp(s - top) share
                     y = p v, d_s = p (d_y v' - rowsum(d_y y))
                     d_q = scale d_s k, d_k = scale d_s' q, d_v = p' d_y
A row that sees no key (all its scores are -inf) gives y = 0 and share = 0, so p = 0 there in both directions. A row
that a finite number hides sees every key alike, as softmax says.
Source: ONNX Attention (opset 23); FlashAttention-2 (arXiv 2307.08691), which keeps log sum exp(s) in place of `top` and
`share`: at -3e38 that has no room for the logarithm, and a row of such scores would weigh its keys by 1 each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.errors import ModelShapeError
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.spec import AttentionSpec
from compiler.ops.emitter import Emitter, Grads
from compiler.ops.record import (
    Cost,
    Example,
    NamedNode,
    NotDifferentiable,
    OnnxNode,
    OnnxWriter,
    Operator,
    Types,
    flag,
    ints,
    number,
)
from compiler.values import Value

_SOFTMAX_FLOPS = 20
"""Per score: scale, mask, maximum, exponential, sum."""
_GRADIENT_FLOPS = 24
"""Per score: scale, mask, exponential, and the softmax's gradient."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Extents of one attention: q [B, T, H, D], k [B, S, G, D], v [B, S, G, E]; H = G * shared."""

    batch: int
    queries: int
    heads: int
    width: int
    keys: int
    groups: int
    value_width: int

    @property
    def shared(self) -> int:
        """Query heads for each key/value head."""
        return self.heads // self.groups


def sizes_of(operands: Types) -> Sizes:
    """The extents of (q, k, v) or (q, k, v, mask). Raises: ModelShapeError where they do not fit together."""
    q, k, v, *rest = operands
    if any(len(tensor.shape) != 4 for tensor in (q, k, v)):
        raise ModelShapeError(f"attention needs [batch, positions, heads, width], got {q}, {k}, {v}")
    (batch, queries, heads, width), (_, keys, groups, _) = q.shape, k.shape
    sizes = Sizes(batch, queries, heads, width, keys, groups, v.shape[3])
    if k.shape != (batch, keys, groups, width) or v.shape[:3] != k.shape[:3] or heads % groups:
        raise ModelShapeError(f"attention of {q}, {k}, {v}: the operands do not fit together")
    whole = (batch, heads, queries, keys)
    for mask in rest:
        if len(mask.shape) != 4 or any(have not in (1, want) for have, want in zip(mask.shape, whole, strict=True)):
            raise ModelShapeError(f"attention mask {mask} does not broadcast to {list(whole)}")
    return sizes


def _infer(inputs: Types, attrs: Attrs) -> Types:
    s, dtype = sizes_of(inputs), inputs[0].dtype
    stats = TensorType(inputs[0].element.sums_in, (s.batch, s.heads, 2, s.queries))
    return (TensorType(dtype, (s.batch, s.queries, s.heads, s.value_width)), stats)


def _visible(sizes: Sizes, causal: bool) -> Array:
    """[T, S]: True where a query may see a key."""
    return np.tril(np.ones((sizes.queries, sizes.keys), bool), sizes.keys - sizes.queries if causal else sizes.keys)


# ------------------------------------------------------------------------------------------------------------ meaning


def _split(x: Array, groups: int) -> Array:
    """[B, T, H, D] -> [B, G, H / G, T, D]."""
    batch, positions, heads, width = x.shape
    return x.reshape(batch, positions, groups, heads // groups, width).transpose(0, 2, 3, 1, 4)


def _joined(x: Array) -> Array:
    """[B, G, R, T, D] -> [B, T, G R, D]."""
    batch, groups, shared, positions, width = x.shape
    return x.transpose(0, 3, 1, 2, 4).reshape(batch, positions, groups * shared, width)


def _scores(q: Array, k: Array, mask: Sequence[Array], sizes: Sizes, attrs: Attrs) -> Array:
    """[B, G, R, T, S]."""
    scores = _split(q, sizes.groups) @ _split(k, sizes.groups).swapaxes(-1, -2) * number(attrs, "scale")
    if mask:
        heads = (sizes.groups, sizes.shared) if mask[0].shape[1] > 1 else (1, 1)
        scores = scores + mask[0].reshape(mask[0].shape[0], *heads, *mask[0].shape[2:])
    visible = _visible(sizes, flag(attrs, "causal"))
    return np.where(visible, scores, -np.inf).astype(scores.dtype)


def _sizes_of_arrays(q: Array, k: Array, v: Array) -> Sizes:
    (batch, queries, heads, width), (_, keys, groups, _) = q.shape, k.shape
    return Sizes(batch, queries, heads, width, keys, groups, v.shape[3])


def _evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    q, k, v, *mask = inputs
    sizes = _sizes_of_arrays(q, k, v)
    scores = _scores(q, k, mask, sizes, attrs)
    # The lowest number stands for the maximum of a row without any key, so that nothing is inf - inf.
    top = np.maximum(scores.max(axis=-1, keepdims=True), scores.dtype.type(np.finfo(np.float32).min))
    terms = np.exp(scores - top)
    total = terms.sum(axis=-1, keepdims=True)
    share = np.where(total > 0, 1 / np.where(total > 0, total, 1), 0).astype(q.dtype)
    stats = np.stack([top, share], axis=-3).reshape(sizes.batch, sizes.heads, 2, sizes.queries)
    return _joined(terms * share @ _split(v, sizes.groups)), stats


def _grad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    q, k, v, y, stats, d_y, *mask = inputs
    sizes = _sizes_of_arrays(q, k, v)
    rows = stats.reshape(sizes.batch, sizes.groups, sizes.shared, 2, sizes.queries, 1)
    p = np.exp(_scores(q, k, mask, sizes, attrs) - rows[..., 0, :, :]) * rows[..., 1, :, :]
    d = _split(d_y, sizes.groups)
    delta = (d * _split(y, sizes.groups)).sum(axis=-1, keepdims=True)
    d_s = p * (d @ _split(v, sizes.groups).swapaxes(-1, -2) - delta) * number(attrs, "scale")
    d_q = d_s @ _split(k, sizes.groups)
    d_k = (d_s.swapaxes(-1, -2) @ _split(q, sizes.groups)).sum(axis=2, keepdims=True)
    d_v = (p.swapaxes(-1, -2) @ d).sum(axis=2, keepdims=True)
    return tuple(_joined(g) for g, wanted in zip((d_q, d_k, d_v), ints(attrs, "wanted"), strict=True) if wanted)


def _grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    """The mask carries no gradient: it says what may be seen."""
    gradients: list[Value | None] = [b.fresh() if want else None for want in wanted[:3]]
    if any(gradients):
        operands = (*node.inputs[:3], *node.outputs, d_output, *node.inputs[3:])
        b.emit_many(
            "attention_grad",
            operands,
            outputs=tuple(value for value in gradients if value),
            scale=number(node.attrs, "scale"),
            causal=flag(node.attrs, "causal"),
            wanted=tuple(int(want) for want in wanted[:3]),
        )
    return (*gradients, *(None for _ in node.inputs[3:]))


def _grad_infer(inputs: Types, attrs: Attrs) -> Types:
    sizes_of((*inputs[:3], *inputs[6:]))
    return tuple(tensor for tensor, wanted in zip(inputs[:3], ints(attrs, "wanted"), strict=True) if wanted)


# --------------------------------------------------------------------------------------------------- cost and kernels


def _pairs(sizes: Sizes, attrs: Attrs) -> int:
    """Scores that count."""
    return sizes.batch * sizes.heads * int(_visible(sizes, flag(attrs, "causal")).sum())


def _cost(inputs: Types, outputs: Types, attrs: Attrs) -> Cost:
    sizes = sizes_of(inputs[:3])
    flops = (2 * (sizes.width + sizes.value_width) + _SOFTMAX_FLOPS) * _pairs(sizes, attrs)
    return Cost(flops, sum(t.size_bytes for t in inputs), sum(t.size_bytes for t in outputs))


def _grad_cost(inputs: Types, outputs: Types, attrs: Attrs) -> Cost:
    sizes = sizes_of(inputs[:3])
    d_q, d_k, d_v = ints(attrs, "wanted")
    of_scores = sizes.value_width if d_q or d_k else 0
    products = sizes.width * (1 + d_q + d_k) + sizes.value_width * d_v + of_scores
    flops = (2 * products + _GRADIENT_FLOPS) * _pairs(sizes, attrs)
    return Cost(flops, sum(t.size_bytes for t in inputs), sum(t.size_bytes for t in outputs))


def _lower(inputs: Types, outputs: Types, attrs: Attrs) -> AttentionSpec:
    return _spec("forward", inputs[:3], inputs[3:], attrs)


def _grad_lower(inputs: Types, outputs: Types, attrs: Attrs) -> AttentionSpec:
    return _spec("backward", inputs[:3], inputs[6:], attrs)


def _spec(kind: str, operands: Types, mask: Types, attrs: Attrs) -> AttentionSpec:
    s = sizes_of(operands)
    d_q, d_k, d_v = (bool(want) for want in ints(attrs, "wanted")) if kind == "backward" else (True, True, True)
    shape: tuple[int, int, int, int] | None = None
    if mask:
        batch, heads, queries, keys = mask[0].shape
        shape = (batch, heads, queries, keys)
    return AttentionSpec(
        "backward" if kind == "backward" else "forward",
        s.batch,
        s.heads,
        s.groups,
        s.queries,
        s.keys,
        s.width,
        s.value_width,
        number(attrs, "scale"),
        flag(attrs, "causal"),
        shape,
        (d_q, d_k, d_v),
        dtype=operands[0].dtype,
    )


# --------------------------------------------------------------------------------------------------------------- ONNX


class _Writer:
    """Standard ONNX operators over [B, G, R, T, D]."""

    def __init__(self, node: NamedNode, types: Mapping[str, TensorType]) -> None:
        self.out = OnnxWriter(node.outputs[0])
        self.attrs = node.attrs
        self.sizes = sizes_of(tuple(types[name] for name in node.inputs[:3]))
        self.types = types

    def split(self, name: str) -> str:
        """Adds the nodes of `_split` and returns their result."""
        batch, positions, heads, width = self.types[name].shape
        groups = self.sizes.groups
        shape = self.out.ints(batch, positions, groups, heads // groups, width)
        return self.out.add("Transpose", self.out.add("Reshape", name, shape), perm=(0, 2, 3, 1, 4))

    def joined(self, name: str, like: str, output: str) -> None:
        """Adds the nodes of `_joined`."""
        moved = self.out.add("Transpose", name, perm=(0, 3, 1, 2, 4))
        self.out.add("Reshape", moved, self.out.ints(*self.types[like].shape), output=output)

    def swapped(self, name: str) -> str:
        """The last two axes exchanged."""
        return self.out.add("Transpose", name, perm=(0, 1, 2, 4, 3))

    def statistic(self, stats: str, row: int) -> str:
        """Returns one of the two numbers per query: [B, G, R, T, 1]."""
        sizes = self.sizes
        shape = self.out.ints(sizes.batch, sizes.groups, sizes.shared, sizes.queries, 1)
        return self.out.add("Reshape", self.out.add("Gather", stats, self.out.ints(row), axis=2), shape)

    def scores(self, q: str, k: str, mask: Sequence[str]) -> str:
        """Adds the nodes of `_scores` and returns their result."""
        out, sizes = self.out, self.sizes
        scores = out.add("MatMul", self.split(q), self.swapped(self.split(k)))
        scores = out.add("Mul", scores, out.scalar(number(self.attrs, "scale")))
        if mask:
            batch, heads, *rest = self.types[mask[0]].shape
            axes = (sizes.groups, sizes.shared) if heads > 1 else (1, 1)
            scores = out.add("Add", scores, out.add("Reshape", mask[0], out.ints(batch, *axes, *rest)))
        if flag(self.attrs, "causal"):
            hidden = np.where(_visible(sizes, True), np.float32(0), np.float32(-np.inf))
            scores = out.add("Add", scores, out.add("Constant", value=hidden))
        return scores


def _to_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    w = _Writer(node, types)
    out, (q, k, v, *mask) = w.out, node.inputs
    scores = w.scores(q, k, mask)
    lowest = out.scalar(float(np.finfo(np.float32).min))
    top = out.add("Max", out.add("ReduceMax", scores, out.ints(-1), keepdims=1), lowest)
    terms = out.add("Exp", out.add("Sub", scores, top))
    total = out.add("ReduceSum", terms, out.ints(-1), keepdims=1)
    unseen = out.add("Equal", total, out.scalar(0.0))
    safe = out.add("Where", unseen, out.scalar(1.0), total)
    share = out.add("Where", unseen, out.scalar(0.0), out.add("Reciprocal", safe))
    w.joined(out.add("MatMul", out.add("Mul", terms, share), w.split(v)), node.outputs[0], node.outputs[0])
    stats = out.add("Concat", top, share, axis=-2)
    out.add("Reshape", stats, out.ints(*types[node.outputs[1]].shape), output=node.outputs[1])
    return out.nodes


def _grad_to_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    w = _Writer(node, types)
    out, (q, k, v, y, stats, d_y, *mask) = w.out, node.inputs
    top, share = (w.statistic(stats, row) for row in range(2))
    p = out.add("Mul", out.add("Exp", out.add("Sub", w.scores(q, k, mask), top)), share)
    d = w.split(d_y)
    delta = out.add("ReduceSum", out.add("Mul", d, w.split(y)), out.ints(-1), keepdims=1)
    d_p = out.add("MatMul", d, w.swapped(w.split(v)))
    d_s = out.add("Mul", out.add("Mul", p, out.add("Sub", d_p, delta)), out.scalar(number(node.attrs, "scale")))

    def over_heads(product: str) -> str:
        return out.add("ReduceSum", product, out.ints(2), keepdims=1)

    products: tuple[Callable[[], str], ...] = (
        lambda: out.add("MatMul", d_s, w.split(k)),
        lambda: over_heads(out.add("MatMul", w.swapped(d_s), w.split(q))),
        lambda: over_heads(out.add("MatMul", w.swapped(p), d)),
    )
    outputs = iter(node.outputs)
    for operand, product, wanted in zip((q, k, v), products, ints(node.attrs, "wanted"), strict=True):
        if wanted:
            w.joined(product(), operand, next(outputs))
    return out.nodes


# ------------------------------------------------------------------------------------------------------------ records


def _types(*shapes: tuple[int, ...]) -> Types:
    return tuple(TensorType("f32", shape) for shape in shapes)


def _example(*shapes: tuple[int, ...], causal: bool = False) -> Example:
    """Shapes of q, k, v and perhaps a mask."""
    return Example(_types(*shapes), {"scale": 0.4, "causal": causal})


def _grad_example(*shapes: tuple[int, ...], causal: bool = False, wanted: tuple[int, int, int] = (1, 1, 1)) -> Example:
    q, k, v, *mask = shapes
    y, stats = (*q[:3], v[3]), (q[0], q[2], 2, q[1])
    # Positive ones keep the exponentials small; they need not belong to the scores.
    values = ("normal",) * 4 + ("positive",)
    return Example(_types(q, k, v, y, stats, y, *mask), {"scale": 0.4, "causal": causal, "wanted": wanted}, values)


ATTENTION = (
    Operator(
        name="attention",
        attributes=("scale", "causal"),
        infer=_infer,
        evaluate=_evaluate,
        grad=_grad,
        cost=_cost,
        lower=_lower,
        to_onnx=_to_onnx,
        examples=(
            _example((2, 5, 3, 4), (2, 7, 3, 4), (2, 7, 3, 6)),
            _example((2, 5, 4, 8), (2, 5, 2, 8), (2, 5, 2, 8), (2, 1, 1, 5)),
            _example((1, 18, 2, 4), (1, 18, 2, 4), (1, 18, 2, 4), (1, 2, 18, 18), causal=True),
        ),
    ),
    Operator(
        name="attention_grad",
        attributes=("scale", "causal", "wanted"),
        infer=_grad_infer,
        evaluate=_grad_evaluate,
        grad=NotDifferentiable("second derivatives are not needed by any optimizer here"),
        cost=_grad_cost,
        lower=_grad_lower,
        to_onnx=_grad_to_onnx,
        examples=(
            _grad_example((2, 5, 3, 4), (2, 7, 3, 4), (2, 7, 3, 6)),
            _grad_example((2, 5, 4, 8), (2, 5, 2, 8), (2, 5, 2, 8), (2, 1, 1, 5), wanted=(0, 0, 1)),
            _grad_example((1, 18, 2, 4), (1, 18, 2, 4), (1, 18, 2, 4), (1, 2, 18, 18), causal=True),
        ),
    ),
)
