"""A trained checkpoint back into the author's tensors, and into the file that the model came in.

Undoes the folding of norms: what a folded weight and bias learned, as a change of the author's own tensors.

Forward: weight' = weight * factor, bias' = (own_bias - mean) * factor + shift, factor = scale / sqrt(variance + eps).
Backward (what is done here, in float64): weight += (weight'_after - weight'_before) / factor, and the bias's change
goes to the norm's shift. Running statistics and a layer's own bias stay. What did not change comes back bit for bit.

A factor of 0 (a scale that was set to 0) leaves nothing to divide by, and no weight that gives weight'. Such a channel
that has learned gets scale = sqrt(variance + eps), so that its factor is 1, and weight = weight': the same function.
"""

from __future__ import annotations

import io
import json
import mmap
import tarfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.bundle.archive import MANIFEST, ORIGINS, WEIGHTS
from compiler.bundle.content import write_file
from compiler.errors import ModelError
from compiler.external import NO_EXTERNAL, External
from compiler.origins import Adapter, FoldedNorm, Origins, as_stored, outputs_first
from compiler.tensors import Array
from compiler.trained.adapters import AdapterFiles, adapter_files, merged
from compiler.trained.checkpoints import Held, same_bits, tensors_file, tensors_of
from compiler.trained.files import Files
from compiler.trained.stored import StoredModel
from compiler.warnings import few_of

Wide = NDArray[np.float64]
Original = Callable[[str], Array]
"""The author's tensor of a name, as it was before training."""
SMALLEST_FACTOR = 1e-18
"""A smaller one would make weights that float32 cannot hold of steps that it can."""


@dataclass(frozen=True)
class Unfolded:
    """The author's tensors that changed, and the names of scales of which a channel had to be set anew."""

    tensors: Mapping[str, Array]
    revived: tuple[str, ...] = ()


def unfold(norm: FoldedNorm, before: Mapping[str, Array], after: Mapping[str, Array], original: Original) -> Unfolded:
    """The tensors behind one folded norm after training. `before` and `after` are checkpoints.

    Raises: ModelError when the model has no tensor that could take what was learned.
    """
    weight_step = _step(norm.weight, before, after)
    bias_step = _step(norm.bias, before, after)
    if not weight_step.any() and not bias_step.any():
        return Unfolded({})
    spread = np.sqrt(_wide(original(norm.variance)) + norm.epsilon)
    if norm.alone:
        return Unfolded(_alone(norm, weight_step, bias_step, spread, original))
    return _with_layer(norm, weight_step, bias_step, spread, after, original)


def _alone(norm: FoldedNorm, factor_step: Wide, shift_step: Wide, spread: Wide, original: Original) -> dict[str, Array]:
    """scale' = scale / spread and shift' = shift - mean * scale' learned."""
    mean = _wide(original(norm.mean))
    changed = {
        norm.scale: _moved(original(norm.scale), factor_step * spread),
        norm.shift: _moved(original(norm.shift), shift_step + mean * factor_step),
    }
    return changed


def _with_layer(
    norm: FoldedNorm, weight_step: Wide, bias_step: Wide, spread: Wide, after: Mapping[str, Array], original: Original
) -> Unfolded:
    weight, scale = original(norm.weight), original(norm.scale)
    factor = _wide(scale) / spread
    step = outputs_first(weight_step, norm.transposed_groups)
    dead = (np.abs(factor) < SMALLEST_FACTOR) & step.reshape(len(step), -1).any(axis=1)
    divisor = np.where(np.abs(factor) < SMALLEST_FACTOR, 1.0, factor)
    along = (-1, *[1] * (weight.ndim - 1))
    moved = _moved(outputs_first(weight, norm.transposed_groups), step / divisor.reshape(along))
    # A dead channel's output was shift alone; with a factor of 1 the mean and the layer's own bias show through.
    through = np.where(dead, _wide(original(norm.mean)) - _own_bias(norm, original), 0.0)
    tensors: dict[str, Array] = {}
    if dead.any():
        moved = np.where(dead.reshape(along), outputs_first(after[norm.weight], norm.transposed_groups), moved)
        tensors[norm.scale] = np.where(dead, spread, scale).astype(scale.dtype)
    tensors[norm.weight] = as_stored(moved, norm.transposed_groups)
    if bias_step.any() or through.any():
        _require_bias(norm, dead)
        change = bias_step + through if norm.takes_bias == norm.shift else bias_step / divisor
        tensors[norm.takes_bias] = _moved(original(norm.takes_bias), change)
    return Unfolded(tensors, (norm.scale,) if dead.any() else ())


