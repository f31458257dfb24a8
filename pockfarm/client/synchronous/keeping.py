# Made from pockfarm/client/asynchronous/keeping.py by scripts/synchronous.py: change that one, then `make golden`.
"""Exceptions from the retention rules. A part of `Client`."""

from __future__ import annotations

from abc import ABC, abstractmethod

import httpx

from pockfarm.client.answers import json_of
from pockfarm.errors import NotFound
from pockfarm.values import Json


class Keeping(ABC):
    """Runs by id, bundles and data sets by digest."""

    @abstractmethod
    def _send(self, method: str, path: str, *, json_body: object = None) -> httpx.Response:
        """The farm's answer to a request, which is no refusal."""

    def pin(self, what: str) -> Json:
        """Keep it, whatever the rules say: of a run its events, weights, bundle and data. Raises: NotFound, Refused."""
        return self._pin("POST", what)

    def unpin(self, what: str) -> Json:
        """Let the rules have it again."""
        return self._pin("DELETE", what)

    def _pin(self, method: str, what: str) -> Json:
        if not what.startswith("sha256:"):
            return json_of(self._send(method, f"/runs/{what}/pin"))
        try:
            return json_of(self._send(method, f"/bundles/{what}/pin"))
        except NotFound:
            return json_of(self._send(method, f"/datasets/{what}/pin"))
