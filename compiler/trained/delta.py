"""The changes of a training and nothing else, as a safetensors file that fits one base and no other.

Of each tensor that changed the file holds, under its name, the entries of one axis that changed, in the base's order;
`__metadata__` says which:

    format   pockfarm.delta/1
    model    digest of the model that was trained, as a farm knows it; empty if nobody knows
    base     sha256 of the base's tensors that are concerned (`base_digest`)
    tensors  JSON: {name: {"dtype", "shape", "axis", "ranges": [[start, size], ...], "sha256": of the base's tensor}};
             "created": true stands with a bias that a plan gave to a layer: a base may lack it, and then it was zeros

An axis of -1 means the whole tensor, as for all that were created. Applied to the base, what comes out is bit for bit
what was trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from compiler.bundle.content import Chunk
from compiler.bundle.tensor_file import Checkpoint, Stored
from compiler.element_types import EMITTED, DType
from compiler.errors import ModelError
from compiler.tensors import Array, TensorType
from compiler.trained.checkpoints import Held, metadata_of, tensors_of

FORMAT = "pockfarm.delta/1"
PART_BYTES = 1 << 24
"""The bytes of a tensor that are compared at once."""
_NAMES: Mapping[Any, DType] = {row.numpy: row.name for row in EMITTED}
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Change:
    """The part of a base's tensor that changed: `ranges` (start, size) along `axis`, all of it if that is -1."""

    dtype: DType
    shape: tuple[int, ...]
    axis: int
    ranges: Ranges
    sha256: str
    """The digest of the base's tensor."""
    created: bool = False
    """True if a base may lack it: it began as zeros."""

    def changed_entries(self, array: Array) -> Array:
        """The entries that changed, of a tensor in the base's shape."""
        if self.axis < 0:
            return np.ascontiguousarray(array)
        parts = [array[self._window(start, size)] for start, size in self.ranges]
        return np.ascontiguousarray(np.concatenate(parts, axis=self.axis))

    def put(self, array: Array, changed: Array) -> Array:
        """A copy of the base's tensor with the entries that changed."""
        if self.axis < 0:
            return changed.copy()
        whole, begin = array.copy(), 0
        for start, size in self.ranges:
            whole[self._window(start, size)] = changed[self._window(begin, size)]
            begin += size
        return whole

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Returns the shape of the entries in a file."""
        count = sum(size for _, size in self.ranges)
        return tuple(count if axis == self.axis else extent for axis, extent in enumerate(self.shape))

    def _window(self, start: int, size: int) -> tuple[slice, ...]:
        return (slice(None),) * self.axis + (slice(start, start + size),)


@dataclass(frozen=True)
class Delta:
    """Changes by tensor, and the entries that came in."""

    changes: Mapping[str, Change]
    entries: Mapping[str, Array]
    model: str = ""

    @property
    def base(self) -> str:
        """Identifies the base that it fits."""
        return base_digest(self.changes)


def base_digest(changes: Mapping[str, Change]) -> str:
    """`sha256:<hex>` of the names and digests of a base's tensors that are concerned."""
    listed = json.dumps({name: changes[name].sha256 for name in sorted(changes)}, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(listed.encode()).hexdigest()}"


def change_between(base: Array, trained: Array, *, created: bool = False) -> Change | None:
    """Returns where a tensor changed, by bits: along the axis on which that is least; None if it did not.

    One that was `created` counts as changed, and as a whole.

    Raises: ModelError for tensors of different shapes or types.
    """
    if base.shape != trained.shape or base.dtype != trained.dtype or base.dtype not in _NAMES:
        raise ModelError(f"is {base.dtype}{list(base.shape)} in the base, {trained.dtype}{list(trained.shape)} trained")
    if created:
        return Change(_NAMES[base.dtype], base.shape, -1, (), digest_of(base), created=True)
    touched = _touched(base, trained)
    if not any(mask.any() for mask in touched):
        return None
    shares = [float(mask.mean()) for mask in touched]
    axis = min(range(len(shares)), key=shares.__getitem__) if base.ndim else -1
    if base.ndim and shares[axis] == 1.0:
        axis = -1
    ranges = _ranges(touched[axis]) if axis >= 0 else ()
    return Change(_NAMES[base.dtype], base.shape, axis, ranges, digest_of(base))


def digest_of(array: Array) -> str:
    """sha256 of a tensor: its type, its shape, and its elements."""
    head = json.dumps([_NAMES.get(array.dtype, str(array.dtype)), list(array.shape)], separators=(",", ":"))
    digest = hashlib.sha256(head.encode())
    for part in _parts(array):
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


def delta_file(changes: Mapping[str, Change], trained: Mapping[str, Array], model: str = "") -> Iterator[Chunk]:
    """The file's bytes, for the changes and the tensors that they were found in."""
    description = {
        name: {
            "dtype": change.dtype,
            "shape": change.shape,
            "axis": change.axis,
            "ranges": change.ranges,
            "sha256": change.sha256,
            **({"created": True} if change.created else {}),
        }
        for name, change in changes.items()
    }
    tensors = {
        name: Stored(TensorType(change.dtype, change.stored_shape), partial(change.changed_entries, trained[name]))
        for name, change in changes.items()
    }
    metadata = {"format": FORMAT, "model": model, "base": base_digest(changes), "tensors": json.dumps(description)}
    return Checkpoint(tensors, metadata).chunks()


