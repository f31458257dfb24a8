"""`pockfarm open [RUN|JOB|DEVICE]`: the dashboard in a browser, at the page of one thing."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from typing import Any

from pockfarm.commands.farm import connect, farm_command
from pockfarm.commands.ids import kind_of
from pockfarm.commands.output import show

PAGES = {"run": "runs", "job": "jobs", "dev": "devices"}


def add_open(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "print a one-time link to the dashboard, or to a page of it, and open it in a browser"
    command = farm_command(subparsers, "open", words, _open)
    command.add_argument("id", nargs="?", metavar="RUN|JOB|DEVICE", help="whose page (default: the first page)")
    command.add_argument("--print", action="store_true", dest="only_print", help="print the link and open nothing")


def _open(options: argparse.Namespace) -> int:
    page = f"/dashboard/{PAGES[kind_of(options.id, *PAGES)]}/{options.id}" if options.id else ""
    with connect(options) as farm:
        link = farm.dashboard_link(page)
    show(options, {"url": link}, lambda: link)
    sys.stdout.flush()
    if not options.only_print and not webbrowser.open(link):
        print("no browser opens here: open the link yourself; it is good once", file=sys.stderr)
    return 0
