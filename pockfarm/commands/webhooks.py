"""`pockfarm webhooks add | list | test | deliveries | remove`: who is told when jobs and runs end."""

from __future__ import annotations

import argparse
from typing import Any

from pockfarm.commands.farm import connect, farm_command, reading_command
from pockfarm.commands.output import show, show_list
from pockfarm.errors import Failed
from pockfarm.output.table import cell
from pockfarm.values import Json, text

EVENTS = ("job.ended", "run.ended", "device.slower", "device.two-machines")


def add_webhooks(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "be told at an address when jobs and runs end, or something is wrong with a device"
    command = subparsers.add_parser("webhooks", help=words, description=words)
    actions = command.add_subparsers(metavar="ACTION", required=True)
    add = reading_command(actions, "add", "add an address, and print the secret of its signatures once", _add)
    add.add_argument("url", metavar="URL")
    add.add_argument("--event", action="append", choices=EVENTS, help="only this; may be repeated")
    reading_command(actions, "list", "list one's webhooks, the newest first", _list)
    for name, words, run in (
        ("test", "send a webhook.test now, and say what came of it", _test),
        ("deliveries", "list what a webhook was told, the newest first", _deliveries),
        ("remove", "tell a webhook nothing more", _remove),
    ):
        make = reading_command if run is _deliveries else farm_command
        make(actions, name, words, run).add_argument("webhook", metavar="WEBHOOK")


def _add(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        webhook = farm.add_webhook(options.url, events=options.event or ())
    return show(options, webhook, lambda: f"webhook {text(webhook, 'id')}\nsecret  {text(webhook, 'secret')}")


def _list(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        webhooks = farm.webhooks()
    header = ("webhook", "url", "events", "failed in a row", "removed")
    return show_list(options, webhooks, header, webhook_row, none="no webhooks yet")


def webhook_row(webhook: Json) -> tuple[str, ...]:
    """Returns the webhook's events, and whether they arrive."""
    return tuple(cell(webhook.get(name)) for name in ("id", "url", "events", "failures", "removed_because"))


def _test(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        delivery = farm.test_webhook(options.webhook)
    is_there = text(delivery, "state") == "delivered"
    show(options, delivery, lambda: "delivered" if is_there else f"failed: {text(delivery, 'error')}")
    return 0 if is_there else Failed.exit_code


def _deliveries(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        deliveries = farm.webhook_deliveries(options.webhook)
    header = ("id", "created_at", "event", "subject", "state", "attempts", "error")
    return show_list(options, deliveries, header, none="nothing was told yet")


def _remove(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        removed = farm.remove_webhook(options.webhook)
    return show(options, removed, lambda: f"{options.webhook} is told nothing more")
