"""Does the exported file compute what its module does? Asked before training, of the step that was built of it.

The module answers the example and two more batches, in evaluation mode; so does the step's own forward pass. Shapes are
those of the step: a file of `fine_tune` has no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.trained.likely import likely_nodes
from compiler.warnings import few_of
from pockfarm.errors import UsageError
from pockfarm.fine_tuning.model import Brought, Input, Original
from pockfarm.fine_tuning.trainer import Step, Trainer
from pockfarm.values import CompileWarning

Array = NDArray[Any]
Feeds = Mapping[str, Array]
ROUNDING = 2e-5
"""Of the largest output: sums of float32 in another order."""
ORDERS = 32
"""How much further apart two orders of sums may be than float32 and float64 in one order."""
UNMEASURED = 1e-3
"""Of the largest output, where the module does not run in float64."""


@dataclass(frozen=True)
class Draw:
    """A batch of inputs, how a message calls it, and what the module answers."""

    name: str
    feeds: Feeds
    meant: Array


def feeds_of(example: Feeds, inputs: Mapping[str, Input]) -> Iterator[tuple[str, Feeds]]:
    """The example, its opposite, and its elements in another order: with signs of their own where it has both.

    Whole numbers stay within what the example shows; what is the same for every sample stays as it is.
    """
    yield "the example", example
    yield "the example with its signs turned and its samples reversed", _each(example, inputs, _opposite)
    random = np.random.default_rng(0)
    yield "elements of the example in another order", _each(example, inputs, lambda array, _: _drawn(array, random))


def draws_of(original: Original, inputs: Mapping[str, Input]) -> list[Draw]:
    """The batches that the module takes: its code may refuse those that are drawn."""
    answers = ((name, feeds, original.answer(feeds)) for name, feeds in feeds_of(original.example, inputs))
    return [Draw(name, feeds, meant) for name, feeds, meant in answers if meant is not None]


def _each(example: Feeds, inputs: Mapping[str, Input], draw: Any) -> Feeds:
    axes = {name: inputs[name].batch_axis for name in example}
    return {name: array if axes[name] is None else draw(array, axes[name]) for name, array in example.items()}


def _opposite(array: Array, axis: int) -> Array:
    reversed_samples = np.flip(array, axis)
    return -reversed_samples if array.dtype.kind == "f" else reversed_samples


def _drawn(array: Array, random: np.random.Generator) -> Array:
    if array.dtype.kind in "iu":
        return random.integers(array.min(), array.max(), array.shape, array.dtype, endpoint=True)
    mixed = random.permutation(array.reshape(-1)).reshape(array.shape)
    has_both = array.dtype.kind == "f" and (array < 0).any() and (array > 0).any()
    return (mixed * random.choice([-1.0, 1.0], array.shape)).astype(array.dtype) if has_both else mixed


def answers_of(
    trainer: Trainer, step: Step, draws: list[Draw], inputs: Mapping[str, Input], folder: Path, *, is_loss: bool
) -> list[Array]:
    """What the step gives for each draw; nothing where it cannot be run beforehand."""
    runs = [[draw] for draw in draws] if is_loss else [draws]
    given = []
    for run in runs:
        answer = trainer.answers(step, _written(run, inputs, folder / "compared.npz"), folder, is_loss=is_loss)
        given += [] if answer is None else np.split(answer, len(run))
    return given


def _written(draws: list[Draw], inputs: Mapping[str, Input], path: Path) -> Path:
    """The batches one behind another, as a data set: samples first."""
    arrays: dict[str, Array] = {}
    for name, first in draws[0].feeds.items():
        axis = inputs[name].batch_axis
        batches = [draw.feeds[name] for draw in draws]
        arrays[name] = (
            first[None] if axis is None else np.concatenate([np.moveaxis(array, axis, 0) for array in batches])
        )
    np.savez(path, allow_pickle=False, **arrays)
    return path


def random_in_evaluation(original: Original, draw: Draw) -> tuple[CompileWarning, ...]:
    """Why a module cannot be compared: two calls with the same inputs differ."""
    second = original.answer(draw.feeds)
    if second is not None and np.array_equal(draw.meant, second, equal_nan=True):
        return ()
    message = "gives other outputs at each call in evaluation mode, so its file was not compared with it"
    hint = "draw only where self.training is true; or compare tuned.onnx with the module yourself"
    return (CompileWarning("fine_tune.not_compared", "model", message, hint),)


def require_alike(brought: Brought, output: Mapping[str, Any], draws: list[Draw], answers: list[Array]) -> None:
    """`answers` are the step's, `output` is what its manifest tells of them.

    Raises: UsageError with the largest difference that rounding does not explain.
    """
    original = brought.original
    assert original is not None
    for draw, answer in zip(draws, answers):
        meant = _samples_first(draw.meant, output)
        if meant.shape != answer.shape:
            raise UsageError(
                f"the exported file does not compute what the module does: of {draw.name}, output {output['name']!r} "
                f"has shape {list(answer.shape)}, and the module gives {list(meant.shape)}"
            )
        apart = _apart(answer, meant)
        scale = float(np.abs(meant[np.isfinite(meant)]).max(initial=0.0))
        allowed = ROUNDING * scale
        if apart.max(initial=0.0) > allowed:
            allowed += _rounding(original, draw, meant, scale, output)
        if apart.max(initial=0.0) > allowed:
            raise UsageError(_words(brought, draw, str(output["name"]), answer, meant, allowed))


def require_alike_in_training(brought: Brought) -> None:
    """A step trains norms and dropouts as the module does in training mode; whatever else changes there is not in it.

    Both sides draw the same, so that what remains is rounding. Raises: UsageError naming what changes.
    """
    original = brought.original
    for name, feeds in feeds_of(original.example, brought.inputs) if original is not None else ():
        assert original is not None
        given = original.training(feeds)
        if given is None:
            continue
        apart, allowed = _distance(given.step, given.whole)
        if apart > allowed:
            far = [path for path, array in given.alone().items() if _distance(given.step, array)[0] > allowed]
            places = few_of([path or "the module itself" for path in far]) or "several parts together"
            raise UsageError(
                f"in training mode the module computes what no file of it tells: of {name}, its output is up to "
                f"{apart:.3g} from that of a step, which trains norms and dropouts alone, and rounding explains "
                f"{allowed:.2g}\n  likely in forward() of {places}, which asks self.training\n  take that out for the "
                "fine-tuning, or say batch_norm: frozen and dropout: ignore, which train in evaluation mode"
            )


def _distance(array: Array, meant: Array) -> tuple[float, float]:
    """The largest difference, and what rounding explains of it."""
    if array.shape != meant.shape:
        return np.inf, 0.0
    scale = float(np.abs(meant[np.isfinite(meant)]).max(initial=0.0))
    return float(_apart(array, meant).max(initial=0.0)), ROUNDING * scale


def _apart(answer: Array, meant: Array) -> Array:
    """Differences where the module gives a number; an answer that is none there is infinitely far away."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.atleast_1d(np.abs(answer.astype(np.float64) - meant.astype(np.float64)))
    apart[~np.isfinite(apart)] = np.inf
    apart[~np.isfinite(np.atleast_1d(meant))] = 0.0
    return apart


