"""The sending of a signed request: `webhook-id`, `webhook-timestamp` and `webhook-signature` as the Standard Webhooks
specification has them, so that its libraries verify ours.

Source: https://www.standardwebhooks.com (the signature is HMAC-SHA256 over `id.timestamp.body`, in Base64 after `v1,`;
a secret is Base64 after `whsec_`). Time-out: `TIMEOUT_S` for all of it. One attempt; the courier comes again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from service.features.webhooks.addresses import SCHEMES, Network, Refused, resolve

TIMEOUT_S = 10.0
SECRET_PREFIX = "whsec_"
AGENT = "PockFarm-Webhooks/1"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one request. `error` is empty if the address took it (2xx)."""

    status: int | None
    error: str
    took_s: float = 0.0
    """Seconds until there was an answer."""

    @property
    def is_taken(self) -> bool:
        """Whether the address has it."""
        return not self.error


def new_webhook_secret() -> str:
    """Returns a secret of 256 random bits, in the specification's format."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def signature(secret: str, delivery_id: str, timestamp: int, body: bytes) -> str:
    """Returns the signature, as `v1,<Base64>`."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = f"{delivery_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def send(url: str, secret: str, delivery_id: str, body: bytes, allowed: Sequence[Network]) -> Outcome:
    """Posts the body, signed for now. Of the answer only the status is read."""
    timestamp, began = int(time.time()), time.monotonic()
    headers = {
        "Host": urlsplit(url).netloc,
        "Content-Type": "application/json",
        "User-Agent": AGENT,
        "Connection": "close",
        "webhook-id": delivery_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(secret, delivery_id, timestamp, body),
    }
    try:
        status = _post(url, headers, body, allowed)
    except Refused as refusal:
        return Outcome(None, f"not sent: {refusal}")
    except ssl.SSLError as problem:
        return Outcome(None, f"no TLS connection: {problem.reason or 'it was cut off'}")
    except (TimeoutError, socket.gaierror, OSError, http.client.HTTPException) as problem:
        return Outcome(None, _error_text(problem))
    if 300 <= status < 400:
        return Outcome(status, f"answered {status}: redirects are not followed; give the address that it leads to")
    return Outcome(status, "" if 200 <= status < 300 else f"answered {status}", time.monotonic() - began)


def _error_text(problem: Exception) -> str:
    if isinstance(problem, TimeoutError):
        return f"no answer within {TIMEOUT_S:.0f} s"
    if isinstance(problem, socket.gaierror):
        return "its name is not known"
    if isinstance(problem, http.client.HTTPException):
        return "what it answered is not HTTP, or too long"
    return f"no connection: {problem.__class__.__name__}"


def _post(url: str, headers: dict[str, str], body: bytes, allowed: Sequence[Network]) -> int:
    """Returns the answer's status. Raises: Refused, OSError, HTTPException."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or SCHEMES[parts.scheme]
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    give_up_at = time.monotonic() + TIMEOUT_S
    stream = socket.create_connection((resolve(host, port, allowed), port), timeout=TIMEOUT_S)
    # Each wait has a time-out of its own, and an address that sends a byte now and then would outlast them all. The
    # second handle is for TLS, which takes the first one over.
    handle = stream.dup()
    cut = threading.Timer(max(0.0, give_up_at - time.monotonic()), _shut, [handle])
    cut.daemon = True
    cut.start()
    try:
        if parts.scheme == "https":
            stream = ssl.create_default_context().wrap_socket(stream, server_hostname=host)
        connection = http.client.HTTPConnection(host, port)
        connection.sock = stream
        connection.request("POST", target, body, headers)
        status = connection.getresponse().status
        if time.monotonic() >= give_up_at:  # cut off within its headers, which reads as their end
            raise TimeoutError
        return status
    except (OSError, http.client.HTTPException):
        if time.monotonic() >= give_up_at:
            raise TimeoutError from None
        raise
    finally:
        cut.cancel()
        handle.close()
        stream.close()


def _shut(stream: socket.socket) -> None:
    with suppress(OSError):
        stream.shutdown(socket.SHUT_RDWR)
