"""Bodies of the organisation endpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from service.base.schemas import NameText, RequestBody, Timestamp, View
from service.operations.retention.rules import RuleName
from service.people.quotas.limits import QuotaName

Amount = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]

Days = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class OrganisationCreate(RequestBody):
    """A new tenant."""

    name: NameText


class OrganisationChange(RequestBody):
    """A change of an organisation; null leaves a value as it is."""

    name: NameText | None = None
    quotas: dict[QuotaName, Amount | Literal["default", "unlimited"]] | None = Field(
        default=None, description="Limits to set; the others stay. `default`: the farm's for all"
    )
    retention: dict[RuleName, Days | Literal["default", "forever"]] | None = Field(
        default=None, description="Days that things stay; other rules stay. `default`: the farm's for all"
    )


class RetentionView(View):
    """How long something of an organisation is retained."""

    name: RuleName
    words: str
    days: float | None
    """Null: for ever."""


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
    """A tenant with its limits, what it uses, and how long things stay."""

    quotas: list[QuotaView]
    retention: list[RetentionView]
