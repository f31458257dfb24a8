"""Explanations for requests that do not have the shape of their address: pydantic's findings in words for people."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from pydantic import BaseModel

from service.base.identifiers import DIGEST_PATTERN

OPENAPI_HINT = "the shape of each request is in /openapi.json"
SECRET = re.compile("token|secret|key|passphrase")
"""Parts of the names of fields whose values are never quoted."""
LONGEST = 100
"""Characters of a field's name that are looked up."""


def explanation(item: Mapping[str, Any]) -> str:
    """Explains what is wrong with one field."""
    kind, given = item["type"], item.get("input")
    if kind == "extra_forbidden":
        return "there is no such field"
    if kind == "missing":
        return "this field is needed"
    if kind == "string_pattern_mismatch" and item.get("ctx", {}).get("pattern") == DIGEST_PATTERN:
        return f"{given!r:.80} is no whole digest, which is sha256: and 64 hexadecimal digits"
    if kind == "string_pattern_mismatch" and "device:" in str(item.get("ctx", {}).get("pattern")):
        return f"{given!r:.80} is neither a whole digest (sha256: and 64 hexadecimal digits) nor device:NAME"
    if kind in ("model_attributes_type", "dict_type", "model_type"):
        return "expected a JSON object"
    message = str(item["msg"]).removeprefix("Value error, ")
    is_short = isinstance(given, (str, int, float, bool)) and kind not in ("value_error", "json_invalid")
    is_short = is_short and not SECRET.search(str(item["loc"][-1:]))
    return f"{message}, not {given!r:.60}" if is_short else message


def next_step(request: Request, item: Mapping[str, Any]) -> str:
    """Returns a hint: the field that was meant, if one is near, else where all fields are described."""
    kind, place = item["type"], item["loc"]
    if kind == "string_pattern_mismatch" and item.get("ctx", {}).get("pattern") == DIGEST_PATTERN:
        return "write it out as it was printed; GET /bundles and GET /datasets list those that there are"
    if tuple(place) == ("body",) and kind in ("model_attributes_type", "dict_type", "model_type"):
        return f"send one JSON object, with the header Content-Type: application/json; {OPENAPI_HINT}"
    if kind == "string_pattern_mismatch" and "device:" in str(item.get("ctx", {}).get("pattern")):
        return "names of data sets choose nothing: GET /datasets lists names and digests"
    if kind in ("literal_error", "enum"):
        choices = re.findall(r"'([^']{1,60})'", str(item.get("ctx", {}).get("expected", "")))
        near = difflib.get_close_matches(str(item.get("input"))[:LONGEST], choices, n=1)
        return f"did you mean {near[0]!r}?" if near else OPENAPI_HINT
    if kind != "extra_forbidden" or len(place) != 2 or place[0] != "body":
        return OPENAPI_HINT
    choices = _fields(request)
    near = difflib.get_close_matches(str(place[1])[:LONGEST], choices, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(choices)}" if choices else OPENAPI_HINT


def _fields(request: Request) -> list[str]:
    field = getattr(request.scope.get("route"), "body_field", None)
    kinds = [field.field_info.annotation] if field is not None else []
    kinds += [arm for kind in kinds for arm in getattr(kind, "__args__", ())]
    models = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return next((list(model.model_fields) for model in models), [])
