"""Pages of a list, as requested and as answered."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel

from service.base.schemas import View

MAX_PAGE = 200
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Items on the page")]
Cursor = Annotated[str | None, Query(max_length=100, description="`next` of the page before")]
Item = TypeVar("Item", bound=View)


class Page(BaseModel, Generic[Item]):
    """A page of items, the newest first, and the cursor of the next page (null: this is the last)."""

    items: list[Item]
    next: str | None
