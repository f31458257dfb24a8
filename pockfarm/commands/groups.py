"""`pockfarm groups list | show | cancel`: requests for many devices."""

from __future__ import annotations

import argparse
from typing import Any

from pockfarm.commands.farm import connect, reading_command
from pockfarm.commands.output import show, show_list
from pockfarm.output.table import NONE, loss_text, text_table, time_of
from pockfarm.values import Json, optional_number, part, parts, text


def add_groups(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "follow requests for many devices (`pockfarm run --each`)"
    command = subparsers.add_parser("groups", help=words, description=words)
    actions = command.add_subparsers(metavar="ACTION", required=True)
    reading_command(actions, "list", "list groups, the newest first", _list)
    reading_command(actions, "show", "how far a group is, and what each device measured", _show).add_argument("group")
    reading_command(actions, "cancel", "ask all runs of a group to stop", _cancel).add_argument("group")


def _list(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        groups = farm.groups()
    return show_list(options, groups, ("group", "name", "since", "runs"), group_row, none="no groups yet")


def group_row(group: Json) -> tuple[str, ...]:
    """Returns the group's name, its start, and its progress."""
    return text(group, "id"), text(group, "name") or NONE, text(group, "created_at"), progress(group)


def progress(group: Json) -> str:
    """`3 succeeded, 47 queued`."""
    return ", ".join(f"{count} {state}" for state, count in sorted(part(group, "states").items())) or NONE


def _show(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        group = farm.group(options.group)
    return show(options, group, lambda: group_text(group))


def group_text(group: Json) -> str:
    """Returns the group's progress, and a line for each of its runs."""
    rows = [_row(run, part(group, "device_names")) for run in parts(group, "runs")]
    table = text_table(("device", "run", "state", "verdict", "step", "last loss", "why"), rows)
    return f"{text(group, 'id')}: {progress(group)}\n\n{table}"


def _row(run: Json, names: Json) -> tuple[str, ...]:
    summary, ending = part(run, "summary"), part(run, "ending")
    return (
        text(names, text(run, "wanted_device_id")),
        text(run, "id"),
        text(run, "state"),
        text(summary, "verdict") or NONE,
        time_of(optional_number(summary, "median_us")),
        loss_text(optional_number(summary, "loss_last")),
        f"{text(ending, 'cause')}: {text(ending, 'code')}" if ending else "",
    )


def _cancel(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        group = farm.cancel_group(options.group)
    return show(options, group, lambda: f"{text(group, 'id')}: {progress(group)}")
