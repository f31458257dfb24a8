"""The published JSON Schema (2020-12) of plans and specs, as it follows from their fields.

What it takes the reader may still refuse: limits of texts, what depends on several fields or on the model. The reader
takes four things that it does not: numbers as text (YAML 1.1 reads `1e-3` so), null in place of a field that is left
out, a preset's name in place of a plan, and one group of names that stands in no list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from inspect import getdoc
from types import MappingProxyType
from typing import Any

from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.spec.forms import Json
from compiler.spec.records import schema_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"
DOCUMENTS: Mapping[str, tuple[str, type[Any]]] = MappingProxyType(
    {"plan": ("PockFarm plan", SparsePlan), "spec": ("PockFarm spec", TrainingSpec)}
)
"""Name of a document -> its title, and its record."""


def published_schema(name: str) -> dict[str, Json]:
    """The schema of a kind of document. Raises: KeyError."""
    title, record = DOCUMENTS[name]
    words = (getdoc(record) or "").splitlines()[0]
    head = {"$schema": DIALECT, "$id": f"urn:pockfarm:schema:{name}", "title": title, "description": words}
    return {**head, **schema_of(record)}


def schema_text(name: str) -> str:
    """Returns the published schema as the text of a file. Raises: KeyError."""
    return json.dumps(published_schema(name), indent=2) + "\n"
