"""Reads scaled dot-product attention off a graph: see `compiler.passes.attention` for the forms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compiler.graph import Array, Graph, Node
from compiler.ops.record import flag, ints
from compiler.passes.attention_mask import HIDDEN, KnownPart, MaskPart, is_exact, weightless
from compiler.rewriting.passes import Declined
from compiler.values import Value


@dataclass(frozen=True, slots=True)
class Source:
    """A value as `scale * transpose(name, perm)`."""

    name: Value
    perm: tuple[int, ...]
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Match:
    """An attention: operands are [batch, heads, positions, width], or have an axis of groups before the heads.

    `weightless` [..., queries, keys]: scores that surely weigh nothing.
    """

    q: Source
    k: Source
    v: Source
    scale: float
    mask: tuple[KnownPart, ...]
    weightless: Array


class Finder:
    """Reads the pattern off a graph, from the product with v towards the product of q and k."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makers = graph.producers()
        self.readers = graph.consumers()
        self.learning_values = _learning_values(graph)

    def maker(self, name: Value, *ops: str) -> Node | None:
        """The node that makes a value, if it is one of `ops`."""
        node = self.makers.get(name)
        return node if node is not None and node.op in ops else None

    def constant(self, name: Value) -> Array | None:
        """The array of a constant."""
        return None if name in self.graph.parameters else self.graph.arrays.get(name)

    def number(self, name: Value) -> float | None:
        """The one number that a constant holds everywhere."""
        array = self.constant(name)
        if array is None or not array.size or array.dtype.kind != "f" or (array != array.flat[0]).any():
            return None
        return float(array.flat[0])

    def shape(self, name: Value) -> tuple[int, ...]:
        """Shape of a value."""
        return self.graph.types[name].shape

    def match(self, node: Node) -> Match | Declined | None:
        """The attention that ends in `node`, or why what ends there is none; None if nothing hints at one."""
        softmax = self.maker(node.inputs[0], "softmax", "safe_softmax") if node.op == "matmul" else None
        if softmax is None:
            return None
        where = node.layer or node.op
        if flag(node.attrs, "transpose_a") or len(self.shape(node.output)) not in (4, 5):
            return Declined("attention.axes", where, "weights [batch, heads, queries, keys], or with an axis of groups")
        if not self._private(softmax.output):
            return Declined("attention.weights_are_read", where, "weights that nothing but the product with v reads")
        scores = self._scores(softmax.inputs[0])
        if scores is None:
            return Declined(
                "attention.scores", where, "scores of one product, scaled and masked, that nothing else reads"
            )
        product, scale, mask = scores
        q = self._source(product.inputs[0], flag(product.attrs, "transpose_a"))
        k = self._source(product.inputs[1], not flag(product.attrs, "transpose_b"))
        v = self._source(node.inputs[1], flag(node.attrs, "transpose_b"))
        whole = self._whole(q, k, v)
        if whole is None or v.scale != 1.0:
            return Declined(
                "attention.operands", where, "unscaled values, and keys that broadcast over groups of heads"
            )
        parts = self._known_parts(mask, whole)
        if parts is None:
            return Declined(
                "attention.mask_shape", where, "a mask over [batch, heads, queries, keys] or parts of these"
            )
        hidden = weightless(parts, *whole[-2:])
        if not is_exact(parts, hidden):
            return Declined(
                "attention.mask_number", where, "-inf where a mask takes the place of scores that may weigh"
            )
        return Match(q, k, v, scale * q.scale * k.scale, parts, hidden)

    def _private(self, name: Value) -> bool:
        return len(self.readers.get(name, ())) == 1 and name not in self.graph.outputs

    def _scores(self, scores: Value) -> tuple[Node, float, tuple[MaskPart, ...]] | None:
        """(product of q and k, its scale, masks) behind the softmax's operand; masks come after scaling."""
        shape, scale = self.shape(scores), 1.0
        mask: list[MaskPart] = []
        while self._private(scores) and self.shape(scores) == shape:
            node = self.makers.get(scores)
            if node is None or node.op == "matmul":
                return None if node is None else (node, scale, tuple(mask))
            scaled = self._scaled(node)
            masked = self._masked(node) if scaled is None and scale == 1.0 else None
            if scaled is not None:
                scores, factor = scaled
                scale *= factor
            elif masked is not None:
                scores, part = masked
                mask.append(part)
            else:
                return None
        return None

    def _scaled(self, node: Node) -> tuple[Value, float] | None:
        """(operand, factor) of a product with, or quotient by, a number."""
        if node.op not in ("mul", "div"):
            return None
        left, right = node.inputs
        factor = self.number(right)
        if factor is not None and self.shape(left) == self.shape(node.output):
            return left, factor if node.op == "mul" else 1.0 / factor
        factor = self.number(left) if node.op == "mul" else None
        return (right, factor) if factor is not None and self.shape(right) == self.shape(node.output) else None

    def _masked(self, node: Node) -> tuple[Value, MaskPart] | None:
        """(scores, mask) of an addition, or of a `where` that hides scores."""
        if node.op == "where":
            number = self.number(node.inputs[2])
            is_learned = node.inputs[0] in self.learning_values
            if number is None or number > HIDDEN or is_learned:
                return None
            return node.inputs[1], MaskPart(node.inputs[0], number)
        if node.op != "add":
            return None
        for scores, mask in (node.inputs, node.inputs[::-1]):
            if mask not in self.learning_values and self._holds_product(scores):
                return scores, MaskPart(mask)
        return None

    def _holds_product(self, name: Value) -> bool:
        """Whether scaling and masking lead from a product to this value."""
        node = self.maker(name, "matmul", "mul", "div", "add", "where")
        if node is None or node.op == "matmul":
            return node is not None
        operands = {"mul": node.inputs, "div": node.inputs[:1], "add": node.inputs, "where": node.inputs[1:2]}[node.op]
        return any(self._holds_product(operand) for operand in operands)

    def _source(self, name: Value, swapped: bool) -> Source:
        """An operand [..., positions, width] (the other way round if `swapped`) behind transposes and scaling."""
        rank, scale = len(self.shape(name)), 1.0
        perm: tuple[int, ...] = (*range(rank - 2), rank - 1, rank - 2) if swapped else tuple(range(rank))
        while True:
            node = self.maker(name, "mul", "div", "transpose")
            if node is None:
                return Source(name, perm, scale)
            if node.op == "transpose":
                inner = ints(node.attrs, "perm")
                name, perm = node.inputs[0], tuple(inner[axis] for axis in perm)
                continue
            scaled = self._scaled(node)
            if scaled is None:
                return Source(name, perm, scale)
            name, scale = scaled[0], scale * scaled[1]

    def _whole(self, *operands: Source) -> tuple[int, ...] | None:
        """The scores' shape, if the operands broadcast over nothing but groups of heads."""
        q, k, v = map(self.matrices, operands)
        if not len(q) == len(k) == len(v):
            return None
        shared = len(q) == 5 and k[2] == v[2] == 1
        if len(q) == 5 and not shared:
            return None
        heads = q[:2] if shared else q[:-2]
        return (*q[:-1], k[-2]) if k[: len(heads)] == v[: len(heads)] == heads else None

    def _known_parts(self, parts: tuple[MaskPart, ...], whole: tuple[int, ...]) -> tuple[KnownPart, ...] | None:
        """Returns what constants tell of every part; None if one does not broadcast as a mask may."""
        known_parts = []
        for part in parts:
            shape = mask_shape(self.shape(part.value), whole)
            if shape is None:
                return None
            array = self.constant(part.value)
            if array is None:
                hidden, low = self._surely_hidden(part)
                broadcast_shape = None if hidden is None else mask_shape(hidden.shape, whole)
                known_parts.append(
                    KnownPart(
                        part,
                        None,
                        None if hidden is None or broadcast_shape is None else hidden.reshape(broadcast_shape),
                        low,
                    )
                )
                continue
            added = array if part.hidden_by is None else np.where(array, np.float32(0), np.float32(part.hidden_by))
            known_parts.append(KnownPart(part, added.reshape(shape)))
        return tuple(known_parts)

    def matrices(self, source: Source) -> tuple[int, ...]:
        """The shape of an operand."""
        shape = self.shape(source.name)
        return tuple(shape[axis] for axis in source.perm)

    def _surely_hidden(self, part: MaskPart) -> tuple[Array | None, float]:
        """(where a mask of run time hides whatever the inputs are, what it adds there), as far as constants tell."""
        if part.hidden_by is not None:
            return self._surely_false(part.value), part.hidden_by
        node = self.maker(part.value, "where")
        numbers = [self.number(name) for name in node.inputs[1:]] if node is not None else []
        if node is None or numbers[0] != 0.0 or numbers[1] is None or numbers[1] > HIDDEN:
            return None, 0.0
        return self._surely_false(node.inputs[0]), numbers[1]

    def _surely_false(self, condition: Value) -> Array | None:
        array = self.constant(condition)
        if array is not None:
            return np.logical_not(array)
        both = self.maker(condition, "and")
        conditions = [self._surely_false(name) for name in both.inputs] if both is not None else []
        parts = [part for part in conditions if part is not None]
        return np.asarray(np.logical_or.reduce(np.broadcast_arrays(*parts))) if parts else None


def _learning_values(graph: Graph) -> set[Value]:
    """Returns every value that depends on a parameter."""
    dependent = set(graph.parameters)
    for node in graph.nodes:
        if any(name in dependent for name in node.inputs):
            dependent.update(node.outputs)
    return dependent


def mask_shape(shape: tuple[int, ...], whole: tuple[int, ...]) -> tuple[int, ...] | None:
    """A mask's shape over [batch, heads, queries, keys], beside scores of shape `whole`; None if it has none."""
    padded = (1,) * (len(whole) - len(shape)) + shape
    if len(whole) == 4 or len(padded) != 5:
        return padded if len(padded) == 4 else None
    batch, groups, shared, *rest = padded
    if (groups, shared) in ((1, 1), whole[1:3]):
        return (batch, groups * shared, *rest)
    return None
