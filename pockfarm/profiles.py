"""Farms that a user has named, in a file of their own: address and key of each, whatever folder one stands in.

`farms.ini` (0600) in `~/.config/pockfarm` (`$XDG_CONFIG_HOME`; on Windows `%APPDATA%\\pockfarm`; `$POCKFARM_CONFIG_DIR`
before these) has a section for each, with `url` and `api_key`. `pockfarm init` writes it. Beside it, `here` holds where
`pockfarm up` has last started a farm on this machine.
"""

from __future__ import annotations

import configparser
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from pockfarm.errors import BELOW, UsageError
from pockfarm.suggestions import suggestion

DEFAULT = "default"
NAMES = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
NO_SECTION = "="
"""The parser's own default section would be called DEFAULT; none of ours can be called this."""


@dataclass(frozen=True)
class Profile:
    """A farm, and a key to it."""

    url: str
    api_key: str = field(repr=False)


def config_folder() -> Path:
    """The folder of this user's configuration; it need not be there."""
    folder = os.environ.get("POCKFARM_CONFIG_DIR")
    if folder:
        return Path(folder)
    if os.name == "nt":
        return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming") / "pockfarm"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "pockfarm"


def farms_file() -> Path:
    return config_folder() / "farms.ini"


def profiles() -> dict[str, Profile]:
    """All that were written, by name. Raises: UsageError (the file is there, and cannot be read)."""
    path = farms_file()
    parser = _parser()
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as problem:
        raise UsageError(problem.strerror, where=path) from None
    except (configparser.Error, UnicodeDecodeError) as problem:
        raise UsageError(problem, where=path, hint="mend it, or remove it and run: pockfarm init") from None
    return {
        name: Profile(parser.get(name, "url", fallback=""), parser.get(name, "api_key", fallback=""))
        for name in parser.sections()
    }


def profile(name: str) -> Profile:
    """The one of that name. Raises: UsageError, with the names that there are."""
    stored = profiles()
    if name not in stored:
        listed = f"; there are {', '.join(sorted(stored))}" if stored and not suggestion(name, stored) else ""
        raise UsageError(
            f"no profile {name!r} in {farms_file()}{suggestion(name, stored)}{listed}",
            hint=f"pockfarm init --profile {name}",
            hint_form=BELOW,
        )
    chosen = stored[name]
    missing = " and ".join(key for key, value in (("url", chosen.url), ("api_key", chosen.api_key)) if not value)
    if missing:
        raise UsageError(
            f"profile {name!r} has no {missing}",
            where=farms_file(),
            hint=f"pockfarm init --profile {name}",
            hint_form=BELOW,
        )
    return chosen


def write_profile(name: str, new: Profile) -> Path:
    """Keep it, beside the others; the file is its owner's only. Raises: UsageError."""
    if not NAMES.fullmatch(name):
        raise UsageError(f"{name!r} is no name of a profile: letters, digits, `_`, `.` and `-`, at most 64")
    parser = _parser()
    for section, other in {**profiles(), name: new}.items():
        parser[section] = {"url": other.url, "api_key": other.api_key}
    path = farms_file()
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            parser.write(file)
        os.replace(draft, path)
    except OSError as problem:
        draft.unlink(missing_ok=True)
        raise UsageError(problem.strerror, where=path) from None
    return path


def remember_here(state: Path) -> None:
    """Keep where a farm was started on this machine; where that cannot be kept, nothing is lost but the way there."""
    path = config_folder() / "here"
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft.write_text(str(state), encoding="utf-8")
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)


def remembered_here() -> Path | None:
    """Returns the folder that a farm was last started in on this machine, if it is still there."""
    try:
        state = Path((config_folder() / "here").read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError):
        return None
    return state if (state / "farm.json").exists() else None


def _parser() -> configparser.RawConfigParser:
    return configparser.RawConfigParser(default_section=NO_SECTION)
