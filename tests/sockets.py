"""Sockets are off in tests: an audit hook stops what opens one, unless the test asks by the fixture `loopback`.

Nothing outside this machine may be reached by any test. A child process that a test starts is not watched; it gets its
addresses from the test, which may only have asked for loopback ones.
"""

from __future__ import annotations

import ipaddress
import sys
from typing import Any

ADDRESSES = ("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg")
"""Events whose second argument is where to; a message on a connected socket has none, since `connect` was asked."""
LOOK_UPS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo")
"""Events whose first argument is what to look up."""


class SocketUsed(RuntimeError):
    """A test used a socket that it may not use.

    Not an OSError: code that outlives a failing network must not hide it.
    """


class SocketGuard:
    """Checks every use of a socket in this process once it is installed, for good: audit hooks cannot be removed."""

    def __init__(self) -> None:
        self.allows_loopback = True

    def install(self) -> None:
        """Begin to check."""
        sys.addaudithook(self._check)

    def _check(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in (*ADDRESSES, *LOOK_UPS):
            return
        address = arguments[0] if event in LOOK_UPS else arguments[1]
        if event == "socket.sendmsg" and address is None:
            return
        host = address[0] if isinstance(address, tuple) else address
        local = is_on_this_machine(host, is_path=event in ADDRESSES and not isinstance(address, tuple))
        if not local:
            raise SocketUsed(f"{event} of {address!r}: tests reach nothing outside this machine")
        if not self.allows_loopback:
            raise SocketUsed(f"{event} of {address!r}: a test that needs a socket asks for the fixture `loopback`")


def is_on_this_machine(host: object, *, is_path: bool) -> bool:
    """True for a unix socket's path, and for loopback addresses and names."""
    if is_path or host is None:
        return True
    name = host.decode() if isinstance(host, bytes | bytearray) else str(host)
    if name in ("", "localhost"):
        return name == "localhost"
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


GUARD = SocketGuard()
