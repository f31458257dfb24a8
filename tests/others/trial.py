"""One file of others, brought by a spec alone: is it usable, and is what it trains what ONNX Runtime computes?

*Usable*: it builds, the first loss equals ONNX Runtime's output put through the loss in NumPy, 20 steps on fixed data
lower it, and the trained file's output, by ONNX Runtime, gives the loss that the next step would begin with.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import pockfarm
from compiler.graph import Array
from pockfarm.errors import Diverged, PockfarmError

STEPS = 20
BATCH = 2
TOLERANCES = {"float32": 1e-4, "float16": 3e-3, "float64": 1e-4}
"""Of a loss, relative, by the type that ONNX Runtime computes in: sums in another order."""
AFTER = {"float32": 2e-3, "float16": 3e-2, "float64": 2e-3}
"""The same of a trained file, whose weights are rounded to its own type, after steps that differ in rounding."""
ROUNDED = 5e-3
"""Of the largest output, where activations are rounded to integers: one on an edge goes either way, there too."""
LOG_OF_0, NOTHING = -100.0, 1e-6
"""Of an output of 0, and a loss of which nothing is left."""
SMALLEST, EDGE = 1e-20, 1e-3
"""Of shares of classes, and from 0 and 1: beyond, an output of float32 does not tell its loss."""
EXTENTS = (64, 96, 128, 256, 512, 576, 32, 48, 320, 640, 16, 8, 1000)
"""Tried in turn for axes that a file leaves open, until ONNX Runtime takes them."""
RATES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
"""Of Adam: the first that lowers the loss counts, as for a user who turns the rate down."""
_NUMPY = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16, 11: np.float64, 3: np.int8, 2: np.uint8}


@dataclass(frozen=True)
class Outcome:
    """What became of a file: `verdict` is usable, refused, wrong, or no reference."""

    file: str
    verdict: str
    detail: str
    seconds: float

    def line(self) -> str:
        """For a table."""
        return f"{self.verdict:13} {self.seconds:6.1f} s  {self.file}: {self.detail}"


@dataclass(frozen=True)
class Example:
    """Inputs that ONNX Runtime takes, and the output that a loss is taken of."""

    feeds: Mapping[str, Array]
    output: str
    answer: Array
    batch: int


def tried(path: Path, name: str, spec: Mapping[str, Any]) -> Outcome:
    """Bring a file; `spec` is what a user would add to it."""
    begun = time.monotonic()

    def ended(verdict: str, detail: str) -> Outcome:
        return Outcome(name, verdict, " ".join(detail.split())[:600], time.monotonic() - begun)

    try:
        return ended(*_trained(path, example_of(path, spec), spec))
    except NoReference as problem:
        return ended("no reference", str(problem))
    except PockfarmError as problem:
        return ended("refused", str(problem))


def _trained(path: Path, example: Example, spec: Mapping[str, Any]) -> tuple[str, str]:
    objective = objective_of(example.answer)
    labels, exact = objective.labels, objective.loss(example.answer)
    by_name = spec.get("inputs", {})
    added = {key for key, entry in by_name.items() if entry.get("batch_axis") == "new"}
    batch = 1 if added else example.batch
    samples = labels if batch in labels.shape and not added else labels.reshape(batch, *labels.shape)
    data = {key: array for key, array in example.feeds.items() if "value" not in by_name.get(key, {})}
    shapes = {key: {"shape": list(array.shape)} for key, array in data.items() if array.ndim}
    data |= {key: data[key][None] for key in added}
    inputs = {key: {**shapes.get(key, {}), **by_name.get(key, {})} for key in {**shapes, **by_name}}
    detail = ""
    for rate in RATES:
        settings = {
            "batch": batch,
            "loss": {"kind": objective.kind},
            "optimizer": {"kind": "adam", "learning_rate": rate},
            **spec,
            "inputs": inputs,
        }
        train = partial(pockfarm.fine_tune, path, None, {**data, "y": samples}, spec=settings, output=example.output)
        try:
            tuned = train(steps=STEPS)
        except Diverged as problem:
            detail = str(problem)
            continue
        first, last = tuned.losses[0], tuned.losses[-1]
        learning = f"{len(tuned.changed)} tensors learn"
        detail = f"{objective.kind} {first:.6g} (exact {exact:.6g}) to {last:.6g} at {rate:g}, {learning}"
        if not abs(first - exact) <= _allowed(path, example, exact):
            return "wrong", detail
        if last < first:
            return _checked(tuned, partial(train, steps=STEPS + 1), example, objective, detail)
    return "wrong", f"no rate lowers the loss: {detail}"


@dataclass(frozen=True)
class Objective:
    """What is trained: the spec's word for the loss; labels, in the shape of the output or without its classes."""

    kind: str
    labels: Array
    loss: Callable[[Array], float]


