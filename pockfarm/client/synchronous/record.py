# Made from pockfarm/client/asynchronous/record.py by scripts/synchronous.py: change that one, then `make golden`.
"""Proofs of the farm's record: receipts, statements and the log of results. A part of `Client`."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

from pockfarm.values import Json, number, parts


class Record(ABC):
    """Signed files as the farm gives them; `pockfarm.verification` says what they are worth."""

    @abstractmethod
    def _get(self, path: str, query: Mapping[str, str | int | None] | None = None) -> Json:
        """A JSON object of the farm's."""

    def receipt(self, of: str) -> Json:
        """Returns the proof of a run's result, or of a bundle's origin (by its digest), that holds without the farm
        (`pockfarm verify`).
        """
        return self._get(f"/bundles/{of}/statement" if of.startswith("sha256:") else f"/runs/{of}/receipt")

    def log_head(self) -> bytes:
        """The size and root of the log of results now, signed."""
        return json.dumps(self._get("/log/head"), sort_keys=True).encode()

    def log_heads(self, after: int) -> Iterator[bytes]:
        """Those that the farm has kept, of more results than `after`, the oldest first."""
        while heads := parts(self._get("/log/heads", {"after": after}), "heads"):
            for head in heads:
                yield json.dumps(head["paper"], sort_keys=True).encode()
            after = int(number(heads[-1], "size"))

    def log_proof(self, first: int, second: int) -> tuple[str, ...]:
        """The hashes that show the log of `first` results to be the beginning of that of `second`."""
        hashes = (self._get("/log/consistency", {"first": first, "second": second}))["proof"]
        return tuple(map(str, hashes)) if isinstance(hashes, list) else ()
