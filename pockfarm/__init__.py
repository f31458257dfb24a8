"""PockFarm for people: `pockfarm.fine_tune`, `pockfarm.Client` (and `AsyncClient`), and the `pockfarm` command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from pockfarm.client import AsyncClient, Client
    from pockfarm.fine_tuning import FineTuned, MatchedWeights, apply_delta, fine_tune, give_biases, match_weights

__all__ = [
    "AsyncClient",
    "Client",
    "FineTuned",
    "MatchedWeights",
    "apply_delta",
    "fine_tune",
    "give_biases",
    "match_weights",
]


OF_THE_CLIENT = frozenset({"AsyncClient", "Client"})


def __getattr__(name: str) -> Any:
    """Loads names that need NumPy and the compiler, or that read files, when they are first used."""
    if name == "__version__":
        from pockfarm.version import version

        return version()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in OF_THE_CLIENT:
        from pockfarm import client

        return getattr(client, name)
    from pockfarm import fine_tuning

    return getattr(fine_tuning, name)
