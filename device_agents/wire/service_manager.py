"""Notifications of a process to the service manager that started it (sd_notify): a unit may set `WatchdogSec=15`."""

import contextlib
import os
import socket

VARIABLE = "NOTIFY_SOCKET"
"""The variable that says where the manager listens: a path, or `@` and an abstract name."""
WATCHDOG_VARIABLE = "WATCHDOG_USEC"
"""The variable that says how long a process may give no sign, in microseconds, if its unit sets it."""


def tell_manager(message: bytes) -> None:
    """Sends `READY=1`, `WATCHDOG=1` and the like. A manager that does not listen, or is not there, does not matter."""
    address = os.environ.get(VARIABLE, "")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.setblocking(False)  # a manager that does not listen must not hold us up
        to.sendto(message, "\0" + address[1:] if address.startswith("@") else address)


def tell_ready() -> None:
    """The process is up, and gives signs of life from now on as often as its unit wants them."""
    tell_manager(b"READY=1")
    if os.environ.get(WATCHDOG_VARIABLE, "").isdecimal():
        tell_manager(f"WATCHDOG_USEC={os.environ[WATCHDOG_VARIABLE]}".encode())


def ask_for_time(within_s: float) -> None:
    """The process becomes another program, which gives no sign before it is up: `tell_ready` ends this."""
    tell_manager(f"WATCHDOG_USEC={round(within_s * 1e6)}".encode())
