"""Renames every value and node of an ONNX model, to names that are as hard as ONNX allows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import onnx

MOST_BYTES = 1024
"""Longest name that the importer takes."""
OURS = (
    "labels",
    "loss",
    "w",
    "w'",
    "w''",
    "hyper.learning_rate",
    "hyper.bias_correction_1",
    "optimizer.momentum.w",
    "optimizer.exp_avg.w",
    "optimizer'.momentum.w",
    "constant.0123456789abcdef",
    "%0",
    "%1",
    "%1/0",
    "%2:next",
    "x [1/2]",
    "x (again)",
    "w (term 1/2)",
    "w [packed]",
    "w [packed transposed]",
    "update w",
    "d w",
    "d w and update",
    "output y",
    "workspace of x",
    "y",
    "x",
    "a=b",
    "a",
    "../x",
    "/",
    "a/b",
    ".",
    "..",
    "input",
    "constant",
    "v.0",
    "".join(map(chr, range(32, 127))),
    '"',
    "\\",
    "'",
    "?" * 3,
    "%s%n",
    "${x}",
    "\u00e9\u65e5\u672c\U0001f600",
    " ",
    "  x ",
    "true",
    "null",
    "inf",
    "inf.weight",
    "nan.bias",
    "-1",
)


def hostile_names() -> Iterator[str]:
    """Names without end, no two alike: ours first, then states of ours and names of the greatest length."""
    states = (f"optimizer.{kind}.{name}" for kind in ("momentum", "exp_avg", "exp_avg_sq") for name in OURS[:20])
    yield from dict.fromkeys((*OURS, *states))
    for number in itertools.count():
        yield f"{number:05}{chr(33 + number % 90)}" + "n" * (MOST_BYTES - 6)
        yield f"%{number + 3}:part[1/2]"
        yield f"w{chr(39) * (number + 3)}."


def renaming(model: bytes) -> dict[str, str]:
    """Every value of a model -> its hostile name."""
    graph = onnx.load_from_string(model).graph
    values = [value.name for value in graph.initializer] + [value.name for value in (*graph.input, *graph.output)]
    values += [name for node in graph.node for name in node.output]
    return dict(zip(dict.fromkeys(name for name in values if name), hostile_names(), strict=False))


def renamed(model: bytes, names: Mapping[str, str]) -> bytes:
    """The model with its values renamed, and every node called like a value of another kind, or not at all."""
    proto = onnx.load_from_string(model)
    graph = proto.graph
    for value in (*graph.initializer, *graph.input, *graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
    for number, (node, name) in enumerate(zip(graph.node, hostile_names(), strict=False)):
        node.name = name if number % 3 else ""
        node.input[:] = [names.get(own, own) for own in node.input]
        node.output[:] = [names.get(own, own) for own in node.output]
    del graph.value_info[:]
    return bytes(proto.SerializeToString())
