"""Requests of administrators: keys, people, organisations, the audit log; a part of `Client`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from pockfarm.client.answers import decoded, json_of
from pockfarm.values import Json, parts


class AsyncTenants(ABC):
    """The caller's own organisation, and, for the farm's administrators, all of them."""

    @abstractmethod
    async def _get(self, path: str, query: Mapping[str, str | int | None] | None = None) -> Json:
        """A JSON object of the farm's."""

    @abstractmethod
    async def _send(self, method: str, path: str, *, json_body: object = None) -> httpx.Response:
        """The farm's answer to a request, which is no refusal."""

    async def _list(self, path: str) -> list[Json]:
        return list(parts({"items": decoded(await self._send("GET", path))}, "items"))

    async def organisation(self) -> Json:
        """Returns the caller's own organisation, with its quotas and how much of them it uses."""
        return await self._get("/organisation")

    async def organisations(self) -> list[Json]:
        """Every organisation (the farm's administrators), the newest first."""
        return await self._list("/organisations")

    async def add_organisation(self, name: str) -> Json:
        """A new organisation (the farm's administrators)."""
        return json_of(await self._send("POST", "/organisations", json_body={"name": name}))

    async def limit_organisation(self, organisation_id: str, quotas: Mapping[str, float | str]) -> Json:
        """Set quotas: a number, `unlimited`, or `default` (the farm's administrators)."""
        body = {"quotas": dict(quotas)}
        return json_of(await self._send("PATCH", f"/organisations/{organisation_id}", json_body=body))

    async def keep_organisation(self, organisation_id: str, rules: Mapping[str, float | str]) -> Json:
        """Set how long what it has stays: days, `forever`, or `default` (the farm's administrators)."""
        body = {"retention": dict(rules)}
        return json_of(await self._send("PATCH", f"/organisations/{organisation_id}", json_body=body))

    async def close_organisation(self, organisation_id: str) -> Json:
        """Take none of its keys from now on (the farm's administrators)."""
        return json_of(await self._send("POST", f"/organisations/{organisation_id}/close"))

    async def add_key(
        self, name: str, *, scopes: Sequence[str] | None = None, organisation_id: str | None = None, **about: Any
    ) -> Json:
        """A new key; its `secret` is in this answer only. `about`: user, lifetime_s, role."""
        path = "/keys" if organisation_id is None else f"/organisations/{organisation_id}/keys"
        body = {"name": name, **({} if scopes is None else {"scopes": list(scopes)}), **about}
        return json_of(await self._send("POST", path, json_body=body))

    async def keys(self) -> list[Json]:
        """Every key of one's organisation, revoked ones too."""
        return await self._list("/keys")

    async def revoke_key(self, key_id: str) -> Json:
        """Make a key useless from now on."""
        return json_of(await self._send("DELETE", f"/keys/{key_id}"))

    async def add_user(self, name: str) -> Json:
        """A new person of one's organisation."""
        return json_of(await self._send("POST", "/users", json_body={"name": name}))

    async def users(self) -> list[Json]:
        """Every person of one's organisation, removed ones too."""
        return await self._list("/users")

    async def remove_user(self, user_id: str) -> Json:
        """Take none of a person's keys from now on."""
        return json_of(await self._send("DELETE", f"/users/{user_id}"))

    async def audit(self, *, limit: int = 50, **chosen: str | None) -> list[Json]:
        """Who did what, the newest first; `chosen`: action, outcome, key, user, subject."""
        return list(parts(await self._get("/audit", {"limit": limit, **chosen}), "items"))
