"""Undoes the folding of norms: what a folded weight and bias learned, as a change of the author's own tensors.

Forward: weight' = weight * factor, bias' = (own_bias - mean) * factor + shift, factor = scale / sqrt(variance + eps).
Backward (what is done here, in float64): weight += (weight'_after - weight'_before) / factor, and the bias's change
goes to the norm's shift. Running statistics and a layer's own bias stay. What did not change comes back bit for bit.

A factor of 0 (a scale that was set to 0) leaves nothing to divide by, and no weight that gives weight'. Such a channel
that has learned gets scale = sqrt(variance + eps), so that its factor is 1, and weight = weight': the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ModelError
from compiler.origins import FoldedNorm, as_stored, outputs_first
from compiler.tensors import Array

Wide = NDArray[np.float64]
Original = Callable[[str], Array]
"""The author's tensor of a name, as it was before training."""
SMALLEST_FACTOR = 1e-18
"""A smaller one would make weights that float32 cannot hold of steps that it can."""


@dataclass(frozen=True)
class Unfolded:
    """The author's tensors that changed, and the names of scales of which a channel had to be set anew."""

    tensors: Mapping[str, Array]
    revived: tuple[str, ...] = ()


def unfold(norm: FoldedNorm, before: Mapping[str, Array], after: Mapping[str, Array], original: Original) -> Unfolded:
    """The tensors behind one folded norm after training. `before` and `after` are checkpoints.

    Raises: ModelError when the model has no tensor that could take what was learned.
    """
    weight_step = _step(norm.weight, before, after)
    bias_step = _step(norm.bias, before, after)
    if not weight_step.any() and not bias_step.any():
        return Unfolded({})
    spread = np.sqrt(_wide(original(norm.variance)) + norm.epsilon)
    if norm.alone:
        return Unfolded(_alone(norm, weight_step, bias_step, spread, original))
    return _with_layer(norm, weight_step, bias_step, spread, after, original)


def _alone(norm: FoldedNorm, factor_step: Wide, shift_step: Wide, spread: Wide, original: Original) -> dict[str, Array]:
    """scale' = scale / spread and shift' = shift - mean * scale' learned."""
    mean = _wide(original(norm.mean))
    changed = {
        norm.scale: _moved(original(norm.scale), factor_step * spread),
        norm.shift: _moved(original(norm.shift), shift_step + mean * factor_step),
    }
    return changed


def _with_layer(
    norm: FoldedNorm, weight_step: Wide, bias_step: Wide, spread: Wide, after: Mapping[str, Array], original: Original
) -> Unfolded:
    weight, scale = original(norm.weight), original(norm.scale)
    factor = _wide(scale) / spread
    step = outputs_first(weight_step, norm.transposed_groups)
    dead = (np.abs(factor) < SMALLEST_FACTOR) & step.reshape(len(step), -1).any(axis=1)
    divisor = np.where(np.abs(factor) < SMALLEST_FACTOR, 1.0, factor)
    along = (-1, *[1] * (weight.ndim - 1))
    moved = _moved(outputs_first(weight, norm.transposed_groups), step / divisor.reshape(along))
    # A dead channel's output was shift alone; with a factor of 1 the mean and the layer's own bias show through.
    through = np.where(dead, _wide(original(norm.mean)) - _own_bias(norm, original), 0.0)
    tensors: dict[str, Array] = {}
    if dead.any():
        moved = np.where(dead.reshape(along), outputs_first(after[norm.weight], norm.transposed_groups), moved)
        tensors[norm.scale] = np.where(dead, spread, scale).astype(scale.dtype)
    tensors[norm.weight] = as_stored(moved, norm.transposed_groups)
    if bias_step.any() or through.any():
        _require_bias(norm, dead)
        change = bias_step + through if norm.takes_bias == norm.shift else bias_step / divisor
        tensors[norm.takes_bias] = _moved(original(norm.takes_bias), change)
    return Unfolded(tensors, (norm.scale,) if dead.any() else ())


def _own_bias(norm: FoldedNorm, original: Original) -> Wide:
    return _wide(original(norm.own_bias)) if norm.own_bias else np.zeros(1)


def _require_bias(norm: FoldedNorm, dead: NDArray[np.bool_]) -> None:
    if not norm.takes_bias or (bool(dead.any()) and norm.takes_bias != norm.shift):
        raise ModelError(
            "has no bias that could take what the folded one learned",
            where=f"norm {norm.scale!r}",
            hint="say batch_norm: frozen in the spec",
        )


def _step(name: str, before: Mapping[str, Array], after: Mapping[str, Array]) -> Wide:
    return _wide(after[name]) - _wide(before[name]) if name else np.zeros(1)


def _moved(array: Array, step: Wide) -> Array:
    """The array with a step added in float64; where the step is 0, the very same elements."""
    moved = (_wide(array) + step).astype(array.dtype)
    return np.asarray(np.where(step == 0, array, moved))


def _wide(array: Array) -> Wide:
    return array.astype(np.float64)
