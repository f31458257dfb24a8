"""The wants of a run beyond target, class and id of a device: tags, a data set of the device's own, a mode.

A want is a short text, and so is what a device offers: `tag:gpu`, `tag:rack=7`, `data:digits`, `data:digits@sha256:…`,
`mode:compare` (of the modes that not every agent takes).
A device fits if it offers all that is wanted, so leasing compares sets and knows neither tags nor data sets.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from device_agents.wire import FIRST_MODES
from service.base.problems import Invalid
from service.store.database.models import Device

TAG, DATA, MODE = "tag:", "data:", "mode:"
TAG_KEY = r"[a-z0-9][a-z0-9._/-]{0,62}"
TAG_VALUE = r"[A-Za-z0-9][A-Za-z0-9._:@+/ -]{0,99}"
CONDITION = re.compile(f"(?P<key>{TAG_KEY})(?:=(?P<value>{TAG_VALUE}))?")
OWN_DATA = re.compile(r"device:(?P<name>[a-z0-9][a-z0-9._-]{0,62})(?:@(?P<digest>sha256:[0-9a-f]{64}))?")
SHOWN = 12


def offers(device: Device) -> frozenset[str]:
    """Returns everything that the device offers."""
    return offers_of(device.tags, device.own_datasets, device.modes)


def offers_of(
    tags: Mapping[str, str], own_datasets: Iterable[Mapping[str, Any]], modes: Iterable[str]
) -> frozenset[str]:
    """Returns the offers of a device with these tags, data sets and further modes."""
    offers = {f"{TAG}{key}" for key in tags}
    offers |= {f"{TAG}{key}={value}" for key, value in tags.items() if value}
    for dataset in own_datasets:
        offers |= {f"{DATA}{dataset['name']}", f"{DATA}{dataset['name']}@{dataset['digest']}"}
    return frozenset(offers | {f"{MODE}{mode}" for mode in modes})


def wants_of(where: Iterable[str], data: tuple[str, str | None] | None, mode: str = "") -> tuple[str, ...]:
    """Returns the wants of a request, in the fixed order in which they are stored. Raises: Invalid."""
    wants = {f"{TAG}{condition}" for condition in where}
    wants |= {f"{MODE}{mode}"} if mode and mode not in FIRST_MODES else set()
    for condition in where:
        if not CONDITION.fullmatch(condition):
            raise Invalid(
                "run.where",
                f"{condition!r:.120} is no condition on a tag",
                where="where",
                hint="`key` (the device has it) or `key=value`; keys are lower case",
            )
    if data is not None:
        name, digest = data
        wants.add(f"{DATA}{name}@{digest}" if digest else f"{DATA}{name}")
    return tuple(sorted(wants))


def own_data(dataset: str | None) -> tuple[str, str | None] | None:
    """Returns the name and the digest (if there is one) of `device:NAME[@DIGEST]`; None for anything else."""
    match = OWN_DATA.fullmatch(dataset or "")
    return (match["name"], match["digest"]) if match else None


def lacking(wants: Collection[str], device: Device) -> str:
    """Says in words what the device lacks of what is wanted; empty if nothing."""
    missing = sorted(set(wants) - offers(device))
    tags = [want.removeprefix(TAG) for want in missing if want.startswith(TAG)]
    data = [want.removeprefix(DATA) for want in missing if want.startswith(DATA)]
    lacks = [f"lacks the tag{'s' if len(tags) > 1 else ''} {', '.join(tags)}"] if tags else []
    for dataset in data:
        name, _, digest = dataset.partition("@")
        lacks.append(f"has no data set {name}" + (f" with the digest {digest[:19]}..." if digest else ""))
    lacks += [f"takes no runs of mode {want.removeprefix(MODE)}" for want in missing if want.startswith(MODE)]
    return " and ".join(lacks)


def check_known(session: Session, wants: Collection[str]) -> None:
    """Checks that some device of the farm offers each want. Raises: Invalid, which lists what is offered."""
    if not wants:
        return
    devices = session.scalars(select(Device).where(Device.state != "removed")).all()
    there = frozenset().union(*(offers(device) for device in devices))
    for want in wants:
        if want not in there:
            raise _unknown(want, there, devices)


def _unknown(want: str, there: Collection[str], devices: Collection[Device]) -> Invalid:
    if want.startswith(DATA):
        name, _, digest = want.removeprefix(DATA).partition("@")
        datasets = [
            f"{device.name} has {dataset['name']}@{dataset['digest']}"
            for device in devices
            for dataset in device.own_datasets
            if not digest or dataset["name"] == name
        ]
        message = f"no device of this farm has a data set {name!r}" + (f" with the digest {digest}" if digest else "")
        return Invalid(
            "run.own-data-unknown",
            f"{message}; {_some(datasets) or 'none has one of its own'}",
            where="dataset",
            hint="allow it on a board (its agent's --data NAME=PATH), or say `allow_waiting`",
        )
    if want.startswith(MODE):
        mode = want.removeprefix(MODE)
        return Invalid(
            "run.mode-unknown",
            f"no device of this farm takes runs of mode {mode}",
            where="mode",
            hint="update the agent of a board (emulated ones never do), or say `allow_waiting`",
        )
    condition = want.removeprefix(TAG)
    tags = sorted(offer.removeprefix(TAG) for offer in there if offer.startswith(TAG))
    near = difflib.get_close_matches(condition, tags, n=2, cutoff=0.6)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    there_is = f"there are {_some(tags)}" if tags else "no device has tags"
    return Invalid(
        "run.tag-unknown",
        f"no device of this farm has the tag {condition}; {there_is}",
        where="where",
        hint=f"{meant}or say `allow_waiting` to wait for such a device",
    )


def _some(names: Collection[str]) -> str:
    first = list(names)[:SHOWN]
    return ", ".join(first) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def own_dataset(device: Device, name: str) -> Mapping[str, Any] | None:
    """Returns the device's description of its data set of that name."""
    return next((dataset for dataset in device.own_datasets if dataset["name"] == name), None)


def own_digest(device: Device, name: str | None) -> str | None:
    """Returns the digest of the device's data set of that name, as the device has it now."""
    dataset = own_dataset(device, name) if name is not None else None
    return str(dataset["digest"]) if dataset is not None else None
