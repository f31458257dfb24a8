"""`pockfarm releases list | show | offer | widen | halt`: which agent the farm offers to which of its devices."""

from __future__ import annotations

import argparse
from typing import Any

from pockfarm.commands.farm import connect, reading_command
from pockfarm.commands.output import show, show_list
from pockfarm.output.table import cells, table_or
from pockfarm.values import Json, parts, text

HEADER = ("id", "version", "state", "most_devices", "given", "done", "failed", "halt_reason")
DEVICE_HEADER = ("name", "device_id", "state", "reason")


def add_releases(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "offer agents to devices that update themselves, in stages (operators of the farm)"
    command = subparsers.add_parser("releases", help=words, description=words)
    actions = command.add_subparsers(metavar="ACTION", required=True)
    reading_command(actions, "list", "list releases of the agent, the newest first", _list)
    reading_command(actions, "show", "what came of a release on each device", _show).add_argument("release")
    offer = reading_command(actions, "offer", "offer the farm's own agent, or the file of an earlier release", _offer)
    offer.add_argument("--digest", help="of an earlier release; a new file: python -m service.admin agent-release FILE")
    offer.add_argument("--to", action="append", default=[], metavar="TAG[=VALUE]", help="only devices with this tag")
    offer.add_argument("--rollback", action="store_true", help="meant also for devices that run a newer version")
    offer.add_argument("--failures", type=int, metavar="N", help="halt at the N-th; else at the first, or a tenth")
    _add_stage(offer)
    widen = reading_command(actions, "widen", "let more devices have it; without a number: all", _widen)
    widen.add_argument("release")
    _add_stage(widen)
    halt = reading_command(actions, "halt", "offer it to no more devices", _halt)
    halt.add_argument("release")
    halt.add_argument("--reason", default="")


def _add_stage(command: argparse.ArgumentParser) -> None:
    stage = command.add_mutually_exclusive_group()
    stage.add_argument("--share", type=_share, help="of the devices that could take it, such as 10%%")
    stage.add_argument("--count", type=int, help="so many devices")


def _share(percentage: str) -> float:
    number = float(percentage.removesuffix("%"))
    return number / 100 if percentage.endswith("%") else number


def _stage(options: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name in ("share", "count") if (value := getattr(options, name)) is not None}


def _list(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        releases = farm.agent_releases()
    return show_list(options, releases, HEADER, none="no releases of the agent; `pockfarm releases offer` makes one")


def _show(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        release = farm.agent_release(options.release)
    rows = cells(parts(release, "updates"), DEVICE_HEADER)
    devices = table_or(DEVICE_HEADER, rows, "no device has asked for it yet")
    return show(options, release, lambda: f"{release_line(release)}\n{devices}")


def release_line(release: Json) -> str:
    """A release in one line."""
    most = release.get("most_devices")
    to = "all devices" if most is None else f"{most} device{'' if most == 1 else 's'}"
    why = f": {text(release, 'halt_reason')}" if text(release, "state") == "halted" else ""
    return f"{text(release, 'id')}  agent {text(release, 'version')}  {text(release, 'state')} to {to}{why}"


def _offer(options: argparse.Namespace) -> int:
    fields: dict[str, Any] = {"where": options.to, "rollback": options.rollback, **_stage(options)}
    fields |= {} if options.digest is None else {"digest": options.digest}
    fields |= {} if options.failures is None else {"most_failures": options.failures}
    with connect(options) as farm:
        offered = farm.offer_agent(**fields)
    return show(options, offered, lambda: release_line(offered))


def _widen(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        widened = farm.widen_agent_release(options.release, **_stage(options))
    return show(options, widened, lambda: release_line(widened))


def _halt(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        halted = farm.halt_agent_release(options.release, options.reason)
    return show(options, halted, lambda: release_line(halted))