def _own_bias(norm: FoldedNorm, original: Original) -> Wide:
    return _wide(original(norm.own_bias)) if norm.own_bias else np.zeros(1)


def _require_bias(norm: FoldedNorm, dead: NDArray[np.bool_]) -> None:
    if not norm.takes_bias or (bool(dead.any()) and norm.takes_bias != norm.shift):
        raise ModelError(
            "has no bias that could take what the folded one learned",
            where=f"norm {norm.scale!r}",
            hint="say batch_norm: frozen in the spec",
        )


def _step(name: str, before: Mapping[str, Array], after: Mapping[str, Array]) -> Wide:
    return _wide(after[name]) - _wide(before[name]) if name else np.zeros(1)


def _moved(array: Array, step: Wide) -> Array:
    """The array with a step added in float64; where the step is 0, the very same elements."""
    moved = (_wide(array) + step).astype(array.dtype)
    return np.asarray(np.where(step == 0, array, moved))


def _wide(array: Array) -> Wide:
    return array.astype(np.float64)


@dataclass(frozen=True)
class Trained:
    """The outcome of a training in the author's file.

    `files` are the author's with other elements, `changed` the tensors that training changed, `parameters` every
    parameter and running statistic that the file holds; names and layouts are the author's. `calls` tells of each
    running mean that the steps updated how often a step calls its norm. `revived` are scales of norms that were 0 in a
    channel that learned; `added` are initializers that the file did not have. `apart` makes what `peft` loads of a plan
    with adapters.
    """

    files: Files
    changed: Mapping[str, Array]
    parameters: Mapping[str, Array]
    revived: tuple[str, ...]
    calls: Mapping[str, int]
    added: tuple[str, ...]
    apart: Callable[[], AdapterFiles]
    base: Mapping[str, Array]
    """The tensors that changed, as they were in the file."""
    model: str
    """The model's digest, as the bundle knows it."""
    created: Mapping[str, Array]
    """Biases that the plan gave to layers which the model has without, whether they changed or not."""

    def save_parameters(self, path: Path) -> None:
        """Writes `parameters` as safetensors; reals are float32, whatever the file holds them in. Raises: OSError."""
        tensors = {
            name: array.astype(np.float32, copy=False) if array.dtype.kind == "f" else array
            for name, array in self.parameters.items()
        }
        write_file(path, tensors_file(tensors))


def bring_back(model: bytes, bundle: Held, checkpoint: Held, external: External = NO_EXTERNAL) -> Trained:
    """Undoes what the compiler and exporters did to the parameters of `model`.

    `external` are its data files, `bundle` is what was built of it, `checkpoint` (safetensors) what a run of it
    trained. What is mapped into memory stays there: tensors that come back are views of it.
    Raises: ModelError for a bundle of another model, and where the model has no tensor for what was learned.
    """
    members = _members(bundle)
    origins = Origins.from_json(json.loads(bytes(members[ORIGINS])))
    before, after = tensors_of(members[WEIGHTS], f"{WEIGHTS} of the bundle"), tensors_of(checkpoint)
    stored = StoredModel(model, origins, external)
    manifest = json.loads(bytes(members[MANIFEST]))
    rounded = {name: stored.tensor(name) for name in _rounded(manifest)}
    before, after = {**before, **rounded}, {**after, **rounded}
    lacking = [name for name in origins.parameters if name not in after]
    if lacking:
        raise ModelError("is not in the checkpoint", where=f"parameter {lacking[0]!r}", hint="is it of this bundle?")
    folded = {name for norm in origins.norms for name in (norm.weight, norm.bias)}
    changed = {
        name: after[name]
        for name in origins.parameters
        if name not in folded and not same_bits(after[name], before[name])
    }
    revived: list[str] = []
    for norm in origins.norms:
        unfolded = unfold(norm, before, after, stored.tensor)
        moved = {name: new for name, new in unfolded.tensors.items() if not same_bits(new, stored.tensor(name))}
        _refuse_shared(changed.keys() & moved.keys())
        changed |= moved
        revived += unfolded.revived
    whole = {name: after[name] for name in origins.parameters if name not in folded}
    behind = {name for norm in origins.norms for name in _behind(norm)}
    authored = {**whole, **{name: stored.tensor(name) for name in sorted(behind)}}
    apart = partial(adapter_files, origins.adapters, {**after, **authored, **changed}, tuple(changed), tuple(authored))
    changed |= _merged(origins, before, {**after, **authored, **changed})
    new = stored.with_tensors(changed, whole)
    parameters = {**authored, **changed}
    calls = {name: stored.norms_of(name) for name in manifest.get("buffers", ())}
    met = {name: count for name, count in calls.items() if count}
    base_tensors = {name: stored.tensor(name) if name in behind else before[name] for name in changed}
    digest = str(manifest.get("digests", {}).get("model", ""))
    created = {name: after[name] for name in origins.created}
    return Trained(new.files, changed, parameters, tuple(revived), met, new.added, apart, base_tensors, digest, created)


