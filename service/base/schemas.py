"""Parts of request and response bodies that several domains share."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from service.base.identifiers import DIGEST_PATTERN, clean_name
from service.base.text import strange_character

LAST_MOMENT = 253_402_300_799.0
"""9999-12-31 23:59:59 UTC."""


def utc_text(at: float) -> str:
    """Returns a time as RFC 3339 in UTC with milliseconds. A device's clock may state any time, but a year has four
    digits.
    """
    moment = datetime.datetime.fromtimestamp(min(max(at, 0.0), LAST_MOMENT), datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


Timestamp = Annotated[
    float,
    PlainSerializer(utc_text, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}, mode="serialization"),
]
"""Seconds since 1970 inside, RFC 3339 outside."""

DigestText = Annotated[str, Field(pattern=DIGEST_PATTERN, examples=["sha256:" + "0" * 64])]


def _as_name(text: str) -> str:
    name = clean_name(text)
    if not name:
        raise ValueError("a name of which nothing can be seen")
    return name


NameText = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_as_name)]
"""A name by which people tell things apart."""


def _is_number(kind: Any) -> bool:
    """Whether a field holds numbers, or nothing: true and false would be taken for 1 and 0."""
    arms = {kind, *get_args(kind)}
    return bool(arms & {int, float}) and bool not in arms


class RequestBody(BaseModel):
    """A JSON request: unknown fields, and texts that no database keeps, are refused by name."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def check_text(cls, value: Any, info: ValidationInfo) -> Any:
        """Raises: ValueError."""
        if isinstance(value, bool) and _is_number(cls.model_fields[info.field_name or ""].annotation):
            raise ValueError(f"expected a number, not {str(value).lower()}")
        strange = strange_character(value) if isinstance(value, str) else None
        if strange is not None:
            raise ValueError(f"a text with the character {strange}, which is not text")
        return value


class View(BaseModel):
    """A row as the API shows it."""

    model_config = ConfigDict(from_attributes=True)


def columns(view: type[View], row: object) -> dict[str, Any]:
    """Returns the fields of the view that the row has under the same name."""
    return {name: getattr(row, name) for name in view.model_fields if hasattr(row, name)}


class Problem(BaseModel):
    """An RFC 9457 problem document."""

    type: str
    title: str
    status: int
    detail: str
    cause: str
    code: str
    instance: str | None = None
    where: str | None = None
    hint: str | None = None


class Ending(View):
    """Why a job or run ended as it did; null when it succeeded or is still open."""

    cause: str
    """model, compiler, limits, device, infra, service, user or policy."""
    code: str
    message: str
    where: str = ""
    hint: str = ""


Confidence = Literal["fair", "rough", "unknown"]
"""How sure an expected time is."""


class EventView(BaseModel):
    """An event of a job or run."""

    id: int
    at: Timestamp
    kind: str
    body: dict[str, Any]


PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "A typed refusal",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    },
    "5XX": {
        "description": "A failure of the farm",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    },
}
SIGNED: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {"schema": {"type": "object"}}}}}
"""Answers that are envelopes, in the bytes that were signed."""