def _rounding(original: Original, draw: Draw, meant: Array, scale: float, output: Mapping[str, Any]) -> float:
    """How far the module's own answer is from that in float64, and so two orders of sums from one another."""
    exact = original.exact(draw.feeds)
    if exact is None:
        return UNMEASURED * scale
    exact = np.where(np.isfinite(meant), _samples_first(exact, output), np.nan)
    return ORDERS * float(_apart(meant, exact).max(initial=0.0))


def _samples_first(array: Array, output: Mapping[str, Any]) -> Array:
    return np.moveaxis(array, output.get("batch_axis") or 0, 0) if array.ndim else array[None]


def _words(brought: Brought, draw: Draw, name: str, answer: Array, meant: Array, allowed: float) -> str:
    apart = _apart(answer, meant)
    place = tuple(int(index) for index in np.unravel_index(int(apart.argmax()), apart.shape))
    original = brought.original
    assert original is not None
    likely = likely_nodes(brought.files.model, brought.files.mapped(), draw.feeds, original.parts(draw.feeds))
    return (
        f"the exported file does not compute what the module does: of {draw.name}, output {name!r} is "
        f"{answer[place]:.6g} at {list(place)} (samples first), and the module gives {meant[place]:.6g}; they are "
        f"{apart[place]:.3g} apart, and rounding explains {allowed:.2g}\n"
        f"  {likely or 'where they begin to differ could not be seen'}\n"
        "  a Python `if` on data, or a number that is computed from the example, becomes a constant of the file: "
        "write it with torch.where() or as a tensor; otherwise give an ONNX file in place of the module"
    )
