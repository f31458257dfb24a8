"""Weights of a Keras or JAX model and the tensors of its ONNX file, which have other names and layouts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.errors import CompileError
from compiler.frontend.file.external_data import embedded
from compiler.trained.matching import Match, match_tensors
from pockfarm.errors import UsageError
from pockfarm.files.model_files import files_of
from pockfarm.fine_tuning.documents import literal
from pockfarm.fine_tuning.result import FineTuned


@dataclass(frozen=True)
class MatchedWeights:
    """The tensor of the file that each weight is. `absent` weights are not in the file: they do not learn."""

    weights: Mapping[str, Any]
    matches: Mapping[str, Match]

    @property
    def absent(self) -> tuple[str, ...]:
        return tuple(name for name in self.weights if name not in self.matches)

    @property
    def plan(self) -> dict[str, object]:
        """A plan that trains the matched weights and nothing else that the file may hold."""
        names = [literal(match.tensor) for match in self.matches.values()]
        return {"name": "matched", "update": [{"parameters": names}]}

    def back(self, tuned: FineTuned) -> dict[str, Any]:
        """Every weight under its own name and in its own layout, as training left it."""
        new = {name: match.back(tuned[match.tensor]) for name, match in self.matches.items()}
        return {name: new.get(name, np.asarray(weight)) for name, weight in self.weights.items()}


def match_weights(model: bytes | str | os.PathLike[str], weights: Mapping[str, Any]) -> MatchedWeights:
    """Find the weights of a model in the ONNX file that was exported from it, by their elements.

    An exporter may have transposed and reshaped them, and given them other names. Raises: UsageError where several
    tensors could be one weight (as zero biases of one size), or none is any.
    """
    arrays = {name: np.asarray(weight) for name, weight in weights.items()}
    try:
        with files_of(model) as files:
            matches = match_tensors(embedded(files.model, files.mapped()), arrays)
    except CompileError as problem:
        raise UsageError.of_compiler(problem, has_code=False) from None
    if not matches:
        raise UsageError("no weight is a tensor of the file", hint="was it exported from this model, as it is now?")
    return MatchedWeights(arrays, matches)
