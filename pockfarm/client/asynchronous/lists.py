"""Compiles, runs and devices, the newest first, page after page. A part of `Client`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from pockfarm.client.arguments import is_meant, refuse_unknown
from pockfarm.client.calls import AsyncGet, Filters
from pockfarm.values import (
    Bundle,
    Dataset,
    Device,
    Job,
    Json,
    Run,
    bundle_of,
    dataset_of,
    device_of,
    job_of,
    optional_text,
    parts,
    run_of,
)

ALL = 1 << 20
RUN_FILTERS = (
    "state",
    "mode",
    "bundle",
    "target",
    "device",
    "measurement_class",
    "verdict",
    "model",
    "plan",
    "group",
    "limit",
)
PAGE = 200
"""The most that a farm gives at a time."""


class AsyncLists(ABC):
    """Filters are those of the API, by name; `limit`: how many at most (50 jobs or runs unless it is said)."""

    @abstractmethod
    async def _get(self, path: str, query: Mapping[str, str | int | None] | None = None) -> Json:
        """A JSON object of the farm's."""

    async def jobs(self, **filters: str | int | None) -> list[Job]:
        """The newest compiles. `filters`: state (or `open`), target, model, plan, limit."""
        refuse_unknown("jobs", filters, ("state", "target", "model", "plan", "limit"))
        return [job_of(item) for item in await newest(self._get, "/jobs", filters)]

    async def runs(self, **filters: str | int | None) -> list[Run]:
        """The newest runs. `filters`: state (or `open`), mode, bundle, target, device, measurement_class, verdict,
        model, plan, group, limit."""
        refuse_unknown("runs", filters, RUN_FILTERS)
        return [run_of(item) for item in await newest(self._get, "/runs", filters)]

    async def devices(self, filter: str | None = None, **filters: str | int | None) -> list[Device]:
        """All devices, the newest first: those that `filter` names, by id, name, class, target or tag (globs too).

        `filters`: state, device_class, measurement_class, limit.
        """
        refuse_unknown("devices", filters, ("state", "device_class", "measurement_class", "limit"))
        query = {**filters, "limit": filters.get("limit") or ALL}
        listed = [device_of(item) for item in await newest(self._get, "/devices", query)]
        return [device for device in listed if filter is None or is_meant(device, filter)]

    async def bundles(self, **filters: str | int | None) -> list[Bundle]:
        """The newest bundles. `filters`: target, model_digest, plan, limit."""
        refuse_unknown("bundles", filters, ("target", "model_digest", "plan", "limit"))
        return [bundle_of(item) for item in await newest(self._get, "/bundles", filters)]

    async def datasets(self, **filters: str | int | None) -> list[Dataset]:
        """The newest data sets. `filters`: limit."""
        refuse_unknown("datasets", filters, ("limit",))
        return [dataset_of(item) for item in await newest(self._get, "/datasets", filters)]

    async def dataset(self, digest: str) -> Dataset:
        """A data set: its arrays, and when it came."""
        return dataset_of(await self._get(f"/datasets/{digest}"))


async def newest(get: AsyncGet, path: str, filters: Filters) -> list[Json]:
    """Items of a list: its first page, or, with a `limit`, as many as that, page after page."""
    limit = filters.get("limit")
    if limit is None:
        return list(parts(await get(path, filters), "items"))
    items: list[Json] = []
    cursor: str | None = None
    while (remaining := int(limit) - len(items)) > 0:
        page = await get(path, {**filters, "limit": min(remaining, PAGE), "cursor": cursor})
        items += parts(page, "items")
        cursor = optional_text(page, "next")
        if cursor is None:
            break
    return items
