"""A module made ready for the biases that a plan created."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def give_biases(module: Any, state: Mapping[str, Any]) -> tuple[str, ...]:
    """Give a PyTorch module the biases that `state` has and it lacks, as if its layers were made with `bias=True`.

    They begin as zeros: `module.load_state_dict(state)` fills them. Returns their names.
    Raises: UsageError, before anything changes, for a layer that has no place for a bias.
    """
    from pockfarm.fine_tuning.torch_biases import give_biases as give

    return give(module, state)
