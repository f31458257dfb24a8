"""The one way to train from Python: a model in, the same model's weights back (`pockfarm.fine_tune`)."""

from __future__ import annotations

from pockfarm.fine_tuning.biases import give_biases
from pockfarm.fine_tuning.deltas import apply_delta
from pockfarm.fine_tuning.local import fine_tune
from pockfarm.fine_tuning.matching import MatchedWeights, match_weights
from pockfarm.fine_tuning.result import FineTuned

__all__ = ["FineTuned", "MatchedWeights", "apply_delta", "fine_tune", "give_biases", "match_weights"]
