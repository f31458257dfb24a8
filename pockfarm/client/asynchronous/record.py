"""Proofs of the farm's record: receipts, statements and the log of results. A part of `Client`."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping

from pockfarm.values import Json, number, parts


class AsyncRecord(ABC):
    """Signed files as the farm gives them; `pockfarm.verification` says what they are worth."""

    @abstractmethod
    async def _get(self, path: str, query: Mapping[str, str | int | None] | None = None) -> Json:
        """A JSON object of the farm's."""

    async def receipt(self, of: str) -> Json:
        """Returns the proof of a run's result, or of a bundle's origin (by its digest), that holds without the farm
        (`pockfarm verify`).
        """
        return await self._get(f"/bundles/{of}/statement" if of.startswith("sha256:") else f"/runs/{of}/receipt")

    async def log_head(self) -> bytes:
        """The size and root of the log of results now, signed."""
        return json.dumps(await self._get("/log/head"), sort_keys=True).encode()

    async def log_heads(self, after: int) -> AsyncIterator[bytes]:
        """Those that the farm has kept, of more results than `after`, the oldest first."""
        while heads := parts(await self._get("/log/heads", {"after": after}), "heads"):
            for head in heads:
                yield json.dumps(head["paper"], sort_keys=True).encode()
            after = int(number(heads[-1], "size"))

    async def log_proof(self, first: int, second: int) -> tuple[str, ...]:
        """The hashes that show the log of `first` results to be the beginning of that of `second`."""
        hashes = (await self._get("/log/consistency", {"first": first, "second": second}))["proof"]
        return tuple(map(str, hashes)) if isinstance(hashes, list) else ()
