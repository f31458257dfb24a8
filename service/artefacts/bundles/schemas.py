"""Bodies of the bundle endpoints."""

from __future__ import annotations

from typing import Any

from service.base.schemas import Timestamp, View


class BundleView(View):
    """A bundle, and in `summary` the parts of its manifest that fit in a list."""

    digest: str
    size_bytes: int
    target: str
    model_name: str
    model_digest: str
    plan_name: str
    plan_digest: str
    spec_digest: str
    created_at: Timestamp
    pinned_at: Timestamp | None
    """Retention leaves it alone."""
    removed_at: Timestamp | None
    """When retention took its file."""
    summary: dict[str, Any]
    """memory {arena_bytes, bound_bytes, weights_bytes, optimizer_bytes, peak_bytes}, inputs, outputs, kernels,
    required_features."""
