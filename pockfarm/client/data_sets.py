"""Data that are sent to a farm as a data set: an npz, from whatever form a caller has."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Union

from pockfarm.errors import UsageError

Data = Union[bytes, str, "os.PathLike[str]", Mapping[str, Any], tuple[Any, Any], Iterable[Any]]
"""An npz (its bytes or a path), arrays or tensors by name, `(x, y)`, a Dataset, a DataLoader, or an iterable of
`(x, y)`."""


def npz_of(data: Data) -> bytes | Path:
    """The npz itself: inputs by name (or `x`) and labels `y`. Raises: UsageError."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, (str, os.PathLike)):
        return Path(data)
    import numpy as np

    from pockfarm.fine_tuning.data import any_arrays

    arrays = any_arrays(data)
    for name, array in arrays.items():
        if array.dtype == np.float64:
            arrays[name] = array.astype(np.float32)  # what steps read: as `fine_tune` does
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def refuse_nothing(data: object) -> None:
    """Raises: UsageError without data."""
    if data is None:
        raise UsageError("there is no data to train on: give data=(x, y), an npz, a DataLoader, or an uploaded Dataset")
    if is_digest(data):
        raise UsageError(
            f"data is the digest {data}: give the Dataset itself, as upload_dataset gave it",
            hint="client.datasets() lists them",
        )


def is_digest(model: object) -> bool:
    """Whether it names a bundle of the farm, and no file."""
    return isinstance(model, str) and model.startswith("sha256:")


def refuse_recipe(**given: object) -> None:
    """Raises: UsageError for what a bundle has in it."""
    names = [name for name, value in given.items() if value is not None and (name, value) != ("plan", "full")]
    if names:
        raise UsageError(
            "a bundle has such things in it, as they were when it was compiled",
            where=" and ".join(names),
            hint="leave them out, or give the model",
        )
