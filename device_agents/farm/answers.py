"""Reads the farm's answers: a status that is no success is an error, with the farm's own sentence."""

from __future__ import annotations

import http.client
import json
import re

from device_agents.errors import Busy, Refused, Stale, Unauthorized

MOST_REASON_CHARACTERS = 4000
"""Length of a refusal's reason in messages and the log, at most."""
_LEASE = re.compile(r"(/agent/attempts/)[^/\s\"]+")


def raise_for(method: str, path: str, answer: http.client.HTTPResponse, body: bytes) -> None:
    """Do nothing if the answer is a success. Raises: `FarmError`, with what the farm says."""
    status = answer.status
    if 200 <= status < 300:
        return
    code, reason = _reason(body)
    message = without_lease(f"{method} {path}: {status} {answer.reason}: {reason}")
    if status == 401:
        raise Unauthorized(message, status=status, code=code, reason=reason)
    if status == 409:
        raise Stale(message, status=status, code=code, reason=reason)
    if status == 429 or status >= 500:
        retry_after_s = _seconds(answer.headers.get("Retry-After"))
        raise Busy(message, status=status, retry_after_s=retry_after_s, code=code, reason=reason)
    raise Refused(message, status=status, code=code, reason=reason)


def _reason(body: bytes) -> tuple[str, str]:
    """The code of a farm's problem document, and its sentence with the next step; of another answer the first
    characters."""
    text = body[:MOST_REASON_CHARACTERS].decode("utf-8", "replace")
    try:
        problem = json.loads(text)
        hint = f"; {problem['hint']}" if problem.get("hint") else ""
        return str(problem.get("code", "")), f"{problem['detail']}{hint}"
    except (ValueError, LookupError, TypeError, AttributeError):
        return "", text


def without_lease(text: str) -> str:
    """A message without the lease token of its path: a token is the right to write, and messages go into logs."""
    return _LEASE.sub(r"\1...", text)


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isascii() and text.isdigit() else None
