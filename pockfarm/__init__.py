"""PockFarm for people: `pockfarm.fine_tune`, the Python client (`pockfarm.client.Farm`) and the `pockfarm` command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from pockfarm.fine_tuning import FineTuned, MatchedWeights, apply_delta, fine_tune, give_biases, match_weights

__all__ = ["FineTuned", "MatchedWeights", "apply_delta", "fine_tune", "give_biases", "match_weights"]


def __getattr__(name: str) -> Any:
    """What needs NumPy and the compiler, or a look at files, is loaded when it is asked for."""
    if name == "__version__":
        from pockfarm.version import version

        return version()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pockfarm import fine_tuning

    return getattr(fine_tuning, name)
