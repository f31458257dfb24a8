"""`GET /schemas/{name}`: open to all, so that editors can check a plan or spec while it is written."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter

from compiler.spec.schema import published_schema

router = APIRouter(tags=["schemas"])


@router.get("/schemas/{name}")
def show_schema(name: Literal["plan", "spec"]) -> dict[str, Any]:
    """Returns the JSON Schema (2020-12) of a plan or a spec."""
    return published_schema(name)
