"""`dropout: train`: a training step drops values at random, and makes the others larger by as much.

Rewrites: each `dropout`, which stands for its operand, becomes where(u >= ratio, x / (1 - ratio), 0), u drawn by seed,
step and node (`compiler.ops.random`), so that the backward pass drops the same. Requires: models imported so.
Ensures: the forward graph is as it was, and drops nothing. Source: ONNX Dropout (13), torch.nn.Dropout.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler.graph import Node, TensorType
from compiler.ops.record import integer, number
from compiler.rewriting.builder import GraphBuilder
from compiler.step.training import TrainingGraph
from compiler.values import Value


def drop_at_random(step: TrainingGraph) -> TrainingGraph:
    """The step with its dropouts at work; unchanged if it has none."""
    graph = step.graph
    if not any(node.op == "dropout" for node in graph.nodes):
        return step
    b = GraphBuilder(graph, keep_nodes=False)
    fed = {value.kind: value for value in graph.inputs if value.role == "hyper"}
    for kind in ("random_seed", "random_step"):
        if kind not in fed:
            fed[kind] = b.fresh("hyper", kind)
            b.types[fed[kind]] = TensorType("i64", ())
    for node in graph.nodes:
        if node.op == "dropout":
            b.stand_for(node)
            _drop(b, node, fed["random_seed"], fed["random_step"])
        else:
            b.nodes.append(node)
    added = tuple(value for value in fed.values() if value not in graph.inputs)
    updated_graph = replace(b.graph_of(graph), inputs=(*graph.inputs, *added))
    return replace(step, graph=updated_graph, hyper=(*step.hyper, *added))


def _drop(b: GraphBuilder, node: Node, seed: Value, number_of_step: Value) -> None:
    (x,) = node.inputs
    ratio, node_seed = number(node.attrs, "ratio"), integer(node.attrs, "seed")
    if node_seed >= 0:
        seed = b.constant(np.asarray(node_seed, np.int64))
    key = b.emit("random_key", seed, number_of_step, stream=integer(node.attrs, "stream"))
    survives = b.emit("less_equal", b.constant(ratio), b.emit("random_uniform", key, shape=b.shape(x)))
    scaled = b.emit("mul", x, b.constant(1 / (1 - ratio)))
    b.emit("where", survives, scaled, b.constant(0.0), output=node.output)
