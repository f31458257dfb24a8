"""Recognises scaled dot-product attention, so that its scores are never written.

Rewrites: softmax(scale q k' + mask) v over [batch, heads, positions, width], in the forms that exporters write it, to
`attention` over [batch, positions, heads, width] between transposes, which cancel against those of the model.
Forms: scaling of q, k or the scores; additive masks, or `where` with a large negative number; a softmax that gives
zeros to a row of -inf; key/value heads repeated for, or broadcast over, groups of query heads.
Requires: nothing else reads the scores and weights; the mask depends on no parameter (it would get no gradient); where
a finite number takes the place of scores, they weigh nothing (`compiler.passes.attention_mask`).
Ensures: the same values and gradients, also where a finite number hides a whole row, but that a row of -inf gives zeros
where it would have given NaN. `causal` only where later keys weigh nothing, whatever else is hidden.
Why: time (the transposes, and the scores' trips to memory) and memory (weights saved for the backward pass).
"""

from __future__ import annotations

import functools

import numpy as np

from compiler.graph import Graph
from compiler.passes.attention_mask import later_keys
from compiler.passes.attention_match import Finder, Match, Source, mask_shape
from compiler.rewriting.builder import GraphBuilder
from compiler.rewriting.passes import Declined, PassResult, rewritten
from compiler.values import Value


def fuse_attention(graph: Graph) -> PassResult[Graph]:
    """The graph with every attention that is recognised as one node."""
    finder = Finder(graph)
    b = GraphBuilder(graph, keep_nodes=False)
    declined: list[Declined] = []
    for node in graph.nodes:
        match = finder.match(node)
        b.stand_for(node)
        if isinstance(match, Match):
            _write(b, finder, match, node.output)
            continue
        b.nodes.append(node)
        if match is not None:
            declined.append(match)
    return rewritten(graph, b.graph_of(graph), declined)


def _write(b: GraphBuilder, finder: Finder, match: Match, output: Value) -> None:
    """Appends the attention, its operands' transposes before and the output's after it."""
    q_shape, k_shape, v_shape = (finder.matrices(source) for source in (match.q, match.k, match.v))
    whole = (*q_shape[:-1], k_shape[-2])
    mask, causal = _mask(b, match, whole)
    q = _by_position(b, match.q, q_shape)
    k, v = (_by_position(b, _unrepeated(finder, source), None) for source in (match.k, match.v))
    if b.shape(k)[:3] != b.shape(v)[:3]:  # only one of them shows that its heads are repeated
        k, v = (_by_position(b, source, None) for source in (match.k, match.v))
    outputs = (b.fresh(), b.fresh())
    operands = (q, k, v, mask) if mask else (q, k, v)
    y, _ = b.emit_many("attention", operands, outputs=outputs, scale=match.scale, causal=causal)
    batch, *heads, queries, _ = q_shape
    split = y if len(heads) == 1 else b.emit("reshape", y, shape=(batch, queries, *heads, v_shape[-1]))
    perm = (0, *range(2, 2 + len(heads)), 1, 2 + len(heads))
    b.emit("transpose", split, perm=perm, output=output)


def _unrepeated(finder: Finder, source: Source) -> Source:
    """Key/value heads before they were repeated for their groups: [B, G, 1, S, D] instead of [B, G R, S, D]."""
    node = finder.maker(source.name, "reshape")
    spread = finder.maker(node.inputs[0], "broadcast_to") if node is not None else None
    if spread is None or len(source.perm) != 4:
        return source
    inner, outer = finder.shape(spread.inputs[0]), finder.shape(spread.output)
    # The repeated axis is merged with the one before it; every other axis is left alone.
    for axis in range(1, 4):
        merged = (*outer[:axis], outer[axis] * outer[axis + 1], *outer[axis + 2 :]) if len(outer) == 5 else ()
        ungrouped_shape = (*outer[: axis + 1], 1, *outer[axis + 2 :])
        if merged == finder.shape(source.name) and inner == ungrouped_shape and source.perm[1] == axis:
            places = tuple(place + (place > axis) for place in source.perm)
            return Source(spread.inputs[0], (*places[:2], axis + 1, *places[2:]))
    return source


def _by_position(b: GraphBuilder, source: Source, shape: tuple[int, ...] | None) -> Value:
    """[B, heads, T, D] (or with groups of heads) -> [B, T, heads, D]."""
    order = (0, 2, 1, 3) if len(source.perm) == 4 else (0, 3, 1, 2, 4)
    perm = tuple(source.perm[axis] for axis in order)
    moved = source.name if perm == tuple(range(len(perm))) else b.emit("transpose", source.name, perm=perm)
    batch, positions, *heads, width = b.shape(moved)
    if len(heads) == 1:
        return moved
    return b.emit("reshape", moved, shape=(batch, positions, heads[0] * heads[1], width))


def _mask(b: GraphBuilder, match: Match, whole: tuple[int, ...]) -> tuple[Value | None, bool]:
    """(additive mask over [batch, heads, queries, keys] or None, whether it hides every later key)."""
    later = later_keys(*whole[-2:])
    causal = bool(later.any() and match.weightless[..., later].all())
    constant_mask, masks = np.zeros((1, 1, 1, 1), np.float32), list[Value]()
    for mask_part in match.mask:
        if mask_part.array is not None:
            constant_mask = constant_mask + mask_part.array
            continue
        part = mask_part.part
        added = part.value
        if part.hidden_by is not None:
            added = b.emit("where", part.value, b.constant(0.0), b.constant(part.hidden_by))
        shape = mask_shape(b.shape(added), whole)
        assert shape is not None
        masks.append(added if b.shape(added) == shape else b.emit("reshape", added, shape=shape))
    if causal and constant_mask.any():
        constant_mask = np.where(later, np.float32(0), constant_mask)
    if constant_mask.any():
        masks.append(b.constant(np.ascontiguousarray(constant_mask, np.float32)))
    return functools.reduce(lambda left, right: b.emit("add", left, right), masks) if masks else None, causal
