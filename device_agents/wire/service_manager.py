"""What a process tells the service manager that started it (sd_notify): a unit may set `WatchdogSec=15`."""

import contextlib
import os
import socket

VARIABLE = "NOTIFY_SOCKET"
"""Where the manager listens: a path, or `@` and an abstract name."""


def tell_manager(message: bytes) -> None:
    """Send `READY=1`, `WATCHDOG=1` and the like. A manager that does not listen, or is not there, does not matter."""
    address = os.environ.get(VARIABLE, "")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.setblocking(False)  # a manager that does not listen must not hold us up
        to.sendto(message, "\0" + address[1:] if address.startswith("@") else address)
