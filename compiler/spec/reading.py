"""Reads a user's JSON or YAML text into plain data, within limits that hold before anything is built of it.

Limits: `MAX_TEXT_BYTES` of text, `MAX_DEPTH` levels, `MAX_NODES` values, integers of 64 bits. Refused: anchors and
aliases (a few lines of them stand for gigabytes), a field given twice, tags, control characters, lone surrogates.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import yaml

from compiler.errors import CompileError

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # PyYAML built without libyaml: twenty times slower, under the same limits
    from yaml import SafeLoader  # type: ignore[assignment]

MAX_TEXT_BYTES = 1 << 16
MAX_DEPTH = 16
MAX_NODES = 20_000
MAX_NUMBER_CHARACTERS = 40
INTEGER_BITS = 64
_YAML = "tag:yaml.org,2002:"


class _Refused(Exception):
    """Readable, but not taken; `line` from 1, or 0 if it is not known."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


def read_mapping(
    source: str | bytes | Mapping[str, object], what: str, error: type[CompileError]
) -> Mapping[str, object]:
    """The fields of `source`: JSON or YAML text, or plain data. Empty text: no fields. Raises: `error`."""
    try:
        value = source if isinstance(source, Mapping) else _parse(_text_bytes(source))
        _check_values(value)
    except _Refused as refused:
        raise error(str(refused), where=f"{what}, line {refused.line}" if refused.line else what) from None
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        _unreadable(source, what, problem, error)
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise error(
            f"expected a mapping of names, got {type(value).__name__}",
            where=what,
            hint="see the guide on plans and specs",
        )
    return value


def _text_bytes(source: str | bytes) -> bytes:
    data = source.encode() if isinstance(source, str) else source
    if len(data) > MAX_TEXT_BYTES:
        raise _Refused(f"{len(data):,} bytes, the limit is {MAX_TEXT_BYTES:,}")
    return data


def _parse(data: bytes) -> object:
    if data.lstrip()[:1] == b"{":  # JSON, whose \ud83d\ude00 is one character and not two
        try:
            return json.loads(data, object_pairs_hook=_unique)
        except (json.JSONDecodeError, UnicodeDecodeError):
            pass  # YAML may begin like that too
    _check_structure(data)
    return yaml.load(data, Loader=PlainLoader)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Refused(f"field {next(n for n in names if names.count(n) > 1)!r:.60} is given twice")
    return mapping


def _check_structure(data: bytes) -> None:
    """Depth, count and absence of anchors, from events alone: nothing is built yet."""
    depth = nodes = 0
    for event in yaml.parse(data, Loader=PlainLoader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        nodes += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            raise _Refused("anchors and aliases (& and *) are not taken; write the value out", line)
        if depth > MAX_DEPTH:
            raise _Refused(f"nested more than {MAX_DEPTH} levels deep", line)
        if nodes > MAX_NODES:
            raise _Refused(f"more than {MAX_NODES:,} values", line)


def _check_values(root: object) -> None:
    """The limits on values, and once more on structure: JSON and plain data have had no look at theirs."""
    level, nodes, depth = [root], 1, 0
    while level:
        nodes += sum(len(value) for value in level if isinstance(value, (Mapping, list)))
        if depth > MAX_DEPTH or nodes > MAX_NODES:
            raise _Refused(
                f"nested more than {MAX_DEPTH} levels deep" if depth > MAX_DEPTH else f"more than {MAX_NODES:,} values"
            )
        for value in level:
            _check_scalar(value)
        level = [child for value in level for child in _children(value)]
        depth += 1


def _children(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    return list(value) if isinstance(value, list) else []


def _check_scalar(value: object) -> None:
    if isinstance(value, int) and value.bit_length() >= INTEGER_BITS:
        raise _Refused(f"an integer of {value.bit_length():,} bits, the limit is {INTEGER_BITS} with its sign")
    if isinstance(value, str):
        strange = next((c for c in value if (c < " " and c not in "\t\n\r") or "\ud800" <= c <= "\udfff"), None)
        if strange is not None:
            raise _Refused(f"a text with the character U+{ord(strange):04X}, which is not text")


class PlainLoader(SafeLoader):
    """Builds mappings, lists, texts, numbers, booleans and nulls, and nothing else."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """The mapping, whose keys are names, also those that YAML takes for truth values (`on`, `no`).

        Raises: `_Refused` for a key that is given twice (YAML's own loader takes the last).
        """
        keys = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode):
                if key.tag == f"{_YAML}bool":
                    key.tag = f"{_YAML}str"
                if (key.tag, key.value) in keys:
                    raise _Refused(f"field {key.value!r:.60} is given twice", key.start_mark.line + 1)
                keys.add((key.tag, key.value))
        return super().construct_mapping(node, deep)

    def construct_short_number(self, node: Any) -> int | float:
        """A number in any of YAML's notations; long ones take quadratic time to read."""
        if len(node.value) > MAX_NUMBER_CHARACTERS:
            raise _Refused(
                f"a number of {len(node.value):,} characters, the limit is {MAX_NUMBER_CHARACTERS}",
                node.start_mark.line + 1,
            )
        if node.tag == f"{_YAML}int":
            return int(self.construct_yaml_int(node))
        value = float(self.construct_yaml_float(node))
        return value if math.isfinite(value) else math.nan

    def construct_tagged(self, node: Any) -> NoReturn:
        """Refuses what has no place in a plan or spec."""
        raise _Refused(f"the tag {node.tag.replace(_YAML, '!!')!r:.60} is not taken", node.start_mark.line + 1)


def _constructors() -> dict[str | None, Callable[..., Any]]:
    return {
        f"{_YAML}null": PlainLoader.construct_yaml_null,
        f"{_YAML}bool": PlainLoader.construct_yaml_bool,
        f"{_YAML}int": PlainLoader.construct_short_number,
        f"{_YAML}float": PlainLoader.construct_short_number,
        f"{_YAML}str": PlainLoader.construct_yaml_str,
        f"{_YAML}timestamp": PlainLoader.construct_yaml_str,
        f"{_YAML}seq": PlainLoader.construct_yaml_seq,
        f"{_YAML}map": PlainLoader.construct_yaml_map,
        None: PlainLoader.construct_tagged,
    }


PlainLoader.yaml_constructors = _constructors()
PlainLoader.yaml_multi_constructors = {}


def _unreadable(source: object, what: str, problem: Exception, error: type[CompileError]) -> NoReturn:
    mark = getattr(problem, "problem_mark", None)
    lines = len(source.splitlines()) if isinstance(source, (str, bytes)) else 0
    place = f"{what}, line {min(mark.line + 1, lines)}" if mark is not None and lines else what
    reason = getattr(problem, "problem", None) or str(problem)[:200] or type(problem).__name__
    if isinstance(problem, RecursionError):
        reason = f"nested more than {MAX_DEPTH} levels deep"
    raise error(f"not readable as JSON or YAML: {reason}", where=place) from None
