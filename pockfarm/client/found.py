"""Which farm is meant, and by which key."""

from __future__ import annotations

import os

from pockfarm.errors import UsageError
from pockfarm.state import StateFolder, default_state


def found(url: str | None, api_key: str | None, state: StateFolder | None) -> tuple[str, str]:
    """Address and key: as given, else those of `POCKFARM_URL` and `POCKFARM_API_KEY`, else of `pockfarm up` here.

    `state` is the folder of a farm on this machine, and comes before the environment.

    Raises: UsageError when one of them is nowhere.
    """
    if state is None:
        url = url or os.environ.get("POCKFARM_URL", "")
        api_key = api_key or os.environ.get("POCKFARM_API_KEY", "")
    if url and api_key:
        return url.rstrip("/"), api_key
    folder = state or default_state()
    status = folder.status()
    url = url or (status.url if status else "")
    key = api_key or folder.api_key() or ""
    if not url or not key:
        raise UsageError(
            f"no farm: set POCKFARM_URL and POCKFARM_API_KEY, or start one with `pockfarm up` "
            f"(its state folder would be {folder.path})"
        )
    return url.rstrip("/"), key
