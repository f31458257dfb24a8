"""The published JSON Schema of plans and specs is what their reader takes; every field stands in the guide."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from compiler.errors import CompileError
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.spec.reading import PlainLoader
from compiler.spec.schema import DOCUMENTS, published_schema, schema_text
from tests.architecture.sources import ROOT
from tests.compiler.from_schema import documents, examples
from tests.thorough.docs.snippets import snippets

PARSE: dict[str, Callable[..., Any]] = {"plan": SparsePlan.parse, "spec": TrainingSpec.parse}
SCHEMAS = {name: published_schema(name) for name in DOCUMENTS}
VALIDATORS = {name: Draft202012Validator(schema) for name, schema in SCHEMAS.items()}
EXAMPLES = {name: list(examples(schema)) for name, schema in SCHEMAS.items()}
JUNK: list[Any] = [True, -1, 3.5, 10**9, "no such word", [], {}, ["a"], [[1]], {"a": 1}, float("inf")]
NO_RULE = "nothing"
"""Of what a reader says of a document that is right field by field: the schema knows no meaning."""


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_the_file_in_the_repository_is_the_schema(name: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[name])
    assert (ROOT / f"docs/schema/{name}.json").read_text() == schema_text(name), "run `make golden`"


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_every_default_is_what_the_schema_takes(name: str) -> None:
    for inner in _schemas(SCHEMAS[name]):
        if "default" in inner:
            Draft202012Validator(inner).validate(inner["default"])


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_an_example_of_every_field_and_choice_is_read(name: str) -> None:
    for document in EXAMPLES[name]:
        VALIDATORS[name].validate(document)
        if name == "plan":
            document = {"preset": "full", **document}
            document["preset"] = "full" if document["preset"] == "frozen" else document["preset"]
        read = PARSE[name](document)
        VALIDATORS[name].validate(json.loads(read.canonical_json()))
        assert PARSE[name](read.canonical_json()) == read


@pytest.mark.parametrize("page", ["guide/plans.md", "guide/adapters.md", "guide/specs.md", "contracts.md"])
def test_the_examples_on_a_page_are_taken(page: str) -> None:
    found = 0
    for snippet in snippets(f"docs/{page}"):
        with contextlib.suppress(yaml.YAMLError):
            body = yaml.load(snippet.text, Loader=PlainLoader)
            if not isinstance(body, dict) or "|" in snippet.text:
                continue
            for name, words in (("plan", {"update", "scheme"}), ("spec", {"batch", "loss", "optimizer"})):
                if words & body.keys():
                    VALIDATORS[name].validate(body)
                    PARSE[name](body)
                    found += 1
    assert found >= 1 if page in ("contracts.md", "guide/adapters.md") else found >= 3


def test_every_field_and_choice_stands_in_the_guide() -> None:
    guide = "".join(path.read_text() for path in (ROOT / "docs/guide").glob("*.md"))
    words = {word for schema in SCHEMAS.values() for word in _words(schema)}
    assert len(words) > 40
    assert sorted(word for word in words if not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", guide)) == []


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_what_is_misspelt_by_a_letter_is_refused_with_the_nearest_name(name: str) -> None:
    tried = set()
    for document in EXAMPLES[name]:
        for path, right in _names_in(document, SCHEMAS[name]):
            wrong = right[:2] + right[1:]
            with pytest.raises(CompileError) as refusal:
                PARSE[name](_misspelt(document, path, wrong))
            assert re.search(
                rf"(did you mean|belongs to).*{re.escape(right)}|one of.*\b{re.escape(right)}\b", str(refusal.value)
            ), (document, wrong, str(refusal.value))
            tried.add(right)
    assert tried >= set(_words(SCHEMAS[name])) - {"frozen"}


@settings(max_examples=200)
@given(st.data())
def test_what_the_reader_takes_the_schema_takes(data: st.DataObject) -> None:
    """Nulls, numbers as text and a lone group apart (`compiler.spec.schema`): these are not drawn."""
    name = data.draw(st.sampled_from(sorted(DOCUMENTS)))
    document = data.draw(documents(SCHEMAS[name]))
    VALIDATORS[name].validate(document)
    changed = data.draw(_changed(document))
    for one in (document, changed):
        with contextlib.suppress(CompileError):
            read = PARSE[name](one)
            VALIDATORS[name].validate(one)
            VALIDATORS[name].validate(json.loads(read.canonical_json()))


@st.composite
def _changed(draw: st.DrawFn, document: Any) -> Any:
    """With junk somewhere in it, or a field that nobody knows."""
    places = list(_places(document))
    path = draw(st.sampled_from(places))
    changed = copy.deepcopy(document)
    if not path:
        return changed
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = draw(st.sampled_from(JUNK))
    return changed


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*path, key))


def _schemas(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _schemas(inner)


def _words(schema: Any) -> Iterator[str]:
    for inner in _schemas(schema):
        yield from inner.get("properties", {})
        yield from (one for one in inner.get("enum", ()) if isinstance(one, str))
        yield from [inner["const"]] if "const" in inner else []


def _names_in(document: Any, schema: Any) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Places of a document where a field's name or a choice stands."""
    known = set(_words(schema))
    for path in _places(document):
        value = document
        for key in path:
            value = value[key]
        if path and isinstance(path[-1], str) and path[-1] in known:
            yield (*path[:-1], "name of", path[-1]), path[-1]
        if isinstance(value, str) and value in known:
            yield path, value


def _misspelt(document: Any, path: tuple[Any, ...], wrong: str) -> Any:
    changed = copy.deepcopy(document)
    at = changed
    is_name = len(path) > 1 and path[-2] == "name of"
    for key in path[:-2] if is_name else path[:-1]:
        at = at[key]
    if not is_name:
        at[path[-1]] = wrong
        return changed
    entries = [(wrong if key == path[-1] else key, value) for key, value in at.items()]
    at.clear()
    at.update(entries)
    return changed
