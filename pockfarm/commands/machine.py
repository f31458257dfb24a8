"""`pockfarm up | down | status | link | backup | restore`: the farm on this machine."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pockfarm
from pockfarm.commands.output import facts_text, show
from pockfarm.own_farm import up
from pockfarm.own_farm.state import StateFolder, default_state, farm_here


def add_up(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = _command(subparsers, "up", "start the farm on this machine and leave it running", _up)
    command.add_argument("--port", type=int, default=up.PREFERRED_PORT, help="loopback port; another one if it is busy")


def add_down(subparsers: argparse._SubParsersAction[Any]) -> None:
    _command(subparsers, "down", "stop the farm on this machine", _down)


def add_status(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = _command(subparsers, "status", "show the farm's address and its processes", _status)
    command.add_argument("--json", action="store_true", help="as JSON")


def add_link(subparsers: argparse._SubParsersAction[Any]) -> None:
    _command(subparsers, "link", "print a fresh one-time link to the dashboard", _link)


def add_backup(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = _command(subparsers, "backup", "write the farm's record to a file, while it works", _copy("backup"))
    _add_copy_options(command)


def add_restore(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = _command(subparsers, "restore", "fill a new state folder from a backup", _copy("restore"))
    _add_copy_options(command)


def _add_copy_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", help="the backup")
    command.add_argument("--with-keys", action="store_true", help="the keys too, by $POCKFARM_BACKUP_PASSPHRASE")
    command.add_argument("--passphrase-file", help="file with the passphrase of the keys")


def _new_state(options: argparse.Namespace) -> StateFolder:
    """The folder that is named, or the current folder's: what is started or filled is not the farm elsewhere."""
    return StateFolder(Path(options.state)) if options.state else default_state()


def state_of(options: argparse.Namespace) -> StateFolder:
    """The folder that is named, or the farm of this machine, whatever folder one stands in."""
    return StateFolder(Path(options.state)) if options.state else farm_here()


def say(message: str) -> None:
    """Progress, for a person who waits."""
    print(message, file=sys.stderr, flush=True)


def _command(subparsers: argparse._SubParsersAction[Any], name: str, text: str, run: object) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = subparsers.add_parser(name, help=text, description=text)
    command.add_argument("--state", metavar="FOLDER", help="state folder (default: $POCKFARM_STATE or .state)")
    command.set_defaults(run=run)
    return command


def _copy(act: str) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        words = [sys.executable, "-m", "service.admin", act, options.file]
        words += ["--with-keys"] if options.with_keys else []
        words += ["--passphrase-file", options.passphrase_file] if options.passphrase_file else []
        state = _new_state(options) if act == "restore" else state_of(options)
        environment = {**os.environ, "POCKFARM_STATE": str(state.path)}
        output = sys.stderr if options.json else None
        code = subprocess.run(words, env=environment, check=False, stdout=output).returncode
        if options.json and code == 0:
            show(options, {"file": options.file}, str)
        return code

    return run


def _up(options: argparse.Namespace) -> int:
    state = _new_state(options)
    status = up.up(state, say=say, port=options.port)
    with pockfarm.Client(state=state) as farm:
        link = farm.dashboard_link()
    summary = {"url": status.url, "dashboard": link, "api_key_file": str(state.api_key_file), "logs": str(state.logs)}
    facts = [
        ("farm", status.url),
        ("dashboard", f"{link}   (opens once; for another: pockfarm link)"),
        ("API key", str(state.api_key_file)),
        ("logs", str(state.logs)),
    ]
    return show(options, summary, lambda: facts_text(facts))


def _down(options: argparse.Namespace) -> int:
    state = state_of(options)
    up.down(state, say=say)
    if options.json:
        show(options, {"state_folder": str(state.path), "is_up": False}, str)
    return 0


def _status(options: argparse.Namespace) -> int:
    status = up.status_of(state_of(options))
    return show(options, asdict(status), lambda: up.status_text(status))


def _link(options: argparse.Namespace) -> int:
    with pockfarm.Client(state=StateFolder(Path(options.state)) if options.state else None) as farm:
        link = farm.dashboard_link()
    return show(options, {"url": link}, lambda: link)
