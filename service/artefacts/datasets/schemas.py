"""Bodies of the data set endpoints."""

from __future__ import annotations

from service.artefacts.datasets.names import Notice
from service.artefacts.datasets.service import HeldDataset
from service.base.schemas import Timestamp, View


class ArrayView(View):
    """An array of a data set."""

    dtype: str
    shape: list[int]
    low: float | None = None
    """The smallest number; of whole numbers but for -100, which losses pass over. Null: an older release read it."""
    high: float | None = None
    is_whole: bool | None = None
    """Nothing but whole numbers."""


class DatasetView(View):
    """A checked data set."""

    digest: str
    name: str
    size_bytes: int
    samples: int
    arrays: dict[str, ArrayView]
    created_at: Timestamp
    pinned_at: Timestamp | None
    """Retention leaves it alone."""
    removed_at: Timestamp | None
    """When retention took its file."""


class DatasetWarning(View):
    """A warning to the sender of a data set that was accepted."""

    code: str
    where: str
    message: str
    hint: str


class DatasetSent(DatasetView):
    """A data set that was just sent."""

    warnings: list[DatasetWarning]
    """That its name is also another's, or that it was there under another name. Empty if nothing is odd."""


def dataset_sent(held: HeldDataset, notices: list[Notice]) -> DatasetSent:
    """The answer to who sent it."""
    warnings = [
        DatasetWarning(code=notice.code, where=notice.where, message=notice.message, hint=notice.hint)
        for notice in notices
    ]
    return DatasetSent(**dataset_view(held).model_dump(), warnings=warnings)


def dataset_view(held: HeldDataset) -> DatasetView:
    """A data set as its holder sees it."""
    named = {
        "name": held.holding.name,
        "created_at": held.holding.created_at,
        "pinned_at": held.holding.pinned_at,
        "removed_at": held.holding.files_removed_at,
    }
    plain = {name: getattr(held.dataset, name) for name in DatasetView.model_fields if name not in named}
    return DatasetView.model_validate(plain | named)
