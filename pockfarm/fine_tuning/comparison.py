"""Does the exported file compute what its module does? Asked before training, of the step that was built of it.

The module answers the example and two more batches, in evaluation mode; so does the step's own forward pass. What that
does not tell (of a farm, which would have to be waited for; in half precision; a second output) the `onnx` package
evaluates. Shapes are those of the step: a file of `fine_tune` has no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.spec.documents import TrainingSpec
from compiler.trained.bring_back import manifest_of
from compiler.trained.evaluated import outputs_of
from compiler.trained.likely import likely_nodes
from compiler.warnings import few_of
from pockfarm.errors import BELOW, UsageError
from pockfarm.files.model_files import read_persistent
from pockfarm.fine_tuning.model import ImportedModel, Input, Original
from pockfarm.fine_tuning.trainer import Step, Trainer
from pockfarm.values import CompileWarning

Array = NDArray[Any]
Feeds = Mapping[str, Array]
NOT_COMPARED = "fine_tune.not_compared"
ROUNDING = 2e-5
"""Tolerance as a share of the largest output: sums of float32 in another order."""
ORDERS = 32
"""Factor by which two orders of sums may be further apart than float32 and float64 in one order."""
UNMEASURED = 1e-3
"""Tolerance as a share of the largest output, where the module does not run in float64."""


@dataclass(frozen=True)
class Draw:
    """A batch of inputs, how a message calls it, and what the module answers."""

    name: str
    feeds: Feeds
    expected: tuple[Array, ...]
    """By output, as the file has them."""


def feeds_of(example: Feeds, inputs: Mapping[str, Input]) -> Iterator[tuple[str, Feeds]]:
    """The example, its opposite, and its elements in another order: with signs of their own where it has both.

    Whole numbers stay within what the example shows; what is the same for every sample stays as it is.
    """
    yield "the example", example
    yield "the example with its signs turned and its samples reversed", _each(example, inputs, _opposite)
    random = np.random.default_rng(0)
    yield "elements of the example in another order", _each(example, inputs, lambda array, _: _drawn(array, random))


def compared(
    trainer: Trainer, brought: ImportedModel, spec: TrainingSpec, step: Step, folder: Path
) -> tuple[CompileWarning, ...]:
    """Whether the file, of which the step was built, computes what its module does; a warning where that is not shown.

    Raises: UsageError with the largest difference that rounding does not explain.
    """
    original, manifest = brought.original, manifest_of(read_persistent(step.bundle))
    if original is None:
        return ()
    draws = draws_of(original, brought.inputs)
    if not draws:
        return ()
    if _draws_itself(original, draws[0]):
        message = "gives other outputs at each call in evaluation mode, so its file was not compared with it"
        hint = "draw only where self.training is true; or compare tuned.onnx with the module yourself"
        return (CompileWarning(NOT_COMPARED, "model", message, hint),)
    outputs = list(range(len(draws[0].expected)))
    is_rounded = spec.precision != type(spec.precision)()
    if not is_rounded and {entry["name"] for entry in manifest["inputs"]} == original.example.keys():
        output = manifest["outputs"][0]
        index = original.names.index(output["name"]) if original.names else 0
        answers = answers_of(trainer, step, draws, brought.inputs, folder, output, index)
        for draw, answer in answers:
            _require_alike(brought, draw, index, output["name"], answer)
        if answers:
            outputs.remove(index)
    return _compared_by_file(brought, draws, outputs)


def _compared_by_file(brought: ImportedModel, draws: list[Draw], outputs: list[int]) -> tuple[CompileWarning, ...]:
    """The outputs that the step did not tell. Raises: as `compared`."""
    if not outputs:
        return ()
    try:
        batches = outputs_of(brought.files.model, brought.files.mapped(), [draw.feeds for draw in draws])
        for draw, values in zip(draws, batches):
            answers = list(values.items())
            for index in outputs:
                _require_alike(brought, draw, index, *answers[index])
    except ValueError as problem:
        names = brought.original.names if brought.original is not None else ()
        which = f"outputs {few_of([names[index] for index in outputs])} were" if names else "output was"
        message = f"the file's {which} not compared with the module: {problem}"
        return (CompileWarning(NOT_COMPARED, "model", message, "compare tuned.onnx with the module yourself"),)
    return ()


def draws_of(original: Original, inputs: Mapping[str, Input]) -> list[Draw]:
    """The batches that the module takes: its code may refuse those that are drawn."""
    answers = ((name, feeds, original.answer(feeds)) for name, feeds in feeds_of(original.example, inputs))
    return [Draw(name, feeds, expected) for name, feeds, expected in answers if expected is not None]


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
    trainer: Trainer,
    step: Step,
    draws: list[Draw],
    inputs: Mapping[str, Input],
    folder: Path,
    output: Mapping[str, Any],
    index: int,
) -> list[tuple[Draw, Array]]:
    """Returns the first output of the step for each draw; nothing where the step cannot be run beforehand.

    `output` is what the manifest tells of it, `index` its place in the file.
    """
    is_loss = not output["shape"]
    draws = [draw for draw in draws if not is_loss or np.isfinite(draw.expected[index]).all()]
    axis = output.get("batch_axis") or 0
    answers: list[tuple[Draw, Array]] = []
    for run in [[draw] for draw in draws] if is_loss else [draws]:
        answer = trainer.answers(step, _write_draws(run, inputs, folder / "compared.npz"), folder, is_loss=is_loss)
        if answer is not None:
            parts = [answer[0]] if is_loss else [np.moveaxis(part, 0, axis) for part in np.split(answer, len(run))]
            answers += [(draw, _as_whole(part, draw.expected[index])) for draw, part in zip(run, parts)]
    return answers


def _as_whole(answer: Array, expected: Array) -> Array:
    """Samples and positions that share the module's first axis come apart from the step."""
    is_apart = answer.ndim == expected.ndim + 1 and answer.size == expected.size
    return answer.reshape(expected.shape) if is_apart else answer


