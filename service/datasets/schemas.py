"""Bodies of the data set endpoints."""

from __future__ import annotations

from service.schemas import Timestamp, View


class ArrayView(View):
    """One array of a data set."""

    dtype: str
    shape: list[int]


class DatasetView(View):
    """A checked data set."""

    digest: str
    name: str
    size_bytes: int
    samples: int
    arrays: dict[str, ArrayView]
    created_at: Timestamp
