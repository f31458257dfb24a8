"""Documents made from a JSON Schema: one for every field and choice, and any at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import strategies as st

Schema = Mapping[str, Any]
Document = Any


def examples(schema: Schema) -> Iterator[Document]:
    """Documents that together have every field and every choice of the schema."""
    if "anyOf" in schema or ("oneOf" in schema and "properties" not in schema):
        for one in schema.get("anyOf", schema.get("oneOf", ())):
            yield from examples(one)
    elif "enum" in schema:
        yield from schema["enum"]
    elif "const" in schema:
        yield schema["const"]
    elif schema.get("type") == "object":
        yield from _objects(schema)
    elif schema.get("type") == "array":
        least = max(1, schema.get("minItems", 0))
        for item in examples(schema["items"]):
            yield [item] * least
    else:
        yield _least(schema)


def _objects(schema: Schema) -> Iterator[Document]:
    properties = schema.get("properties")
    if properties is None:
        for value in examples(schema["additionalProperties"]):
            yield {"a name": value}
        return
    for name, inner in properties.items():
        base = {one: next(examples(properties[one])) for one in needed(schema, name)}
        for value in examples(inner):
            yield {**base, name: value}


def needed(schema: Schema, beside: str = "") -> list[str]:
    """The fields that an object must have, one of those of which it has one among them."""
    selectors = [one["required"][0] for one in schema.get("oneOf", ()) if "required" in one]
    chosen = [] if not selectors else [beside if beside in selectors else selectors[0]]
    return [*schema.get("required", ()), *chosen]


def _least(schema: Schema) -> Document:
    if schema["type"] == "string":
        return "1-2" if "pattern" in schema else "text"
    if schema["type"] == "boolean":
        return True
    return None if schema["type"] == "null" else max(schema.get("minimum", 1), min(1, schema.get("maximum", 1)))


def documents(schema: Schema) -> st.SearchStrategy[Document]:
    """Any documents that the schema takes."""
    if "anyOf" in schema or ("oneOf" in schema and "properties" not in schema):
        return st.one_of(*map(documents, schema.get("anyOf", schema.get("oneOf", ()))))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "object":
        return _any_object(schema)
    if schema.get("type") == "array":
        return st.lists(documents(schema["items"]), min_size=schema.get("minItems", 0), max_size=3)
    return _any_scalar(schema)


@st.composite
def _any_object(draw: st.DrawFn, schema: Schema) -> Document:
    properties = schema.get("properties")
    if properties is None:
        return draw(
            st.dictionaries(st.text("abcXYZ", min_size=1), documents(schema["additionalProperties"]), max_size=2)
        )
    selectors = {one["required"][0] for one in schema.get("oneOf", ()) if "required" in one}
    optional = [name for name in properties if name not in selectors]
    chosen = draw(st.lists(st.sampled_from(optional), unique=True, max_size=3)) if optional else []
    beside = draw(st.sampled_from(sorted(selectors))) if selectors else ""
    return {name: draw(documents(properties[name])) for name in dict.fromkeys((*needed(schema, beside), *chosen))}


def _any_scalar(schema: Schema) -> st.SearchStrategy[Document]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if "pattern" in schema:
        return st.sampled_from(["0-3", "2-2"])
    if schema["type"] == "string":
        return st.text("abcXYZ", min_size=1, max_size=8)
    if schema["type"] == "integer":
        return st.integers(low, high)
    if schema["type"] == "number":
        return st.floats(low, high, allow_nan=False, allow_infinity=False)
    return st.booleans() if schema["type"] == "boolean" else st.none()