def _write_draws(draws: list[Draw], inputs: Mapping[str, Input], path: Path) -> Path:
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


def _draws_itself(original: Original, draw: Draw) -> bool:
    """True for a module that cannot be compared: two calls with the same inputs differ."""
    second = original.answer(draw.feeds)
    return second is None or not all(np.array_equal(*pair, equal_nan=True) for pair in zip(draw.expected, second))


def _require_alike(brought: ImportedModel, draw: Draw, index: int, name: str, answer: Array) -> None:
    """An output beside the module's. Raises: as `compared`."""
    original, expected = brought.original, draw.expected[index]
    assert original is not None
    if expected.shape != answer.shape:
        raise UsageError(
            f"the exported file does not compute what the module does: of {draw.name}, output {name!r} "
            f"has shape {list(answer.shape)}, and the module gives {list(expected.shape)}"
        )
    apart, allowed = _distance(answer, expected)
    if apart > allowed:
        allowed += _rounding(original, draw, index)
    if apart > allowed:
        raise _different(brought, draw, index, name, answer, allowed)


def require_alike_in_training(brought: ImportedModel) -> None:
    """A step trains norms and dropouts as the module does in training mode; whatever else changes there is not in it.

    Both sides draw the same, so that what remains is rounding. Raises: UsageError naming what changes.
    """
    original = brought.original
    for name, feeds in feeds_of(original.example, brought.inputs) if original is not None else ():
        assert original is not None
        trained = original.training(feeds)
        if trained is None:
            continue
        apart, allowed = _worst(trained.step, trained.whole)
        if apart > allowed:
            far = [path for path, arrays in trained.alone().items() if np.greater(*_worst(trained.step, arrays))]
            places = few_of([path or "the module itself" for path in far]) or "several parts together"
            raise UsageError(
                f"in training mode the module computes what no file of it tells: of {name}, its output is up "
                f"to {apart:.3g} from that of a step, which trains norms and dropouts alone, and rounding "
                f"explains {allowed:.2g}",
                hint=(
                    f"likely in forward() of {places}, which asks self.training\ntake that out for the "
                    "fine-tuning, or say batch_norm: frozen and dropout: ignore, which train in evaluation mode"
                ),
                hint_form=BELOW,
            )


def _worst(arrays: Sequence[Array], others: Sequence[Array]) -> tuple[float, float]:
    """The output that is furthest from what rounding explains: its difference, and what rounding explains."""
    return max(map(_distance, arrays, others), key=lambda distance: distance[0] - distance[1])


def _distance(array: Array, expected: Array) -> tuple[float, float]:
    """The largest difference, and what rounding explains of it."""
    if array.shape != expected.shape:
        return np.inf, 0.0
    return float(_apart(array, expected).max(initial=0.0)), ROUNDING * _scale(expected)


def _scale(array: Array) -> float:
    """The largest number in it."""
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


def _apart(answer: Array, expected: Array) -> Array:
    """Differences where the module gives a number; an answer that is none there is infinitely far away."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.atleast_1d(np.abs(answer.astype(np.float64) - expected.astype(np.float64)))
    apart[~np.isfinite(apart)] = np.inf
    apart[~np.isfinite(np.atleast_1d(expected))] = 0.0
    return apart


def _rounding(original: Original, draw: Draw, index: int) -> float:
    """Returns the distance of the module's own answer from that in float64, and so of two orders of sums from one
    another.
    """
    answers, expected = original.exact(draw.feeds), draw.expected[index]
    if answers is None:
        return UNMEASURED * _scale(expected)
    exact = np.where(np.isfinite(expected), answers[index], np.nan)
    return ORDERS * float(_apart(expected, exact).max(initial=0.0))


def _different(brought: ImportedModel, draw: Draw, index: int, name: str, answer: Array, allowed: float) -> UsageError:
    """Returns the error of a file that computes something else than the module, with the places that are likely."""
    expected = draw.expected[index]
    apart = _apart(answer, expected)
    place = np.unravel_index(int(apart.argmax()), apart.shape)
    at = f" at {[int(number) for number in place]}" if expected.ndim else ""
    answer, expected = np.atleast_1d(answer), np.atleast_1d(expected)
    original = brought.original
    assert original is not None
    likely = likely_nodes(brought.files.model, brought.files.mapped(), draw.feeds, original.parts(draw.feeds))
    return UsageError(
        f"the exported file does not compute what the module does: of {draw.name}, output {name!r} is "
        f"{answer[place]:.6g}{at}, and the module gives {expected[place]:.6g}; they are "
        f"{apart[place]:.3g} apart, and rounding explains {allowed:.2g}",
        hint=f"{likely or 'where they begin to differ could not be seen'}\n"
        "a Python `if` on data, or a number that is computed from the example, becomes a constant of the file: "
        "write it with torch.where() or as a tensor; otherwise give an ONNX file in place of the module",
        hint_form=BELOW,
    )
