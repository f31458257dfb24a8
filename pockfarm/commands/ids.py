"""Ids and the kinds of things they name: each of the farm's ids begins with its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pockfarm.errors import UsageError
from pockfarm.suggestions import did_you_mean

if TYPE_CHECKING:
    from pockfarm.client import Client

LISTED_BY: Mapping[str, str] = {"run": "pockfarm runs", "job": "pockfarm jobs", "dev": "pockfarm devices"}


def kind_of(given: str, *kinds: str) -> str:
    """Returns the kind that the id is of. Raises: UsageError if it is of none of these."""
    kind = given.partition("_")[0]
    if kind in kinds and "_" in given:
        return kind
    begin = " or ".join(f"{prefix}_…" for prefix in kinds)
    lists = ", ".join(f"`{LISTED_BY[prefix]}`" for prefix in kinds)
    raise UsageError(f"'{given}' is no id that this takes: those are {begin}", hint=f"{lists} list them")


def device_id(farm: Client, given: str) -> str:
    """The id itself, or that of the device which is called so. Raises: UsageError for none, or more than one."""
    if given.startswith("dev_") or given == "local":
        return given
    devices = [device for device in farm.devices() if device.state != "removed"]
    matches = [device.id for device in devices if device.name == given]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(f"{len(matches)} devices are called '{given}': say which by its id, {' or '.join(matches)}")
    names = [device.name for device in devices]
    raise UsageError(f"no device is called '{given}' (`pockfarm devices` lists them)", hint=did_you_mean(given, names))
