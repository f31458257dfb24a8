"""`pockfarm regressions [history | acknowledge]`: devices that have become slower, by the farm's own canaries."""

from __future__ import annotations

import argparse
from typing import Any

from pockfarm.commands.farm import connect, farm_command, reading_command
from pockfarm.commands.output import show, show_list
from pockfarm.output.table import NONE, text_table, time_of
from pockfarm.values import Json, optional_number, parts, text

HEADER = ("id", "device", "canary", "target", "change", "found", "what else changed there")
SHOWN_RUNS = 20


def add_regressions(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "list devices that have become slower, by the farm's own canaries"
    command = reading_command(subparsers, "regressions", words, _list)
    command.add_argument("--device", metavar="ID|NAME", help="of this device only")
    actions = command.add_subparsers(metavar="ACTION")
    history = reading_command(actions, "history", "what a device's canaries took, and where that changed", _history)
    history.add_argument("device", metavar="DEVICE")
    acknowledge = farm_command(actions, "acknowledge", "say that a slower device is known of (operators)", _acknowledge)
    acknowledge.add_argument("device", metavar="DEVICE")
    acknowledge.add_argument("change", metavar="CHANGE")
    acknowledge.add_argument("--reason", default="", help="why it is so, or what will be done")


def _list(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        regressions = farm.regressions(options.device)
    return show_list(options, regressions, HEADER, _row, none="no device has become slower that nobody knows of")


def _row(change: Json) -> tuple[str, ...]:
    names = ("id", "device_id", "canary", "target", "message", "found_at", "explains")
    return tuple(text(change, name) for name in names)


def _history(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        canaries = farm.canaries(options.device)
    return show(options, canaries, lambda: history_text(canaries))


def history_text(canaries: Json) -> str:
    """Returns the newest runs of each canary and all its changes, as text for people."""
    series = list(parts(canaries, "series"))
    if not series:
        return "no timed canary has run on it yet"
    return "\n\n".join(_series_text(canary) for canary in series)


def _series_text(series: Json) -> str:
    deviation = optional_number(series, "deviation")
    noise = "how it varies is not known yet" if deviation is None else f"one run lies {deviation:.2%} from the next"
    runs = list(parts(series, "runs"))
    rows = [
        (
            text(run, "at"),
            time_of(optional_number(run, "median_us")),
            text(run, "verdict"),
            _short(run, "compiler"),
            _short(run, "commit"),
        )
        for run in reversed(runs[-SHOWN_RUNS:])
    ]
    older = f"\n{len(runs) - SHOWN_RUNS} older ones: --json" if len(runs) > SHOWN_RUNS else ""
    changes = [
        (
            text(change, "id"),
            text(change, "message"),
            text(change, "state"),
            text(change, "after_run_id"),
            text(change, "explains"),
        )
        for change in parts(series, "changes")
    ]
    changes_table = (
        text_table(("change", "by", "standing", "from run", "what else changed there"), changes) if changes else ""
    )
    head = f"canary {text(series, 'canary')} on {text(series, 'target')}: {noise}"
    table = text_table(("at", "median", "verdict", "compiler", "commit"), rows)
    return "\n".join(part for part in (head, changes_table, table + older) if part)


def _short(run: Json, name: str) -> str:
    return text(run, name).removeprefix("sha256:")[:12] or NONE


def _acknowledge(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        change = farm.acknowledge(options.device, options.change, options.reason)
    line = f"{text(change, 'id')} is acknowledged: canary {text(change, 'canary')}, {text(change, 'message')}"
    return show(options, change, lambda: line)
