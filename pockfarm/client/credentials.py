"""The address of the farm that is meant, and its API key.

As given; else, with a `state` folder, the farm of that folder; else, with a `profile`, that one; else by the
environment (`POCKFARM_URL` and `POCKFARM_API_KEY`, then `POCKFARM_PROFILE`); else the profile called `default`; else
the farm that `pockfarm up` started on this machine, whatever folder one stands in.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from pockfarm import profiles
from pockfarm.errors import BELOW, UsageError
from pockfarm.own_farm.state import StateFolder, farm_here


def address_and_key(
    url: str | None, api_key: str | None, state: StateFolder | None = None, profile: str | None = None
) -> tuple[str, str]:
    """Address and key. Raises: UsageError when one of them is nowhere, and says where it was looked for."""
    for name, argument in (("url", url), ("api_key", api_key)):
        if argument is not None and not isinstance(argument, str):
            raise UsageError(
                f"{name} is {type(argument).__name__}", hint="give text, such as Client('http://farm:8000', 'pf_...')"
            )
    if url and api_key:
        return _address(url), _key(api_key)
    if state is not None and profile is not None:
        raise UsageError("a state folder and a profile both say which farm: give one")
    if state is None:
        profile_name = profile or ""
        if not profile_name:
            url = url or os.environ.get("POCKFARM_URL", "")
            api_key = api_key or os.environ.get("POCKFARM_API_KEY", "")
            profile_name = os.environ.get("POCKFARM_PROFILE", "")
        if not (url and api_key):
            url, api_key = _of_profile(url, api_key, profile_name)
        if url and api_key:
            return _address(url), _key(api_key)
    return _of_folder(url, api_key, state or farm_here())


def _address(url: str) -> str:
    """Without what is at its end. Raises: UsageError for what is no address of a web server."""
    scheme, _, rest = url.strip().rpartition("://")
    if scheme not in ("http", "https"):
        raise UsageError(f"{url} is no farm's address", hint=f"write it as http://{rest}, or https://")
    try:
        parsed = urlsplit(url.strip())
        has_port = parsed.port != 0
    except ValueError:
        has_port = False
    if not has_port or not parsed.hostname:
        raise UsageError(
            f"{url} is no farm's address: it needs a host, and a port of 1 to 65,535 if it names one",
            hint="write it as http://HOST:PORT",
        )
    path, is_page, _ = parsed.path.partition("/dashboard")
    if is_page or parsed.query or parsed.fragment:
        raise UsageError(
            f"{url} is the address of a page, not of a farm", hint=f"write {scheme}://{parsed.netloc}{path}"
        )
    return url.strip().rstrip("/")


def _key(api_key: str) -> str:
    """Without white space around it, which files and copies bring. Raises: UsageError, which does not say the key."""
    key = api_key.strip()
    if key.lower().startswith("bearer "):
        raise UsageError("the API key begins with the word Bearer", hint="give the key alone, which begins with pf_")
    if not key.isascii() or not key.isprintable() or any(character in key for character in " \"'"):
        raise UsageError(
            "the API key has quotes, spaces or letters in it that no key has", hint="copy it again, from pf_ on"
        )
    return key


def _of_profile(url: str | None, api_key: str | None, profile_name: str) -> tuple[str | None, str | None]:
    """Fills in what is missing from the profile; an address that was given keeps its key from going elsewhere."""
    if not profile_name and profiles.DEFAULT not in profiles.profiles():
        return url, api_key
    profile = profiles.profile(profile_name or profiles.DEFAULT)
    if url and url.rstrip("/") != profile.url.rstrip("/"):
        return url, api_key
    return url or profile.url, api_key or profile.api_key


def _of_folder(url: str | None, api_key: str | None, folder: StateFolder) -> tuple[str, str]:
    status = folder.status()
    url = url or (status.url if status else "")
    key = api_key or folder.api_key() or ""
    if not url or not key:
        profile_names = sorted(profiles.profiles())
        suggestion = (
            f"choose a profile ({', '.join(profile_names)}) by POCKFARM_PROFILE"
            if profile_names
            else "run `pockfarm init`"
        )
        raise UsageError(
            "no farm: set POCKFARM_URL and POCKFARM_API_KEY, or start one with `pockfarm up` (its state "
            f"folder would be {folder.path})",
            hint=f"for a farm elsewhere: {suggestion}",
            hint_form=BELOW,
        )
    return url.rstrip("/"), key
