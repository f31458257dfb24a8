"""Names of tensors in checkpoints: a parameter keeps exactly its own, and what we add gives way to it.

Optimizer state is `optimizer.<kind>.<parameter>`, a constant `constant.<digest of its elements>`. Where a parameter of
the model has such a name itself, ours begin with `optimizer'.` or `constant'.` instead, with as many marks as it takes.
That follows from the names of the model's parameters alone, so it is the same in every build of the model; and a
constant of another build has the same name only if it has the same elements.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Collection, Iterator
from typing import get_args

import numpy as np

from compiler.errors import ModelError
from compiler.graph import Array
from compiler.values import StateKind

_DIGEST = "[0-9a-f]{16}'*"
RESERVED = "__metadata__"
"""No tensor of a safetensors file can have this name."""


class CheckpointNames:
    """Names for one model's tensors, no two alike."""

    def __init__(self, parameters: Collection[str]) -> None:
        """Raises: ModelError for a parameter that the format has no room for."""
        if RESERVED in parameters:
            raise ModelError(
                f"a parameter is called {RESERVED!r}, which safetensors, the checkpoints' format, keeps for itself",
                where=RESERVED,
                hint="rename it",
            )
        parameters = frozenset(parameters)
        kinds = get_args(StateKind)
        self._optimizer = next(
            prefix
            for prefix in _prefixes("optimizer")
            if not any(f"{prefix}{kind}.{name}" in parameters for kind in kinds for name in parameters)
        )
        self._constant = next(
            prefix
            for prefix in _prefixes("constant")
            if not any(re.fullmatch(re.escape(prefix) + _DIGEST, name) for name in parameters)
        )
        self._constants: set[str] = set()

    def state(self, kind: str, parameter: str) -> str:
        """The name of what the optimizer keeps for a parameter."""
        return f"{self._optimizer}{kind}.{parameter}"

    def constant(self, array: Array) -> str:
        """The name of a constant; of several with equal elements, each call gives another."""
        content = f"{array.dtype.str}{array.shape}".encode() + np.ascontiguousarray(array).tobytes()
        name = f"{self._constant}{hashlib.sha256(content).hexdigest()[:16]}"
        while name in self._constants:
            name += "'"
        self._constants.add(name)
        return name


def _prefixes(word: str) -> Iterator[str]:
    marks = "'"
    return (f"{word}{marks * count}." for count in itertools.count())
