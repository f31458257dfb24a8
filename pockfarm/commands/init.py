"""`pockfarm init`: which farm, and by which key, kept for this user, whatever folder one stands in."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from pathlib import Path
from typing import Any

import pockfarm
from pockfarm.commands.output import show
from pockfarm.errors import BELOW, IN_PARENTHESES, NotFound, Refused, Unauthorized, UsageError
from pockfarm.files.sources import STANDARD_INPUT, standard_input
from pockfarm.profiles import DEFAULT, Profile, write_profile
from pockfarm.values import text


def add_init(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "keep the address and key of a farm for this user; they are tried first"
    command = subparsers.add_parser("init", help=words, description=words)
    command.add_argument("--url", metavar="URL", help="such as https://farm.example.com; asked for on a terminal")
    command.add_argument(
        "--key", metavar="KEY", help="an API key (pf_…), or - to read it from standard input; asked for"
    )
    words = f"the name to keep it by, for --profile and POCKFARM_PROFILE (default: {DEFAULT})"
    command.add_argument("--profile", default=DEFAULT, metavar="NAME", help=words)
    command.set_defaults(run=_init)


def _init(options: argparse.Namespace) -> int:
    url = _address(options.url or _prompt("--url", "Address of the farm: "))
    if options.key == STANDARD_INPUT:
        key = standard_input("--key").decode(errors="replace").strip()
    else:
        key = options.key or _prompt("--key", f"API key for {url}: ", is_secret=True)
    whose = checked(url, key)
    path = write_profile(options.profile, Profile(url, key))
    for name in ("POCKFARM_URL", "POCKFARM_API_KEY", "POCKFARM_PROFILE"):
        if os.environ.get(name):
            print(f"note: {name} is set in this shell, and comes before the file", file=sys.stderr)
    summary = {"profile": options.profile, "url": url, "organisation": whose, "file": str(path)}
    show(options, summary, lambda: _summary_text(options.profile, url, whose, path))
    return 0


def _summary_text(name: str, url: str, whose: str, path: Path) -> str:
    lines = [
        f"{url} answers, and takes the key{f' (organisation {whose})' if whose else ''}",
        f"profile {name}: {path}",
    ]
    if name != DEFAULT:
        lines.append(f"  to use it: --profile {name}, POCKFARM_PROFILE={name}, or pockfarm.Client(profile={name!r})")
    return "\n".join(lines)


def _prompt(option: str, question: str, *, is_secret: bool = False) -> str:
    """Asks a person to type a value. Raises: UsageError where nobody is there to type."""
    if not sys.stdin.isatty():
        raise UsageError(f"{option} is not given, and there is no terminal to ask at")
    answer = (getpass.getpass(question) if is_secret else input(question)).strip()
    if not answer:
        raise UsageError("nothing was typed", hint=f"{option} takes it too")
    return answer


def _address(address: str) -> str:
    """With its scheme. Raises: UsageError."""
    if "://" not in address:
        raise UsageError(
            "an address begins with https://",
            where=address,
            hint="or http:// for a farm on this machine",
            hint_form=IN_PARENTHESES,
        )
    scheme = address.partition("://")[0]
    if scheme not in ("http", "https"):
        raise UsageError(f"a farm is reached by http:// or https://, not {scheme}://", where=address)
    return address.rstrip("/")


def checked(url: str, key: str) -> str:
    """The organisation that the key is of, if it may tell.

    Raises: UsageError, Unreachable: what does not work is not kept.
    """
    with pockfarm.Client(url, key) as farm:
        try:
            organisation = farm.organisation()
        except Unauthorized as problem:
            raise UsageError(
                f"{url} does not take this key: {problem.message}",
                hint=(
                    "nothing was written; copy the key again, or ask the farm's administrator for one (pockfarm "
                    "key add)"
                ),
                hint_form=BELOW,
            ) from None
        except NotFound:
            raise UsageError(
                f"{url} answers, but not as a farm does",
                hint="nothing was written; the address is that of the dashboard's front page, without a path",
                hint_form=BELOW,
            ) from None
        except Refused as problem:  # a key may be for less than this
            if problem.status != 403:
                raise
            return ""
    return text(organisation, "name")
