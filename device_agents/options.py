"""The words of the agent's command line, and what those that need a look mean on this machine."""

from __future__ import annotations

import argparse
import os
import pwd
import sys
from pathlib import Path

from device_agents.devices.accelerator import ENGINES
from device_agents.errors import EnrolmentError
from device_agents.job.sandbox import Sandbox, probe
from device_agents.job.users import DEFAULT, parse
from device_agents.joining import TOKEN_VARIABLE
from device_agents.updating import UPDATES_VARIABLE, Wishes
from device_agents.wire import HEARTBEAT_INTERVAL_S, version_order

LONG_POLL_S = 25.0
DATA_VARIABLE = "POCKFARM_AGENT_DATA"
"""The variable for the values of `--data`, several apart by spaces: for a service manager's file of settings."""


def confinement(options: argparse.Namespace, hide: Path | None) -> Sandbox:
    """The sandbox that the options ask for, as far as it works here. Raises: `EnrolmentError`."""
    users, uid = DEFAULT, None
    try:
        users = parse(options.job_users) if options.job_users else DEFAULT
    except ValueError as error:
        raise EnrolmentError(f"--job-users {error}") from None
    if options.run_as is not None:
        uid = _uid(options.run_as)
    elif os.geteuid() != 0:
        raise EnrolmentError(
            f"not as root, this agent cannot give jobs a user of their own: they would run as user {os.geteuid()}, who "
            f"owns what you own. Start it as root, or, if whoever may submit to this farm may act as that user, say "
            f"--run-as {os.geteuid()}"
        )
    engine = ENGINES.get(options.engine or "")
    return probe(
        hide=hide,
        users=None if options.run_as is not None else users,
        uid=uid,
        readable_paths=(*options.show, *(engine.existing_files() if engine else ())),
        most=options.isolation,
        runner=options.runner.split() if options.runner else (),
        nodes=engine.devices() if engine else None,
    )


def _uid(name: str) -> int | None:
    """The user that all jobs run as; None: the agent's own. Raises: `EnrolmentError`."""
    try:
        uid = int(name) if name.isdigit() else pwd.getpwnam(name).pw_uid
    except KeyError:
        raise EnrolmentError(f"--run-as {name}: no such user") from None
    if uid != os.geteuid() and os.geteuid() != 0:
        raise EnrolmentError(f"--run-as {name}: only root can become another user")
    return uid if uid != os.geteuid() else None


def parser() -> argparse.ArgumentParser:
    """Returns a parser of every option there is."""
    arguments = argparse.ArgumentParser(
        prog="python -m device_agents.agent", description="The PockFarm agent of one device."
    )
    probing = "--probe" in sys.argv or "--check" in sys.argv
    arguments.add_argument("--server", required=not probing, help="the farm's address, http://HOST:PORT")
    arguments.add_argument(
        "--state", required=not probing, type=Path, help="folder for the device's key and results (made 0700)"
    )
    arguments.add_argument("--probe", action="store_true", help="print the device and what confines its jobs, and end")
    arguments.add_argument("--check", action="store_true", help="print this agent's version and protocol, and end")
    arguments.add_argument(
        "--trial", action="store_true", help="end when the farm has answered twice (the launcher's word)"
    )
    arguments.add_argument(
        "--updates", choices=("on", "off"), help=f"whether the farm may update this agent; also ${UPDATES_VARIABLE}"
    )
    arguments.add_argument("--oldest-version", default="0", metavar="VERSION", help="take no update below this one")
    arguments.add_argument(
        "--enrol-token",
        metavar="FILE",
        help=f"file with the one-time token, `-` for standard input (else ${TOKEN_VARIABLE}); first start only",
    )
    arguments.add_argument("--name", help="the device's name on the dashboard")
    arguments.add_argument("--class", dest="device_class", help="device class; found out when left away")
    arguments.add_argument("--runner", help="emulator in front of the binary, such as qemu-aarch64-static")
    arguments.add_argument(
        "--engine", choices=tuple(ENGINES), help="serve this engine of the machine in place of its CPU (--exclusive)"
    )
    arguments.add_argument("--run-as", help="one user for all jobs, in place of one each; the agent's own: not as root")
    arguments.add_argument("--job-users", metavar="FIRST-LAST", help=f"numbers of jobs' own users (default: {DEFAULT})")
    arguments.add_argument(
        "--show", action="append", default=[], help="read-only in a job's view (an emulator's files)"
    )
    arguments.add_argument(
        "--isolation", type=int, default=4, choices=range(5), help="at most this level (4: what works)"
    )
    arguments.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="a job's limit here: transfer_s, run_s, memory_bytes or disk_bytes",
    )
    arguments.add_argument(
        "--exclusive", type=Path, help="lock file shared by the agents of one machine: one runs at a time"
    )
    words = f"a data set that runs may use here and that never leaves: NAME=PATH[,weights-stay]; also ${DATA_VARIABLE}"
    arguments.add_argument("--data", action="append", default=[], metavar="NAME=PATH", help=words)
    arguments.add_argument("--self-test", action="store_true", help="print what this board can do, and end")
    arguments.add_argument("--enrol-only", action="store_true", help="enrol (or say that it is enrolled), and end")
    arguments.add_argument("--once", action="store_true", help="end after one assignment")
    arguments.add_argument(
        "--long-poll", type=float, default=LONG_POLL_S, help="seconds that a request for work may wait"
    )
    arguments.add_argument("--heartbeat-interval", type=float, default=HEARTBEAT_INTERVAL_S, help="seconds")
    return arguments


def wishes(options: argparse.Namespace) -> Wishes:
    """Returns the board operator's wishes about updates. Raises: `EnrolmentError`."""
    updates = options.updates or os.environ.get(UPDATES_VARIABLE) or "on"
    if updates not in ("on", "off"):
        raise EnrolmentError(f"${UPDATES_VARIABLE}={updates}: expected on or off")
    try:
        version_order(options.oldest_version)
    except ValueError as error:
        raise EnrolmentError(f"--oldest-version: {error}") from None
    return Wishes(updates == "on", options.oldest_version)
