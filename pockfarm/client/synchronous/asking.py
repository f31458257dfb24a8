# Made from pockfarm/client/asynchronous/asking.py by scripts/synchronous.py: change that one, then `make golden`.
"""Asking a farm, and again while it is silent or busy."""

from __future__ import annotations

import time

import httpx

from pockfarm.client import answers
from pockfarm.client.calls import Ask
from pockfarm.errors import Unreachable, UsageError


def answered(url: str, ask: Ask) -> httpx.Response:
    """The answer of the farm at `url`, asked for from the beginning while it is silent or busy.

    Raises: Unreachable after the last attempt; as `checked`.
    """
    for attempt in range(1, answers.ATTEMPTS + 1):
        try:
            answer = ask()
        except RuntimeError as problem:
            if "closed" not in str(problem):
                raise
            raise UsageError("this client was closed: ask inside its `with`, or open another one") from None
        except httpx.HTTPError as problem:
            if attempt == answers.ATTEMPTS:
                hint = answers.silent(url, problem)
                raise Unreachable(f"no answer from the farm at {url}: {problem}", hint=hint) from None
        else:
            if answer.status_code not in answers.BUSY or attempt == answers.ATTEMPTS:
                return answers.checked(answer)
        time.sleep(answers.RETRY_PAUSE_S)
    raise AssertionError("unreachable: the last attempt returns or raises")
