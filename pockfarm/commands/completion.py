"""Completion in bash, zsh and fish, by `argcomplete`: the shell asks this program what may follow.

What is known at once is offered at once (commands, options, choices, targets, presets); ids of runs, compiles and
devices come from the farm, if it answers within a second. What goes wrong is not told: nothing is completed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pockfarm.command_line.words import walk

SHELLS = ("bash", "zsh", "fish")
ASKED = "_ARGCOMPLETE"
"""The shell sets it when it asks."""
PATIENCE_S = 1.0
IDS = 50
"""Ids of a kind that are offered, the newest."""
Completer = Callable[..., Sequence[str]]


def script(shell: str) -> str:
    """Returns the script by which a shell completes `pockfarm`."""
    from argcomplete.shell_integration import shellcode

    text: str = shellcode(["pockfarm"], shell=shell)
    return text.strip()


def complete(parser: argparse.ArgumentParser) -> None:
    """If it is the shell that asks: answer, and end. Returns at once if not."""
    if ASKED not in os.environ:
        return
    import argcomplete

    for _, command in walk(parser):
        for action in command._actions:
            completer = _completer(action, parser)
            if completer is not None:
                action.completer = completer  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options="long")


def _completer(action: argparse.Action, top: argparse.ArgumentParser) -> Completer | None:
    """By the name of what is asked for; None: its choices, or files."""
    by_name: dict[str, Completer] = {
        "target": _targets,
        "plan": _plans,
        "run_id": _ids("run"),
        "id": _ids("run", "job"),
        "ids": _ids("run", "job"),
        "device": _devices,
        "other": _ids("run"),
        "device_class": _classes,
        "words": _words_of(top),
    }
    return by_name.get(action.dest) if action.choices is None else None


def _targets(**_: Any) -> Sequence[str]:
    from pockfarm.commands.extras import load_local

    return ["host", *(row[0] for row in load_local().target_rows())]


def _plans(prefix: str = "", **_: Any) -> Sequence[str]:
    """Presets, and files of this folder that may hold a plan."""
    from pockfarm.commands.extras import load_local

    here = Path(prefix or ".")
    folder = here if here.is_dir() else here.parent
    files = [str(path) for path in folder.iterdir() if path.suffix in (".yaml", ".yml", ".json")]
    return [*load_local().PRESETS, *files]


def _words_of(top: argparse.ArgumentParser) -> Completer:
    """Completes `pockfarm help`: the words that may follow those already typed."""

    def complete(parsed_args: argparse.Namespace, **_: Any) -> Sequence[str]:
        typed = tuple(getattr(parsed_args, "words", None) or ())
        return [path[-1] for path, _ in walk(top) if path[:-1] == typed]

    return complete


def _ids(*kinds: str) -> Completer:
    def complete(parsed_args: argparse.Namespace, **_: Any) -> Sequence[str]:
        endpoints = {"run": "/runs", "job": "/jobs", "dev": "/devices"}
        return [str(listed["id"]) for kind in kinds for listed in _listed(parsed_args, endpoints[kind])]

    return complete


def _devices(parsed_args: argparse.Namespace, **_: Any) -> Sequence[str]:
    return [str(device[name]) for device in _listed(parsed_args, "/devices") for name in ("id", "name")]


def _classes(parsed_args: argparse.Namespace, **_: Any) -> Sequence[str]:
    return sorted({str(device["device_class"]) for device in _listed(parsed_args, "/devices")})


def _listed(options: argparse.Namespace, path: str) -> Iterable[Any]:
    import httpx

    from pockfarm.commands.farm import farm_of

    with farm_of(options) as farm:
        headers = farm._http.headers
        answer = httpx.get(f"{farm.url}{path}", params={"limit": IDS}, headers=headers, timeout=PATIENCE_S)
        items: list[Any] = answer.json().get("items", [])
        return items
