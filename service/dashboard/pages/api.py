"""The API, read from its own description (OpenAPI): groups, endpoints, what each takes and answers, a line to copy."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from service.people.permissions import Permissions, Rule

SUCCESS = "Successful Response"
"""FastAPI's description of an answer that nobody described."""
SCOPE_WORDS = {
    "read": "any key",
    "submit": "a key that may submit",
    "operate": "an operator's key",
    "admin": "an administrator's key",
}
DEEPEST = 2
"""Bodies within bodies whose fields are listed; deeper ones are only named."""


@dataclass(frozen=True, slots=True)
class Member:
    """A parameter, or a field of a body or answer; `depth` is how far inside another it is."""

    name: str
    place: str
    kind: str
    is_required: bool
    message: str
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """A possible answer: a status, and the name of its document in `ApiPage.documents`, if it has fields."""

    status: str
    message: str
    kind: str
    document: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A method of an address."""

    id: str
    method: str
    path: str
    summary: str
    message: str
    who: str
    parameters: tuple[Member, ...]
    body_kind: str
    body: tuple[Member, ...]
    answers: tuple[Answer, ...]
    curl: str

    @property
    def words(self) -> str:
        """Text that the filter searches."""
        return f"{self.method} {self.path} {self.summary} {self.message}".lower()


@dataclass(frozen=True, slots=True)
class Document:
    """The contents of answers: a schema's fields, told once."""

    id: str
    name: str
    message: str
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class ApiPage:
    """The whole reference."""

    farm: str
    groups: tuple[tuple[str, tuple[Endpoint, ...]], ...]
    documents: tuple[Document, ...]
    problem: tuple[Member, ...]

    @property
    def count(self) -> int:
        """Number of endpoints."""
        return sum(len(endpoints) for _, endpoints in self.groups)


def api_page(described: Mapping[str, Any], farm: str, permissions: Permissions) -> ApiPage:
    """Returns the page that describes the API. `described`: the OpenAPI document; `farm`: the address under which
    people reach it.
    """
    reader = _Reader(described.get("components", {}).get("schemas", {}), farm.rstrip("/"), permissions)
    groups: dict[str, list[Endpoint]] = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            group = next(iter(operation.get("tags", ())), "others")
            groups.setdefault(group, []).append(reader.endpoint(method.upper(), path, operation))
    ordered = {name: groups.pop(name) for name in FIRST if name in groups} | dict(sorted(groups.items()))
    return ApiPage(
        farm,
        tuple((name, tuple(endpoints)) for name, endpoints in ordered.items()),
        tuple(reader.documents()),
        tuple(reader.members(reader.schemas.get("Problem", {}))),
    )


FIRST = ("jobs", "bundles", "datasets", "runs", "devices")
"""Groups in the order in which one meets them; the others by name."""


