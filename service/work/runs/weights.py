"""Weights that a run starts from: whether they are of the bundle's model, and if not, what is different."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from service.artefacts.bundles.service import Built
from service.base.problems import Invalid, NotFound
from service.store.database.models import Bundle, Job, Run
from service.store.storage import MissingFile, Storage
from service.work.runs.schemas import RunCreate

SHOWN = 3
MAX_HEADER_BYTES = 4 << 20
"""Largest header of a file whose tensors are told of: tens of thousands."""
MAX_NAME = 80
_INITIAL = "weights.safetensors"
_UNREADABLE = (MissingFile, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, tarfile.TarError)
Shapes = Mapping[str, list[int]]


def check(session: Session, body: RunCreate, bundle: Built, storage: Storage) -> None:
    """Raises: NotFound; Invalid for weights of another model, or of a step that keeps other values under the names."""
    if body.weights is None:
        return
    forms = _forms(session, Run.trained_weights_digest == body.weights)
    if not forms or storage.size(body.weights) is None:
        raise NotFound(
            "weights.unknown",
            f"no run has left weights {body.weights}",
            where="weights",
            hint="use `trained_weights_digest` of a run that trained",
        )
    if bundle.model_digest not in {model for model, _ in forms}:
        mismatch = differences(storage, body.weights, bundle.digest)
        raise Invalid(
            "weights.model",
            f"these weights are of another model{mismatch and f': {mismatch}'}",
            where="weights",
            hint="start from a run of the bundle's own model (GET /runs?bundle=DIGEST, `pockfarm runs`), or "
            "compile the model that these weights are of",
        )
    bundle_norms, weights_norms = _norms(_forms(session, Bundle.digest == bundle.digest), bundle), _norms(forms, bundle)
    if bundle_norms and weights_norms and not bundle_norms & weights_norms:
        raise Invalid(
            "weights.form",
            f"these weights are of a step with batch_norm {' or '.join(sorted(weights_norms))}, the "
            f"bundle has {' or '.join(sorted(bundle_norms))}: the same names hold other values",
            where="weights",
            hint="start from a run whose spec has the same batch_norm",
        )


def _forms(session: Session, condition: ColumnElement[bool]) -> set[tuple[str, str]]:
    """Returns (model, spec) of the bundles that `condition` selects, perhaps through their runs; no spec: the job is
    gone.
    """
    query = (
        select(Bundle.model_digest, Job.spec_json)
        .outerjoin(Job, Job.bundle_digest == Bundle.digest)
        .outerjoin(Run, Run.bundle_digest == Bundle.digest)
        .where(condition)
    )
    return {(model, spec or "") for model, spec in session.execute(query)}


def _norms(forms: set[tuple[str, str]], bundle: Built) -> set[str]:
    """Returns the values of `batch_norm` in the specs of a bundle's model."""
    specs = [json.loads(spec) for model, spec in forms if spec and model == bundle.model_digest]
    return {str(spec.get("batch_norm", "fold")) for spec in specs}


def differences(storage: Storage, weights: str, bundle: str) -> str:
    """Returns the tensors that are missing, unexpected, or of another shape; empty where a file does not tell."""
    try:
        have, need = _shapes(_Stream(storage.read(weights))), _initial(storage, bundle)
    except _UNREADABLE:
        return ""
    both = sorted(need.keys() & have.keys())
    reshaped = [name for name in both if have[name] != need[name]]
    groups = (
        ("missing", [_short(name) for name in sorted(need.keys() - have.keys())]),
        ("unexpected", [_short(name) for name in sorted(have.keys() - need.keys())]),
        ("of another shape", [f"{_short(tensor)} {have[tensor]}, needed {need[tensor]}" for tensor in reshaped]),
    )
    parts = [f"{len(names)} {what} ({_few(names)})" for what, names in groups if names]
    if not parts:
        return f"its {len(need)} tensors have the same names and shapes, but the models' files are not the same"
    return f"of the {len(need)} tensors that the bundle needs and the {len(have)} that are there, {', '.join(parts)}"


def _few(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return f"{', '.join(names[:SHOWN])}{f' and {more} more' if more > 0 else ''}"


def _short(name: str) -> str:
    return f"{name!r}" if len(name) <= MAX_NAME else f"{name[:MAX_NAME]!r}…"


class _Stream(io.RawIOBase):
    """A file of the storage, read as far as somebody reads it."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks, self._held = chunks, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._held:
            self._held = next(self._chunks, b"")
        count = min(len(buffer), len(self._held))
        buffer[:count], self._held = self._held[:count], self._held[count:]
        return count


def _initial(storage: Storage, bundle: str) -> Shapes:
    with tarfile.open(fileobj=io.BufferedReader(_Stream(storage.read(bundle))), mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name == _INITIAL else None
            if file is not None:
                return _shapes(file)
    raise KeyError(_INITIAL)


def _shapes(stream: Any) -> Shapes:
    """Returns the shape of each tensor of a safetensors file, by its name. Raises: ValueError and its kin for any other
    file.
    """
    file = io.BufferedReader(stream) if isinstance(stream, io.RawIOBase) else stream
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {length:,} bytes")
    header = json.loads(file.read(length))
    return {
        str(name): [int(extent) for extent in entry["shape"]]
        for name, entry in header.items()
        if name != "__metadata__"
    }
