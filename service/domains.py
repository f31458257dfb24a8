"""Optional features of the farm that listen to its announcements."""

from __future__ import annotations

from service.operations.webhooks.announcing import queue_deliveries
from service.store.announcements import Listener

LISTENERS: tuple[Listener, ...] = (queue_deliveries,)
