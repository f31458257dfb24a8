"""Data sets in the database, and whether one fits a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import Session

from service.bundles.manifest import LABELS, InputSpec, label_inputs, least_scored, model_inputs
from service.bundles.service import Built
from service.database.insert import insert_if_new
from service.database.models import Bundle, Dataset, Holding
from service.database.paging import newest_first
from service.database.scope import organisation_of
from service.datasets.arrays import ArrayInfo, samples_of
from service.holdings import service as holdings
from service.problems import Invalid, NotFound
from service.settings import Settings
from service.storage import StoredFile

DTYPE_NAMES = {"f32": "float32", "i64": "int64", "i32": "int32", "bool": "bool"}
LABEL_DTYPES = ("int64", "int32")


@dataclass(frozen=True, slots=True)
class Held:
    """A data set, and what its holder calls it."""

    dataset: Dataset
    holding: Holding


def keep(
    session: Session, stored: StoredFile, arrays: Mapping[str, ArrayInfo], *, name: str, settings: Settings
) -> Held:
    """A checked data set, which the session's organisation holds from now on; the same bytes again change nothing.

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


def find(session: Session, digest: str, *, where: str = "digest") -> Held:
    """The data set, if the session's organisation holds it. Raises: NotFound."""
    query = select(Dataset, Holding).join(Holding, _held(session)).where(Dataset.digest == digest)
    row = session.execute(query).first()
    if row is None:
        raise NotFound("dataset.unknown", f"no data set {digest}", where=where, hint="send it with POST /datasets")
    return Held(*row)


def _held(session: Session) -> ColumnElement[bool]:
    mine = Holding.organisation_id == organisation_of(session)
    return and_(Holding.digest == Dataset.digest, Holding.kind == "dataset", mine)


def newest(session: Session, *, limit: int, cursor: str | None) -> tuple[list[Held], str | None]:
    """A page of data sets, the newest first, and the next cursor."""
    query = select(Holding).join(Dataset, _held(session))
    rows, following = newest_first(session, query, Holding.id, limit=limit, cursor=cursor)
    found = session.scalars(select(Dataset).where(Dataset.digest.in_([row.digest for row in rows])))
    datasets = {dataset.digest: dataset for dataset in found}
    return [Held(datasets[row.digest], row) for row in rows], following


def check_fit(dataset: Dataset, bundle: Bundle | Built, *, where: str) -> None:
    """`where` is the request's field that names the data set.

    Raises: Invalid if an input of the bundle has no array, or one of another type or shape.
    """
    inputs, labels = model_inputs(bundle.manifest), label_inputs(bundle.manifest)
    taken = frozenset(spec.name for spec in labels)
    for spec in inputs:
        name, info = _array_of(dataset, spec, taken, where, is_only=len(inputs) == 1)
        _check_shape(f"{where}.{name}", info, spec, dataset.samples)
        wanted = DTYPE_NAMES.get(spec.dtype, spec.dtype)
        if info.dtype != wanted:
            raise Invalid(
                "data.dtype",
                f"array {name!r} holds {info.dtype}, the model's input {spec.name!r} is {wanted}",
                where=f"{where}.{name}",
                hint=f"convert with array.astype(numpy.{wanted})",
            )
    for spec in labels:
        _check_labels(dataset, spec, where)


def check_scored(dataset: Dataset, bundle: Bundle | Built, *, where: str) -> None:
    """That there are samples enough for a mean loss. Raises: Invalid."""
    least = least_scored(bundle.manifest)
    if dataset.samples < least:
        raise Invalid("data.samples", f"{dataset.samples} samples, the model's own loss is of a batch of {least}",
                      where=where, hint=f"give at least {least} samples, or compile for a smaller batch")  # fmt: skip


def _array_of(
    dataset: Dataset, spec: InputSpec, labels: frozenset[str], where: str, *, is_only: bool
) -> tuple[str, ArrayInfo]:
    """As the agent looks for it (`device_agents.job.dataset`)."""
    own = f"input.{spec.name}" if spec.name == LABELS or spec.name in labels else spec.name
    names = [own, *(["x"] if is_only and "x" not in labels else []), *({spec.name} - labels)]
    for name in names:
        if name in dataset.arrays:
            return name, _info(dataset.arrays[name])
    raise Invalid(
        "data.arrays",
        f"no array for the model's input {spec.name!r}; there are {sorted(dataset.arrays)}",
        where=f"{where}.{spec.name}",
        hint="name arrays after the model's inputs (one called `y`: `input.y`), or `x` if it has one",
    )


def _info(entry: Mapping[str, Any]) -> ArrayInfo:
    return ArrayInfo(str(entry["dtype"]), tuple(entry["shape"]))


def _check_shape(where: str, info: ArrayInfo, spec: InputSpec, samples: int) -> None:
    name = where.partition(".")[2]
    if spec.batch_axis is None:
        if info.shape not in (spec.shape, (1, *spec.shape)):
            raise Invalid("data.shape", f"array {name!r} has shape {list(info.shape)}, the bundle's {spec.name!r} "
                          f"takes {[1, *spec.shape]}, the same for every sample", where=where,
                          hint="give one of that shape, or compile for this one")  # fmt: skip
        return
    if info.shape[1:] != spec.sample_shape:
        raise Invalid("data.shape", f"array {name!r} has samples of shape {list(info.shape[1:])}, "
                      f"the bundle's {spec.name!r} takes {list(spec.sample_shape)}", where=where,
                      hint="give data of that shape, samples first, or compile for this one")  # fmt: skip
    if info.shape[0] != samples:
        raise Invalid("data.samples", f"array {name!r} has {info.shape[0]} samples, others have {samples}", where=where,
                      hint="what is the same for every sample has batch_axis: null in the spec's inputs")  # fmt: skip


def _check_labels(dataset: Dataset, spec: InputSpec, where: str) -> None:
    name, where = spec.name, f"{where}.{spec.name}"
    if name not in dataset.arrays:
        raise Invalid("data.arrays", f"no array for the labels {name!r}; there are {sorted(dataset.arrays)}",
                      where=where, hint=f"numpy.savez(file, x=inputs, {name}=labels)")  # fmt: skip
    info = _info(dataset.arrays[name])
    _check_shape(where, info, spec, dataset.samples)
    is_class_index = spec.dtype in ("i64", "i32")
    allowed = LABEL_DTYPES if is_class_index else ("float32",)
    if info.dtype not in allowed:
        raise Invalid("data.dtype", f"labels hold {info.dtype}, expected {' or '.join(allowed)}", where=where,
                      hint=f"convert with {name}.astype(numpy.{allowed[0]})")  # fmt: skip
