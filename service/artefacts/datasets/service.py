"""Data sets in the database, and whether one fits a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import Session

from device_agents.wire import data_fit
from service.artefacts.bundles.manifest import least_scored
from service.artefacts.bundles.service import Built
from service.artefacts.datasets.arrays import ArrayInfo, samples_of
from service.base.problems import Invalid, NotFound
from service.base.settings import Settings
from service.people.holdings import service as holdings
from service.store.database.insert import insert_if_new
from service.store.database.models import Bundle, Dataset, Holding
from service.store.database.paging import newest_first
from service.store.database.scope import organisation_of
from service.store.storage import StoredFile


@dataclass(frozen=True, slots=True)
class HeldDataset:
    """A data set, and what its holder calls it."""

    dataset: Dataset
    holding: Holding


def keep(
    session: Session, stored: StoredFile, arrays: Mapping[str, ArrayInfo], *, name: str, settings: Settings
) -> HeldDataset:
    """Stores a checked data set, which the session's organisation holds from now on; the same bytes again change
    nothing.

    Raises: Forbidden (no more room).
    """
    fields = {
        "digest": stored.digest,
        "name": name,
        "size_bytes": stored.size_bytes,
        "samples": samples_of(arrays),
        "arrays": {key: info.to_json() for key, info in arrays.items()},
    }
    insert_if_new(session, Dataset, fields)
    holdings.hold_within(session, settings, "dataset", stored.digest, size_bytes=stored.size_bytes, name=name)
    return find(session, stored.digest)


def find(session: Session, digest: str, *, where: str = "digest") -> HeldDataset:
    """Returns the data set, if the session's organisation holds it. Raises: NotFound."""
    query = select(Dataset, Holding).join(Holding, _held(session)).where(Dataset.digest == digest)
    row = session.execute(query).first()
    if row is None:
        raise NotFound("dataset.unknown", f"no data set {digest}", where=where, hint="send it with POST /datasets")
    return HeldDataset(*row)


def _held(session: Session) -> ColumnElement[bool]:
    is_own = Holding.organisation_id == organisation_of(session)
    return and_(Holding.digest == Dataset.digest, Holding.kind == "dataset", is_own)


def newest(session: Session, *, limit: int, cursor: str | None) -> tuple[list[HeldDataset], str | None]:
    """Returns a page of data sets, the newest first, and the next cursor."""
    query = select(Holding).join(Dataset, _held(session))
    rows, following = newest_first(session, query, Holding.id, limit=limit, cursor=cursor)
    matches = session.scalars(select(Dataset).where(Dataset.digest.in_([row.digest for row in rows])))
    datasets = {dataset.digest: dataset for dataset in matches}
    return [HeldDataset(datasets[row.digest], row) for row in rows], following


def check_fit(dataset: Dataset, bundle: Bundle | Built, *, where: str) -> None:
    """Checks that the data set fits the bundle. `where` is the request's field that names the data set.

    Raises: Invalid if an input or labels of the bundle have no array, or one of another type, shape or range.
    """
    manifest = bundle.manifest
    try:
        data_fit.check_fit(seen_of(dataset), data_fit.inputs_of(manifest), data_fit.labels_of(manifest))
    except data_fit.Misfit as misfit:
        raise Invalid(misfit.code, misfit.message, where=f"{where}.{misfit.array}", hint=misfit.hint) from None


def remarks(dataset: Dataset, bundle: Bundle | Built) -> tuple[data_fit.Remark, ...]:
    """Returns remarks on what is odd about a data set that fits."""
    manifest = bundle.manifest
    batch = manifest.get("batch", 0)
    return data_fit.remarks(
        seen_of(dataset),
        data_fit.inputs_of(manifest),
        data_fit.labels_of(manifest),
        batch=batch if isinstance(batch, int) else 0,
    )


def seen_of(dataset: Dataset) -> dict[str, data_fit.ArraySummary]:
    """Its arrays as they were read; of those that an older release took, less is known."""
    arrays = {name: ArrayInfo.from_json(entry) for name, entry in dataset.arrays.items()}
    return {
        name: data_fit.ArraySummary(array.dtype, array.shape, array.low, array.high, array.is_whole)
        for name, array in arrays.items()
    }


def check_scored(dataset: Dataset, bundle: Bundle | Built, *, where: str) -> None:
    """Checks that there are enough samples for a mean loss. Raises: Invalid."""
    least = least_scored(bundle.manifest)
    if dataset.samples < least:
        raise Invalid(
            "data.samples",
            f"{dataset.samples} samples, the model's own loss is of a batch of {least}",
            where=where,
            hint=f"give at least {least} samples, or compile for a smaller batch",
        )
