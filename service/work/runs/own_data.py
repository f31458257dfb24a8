"""Whether data sets that stay on devices fit a bundle, by what the devices say of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.artefacts.bundles.service import Built
from service.artefacts.datasets import service as datasets
from service.base.problems import Invalid
from service.devices.wants import offers, own_dataset, wants_of
from service.store.database.models import Dataset, Device
from service.work.runs.schemas import RunCreate


def check_fit(session: Session, body: RunCreate, bundle: Built) -> None:
    """Checks that the local data set of every device that may take the run fits the bundle.

    Raises: Invalid, as for a data set that was sent, naming the device. Where no such device is there yet, the agent
    finds out.
    """
    assert body.own_data is not None
    for device, description in _meant(session, body, bundle):
        dataset = _as_sent(description)
        try:
            datasets.check_fit(dataset, bundle, where="dataset")
            if body.settings.needs_data:
                datasets.check_scored(dataset, bundle, where="dataset")
        except Invalid as problem:
            raise Invalid(
                problem.code,
                f"on {device.name}: {problem.detail}",
                where=problem.where,
                hint=f"{problem.hint}; or name another device, tag or digest",
            ) from None


def _meant(session: Session, body: RunCreate, bundle: Built) -> Iterator[tuple[Device, Mapping[str, Any]]]:
    assert body.own_data is not None
    requirements = frozenset(wants_of(body.where, body.own_data, body.mode))
    query = select(Device).where(Device.state != "removed")
    query = query if body.device is None else query.where(Device.id == body.device)
    query = query if body.device_class is None else query.where(Device.device_class == body.device_class)
    for device in session.scalars(query):
        description = own_dataset(device, body.own_data[0])
        if description is not None and bundle.target in device.targets and requirements <= offers(device):
            yield device, description


def _as_sent(description: Mapping[str, Any]) -> Dataset:
    """Puts the device's description into the form of a row; it is none, and is not kept."""
    arrays = {array["name"]: {"dtype": array["dtype"], "shape": array["shape"]} for array in description["arrays"]}
    return Dataset(
        digest=description["digest"], name=description["name"], samples=description["samples"], arrays=arrays
    )
