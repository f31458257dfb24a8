"""What an id names: the farm's ids begin with the kind of thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pockfarm.errors import UsageError
from pockfarm.near import meant

if TYPE_CHECKING:
    from pockfarm.client import Client

LISTED_BY: Mapping[str, str] = {"run": "pockfarm runs", "job": "pockfarm jobs", "dev": "pockfarm devices"}


def kind_of(given: str, *kinds: str) -> str:
    """Which of the kinds the id is of. Raises: UsageError if of none."""
    kind = given.partition("_")[0]
    if kind in kinds and "_" in given:
        return kind
    begin = " or ".join(f"{one}_…" for one in kinds)
    lists = ", ".join(f"`{LISTED_BY[one]}`" for one in kinds)
    raise UsageError(f"'{given}' is no id that this takes: those are {begin}; {lists} list them")


def device_id(farm: Client, given: str) -> str:
    """The id itself, or that of the device which is called so. Raises: UsageError for none, or more than one."""
    if given.startswith("dev_") or given == "local":
        return given
    devices = [one for one in farm.devices() if one.state != "removed"]
    found = [one.id for one in devices if one.name == given]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{len(found)} devices are called '{given}': say which by its id, {' or '.join(found)}")
    names = [one.name for one in devices]
    raise UsageError(f"no device is called '{given}' (`pockfarm devices` lists them){meant(given, names)}")
