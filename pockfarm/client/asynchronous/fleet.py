"""Requests of operators of many boards, and webhooks: a part of `Client`."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from pockfarm.client.answers import json_of
from pockfarm.errors import Unreachable
from pockfarm.values import Json, parts


class AsyncFleet(ABC):
    """Devices one by one, maintenance, enrolment tokens, webhooks."""

    @abstractmethod
    async def _get(self, path: str, query: Mapping[str, str | int | None] | None = None) -> Json:
        """A JSON object of the farm's."""

    @abstractmethod
    async def _send(self, method: str, path: str, *, json_body: object = None) -> httpx.Response:
        """The farm's answer to a request, which is no refusal."""

    async def device(self, device_id: str) -> Json:
        """All that the farm knows of a device: its history, what it works on, what keeps new work from it."""
        return await self._get(f"/devices/{device_id}")

    async def rename_device(self, device_id: str, name: str) -> Json:
        """Give a device another name, which no other one of its organisation has."""
        return json_of(await self._send("PATCH", f"/devices/{device_id}", json_body={"name": name}))

    async def drain(self, device_id: str, reason: str = "") -> Json:
        """Let a device finish what it has, and give it nothing new; `device(id)["working_on"]` says when it is done."""
        return json_of(await self._send("POST", f"/devices/{device_id}/drain", json_body={"reason": reason}))

    async def resume(self, device_id: str) -> Json:
        """Give a drained device work again."""
        return json_of(await self._send("POST", f"/devices/{device_id}/resume"))

    async def quarantine(self, device_id: str, reason: str = "") -> Json:
        """Give a device no more work until it is released; what it works on goes on."""
        return json_of(await self._send("POST", f"/devices/{device_id}/quarantine", json_body={"reason": reason}))

    async def release(self, device_id: str, reason: str = "") -> Json:
        """Give a quarantined device work again; its strikes are forgotten."""
        return json_of(await self._send("POST", f"/devices/{device_id}/release", json_body={"reason": reason}))

    async def set_canary(self, device_id: str, *, enabled: bool) -> Json:
        """Say whether canary runs may bring a device back that strikes have quarantined; if so, one comes soon."""
        return json_of(await self._send("POST", f"/devices/{device_id}/canary", json_body={"enabled": enabled}))

    async def remove_device(self, device_id: str) -> Json:
        """Revoke a device for ever: its credential stops working at once."""
        return json_of(await self._send("DELETE", f"/devices/{device_id}"))

    async def tag(self, device_id: str, tags: Mapping[str, str], remove: Sequence[str] = ()) -> Json:
        """Set tags of a device (a value may be empty), and take others away."""
        body = {"set": dict(tags), "remove": list(remove)}
        return json_of(await self._send("POST", f"/devices/{device_id}/tags", json_body=body))

    async def canaries(self, device_id: str) -> Json:
        """Returns the times that the farm's own models took on a device, again and again, and where these times
        changed.
        """
        return await self._get(f"/devices/{device_id}/canaries")

    async def regressions(self, device_id: str | None = None) -> list[Json]:
        """Where devices (or this one) have become slower, are so still, and nobody has acknowledged it."""
        return list(parts(await self._get("/regressions", {"device": device_id}), "items"))

    async def acknowledge(self, device_id: str, change_id: str, reason: str = "") -> Json:
        """Say that a slower device is known of."""
        path = f"/devices/{device_id}/canaries/{change_id}/acknowledge"
        return json_of(await self._send("POST", path, json_body={"reason": reason}))

    async def start_group(self, bundle_digest: str, *, count: int | None = None, **fields: Any) -> Json:
        """A run on every device that may take it, or on `count` of them, each once. `fields`: fields of
        `POST /run-groups`: mode, steps, device_class, where, dataset, name..."""
        body = {"bundle": bundle_digest, **({} if count is None else {"count": count}), **fields}
        return json_of(await self._send("POST", "/run-groups", json_body=body))

    async def group(self, group_id: str) -> Json:
        """A group with its runs."""
        return await self._get(f"/run-groups/{group_id}")

    async def groups(self) -> list[Json]:
        """Groups, the newest first."""
        return list(parts(await self._get("/run-groups"), "items"))

    async def cancel_group(self, group_id: str) -> Json:
        """Ask all of its runs to stop."""
        return json_of(await self._send("POST", f"/run-groups/{group_id}/cancel"))

    async def add_maintenance(self, starts_at: str, ends_at: str, **about: Any) -> Json:
        """Plan a time without new work (RFC 3339 with its zone); `about`: device or device_class, weekly, reason."""
        body = {"starts_at": starts_at, "ends_at": ends_at, **about}
        return json_of(await self._send("POST", "/maintenance", json_body=body))

    async def maintenance(self) -> list[Json]:
        """Maintenance windows, the newest first."""
        return list(parts(await self._get("/maintenance"), "items"))

    async def remove_maintenance(self, window_id: str) -> Json:
        return json_of(await self._send("DELETE", f"/maintenance/{window_id}"))

    # Releases of the agent

    async def offer_agent(self, **fields: Any) -> Json:
        """Offer the farm's own agent to devices that update themselves. `fields`: digest (of an earlier release), share
        or count, where (tags), rollback, most_failures."""
        return json_of(await self._send("POST", "/agent-releases", json_body=fields))

    async def agent_releases(self) -> list[Json]:
        """Releases of the agent, the newest first, and how far each is."""
        return list(parts(await self._get("/agent-releases"), "items"))

    async def agent_release(self, release_id: str) -> Json:
        """Returns a release, and its outcome on each device."""
        return await self._get(f"/agent-releases/{release_id}")

    async def widen_agent_release(self, release_id: str, **stage: Any) -> Json:
        """Let more devices have it: `share` or `count`; neither: all."""
        return json_of(await self._send("PATCH", f"/agent-releases/{release_id}", json_body=stage))

    async def halt_agent_release(self, release_id: str, reason: str = "") -> Json:
        """Offer it to no more devices."""
        return json_of(await self._send("POST", f"/agent-releases/{release_id}/halt", json_body={"reason": reason}))

    async def add_enrolment_token(self, **limits: Any) -> Json:
        """A right to enrol devices; its `token` is in this answer only. `limits`: uses, lifetime_s, device_class,
        targets, name."""
        return json_of(await self._send("POST", "/devices/enrolment-tokens", json_body=limits))

    async def enrolment_tokens(self) -> list[Json]:
        """Enrolment tokens, the newest first."""
        return list(parts(await self._get("/devices/enrolment-tokens"), "items"))

    async def enrolment_token(self, token_id: str) -> Json:
        """Returns a token, and the devices that used it."""
        return await self._get(f"/devices/enrolment-tokens/{token_id}")

    async def enrolment_address(self) -> str:
        """Where a board reaches this farm, by the script that enrols it."""
        script = (await self._send("GET", "/enrol.sh")).text
        match = re.search(r"^farm='([^']+)'$", script, re.MULTILINE)
        if match is None:
            raise Unreachable("/enrol.sh says no address of the farm", hint="is this the address of a farm?")
        return match.group(1)

    async def revoke_enrolment_token(self, token_id: str) -> Json:
        """Let no more devices in by it."""
        return json_of(await self._send("DELETE", f"/devices/enrolment-tokens/{token_id}"))

    # Webhooks

    async def add_webhook(self, url: str, *, events: Sequence[str] = ()) -> Json:
        """Be told at `url` of these events, or of all; its `secret` is in this answer only (`verify_webhook`)."""
        body = {"url": url} | ({"events": list(events)} if events else {})
        return json_of(await self._send("POST", "/webhooks", json_body=body))

    async def webhooks(self) -> list[Json]:
        """Lists the caller's webhooks, the newest first."""
        return list(parts(await self._get("/webhooks"), "items"))

    async def test_webhook(self, webhook_id: str) -> Json:
        """Send a `webhook.test` now: the delivery, whose `state` and `error` say what came of it."""
        return json_of(await self._send("POST", f"/webhooks/{webhook_id}/test"))

    async def webhook_deliveries(self, webhook_id: str) -> list[Json]:
        """Lists the latest deliveries of a webhook, the newest first."""
        return list(parts(await self._get(f"/webhooks/{webhook_id}/deliveries"), "items"))

    async def remove_webhook(self, webhook_id: str) -> Json:
        """Tell it nothing more."""
        return json_of(await self._send("DELETE", f"/webhooks/{webhook_id}"))
