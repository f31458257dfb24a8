"""`pockfarm tokens add | list | show | revoke`: rights to enrol devices."""

from __future__ import annotations

import argparse
from typing import Any

from pockfarm.commands.farm import connect, farm_command, reading_command
from pockfarm.commands.output import show, show_list
from pockfarm.output.table import cells, table_or, text_table
from pockfarm.values import Json, parts, text

HEADER = ("id", "name", "device_class", "targets", "uses", "max_uses", "expires_at", "revoked_at")
USED_HEADER = ("at", "device_id", "name", "device_class", "state")


def add_tokens(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "make, list and revoke enrolment tokens (operators)"
    command = subparsers.add_parser("tokens", help=words, description=words)
    actions = command.add_subparsers(metavar="ACTION", required=True)
    add = reading_command(actions, "add", "make a token, and print its secret once", _add)
    add.add_argument("--uses", type=int, default=1, metavar="N", help="how many devices may use it (default: 1)")
    add.add_argument("--hours", type=float, metavar="H", help="how long it is good (default: 15 minutes)")
    add.add_argument("--class", dest="device_class", metavar="NAME", help="only devices of this class")
    words = "the class is of a kind of board that nobody knows yet"
    add.add_argument("--new-class", action="store_true", help=words)
    add.add_argument("--target", action="append", metavar="T", help="only devices that run none but these")
    add.add_argument("--name", default="", help="for people")
    reading_command(actions, "list", "list tokens, the newest first", _list)
    reading_command(actions, "show", "which devices used a token", _show).add_argument("token", metavar="TOKEN_ID")
    words = "let no more devices in by a token"
    farm_command(actions, "revoke", words, _revoke).add_argument("token", metavar="TOKEN_ID")


def _add(options: argparse.Namespace) -> int:
    limits = {
        "uses": options.uses,
        "lifetime_s": None if options.hours is None else options.hours * 3600,
        "device_class": options.device_class,
        **({"new_class": True} if options.new_class else {}),
        "targets": options.target,
        "name": options.name,
    }
    with connect(options) as farm:
        token = farm.add_enrolment_token(**limits)
    return show(options, token, lambda: f"id     {text(token, 'id')}\ntoken  {text(token, 'token')}")


def _list(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        tokens = farm.enrolment_tokens()
    return show_list(options, tokens, HEADER, none="no enrolment tokens yet")


def _show(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        token = farm.enrolment_token(options.token)
    return show(options, token, lambda: token_text(token))


def token_text(token: Json) -> str:
    """A token, and which devices used it, as people read it."""
    used = table_or(USED_HEADER, cells(parts(token, "used_by"), USED_HEADER), "no device has used it")
    return f"{text_table(HEADER, cells([token], HEADER))}\n\n{used}"


def _revoke(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        revoked = farm.revoke_enrolment_token(options.token)
    return show(options, revoked, lambda: f"{options.token} lets no more devices in")
