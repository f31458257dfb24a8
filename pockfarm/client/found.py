"""Which farm is meant, and by which key.

As given; else, with a `state` folder, the farm of that folder; else, with a `profile`, that one; else by the
environment (`POCKFARM_URL` and `POCKFARM_API_KEY`, then `POCKFARM_PROFILE`); else the profile called `default`; else
the farm that `pockfarm up` started on this machine, whatever folder one stands in.
"""

from __future__ import annotations

import os

from pockfarm import profiles
from pockfarm.errors import UsageError
from pockfarm.state import StateFolder, farm_here


def found(
    url: str | None, api_key: str | None, state: StateFolder | None = None, profile: str | None = None
) -> tuple[str, str]:
    """Address and key. Raises: UsageError when one of them is nowhere, and says where it was looked for."""
    if url and api_key:
        return _address(url), api_key
    if state is not None and profile is not None:
        raise UsageError("a state folder and a profile both say which farm: give one")
    if state is None:
        named = profile or ""
        if not named:
            url = url or os.environ.get("POCKFARM_URL", "")
            api_key = api_key or os.environ.get("POCKFARM_API_KEY", "")
            named = os.environ.get("POCKFARM_PROFILE", "")
        if not (url and api_key):
            url, api_key = _of_profile(url, api_key, named)
        if url and api_key:
            return _address(url), api_key
    return _of_folder(url, api_key, state or farm_here())


def _address(url: str) -> str:
    """Without what is at its end. Raises: UsageError for what is no address of a web server."""
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url} is no farm's address: write it as http://{url}, or https://")
    return url.rstrip("/")


def _of_profile(url: str | None, api_key: str | None, named: str) -> tuple[str | None, str | None]:
    """What is missing, from the profile; an address that was given keeps its key from going elsewhere."""
    if not named and profiles.DEFAULT not in profiles.profiles():
        return url, api_key
    one = profiles.profile(named or profiles.DEFAULT)
    if url and url.rstrip("/") != one.url.rstrip("/"):
        return url, api_key
    return url or one.url, api_key or one.api_key


def _of_folder(url: str | None, api_key: str | None, folder: StateFolder) -> tuple[str, str]:
    status = folder.status()
    url = url or (status.url if status else "")
    key = api_key or folder.api_key() or ""
    if not url or not key:
        known = sorted(profiles.profiles())
        named = f"choose a profile ({', '.join(known)}) by POCKFARM_PROFILE" if known else "run `pockfarm init`"
        raise UsageError(
            f"no farm: set POCKFARM_URL and POCKFARM_API_KEY, or start one with `pockfarm up` "
            f"(its state folder would be {folder.path})\n  for a farm elsewhere: {named}"
        )
    return url.rstrip("/"), key
