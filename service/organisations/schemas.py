"""Bodies of the organisation endpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from service.quotas.limits import QuotaName
from service.schemas import RequestBody, Timestamp, View

Amount = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]


class OrganisationCreate(RequestBody):
    """A new tenant."""

    name: str = Field(min_length=1, max_length=200)


class OrganisationChange(RequestBody):
    """What is to change; null: as it is."""

    name: str | None = Field(default=None, min_length=1, max_length=200)
    quotas: dict[QuotaName, Amount | Literal["default", "unlimited"]] | None = Field(
        default=None, description="Limits to set; the others stay. `default`: the farm's for all"
    )


class QuotaView(View):
    """A limit of an organisation, and what it uses of it."""

    name: QuotaName
    words: str
    limit: float | None
    """Null: there is none."""
    use: float | None
    """Null for a rate."""


class OrganisationView(View):
    """A tenant."""

    id: str
    name: str
    created_at: Timestamp
    closed_at: Timestamp | None


class OrganisationDetail(OrganisationView):
    """A tenant with its limits and what it uses."""

    quotas: list[QuotaView]
