"""The axis of each input that holds the samples: what the spec says, what the file's symbols say, else the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from compiler.errors import ModelShapeError
from compiler.frontend.file.source import SourceInput
from compiler.warnings import CompileWarning

BatchAxis = int | Literal["none"]
"""The batch axis as a spec gives it; none: the input is the same for every sample."""
Axes = Mapping[str, int | None]
"""The axis of the samples by input; None: the same for every sample."""
_WORD = "batch"


def batch_axes(
    inputs: Sequence[SourceInput], bound: Mapping[str, tuple[int, ...]], batch: int, declared: Mapping[str, BatchAxis]
) -> tuple[Axes, tuple[CompileWarning, ...]]:
    """The axes, and what is to be said of those that were guessed.

    A guess is an axis whose symbol speaks of the batch where the first one's does not, and that an input with 1 in its
    first axis is the same for every sample beside others that have the batch. Raises: ModelShapeError.
    """
    axes: dict[str, int | None] = {}
    warnings: list[CompileWarning] = []
    for value in inputs:
        if value.name in declared:
            axes[value.name] = _declared_axis(value, bound, declared[value.name])
    symbols = {value.shape[axis] for value in inputs for axis in [axes.get(value.name)] if value.shape and axis}
    for value in inputs:
        if value.name not in axes:
            axes[value.name], guess = _implied_axis(value, symbols)
            if guess:
                axis = axes[value.name]
                warnings.append(_assumed(value, f"axis {axis} is taken as the batch, by its name", axis))
    for value in inputs:
        others = {name: axis for name, axis in axes.items() if name != value.name}
        if value.name not in declared and _is_one(value, bound, batch) and _some_hold(inputs, others, batch):
            axes[value.name] = None
            warnings.append(_assumed(value, "its first axis is 1: it is taken as the same for every sample", None))
    return axes, tuple(warnings)


def _declared_axis(value: SourceInput, bound: Mapping[str, tuple[int, ...]], axis: BatchAxis) -> int | None:
    shape = value.shape if value.shape is not None else bound.get(value.name)
    if axis == "none":
        return None
    if shape is not None and axis >= len(shape):
        raise ModelShapeError(f"has no axis {axis} for the batch: its rank is {len(shape)}", where=_place(value))
    return axis


def _implied_axis(value: SourceInput, symbols: set[int | str | None]) -> tuple[int | None, bool]:
    """The axis, and whether it is a guess."""
    shape = value.shape
    if shape is None:
        return 0, False
    if not shape:
        return None, False
    same = [axis for axis, extent in enumerate(shape) if isinstance(extent, str) and extent in symbols]
    if len(same) == 1:
        return same[0], False
    batch_named = [axis for axis, extent in enumerate(shape) if isinstance(extent, str) and _WORD in extent.lower()]
    if len(batch_named) == 1 and batch_named[0] != 0:
        return batch_named[0], True
    return 0, False


def _is_one(value: SourceInput, bound: Mapping[str, tuple[int, ...]], batch: int) -> bool:
    return batch != 1 and bool(value.shape) and value.shape is not None and value.shape[0] == 1


def _some_hold(inputs: Sequence[SourceInput], axes: Axes, batch: int) -> bool:
    """Whether one of these inputs has an open axis, or one of the right extent, where its samples are to be."""
    for value in inputs:
        axis, shape = axes.get(value.name), value.shape
        if (
            axis is not None
            and shape
            and axis < len(shape)
            and (not isinstance(shape[axis], int) or shape[axis] == batch)
        ):
            return True
    return False


def _assumed(value: SourceInput, message: str, axis: int | None) -> CompileWarning:
    number = "null" if axis is None else axis
    other = "the axis of its samples" if axis is None else "null for the same in every sample"
    hint = f"say it, as in inputs: {{{value.name}: {{batch_axis: {number}}}}}; or {other}"
    return CompileWarning("model.batch_axis_assumed", _place(value), f"{list(value.shape or ())}: {message}", hint)


def _place(value: SourceInput) -> str:
    return f"input {value.name!r}"