def objective_of(answer: Array) -> Objective:
    """Of shares of classes along the last axis cross-entropy, of other shares the binary one, of numbers squares."""
    least, most = float(answer.min()), float(answer.max())
    are_shares = least >= 0 and most <= 1
    if are_shares and answer.ndim > 1 and answer.shape[-1] > 1 and np.allclose(answer.sum(-1), 1, atol=1e-3):
        classes = np.argsort(answer, -1)[..., -2]  # the second: to be learned, and no number that underflows
        shares = np.take_along_axis(answer, classes[..., None], -1)
        if shares.min() > SMALLEST:
            return Objective("cross_entropy", classes, partial(_cross_entropy, classes))
    random = np.random.default_rng(1)
    if are_shares and least > SMALLEST and most < 1 - EDGE:
        targets = random.integers(0, 2, answer.shape).astype(np.float32)
        return Objective("bce_with_logits", targets, partial(_binary_cross_entropy, targets))
    noise = random.standard_normal(answer.shape) * max(float(answer.std()), 0.1)
    labels = (answer + noise).astype(np.float32)
    return Objective("mse", labels, lambda given: float(np.square(given.astype(np.float64) - labels).mean()))


def _cross_entropy(classes: Array, shares: Array) -> float:
    return float(-np.log(np.take_along_axis(shares.astype(np.float64), classes[..., None], -1)).mean())


def _binary_cross_entropy(targets: Array, shares: Array) -> float:
    real = shares.astype(np.float64)
    with np.errstate(divide="ignore"):  # an output that has learned is 0 or 1, as PyTorch's function takes it
        logarithms = np.maximum(np.log(real), LOG_OF_0), np.maximum(np.log1p(-real), LOG_OF_0)
    return float(-(targets * logarithms[0] + (1 - targets) * logarithms[1]).mean())


def _checked(
    tuned: pockfarm.FineTuned,
    train_on: Callable[[], pockfarm.FineTuned],
    example: Example,
    objective: Objective,
    detail: str,
) -> tuple[str, str]:
    """Whether the trained file's loss is the one that the binary's next step begins with."""
    again = _session(tuned.onnx).run([example.output], dict(example.feeds))[0]
    by_file = objective.loss(again)
    following = train_on().losses[-1]
    allowed = AFTER[again.dtype.name] * by_file + NOTHING
    verdict = "usable" if abs(by_file - following) <= allowed else "wrong"
    return verdict, f"{detail}; the trained file gives {by_file:.6g}, the next step {following:.6g}"


def _allowed(path: Path, example: Example, exact: float) -> float:
    """How far the first loss may be from the exact one."""
    if not _is_rounded(path):
        return TOLERANCES[example.answer.dtype.name] * exact
    off = ROUNDED * float(np.abs(example.answer).max())
    return 2 * math.sqrt(exact) * off + off**2


def _is_rounded(path: Path) -> bool:
    kinds = {node.op_type for node in onnx.load(path).graph.node}
    return not kinds.isdisjoint({"DynamicQuantizeLinear", "DynamicQuantizeLSTM", "QuantizeLinear"})


class NoReference(Exception):
    """There is nothing to compare a file with."""


def example_of(path: Path, spec: Mapping[str, Any]) -> Example:
    """Random inputs in the first shapes that ONNX Runtime takes. Raises: NoReference."""
    model = onnx.load(path)
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in stored]
    if any(value.type.tensor_type.elem_type not in _NUMPY for value in inputs):
        raise NoReference("an input holds no numbers")
    session = _session(path.read_bytes())
    for extents in _choices(inputs, spec):
        feeds = {value.name: _drawn(value, extents, spec) for value in inputs}
        try:
            answers = session.run(None, feeds)
        except Exception:  # whatever ONNX Runtime says of shapes that do not fit: others are tried
            continue
        for output, answer in zip(session.get_outputs(), answers, strict=True):
            if (
                isinstance(answer, np.ndarray)
                and answer.dtype.kind == "f"
                and answer.size
                and np.isfinite(answer).all()
            ):
                return Example(feeds, output.name, answer, next(iter(feeds.values())).shape[0])
    raise NoReference("ONNX Runtime takes none of the shapes that were tried")


def _session(model: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _choices(inputs: list[Any], spec: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    """Extents by symbol: the batch, and one number for all other open axes, or two."""
    firsts = (name for value in inputs for name, is_first in _open(value) if is_first)
    batches = dict.fromkeys(firsts, spec.get("batch", BATCH))
    symbols = list(dict.fromkeys(name for value in inputs for name, _ in _open(value) if name not in batches))
    for extent in EXTENTS:
        yield {**dict.fromkeys(symbols, extent), **batches}
    for first, rest in itertools.product(EXTENTS, EXTENTS) if len(symbols) > 1 else ():
        yield {**{symbol: first if number == 0 else rest for number, symbol in enumerate(symbols)}, **batches}


def _open(value: Any) -> Iterator[tuple[str, bool]]:
    for axis, dim in enumerate(value.type.tensor_type.shape.dim):
        if dim.dim_value <= 0:
            yield dim.dim_param or f"{value.name}.{axis}", axis == 0


def _drawn(value: Any, extents: Mapping[str, int], spec: Mapping[str, Any]) -> Array:
    given = spec.get("inputs", {}).get(value.name, {})
    shape = given.get("shape") or tuple(
        dim.dim_value if dim.dim_value > 0 else extents[dim.dim_param or f"{value.name}.{axis}"]
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
    )
    source = np.random.default_rng(7)
    dtype = np.dtype(_NUMPY[value.type.tensor_type.elem_type])
    if "value" in given:
        return np.full(shape, given["value"], dtype)
    if dtype.kind == "f":
        return source.standard_normal(shape).astype(dtype)
    return source.integers(0, 2 if dtype.kind == "b" else 20, shape).astype(dtype)
