"""A trained checkpoint back into the author's tensors, and into the file that the model came in."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from safetensors.numpy import load

from compiler.bundle.archive import MANIFEST, ORIGINS, WEIGHTS
from compiler.errors import ModelError
from compiler.graph import Array
from compiler.origins import FoldedNorm, Origins
from compiler.trained.norms import unfold
from compiler.trained.stored import StoredModel


@dataclass(frozen=True, slots=True)
class Trained:
    """What came back.

    `model` is the author's file with other elements, `changed` the tensors that training changed, `parameters` every
    parameter and running statistic that the file holds; names and layouts are the author's. `calls` tells of each
    running mean that the steps updated how often a step calls its norm. `revived` are scales of norms that were 0 in a
    channel that learned; `added` are initializers that the file did not have.
    """

    model: bytes
    changed: Mapping[str, Array]
    parameters: Mapping[str, Array]
    revived: tuple[str, ...]
    calls: Mapping[str, int]
    added: tuple[str, ...]


def bring_back(model: bytes, bundle: bytes, checkpoint: bytes) -> Trained:
    """Undo what the compiler and exporters did to the parameters of `model`.

    `bundle` is what was built of it, `checkpoint` (safetensors) what a run of that bundle trained.
    Raises: ModelError for a bundle of another model, and where the model has no tensor for what was learned.
    """
    members = _members(bundle)
    origins = Origins.from_json(json.loads(members[ORIGINS]))
    before, after = load(members[WEIGHTS]), load(checkpoint)
    stored = StoredModel(model, origins)
    lacking = [name for name in origins.parameters if name not in after]
    if lacking:
        raise ModelError("is not in the checkpoint", where=f"parameter {lacking[0]!r}", hint="is it of this bundle?")
    folded = {name for norm in origins.norms for name in (norm.weight, norm.bias)}
    changed = {
        name: after[name]
        for name in origins.parameters
        if name not in folded and after[name].tobytes() != before[name].tobytes()
    }
    revived: list[str] = []
    for norm in origins.norms:
        unfolded = unfold(norm, before, after, stored.tensor)
        moved = {name: new for name, new in unfolded.tensors.items() if new.tobytes() != stored.tensor(name).tobytes()}
        _refuse_shared(changed.keys() & moved.keys())
        changed |= moved
        revived += unfolded.revived
    whole = {name: after[name] for name in origins.parameters if name not in folded}
    file, added = stored.with_tensors(changed, whole)
    behind = {name for norm in origins.norms for name in _behind(norm)}
    parameters = {**whole, **{name: stored.tensor(name) for name in sorted(behind)}, **changed}
    calls = {name: stored.norms_of(name) for name in json.loads(members[MANIFEST]).get("buffers", ())}
    met = {name: count for name, count in calls.items() if count}
    return Trained(file, changed, parameters, tuple(revived), met, added)


def _behind(norm: FoldedNorm) -> tuple[str, ...]:
    """The author's tensors that a folded norm stands for."""
    names = (norm.scale, norm.shift, norm.mean, norm.variance, norm.own_bias, "" if norm.alone else norm.weight)
    return tuple(name for name in names if name)


def manifest_of(bundle: bytes) -> Mapping[str, Any]:
    """What a bundle says of itself (docs/contracts.md). Raises: ModelError."""
    manifest: Mapping[str, Any] = json.loads(_members(bundle)[MANIFEST])
    return manifest


def _refuse_shared(twice: Collection[str]) -> None:
    if twice:
        raise ModelError("is one tensor of several folded norms, which learned apart", where=f"tensor {min(twice)!r}",
                         hint="say batch_norm: frozen in the spec, so that it learns as one")  # fmt: skip


def _members(bundle: bytes) -> dict[str, bytes]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(bundle)) as archive:
        for name in (MANIFEST, ORIGINS, WEIGHTS):
            try:
                file = archive.extractfile(name)
            except KeyError:
                file = None
            if file is None:
                raise ModelError(f"has no {name}", where="bundle", hint="build it again with this version")
            found[name] = file.read()
    return found
