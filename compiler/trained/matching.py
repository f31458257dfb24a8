"""The pairs of an ONNX file's tensors and the weights of the model that it was exported from, where names do not tell.

Exporters of Keras and JAX rename, transpose and reshape weights; what they hold stays. So a weight is the tensor with
its elements, in whatever order of axes; two that could be it are an error, not a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import onnx
from onnx import numpy_helper

from compiler.errors import ModelError
from compiler.frontend.file.stored_tensors import stored_tensors
from compiler.tensors import Array

MAX_AXES = 6
"""The most axes of a weight, not counting axes of extent 1: so many orders are tried."""
TOLERANCE = 1e-5
"""Relative: an exporter that folds something in computes with rounding of its own."""


@dataclass(frozen=True)
class Match:
    """A weight of shape `shape` is the file's tensor: weight.transpose(perm).reshape(its shape)."""

    tensor: str
    shape: tuple[int, ...]
    perm: tuple[int, ...]

    def back(self, tensor: Array) -> Array:
        """The weight that the file's tensor stands for."""
        turned = tensor.reshape([self.shape[axis] for axis in self.perm])
        return np.ascontiguousarray(turned.transpose(np.argsort(self.perm)))


def match_tensors(model: bytes, weights: Mapping[str, Array]) -> dict[str, Match]:
    """Weight -> the stored tensor of the file that it became; a weight that the file does not hold has none.

    Raises: ModelError naming the weight and the tensors, where several could be it.
    """
    proto = onnx.ModelProto()
    proto.ParseFromString(model)
    stored = {tensor.name: numpy_helper.to_array(tensor.tensor) for tensor in stored_tensors(proto).values()}
    tensors = {name: array for name, array in stored.items() if array.dtype.kind == "f" and array.size}
    matched_tensors: dict[str, Match] = {}
    matched: dict[str, str] = {}
    for name, weight in weights.items():
        matches = _matches(np.asarray(weight), tensors)
        if len(matches) > 1:
            raise _ambiguous(name, matches)
        for match in matches:
            if match.tensor in matched:
                raise ModelError(
                    f"{matched[match.tensor]!r} and {name!r} hold the same elements as {match.tensor!r}",
                    where=f"weight {name!r}",
                    hint=_APART,
                )
            matched[match.tensor], matched_tensors[name] = name, match
    return matched_tensors


_APART = "weights of a trained model differ; of a fresh one, give each values of its own before the export"


def _ambiguous(name: str, matches: list[Match]) -> ModelError:
    tensors = sorted({match.tensor for match in matches})
    what = (
        f"{', '.join(map(repr, tensors[:3]))} could each be it"
        if len(tensors) > 1
        else (f"it fits {tensors[0]!r} in {len(matches)} orders of its axes")
    )
    return ModelError(what, where=f"weight {name!r}", hint=_APART)


def _matches(weight: Array, tensors: Mapping[str, Array]) -> list[Match]:
    """Returns every tensor, and every order of axes that gives other elements there."""
    matches = []
    in_order = np.sort(weight, axis=None)
    for name, tensor in tensors.items():
        if tensor.size != weight.size or not _same(in_order, np.sort(tensor, axis=None)):
            continue
        matches += [
            Match(name, weight.shape, perm) for perm in _orders(weight) if _same(_turned(weight, perm, tensor), tensor)
        ]
    return matches


def _turned(weight: Array, perm: tuple[int, ...], tensor: Array) -> Array:
    return weight.transpose(perm).reshape(tensor.shape)


def _orders(weight: Array) -> Iterator[tuple[int, ...]]:
    """Orders of the axes; those of extent 1 stay behind the others, where they change nothing."""
    wide = [axis for axis, extent in enumerate(weight.shape) if extent > 1]
    narrow = [axis for axis, extent in enumerate(weight.shape) if extent == 1]
    if len(wide) <= MAX_AXES:
        yield from ((*order, *narrow) for order in permutations(wide))


def _same(first: Array, second: Array) -> bool:
    return bool(np.allclose(first, second, rtol=TOLERANCE, atol=0))
