"""Decides which addresses the farm sends to: those of the open internet, and those that its operator allows besides.

A user chooses the URL, and the farm stands where its user does not: a request to `http://169.254.169.254/` or to the
farm's own database would come from inside. So the address that a name resolves to is judged, the connection goes to
that very address (a name may resolve differently the next time), and no redirect is followed.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from service.base.problems import Invalid

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
SCHEMES = {"https": 443, "http": 80}
MAX_URL = 1000
_CARRIERS = tuple(ipaddress.IPv6Network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "::/96"))
"""IPv6 networks whose addresses lead to an IPv4 address that they hold, on whatever machine."""

_LOCAL = tuple(ipaddress.IPv6Network(text) for text in ("fec0::/10", "5f00::/16", "3fff::/20"))
"""IPv6 networks that the open internet does not have, and that `is_global` does not know as such: site-local
addresses (RFC 3879), segment identifiers (RFC 9602), documentation (RFC 9637)."""


class Refused(Exception):
    """The farm does not send there. The message is for the webhook's owner."""


def networks(text: str) -> tuple[Network, ...]:
    """Returns the networks of a setting: `10.0.0.0/8, 127.0.0.1`. Raises: ValueError."""
    return tuple(ipaddress.ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip())


def check_url(url: str, allowed: Sequence[Network]) -> None:
    """Checks that the farm may send to this URL, as far as that shows without resolving its name.

    Raises: Invalid, naming what is wrong.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise _invalid("it is no URL") from None
    if parts.scheme not in SCHEMES or not host:
        raise _invalid("it must begin with https:// (or http://) and a host's name")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise _invalid("it must hold no user, password or #fragment")
    if port == 0 or not url.isascii() or not url.isprintable() or " " in url:
        raise _invalid("it holds a character or port that no address has; encode it")
    try:
        literal = ipaddress.ip_address(host)
    except ValueError:
        return
    try:
        check_address(literal, allowed)
    except Refused as refusal:
        raise _invalid(str(refusal)) from None


def _invalid(reason: str) -> Invalid:
    return Invalid(
        "webhook.url",
        f"the farm does not send to this URL: {reason}",
        where="url",
        hint="name a host that the farm reaches over the internet, or ask its operator to allow the network "
        "(POCKFARM_WEBHOOK_NETWORKS)",
    )


def check_address(address: IpAddress, allowed: Sequence[Network]) -> None:
    """Raises: Refused, for what is not of the open internet and in none of the allowed networks."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if any(address.version == network.version and address in network for network in allowed):
        return
    is_other = address.version == 6 and any(address in network for network in (*_CARRIERS, *_LOCAL))
    if is_other or not address.is_global or address.is_multicast or address.is_reserved or address.is_unspecified:
        raise Refused(f"{address} is no address of the open internet")


def resolve(host: str, port: int, allowed: Sequence[Network]) -> str:
    """Returns the address to connect to. One forbidden address rules out the whole name: no name has reason to mix
    them.

    Raises: Refused; OSError if the name is not known.
    """
    records = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]).partition("%")[0] for entry in records]
    for text in addresses:
        check_address(ipaddress.ip_address(text), allowed)
    return addresses[0]
