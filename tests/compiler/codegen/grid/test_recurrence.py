"""Recurrent layers for a grid, in all their schedules, against PyTorch's cells in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pytest

from compiler.codegen.grid.recurrence.plan import plan
from compiler.errors import BuildError
from compiler.graph import Array
from compiler.kernels.cells import CELLS
from compiler.kernels.spec import RecurrenceSpec
from compiler.program.operands import operand_types
from compiler.targets import GridTarget, load
from tests.compiler.codegen.test_recurrence import by_torch
from tests.kernel_harness.launch import build_object
from tests.kernel_harness.opencl import run_on_device
from tests.sample import thinned


def machine(**figures: int) -> GridTarget:
    """A device with some figures of its own."""
    return replace(cast(GridTarget, load("x86-64-v3/opencl")), **figures)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Shape:
    """A layer, the device it is built for, and the schedule that the case is there for."""

    steps: int
    batch: int
    width: int
    target: GridTarget
    samples: int
    turns: int
    parts: int
    rounds_of_lstm_grad: int = 1


SHAPES = {
    "several samples of a group, the last one's not full": Shape(3, 37, 5, machine(), 4, 1, 8),
    "one sample, one step": Shape(1, 1, 40, machine(), 1, 1, 4),
    "columns in turns, terms in blocks": Shape(2, 2, 300, machine(), 1, 2, 1),
    "small groups, gate by gate": Shape(3, 3, 70, machine(items=64, shared_bytes=1344), 1, 2, 1, 4),
    "one column": Shape(4, 9, 1, machine(), 1, 1, 16),
}


@dataclass
class Drawn:
    """x, r, start, bias and d_y of a layer."""

    x: Array
    r: Array
    start: Array
    bias: Array
    d_y: Array


def draw(cell: str, steps: int, batch: int, width: int) -> Drawn:
    rng, kind = np.random.default_rng(width), CELLS[cell]
    return Drawn(
        rng.normal(size=(steps, batch, kind.gates * width)),
        rng.normal(size=(kind.gates * width, width)) / np.sqrt(width),
        rng.normal(size=(batch, kind.states * width)),
        rng.normal(size=width),
        rng.normal(size=(steps, batch, kind.states * width)),
    )


def run(spec: RecurrenceSpec, target: GridTarget, *inputs: Array) -> tuple[Array, ...]:
    built, types = build_object(spec, target), operand_types(spec)
    assert all(launch.items <= target.items for launch in built.launches)
    return run_on_device(built, (types.inputs, types.outputs), [array.astype(np.float32) for array in inputs])


def both(cell: str, reverse: bool, target: GridTarget, drawn: Drawn) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """What the layer and its gradient give."""
    steps, batch, _ = drawn.x.shape
    bias = [drawn.bias] if CELLS[cell].has_bias else []
    forward = RecurrenceSpec("forward", cell, steps, batch, drawn.r.shape[1], reverse, dtype="f32")  # type: ignore[arg-type]
    made = run(forward, target, drawn.x, drawn.r, drawn.start, *bias)
    return made, run(replace(forward, kind="backward"), target, drawn.r, drawn.start, *made, drawn.d_y)


@pytest.mark.parametrize("name", thinned(SHAPES, 2))
@pytest.mark.parametrize("cell", CELLS)
def test_both_directions(cell: str, name: str) -> None:
    shape = SHAPES[name]
    drawn, reverse = draw(cell, shape.steps, shape.batch, shape.width), shape.width % 2 == 0
    want = by_torch(cell, reverse, drawn.x, drawn.r, drawn.start, drawn.bias, drawn.d_y)
    made, gradients = both(cell, reverse, shape.target, drawn)
    for got, wanted in zip((made[0], *gradients[:2]), want, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SHAPES)
def test_the_cases_have_the_schedules_they_are_for(name: str) -> None:
    shape = SHAPES[name]
    spec = RecurrenceSpec("backward", "lstm", shape.steps, shape.batch, shape.width, dtype="f32")
    made = plan(spec, shape.target)
    assert (made.samples, made.turns, made.parts) == (shape.samples, shape.turns, shape.parts)
    assert made.rounds == shape.rounds_of_lstm_grad
    assert made.shared_bytes <= shape.target.shared_bytes


@pytest.mark.parametrize("reverse", [False, True])
def test_the_gradients_of_products_give_the_gradient_of_the_bias(reverse: bool) -> None:
    """Of a gru, whose bias lies beside a product: the sum of their last block, against differences of the loss."""
    drawn, small = draw("gru", 3, 5, 6), 1e-5
    _, gradients = both("gru", reverse, machine(), drawn)
    d_bias = gradients[2][..., 12:].sum(axis=(0, 1))
    for place in range(6):
        losses = []
        for way in (small, -small):
            bias = drawn.bias + way * np.eye(6)[place]
            y, *_ = by_torch("gru", reverse, drawn.x, drawn.r, drawn.start, bias, drawn.d_y)
            losses.append((y * drawn.d_y).sum())
        np.testing.assert_allclose(d_bias[place], (losses[0] - losses[1]) / (2 * small), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(gradients[2][..., :12], gradients[0][..., :12])


def test_the_text_does_not_grow_with_the_steps() -> None:
    texts = []
    for steps in (10, 99):
        spec = RecurrenceSpec("forward", "lstm", steps, 2, 8, dtype="f32")
        built = build_object(spec, machine())
        texts.append(len(built.artefacts[0].content))
        assert len(built.launches) == 2
    assert texts[0] == texts[1]


def test_a_layer_that_is_too_wide() -> None:
    spec = RecurrenceSpec("backward", "lstm", 2, 2, 9000, dtype="f32")
    with pytest.raises(BuildError, match="a recurrent layer of width 9000 takes"):
        plan(spec, machine())
