"""Reference pages that are made, not written: the API by its description, the command line by its parser, plan and spec
by their schemas."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pockfarm.cli import parser

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
WIDTH = "100"
"""Columns of a command's help."""


def write(root: Path, folder: Path) -> None:
    """Write every page into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    described = json.loads((root / "openapi.json").read_text())
    pages = {"api.md": api_page(described), "cli.md": cli_page()}
    for name in ("plan", "spec"):
        schema = json.loads((root / "docs/schema" / f"{name}.json").read_text())
        pages[f"{name}.md"] = schema_page(name, schema)
    for name, lines in pages.items():
        (folder / name).write_text("\n".join(lines) + "\n")


def cli_page() -> Iterator[str]:
    """Every command and subcommand with its own help."""
    os.environ["COLUMNS"] = WIDTH
    yield "# Command line"
    yield "\nThe help of every command, as `--help` prints it. [What they are for](../guide/farm.md).\n"
    yield from _command(parser(), 2)


def _command(one: argparse.ArgumentParser, depth: int) -> Iterator[str]:
    yield f"{'#' * min(depth, 4)} {one.prog}\n"
    text = _COLOUR.sub("", one.format_help()).rstrip()
    yield f"```text\n{text}\n```\n"
    for action in one._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in dict.fromkeys(action.choices.values()):
                yield from _command(below, depth + 1)


def api_page(described: Mapping[str, Any]) -> Iterator[str]:
    """Every address, by its tag: what it is for, what it takes and gives; then the forms of the bodies."""
    yield "# HTTP API"
    yield "\nEvery address of a farm, from its own description (OpenAPI 3.1: `/openapi.json` of every farm)."
    yield "[How the API is used](../api.md).\n"
    by_tag: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path, methods in described["paths"].items():
        for method, one in methods.items():
            by_tag.setdefault((one.get("tags") or ["other"])[0], []).append((method.upper(), path, one))
    for tag, all_of_tag in sorted(by_tag.items()):
        yield f"## {tag.replace('-', ' ').capitalize()}\n"
        for method, path, one in all_of_tag:
            yield from _operation(method, path, one)
    yield "## Bodies\n"
    for name, schema in sorted(described["components"]["schemas"].items()):
        yield f"### {name}\n"
        yield f"{_plain(schema.get('description', ''))}\n"
        if schema.get("properties"):
            yield from _fields(schema)


def _operation(method: str, path: str, one: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {method} {_code(path)}\n"
    yield f"{_plain(one.get('description', one.get('summary', '')))}\n"
    takes = [
        f"{_code(parameter['name'])} ({parameter['in']}{', required' if parameter.get('required') else ''}): "
        f"{_kind(parameter.get('schema', {}))}. {_plain(parameter.get('description', '')).replace(chr(10), ' ')}"
        for parameter in one.get("parameters", ())
    ]
    for media, content in one.get("requestBody", {}).get("content", {}).items():
        takes.append(f"body, {_code(media)}: {_kind(content.get('schema', {}))}")
    for code, response in one.get("responses", {}).items():
        kinds = [_kind(content.get("schema", {})) for content in response.get("content", {}).values()]
        takes.append(f"answers {code}: {_plain(response.get('description', ''))} {' or '.join(k for k in kinds if k)}")
    yield "\n".join(f"- {line.strip()}" for line in takes) + "\n"


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    yield "| field | what | |\n|---|---|---|"
    for name, one in schema["properties"].items():
        told = _plain(one.get("description", "")).replace("\n", " ").replace("|", "\\|")
        default = f" Default: {_code(json.dumps(one['default']))}." if "default" in one else ""
        more = " Required." if name in required else default
        yield f"| {_code(name)} | {_kind(one)} | {told}{more} |"
    yield ""


def schema_page(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """The fields of a document, those within others below them."""
    yield f"# Fields of a {name}"
    yield f"\n{_plain(schema['description'])}"
    yield f"The schema itself: `pockfarm schema {name}`, and `/schemas/{name}` of every farm.\n"
    yield from _object(name, schema, 1)


def _object(title: str, schema: Mapping[str, Any], depth: int) -> Iterator[str]:
    if depth > 1:
        yield f"{'#' * min(depth, 4)} {title}\n"
        yield f"{_plain(schema.get('description', ''))}\n"
    yield from _fields(schema)
    for field, one in schema["properties"].items():
        for below in _objects(one):
            kind = below["properties"].get("kind", {}).get("const")
            yield from _object(f"{field}: {kind}" if kind else field, below, depth + 1)


def _objects(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if schema.get("properties"):
        yield schema
        return
    nested = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if isinstance(schema.get("items"), dict):
        nested.append(schema["items"])
    for one in nested:
        yield from _objects(one)


def _kind(schema: Mapping[str, Any]) -> str:
    """A type in words: `integer, 1 to 65536`, `array of string`, a link to a body."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return _code(json.dumps(schema["const"]))
    if "enum" in schema:
        return ", ".join(_code(str(one)) for one in schema["enum"])
    if nested := (schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")):
        return " or ".join(dict.fromkeys(_kind(one) for one in nested))
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"array of {_kind(schema.get('items', {}))}"
    bounds = [f"{word} {schema[key]}" for word, key in (("from", "minimum"), ("to", "maximum")) if key in schema]
    if "maxLength" in schema:
        bounds.append(f"at most {schema['maxLength']} characters")
    return f"{kind} {' '.join(bounds)}".strip()


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def _plain(text: str) -> str:
    """Prose of ours as Markdown: stars and brackets stand for themselves, code stays code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<>\[\]{}$])", r"\\\1", part) for part in parts)
