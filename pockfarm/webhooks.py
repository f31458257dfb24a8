"""For who receives webhooks: whether a request is the farm's, and fresh."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

from pockfarm.errors import UsageError

TOLERANCE_S = 300.0


class NotFromTheFarm(ValueError):
    """The request is not what the farm has signed, or an old one that somebody sends again."""


def verify_webhook(
    secret: str, headers: Mapping[str, str], body: bytes, *, tolerance_s: float = TOLERANCE_S
) -> dict[str, Any]:
    """Verifies a delivery and returns its event: `{"type": "run.ended", "timestamp": ..., "data": {...}}`.

    `secret` is what `pockfarm webhooks add` printed, `body` the bytes as they came. The same delivery may come twice:
    it has the same `webhook-id` then. Raises: NotFromTheFarm; UsageError (the secret is none).
    """
    header_fields = {name.lower(): value for name, value in headers.items()}
    sent_id, timestamp = header_fields.get("webhook-id", ""), header_fields.get("webhook-timestamp", "")
    if not timestamp.isdigit() or abs(time.time() - int(timestamp)) > tolerance_s:
        raise NotFromTheFarm(f"webhook-timestamp {timestamp!r:.40} is more than {tolerance_s:.0f} s from now")
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise UsageError("the webhook's secret is not one that `pockfarm webhooks add` printed") from None
    mac = hmac.new(key, f"{sent_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    expected = "v1," + base64.b64encode(mac).decode()
    signatures = header_fields.get("webhook-signature", "").split(" ")
    if not any(hmac.compare_digest(expected.encode(), signature.encode()) for signature in signatures):
        raise NotFromTheFarm("webhook-signature is not by this webhook's secret")
    event: dict[str, Any] = json.loads(body)
    return event
