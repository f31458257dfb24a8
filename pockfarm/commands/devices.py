"""`pockfarm devices [show | tag | drain | resume]`: what is enrolled, and what operators decide about it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from pockfarm.commands.farm import connect, farm_command
from pockfarm.table import NONE, cell, print_table, text_table
from pockfarm.values import Json, part, parts, text

SHOWN = ("id", "name", "state", "state_reason", "device_class", "measurement_class", "targets", "cpu_model", "cores",
         "isolation_level", "agent_version", "agent_updates", "last_seen_at", "working_on", "drained_at",
         "drain_reason")  # fmt: skip


def add_devices(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = farm_command(subparsers, "devices", "list the farm's devices, show or drain one", _devices)
    actions = command.add_subparsers(metavar="ACTION")
    show = _action(actions, "show", "all that the farm knows of a device", _show)
    show.add_argument("--json", action="store_true")
    drain = _action(actions, "drain", "let a device finish what it has, and give it nothing new", _drain)
    drain.add_argument("--reason", default="")
    tag = _action(actions, "tag", "set tags of a device, or take them away", _tag)
    tag.add_argument("tags", nargs="+", metavar="KEY[=VALUE]|-KEY", help="-KEY (after --) takes it away")
    _action(actions, "resume", "give a drained device work again", _resume)


def _action(
    actions: argparse._SubParsersAction[Any], name: str, words: str, run: object
) -> argparse.ArgumentParser:  # fmt: skip
    command = farm_command(actions, name, words, run)
    command.add_argument("device", metavar="DEVICE")
    return command


def _devices(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        devices = farm.devices()
    rows = [
        (one.id, one.name, "drained" if one.raw.get("drained_at") else one.state, one.device_class,
         one.measurement_class, " ".join(one.targets), tags_text(one.raw) or NONE, one.last_seen_at,
         text(one.raw, "state_reason") or text(one.raw, "drain_reason"))
        for one in devices
    ]  # fmt: skip
    header = ("device", "name", "state", "device class", "measures as", "targets", "tags", "last seen", "why")
    print_table(header, rows, none="no devices yet; an agent enrols with a one-time token")
    return 0


def _show(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        device = farm.device(options.device)
    print(json.dumps(device, indent=2) if options.json else device_text(device))
    return 0


def device_text(device: Json) -> str:
    """A device as people read it."""
    rows = [(name.replace("_", " "), cell(device.get(name))) for name in SHOWN if cell(device.get(name)) != NONE]
    rows += [("tags", tags_text(device))] if tags_text(device) else []
    hold = part(device, "hold")
    if hold:
        rows.append(("now", text(hold, "says")))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:{width}}  {value}" for name, value in rows]
    history = [tuple(text(line, name) for name in ("at", "kind", "message")) for line in parts(device, "history")[:20]]
    lines += ["", data_text(device)] if data_text(device) else []
    return "\n".join(lines) + ("\n\n" + text_table(("at", "what", "why"), history) if history else "")


def _drain(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        farm.drain(options.device, options.reason)
        run = text(farm.device(options.device), "working_on")
    print(f"{options.device} finishes {run}, and takes nothing new" if run else f"{options.device} takes nothing new")
    return 0


def _tag(options: argparse.Namespace) -> int:
    given = dict(one.partition("=")[::2] for one in options.tags if not one.startswith("-"))
    remove = [one[1:] for one in options.tags if one.startswith("-")]
    with connect(options) as farm:
        device = farm.tag(options.device, given, remove)
    print(tags_text(device) or "no tags")
    return 0


def tags_text(device: Json) -> str:
    """`gpu rack=7`."""
    return " ".join(f"{key}={value}" if value else key for key, value in sorted(part(device, "tags").items()))


def data_text(device: Json) -> str:
    """A table of a device's own data sets; empty if it has none."""
    rows = [
        (text(one, "name"), cell(one.get("samples")), _arrays(one), cell(one.get("label_counts")),
         "stay" if one.get("weights_stay") else "leave", text(one, "digest"))
        for one in parts(device, "own_datasets")
    ]  # fmt: skip
    return text_table(("own data", "samples", "arrays", "of each class", "weights", "digest"), rows) if rows else ""


def _arrays(dataset: Json) -> str:
    return ", ".join(f"{text(one, 'name')} {text(one, 'dtype')} {one.get('shape')}" for one in parts(dataset, "arrays"))


def _resume(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        farm.resume(options.device)
    print(f"{options.device} takes work again")
    return 0
