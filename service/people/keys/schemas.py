"""Bodies of the key and link endpoints."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from service.base.schemas import NameText, RequestBody, Timestamp, View
from service.people.permissions import SCOPES, Scope, scopes_of
from service.store.database.models import ApiKey

MOST_LIFETIME_S = 10 * 366 * 86400.0


class KeyCreate(RequestBody):
    """A new key. Without scopes it has those of its role: `user` reads and submits, `operator` has all."""

    name: NameText
    role: Literal["user", "operator"] | None = None
    scopes: list[Scope] | None = Field(default=None, min_length=1, max_length=len(SCOPES))
    user: str | None = Field(default=None, max_length=100, description="Id of the person whose key it is")
    lifetime_s: float | None = Field(
        default=None, gt=0, le=MOST_LIFETIME_S, allow_inf_nan=False, description="Until it expires; null: never"
    )

    @model_validator(mode="after")
    def check_scopes(self) -> Self:
        """Raises: ValueError."""
        if self.role is not None and self.scopes is not None:
            raise ValueError("role and scopes both say what the key may do: give one of them")
        return self


class KeyView(View):
    """A key without its secret."""

    id: str
    name: str
    organisation_id: str
    user_id: str | None
    """Whose it is; null: a program's."""
    role: Literal["user", "operator"]
    """`operator`: it has the scope `operate`."""
    scopes: list[Scope]
    created_at: Timestamp
    expires_at: Timestamp | None
    last_used_at: Timestamp | None
    """When the key was last used, to the minute."""
    revoked_at: Timestamp | None
    unconfirmed_at: Timestamp | None
    """Since when, after a restore, it waits for whoever runs the farm to say that it is still good."""


def key_view(key: ApiKey) -> KeyView:
    """Returns the view of a key's row for the API."""
    plain = {name: getattr(key, name) for name in KeyView.model_fields if name != "scopes"}
    granted = scopes_of(key.role, key.scopes)
    return KeyView(**plain, scopes=[scope for scope in SCOPES if scope in granted])


class KeyCreated(KeyView):
    """A key with its secret, shown this once."""

    secret: str


class LinkCreated(View):
    """A one-time link into the dashboard."""

    url: str
    token: str
    expires_at: Timestamp
