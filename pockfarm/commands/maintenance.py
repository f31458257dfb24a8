"""`pockfarm maintenance add | list | remove`: times in which devices get no new work."""

from __future__ import annotations

import argparse
from typing import Any

from pockfarm.commands.farm import connect, farm_command, reading_command
from pockfarm.commands.output import show, show_list
from pockfarm.values import text

HEADER = ("id", "device_id", "device_class", "next_starts_at", "next_ends_at", "weekly", "reason")


def add_maintenance(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "plan times in which devices get no new work (operators)"
    command = subparsers.add_parser("maintenance", help=words, description=words)
    actions = command.add_subparsers(metavar="ACTION", required=True)
    add = reading_command(
        actions, "add", "plan a time without new work, for all devices unless one or a class is named", _add
    )
    add.add_argument("starts_at", metavar="START", help="such as 2026-12-01T02:00Z")
    add.add_argument("ends_at", metavar="END")
    about = add.add_mutually_exclusive_group()
    about.add_argument("--device", metavar="ID|NAME")
    about.add_argument("--class", dest="device_class", metavar="NAME")
    add.add_argument("--weekly", action="store_true", help="every week from then on")
    add.add_argument("--reason", default="")
    reading_command(actions, "list", "list maintenance windows, the newest first", _list)
    farm_command(actions, "remove", "take a window away", _remove).add_argument("window", metavar="WINDOW")


def _add(options: argparse.Namespace) -> int:
    about = {name: getattr(options, name) for name in ("device", "device_class", "weekly", "reason")}
    with connect(options) as farm:
        window = farm.add_maintenance(options.starts_at, options.ends_at, **about)
    line = f"{text(window, 'id')}  {text(window, 'next_starts_at')} to {text(window, 'next_ends_at')}"
    return show(options, window, lambda: line)


def _list(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        windows = farm.maintenance()
    return show_list(options, windows, HEADER, none="no maintenance windows")


def _remove(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        removed = farm.remove_maintenance(options.window)
    return show(options, removed, lambda: f"{options.window} is taken away")