def _merged(origins: Origins, before: Mapping[str, Array], after: Mapping[str, Array]) -> dict[str, Array]:
    """The weights whose adapters are to be merged and have learned something."""
    trained_adapters = [
        adapter
        for adapter in origins.adapters
        if adapter.export == "merged" and not all(same_bits(after[name], before[name]) for name in adapter.names)
    ]
    return {adapter.weight: merged(adapter, after) for adapter in trained_adapters}


def adapter_of(bundle: Held, checkpoint: Held) -> AdapterFiles:
    """Returns what `peft` loads beside the base model, for a run of a bundle whose plan has adapters.

    Raises: ModelError without adapters, and where a rule let something learn that `peft` has no place for.
    """
    members = _members(bundle)
    origins = Origins.from_json(json.loads(bytes(members[ORIGINS])))
    before, after = tensors_of(members[WEIGHTS], f"{WEIGHTS} of the bundle"), tensors_of(checkpoint)
    rounded = _rounded(json.loads(bytes(members[MANIFEST])))
    changed = [name for name in origins.parameters if name not in rounded and not same_bits(after[name], before[name])]
    folded = {name for norm in origins.norms for name in (norm.weight, norm.bias)}
    if not folded.isdisjoint(changed):
        raise ModelError(
            f"{few_of(sorted(folded & set(changed)))} learned with a norm folded into it",
            where="adapter",
            hint="say batch_norm: frozen in the spec, or use fine_tune",
        )
    return adapter_files(origins.adapters, after, changed, [name for name in origins.parameters if name not in folded])


def adapters_of(bundle: Held) -> tuple[Adapter, ...]:
    """The adapters of a bundle's plan."""
    return _origins(bundle).adapters


def folded_in(bundle: Held) -> tuple[str, ...]:
    """The tensors of a bundle's checkpoints into which norms are folded: not as the model's file has them."""
    return tuple(dict.fromkeys(name for norm in _origins(bundle).norms for name in (norm.weight, norm.bias) if name))


def created_in(bundle: Held) -> tuple[str, ...]:
    """The biases that a bundle's plan gave to layers which the model has without."""
    return _origins(bundle).created


def _rounded(manifest: Mapping[str, Any]) -> frozenset[str]:
    """The frozen weights that a step holds rounded: no checkpoint has them, the author's own come back."""
    return frozenset(manifest.get("frozen", {}).get("errors", {}))


def _origins(bundle: Held) -> Origins:
    return Origins.from_json(json.loads(bytes(_members(bundle)[ORIGINS])))


def _behind(norm: FoldedNorm) -> tuple[str, ...]:
    """The author's tensors that a folded norm stands for."""
    names = (norm.scale, norm.shift, norm.mean, norm.variance, norm.own_bias, "" if norm.alone else norm.weight)
    return tuple(name for name in names if name)


def weights_of(bundle: Held) -> Mapping[str, Array]:
    """The tensors that a bundle's training begins with. Raises: ModelError."""
    return tensors_of(_members(bundle)[WEIGHTS], f"{WEIGHTS} of the bundle")


def manifest_of(bundle: Held) -> Mapping[str, Any]:
    """Returns a bundle's manifest (docs/contracts.md). Raises: ModelError."""
    manifest: Mapping[str, Any] = json.loads(bytes(_members(bundle)[MANIFEST]))
    return manifest


def _refuse_shared(twice: Collection[str]) -> None:
    if twice:
        raise ModelError(
            "is one tensor of several folded norms, which learned apart",
            where=f"tensor {min(twice)!r}",
            hint="say batch_norm: frozen in the spec, so that it learns as one",
        )


def _members(bundle: Held) -> dict[str, memoryview]:
    """Returns the members of a bundle that the way back reads, where they lie."""
    members, data = {}, memoryview(bundle)
    stream: Any = bundle if isinstance(bundle, mmap.mmap) else io.BytesIO(bundle)
    stream.seek(0)
    try:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            for name in (MANIFEST, ORIGINS, WEIGHTS):
                member = archive.getmember(name)
                members[name] = data[member.offset_data : member.offset_data + member.size]
    except KeyError:
        raise ModelError(f"has no {name}", where="bundle", hint="build it again with this version") from None
    except tarfile.TarError:
        raise ModelError("is no bundle", where="bundle", hint="give what `pockfarm build` wrote") from None
    return members
