"""`pockfarm devices [show | enrol | rename | tag | drain | resume]`: what is enrolled, and what operators do."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from typing import Any
from urllib.parse import urlsplit

from pockfarm.commands.farm import connect, reading_command
from pockfarm.commands.filters import add_filter_options, chosen_filters
from pockfarm.commands.output import facts_text, show, show_list
from pockfarm.output.table import NONE, bytes_text, cell, moment, text_table
from pockfarm.suggestions import suggestion
from pockfarm.values import DEVICE_STATES, Json, optional_number, part, parts, text

HEADER = ("device", "name", "health", "device class", "measures as", "targets", "tags", "last seen", "why")
LEAST = ("device class", "last seen", "targets", "measures as", "tags")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEALTHS = ("online", "busy", "offline", "draining", "drained")
"""Health of devices in state active."""
SHOWN = (
    "id",
    "name",
    "health",
    "state_reason",
    "device_class",
    "measurement_class",
    "targets",
    "cpu_model",
    "cores",
    "isolation_level",
    "agent_version",
    "agent_updates",
    "last_seen_at",
    "working_on",
    "drained_at",
    "drain_reason",
)


def add_devices(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "list the farm's devices, add, show or drain one"
    command = reading_command(subparsers, "devices", words, _devices, states=(*DEVICE_STATES, *HEALTHS))
    add_filter_options(command, measurement_class="CLASS")
    command.add_argument("--class", dest="device_class", metavar="NAME", help="only those of this class")
    actions = command.add_subparsers(metavar="ACTION")
    show_command = reading_command(actions, "show", "all that the farm knows of a device", _show)
    show_command.add_argument("device", metavar="DEVICE", help="its id or its name")
    enrol = reading_command(actions, "enrol", "make a token for a board, and print the line to paste there", _enrol)
    enrol.add_argument("name", metavar="NAME", help="what the board will be called")
    enrol.add_argument("--class", dest="device_class", metavar="NAME", help="only a board of this class may use it")
    words = "the class is of a kind of board that nobody knows yet"
    enrol.add_argument("--new-class", action="store_true", help=words)
    enrol.add_argument("--hours", type=_hours, metavar="H", help="how long it is good (default: 15 minutes)")
    rename = reading_command(actions, "rename", "give a device another name, which no other one has", _rename)
    rename.add_argument("device", metavar="OLD", help="its id or its name now")
    rename.add_argument("name", metavar="NEW", help="1-100 letters, digits, spaces and ._:@+-")
    drain = _action(actions, "drain", "let a device finish what it has, and give it nothing new", _drain)
    drain.add_argument("--reason", default="")
    tag = _action(actions, "tag", "set tags of a device, or take them away", _tag)
    tag.add_argument("tags", nargs="+", metavar="KEY[=VALUE]|-KEY", help="-KEY (after --) takes it away")
    _action(actions, "resume", "give a drained device work again", _resume)
    quarantine = _action(actions, "quarantine", "give a device no work until it is released (operators)", _quarantine)
    quarantine.add_argument("--reason", default="", help="what is wrong with it")
    release = _action(actions, "release", "give a quarantined device work again, and forget its strikes", _release)
    release.add_argument("--reason", default="", help="what has been done")
    canary = _action(actions, "canary", "let canary runs bring a quarantined device back, and send one soon", _canary)
    canary.add_argument("--off", action="store_true", help="no such runs: only `release` brings it back")
    _action(actions, "remove", "revoke a device for ever: its key stops working at once", _remove)


def _hours(text: str) -> float:
    """Raises: ArgumentTypeError."""
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of hours above 0")
    return hours


def _action(actions: argparse._SubParsersAction[Any], name: str, words: str, run: object) -> argparse.ArgumentParser:
    command = reading_command(actions, name, words, run)
    command.add_argument("device", metavar="DEVICE", help="its id or its name")
    return command


def _devices(options: argparse.Namespace) -> int:
    chosen = chosen_filters(options, "device_class", "measurement_class")
    health = chosen["state"] if chosen["state"] in HEALTHS else None
    filters = {**chosen, "state": "active", "limit": None} if health else {**chosen, "limit": options.limit}
    with connect(options) as farm:
        devices = [device.raw for device in farm.devices(**filters)]
        devices = [device for device in devices if device["health"] == health][: options.limit] if health else devices
        classes = set() if devices else {device.device_class for device in farm.devices()}
    is_whole = not any(chosen.values())
    near = suggestion(chosen["device_class"] or "", classes - {chosen["device_class"]})
    none = "no devices yet; `pockfarm devices enrol NAME` says how to add one" if is_whole else f"no such devices{near}"
    return show_list(options, devices, HEADER, device_row, none=none, least=LEAST)


def device_row(device: Json) -> tuple[str, ...]:
    """Under `HEADER`."""
    return (
        text(device, "id"),
        text(device, "name"),
        text(device, "health") or text(device, "state"),
        text(device, "device_class"),
        text(device, "measurement_class"),
        cell(device.get("targets")),
        tags_text(device) or NONE,
        moment(text(device, "last_seen_at")),
        text(device, "state_reason") or text(device, "drain_reason") or text(device, "notice"),
    )


def _enrol(options: argparse.Namespace) -> int:
    lifetime_s = None if options.hours is None else options.hours * 3600
    with connect(options) as farm:
        address = farm.enrolment_address()
        fields = {"name": options.name, "device_class": options.device_class, "lifetime_s": lifetime_s}
        token = farm.add_enrolment_token(**fields, **({"new_class": True} if options.new_class else {}))
    line = enrolment_line(address, text(token, "token"), options.name)
    if urlsplit(address).hostname in LOOPBACK:
        print(
            f"warning: a board elsewhere does not reach {address}: set POCKFARM_PUBLIC_URL on the farm's machine, or "
            "name the farm by the address that boards use (POCKFARM_URL)",
            file=sys.stderr,
        )
    hint = f"paste on the board, as root so that the agent stays running; good once, until {text(token, 'expires_at')}"
    print(f"{hint} (token {text(token, 'id')}):", file=sys.stderr)
    return show(options, {**token, "line": line}, lambda: line)


def enrolment_line(address: str, token: str, name: str) -> str:
    """Returns the command that makes a board one of the farm's devices; the token is not on its command line, which
    other users of the board could read.
    """
    settings = f"POCKFARM_ENROL_TOKEN={shlex.quote(token)} POCKFARM_NAME={shlex.quote(name)}"
    return f"curl -fsS {shlex.quote(f'{address}/enrol.sh')} | {settings} sh"


def _show(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        device = farm.device(options.device)
    return show(options, device, lambda: device_text(device))


def device_text(device: Json) -> str:
    """A device as people read it."""
    rows = [(name.replace("_", " "), cell(device.get(name))) for name in SHOWN if cell(device.get(name)) != NONE]
    reported_name = text(device, "told_name")
    rows += [("calls itself", reported_name)] if reported_name and reported_name != text(device, "name") else []
    rows += [("tags", tags_text(device))] if tags_text(device) else []
    rows += condition_rows(part(device, "condition"))
    hold = part(device, "hold")
    if hold:
        rows.append(("now", text(hold, "message")))
    rows += [("look at", text(mark, "message")) for mark in parts(device, "marks")]
    lines = [facts_text(rows)]
    history = [tuple(text(line, name) for name in ("at", "kind", "message")) for line in parts(device, "history")[:20]]
    lines += ["", data_text(device)] if data_text(device) else []
    return "\n".join(lines) + ("\n\n" + text_table(("at", "what", "why"), history) if history else "")


def condition_rows(condition: Json) -> list[tuple[str, str]]:
    """Rows for the storage and temperature that the agent last reported; none if it is older than such reports."""
    rows = []
    free_bytes, total_bytes, heat_c = (
        optional_number(condition, name) for name in ("storage_free_bytes", "storage_total_bytes", "temperature_c")
    )
    if total_bytes is not None:
        few = ", nearly full" if condition.get("storage_is_nearly_full") else ""
        rows.append(("storage", f"{bytes_text(free_bytes)} of {bytes_text(total_bytes)} free{few}"))
    if heat_c is not None:
        rows.append(("temperature", f"{heat_c:.0f} \N{DEGREE SIGN}C at {moment(text(condition, 'at'))}"))
    if text(condition, "problem"):
        rows.append(("not taken", f"what it tells of itself: {text(condition, 'problem')}"))
    return rows


def _rename(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        device = farm.rename_device(options.device, options.name)
    return show(options, device, lambda: f"{text(device, 'id')} is called {text(device, 'name')}")


def _drain(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        farm.drain(options.device, options.reason)
        device = farm.device(options.device)
    finishes = f" finishes {text(device, 'working_on')}, and" if text(device, "working_on") else ""
    return show(options, device, lambda: f"{options.device}{finishes} takes nothing new")


def _tag(options: argparse.Namespace) -> int:
    tags = dict(tag.partition("=")[::2] for tag in options.tags if not tag.startswith("-"))
    remove = [tag[1:] for tag in options.tags if tag.startswith("-")]
    with connect(options) as farm:
        device = farm.tag(options.device, tags, remove)
    return show(options, device, lambda: tags_text(device) or "no tags")


def tags_text(device: Json) -> str:
    """`gpu rack=7`."""
    return " ".join(f"{key}={value}" if value else key for key, value in sorted(part(device, "tags").items()))


def data_text(device: Json) -> str:
    """A table of a device's own data sets; empty if it has none."""
    rows = [
        (
            text(dataset, "name"),
            cell(dataset.get("samples")),
            _arrays(dataset),
            cell(dataset.get("label_counts")),
            "stay" if dataset.get("weights_stay") else "leave",
            text(dataset, "digest"),
        )
        for dataset in parts(device, "own_datasets")
    ]
    return text_table(("own data", "samples", "arrays", "of each class", "weights", "digest"), rows) if rows else ""


def _arrays(dataset: Json) -> str:
    return ", ".join(
        f"{text(array, 'name')} {text(array, 'dtype')} {array.get('shape')}" for array in parts(dataset, "arrays")
    )


def _resume(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        device = farm.resume(options.device)
    return show(options, device, lambda: f"{options.device} takes work again")


def _quarantine(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        device = farm.quarantine(options.device, options.reason)
    return show(
        options,
        device,
        lambda: (
            f"{options.device} is {text(device, 'state')}: it gets no work until "
            f"`pockfarm devices release {options.device}`"
        ),
    )


def _release(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        device = farm.release(options.device, options.reason)
    return show(options, device, lambda: f"{options.device} is {text(device, 'state')}: it takes work again")


def _canary(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        device = farm.set_canary(options.device, enabled=not options.off)
    outcome = (
        "no canary runs bring it back" if options.off else "a canary run comes soon, if it is quarantined by strikes"
    )
    return show(options, device, lambda: f"{options.device} is {text(device, 'state')}; {outcome}")


def _remove(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        device = farm.remove_device(options.device)
    return show(options, device, lambda: f"{options.device} is removed: its key is taken no more")