def delta_between(
    base: Mapping[str, Array], trained: Mapping[str, Array], model: str = "", created: Collection[str] = ()
) -> Iterator[Chunk]:
    """The file for two checkpoints; `created` are tensors that the author's model does not have.

    Raises: ModelError if the trained one has a tensor that the base has not.
    """
    missing = next((name for name in trained if name not in base), None)
    if missing is not None:
        raise ModelError(
            "is not in the base", where=f"tensor {missing!r:.100}", hint="is it the base of this training?"
        )
    changes = {name: _change(name, base[name], array, created=name in created) for name, array in trained.items()}
    return delta_file({name: change for name, change in changes.items() if change is not None}, trained, model)


def read_delta(data: Held) -> Delta:
    """Reads a delta file, entry by entry. Raises: ModelError."""
    metadata, entries = metadata_of(data, "delta"), tensors_of(data, "delta")
    if metadata.get("format") != FORMAT:
        raise ModelError(
            f"is no delta file: its format is {metadata.get('format')!r:.60}",
            where="delta",
            hint="`pockfarm delta` writes them",
        )
    try:
        descriptions = json.loads(str(metadata["tensors"]))
        changes = {name: _read_change(change) for name, change in descriptions.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as problem:
        raise ModelError(f"its list of tensors is damaged: {problem!r:.200}", where="delta") from None
    if changes.keys() != entries.keys():
        raise ModelError("its list of tensors is not that of its entries", where="delta")
    for name, change in changes.items():
        stored = entries[name]
        if stored.shape != change.stored_shape or _NAMES.get(stored.dtype) != change.dtype:
            raise ModelError("its entries do not have the shape that is told", where=f"delta, tensor {name!r:.100}")
    delta = Delta(changes, entries, str(metadata.get("model", ""))[:100])
    if metadata.get("base") != delta.base:
        raise ModelError("the base's digest is not that of its tensors", where="delta")
    return delta


def changed_tensors(base: Mapping[str, Array], delta: Delta) -> dict[str, Array]:
    """The base's tensors that a delta changes, as they were trained; the others stay as they are.

    Raises: ModelError for a base that it was not made of.
    """
    for name, change in delta.changes.items():
        array = base.get(name)
        if array is None and change.created:
            array = np.zeros_like(delta.entries[name])
        if array is None or array.shape != change.shape or digest_of(array) != change.sha256:
            difference = "it has no such tensor" if array is None else "its elements are others"
            model = f" of model {delta.model}" if delta.model else ""
            raise ModelError(
                f"this delta was made of base {delta.base}{model}, and this is another: {difference}",
                where=f"tensor {name!r:.100}",
                hint="apply it to the weights that the training began with",
            )
    return {
        name: change.put(base.get(name, delta.entries[name]), delta.entries[name])
        for name, change in delta.changes.items()
    }


def _change(name: str, base: Array, trained: Array, *, created: bool) -> Change | None:
    try:
        return change_between(base, trained, created=created)
    except ModelError as problem:
        raise ModelError(problem.message, where=f"tensor {name!r:.100}") from None


def _parts(array: Array) -> Iterator[Array]:
    """An array in runs of its first axis."""
    if not array.ndim or not array.size:
        yield array
        return
    rows = max(1, PART_BYTES // max(array[:1].nbytes, 1))
    for begin in range(0, len(array), rows):
        yield array[begin : begin + rows]


def _touched(base: Array, trained: Array) -> list[Any]:
    """Returns, for each axis, which of its entries have an element of other bits; of a scalar, whether it has."""
    if not base.ndim:
        return [np.asarray(base.tobytes() != trained.tobytes())]
    masks, begin = [np.zeros(extent, bool) for extent in base.shape], 0
    for before, after in zip(_parts(base), _parts(trained)):
        differs = _bits(before) != _bits(after)
        masks[0][begin : begin + len(before)] = differs.any(axis=tuple(range(1, base.ndim)))
        for axis in range(1, base.ndim):
            masks[axis] |= differs.any(axis=tuple(other for other in range(base.ndim) if other != axis))
        begin += len(before)
    return masks


def _bits(array: Array) -> Any:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _ranges(mask: Any) -> Ranges:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return tuple((int(start), int(stop - start)) for start, stop in zip(edges[::2], edges[1::2]))


def _read_change(description: Mapping[str, Any]) -> Change:
    """Raises: ValueError, TypeError, KeyError for what no change is."""
    shape, axis, sha256 = _counts(description["shape"]), description["axis"], description["sha256"]
    ranges = tuple((start, size) for start, size in map(_counts, description["ranges"]))
    if type(axis) is not int or not -1 <= axis < len(shape) or (axis < 0) != (not ranges):
        raise ValueError(f"axis {axis!r:.40} of {list(shape)}")
    end = 0
    for start, size in ranges:
        if start < end or size < 1 or start + size > shape[axis]:
            raise ValueError(f"range {start}, {size} of {shape[axis]}")
        end = start + size
    if not isinstance(sha256, str) or len(sha256) != 64 or description["dtype"] not in _NAMES.values():
        raise ValueError("no digest, or no type of ours")
    created = description.get("created", False)
    if type(created) is not bool or (created and axis >= 0):
        raise ValueError(f"created {created!r:.40}, axis {axis}")
    return Change(description["dtype"], shape, axis, ranges, sha256, created)


def _counts(values: Sequence[Any]) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(count) is int and count >= 0 for count in values):
        raise ValueError(f"expected counts, got {values!r:.60}")
    if prod(values) >= 1 << 62:
        raise ValueError("more elements than any tensor has")
    return tuple(values)