@dataclass(slots=True)
class _Reader:
    schemas: Mapping[str, Any]
    farm: str
    permissions: Permissions
    wanted: dict[str, None] = field(default_factory=dict)
    """Documents that an answer names, in the order of their first mention."""

    def endpoint(self, method: str, path: str, operation: Mapping[str, Any]) -> Endpoint:
        body_kind, body = self._body(operation.get("requestBody", {}))
        return Endpoint(
            id=f"{method}{path}".lower().translate(_TO_ID),
            method=method,
            path=path,
            summary=str(operation.get("summary", "")),
            message=str(operation.get("description", "")),
            who=_who(self.permissions.rule_of(f"{method} {path}")),
            parameters=tuple(self._parameter(parameter) for parameter in operation.get("parameters", ())),
            body_kind=body_kind,
            body=tuple(self.members(body)),
            answers=tuple(self._answers(operation)),
            curl=self._curl(method, path, body_kind, body, is_open="security" not in operation),
        )

    def documents(self) -> Iterator[Document]:
        """Yields the documents that answers name, and those that these contain."""
        done: set[str] = set()
        while remaining := [name for name in self.wanted if name not in done]:
            for name in remaining:
                done.add(name)
                schema = self.schemas[name]
                message = str(schema.get("description", ""))
                yield Document(document_id(name), name, message, tuple(self.members(schema, deepest=0)))

    def members(self, schema: Mapping[str, Any], depth: int = 0, deepest: int = DEEPEST) -> Iterator[Member]:
        """Yields the fields of a body or document, with those of its parts after each, as deep as `deepest`; a list's
        are its items'. Parts that lie deeper are documents of their own.
        """
        whole = self._resolved(schema)
        required = whole.get("required", ())
        for name, property_schema in whole.get("properties", {}).items():
            message = str(property_schema.get("description", ""))
            yield Member(name, "", self.kind(property_schema), name in required, message, depth)
            inner = self._part(property_schema)
            if inner and depth < deepest:
                yield from self.members(self.schemas[inner], depth + 1, deepest)
            elif inner:
                self.wanted.setdefault(inner)

    def kind(self, schema: Mapping[str, Any]) -> str:
        """Returns a type in words: `integer, 1 to 200`, `list of JobView`."""
        if "$ref" in schema:
            return _referred(schema)
        choices = [
            choice for key in ("anyOf", "oneOf") for choice in schema.get(key, ()) if choice.get("type") != "null"
        ]
        if choices:
            return " or ".join(dict.fromkeys(self.kind(choice) for choice in choices))
        if "enum" in schema or "const" in schema:
            return " | ".join(map(str, schema.get("enum", [schema.get("const")])))
        if schema.get("type") == "array":
            return f"list of {self.kind(schema.get('items', {}))}"
        if schema.get("format") == "binary":
            return "file"
        named = str(schema.get("type", "any"))
        return named + _bounds(schema)

    def _parameter(self, parameter: Mapping[str, Any]) -> Member:
        schema = parameter.get("schema", {})
        message = str(parameter.get("description", schema.get("description", "")))
        kind = self.kind(schema)
        if schema.get("default") not in (None, ""):
            kind += f", {json.dumps(schema['default'])} unless said"
        return Member(parameter["name"], parameter["in"], kind, bool(parameter.get("required")), message)

    def _body(self, body: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        for media, content in body.get("content", {}).items():
            return media, content.get("schema", {})
        return "", {}

    def _answers(self, operation: Mapping[str, Any]) -> Iterator[Answer]:
        for status, response in operation.get("responses", {}).items():
            description = str(response.get("description", ""))
            for media, content in (response.get("content") or {"": {}}).items():
                schema = content.get("schema", {})
                name = self._part(schema)
                if name and name != "Problem":
                    self.wanted.setdefault(name)
                kind = self.kind(schema) if schema.get("type") or name else media
                yield Answer(
                    status, "" if description == SUCCESS else description, kind, document_id(name) if name else ""
                )

    def _part(self, schema: Mapping[str, Any]) -> str:
        """Returns the name of the schema that a field is, or is a list of."""
        parts = [schema, schema.get("items", {}), *schema.get("anyOf", ()), *schema.get("oneOf", ())]
        parts += [part["items"] for part in parts if isinstance(part.get("items"), Mapping)]
        named = (_referred(part) for part in parts if "$ref" in part)
        return next((name for name in named if "properties" in self.schemas.get(name, {})), "")

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        resolved: Mapping[str, Any] = self.schemas.get(_referred(schema), {}) if "$ref" in schema else schema
        return resolved

    def _curl(self, method: str, path: str, body_kind: str, body: Mapping[str, Any], *, is_open: bool) -> str:
        is_said = method == "GET" or (method == "POST" and body_kind)  # curl itself says GET, and POST with a body
        words = ["curl", *([] if is_said else ["-X", method])]
        if not is_open:
            words += ["-H", '"Authorization: Bearer $POCKFARM_KEY"']
        required = [member for member in self.members(body) if member.is_required and not member.depth]
        if body_kind == "multipart/form-data":
            for member in required:
                words += ["-F", f"{member.name}={'@FILE' if 'file' in member.kind else member.name.upper()}"]
        elif body_kind == "application/json":
            sample = json.dumps({member.name: member.name.upper() for member in required})
            words += ["-H", '"Content-Type: application/json"', "-d", shlex.quote(sample)]
        elif body_kind:
            words += ["-H", f'"Content-Type: {body_kind}"', "--data-binary", "@FILE"]
        return " ".join([*words, f'"{self.farm}{_with_names(path)}"'])


_TO_ID = str.maketrans({"/": "-", "{": "", "}": "", ".": "-", "_": "-"})


def document_id(name: str) -> str:
    """Returns the anchor of a document."""
    return f"doc-{name.lower().strip('_').replace('_', '-')}"


def _referred(schema: Mapping[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _with_names(path: str) -> str:
    """Writes `/jobs/{job_id}` as a shell fills it in: `/jobs/$JOB_ID`."""
    parts = path.split("/")
    return "/".join(f"${part.strip('{}').upper()}" if part.startswith("{") else part for part in parts)


def _bounds(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f", {low:,} to {high:,}"
    if low is not None or high is not None:
        return f", at least {low:,}" if low is not None else f", at most {high:,}"
    most = schema.get("maxLength")
    return f", at most {most:,} characters" if most is not None else ""


def _who(rule: Rule) -> str:
    if rule.is_devices:
        return "a device, by its credential"
    if rule.scope is None:
        return "anybody"
    return SCOPE_WORDS[rule.scope] + (" of the farm's own organisation" if rule.is_farms else "")
